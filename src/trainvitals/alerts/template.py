"""Messages with fields: `Loss spike: {loss:.2f} at step {step}`.

Only plain names and format specifications: no attributes, no indices, no calls. A field that has no value at the
moment is shown as `{loss?}` and counted, never an error in the middle of an alert.
Tested in tests/alerts/test_rules.py.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping
from typing import Any

from trainvitals.alerts.language import RuleError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_SPECIFICATION = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?\d{0,3}[,_]?(?:\.\d{1,2})?[bcdeEfFgGnosxX%]?", re.DOTALL)
_parse = string.Formatter().parse


def check(template: str) -> frozenset[str]:
    """The names of the fields; RuleError if the template cannot be used."""
    names = set()
    try:
        parts = list(_parse(template))
    except ValueError as error:
        raise RuleError(f"message: {error}; write a literal brace twice") from None
    for _, name, specification, conversion in parts:
        if name is None:
            continue
        if not _NAME.fullmatch(name) or conversion:
            raise RuleError(
                f"message: '{{{name}}}' is not a valid name: use one such as {{loss}} or {{loss:.2f}}",
                template,
                max(template.find("{" + name), 0),
            )
        if not _SPECIFICATION.fullmatch(specification or ""):
            raise RuleError(
                f"message: invalid format '{specification}' for {{{name}}}: use one such as {{{name}:.2f}}",
                template,
                max(template.find("{" + name), 0),
            )
        names.add(name)
    return frozenset(names)


def fill(template: str, fields: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The text, and the fields that had no value."""
    missing: list[str] = []
    parts: list[str] = []
    for literal, name, specification, _ in _parse(template):
        parts.append(literal)
        if name is None:
            continue
        value = fields.get(name)
        if value is None:
            missing.append(name)
            parts.append(f"{{{name}?}}")
            continue
        if isinstance(value, float) and math.isnan(value):
            parts.append("NaN")
            continue
        try:
            parts.append(format(value, specification or ("g" if type(value) is float else "")))
        except (ValueError, TypeError):  # a number's format for a text, or the other way round
            parts.append(str(value))
    return "".join(parts), missing

"""How W&B's clients name a run. Tested in tests/trackers/intake/test_wandb.py."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

TOOL = "wandb"
ENTITY = "trainvitals"
"""For a client that names none."""
PROJECT = "uncategorized"
"""W&B's own word for no project."""


class RunReference(NamedTuple):
    """How a client names a run."""

    entity: str
    project: str
    run: str

    @property
    def key(self) -> str:
        return "/".join(self)


def refer(given: Mapping[str, Any], run: object) -> RunReference:
    entity = given.get("entity") or given.get("entityName") or ENTITY
    project = given.get("project") or given.get("projectName") or given.get("modelName") or PROJECT
    name = run if isinstance(run, str) and run else secrets.token_hex(4)
    return RunReference(as_part(str(entity)), as_part(str(project)), as_part(name))


def as_part(text: str) -> str:
    """As a part of an address: W&B's own names have none of these letters."""
    return re.sub(r"[/\\\x00-\x1f\x7f]", "-", text)[:128] or "-"


def read_texts(value: object) -> list[str]:
    """The texts of a list."""
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

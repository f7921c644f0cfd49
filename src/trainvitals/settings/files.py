"""trainvitals.yaml and pyproject.toml: found, read, and turned into (name, value, place)."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import SettingError
from trainvitals.ownership import find_distrust

if TYPE_CHECKING:
    from yaml import Node

CONFIG_VARIABLE = "TRAINVITALS_CONFIG"
NAMES = ("trainvitals.yaml", "trainvitals.yml", "pyproject.toml")
MAX_BYTES = 1_000_000
_SUCH_AS = "such as interval: 0.5; for all names: trainvitals config --describe"
_EXPECTED = f"lines of 'name: value', {_SUCH_AS}"

Entry = tuple[str, object, str]
"""Name with its sections (`alerts.cooldown`), value, and its place (`trainvitals.yaml:3`)."""


def find_file(start: Path | None) -> tuple[tuple[Path, str] | None, list[str]]:
    """The first settings file from `start` upward, and its text; None if there is none. And warnings about files that
    were skipped because another user may have put them there."""
    passed_over = []
    for folder in (start, *start.parents) if start else ():
        for name in NAMES:
            path = folder / name
            # os.path, not Path: an inaccessible folder has no file for us, and is not an error.
            if os.path.isfile(path):  # noqa: PTH113
                why = find_distrust(path, start) if start else None
                if why is not None:
                    if name != "pyproject.toml":  # most of these are not about us
                        passed_over.append(f"{path} is ignored: {why}. To use it: {CONFIG_VARIABLE}={path}")
                    continue
                text = read_text(path, str(path))
                if name != "pyproject.toml" or _has_table(text, str(path)):
                    return (path, text), passed_over
    return None, passed_over


def read_text(path: Path, shown: str) -> str:
    """The file as text."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise SettingError(f"no configuration file {shown}", hint="check the path") from None
    except OSError as error:
        raise SettingError(f"cannot read {shown}: {error.strerror}", hint="use another with --config FILE") from None
    if len(data) > MAX_BYTES:
        raise SettingError(f"{shown} is not a settings file: it is larger than {MAX_BYTES:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SettingError(f"{shown}:{line}: not UTF-8 text", hint="save the file as UTF-8") from None


def parse_file(path: Path, text: str, shown: str, names: Collection[str]) -> list[Entry]:
    """The settings in the text of that file, in its order. `names` are all setting names: they decide
    whether a mapping is a section or a value."""
    try:
        parse = parse_toml if path.suffix == ".toml" else parse_yaml
        return parse(text, shown, names)
    except RecursionError:
        raise SettingError(f"{shown} is not a settings file: it is nested too deeply") from None


def parse_mapping(given: Mapping[str, object], shown: str, names: Collection[str], prefix: str = "") -> list[Entry]:
    """The settings in a mapping with sections; `shown` is its place."""
    found: list[Entry] = []
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and _is_section(name, names):
            found += parse_mapping(value, shown, names, f"{name}.")
        else:
            found.append((name, value, shown))
    return found


def _is_section(name: str, names: Collection[str]) -> bool:
    return any(known.startswith(f"{name}.") for known in names)


# -- YAML


def parse_yaml(text: str, shown: str, names: Collection[str]) -> list[Entry]:
    """The settings in YAML. Scalars stay text, as in a variable, so `project: 007` is what was written."""
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{shown}:{mark.line + 1}:{mark.column + 1}" if mark else shown
        raise SettingError(f"{place}: not YAML: {error.problem or error.context}", hint=_EXPECTED) from None
    except yaml.reader.ReaderError as error:
        place = f"{shown}:{text.count(chr(10), 0, error.position) + 1}"
        raise SettingError(f"{place}: not YAML: {error.reason}", hint=_EXPECTED) from None
    return [] if root is None else list(_walk_yaml(root, "", shown, names))


def _walk_yaml(node: Node, prefix: str, shown: str, names: Collection[str]) -> Iterator[Entry]:
    from yaml import MappingNode

    if not isinstance(node, MappingNode):
        place = f"{shown}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
        raise SettingError(f"{place}: expected lines of 'name: value'", hint=_SUCH_AS)
    for key, value in node.value:
        name = f"{prefix}{_plain(key, {})}"
        if isinstance(value, MappingNode) and _is_section(name, names):
            yield from _walk_yaml(value, f"{name}.", shown, names)
        else:
            yield name, _plain(value, {}), f"{shown}:{key.start_mark.line + 1}"


def _plain(node: Node, known: dict[int, object]) -> object:
    """The node as text, list or mapping; each node once, so that aliases of aliases do not multiply."""
    from yaml import MappingNode, SequenceNode

    if id(node) not in known:
        if isinstance(node, SequenceNode):
            known[id(node)] = [_plain(item, known) for item in node.value]
        elif isinstance(node, MappingNode):
            known[id(node)] = {str(_plain(key, known)): _plain(value, known) for key, value in node.value}
        else:
            known[id(node)] = None if node.tag == "tag:yaml.org,2002:null" else node.value
    return known[id(node)]


# -- TOML


def _has_table(text: str, shown: str) -> bool:
    # Most projects never mention us: they are not parsed, and errors in their file are not ours to report.
    return "trainvitals" in text and _read_table(text, shown) is not None


def parse_toml(text: str, shown: str, names: Collection[str]) -> list[Entry]:
    """The settings in the table `[tool.trainvitals]`."""
    table = _read_table(text, shown)
    if table is None:
        raise SettingError(f"{shown} has no table [tool.trainvitals]", hint="add it, or omit the file")
    return list(_walk_toml(table, "", text, shown, names))


def _read_table(text: str, shown: str) -> dict[str, object] | None:
    import tomllib

    try:
        tool = tomllib.loads(text).get("tool")
    except tomllib.TOMLDecodeError as error:
        reason, _, end = str(error).partition(" (at ")
        at = re.match(r"line (\d+), column (\d+)", end)
        place = f"{shown}:{at[1]}:{at[2]}" if at else shown
        raise SettingError(f"{place}: not TOML: {reason}", hint="fix that line") from None
    table = tool.get("trainvitals") if isinstance(tool, dict) else None
    if table is not None and not isinstance(table, dict):
        raise SettingError(f"{shown}: tool.trainvitals is not a table", hint="write [tool.trainvitals]")
    return table


def _walk_toml(table: dict[str, object], prefix: str, text: str, shown: str, names: Collection[str]) -> Iterator[Entry]:
    for key, value in table.items():
        name = prefix + key
        if isinstance(value, dict) and _is_section(name, names):
            yield from _walk_toml(value, f"{name}.", text, shown, names)
        else:
            line = _find_toml_line(text, prefix, key)
            yield name, value, f"{shown}:{line}" if line else shown


def _find_toml_line(text: str, prefix: str, key: str) -> int | None:
    """The line of `key = ` under its header, which tomllib does not report. None if it is written another way."""
    wanted = f"tool.trainvitals.{prefix}".rstrip(".")
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*\[([^\[\]]+)\]\s*(?:#|$)", line):
            header = re.sub(r"[\s\"']", "", match[1])
        elif header == wanted and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return None

"""Where values come from, and which of them counts."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.errors import SettingError, nearest
from trainvitals.settings.addresses import Address, BadEntry, place
from trainvitals.settings.files import find_file, parse_file, read_text
from trainvitals.settings.table import PREFIX, TABLE, Row, Setting, Settings, find

CONFIG_VARIABLE = "TRAINVITALS_CONFIG"

# Variables with our prefix that are not settings: how our own processes find each other.
RESERVED = frozenset(
    {
        CONFIG_VARIABLE,
        "TRAINVITALS_AGENT_PARENT",
        "TRAINVITALS_ATTEMPT",
        "TRAINVITALS_CORRELATION_ID",
        "TRAINVITALS_RUNTIME_DIR",
        "TRAINVITALS_RUN_DIR",
        "TRAINVITALS_RUN_ID",
        # Of the program that an alert starts (alerts/channels/command.py).
        "TRAINVITALS_ALERT_RULE",
        "TRAINVITALS_ALERT_RUN",
        "TRAINVITALS_ALERT_SEVERITY",
        "TRAINVITALS_ALERT_STATE",
        "TRAINVITALS_ALERT_TITLE",
    }
)
MEANT_FOR_PEOPLE = (CONFIG_VARIABLE, "TRAINVITALS_RUNTIME_DIR")
"""Those of them that somebody may want to type."""
TOLD = "_TRAINVITALS_TOLD"
"""Set for the programs below one that has said which variables name no setting, so that they do not say it again."""
_told: set[str] = set()


class _Given(NamedTuple):
    """A value as it stands in its place, not yet parsed."""

    value: object
    origin: str
    folder: Path | None = None
    """Of the file it stands in: a relative path in a file is meant from there."""
    path: Path | None = None
    """The file itself."""


def resolve(
    arguments: Mapping[str, object] | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    config: Path | None = None,
) -> Settings:
    """The settings in force. A value of None, or an empty variable, means "not given".

    The file is `config`, or what TRAINVITALS_CONFIG names, or the first found from `folder` (the current one)
    upward. Raises SettingError for an unknown name, a value that does not fit, or a file that cannot be used.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    given = _read_file(folder, config)
    for row in TABLE:
        if environ.get(row.variable):
            given[row.attribute] = _Given(environ[row.variable], row.variable)
    for name, value in (flags or {}).items():
        row = find(name, "flag")
        if value is not None:
            given[row.attribute] = _Given(value, f"flag {row.flag}")
    for name, value in (arguments or {}).items():
        row = find(name, "argument")
        if value is not None:
            given[row.attribute] = _Given(value, "argument")

    known = {row.variable for row in TABLE} | RESERVED
    return Settings(
        {row.attribute: _parse_row(row, given.get(row.attribute)) for row in TABLE},
        tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known)),
    )


def complaints(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[str]:
    """What to say of variables that name no setting: of each once, in this process or the one that started it."""
    told = _told.union(environ.get(TOLD, "").split(","))
    new = [name for name in settings.unknown_environment if name not in told]
    _told.update(new)
    return [describe_unknown(name) for name in new]


def mark_told(settings: Settings, environ: MutableMapping[str, str] = os.environ) -> None:
    """The programs that get this environment need not complain again."""
    if settings.unknown_environment:
        environ[TOLD] = ",".join(settings.unknown_environment)


def describe_unknown(variable: str) -> str:
    """That the variable names no setting, and which name was meant."""
    known = [name.removeprefix(PREFIX) for name in (*(row.variable for row in TABLE), *MEANT_FOR_PEOPLE)]
    close = nearest(variable.removeprefix(PREFIX), known, PREFIX)
    return f"the variable {variable} names no setting and is ignored{close or ': see trainvitals config --describe'}"


def _parse_row(row: Setting[Any], given: _Given | None) -> Row:
    if given is None:
        return Row(row.name, row.default, row.kind.format(row.default), "default")
    try:
        value = row.kind.parse(given.value)
        if isinstance(value, tuple) and value and isinstance(value[0], Address):
            value = place(value, given.origin, given.path)
    except ValueError as error:
        refused = error.entry if isinstance(error, BadEntry) else given.value
        raise SettingError(
            f"setting '{row.name}' ({given.origin}): {_quote(row.name, refused)} is not {error}",
            hint=f"the default is {row.kind.format(row.default)}",
        ) from None
    if isinstance(value, Path) and given.folder is not None:
        value = given.folder / value
    return Row(row.name, value, row.kind.format(value), given.origin)


def _quote(name: str, value: object) -> str:
    """A value that was refused, short, and without the token that it may be or hold."""
    from reprlib import Repr

    from trainvitals.redaction import redact

    short = Repr()
    short.maxstring = short.maxother = 100
    return short.repr(redact({name: value})[name])


def _read_file(folder: Path | None, config: Path | None) -> dict[str, _Given]:
    """What the file says, by attribute; empty if there is none."""
    try:
        start = Path.cwd() if folder is None else folder.absolute()
    except FileNotFoundError:
        start = None  # the current folder was removed: nothing to look up, but a named file still counts
    found = find_file(start) if config is None else (config, read_text(config, str(config)))
    if found is None:
        return {}
    path, text = found
    names = [row.name for row in TABLE]
    given: dict[str, _Given] = {}
    for name, value, origin in parse_file(path, text, _shown(path, start), names):
        row = find(name, origin)
        if row.attribute in given:
            raise SettingError(f"setting '{row.name}' stands twice: {given[row.attribute].origin} and {origin}")
        given[row.attribute] = _Given(value, origin, path.absolute().parent, path.absolute())
    return {attribute: value for attribute, value in given.items() if value.value is not None}


def _shown(path: Path, start: Path | None) -> str:
    """The path as a person in `start` would type it."""
    try:
        return os.path.relpath(path, start) if start else str(path)
    except ValueError:  # on another drive
        return str(path)

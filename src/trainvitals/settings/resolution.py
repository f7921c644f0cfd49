"""Where values come from, and which of them wins."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.errors import SettingError, nearest
from trainvitals.settings.addresses import UNSAFE, Address, BadEntry, find_where, place, read_value
from trainvitals.settings.files import CONFIG_VARIABLE, find_file, read_text
from trainvitals.settings.kinds import OBJECTS
from trainvitals.settings.table import PREFIX, TABLE, Row, Setting, Settings, explain_removed, find

SYSFS_VARIABLE = "TRAINVITALS_SYSFS_ROOT"
"""Where sysfs is instead of /sys: for tests with simulated devices."""
TOKEN_VARIABLE = "TRAINVITALS_TOKEN"
"""The token for the gateway itself, which no setting may contain: `gateway_token` names it."""
# Variables with our prefix that are not settings: how our own processes find each other.
RESERVED = frozenset(
    {
        CONFIG_VARIABLE,
        SYSFS_VARIABLE,
        "TRAINVITALS_AGENT_PARENT",
        "TRAINVITALS_ATTEMPT",
        "TRAINVITALS_CORRELATION_ID",
        "TRAINVITALS_ROLE",
        "TRAINVITALS_RUNTIME_DIR",
        "TRAINVITALS_LAUNCH",
        "TRAINVITALS_RUN_DIR",
        "TRAINVITALS_RUN_ID",
        TOKEN_VARIABLE,
        # Of the program that an alert starts (alerts/channels/command.py).
        "TRAINVITALS_ALERT_RULE",
        "TRAINVITALS_ALERT_RUN",
        "TRAINVITALS_ALERT_SEVERITY",
        "TRAINVITALS_ALERT_STATE",
        "TRAINVITALS_ALERT_TITLE",
    }
)
MEANT_FOR_PEOPLE = (CONFIG_VARIABLE, "TRAINVITALS_ROLE", "TRAINVITALS_RUNTIME_DIR", TOKEN_VARIABLE)
"""Those of them that a user may want to set."""
WARNED = "_TRAINVITALS_WARNED"
"""Set for child processes by one that has printed its warnings about settings, so that they do not repeat them."""
_warned: set[str] = set()


class _Given(NamedTuple):
    """A raw value, not yet parsed."""

    value: object
    origin: str
    folder: Path | None = None
    """Of the file it is in: a relative path is relative to that."""
    path: Path | None = None
    """The file itself."""


def resolve(
    arguments: Mapping[str, object] | None = None,
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    config: Path | None = None,
    search: bool = True,
) -> Settings:
    """The settings in force. A value of None, or an empty variable, means "not given".

    The file is `config`, or what TRAINVITALS_CONFIG names, or the first found from `folder` (the current one)
    upward, if `search`. Raises SettingError for an unknown name, an invalid value, or an unusable file.
    """
    environ = os.environ if environ is None else environ
    if config is None and environ.get(CONFIG_VARIABLE):
        config = Path(environ[CONFIG_VARIABLE])
    given, ignored = _read_file(folder, config, search=search)
    for row in TABLE:
        if environ.get(row.variable):
            given[row.attribute] = _Given(environ[row.variable], row.variable)
    for name, value in (flags or {}).items():
        row = find(name, "flag")
        if value is not None:
            given[row.attribute] = _Given(value, f"flag {row.flag}")
    for name, value in (arguments or {}).items():
        row = find(name, "argument")
        if row.kind is OBJECTS and isinstance(value, str) and value.startswith("config:"):
            try:
                again = _read_again(value.removeprefix("config:"), environ)
            except SettingError as error:
                ignored.append(f"setting '{row.name}' is ignored: {error.message}")
                continue
            given[row.attribute] = again
        elif value is not None:
            given[row.attribute] = _Given(value, "argument")
    given = {attribute: item for attribute, item in given.items() if item.value is not None}

    known = {row.variable for row in TABLE} | RESERVED
    return Settings(
        {row.attribute: _parse_row(row, given.get(row.attribute)) for row in TABLE},
        tuple(sorted(name for name in environ if name.startswith(PREFIX) and name not in known)),
        tuple(ignored),
    )


def resolve_for_training(
    arguments: Mapping[str, object],
    check: Callable[[Settings], None] = lambda settings: None,
    *,
    folder: Path | None = None,
) -> Settings:
    """`resolve`, for a training that is about to begin: an invalid file that was found, or one rejected by `check`, is
    ignored with one warning, unless `strict`. Errors in what was named or passed are still raised."""
    try:
        settings = resolve(arguments, folder=folder)
        check(settings)
        return settings
    except SettingError as error:
        wrong = error
    # Not while it is handled: a wrong argument would be raised as a second error beneath the first.
    without = resolve(arguments, search=False)
    check(without)
    if without.strict:
        raise wrong
    return without.noting(f"{wrong.message}. The file is ignored, training continues")


def complaints(settings: Settings, environ: Mapping[str, str] = os.environ) -> list[str]:
    """Warnings about variables that are not settings and about unused files: each once, in this process or the one that
    started it."""
    known = _warned.union(environ.get(WARNED, "").split(","))
    new = {_token(item): item for item in _find_warnings(settings)}
    found = [text for token, text in new.items() if token not in known]
    _warned.update(new)
    return found


def _find_warnings(settings: Settings) -> list[str]:
    return [*map(describe_unknown, settings.unknown_environment), *settings.ignored_files]


def _token(text: str) -> str:
    """A short name for a sentence, for an environment variable."""
    return f"{zlib.crc32(text.encode('utf-8', 'surrogateescape')):08x}"


def mark_warned(settings: Settings, environ: MutableMapping[str, str] = os.environ) -> None:
    """Programs with this environment need not repeat the warnings."""
    if found := _find_warnings(settings):
        environ[WARNED] = ",".join(map(_token, found))


def describe_unknown(variable: str) -> str:
    """That the variable is not a setting, and which name was probably meant."""
    known = [name.removeprefix(PREFIX) for name in (*(row.variable for row in TABLE), *MEANT_FOR_PEOPLE)]
    if removed := explain_removed(variable.removeprefix(PREFIX).lower()):
        return f"variable {variable} is ignored: {removed}"
    close = nearest(variable.removeprefix(PREFIX), known, PREFIX)
    return f"variable {variable} is ignored: it is not a setting{close or '; see trainvitals config --describe'}"


def _read_again(where: str, environ: Mapping[str, str]) -> _Given:
    """What another process found there and did not pass on because it contains a secret."""
    place, _, _ = where.rpartition("#")
    value = read_value(where, environ.get)
    if place.startswith("$"):
        return _Given(value, place[1:])
    return _Given(value, place, Path(place).parent, Path(place))


def _parse_row(row: Setting[Any], given: _Given | None) -> Row:
    if given is None:
        return Row(row.name, row.default, row.kind.format(row.default), "default")
    where = find_where(row.name, given.origin, given.path)
    try:
        value = row.kind.parse(given.value)
        if isinstance(value, tuple) and value and isinstance(value[0], Address):
            value = place(value, where)
        elif row.kind is OBJECTS and (shown := _redact(value)) != value:
            if not where:
                raise ValueError(UNSAFE)
            return Row(row.name, value, row.kind.format(shown), given.origin, where)
    except ValueError as error:
        refused = error.entry if isinstance(error, BadEntry) else given.value
        raise SettingError(
            f"setting '{row.name}' ({given.origin}): {_quote(row.name, refused)} is not {error}",
            hint=f"the default is {row.kind.format(row.default)}",
        ) from None
    if isinstance(value, Path) and given.folder is not None:
        value = given.folder / value
    return Row(row.name, value, row.kind.format(value), given.origin)


def _redact(value: object) -> Any:
    from trainvitals.redaction import redact

    return redact(value)


def _quote(name: str, value: object) -> str:
    """A rejected value, shortened, and without any token in it."""
    from reprlib import Repr

    short = Repr()
    short.maxstring = short.maxother = 100
    return short.repr(_redact({name: value})[name])


def _read_file(folder: Path | None, config: Path | None, *, search: bool = True) -> tuple[dict[str, _Given], list[str]]:
    """The values in the file, by attribute; empty if there is none. And warnings about unused files."""
    try:
        start = Path.cwd() if folder is None else folder.absolute()
    except FileNotFoundError:
        start = None  # the current folder was removed: nothing to search, but a named file still counts
    ignored: list[str] = []
    found: tuple[Path, str] | None = None
    if config is not None:
        found = (config, read_text(config, str(config)))
    elif search:
        found, ignored = find_file(start)
    if found is None:
        return {}, ignored
    from trainvitals.settings.translation import read_entries  # only where there is a file

    path, text = found
    entries, notes = read_entries(path, text, _shown(path, start))
    ignored += notes
    given: dict[str, _Given] = {}
    for name, value, origin in entries:
        if removed := explain_removed(name):
            ignored.append(f"{origin}: {removed}")
            continue
        row = find(name, origin)
        if row.attribute in given:
            raise SettingError(f"setting '{row.name}' is given twice: {given[row.attribute].origin} and {origin}")
        given[row.attribute] = _Given(value, origin, path.absolute().parent, path.absolute())
    return {attribute: value for attribute, value in given.items() if value.value is not None}, ignored


def _shown(path: Path, start: Path | None) -> str:
    """The path as a person in `start` would type it."""
    try:
        return os.path.relpath(path, start) if start else str(path)
    except ValueError:  # on another drive
        return str(path)

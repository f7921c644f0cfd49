"""A settings file, in our names: values under older ones are converted. Tested in tests/test_older_names.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from trainvitals.errors import SettingError
from trainvitals.settings.files import Entry, parse_file
from trainvitals.settings.older_names import KEYS, OlderKey, find_older
from trainvitals.settings.table import TABLE, find_row

NAMES = (*(row.name for row in TABLE), *(key.name for key in KEYS))
"""Every name that a file may have."""


def read_entries(path: Path, text: str, shown: str) -> tuple[list[Entry], list[str]]:
    """The settings in the text of that file, and what to report of older keys that have no effect."""
    return translate(parse_file(path, text, shown, NAMES))


def translate(entries: Iterable[Entry]) -> tuple[list[Entry], list[str]]:
    """Our own names stay as they are and count before older ones; mappings are put together."""
    own: list[Entry] = []
    older: dict[str, tuple[OlderKey, Entry]] = {}
    notes: list[str] = []
    for entry in entries:
        name, value, origin = entry
        key = find_older(name) if find_row(name) is None else None
        if key is None:
            own.append(entry)
            continue
        found = _convert(key, value, origin)
        if found is None and key.misleads(value):
            notes.append(f"{origin}: '{name}' has no effect: {key.meaning}")
        for setting in key.sets if found is not None else ():
            older[setting] = _choose(older.get(setting), (key, (setting, found, origin)))
    given = {row.name: place for place, (name, _, _) in enumerate(own) if (row := find_row(name)) is not None}
    for setting, (key, entry) in older.items():
        if setting not in given:
            own.append(entry)
            continue
        name, value, origin = own[given[setting]]
        if isinstance(value, Mapping) and isinstance(entry[1], Mapping):
            own[given[setting]] = (name, {**entry[1], **value}, origin)
        else:
            notes.append(f"{entry[2]}: '{key.name}' has no effect: '{setting}' is set too ({origin})")
    return own, notes


def _convert(key: OlderKey, value: object, origin: str) -> object:
    if value is None or not key.sets:
        return None
    try:
        return key.convert(value)
    except ValueError as error:
        raise SettingError(f"'{key.name}' ({origin}): {value!r:.100} is not {error}") from None


def _choose(first: tuple[OlderKey, Entry] | None, second: tuple[OlderKey, Entry]) -> tuple[OlderKey, Entry]:
    """Of two keys that set the same, the one that counts."""
    if first is None:
        return second
    (key, (setting, value, origin)), (other, (_, also, there)) = first, second
    if isinstance(value, Mapping) and isinstance(also, Mapping):
        return other, (setting, {**value, **also}, there)
    if key.precedence != other.precedence:
        return max(first, second, key=lambda pair: pair[0].precedence)
    if str(value).lower() != str(also).lower():
        raise SettingError(f"'{key.name}' ({origin}) and '{other.name}' ({there}) set '{setting}' to different values")
    return first

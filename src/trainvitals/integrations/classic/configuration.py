"""The configuration of a TrainingMonitor: settings, under our names or those of older monitors.

What each older name means is in `trainvitals.settings.older_names`. Tested in tests/integrations/test_classic.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.errors import SettingError, name_kind
from trainvitals.settings.addresses import ADDRESSES, find_where, place
from trainvitals.settings.files import Entry, parse_file, parse_mapping, read_text
from trainvitals.settings.kinds import SWITCH
from trainvitals.settings.table import explain_removed, find
from trainvitals.settings.translation import NAMES, translate
from trainvitals.stderr import print_line

_EXPECTED = "lines of 'name: value', such as save_dir: runs; every name: docs/arriving.md"
_ENABLED = "monitoring.enabled"
_warned: set[str] = set()


class Configuration(NamedTuple):
    """A parsed configuration."""

    enabled: bool
    settings: dict[str, Any]
    watch: dict[str, Any]
    """Options of `Run.watch`."""
    notes: tuple[str, ...]
    """What to report of keys that have no effect."""


def read_configuration(source: Mapping[str, Any] | str | Path | None) -> Configuration:
    """From a mapping, or from the path of a YAML file. SettingError for an unknown key."""
    if isinstance(source, (str, Path)):
        path = Path(source).absolute()
        return _read(parse_file(path, read_text(path, str(source)), str(source), NAMES), path)
    if not isinstance(source, (Mapping, type(None))):
        raise SettingError(f"the configuration must be a mapping, not {name_kind(source)}", hint=_EXPECTED)
    return _read(parse_mapping(source or {}, "configuration", NAMES), None)


def _read(entries: list[Entry], path: Path | None) -> Configuration:
    enabled = all(SWITCH.parse(value) for name, value, _ in entries if name == _ENABLED)
    found, notes = translate(entry for entry in entries if entry[0] != _ENABLED)
    settings: dict[str, Any] = {}
    for name, value, origin in found:
        if removed := explain_removed(name):
            notes.append(f"{origin}: {removed}")
            continue
        row = find(name, origin)
        if row.kind is ADDRESSES and path is not None:
            # Passed on as an argument, it is still read from the file by the process that sends.
            value = place(ADDRESSES.parse(value), find_where(row.name, "", path))
        settings[row.attribute] = value
    watch = {name.removeprefix("watch_"): settings.pop(name) for name in list(settings) if name.startswith("watch_")}
    return Configuration(enabled, settings, watch, tuple(notes))


def report_notes(configuration: Configuration) -> None:
    """Report each key that has no effect once."""
    for note in configuration.notes:
        if note not in _warned:
            _warned.add(note)
            print_line(note)

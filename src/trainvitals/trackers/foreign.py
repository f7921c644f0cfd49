"""Files of other programs, opened and parsed within bounds: nothing in them waits for ever, takes the memory of the
machine, or ends this process.

What is found in a folder may be anything: a pipe called meta.yaml, lists within lists 100,000 deep, which overflow the
stack of a parser in C, or a view that takes the place of a table and never ends.
Tested in tests/trackers/test_foreign.py.
"""

from __future__ import annotations

import math
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals import runtime
from trainvitals.trackers.run_writing import NO_TIME

if TYPE_CHECKING:
    import sqlite3

MOST_YAML = 8 << 20
MOST_YAML_DEPTH = 100
MOST_YAML_NODES = 200_000
"""With each alias counted as what it stands for, for that is how it is written down."""
LATEST = 1e11
"""Seconds since 1970; what is later is no time."""


def read_yaml(path: Path) -> dict[str, Any]:
    """A file of plain values; empty if it is none. Objects in it are never made."""
    import yaml

    try:
        data = runtime.read_regular(path, MOST_YAML)
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found = yaml.load(data, loader) if _is_small(data, loader) else None
    except (OSError, yaml.YAMLError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_small(data: bytes, loader: Any) -> bool:
    """Whether it can be loaded. What is looked at here is a row of events, which does not nest."""
    import yaml

    open_nodes = [("", 0)]
    """(its anchor, nodes before it) of each collection that is not closed."""
    sizes: dict[str, int] = {}
    nodes = 0
    for event in yaml.parse(data, loader):
        if isinstance(event, yaml.AliasEvent):
            nodes += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor or "", nodes))
            nodes += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes[anchor] = nodes - before
        elif isinstance(event, yaml.ScalarEvent):
            nodes += 1
            sizes[event.anchor or ""] = 1
        if len(open_nodes) > MOST_YAML_DEPTH or nodes > MOST_YAML_NODES:
            return False
    return True


def open_database(path: Path) -> tuple[sqlite3.Connection, frozenset[str]]:
    """An SQLite database and the names of its tables, not to be written to. Raises OSError or sqlite3.Error."""
    import sqlite3

    if not path.is_file():
        raise OSError("is not a regular file")
    connection = sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?mode=ro", uri=True, timeout=10.0)
    connection.execute("PRAGMA trusted_schema = OFF")
    # A view may be endless, or call functions.
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return connection, frozenset(str(name) for (name,) in tables)


def to_micros(seconds: object) -> int:
    """Microseconds of a time in seconds since 1970; NO_TIME for what is none."""
    if not isinstance(seconds, (int, float)) or not 0 <= seconds <= LATEST or math.isnan(seconds):
        return NO_TIME
    return round(seconds * 1e6)

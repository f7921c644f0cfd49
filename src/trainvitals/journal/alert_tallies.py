"""How often alerts fired, of runs whose lines are at hand. Tested in tests/fleet/test_fleet_pages.py."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator

from trainvitals.journal.contracts import AlertTally
from trainvitals.journal.documents.rows import AlertKey, AlertRow
from trainvitals.journal.encoding import parse_time

DAY = 86_400


def tally(
    keys: Iterable[str],
    read: Callable[[str], Iterable[AlertRow]],
    rules: Collection[str],
    start: float,
    end: float,
) -> list[AlertTally]:
    """`read` gives the alerts of a run in order of time."""
    return sort_tallies(found for key in keys for found in _tally_run(key, read(key), rules, start, end))


def sort_tallies(found: Iterable[AlertTally]) -> list[AlertTally]:
    """In one order, wherever the runs are kept."""
    return sorted(found, key=lambda item: (item.key, item.newest.host or "", item.newest.key))


def _tally_run(
    key: str, rows: Iterable[AlertRow], rules: Collection[str], start: float, end: float
) -> Iterator[AlertTally]:
    found: dict[tuple[str, AlertKey], list[tuple[float, AlertRow]]] = {}
    for row in rows:
        moment = parse_time(row.timestamp)
        if row.state == "firing" and row.rule in rules and moment is not None and start <= moment < end:
            found.setdefault((row.host or "", row.key), []).append((moment, row))
    for fired in found.values():
        days = {int(moment // DAY) for moment, _ in fired}
        yield AlertTally(key, len(fired), len(days), fired[0][0], fired[-1][1])

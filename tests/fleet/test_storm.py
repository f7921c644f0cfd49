"""Every part of the way to the store is killed, and nothing is lost or doubled. The long one: `make bench-fleet`."""

from __future__ import annotations

from pathlib import Path

from storm import run_storm


def test_nothing_is_lost_or_doubled_whatever_is_killed(tmp_path: Path) -> None:
    outcome = run_storm(tmp_path, runs=3, kills=10)
    assert sum(outcome.kills.values()) == 10
    assert outcome.values == 2 * outcome.lines > 1000
    assert outcome.rows_in_engine >= outcome.values

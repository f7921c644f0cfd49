"""`trainvitals gateway check`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engines import Engine
from waiting import wait_until

from trainvitals.fleet import checking
from trainvitals.fleet.checking import check_engine
from trainvitals.fleet.clickhouse import ClickHouse
from trainvitals.fleet.store import Store


def test_an_engine_that_keeps_everything_passes_and_is_left_as_it_was(
    engine: Engine, prepare: Callable[[Engine], ClickHouse]
) -> None:
    opened = prepare(engine)
    found = check_engine(opened)
    assert (found.rows, found.wrong, found.waited) == (20_000, (), 0.0)
    assert found.sent_twice > 5
    wait_until(lambda: opened.execute("SELECT count() FROM points").strip() == b"0", "the rows to be removed")


def test_what_is_lost_is_noticed(
    debian: Engine, prepare: Callable[[Engine], ClickHouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Store.write, []

    def lose(store: Store, blocks: dict[str, list[bytes]]) -> None:
        calls.append(1)
        write(store, {table: rows for table, rows in blocks.items() if table != "points" or len(calls) != 5})

    monkeypatch.setattr(Store, "write", lose)
    monkeypatch.setattr(checking, "PIECES", 20)
    assert "values came back" in check_engine(prepare(debian)).wrong[0]


def test_an_engine_that_is_away_for_a_moment_is_waited_for(
    debian: Engine, prepare: Callable[[Engine], ClickHouse]
) -> None:
    opened = prepare(debian)

    def disturb() -> None:
        debian.kill()
        debian.start()

    assert check_engine(opened, disturb=disturb).wrong == ()

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
    write = Store.write
    lost: list[list[bytes]] = []

    def lose(store: Store, blocks: dict[str, list[bytes]]) -> None:
        points = blocks.get("points")
        if points is not None and len(lost) < 2:
            lost.append(points)  # the first piece of two runs, however often it is sent
        write(store, {table: rows for table, rows in blocks.items() if not any(rows is gone for gone in lost)})

    monkeypatch.setattr(Store, "write", lose)
    wrong = check_engine(prepare(debian)).wrong
    assert [text.partition(": ")[0] for text in wrong] == ["20231114-221300-check-aaaa", "20231114-221301-check-aaaa"]
    assert all("values came back of 1,250" in text for text in wrong)


@pytest.mark.parametrize("table", ["documents", "points"])
def test_what_never_arrived_is_noticed(
    table: str, debian: Engine, prepare: Callable[[Engine], ClickHouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Store.write
    monkeypatch.setattr(checking, "RUNS", 2)

    def lose(store: Store, blocks: dict[str, list[bytes]]) -> None:
        write(store, {name: rows for name, rows in blocks.items() if name != table})

    monkeypatch.setattr(Store, "write", lose)
    assert len(check_engine(prepare(debian)).wrong) == 2


def test_an_engine_that_is_away_for_a_moment_is_waited_for(
    debian: Engine, prepare: Callable[[Engine], ClickHouse]
) -> None:
    opened = prepare(debian)

    def disturb() -> None:
        debian.kill()
        debian.start()

    assert check_engine(opened, disturb=disturb).wrong == ()

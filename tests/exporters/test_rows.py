"""Exporters of rows: what they get, and that the agent never waits for one."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

from trainvitals.exporters.rows import (
    MOST_MARKS,
    DeliveryLimits,
    RowRunner,
    RowsRefused,
    RunDescription,
    RunEnd,
    RunRow,
    TryLater,
)
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import RowExport
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.journal.layout import LINE_TABLES, METRIC_TABLES, FileName
from trainvitals.journal.listening import Batch, Position, Positions

RUN = RunDescription("run-1", Path("/runs/p/run-1"), "box", 1, RunFile(project="p"))
END = RunEnd("finished")
FILE = FileName("training", 1, "20260101_000000", rank=0)


class Probe:
    """Keeps what it gets, and raises or waits as it is asked to."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.rows: list[RunRow] = []
        self.raises: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()

    def open(self, run: RunDescription) -> None:
        self._do(run)

    def write(self, rows: Sequence[RunRow]) -> None:
        self._do(len(rows))
        self.rows += rows

    def close(self, end: RunEnd | None) -> None:
        self._do(end)

    def _do(self, what: object) -> None:
        self.gate.wait()
        if self.raises:
            raise self.raises.pop(0)
        self.calls.append(what)


class Log:
    """The training file of a run, read by the runner."""

    def __init__(self, *runners: RowRunner) -> None:
        self.runners = runners
        self.lines = 0

    def add(self, count: int = 1) -> None:
        """So many more lines, each of ten bytes, in one batch."""
        rows = [{"timestamp": "", "step": step} for step in range(self.lines, self.lines + count)]
        self.lines += count
        for runner in self.runners:
            runner.see(Batch(FILE, rows, Position(10 * self.lines, self.lines), Damage()))


def start(
    probe: Probe, warned: list[str] | None = None, queue: int = 1000, known: RowExport | None = None
) -> RowRunner:
    warn = (warned if warned is not None else []).append
    return RowRunner("probe", lambda: probe, RUN, known, warn=warn, limits=DeliveryLimits(queue, 0.001, PATIENCE))


def lines_taken(runner: RowRunner) -> int | None:
    """Of the training file, as status.json has it."""
    position = Positions.parse(runner.describe().positions).get(FILE)
    return position.lines if position is not None else None


def steps(probe: Probe) -> list[int]:
    return [item.values["step"] for item in probe.rows]


def test_an_exporter_gets_the_run_its_rows_in_order_and_the_end() -> None:
    probe = Probe()
    runner = start(probe, queue=2500)
    log = Log(runner)
    for _ in range(25):
        log.add(100)
    runner.end(END)
    assert runner.wait()
    assert (probe.calls[0], probe.calls[-1]) == (RUN, END)
    assert steps(probe) == list(range(2500))
    assert {(item.table, item.rank) for item in probe.rows} == {("training", 0)}
    assert runner.describe().written == lines_taken(runner) == 2500


def test_of_the_files_of_a_run_it_wants_those_with_measurements() -> None:
    runner = start(Probe())
    assert {table for table in (*METRIC_TABLES, *LINE_TABLES) if runner.wants(FILE._replace(table=table))} == {
        *METRIC_TABLES
    }
    runner.end(END)
    assert runner.wait()


def test_rows_for_which_it_raised_are_given_again_and_trouble_is_reported_once() -> None:
    probe, warned = Probe(), []
    probe.raises = [OSError("away"), OSError("away"), OSError("away")]
    runner = start(probe, warned)
    log = Log(runner)
    log.add()
    wait_until(lambda: probe.rows, "the row")
    probe.raises = [OSError("away")]
    log.add()
    runner.end(END)
    assert runner.wait()
    assert steps(probe) == [0, 1]
    assert (runner.describe().written, runner.describe().failures) == (2, 4)
    assert warned == ["exporter probe failed, retrying: OSError: away"] * 2  # it had recovered between


def test_a_password_in_its_trouble_is_not_reported() -> None:
    probe, warned = Probe(), []
    probe.raises = [OSError("cannot reach https://joe:hunter2hunter2@host/x")]
    runner = start(probe, warned)
    runner.end(END)
    assert runner.wait()
    assert "cannot reach" in warned[0] and "hunter2" not in warned[0]


def test_rows_that_are_refused_for_good_are_counted_and_the_next_are_tried() -> None:
    probe, warned = Probe(), []
    runner = start(probe, warned)
    wait_until(lambda: probe.calls, "the beginning")
    probe.raises = [RowsRefused("no such column")]
    log = Log(runner)
    log.add()
    wait_until(lambda: runner.describe().refused, "the refusal")
    log.add()
    runner.end(END)
    assert runner.wait()
    assert steps(probe) == [1]
    assert lines_taken(runner) == 2
    assert warned == ["exporter probe rejected rows: no such column"]


@pytest.mark.promise("an exporter plugin hangs", "nothing else waits; its rows wait in the files of the run")
def test_one_that_hangs_holds_up_nobody_and_gets_its_rows_from_the_files_later(tmp_path: Path) -> None:
    probe = Probe()
    probe.gate.clear()
    runner = start(probe, queue=10)
    relay = Relay(tmp_path)
    relay.add(runner, runner.has_room)
    with open(tmp_path / FILE.jsonl, "wb") as file:
        for step in range(1000):
            file.write(encode_line({"timestamp": format_time(step), "step": step}))
            if step % 10 == 0:
                file.flush()
                relay.poll(1000)
    assert 10 <= runner.describe().waiting < 100
    assert lines_taken(runner) == 0
    probe.gate.set()
    wait_until(lambda: not relay.poll(1000) and runner.has_all(relay), "all rows")
    runner.end(END)
    assert runner.wait()
    assert steps(probe) == list(range(1000))
    assert {row.line for row in probe.rows} == set(range(1, 1001)) and {row.file for row in probe.rows} == {FILE.stem}
    assert lines_taken(runner) == 1000 and runner.describe().complete


def test_rows_for_another_target_begin_at_the_first() -> None:
    first = start(Probe())
    Log(first).add(3)
    first.end(END)
    assert first.wait()
    known = replace(first.describe(), target="http://one")
    same, other = (
        RowRunner("probe", Probe, RUN, known, target=target, limits=DeliveryLimits(patience=PATIENCE))
        for target in ("http://one", "http://other")
    )
    assert (same.positions.get(FILE), other.positions.get(FILE)) == (Position(30, 3), Position())
    for runner in (same, other):
        runner.end(None)
        assert runner.wait()


def test_a_pause_that_is_asked_for_is_kept() -> None:
    probe = Probe()
    probe.raises = [TryLater("slow down", 3600.0)]
    runner = start(probe)
    wait_until(lambda: runner.describe().trouble, "the refusal")
    assert runner.describe().trouble == "failed, retrying: TryLater: slow down"
    runner.end(END)  # the end does not wait for it
    assert runner.wait() and not runner.describe().trouble


def test_rows_are_acknowledged_when_they_were_written_and_that_was_saved() -> None:
    probe = Probe()
    runner = start(probe)
    log = Log(runner)
    log.add(3)
    wait_until(lambda: lines_taken(runner) == 3, "the rows")
    assert not runner.acknowledged.covers(FILE, 30)
    runner.mark_saved()
    assert runner.acknowledged.covers(FILE, 30)
    probe.gate.clear()
    log.add(2)
    assert runner.describe().written == 3
    runner.mark_saved()
    assert runner.positions.covers(FILE, 50) and not runner.acknowledged.covers(FILE, 50)
    probe.gate.set()
    runner.end(END)
    assert runner.wait()


def test_the_next_agent_goes_on_where_rows_were_written() -> None:
    first = start(Probe())
    Log(first).add(3)
    first.end(None)
    assert first.wait()
    saved = RowExport.parse(json.loads(json.dumps(first.describe().as_json())))
    second = start(Probe(), known=saved)
    assert second.positions.get(FILE) == Position(30, 3)
    assert second.acknowledged.get(FILE) == Position(30, 3)
    assert second.describe() == first.describe()
    second.end(END)
    assert second.wait()


def test_one_that_is_away_for_long_costs_little_memory_and_is_acknowledged_in_the_end() -> None:
    probe = Probe()
    probe.gate.clear()
    runner = start(probe)
    log = Log(runner)
    for _ in range(3 * MOST_MARKS):
        log.add()
    assert len(runner._marks) <= MOST_MARKS
    probe.gate.set()
    runner.end(END)
    assert runner.wait()
    assert lines_taken(runner) == 3 * MOST_MARKS


def test_one_that_cannot_be_made_is_given_up_in_the_end() -> None:
    def create() -> Probe:
        raise RuntimeError("no such server")

    warned: list[str] = []
    runner = RowRunner("probe", create, RUN, warn=warned.append, limits=DeliveryLimits(first_pause=60.0, patience=0.0))
    wait_until(lambda: warned, "the reason")
    runner.end(None)
    assert not runner.wait()
    assert runner.describe().failures >= 1


def test_when_only_the_agent_ends_there_is_no_end_of_the_run() -> None:
    probe = Probe()
    runner = start(probe)
    runner.end(None)
    assert runner.wait()
    assert probe.calls == [RUN, None]

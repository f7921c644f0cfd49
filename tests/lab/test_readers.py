"""A run of another machine answers as its folder does, to the last bit; the far side is a process of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from far_runs import log, make_run
from waiting import wait_until

from trainvitals.errors import JournalError, RunNotFound
from trainvitals.journal import layout
from trainvitals.journal.contracts import MediaItem, Patch, Reader, Runs, Series
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.identity import Participant
from trainvitals.lab.channels import PipeChannel
from trainvitals.lab.machines import Machine
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns

TABLES = (*layout.METRIC_TABLES, *layout.LINE_TABLES)


def far_words(root: Path) -> list[str]:
    return [sys.executable, "-m", "trainvitals.views.cli.main", "reader", "--dir", str(root)]


def open_far(root: Path) -> MachineRuns:
    words = far_words(root)
    runs = MachineRuns([Machine(parse_place("gpu1"), lambda: PipeChannel(words, "gpu1"), interval=0.1)])
    runs.start()
    runs.wait(600)
    assert [state.word for state in runs.states] == ["up"], runs.states
    return runs


@pytest.fixture(scope="module")
def near(old_runs: Path) -> FolderRuns:
    return FolderRuns(old_runs)


@pytest.fixture(scope="module")
def far(old_runs: Path) -> Iterator[MachineRuns]:
    runs = open_far(old_runs)
    yield runs
    runs.stop()


def plain(value: Any) -> Any:
    """Comparable: arrays as their bytes, NaN as itself."""
    if isinstance(value, Series):
        arrays = value.x.tobytes(), value.y.tobytes()
        return (value.name, dict(value.labels), value.rank, *arrays, value.total, value.nonfinite)
    if isinstance(value, MediaItem):
        return (value.kind, value.name, value.step, value.time, value.file, value.participant, value.read())
    if isinstance(value, Patch):
        return value.about, value.read() if not value.about.missing else b""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return str(value) if not isinstance(value, (str, int, float)) else value


def questions(reader: Reader) -> Iterator[tuple[str, Callable[[Reader], Any]]]:
    yield "statuses", lambda run: [item.as_json() for item in run.statuses()]
    yield "findings", lambda run: run.findings() and run.findings().as_json()  # type: ignore[union-attr]
    yield "damage", lambda run: run.damage()
    yield "tables", lambda run: run.tables()
    yield "participants", lambda run: run.participants()
    yield "first_steps", lambda run: run.first_steps()
    yield "newest_steps", lambda run: run.newest_steps(7)
    yield "events", lambda run: [item.as_json() for item in run.events()]
    yield "alerts", lambda run: [item.as_json() for item in run.alerts()]
    yield "benchmarks", lambda run: (run.count_benchmarks(), [item.as_json() for item in run.benchmarks()])
    yield "media", lambda run: run.media()
    yield "patches", lambda run: run.patches()
    yield "histograms", lambda run: {name: run.histograms(name) for name in run.histogram_names()}
    yield (
        "texts",
        lambda run: [
            (file, run.read_text(kind, file.name, 100_000)) for kind in ("console", "stack") for file in run.texts(kind)
        ],
    )
    yield "states", lambda run: run.states(["throttle_reasons", "state"])
    yield "follow", lambda run: run.follow(TABLES).poll()
    for table in reader.tables():
        yield f"names {table}", lambda run, table=table: run.names(table)  # type: ignore[misc]
        yield f"labels {table}", lambda run, table=table: run.labels(table)  # type: ignore[misc]
        yield (
            f"summary {table}",
            lambda run, table=table: {  # type: ignore[misc]
                name: item.as_json() for name, item in run.summary(table).items()
            },
        )
        yield f"rows {table}", lambda run, table=table: list(run.rows(table, run.extent(table)))  # type: ignore[misc]
        for x in ("step", "time", "relative") if table == "training" else ("time",):
            yield f"series {table} {x}", lambda run, table=table, x=x: run.series(run.names(table), table=table, x=x)  # type: ignore[misc]
    yield "thinned", lambda run: run.series(run.names(), max_points=10, all_attempts=True)
    yield "part", lambda run: run.series(run.names(), start=3, end=20, participants=[Participant.parse("0")])  # type: ignore[list-item]


def test_every_answer_is_that_of_the_folder(near: FolderRuns, far: MachineRuns) -> None:
    keys = near.list_keys()
    assert far.list_keys() == [f"gpu1:{key}" for key in keys] and len(keys) > 5
    asked = 0
    for key in keys:
        of_folder = near.open(key)
        try:
            of_folder.info  # noqa: B018
        except RunNotFound as error:
            with pytest.raises(RunNotFound, match=r"run\.json"):
                far.open(f"gpu1:{key}").info  # noqa: B018
            assert far.describe(f"gpu1:{key}").status == "unreadable", error
            continue
        of_machine = far.open(f"gpu1:{key}")
        assert of_machine.info.file.as_json() == of_folder.info.file.as_json()
        assert of_machine.info.folder is None and of_machine.info.place == f"gpu1:{of_folder.info.place}"
        for what, ask in questions(of_folder):
            assert plain(ask(of_machine)) == plain(ask(of_folder)), (key, what)
            asked += 1
    assert asked > 150


def test_a_number_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "one")
    values = [
        "0.1",
        "1e-310",
        "-0.0",
        "12345678.000000001",
        '"NaN"',
        '"Infinity"',
        '"-Infinity"',
        "1.797693134862e308",
    ]
    with open(folder / "training_metrics_20260115_100100.rank0.jsonl", "w") as file:
        for step, value in enumerate(values):
            file.write(f'{{"timestamp":"2026-01-15T10:01:0{step}.000000Z","step":{step},"odd":{value}}}\n')
    runs = open_far(tmp_path)
    (found,) = runs.open("gpu1:one").series(["odd"])
    wanted = np.array([float(value.strip('"')) for value in values])
    assert found.y.tobytes() == wanted.tobytes() and found.nonfinite == 3
    runs.stop()


def test_what_is_logged_arrives_once_also_when_the_connection_is_lost(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "one")
    runs = open_far(tmp_path)
    feed = runs.open("gpu1:one").follow(from_end=True)
    assert feed.poll() == []
    seen = []
    for step in range(3, 9):
        log(folder, step)
        seen += [row["step"] for _, row in feed.poll()]
        channel = runs.machines[0]._read_channel
        assert channel is not None
        channel.close()  # as if the network did
    assert seen == list(range(3, 9))
    runs.stop()


def test_new_runs_and_changes_of_old_ones_arrive_and_removed_ones_go(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    runs: Runs = open_far(tmp_path)
    assert runs.list_keys() == ["gpu1:one"]
    folder = make_run(tmp_path, "two", at=1_800_000_100.0)
    wait_until(lambda: runs.list_keys() == ["gpu1:one", "gpu1:two"], "the second run")
    file = (folder / "run.json").read_text().replace('"running"', '"finished"')
    (folder / "new").write_text(file)
    (folder / "new").rename(folder / "run.json")
    wait_until(lambda: runs.describe("gpu1:two").status == "finished", "its end")
    reader = runs.open("gpu1:two")
    assert reader.names() == ["loss"]
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    wait_until(lambda: runs.list_keys() == ["gpu1:one"], "it to go")
    with pytest.raises(RunNotFound):
        reader.info  # noqa: B018
    with pytest.raises(RunNotFound):
        runs.open("gpu1:two")
    runs.stop()  # type: ignore[attr-defined]


def test_what_is_not_there_is_said_as_by_a_folder(far: MachineRuns) -> None:
    reader = far.open(far.list_keys()[0])
    with pytest.raises(JournalError):
        reader.read_text("console", "none.log", 100)
    with pytest.raises(RunNotFound):
        far.open("gpu1:none")

"""Every read is of one state of the run, while files are written, rotated, sealed, mended and removed under it."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pytest
from made_runs import START, make_run, write

from trainvitals.conditions import Conditions
from trainvitals.errors import TrainvitalsError
from trainvitals.journal import retention, segment_writer
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.export import Rows, write_rows
from trainvitals.views.data.series import describe_series
from trainvitals.views.report.data import make_data

FILES, ROWS = 10, 30
TOTAL = FILES * ROWS


def stem(number: int) -> str:
    return f"training_metrics_20260101_{number:06d}"


@dataclass
class Material:
    """The same files before and after sealing, made once: sealing then is two renames and a removal, as `seal` ends."""

    folder: Path
    lines: list[list[bytes]] = field(default_factory=list)

    def segment(self, number: int) -> Path:
        return self.folder / "segments" / f"{stem(number)}.parquet"


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    made = Material(make_run(tmp_path_factory.mktemp("material") / "p" / "run"))
    for number in range(FILES):
        steps = range(number * ROWS, (number + 1) * ROWS)
        rows = [{"step": step, "loss": 1 / (step + 1), "up": step} for step in steps]
        path = write(made.folder, rows, stem(number), START + steps[0])
        made.lines.append(path.read_bytes().splitlines(keepends=True))
        segment_writer.seal(path)
    return made


class Actor(threading.Thread):
    """Writes line after line, rotates, seals what is closed, mends side tables, and at last perhaps removes the run."""

    def __init__(self, folder: Path, material: Material, chance: random.Random, *, removes: bool) -> None:
        super().__init__()
        self.folder = folder
        self.written = 0
        self.removed = False
        self._material = material
        self._chance = chance
        self._removes = removes
        self._sealed = 0

    def run(self) -> None:
        for number in range(FILES):
            with open(self.folder / f"{stem(number)}.jsonl", "ab", buffering=0) as file:
                for line in self._material.lines[number]:
                    file.write(line)
                    self.written += 1
                    if self._chance.random() < 0.05:
                        time.sleep(self._chance.random() * 0.002)
            while self._sealed < number and self._chance.random() < 0.7:
                self._seal(self._sealed)
                self._sealed += 1
            if self._sealed and self._chance.random() < 0.3:
                self._mend(self._chance.randrange(self._sealed))
        for number in range(self._sealed, FILES):
            self._seal(number)
        if self._removes:
            self.removed = True
            retention.remove(self.folder)

    def _seal(self, number: int) -> None:
        self._mend(number)
        self._put(self._material.segment(number))
        (self.folder / f"{stem(number)}.jsonl").unlink()

    def _mend(self, number: int) -> None:
        self._put(self._material.segment(number).with_suffix(".minmax.parquet"))

    def _put(self, made: Path) -> None:
        place = self.folder / "segments"
        place.mkdir(exist_ok=True)
        new = place / ".sealing-x"
        shutil.copyfile(made, new)
        new.replace(place / made.name)


def steps_of_rows(reader: RunReader) -> list[int]:
    return [row["step"] for row in reader.rows() if row["up"] == row["step"]]


def steps_of_series(reader: RunReader) -> list[int]:
    loss, up = reader.series(["loss", "up"]) or (None, None)
    if loss is None or up is None:
        return []
    assert loss.y.tolist() == [1 / (step + 1) for step in loss.x] and loss.x.tolist() == up.y.tolist()
    return [int(step) for step in loss.x]


def steps_of_chart(reader: RunReader) -> list[int]:
    found = describe_series(reader, ["up"], points=10_000)
    return [int(step) for series in found["series"] for step in series["x"]]


def steps_of_summary(reader: RunReader) -> list[int]:
    item = reader.summary().get("up")
    if item is None:
        return []
    assert (item.low, item.high, item.last) == (0, item.count - 1, item.count - 1)
    return list(range(item.count))


def steps_of_export(kind: str) -> Callable[[RunReader], list[int]]:
    def read(reader: RunReader) -> list[int]:
        file = io.BytesIO()
        write_rows(Rows(RunReader(reader.folder), ("training",)), kind, file)
        if kind == "jsonl":
            return [json.loads(line)["step"] for line in file.getvalue().splitlines()]
        return [int(row["step"]) for row in csv.DictReader(io.StringIO(file.getvalue().decode()))]

    return read


def steps_of_parquet(reader: RunReader) -> list[int]:
    target = reader.folder.parent / "export.parquet"
    with open(target, "wb") as file:
        write_rows(Rows(RunReader(reader.folder), ("training",)), "parquet", file)
    table = duckdb.read_parquet(str(target))
    return [step for (step,) in table.select("step").fetchall()] if "step" in table.columns else []


def steps_of_report(reader: RunReader) -> list[int]:
    data = make_data([("run", reader)], Conditions())
    found = [series for series in find_series(data) if series.get("name") == "up"]
    return [int(step) for series in found[:1] for step in series["x"]]


def find_series(data: Any) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        if "x" in data and "y" in data:
            yield data
        for item in data.values():
            yield from find_series(item)
    elif isinstance(data, list):
        for item in data:
            yield from find_series(item)


READERS: dict[str, Callable[[RunReader], list[int]]] = {
    "rows": steps_of_rows,
    "series": steps_of_series,
    "chart": steps_of_chart,
    "summary": steps_of_summary,
    "jsonl": steps_of_export("jsonl"),
    "csv": steps_of_export("csv"),
    "parquet": steps_of_parquet,
    "report": steps_of_report,
}
ROUNDS = {"rows": 60, "series": 60, "chart": 60, "summary": 60, "jsonl": 40, "csv": 40, "parquet": 15, "report": 15}


@contextlib.contextmanager
def hasty_threads() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.promise("files are rotated, sealed and repaired under a reader", "every read sees a consistent state")
def test_a_read_is_whole_whatever_happens_under_it(kind: str, material: Material, tmp_path: Path) -> None:
    chance = random.Random(kind)
    reads = 0
    with hasty_threads():
        for number in range(ROUNDS[kind]):
            actor = Actor(make_run(tmp_path / "p" / str(number), format=1), material, chance, removes=number % 5 == 4)
            reader = RunReader(actor.folder)
            actor.start()
            over = False
            while not over:
                over = not actor.is_alive()
                if chance.random() < 0.3:
                    reader = RunReader(actor.folder)
                before = actor.written
                try:
                    steps = READERS[kind](reader)
                except TrainvitalsError:
                    assert actor.removed
                    continue
                reads += 1
                assert steps == list(range(len(steps)))
                assert before <= len(steps) <= actor.written + 1
            actor.join()
    assert reads > ROUNDS[kind]


@pytest.mark.parametrize("from_end", [False, True])
@pytest.mark.promise("the same under a follower", "each row once, in order")
def test_a_follower_gives_each_row_once_and_in_order(from_end: bool, material: Material, tmp_path: Path) -> None:
    chance = random.Random(from_end)
    with hasty_threads():
        for number in range(80):
            actor = Actor(make_run(tmp_path / "p" / str(number), format=1), material, chance, removes=False)
            actor.start()
            time.sleep(chance.random() * 0.01 if from_end else 0)
            before = actor.written
            follower = RunReader(actor.folder).follow(from_end=from_end)
            after = actor.written
            steps: list[int] = []
            limits = itertools.cycle([None, 500, 10_000])
            while actor.is_alive():
                steps += [row["step"] for _, row in follower.poll(next(limits))]
            actor.join()
            while new := follower.poll(next(limits)):
                steps += [row["step"] for _, row in new]
            first = steps[0] if steps else TOTAL
            assert steps == list(range(first, TOTAL))
            assert before <= first <= after + 1 if from_end else first == 0


def test_files_sealed_for_real_under_a_reader_that_has_begun_are_read_whole(tmp_path: Path) -> None:
    """The fault that was: of three files, two sealed after the first row was read, 2,000 of 6,000 rows came."""
    folder = make_run(tmp_path / "p" / "run")
    paths = [
        write(folder, [{"step": step, "up": step} for step in range(n * 2000, (n + 1) * 2000)], stem(n))
        for n in range(3)
    ]
    reader = RunReader(folder)
    for table in (reader.rows(), reader.rows(extent=reader.extent())):
        steps = [next(table)["step"]]
        for path in paths[1:]:
            if path.exists():
                segment_writer.seal(path)
        steps += [row["step"] for row in table]
        assert steps == list(range(6000))


def test_two_reads_of_one_reader_do_not_disturb_each_other(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    for number in range(2):
        steps = range(number * 20_000, (number + 1) * 20_000)
        segment_writer.seal(write(folder, [{"step": step, "up": step} for step in steps], stem(number)))
    reader = RunReader(folder)
    one, two = [], []
    for first, second in zip(reader.rows(), reader.rows(), strict=True):
        one.append(first["step"])
        two.append(second["step"])
        if len(one) % 9_000 == 0:
            assert reader.series(["up"])[0].total == 40_000
    assert one == two == list(range(40_000))


@pytest.mark.promise("an export of a live run", "it has the state at its start")
def test_an_export_of_a_live_run_holds_what_there_was_when_it_began(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "p" / "run")
    path = write(folder, [{"step": step, "up": step} for step in range(50)], stem(0))
    reader = RunReader(folder)
    extent = reader.extent()
    assert len(list(reader.rows(extent=extent))) == 50
    write(folder, [{"step": 50, "late": 1.5}], stem(0))
    write(folder, [{"step": 51, "up": 2}], stem(1))
    assert len(list(reader.rows(extent=extent))) == 50
    segment_writer.seal(path)
    assert [row["step"] for row in reader.rows(extent=extent)] == list(range(50))
    assert len(list(reader.rows())) == 52


def test_a_copy_that_comes_anew_and_longer_is_not_added_to_the_old_one(tmp_path: Path) -> None:
    """As rsync does it: each time a new file takes the place of the old one."""
    folder = make_run(tmp_path / "p" / "run")
    path = write(folder, [{"step": step, "up": step} for step in range(5)], stem(0))
    reader = RunReader(folder)
    assert reader.summary()["up"].count == 5
    copy = write(tmp_path / "elsewhere", [{"step": step, "up": step} for step in range(50)], stem(0))
    copy.replace(path)
    assert reader.summary()["up"].count == 50
    assert reader.series(["up"])[0].y.tolist() == list(range(50))

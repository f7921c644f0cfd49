"""The name of a folder above a run never changes a number: sweeps call folders `lr=0.1`, people call them anything."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import START, make_run, write

from trainvitals.journal import segment_writer
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.export import Rows, write_rows

STEPS = 2_300
NAMES = [
    *("name=a", "label=a", "row=7", "step=5", "time=1", "value=9", "text=x", "count=3", "low=1", "filename=x", "key=1"),
    *("lr=0.1,bs=32", "=", "a=", "=a", "a=b=c", "%6eame=a", "Name=a", "c0=1"),
    *("a*b", "a?b", "?????", "**", "[ab]", "[!x]", "[", "]", "{a,b}", "{", "\\", "a\\*b"),
    *("it's", 'say "x"', "semi;colon", "--", "/* x */".replace("/", ""), "$HOME", "~", "`id`", "%", "%20", "#", "&&"),
    *(
        "a b",
        " ",
        "new\nline",
        "tab\there",
        "\x01\x7f",
        "ünï",
        "日本",
        "😀",
        "e\u0301",
        "\u202e",
        "http:",
        "s3:",
        "x" * 255,
    ),
]


def values(step: int) -> dict[str, Any]:
    loss = math.nan if step % 700 == 3 else (math.inf if step == 900 else 1 / (step + 1))
    return {"step": step, "loss": loss, "name": float(step), "value": -step, "up": step % 17}


def fill(folder: Path) -> Path:
    """A run with sealed and live files, of the training and of two GPUs."""
    make_run(folder)
    cuts = (0, 1_100, 2_200, STEPS)
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        rows = [values(step) for step in range(begin, end)]
        path = write(folder, rows, f"training_metrics_20260101_00000{number}", START + begin)
        gpus = [
            {"gpu_index": gpu, "power": s + gpu, "why": str(s % 3)} for s in range(begin, end, 50) for gpu in (0, 1)
        ]
        hardware = write(folder, gpus, f"gpu_metrics_20260101_00000{number}", START + begin)
        if end < STEPS:
            segment_writer.seal(path)
            segment_writer.seal(hardware)
    return folder


def read_all(folder: Path) -> dict[str, Any]:
    """Everything each kind of reader says, as text: NaN is not equal to itself."""
    reader = RunReader(folder)
    names = reader.names()
    found: dict[str, Any] = {
        "tables": reader.tables(),
        "names": names,
        "labels": reader.labels("gpu"),
        "rows": list(reader.rows()),
        "gpu rows": list(reader.rows("gpu")),
        "series": [(s.name, s.labels, s.x.tolist(), s.y.tolist(), s.total, s.nonfinite) for s in reader.series(names)],
        "few": [(s.name, s.x.tolist(), s.y.tolist()) for s in reader.series(names, max_points=4)],
        "gpus": [(s.labels, s.x.tolist(), s.y.tolist()) for s in reader.series(["power"], table="gpu", x="time")],
        "states": [(s.labels, list(s.changes)) for s in reader.states(["why"])],
        "summary": reader.summary(),
        "gpu summary": reader.summary("gpu"),
        "steps": reader.newest_steps(3),
        "followed": [row for _, row in reader.follow(("training", "gpu")).poll()],
        "damage": reader.damage(),
    }
    for kind in ("json", "jsonl", "csv"):
        found[kind] = write_table_to_text(folder, kind)
    found["parquet"] = read_parquet_export(folder)
    return {key: repr(value) for key, value in found.items()}


def write_table_to_text(folder: Path, kind: str) -> str:
    file = io.BytesIO()
    write_rows(Rows(RunReader(folder), ("training",)), kind, file)
    return file.getvalue().decode()


def read_parquet_export(folder: Path) -> list[Any]:
    with tempfile.TemporaryDirectory() as place:
        target = Path(place) / "rows.parquet"
        with open(target, "wb") as file:
            write_rows(Rows(RunReader(folder), ("training",)), "parquet", file)
        return duckdb.sql(f"SELECT * FROM read_parquet('{target}')").fetchall()


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the readers say of a run in a folder with an ordinary name, itself compared with what was written."""
    folder = fill(tmp_path_factory.mktemp("plain") / "project" / "run")
    found = read_all(folder)
    rows = [{k: v for k, v in row.items() if k != "timestamp"} for row in RunReader(folder).rows()]
    spelled = [
        {k: "NaN" if v != v else "Infinity" if v == math.inf else v for k, v in values(s).items()} for s in range(STEPS)
    ]
    assert rows == spelled
    by_name = {s.name: s for s in RunReader(folder).series(["loss", "name", "value", "up"])}
    for name, series in by_name.items():
        assert series.x.tolist() == list(range(STEPS))
        assert repr(series.y.tolist()) == repr([float(values(step)[name]) for step in range(STEPS)])
    table = list(csv.DictReader(io.StringIO(write_table_to_text(folder, "csv"))))
    assert [float(row["value"]) for row in table] == [-float(step) for step in range(STEPS)]
    assert [row["name"] for row in json.loads(write_table_to_text(folder, "json"))] == [float(s) for s in range(STEPS)]
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.promise("folders named `name=…`, `*`, quotes, newlines", "every reader gives every value")
def test_every_reader_gives_every_value_below_any_folder(name: str, truth: dict[str, Any], tmp_path: Path) -> None:
    # Neighbours that a pattern would match too: their rows are not of this run.
    for neighbour in ("ab", "axb", "a", "xxxxx", "a*b"):
        if neighbour != name and any(sign in name for sign in "*?[{"):
            fill(tmp_path / neighbour / "project" / "run")
    folder = fill(tmp_path / name / "project" / "run")
    assert read_all(folder) == truth


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=40))
@pytest.mark.promise("folders with generated names", "every reader gives every value")
def test_every_reader_gives_every_value_below_a_folder_nobody_thought_of(truth: dict[str, Any], name: str) -> None:
    if name in (".", "..") or len(name.encode()) > 255:
        return
    with tempfile.TemporaryDirectory() as place:
        assert read_all(fill(Path(place) / name / "project" / "run")) == truth


def test_a_name_that_is_no_text_is_a_folder_like_others(truth: dict[str, Any], tmp_path: Path) -> None:
    assert read_all(fill(tmp_path / os.fsdecode(b"\xff\xfe") / "project" / "run")) == truth


def test_relative_paths_mean_the_same(truth: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(Path("name=a") / "project" / "run")
    assert read_all(Path("name=a") / "project" / "run") == truth


# -- side tables made by a version that took such a folder for a partition


def spoil(folder: Path, column: str, value: str) -> list[Path]:
    """Make the side tables as that version did: right but for one column, and without a mark."""
    sides = sorted((folder / "segments").glob("training*.minmax.parquet"))
    for side in sides:
        wrong = side.with_suffix(".wrong")
        duckdb.sql(
            f"COPY (SELECT * REPLACE ({value} AS {column}) FROM read_parquet('{side}', hive_partitioning = false)) "
            f"TO '{wrong}' (FORMAT parquet)"
        )
        wrong.replace(side)
    assert sides
    return sides


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("name", "'a'"),
        ("label", "'a'"),
        ("low", "9"),
        ("last", "9"),
        ("step_to", "5"),
        ("low_step", "5"),
        ("count", "1"),
    ],
)
@pytest.mark.promise("a side table with wrong numbers", "it is noticed and rebuilt")
def test_a_wrong_side_table_is_noticed_and_made_again(
    truth: dict[str, Any], tmp_path: Path, column: str, value: str
) -> None:
    folder = fill(tmp_path / "project" / "run")
    right = [side.read_bytes() for side in sorted((folder / "segments").glob("training*.minmax.parquet"))]
    sides = spoil(folder, column, value)
    assert read_all(folder) == truth
    assert [side.read_bytes() for side in sides] == right, "the next reader finds it mended"


def test_a_missing_or_damaged_side_table_is_made_again(truth: dict[str, Any], tmp_path: Path) -> None:
    folder = fill(tmp_path / "project" / "run")
    first, second = sorted((folder / "segments").glob("training*.minmax.parquet"))
    first.unlink()
    second.write_bytes(b"PAR1 no PAR1")
    assert read_all(folder) == truth
    assert first.exists() and second.stat().st_size > 100


@pytest.mark.promise("a run folder of another user", "nothing is written into it")
def test_in_a_folder_of_somebody_else_nothing_is_written(truth: dict[str, Any], tmp_path: Path) -> None:
    folder = fill(tmp_path / "project" / "run")
    sides = spoil(folder, "name", "'a'")
    before = [side.read_bytes() for side in sides]
    os.chown(folder / "segments", 12345, -1)
    assert read_all(folder) == truth
    assert [side.read_bytes() for side in sides] == before

"""Files that no program should have written: what of them can be read is imported, the rest is counted."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_imports import points, reader_of, take, values

from trainvitals.protobuf import field
from trainvitals.trackers import mlflow_store, tables, wandb_files
from trainvitals.trackers.foreign import MOST_YAML_DEPTH, open_database, read_yaml, to_micros
from trainvitals.trackers.importing import ImportFailed
from trainvitals.trackers.run_writing import NO_TIME

DEEP = "[" * 100_000 + "]" * 100_000
NESTED = '{"a":' * 1000 + "1" + "}" * 1000
"""What orjson reads, and what is too deep for functions that call themselves."""
RUN = "0123456789abcdef0123456789abcdef"


def settled(path: Path) -> Path:
    """As if nobody had written there for an hour."""
    moment = time.time() - 3600
    os.utime(path, (moment, moment))
    return path


@pytest.mark.promise(
    "an imported Parquet file below folders named `name=…`, `loss=…` or `*`", "its own values are read"
)
@pytest.mark.parametrize("place", ["name=a/value=9", "loss=7/step=3", "run-*", "it's [a] %20"])
def test_a_parquet_file_below_any_folder_has_its_own_values(tmp_path: Path, place: str) -> None:
    import duckdb

    for folder, factor in (tmp_path / place, 1.0), (tmp_path / "run-b", 100.0):  # of a pattern, the other one too
        folder.mkdir(parents=True)
        duckdb.sql(f"SELECT * FROM (VALUES (1, 2.5 * {factor}), (2, 3.5 * {factor})) AS t(step, loss)").write_parquet(
            str(tmp_path / "a.parquet")
        )
        (tmp_path / "a.parquet").rename(folder / "a.parquet")
    (found,) = take("parquet", tmp_path / place / "a.parquet", tmp_path / "runs")
    reader = reader_of(found)
    assert [(step, value) for step, _, value in points(reader, "loss")] == [(1, 2.5), (2, 3.5)]
    assert reader.names("training") == ["loss"] and not found.left_out


def test_a_damaged_parquet_file_is_named_as_the_user_did(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(ImportFailed) as caught:
        take("parquet", tmp_path / "a.parquet", tmp_path / "runs")
    assert "cannot read a.parquet" in caught.value.message and "/proc/" not in caught.value.message


@pytest.mark.promise("an imported CSV file with an odd quotation mark", "one line is left out and counted")
def test_a_quotation_mark_that_is_never_closed_costs_one_line(tmp_path: Path) -> None:
    lines = ["step,loss,note", "0,0.5,", '1,0.5,"', *(f"{step},0.5," for step in range(2, 100_000))]
    (found,) = take("csv", write(tmp_path / "a.csv", "\n".join(lines)), tmp_path / "runs")
    assert found.rows == 99_999 and found.left_out == {tables.UNREADABLE: 1}


def test_a_cell_with_newlines_and_a_last_line_with_an_open_quotation_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'step,loss,note\n1,0.5,"two\nlines"\n2,0.25,"\n3,0.125,\n')
    (found,) = take("csv", path, tmp_path / "runs")
    assert values(reader_of(found), "loss") == [0.5, 0.125]
    assert found.left_out[tables.UNREADABLE] == 1
    (again,) = take("csv", path, tmp_path / "runs")
    assert again.rows == 0 and not again.left_out, "nothing comes twice"


def test_a_cell_that_is_too_large_costs_its_line(tmp_path: Path) -> None:
    (found,) = take("csv", write(tmp_path / "a.csv", f"step,loss,x\n1,2,{'y' * 200_000}\n2,3,\n"), tmp_path / "runs")
    assert values(reader_of(found), "loss") == [3.0] and found.left_out == {tables.UNREADABLE: 1}


@pytest.mark.parametrize("tool", ["csv", "jsonl"])
def test_a_line_without_an_end_is_passed_over(tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_LINE", 100)
    whole = ["step,loss", "1,2", "2,3"] if tool == "csv" else ['{"step":1,"loss":2}', '{"step":2,"loss":3}']
    text = "\n".join([*whole[:-1], "x" * 1000, whole[-1], ""])
    (found,) = take(tool, write(tmp_path / "a", text), tmp_path / "runs")
    assert values(reader_of(found), "loss") == [2.0, 3.0] and found.left_out == {tables.UNREADABLE: 1}
    with pytest.raises(ImportFailed, match="first line"):
        take("csv", write(tmp_path / "b", "x" * (tables.MOST_HEADER + 1)), tmp_path / "runs")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return settled(path)


@pytest.mark.promise("imported JSON that is nested without end", "only that line is left out, and counted")
@pytest.mark.parametrize("inner", [DEEP, NESTED])
def test_json_without_a_bottom_costs_its_line(tmp_path: Path, inner: str) -> None:
    text = f'{{"step":1,"loss":2}}\n{{"step":2,"x":{inner}}}\n{{"step":3,"loss":NaN}}\n'
    (found,) = take("jsonl", write(tmp_path / "a.jsonl", text), tmp_path / "runs")
    assert values(reader_of(found), "loss") == [2.0, "NaN"] and found.left_out == {tables.UNREADABLE: 1}


def test_a_state_of_the_trainer_without_a_bottom_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "trainer_state.json", f'{{"log_history": [{{"step": 1, "loss": 2}}], "x": {DEEP}}}')
    with pytest.raises(ImportFailed, match="is not JSON"):
        take("hf", path, tmp_path / "runs")


BESIDE = {
    "wandb": "run-a/run-a.wandb",
    "csv": "metrics.csv",
    "hf": "trainer_state.json",
    "tensorboard": "events.out.tfevents.1.h",
}


@pytest.mark.promise("a pipe or an endless device in place of an imported file", "it is passed over or refused")
@pytest.mark.parametrize("tool", BESIDE)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_file_is_not_opened(tool: str, make: Callable[[Path], None], tmp_path: Path) -> None:
    place = tmp_path / "source" / BESIDE[tool]
    place.parent.mkdir(parents=True)
    make(place)
    for target in (tmp_path / "source", place):
        try:
            assert all(found.rows == 0 for found in take(tool, target, tmp_path / "runs"))
        except ImportFailed as error:
            assert "metrics.csv" in error.message


def test_what_is_a_time() -> None:
    assert [to_micros(seconds) for seconds in (0, 1.5, 1e11)] == [0, 1_500_000, 10**17]
    for wrong in (None, "1", -1, 1e300, float("nan"), float("inf"), 10**400):
        assert to_micros(wrong) == NO_TIME


# -- YAML

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
HOSTILE = {
    "flow": "a: " + "[" * 50_000 + "]" * 50_000,
    "open": "a: " + "[" * 50_000,
    "block": "\n".join("  " * depth + f"k{depth}:" for depth in range(3000)),
    "sequence": "- " * 50_000 + "a",
    "aliases": ALIASES,
    "loop": "a: &a\n  b: *a\n",
    "objects": "a: !!python/object/apply:os.system ['exit 3']",
    "text": "nothing",
    "bytes": "\x00",
    "date": "a: 2026-99-99",
}
READ = "import sys, pathlib as p; from trainvitals.trackers.foreign import *; print(read_yaml(p.Path(sys.argv[1])))"


@pytest.mark.promise("a hostile YAML file beside imported runs: nested without end, a bomb, a pipe", "it is left out")
@pytest.mark.parametrize("kind", HOSTILE)
def test_yaml_that_no_parser_should_see_is_left_out(kind: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", HOSTILE[kind])
    done = subprocess.run([sys.executable, "-c", READ, path], capture_output=True, text=True)  # it may take it down
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ("{'a': {'b': {...}}}" if kind == "loop" else "{}")


def test_a_pipe_is_no_yaml(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    assert read_yaml(tmp_path / "a.yaml") == {}


def test_yaml_that_programs_write_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "lr: 0.1\nlayers: &l [1, 2]\nsame: *l\nnested: {a: {b: null}}\n")
    assert read_yaml(path) == {"lr": 0.1, "layers": [1, 2], "same": [1, 2], "nested": {"a": {"b": None}}}
    depth = MOST_YAML_DEPTH - 3
    assert read_yaml(write(tmp_path / "b.yaml", "a: " + "[" * depth + "]" * depth)) != {}


# -- MLflow


def mlruns(root: Path, run: str, metric: str) -> Path:
    write(root / "0" / "meta.yaml", "name: e\n")
    write(root / "0" / RUN / "meta.yaml", run)
    write(root / "0" / RUN / "metrics" / "loss", metric)
    return root


def test_points_that_are_none_are_counted_and_the_others_are_kept(tmp_path: Path) -> None:
    lines = ["1763380000000 0.5 1", f"{'9' * 30} 1 1", f"1 1 {'9' * 30}", "-5 1 1", "1763380000001 nan 2", ""]
    place = mlruns(tmp_path / "mlruns", f"status: [1]\nstart_time: {'9' * 400}\nend_time: .nan\n", "\n".join(lines))
    (found,) = take("mlflow", place, tmp_path / "runs")
    assert values(reader_of(found), "loss") == [0.5, "NaN"]
    assert found.left_out == {mlflow_store.DAMAGED: 3}


# -- databases


def make_database(path: Path, *statements: str) -> Path:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


ENDLESS = "WITH RECURSIVE t(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM t)"


@pytest.mark.promise(
    "an imported database with endless views in place of tables, or a pipe", "refused, and not waited for"
)
def test_an_endless_view_is_no_table(tmp_path: Path) -> None:
    columns = "id, '' AS timestamp, 'r' AS run_name, id AS step, '{}' AS metrics"
    path = make_database(tmp_path / "p.db", f"CREATE VIEW metrics AS {ENDLESS} SELECT {columns} FROM t")
    with pytest.raises(ImportFailed, match="not a database of trackio"):
        take("trackio", path, tmp_path / "runs")
    names = ("runs", "metrics", "experiments")
    path = make_database(tmp_path / "m.db", *(f"CREATE VIEW {name} AS {ENDLESS} SELECT * FROM t" for name in names))
    with pytest.raises(ImportFailed, match="not a database of MLflow"):
        take("mlflow", path, tmp_path / "runs")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "p.db")
    with pytest.raises(ImportFailed, match="not a regular file"):
        take("trackio", tmp_path / "folder", tmp_path / "runs")
    with pytest.raises(OSError):
        open_database(tmp_path)


def test_rows_of_a_database_may_hold_anything(tmp_path: Path) -> None:
    rows: list[Any] = [json.dumps({"loss": 0.5}), f'{{"loss": {DEEP}}}', 7, None, b"\xff", json.dumps({"loss": 0.25})]
    path = make_database(
        tmp_path / "p.db",
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp, run_name, step, metrics)",
        "CREATE TABLE configs (id INTEGER PRIMARY KEY, run_name, config, created_at)",
    )
    connection = sqlite3.connect(path)
    for row in rows:
        connection.execute("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (1e300, 'r', 1, ?)", (row,))
    connection.execute("INSERT INTO configs (run_name, config) VALUES ('r', ?)", (DEEP,))
    connection.commit()
    (found,) = take("trackio", path, tmp_path / "runs")
    assert values(reader_of(found), "loss") == [0.5, 0.25]


# -- files of W&B


def test_a_history_without_a_bottom_costs_its_record(tmp_path: Path) -> None:
    def item(key: str, value: str) -> bytes:
        return field(1, field(1, key.encode()) + field(16, value.encode()))

    path = tmp_path / "wandb" / "run-x" / "run-x.wandb"
    path.parent.mkdir(parents=True)
    chunks = b""
    for moment, loss in (("1e300", "0.5"), ("NaN", NESTED), ("1763380000", "0.25")):
        payload = field(2, item("_step", "1") + item("_timestamp", moment) + item("loss", loss))
        body = b"\x01" + payload
        chunks += zlib.crc32(body).to_bytes(4, "little") + len(payload).to_bytes(2, "little") + body
    path.write_bytes(wandb_files.HEADER + chunks)
    (found,) = take("wandb", tmp_path / "wandb", tmp_path / "runs")
    assert values(reader_of(found), "loss") == [0.5, 0.25]
    assert found.left_out == {wandb_files.DAMAGED: 1}

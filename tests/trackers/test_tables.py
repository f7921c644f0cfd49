"""Tables that real loggers wrote, and tables that nobody should have written."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from made_imports import points, reader_of, take, values

from trainvitals.journal.reader import RunReader
from trainvitals.trackers import tables
from trainvitals.trackers.importing import ImportFailed

STAMP = "2025-11-17T11:46:40.250000Z"


def _steps(reader: RunReader, name: str) -> list[tuple[int, object]]:
    return [(step, value) for step, _, value in points(reader, name)]


def test_what_lightning_logged_is_imported_and_a_new_column_changes_nothing(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path / "logs", name="mnist", flush_logs_every_n_steps=1)
    logger.log_hyperparams({"lr": 0.1, "layers": [1, 2]})
    for step in range(5):
        logger.log_metrics({"train_loss": 1 / (step + 1)}, step=step)
    logger.save()
    (first,) = take("lightning", Path(logger.log_dir) / "metrics.csv", tmp_path / "runs")
    logger.log_metrics({"val_loss": math.nan, "epoch": 1}, step=5)  # a new column: the file is written again
    logger.log_metrics({"train_loss": math.inf}, step=6)
    logger.save()
    (second,) = take("lightning", logger.log_dir, tmp_path / "runs")
    assert (first.rows, second.rows) == (5, 2)
    reader = reader_of(second)
    assert _steps(reader, "train_loss") == [*((step, 1 / (step + 1)) for step in range(5)), (6, "Infinity")]
    assert _steps(reader, "val_loss") == [(5, "NaN")]
    assert reader.info.file.config == {"lr": 0.1, "layers": [1, 2]}
    assert reader.info.name == "mnist/version_0"
    assert reader.series(["train_loss"], x="time") == []  # it keeps no times


def test_what_keras_logged_is_imported(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = tmp_path / "history.csv"
    logger = keras.callbacks.CSVLogger(str(path), separator=";")
    history = model.fit(np.ones((4, 1)), np.ones(4), epochs=3, verbose=0, callbacks=[logger])
    (found,) = take("csv", path, tmp_path / "runs")
    assert _steps(reader_of(found), "loss") == list(enumerate(history.history["loss"]))


@pytest.mark.parametrize("text", ["", "NA", "N/A", "none", "null", " "])
def test_an_empty_cell_is_a_missing_value(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(f"step,loss,lr\n1,{text},0.1\n2,0.5,{text}\n")
    (found,) = take("csv", tmp_path / "a.csv", tmp_path / "runs")
    assert _steps(reader_of(found), "loss") == [(2, 0.5)]
    assert _steps(reader_of(found), "lr") == [(1, 0.1)]
    assert not found.left_out


def test_texts_are_counted_by_their_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('step,loss,note\n1,0.5,"hello,\nworld"\n2,oops,x\n')
    (found,) = take("csv", tmp_path / "a.csv", tmp_path / "runs")
    assert _steps(reader_of(found), "loss") == [(1, 0.5)]
    assert found.left_out == {"values of 'note' that are not numbers": 2, "values of 'loss' that are not numbers": 1}


def test_padded_names_of_ultralytics_and_seconds_since_the_start_are_no_times(tmp_path: Path) -> None:
    path = tmp_path / "train/results.csv"
    path.parent.mkdir()
    path.write_text("      epoch,       time,  train/box_loss\n     1,   3.5,  1.25\n     2,   7.0,  1.0\n")
    (found,) = take("csv", path, tmp_path / "runs")
    reader = reader_of(found)
    assert _steps(reader, "train/box_loss") == [(1, 1.25), (2, 1.0)]
    assert _steps(reader, "time") == [(1, 3.5), (2, 7.0)]
    assert reader.series(["time"], x="time") == []
    assert reader.info.name == "train"


@pytest.mark.parametrize("time", ["1763380000.25", "1763380000250", "1763380000250000", STAMP])
def test_times_are_taken_in_the_forms_that_people_write(tmp_path: Path, time: str) -> None:
    (tmp_path / "a.csv").write_text(f"step,timestamp,loss\n1,{time},0.5\n")
    (found,) = take("csv", tmp_path / "a.csv", tmp_path / "runs")
    assert points(reader_of(found), "loss") == [(1, STAMP, 0.5)]
    assert reader_of(found).info.started == STAMP


def test_a_file_that_grows_is_read_on_and_a_line_that_is_cut_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = "step,loss\n" + "".join(f"{step},{step / 7}\n" for step in range(1, 6))
    for end in range(1, len(text) + 1):
        path.write_text(text[:end])
        (found,) = take("csv", path, tmp_path / "runs")
        whole = text[:end].count("\n") - 1
        assert _steps(reader_of(found), "loss") == [(step, step / 7) for step in range(1, whole + 1)]


def test_a_last_line_without_a_newline_counts_once_the_file_rests(tmp_path: Path) -> None:
    import os

    path = tmp_path / "a.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25")
    os.utime(path, (1, 1))
    (found,) = take("csv", path, tmp_path / "runs")
    assert _steps(reader_of(found), "loss") == [(1, 0.5), (2, 0.25)]


def test_json_lines_of_llama_factory_and_verl_are_imported(tmp_path: Path) -> None:
    log = [
        {"current_steps": 5, "loss": 0.5, "lr": 1e-4, "elapsed_time": "0:00:01"},
        {"current_steps": 10, "loss": 0.25},
    ]
    (tmp_path / "trainer_log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    (found,) = take("jsonl", tmp_path / "trainer_log.jsonl", tmp_path / "runs")
    assert _steps(reader_of(found), "loss") == [(5, 0.5), (10, 0.25)]
    (tmp_path / "verl.jsonl").write_text(
        '{"step": 1, "data": {"actor/loss": 2.0, "x": null}}\n{"step": 2, "data": {"x": NaN}}\n'
    )
    (found,) = take("jsonl", tmp_path / "verl.jsonl", tmp_path / "runs")
    assert _steps(reader_of(found), "actor/loss") == [(1, 2.0)]
    assert _steps(reader_of(found), "x") == [(2, "NaN")]


def test_json_that_is_nested_broken_or_none_is_taken_as_far_as_it_goes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"step": 1, "val": {"loss": 0.5}}\n{oops\n[1]\n\n{"step": 2, "val": {"loss": "Infinity"}}\n'
    )
    (found,) = take("jsonl", tmp_path / "a.jsonl", tmp_path / "runs")
    assert _steps(reader_of(found), "val/loss") == [(1, 0.5), (2, "Infinity")]
    assert found.left_out == {tables.UNREADABLE: 2}
    assert [item.rows for item in take("jsonl", tmp_path / "a.jsonl", tmp_path / "runs")] == [0]


def test_a_long_table_of_several_runs_is_several_runs(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "export.parquet"
    duckdb.execute(
        f"""COPY (SELECT * FROM (VALUES ('a', 'loss', 1, 0.5, TIMESTAMP '2025-11-17 11:46:40.25'),
        ('b', 'loss', 1, 'nan'::DOUBLE, TIMESTAMP '2025-11-17 11:46:41'),
        ('a', 'lr', 1, 0.1, TIMESTAMP '2025-11-17 11:46:42')) t(run, metric, step, value, timestamp)) TO '{path}'"""
    )
    found = {item.title: item for item in take("parquet", path, tmp_path / "runs")}
    assert set(found) == {"a", "b"}
    assert points(reader_of(found["a"]), "loss") == [(1, STAMP, 0.5)]
    assert _steps(reader_of(found["a"]), "lr") == [(1, 0.1)]
    assert values(reader_of(found["b"]), "loss") == ["NaN"]
    assert [item.rows for item in take("parquet", path, tmp_path / "runs")] == [0, 0]


def test_a_column_that_collides_with_ours_is_kept_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("step,timestamp,loss\n1,3.5,0.5\n")  # seconds since the start
    (found,) = take("csv", tmp_path / "a.csv", tmp_path / "runs")
    assert _steps(reader_of(found), "timestamp (2)") == [(1, 3.5)]
    assert found.run.origin.renamed == {"timestamp": "timestamp (2)"}


def test_what_cannot_be_read_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nonsense")
    for target in ("bad.parquet", "missing.csv", "."):
        with pytest.raises(ImportFailed):
            take("csv", tmp_path / target, tmp_path / "runs")


def test_an_object_in_hparams_is_never_made(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n")
    (tmp_path / "hparams.yaml").write_text(f"a: !!python/object/apply:os.mkdir ['{tmp_path / 'made'}']\n")
    (found,) = take("lightning", tmp_path / "metrics.csv", tmp_path / "runs")
    assert not (tmp_path / "made").exists()
    assert reader_of(found).info.file.config is None

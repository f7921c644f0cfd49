"""`trainer_state.json`, as Transformers' own class writes it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_imports import points, reader_of, take

from trainvitals.trackers.importing import ImportFailed


def _save(path: Path, *history: dict[str, Any], **more: Any) -> Path:
    from transformers.trainer_callback import TrainerState

    path.parent.mkdir(parents=True, exist_ok=True)
    TrainerState(log_history=list(history), **more).save_to_json(str(path))
    return path


def _steps(found: Any, name: str) -> list[tuple[int, object]]:
    return [(step, value) for step, _, value in points(reader_of(found), name)]


def test_the_history_of_the_newest_checkpoint_is_imported_and_added_to(tmp_path: Path) -> None:
    output = tmp_path / "output"
    first = [{"loss": 0.5, "epoch": 0.5, "step": 10}, {"eval_loss": math.nan, "epoch": 0.5, "step": 10}]
    last = [{"loss": math.inf, "grad_norm": 1.5, "epoch": 1.0, "step": 20}, {"train_runtime": 3.5, "step": 20}]
    _save(output / "checkpoint-9/trainer_state.json", first[0])
    _save(output / "checkpoint-10/trainer_state.json", *first, max_steps=20, train_batch_size=8)
    (one,) = take("hf", output, tmp_path / "runs")
    assert (_steps(one, "loss"), _steps(one, "eval_loss")) == ([(10, 0.5)], [(10, "NaN")])
    _save(output / "checkpoint-20/trainer_state.json", *first, *last, max_steps=20, train_batch_size=8)
    (two,) = take("hf", output / "checkpoint-20/trainer_state.json", tmp_path / "runs")
    assert two.run.folder == one.run.folder and two.rows == 2
    assert _steps(two, "loss") == [(10, 0.5), (20, "Infinity")]
    file = reader_of(two).info.file
    assert file.config is not None and (file.config["max_steps"], file.config["train_batch_size"]) == (20, 8)
    assert (file.name, file.status, file.started) == ("output", "finished", None)
    assert reader_of(two).series(["loss"], x="time") == []
    (older,) = take("hf", output / "checkpoint-10/trainer_state.json", tmp_path / "runs")
    assert older.rows == 0


def test_a_training_that_began_again_in_its_folder_is_another_attempt(tmp_path: Path) -> None:
    path = tmp_path / "output/trainer_state.json"
    _save(path, *({"loss": 1.0, "step": step} for step in (10, 20, 30)))
    take("hf", path, tmp_path / "runs")
    _save(path, {"loss": 2.0, "step": 10})
    (found,) = take("hf", path, tmp_path / "runs")
    (shown,) = reader_of(found).series(["loss"])
    assert list(zip(shown.x, shown.y, strict=True)) == [(10, 2.0)]
    (everything,) = reader_of(found).series(["loss"], all_attempts=True)
    assert len(everything.y) == 4


@pytest.mark.parametrize("text", ["{", "[]", '{"log_history": [1, {"step": "x", "loss": null}]}', "{}"])
def test_a_file_that_is_none_is_an_error_or_has_no_rows(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    if not text.startswith("{") or text == "{":
        with pytest.raises(ImportFailed):
            take("hf", path, tmp_path / "runs")
    else:
        assert json.loads(text) is not None
        assert [item.rows for item in take("hf", path, tmp_path / "runs")] == [0]

"""What verl's file logger writes, imported."""

from __future__ import annotations

import math
from pathlib import Path

import orjson
import pytest
from made_imports import points, reader_of, take

from trainvitals.journal.reader import RunReader
from trainvitals.trackers.importing import ImportFailed


class FileLogger:
    """As that of verl 0.9.1: unbuffered, and opened with truncation, also when a training is resumed."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115 - as verl does

    def log(self, data: dict[str, float], step: int) -> None:
        self.file.write(orjson.dumps({"step": step, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")


def steps(reader: RunReader, name: str) -> list[tuple[int, object]]:
    return [(step, value) for step, _, value in points(reader, name)]


def test_its_names_are_kept_and_null_is_nan(tmp_path: Path) -> None:
    path = tmp_path / "math" / "grpo.jsonl"
    logger = FileLogger(path)
    logger.log({"val-core/gsm8k/acc/mean@1": 0.25}, step=0)
    logger.log({"actor/entropy": 0.5, "time": 3.0, "run": 7.0}, step=1)
    logger.log({"actor/entropy": math.nan}, step=2)
    (found,) = take("verl", path, tmp_path / "runs")
    reader = reader_of(found)
    assert (reader.info.project, reader.info.name) == ("math", "grpo")
    assert steps(reader, "val-core/gsm8k/acc/mean@1") == [(0, 0.25)]
    assert steps(reader, "time") == [(1, 3.0)] and steps(reader, "run") == [(1, 7.0)]
    assert steps(reader, "actor/entropy") == [(1, 0.5), (2, "NaN")]


def test_what_is_written_later_is_added_and_a_resumed_training_is_another_attempt(tmp_path: Path) -> None:
    path = tmp_path / "grpo.jsonl"
    logger = FileLogger(path)
    for step in (1, 2, 3):
        logger.log({"critic/score/mean": step / 10}, step)
    take("verl", path, tmp_path / "runs")
    logger.log({"critic/score/mean": 0.4}, 4)
    (found,) = take("verl", path, tmp_path / "runs")
    assert found.rows == 1
    logger = FileLogger(path)
    logger.log({"critic/score/mean": 0.35}, 3)
    (found,) = take("verl", path, tmp_path / "runs")
    reader = reader_of(found)
    assert reader.info.attempt == 2
    assert steps(reader, "critic/score/mean")[-1] == (3, 0.35)


def test_a_file_that_is_not_there_yet_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ImportFailed, match="not a file"):
        take("verl", tmp_path / "grpo.jsonl", tmp_path / "runs")

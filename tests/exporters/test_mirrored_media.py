"""Images, tables, texts and histograms that a program logs, in each of the mirrors."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mirrored import make_rows, make_run
from wandb_log import HISTORY, read_all

from trainvitals.exporters import mlflow, tensorboard, wandb
from trainvitals.exporters.mirrored_media import MediaNews
from trainvitals.exporters.mirroring import MirrorState
from trainvitals.exporters.mlflow import MlflowMirror
from trainvitals.exporters.rows import RowExporter, RunDescription, RunEnd
from trainvitals.journal.histograms import Histogram
from trainvitals.journal.identity import Participant
from trainvitals.journal.media import Media
from trainvitals.settings import resolve
from trainvitals.trainer.images import list_pictures

END = RunEnd("finished")
SETTINGS = resolve({"wandb_offline": True}, environ={}, folder=Path("/"))
ROWS = make_rows([{"loss": 0.5}])
PICTURE = list_pictures(np.zeros((2, 3, 3), dtype=np.uint8), 1 << 20)[0].data


@pytest.fixture
def run(tmp_path: Path) -> RunDescription:
    made = make_run(tmp_path / "r")
    media = Media(made.folder)
    media.write("image", "val/mask", PICTURE, "png", step=3, time=1.8e9, caption="epoch 1")
    media.write("text", "sample", b"once upon", "txt", step=3, time=1.8e9)
    table = {"columns": ["file", "loss"], "data": [["a|b.png", 2.5], ["c.png", None]]}
    media.write("table", "errors", json.dumps(table).encode(), "json", step=4, time=1.8e9)
    media.write_histogram("logits", Histogram(0.0, 4.0, [1, 0, 2, 5]), step=4, time=1.8e9)
    media.write("text", "sample", b"of rank 1", "txt", step=5, time=1.8e9, participant=Participant(rank=1))
    return made


def mirror_twice(create: Any, target: str, run: RunDescription) -> None:
    """What is there before the end and at the end, and nothing of it again afterwards."""
    for rows in (ROWS, []):
        mirror: RowExporter = create(target, SETTINGS)
        mirror.open(run)
        mirror.write(rows)
        mirror.close(END)


def test_tensorboard_has_them(run: RunDescription) -> None:
    mirror_twice(tensorboard.create, "on", run)
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run.folder / "tensorboard"))
    found.Reload()
    (image,) = found.Images("training/val/mask")
    assert (image.step, image.width, image.height, image.encoded_image_string) == (3, 3, 2, PICTURE)
    (histogram,) = found.Histograms("training/logits")
    assert (histogram.step, histogram.histogram_value.num) == (4, 8)
    texts = {
        tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in found.Tags()["tensors"]
        if tag.startswith("training/")
    }
    assert texts == {
        "training/sample/text_summary": "once upon",
        "training/rank1/sample/text_summary": "of rank 1",
        "training/errors/text_summary": "| file | loss |\n|---|---|\n| a\\|b.png | 2.5 |\n| c.png | None |",
    }


def test_wandb_has_them(run: RunDescription) -> None:
    mirror_twice(wandb.create, "mirrored", run)
    rows = sorted(read_all(run.folder / "wandb", HISTORY), key=lambda row: int(row["_step"]))
    assert {name: (row["step"], row[name]) for row in rows for name in row if name.endswith("/_type")} == {
        "val/mask/_type": (3, "image-file"),
        "sample/_type": (3, "table-file"),
        "rank1/sample/_type": (5, "table-file"),
        "errors/_type": (4, "table-file"),
        "logits/_type": (4, "histogram"),
    }
    values = {name: value for row in rows for name, value in row.items()}
    assert (values["logits/values"], values["logits/bins"]) == ([1, 0, 2, 5], [0, 1, 2, 3, 4])
    assert values["val/mask/caption"] == "epoch 1" and len(rows) == 6
    (table,) = run.folder.glob("wandb/offline-run-*/files/media/table/errors*.json")
    assert json.loads(table.read_text())["data"] == [["a|b.png", 2.5], ["c.png", None]]


def test_mlflow_has_them_as_artifacts(run: RunDescription, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(MlflowMirror, "_send_report", lambda mirror: None)
    mirror_twice(mlflow.create, str(tmp_path / "mlruns"), run)
    (media,) = (tmp_path / "mlruns").glob("*/*/artifacts/media")
    kept = {path.relative_to(media).as_posix(): path.read_bytes() for path in media.rglob("*") if path.is_file()}
    own = run.folder / "media"
    index = [json.loads(line) for line in (own / "index.jsonl").read_text().splitlines()]
    assert kept == {row["file"]: (own / row["file"]).read_bytes() for row in index}


def test_a_file_that_is_not_uploaded_yet_is_waited_for_until_the_end(run: RunDescription) -> None:
    media = Media(run.folder)
    media.index("image", "late", "images/late.png", step=6)
    media.write("text", "after", b"it", "txt", step=7)
    state = MirrorState(run.folder, "x", "y")
    news = MediaNews(run, state)
    assert [item.name for item in news.take()] == ["val/mask", "sample", "errors", "rank1/sample"]
    assert not list(news.take())
    (run.folder / "media" / "images").mkdir()
    (run.folder / "media" / "images" / "late.png").write_bytes(PICTURE)
    assert [item.name for item in news.take()] == ["late", "after"]
    media.index("image", "never", "images/never.png", step=8)
    media.write("text", "last", b"it", "txt", step=9)
    assert not list(news.take()) and [item.name for item in news.take(last=True)] == ["last"]
    state.close()

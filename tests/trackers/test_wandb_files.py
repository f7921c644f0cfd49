"""Files of the real W&B: finished, failed, killed, growing, cut and damaged."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from made_imports import points, reader_of, take, values
from waiting import wait_until

from trainvitals.journal.media import list_rows
from trainvitals.trackers import wandb_files

SCRIPT = """
import math, sys, wandb
import numpy as np

run = wandb.init(
    project="mnist", name="first", config={"lr": 0.1, "nested": {"depth": 3}, "api_key": "sk-abcdefghijklmnopqrstuvwx"},
    tags=["a", "b"], notes="some notes", mode="offline",
)
print("a printed line")
odd = [math.nan, math.inf, -math.inf, 0.1]
for step in range(2000):
    run.log({"loss": 1 / (step + 1), "val": {"top1": step, "more": {"deep": 2.5}}, "odd": odd[step % 4], "ok": True})
if sys.argv[1] == "die":
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.readline()
run.log({
    "picture": wandb.Image(np.zeros((4, 4, 3), dtype=np.uint8)), "counts": wandb.Histogram([1, 2, 3]),
    "rows": wandb.Table(columns=["a"], data=[[1]]), "page": wandb.Html("<b>x</b>"), "word": "hi",
}) if sys.argv[1] == "0" else None
run.config.update({"added": 5})
run.summary["best"] = 0.9
run.summary["loss"] = 2
run.alert(title="Careful", text="loss is odd", level=wandb.AlertLevel.WARN)
run.finish(exit_code=int(sys.argv[1]))
"""


def _start(folder: Path, word: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "WANDB_DIR": str(folder), "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, word],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that finished and one that failed."""
    folder = tmp_path_factory.mktemp("wandb")
    for word in ("0", "7"):
        child = _start(folder / word, word)
        _, trouble = child.communicate()
        assert list((folder / word).rglob("*.wandb")), trouble
    return folder


def _expected(name: str) -> list[object]:
    odd = ["NaN", "Infinity", "-Infinity", 0.1]
    found = {
        "loss": [1 / (step + 1) for step in range(2000)],
        "val.top1": [float(step) for step in range(2000)],
        "val.more.deep": [2.5] * 2000,
        "odd": odd * 500,
        "ok": [1.0] * 2000,
    }
    return found[name]


def test_a_finished_run_is_imported_value_by_value(written: Path, tmp_path: Path) -> None:
    (found,) = take("wandb", written / "0", tmp_path)
    reader = reader_of(found)
    for name in ("loss", "val.top1", "val.more.deep", "odd", "ok"):
        assert values(reader, name) == _expected(name), name
    assert [step for step, _, _ in points(reader, "loss")] == list(range(2000))
    file = reader.info.file
    assert (file.project, file.name, file.status, file.exit_code) == ("mnist", "first", "finished", 0)
    assert (file.tags, file.notes) == (("a", "b"), "some notes")
    assert file.config == {"lr": 0.1, "nested": {"depth": 3}, "api_key": "[redacted]", "added": 5}
    events = {row.event: row for row in reader.events()}
    assert (events["alert"].message, events["alert"].severity) == ("Careful: loss is odd", "warning")
    assert (events["summary"].message, events["summary"].data) == (
        "W&B summary: best = 0.9, loss = 2, word",
        {"best": 0.9, "loss": 2, "word": "hi"},
    )
    assert "a printed line" in (reader.folder / "console.rank0.log").read_text()
    assert any(name.startswith(wandb_files.SYSTEM) for name in reader.names())
    media = {row["name"]: reader.folder / "media" / row["file"] for row in list_rows(reader.folder)}
    assert media["picture"].read_bytes().startswith(b"\x89PNG")
    assert sum(json.loads(media["counts"].read_text())["values"]) == 3
    assert json.loads(media["rows"].read_text())["data"] == [[1]]
    assert found.left_out == {"html-file": 1, "texts": 1}


def test_a_failed_run_has_its_exit_code(written: Path, tmp_path: Path) -> None:
    (found,) = take("wandb", written / "7", tmp_path)
    info = reader_of(found).info
    assert (info.status, info.cause_text, info.file.exit_code) == ("failed", "exit code 7", 7)


def test_a_run_that_was_killed_keeps_what_its_file_has(tmp_path: Path) -> None:
    child = _start(tmp_path / "wandb", "die")
    assert child.stderr is not None and child.stdin is not None
    assert child.stderr.readline().strip() == "ready"
    wait_until(lambda: any(path.stat().st_size > 65_536 for path in (tmp_path / "wandb").rglob("*.wandb")), "blocks")
    child.kill()
    child.communicate()
    (found,) = take("wandb", tmp_path / "wandb", tmp_path / "runs")
    reader = reader_of(found)
    losses = values(reader, "loss")
    assert len(losses) > 100 and losses == _expected("loss")[: len(losses)]
    assert reader.info.status in ("crashed", "failed", "finished")  # its helper may have written an end of its own
    if reader.info.status == "crashed":
        assert reader.info.cause_text == "W&B has not recorded an end"


def test_a_file_that_grows_is_read_on_where_it_was_cut(written: Path, tmp_path: Path) -> None:
    (path,) = (written / "0").rglob("*.wandb")
    data = path.read_bytes()
    copy = tmp_path / "wandb/run-x/run-x.wandb"
    copy.parent.mkdir(parents=True)
    rows = 0
    for end in [*range(3, len(data), len(data) // 40 + 1), len(data)]:
        copy.write_bytes(data[:end])
        for found in take("wandb", tmp_path / "wandb", tmp_path / "runs"):
            rows += found.rows
            assert values(reader_of(found), "loss") == _expected("loss")[: len(values(reader_of(found), "loss"))]
    assert values(reader_of(found), "loss") == _expected("loss")
    assert rows == found.run.total


def test_a_damaged_block_costs_only_itself_and_is_counted(written: Path, tmp_path: Path) -> None:
    (path,) = (written / "0").rglob("*.wandb")
    data = bytearray(path.read_bytes())
    data[40_000] ^= 0xFF
    copy = tmp_path / "run-x.wandb"
    copy.write_bytes(data)
    (found,) = take("wandb", copy, tmp_path / "runs")
    losses = values(reader_of(found), "loss")
    assert found.left_out[wandb_files.DAMAGED] == 1
    assert 1000 < len(losses) < 2000 and set(losses) <= set(_expected("loss"))
    assert losses[-1] == 1 / 2000


@pytest.mark.promise("a W&B file references a picture outside its folder", "it is not read, and is counted")
def test_a_record_of_garbage_and_names_that_lead_elsewhere_are_left_out(tmp_path: Path) -> None:
    def field(number: int, body: bytes) -> bytes:
        return bytes(
            ((number << 3 | 2) & 0x7F | (0x80 if number > 15 else 0), *((number >> 4,) if number > 15 else ()))
        ) + (bytes((len(body),)) + body)

    def item(*keys: str, value: str) -> bytes:
        path = b"".join(field(2, key.encode()) for key in keys)
        return field(1, path + field(16, value.encode()))

    secret = tmp_path / "secret.png"
    secret.write_bytes(b"\x89PNG secret")
    folder = tmp_path / "wandb/run-x"
    (folder / "files").mkdir(parents=True)
    history = item("a", "_type", value='"image-file"') + item("a", "path", value='"../../../secret.png"')
    payloads = [field(17, field(1, b"x") + field(8, b"x")), b"\xff\xff", field(2, history + item("b", value="1.5"))]
    chunks = b""
    for payload in payloads:
        body = b"\x01" + payload
        chunks += zlib.crc32(body).to_bytes(4, "little") + len(payload).to_bytes(2, "little") + body
    (folder / "run-x.wandb").write_bytes(wandb_files.HEADER + chunks)
    (found,) = take("wandb", tmp_path / "wandb", tmp_path / "runs")
    assert values(reader_of(found), "b") == [1.5]
    assert found.left_out == {wandb_files.DAMAGED: 1, "image-file": 1}
    assert list_rows(found.run.folder) == []
    assert not math.isnan(found.values)

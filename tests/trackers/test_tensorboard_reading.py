"""Event files of real writers, value by value against TensorBoard's own reader; and event files that are broken."""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_imports import points, reader_of, take, values

from trainvitals.journal.encoding import format_time, spell
from trainvitals.journal.media import list_rows
from trainvitals.journal.reader import RunReader
from trainvitals.trackers.tensorboard import reading
from trainvitals.trackers.tensorboard.framing import encode_record
from trainvitals.trackers.tensorboard.writing import encode_event, encode_scalar

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-45, 3.4e38)
T0 = 1_763_380_000.0


def _oracle(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0, "images": 0})
    found.Reload()
    return found


def _expect_scalars(reader: RunReader, folder: Path) -> int:
    """Every scalar that TensorBoard finds is in the run, at its step and time. Returns how many there are."""
    from tensorboard.util import tensor_util

    oracle, count = _oracle(folder), 0
    for tag in oracle.Tags()["scalars"]:
        expected = [(item.step, format_time(item.wall_time), spell(item.value)) for item in oracle.Scalars(tag)]
        assert points(reader, tag) == expected, tag
        count += len(expected)
    for tag in oracle.Tags()["tensors"]:
        if oracle.SummaryMetadata(tag).plugin_data.plugin_name == "scalars":
            expected = [
                (item.step, format_time(item.wall_time), spell(float(tensor_util.make_ndarray(item.tensor_proto))))
                for item in oracle.Tensors(tag)
            ]
            assert points(reader, tag) == expected, tag
            count += len(expected)
    return count


def _varint(number: int) -> bytes:
    number &= 0xFFFFFFFFFFFFFFFF
    found = b""
    while number > 0x7F:
        found += bytes((number & 0x7F | 0x80,))
        number >>= 7
    return found + bytes((number,))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _scalar(tag: str, value: float) -> bytes:
    return _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value))


def _event(step: int, *summaries: bytes, time: float = T0, more: bytes = b"") -> bytes:
    body = b"\x09" + struct.pack("<d", time) + (b"\x10" + _varint(step) if step else b"") + more
    return encode_record(body + (_field(5, b"".join(summaries)) if summaries else b""))


def _write(folder: Path, *records: bytes, name: str = "events.out.tfevents.1.host.1.0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    version = encode_record(b"\x09" + struct.pack("<d", T0) + _field(3, b"brain.Event:2"))
    path = folder / name
    path.write_bytes(version + b"".join(records))
    return path


# -- real writers


def test_what_torch_wrote_is_imported_value_by_value(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    source = tmp_path / "logs"
    with SummaryWriter(str(source)) as writer:
        for step in (0, 1, 127, 128, 20_000, 2**40):
            writer.add_scalar("loss/train", 1.0 / (step + 1), step)
        for step, value in enumerate(SPECIAL):
            writer.add_scalar("odd", value, step, walltime=T0 + step * 1e-6)
        writer.add_scalar("new style", 0.25, 3, new_style=True)
        writer.add_scalar("double", 1 / 3, 3, new_style=True, double_precision=True)
        writer.add_scalars("both", {"a": 1.0, "b": 2.0}, 1)  # folders of their own
        writer.add_text("notes", "# Hello", 2)
        writer.add_histogram("weights", np.array([-1.0, 0.0, 0.5, 2.0]), 4)
        writer.add_image("sample", np.zeros((3, 4, 5), dtype=np.uint8), 5)
        writer.add_hparams({"lr": 0.1, "name": "sgd", "nesterov": True}, {"hparam/best": 0.9}, run_name="hp")
    found = {item.title: item for item in take("tensorboard", source, tmp_path / "runs")}
    assert set(found) == {"logs", "both_a", "both_b", "hp"}
    main = reader_of(found["logs"])
    assert _expect_scalars(main, source) == 6 + len(SPECIAL) + 1 + 1
    assert values(main, "odd")[:3] == ["NaN", "Infinity", "-Infinity"]
    assert values(main, "double") == [1 / 3]
    assert reader_of(found["hp"]).info.file.config == {"lr": 0.1, "name": "sgd", "nesterov": True}
    media = {row["kind"]: row for row in list_rows(main.folder)}
    files = {kind: (main.folder / "media" / row["file"]).read_bytes() for kind, row in media.items()}
    assert {kind: (row["name"], row["step"]) for kind, row in media.items()} == {
        "text": ("notes/text_summary", 2),
        "histogram": ("weights", 4),
        "image": ("sample", 5),
    }
    assert files["text"] == b"# Hello"
    assert files["image"] == _oracle(source).Images("sample")[0].encoded_image_string
    histogram = json.loads(files["histogram"])
    expected = _oracle(source).Histograms("weights")[0].histogram_value
    assert (histogram["counts"], histogram["right_edges"]) == (expected.bucket, expected.bucket_limit)


def test_what_tensorboardx_wrote_is_imported_value_by_value(tmp_path: Path) -> None:
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(tmp_path / "logs")) as writer:
        for step in range(300):
            writer.add_scalar("loss", math.sin(step), step)
            writer.add_scalar("loss", math.cos(step), step)  # the same tag twice at one step
        for step, value in enumerate(SPECIAL):
            writer.add_scalar("odd", value, step)
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert _expect_scalars(reader_of(found), tmp_path / "logs") == 600 + len(SPECIAL)


TENSORFLOW = """
import sys
import numpy as np
import tensorflow as tf

source, special = sys.argv[1], [float(text) for text in sys.argv[2:]]
model = tf.keras.Sequential([tf.keras.layers.Input((2,)), tf.keras.layers.Dense(1)])
model.compile("sgd", "mse")
callback = tf.keras.callbacks.TensorBoard(source, histogram_freq=1, write_graph=False, update_freq=1)
model.fit(np.ones((8, 2)), np.ones(8), epochs=3, batch_size=2, verbose=0, validation_split=0.5, callbacks=[callback])
with tf.summary.create_file_writer(source + "/own").as_default():
    for step, value in enumerate(special):
        tf.summary.scalar("odd", value, step=step)
    for step in range(1000):
        tf.summary.scalar("ramp", step * 0.5, step=step)
    tf.summary.text("words", "hello", step=1)
    tf.summary.image("picture", np.zeros((1, 2, 3, 3)), step=1)
"""


def test_what_keras_and_tensorflow_wrote_is_imported_value_by_value(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    # In a process of its own: other tests tell the TensorBoard of theirs that there is no TensorFlow.
    program = [sys.executable, "-c", TENSORFLOW, str(source), *map(repr, SPECIAL)]
    subprocess.run(program, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, check=True, capture_output=True)
    found = {item.title: item for item in take("tensorboard", source, tmp_path / "runs")}
    counts = {title: _expect_scalars(reader_of(item), source / title) for title, item in found.items()}
    assert counts["own"] == len(SPECIAL) + 1000
    assert counts["train"] > 3 and counts["validation"] >= 3
    kinds = [row["kind"] for row in list_rows(reader_of(found["own"]).folder)]
    assert sorted(kinds) == ["image", "text"]
    assert {row["kind"] for row in list_rows(reader_of(found["train"]).folder)} == {"histogram"}


# -- growing, restarted and doubled


def test_a_second_import_adds_only_what_is_new(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    path = _write(source, _event(1, _scalar("loss", 1.0)))
    (first,) = take("tensorboard", source, tmp_path / "runs")
    with path.open("ab") as file:
        file.write(_event(2, _scalar("loss", 2.0)))
    _write(source, _event(3, _scalar("loss", 3.0)), name="events.out.tfevents.2.host.1.0")
    (second,) = take("tensorboard", source, tmp_path / "runs")
    (third,) = take("tensorboard", source, tmp_path / "runs")
    assert (first.rows, second.rows, third.rows) == (1, 2, 0)
    assert (first.is_new, second.is_new) == (True, False)
    assert first.run.folder == second.run.folder == third.run.folder
    assert values(reader_of(third), "loss") == [1.0, 2.0, 3.0]


def test_the_same_folder_below_another_root_is_the_same_run(tmp_path: Path) -> None:
    _write(tmp_path / "logs/a", _event(1, _scalar("loss", 1.0)))
    _write(tmp_path / "logs/b", _event(1, _scalar("loss", 2.0)))
    everything = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    (alone,) = take("tensorboard", tmp_path / "logs/a", tmp_path / "runs")
    assert len({item.run.folder for item in everything}) == 2
    assert alone.run.folder == everything[0].run.folder and alone.rows == 0


def test_a_restart_replaces_the_steps_that_it_logs_again(tmp_path: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    source = tmp_path / "logs"
    with SummaryWriter(str(source), filename_suffix=".1") as writer:
        for step in range(10):
            writer.add_scalar("loss", 1.0, step)
    with SummaryWriter(str(source), purge_step=6, filename_suffix=".2") as writer:
        for step in range(6, 12):
            writer.add_scalar("loss", 2.0, step)
    (found,) = take("tensorboard", source, tmp_path / "runs")
    (shown,) = reader_of(found).series(["loss"])
    expected = [(item.step, item.value) for item in _oracle(source).Scalars("loss")]
    assert list(zip(shown.x, shown.y, strict=True)) == expected
    (everything,) = reader_of(found).series(["loss"], all_attempts=True)
    assert len(everything.y) == 16


def test_a_file_that_was_replaced_is_another_attempt(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    _write(source, *(_event(step, _scalar("loss", 1.0)) for step in range(1, 6)))
    take("tensorboard", source, tmp_path / "runs")
    _write(source, *(_event(step, _scalar("loss", 2.0)) for step in range(1, 3)))
    (found,) = take("tensorboard", source, tmp_path / "runs")
    (shown,) = reader_of(found).series(["loss"])
    assert (found.rows, list(shown.y)) == (2, [2.0, 2.0])
    assert [item.rows for item in take("tensorboard", source, tmp_path / "runs")] == [0]


def test_pictures_are_written_before_there_are_too_many_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 100)
    monkeypatch.setattr(reading, "BLOCK", 200)
    pictures = [
        _event(step, _field(1, _field(1, b"p") + _field(4, _field(4, b"\x89PNG" + bytes(50))))) for step in range(1, 20)
    ]
    _write(tmp_path / "logs", *pictures)
    (run,) = reading.open_source(str(tmp_path / "logs")).runs()
    pieces = list(run.read({}))
    assert max(len(piece.media) for piece in pieces) <= 4
    assert [medium.step for piece in pieces for medium in piece.media] == list(range(1, 20))


def test_a_step_that_goes_back_without_a_restart_keeps_both(tmp_path: Path) -> None:
    _write(tmp_path / "logs", *(_event(step, _scalar("loss", float(n))) for n, step in enumerate((5, 6, 2, 6, -3))))
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert [(step, value) for step, _, value in points(reader_of(found), "loss")] == [
        (5, 0.0),
        (6, 1.0),
        (2, 2.0),
        (6, 3.0),
        (-3, 4.0),
    ]


def test_a_tag_twice_in_one_event_is_two_rows(tmp_path: Path) -> None:
    event = _event(4, _scalar("loss", 1.0), _scalar("lr", 3.0), _scalar("loss", 2.0))
    _write(tmp_path / "logs", event, _event(5, _scalar("loss", 9.0)))
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert sorted(values(reader_of(found), "loss")) == [1.0, 2.0, 9.0]
    assert values(reader_of(found), "lr") == [3.0]


def test_ten_thousand_tags_are_kept_apart(tmp_path: Path) -> None:
    events = [_event(step, _scalar(f"layer/{tag:05d}", tag + step)) for step in (1, 2) for tag in range(10_000)]
    _write(tmp_path / "logs", *events)
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    reader = reader_of(found)
    assert len(reader.names()) == 10_000
    (series,) = reader.series(["layer/07777"])
    assert list(series.y) == [7778.0, 7779.0]


# -- broken


@pytest.mark.promise("an event file is cut at any byte", "every complete record is imported, the rest once available")
def test_a_file_that_is_cut_at_any_byte_gives_every_whole_record_and_goes_on(tmp_path: Path) -> None:
    whole = _write(tmp_path / "whole", *(_event(step, _scalar("loss", float(step))) for step in range(1, 4)))
    data = whole.read_bytes()
    ends = [
        len(data) - 3 * len(_event(1, _scalar("loss", 1.0))) + n * len(_event(1, _scalar("loss", 1.0)))
        for n in range(4)
    ]
    file = reading.EventFile(tmp_path / "cut")
    for size in range(len(data) + 1):
        (tmp_path / "cut").write_bytes(data[:size])
        blocks = list(file.read(0))
        found = [value for block in blocks for value in block.columns.get("loss", ([], []))[1]]
        assert len(found) == sum(size >= end for end in ends[1:]), size
        assert not any(block.left_out.total() for block in blocks)
        (tmp_path / "cut").write_bytes(data)
        rest = [
            value
            for block in file.read(blocks[-1].end if blocks else 0)
            for value in block.columns.get("loss", ([], []))[1]
        ]
        assert [*found, *rest] == [1.0, 2.0, 3.0]


@pytest.mark.promise("a record of an event file is damaged", "only that record is skipped, and counted")
@pytest.mark.parametrize("wrong", ["length", "checksum of the length", "payload", "checksum of the payload"])
def test_a_damaged_record_costs_only_itself_and_is_counted(tmp_path: Path, wrong: str) -> None:
    records = [_event(step, _scalar("loss", float(step))) for step in range(1, 6)]
    place = {"length": 0, "checksum of the length": 9, "payload": 30, "checksum of the payload": -1}[wrong]
    damaged = bytearray(records[2])
    damaged[place] ^= 0x55
    _write(tmp_path / "logs", *records[:2], bytes(damaged), *records[3:])
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert values(reader_of(found), "loss") == [1.0, 2.0, 4.0, 5.0]
    assert found.left_out == {reading.DAMAGED: 1}
    assert reader_of(found).info.file.origin.left_out == {reading.DAMAGED: 1}


def test_a_record_larger_than_a_block_is_read_and_one_too_large_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BLOCK", 300)
    monkeypatch.setattr(reading, "LARGEST_RECORD", 5000)
    events = [_event(step, _scalar("loss", float(step))) for step in range(1, 30)]
    large = _event(30, _scalar("x" * 3000, 1.0))
    too_large = _event(31, _scalar("y" * 6000, 1.0))
    _write(tmp_path / "logs", *events, large, too_large, _event(32, _scalar("loss", 32.0)))
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert values(reader_of(found), "loss") == [*map(float, range(1, 30)), 32.0]
    assert values(reader_of(found), "x" * 3000) == [1.0]
    assert found.left_out.total() == 1


def test_a_stretch_of_zeros_longer_than_a_block_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BLOCK", 256)
    path = _write(tmp_path / "logs", _event(1, _scalar("loss", 1.0)))
    with path.open("ab") as file:
        file.write(bytes(2000) + _event(2, _scalar("loss", 2.0)))
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    assert values(reader_of(found), "loss") == [1.0, 2.0]
    assert found.left_out[reading.DAMAGED] >= 1


def test_random_bytes_and_hostile_payloads_never_raise(tmp_path: Path) -> None:
    chance = np.random.default_rng(7)
    for number in range(20):
        payloads = [chance.bytes(int(chance.integers(0, 80))) for _ in range(20)]
        good = bytearray(_event(3, _scalar("loss", 1.0))[12:-4])
        good[int(chance.integers(len(good)))] ^= 1 << int(chance.integers(8))
        _write(tmp_path / "logs", *map(encode_record, payloads), encode_record(bytes(good)))
        (found,) = take("tensorboard", tmp_path / "logs", tmp_path / f"runs{number}")
        list(reader_of(found).rows())


def test_a_time_that_is_none_is_left_out(tmp_path: Path) -> None:
    times = (math.nan, -1.0, 1e300, T0)
    _write(tmp_path / "logs", *(_event(n + 1, _scalar("loss", 1.0), time=time) for n, time in enumerate(times)))
    (found,) = take("tensorboard", tmp_path / "logs", tmp_path / "runs")
    reader = reader_of(found)
    assert [list(series.x) for series in reader.series(["loss"])] == [[1.0, 2.0, 3.0, 4.0]]


def test_a_folder_that_goes_away_while_it_is_followed_keeps_what_was_read(tmp_path: Path) -> None:
    from trainvitals import settings
    from trainvitals.trackers.importing import Import
    from trainvitals.trackers.registry import REGISTRY
    from trainvitals.trackers.run_writing import TrackedRuns

    path = _write(tmp_path / "logs", _event(1, _scalar("loss", 1.0)))
    source = REGISTRY["tensorboard"].open(str(tmp_path / "logs"))
    following = Import("tensorboard", source, TrackedRuns(tmp_path / "runs", settings.resolve(environ={})))
    assert [item.rows for item in following.take()] == [1]
    path.unlink()
    path.parent.rmdir()
    assert [(item.rows, item.error) for item in following.take()] == [(0, None)]
    following.settle(stopped=True)
    (run,) = (tmp_path / "runs").glob("*/*/")
    assert values(RunReader(run), "loss") == [1.0]


READING = """
import resource, sys
from pathlib import Path
from trainvitals.trackers.tensorboard.reading import BLOCK, TensorBoardSource
def read_bytes():
    return int(Path("/proc/self/io").read_text().split()[1])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
before, memory, count = read_bytes(), peak(), 0
for run in TensorBoardSource(Path(sys.argv[1])).runs():
    for piece in run.read({}):
        count += piece.lines.count
print(count, read_bytes() - before, peak() - memory)
"""


@pytest.mark.promise("an event file of gigabytes", "read once, a block at a time, in bounded memory")
def test_a_large_file_is_read_once_and_in_bounded_memory(tmp_path: Path) -> None:
    record = encode_event(T0, 1, [encode_scalar("loss", 0.5)])
    records = (96 << 20) // len(record)
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(record * records)
    done = subprocess.run([sys.executable, "-c", READING, str(tmp_path)], capture_output=True, text=True, check=True)
    count, read, memory = map(int, done.stdout.split())
    assert count == records
    assert read < 1.05 * path.stat().st_size
    assert memory < 400 << 20, "with 610 MB it is as much"

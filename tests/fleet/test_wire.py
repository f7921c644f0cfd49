"""What an agent and a gateway say to each other."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.fleet import wire
from trainvitals.fleet.wire import FileRange, Held, TooLong, WireError

TRAINING = "training_metrics_20261118_060000.rank0.jsonl"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (TRAINING, "lines"),
        ("events_20261118_060000.jsonl", "lines"),
        ("segments/training_metrics_20261118_060000.rank0.parquet", "segment"),
        ("segments/training_metrics_20261118_060000.rank0.minmax.parquet", None),
        ("segments/training_metrics_20261118_060000.rank0.rejected", "bytes"),
        ("run.json", "document"),
        ("status.host-a.json", "document"),
        ("benchmarks/one.json", "document"),
        ("console.rank0.log", "bytes"),
        ("media/index.jsonl", "bytes"),
        ("media/images/a.png", "bytes"),
        (".launch-1.json", None),
        ("segments/.sealing-a/x.parquet", None),
        ("exports/a.json", None),
        ("wandb/run/logs/debug.log", None),
        ("../run.json", None),
        ("a//b", None),
        ("/etc/passwd", None),
        ("a\\b", None),
        ("a\nb", None),
        ("x" * 500, None),
    ],
)
def test_what_a_file_is_decides_how_it_is_shipped(path: str, kind: str | None) -> None:
    assert wire.kind_of(path) == kind


def test_frames_come_back_as_they_were_sent() -> None:
    frames = [
        FileRange(TRAINING, "lines", b'{"a": 1}\n{"b": 2}\n', 17),
        FileRange("run.json", "document", b"{}", modified=5.5),
        FileRange("console.rank0.log", "bytes", bytes(range(256)), 3, "77"),
        FileRange("media/empty.txt", "bytes", b""),
    ]
    body = wire.encode_frames(frames)
    assert list(wire.decode_frames(wire.decompress(body))) == frames
    assert list(wire.decode_frames(wire.encode_frames(frames, compress=False))) == frames


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{",
        b'{"path": "../x", "kind": "bytes", "size": 0}',
        b'{"path": 5, "kind": "bytes", "size": 0}',
        b'{"path": "run.json", "kind": "lines", "size": 0}',
        b'{"path": "run.json", "kind": "document", "size": -1}',
        b'{"path": "run.json", "kind": "document", "size": "1"}',
        b'{"path": "run.json", "kind": "document", "size": 0, "offset": 5}',
        b'{"path": "a.log", "kind": "bytes", "size": 0, "offset": -5}',
        b'{"path": "a.log", "kind": "bytes", "size": 0, "offset": 1e300}',
        b'{"path": "a.log", "kind": "bytes", "size": 0, "generation": 5}',
        b'{"path": "a.log", "kind": "bytes", "size": 5}',
        b"x" * 5000,
    ],
)
def test_a_wrong_frame_is_refused(header: bytes) -> None:
    with pytest.raises(WireError):
        list(wire.decode_frames(header + b"\n"))


@given(st.binary(max_size=300))
def test_anything_else_is_refused_or_understood(body: bytes) -> None:
    try:
        list(wire.decode_frames(body))
    except WireError:
        pass


def test_a_bomb_is_refused_before_it_bursts() -> None:
    bomb = gzip.compress(bytes(wire.MOST_BYTES + 1))
    assert len(bomb) < 100_000
    with pytest.raises(TooLong):
        wire.decompress(bomb)
    for body in (b"", b"not gzip", bomb[:-9], gzip.compress(b"a") + b"more"):
        with pytest.raises(WireError):
            wire.decompress(body)


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a\\b", "a\nb", "x" * 300])
def test_a_key_is_one_name(text: str) -> None:
    with pytest.raises(WireError):
        wire.check_key("project", text)
    assert wire.check_key("project", "größe 1") == "größe 1"


def test_an_answer_that_makes_no_sense_is_as_good_as_none() -> None:
    held = Held(5, 2, "g", "d", sealed=True)
    assert Held.parse(held.as_json()) == held
    assert Held().as_json() == {}
    for nonsense in (None, 5, [], {"end": -1, "rows": "x", "generation": 5, "sealed": 1}, {"end": True}):
        assert Held.parse(nonsense) == Held()

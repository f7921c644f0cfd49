"""Following a file while it is written."""

from __future__ import annotations

from pathlib import Path

from trainvitals.journal.cursor import Cursor, Follower
from trainvitals.journal.encoding import encode_line, format_time


def line(number: int) -> bytes:
    return encode_line({"timestamp": format_time(), "step": number, "loss": 1 / (number + 1)})


def test_a_file_cut_at_every_byte_gives_whole_lines_and_the_rest_later(tmp_path: Path) -> None:
    whole = b"".join(line(number) for number in range(4))
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        cursor = Cursor(path)
        seen = [row["step"] for row in cursor.read()]
        assert seen == list(range(whole[:cut].count(b"\n")))
        with open(path, "ab") as file:
            file.write(whole[cut:])
        seen += [row["step"] for row in cursor.read()]
        assert seen == [0, 1, 2, 3]
        assert cursor.damage.torn == cursor.damage.foreign == 0


def test_foreign_lines_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    path.write_bytes(line(0) + b'[1,2]\n{"loss":1}\nhello\n\n"text"\n' + line(1))
    cursor = Cursor(path)
    assert [row["step"] for row in cursor.read()] == [0, 1]
    assert (cursor.damage.torn, cursor.damage.foreign) == (1, 3)


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    path.write_bytes(line(0) + line(1))
    cursor = Cursor(path)
    cursor.read()
    copy = tmp_path / "copy"
    copy.write_bytes(line(5))
    copy.replace(path)
    assert [row["step"] for row in cursor.read()] == [5]


def test_a_follower_sees_new_files_and_may_start_at_the_end(tmp_path: Path) -> None:
    first = tmp_path / "training_metrics_20260101_000000.rank0.jsonl"
    first.write_bytes(line(0))
    follower = Follower(tmp_path, ("training",), from_end=True)
    assert follower.poll() == []
    with open(first, "ab") as file:
        file.write(line(1))
    (tmp_path / "training_metrics_20260101_000001.rank1.jsonl").write_bytes(line(2))
    (tmp_path / "gpu_metrics_20260101_000001.jsonl").write_bytes(line(3))
    assert sorted((name.rank, row["step"]) for name, row in follower.poll()) == [(0, 1), (1, 2)]
    assert follower.poll() == []


def test_a_limit_bounds_one_look_and_the_next_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    with open(path, "wb") as file:
        for number in range(200_000):
            file.write(line(number))
    cursor = Cursor(path)
    first = cursor.read(limit=1)
    assert 0 < len(first) < 200_000
    rest = cursor.read()
    assert [row["step"] for row in first + rest] == list(range(200_000))

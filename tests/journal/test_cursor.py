"""Following a file while it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainvitals.journal.cursor import Cursor, count_parsed, find_line
from trainvitals.journal.encoding import encode_line, format_time


def line(number: int) -> bytes:
    return encode_line({"timestamp": format_time(), "step": number, "loss": 1 / (number + 1)})


@pytest.mark.promise("a file cut off at any byte", "complete lines now, the rest later")
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


@pytest.mark.promise("lines of other programs", "they are counted and skipped")
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


def test_a_bound_ends_the_look_at_that_line(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    path.write_bytes(b"".join(line(number) for number in range(10)))
    half = len(b"".join(path.read_bytes().splitlines(keepends=True)[:5]))
    cursor = Cursor(path)
    found: list[bytes] = []
    assert cursor.feed(found.append, until=half) == half and len(found) == 5
    assert [row["step"] for row in cursor.read()] == [5, 6, 7, 8, 9]


def test_a_line_is_found_at_its_start_wherever_one_looks(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    path.write_bytes(b"ab\ncd\nef")
    assert [find_line(path, offset) for offset in range(-1, 9)] == [0, 0, 3, 3, 3, 6, 6, 6, 8, 8]


def test_lines_that_were_read_are_counted_by_table(tmp_path: Path) -> None:
    path = tmp_path / "gpu_metrics_20260101_000000.jsonl"
    path.write_bytes(line(0) + b"torn\n" + line(1))
    before = count_parsed().get("gpu", 0)
    cursor = Cursor(path)
    cursor.read()
    cursor.read()
    assert count_parsed()["gpu"] == before + 3

"""Following a file while it is written."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trainvitals.journal.cursor import Cursor, Follower
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.segments import seal


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


def seal_next(folder: Path, keep: bool = False) -> None:
    """Seal the oldest file that is not sealed."""
    seal(min(folder.glob("training_*.jsonl")), keep=keep)


def write_files(folder: Path, first: int, count: int, lines: int = 100) -> None:
    """Files of one writer, each with its `lines`, the steps going on from one to the next."""
    for number in range(first, first + count):
        path = folder / f"training_metrics_20260101_{number:06d}.rank0.jsonl"
        path.write_bytes(b"".join(line(number * lines + place) for place in range(lines)))


def steps(follower: Follower, limit: int | None = None) -> list[int]:
    return [row["step"] for _, row in follower.poll(limit)]


def test_a_follower_gives_what_was_sealed_before_it_came_and_each_line_once(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 4)
    seal_next(tmp_path)
    seal_next(tmp_path, keep=True)
    follower = Follower(tmp_path, ("training",))
    found = follower.poll()
    assert [row["step"] for _, row in found] == list(range(400))
    assert found[0][0].rank == 0 and found[0][1] == {"timestamp": found[0][1]["timestamp"], "step": 0, "loss": 1.0}
    for _ in range(3):
        seal_next(tmp_path)
        assert steps(follower) == []
    write_files(tmp_path, 4, 1)
    assert steps(follower) == list(range(400, 500))
    seal_next(tmp_path)
    assert steps(Follower(tmp_path, ("training",))) == list(range(500))
    assert steps(Follower(tmp_path, ("gpu",))) == []


@pytest.mark.parametrize("from_end", [False, True])
def test_lines_that_are_sealed_between_two_looks_are_given_from_the_segment(tmp_path: Path, from_end: bool) -> None:
    write_files(tmp_path, 0, 2)
    seal_next(tmp_path)
    follower = Follower(tmp_path, ("training",), from_end=from_end)
    assert steps(follower) == ([] if from_end else list(range(200)))
    with open(tmp_path / "training_metrics_20260101_000001.rank0.jsonl", "ab") as file:
        file.write(b"torn\n" + line(200) + line(201))
    write_files(tmp_path, 10, 2)
    for _ in range(3):
        seal_next(tmp_path)
    assert steps(follower) == [200, 201, *range(1000, 1200)]
    assert steps(follower) == []


def test_a_limit_bounds_what_is_taken_from_a_segment_and_the_order_stays(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 3)
    seal_next(tmp_path)
    follower = Follower(tmp_path, ("training",))
    looks = []
    while look := steps(follower, limit=30 * 128):
        looks.append(look)
    assert [step for look in looks for step in look] == list(range(300))
    assert looks[0] == list(range(30)) and len(looks) > 4


def test_a_follower_of_a_run_that_is_sealed_meanwhile_gives_every_line_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path, ("training",))
    found: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            found.extend(steps(follower))

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(12):
        write_files(tmp_path, number, 1)
        if number % 3:
            seal_next(tmp_path)
    done.set()
    thread.join()
    found.extend(steps(follower))
    assert found == list(range(1200))


def test_a_segment_that_cannot_be_read_is_counted_and_the_rest_is_given(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 2)
    seal_next(tmp_path)
    (tmp_path / "segments" / "training_metrics_20260101_000000.rank0.parquet").write_bytes(b"no Parquet")
    follower = Follower(tmp_path, ("training",))
    assert steps(follower) == list(range(100, 200))
    assert follower.damage.files == 1 and steps(follower) == []

"""Appending: nothing is lost, nothing is torn, nothing is raised."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Follower
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

NAME = FileName("training", 1, "")


def line(number: int, padding: str = "") -> bytes:
    row = {"timestamp": format_time(), "step": number, "loss": number / 7}
    return encode_line({**row, "note": padding} if padding else row)


def steps(folder: Path) -> list[int]:
    return [row["step"] for _, row in Follower(folder, ("training",)).poll()]


def test_another_process_reads_the_line_at_once(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME)
    writer.append(line(1))
    seen = subprocess.run(["cat", str(writer.path)], capture_output=True, check=True).stdout
    assert seen.count(b"\n") == 1 and b'"step":1' in seen


def test_files_are_for_the_user_only(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME)
    writer.append(line(1))
    assert writer.path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_followed_by_a_new_one_and_the_order_stays(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME, rotate_bytes=2000)
    for number in range(500):
        writer.append(line(number))
    files = [path for _, suffix, path in layout.list_files(tmp_path) if suffix == ".jsonl"]
    assert len(files) > 5
    assert all(path.stat().st_size < 2600 for path in files)
    assert steps(tmp_path) == list(range(500))


def test_an_old_file_is_followed_by_a_new_one(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME, rotate_seconds=0.05)
    writer.append(line(0))
    first = writer.path
    time.sleep(0.1)
    writer.rotate_if_due()
    writer.append(line(1))
    assert writer.path != first
    assert steps(tmp_path) == [0, 1]


def test_a_clock_set_back_an_hour_keeps_the_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = LineWriter(tmp_path, NAME)
    before.append(line(0))
    before.close()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    after = LineWriter(tmp_path, NAME)
    after.append(line(1))
    assert after.path.name > before.path.name
    assert steps(tmp_path) == [0, 1]


def test_eight_threads_write_whole_lines(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME, rotate_bytes=50_000)

    def work(start: int) -> None:
        for number in range(start, start + 1000):
            writer.append(line(number))

    threads = [threading.Thread(target=work, args=(k * 1000,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    follower = Follower(tmp_path, ("training",))
    assert sorted(row["step"] for _, row in follower.poll()) == list(range(8000))
    assert follower.damage.torn == 0


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME)
    writer.append(line(0))
    child = os.fork()
    if child == 0:
        writer.append(line(100))
        os._exit(0)
    os.waitpid(child, 0)
    writer.append(line(1))
    rows = Follower(tmp_path, ("training",)).poll()
    assert sorted((name.pid, row["step"]) for name, row in rows if name.pid) == [(child, 100)]
    assert [row["step"] for name, row in rows if name.pid is None] == [0, 1]


@pytest.mark.promise("`kill -9` of a writer in a tight loop", "no acknowledged line is lost")
def test_kill_nine_loses_nothing_that_append_returned_for(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from trainvitals.journal.encoding import encode_line, format_time\n"
        "from trainvitals.journal.layout import FileName\n"
        "from trainvitals.journal.writer import LineWriter\n"
        "writer = LineWriter(Path(sys.argv[1]), FileName('training', 1, ''), rotate_bytes=100_000)\n"
        "for number in range(10**9):\n"
        "    writer.append(encode_line({'timestamp': format_time(), 'step': number}))\n"
        "    os.write(1, b'%d\\n' % number)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(3000):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    rest = process.stdout.read().splitlines()
    process.wait()
    acknowledged = int(rest[-1]) if rest else 2999
    assert steps(tmp_path)[: acknowledged + 1] == list(range(acknowledged + 1))


@pytest.mark.promise("the disk is full for a while", "lines wait in memory and are written in order")
def test_a_full_disk_is_survived_said_once_and_caught_up_with(small_disk: Path) -> None:
    said: list[str] = []
    writer = LineWriter(small_disk, NAME, on_trouble=said.append)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    for number in range(2000):
        writer.append(line(number))
    assert writer.waiting > 0
    assert len(said) == 1 and "No space left" in said[0] and "Training continues" in said[0]
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert writer.flush(30)
    writer.append(line(2000))
    follower = Follower(small_disk, ("training",))
    assert [row["step"] for _, row in follower.poll()] == list(range(2001))
    assert follower.damage.torn == 0  # the line during which the disk filled up was written again whole
    assert "is writable again" in said[1]


@pytest.mark.promise("a folder that may not be written", "lines wait in memory; one warning")
def test_a_read_only_folder_is_survived(small_disk: Path) -> None:
    said: list[str] = []
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    writer = LineWriter(small_disk, NAME, on_trouble=said.append)
    for number in range(10):
        writer.append(line(number))
    assert writer.waiting == 10 and len(said) == 1 and "Read-only" in said[0]
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert writer.flush(30)
    assert steps(small_disk) == list(range(10))


def test_a_folder_that_is_not_there_is_survived(tmp_path: Path) -> None:
    said: list[str] = []
    writer = LineWriter(tmp_path / "gone", NAME, on_trouble=said.append)
    writer.append(line(0))
    assert said and writer.waiting == 1
    (tmp_path / "gone").mkdir()
    assert writer.flush(30)
    assert steps(tmp_path / "gone") == [0]


@pytest.mark.promise("the disk is full for very long", "lines wait in at most 64 MB of memory; the rest is counted")
def test_memory_for_waiting_lines_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.journal.writer.BACKLOG_LIMIT", 10_000)
    writer = LineWriter(tmp_path / "gone", NAME, on_trouble=lambda text: None)
    for number in range(1000):
        writer.append(line(number))
    assert writer.dropped + writer.waiting == 1000
    assert 0 < writer.waiting < 200


@pytest.mark.promise("the run ends while the disk is full", "the end does not hang; lost lines are counted")
def test_closing_while_the_disk_is_full_does_not_hang_and_counts_what_is_lost(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 250_000)
    writer = LineWriter(small_disk, NAME, on_trouble=lambda text: None)
    for number in range(500):
        writer.append(line(number, "y" * 100))
    lost = writer.waiting
    writer.close(seconds=0.1)
    assert lost > 0 and writer.dropped == lost


def test_a_signal_handler_may_log_while_the_main_thread_logs(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path, NAME)
    handled = []

    def handler(number: int, frame: object) -> None:
        handled.append(number)
        writer.append(line(10_000 + len(handled)))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        for number in range(5000):
            writer.append(line(number))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seen = steps(tmp_path)
    assert handled and sorted(seen) == [*range(5000), *range(10_001, 10_001 + len(handled))]


def test_a_line_glued_to_a_torn_one_is_read_and_the_torn_one_counted(tmp_path: Path) -> None:
    path = tmp_path / "training_metrics_20260101_000000.jsonl"
    path.write_bytes(line(0) + line(1)[:20] + line(2) + line(3))
    cursor = Cursor(path)
    assert [row["step"] for row in cursor.read()] == [0, 2, 3]
    assert cursor.damage.torn == 1


@pytest.mark.promise(
    "the program closes our descriptor and the number is used again", "the other file is never written to"
)
def test_a_descriptor_that_the_program_closed_is_never_written_to_again(tmp_path: Path) -> None:
    fds: list[int] = []
    writer = LineWriter(tmp_path, NAME, on_fd=fds.append)
    writer.append(line(0))
    os.close(fds[-1])  # as a program does that becomes a daemon
    checkpoint = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    assert checkpoint != fds[-1], "the program's next files have the lowest numbers, not that one"
    os.dup2(checkpoint, fds[-1])  # and even if the number means the program's own file now
    writer.rotate_if_due()
    writer.append(line(1))
    writer.close()
    assert os.fstat(checkpoint).st_size == 0
    os.close(checkpoint)
    assert steps(tmp_path) == [0, 1]


def test_a_descriptor_that_the_program_closed_costs_no_line(tmp_path: Path) -> None:
    fds: list[int] = []
    writer = LineWriter(tmp_path, NAME, on_trouble=lambda text: None, on_fd=fds.append)
    for number in range(4):
        writer.append(line(number))
        writer.flush(30)
        os.close(fds[-1])
        if number == 2:
            writer.rotate_if_due()
    writer.close()
    assert steps(tmp_path) == [0, 1, 2, 3]


@pytest.mark.promise("a file size limit (`ulimit -f`)", "the next file is started")
def test_files_that_may_not_grow_are_followed_by_new_ones(tmp_path: Path) -> None:
    """`ulimit -f`, as some clusters set it."""
    script = (
        "import resource, sys; from pathlib import Path\n"
        "from trainvitals.journal.layout import FileName\n"
        "from trainvitals.journal.writer import LineWriter\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "writer = LineWriter(Path(sys.argv[1]), FileName('training', 1, ''))\n"
        "for number in range(500):\n"
        '    writer.append(b\'{"timestamp":"2026-01-01T00:00:00.000Z","step":%d}\\n\' % number)\n'
        "assert writer.flush(30)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert steps(tmp_path) == list(range(500)) and not any(damage(path).torn for path in tmp_path.iterdir())
    assert all(path.stat().st_size <= 10_000 for path in tmp_path.iterdir())


def damage(path: Path) -> Damage:
    cursor = Cursor(path)
    cursor.read()
    assert cursor.offset == path.stat().st_size, "the last line is whole"
    return cursor.damage


def test_a_line_that_others_cut_is_taken_off_and_written_again(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `log` does it, which writes to the descriptor itself."""
    monkeypatch.setattr("trainvitals.journal.writer.RETRY_SECONDS", 3600.0)  # not before it is flushed
    fds: list[int] = []
    writer = LineWriter(small_disk, NAME, on_trouble=lambda text: None, on_fd=fds.append)
    writer.append(line(0))
    os.write(fds[-1], line(1, "y" * 200_000)[:150_000])
    writer.mark_torn()
    assert fds[-1] == -1
    writer.append(line(1))
    assert writer.waiting == 1
    assert writer.flush(30)
    assert steps(small_disk) == [0, 1] and damage(writer.path) == Damage()


@pytest.mark.promise("an append-only file (`chattr +a`) with a torn line", "only that line cannot be read")
def test_a_file_that_cannot_be_cut_gets_an_end_to_its_torn_line(small_disk: Path) -> None:
    writer = LineWriter(small_disk, NAME, on_trouble=lambda text: None)
    writer.append(line(0))
    moved = writer.path.rename(small_disk / "moved.jsonl")
    writer.mark_torn()
    os.truncate(moved, moved.stat().st_size - 5)
    writer.append(line(1))
    assert writer.flush(30)
    cursor = Cursor(moved)
    assert [row["step"] for row in cursor.read()] == [1] and cursor.damage.torn == 1


def test_a_file_that_is_removed_is_said_once_and_lines_wait_for_its_folder(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "run"
    folder.mkdir()
    writer = LineWriter(folder, NAME, on_trouble=said.append)
    writer.append(line(0))
    shutil.rmtree(folder)
    for number in range(1, 4):
        writer.rotate_if_due()
        writer.append(line(number))
    assert writer.waiting == 3 and len(said) == 1 and "was removed" in said[0]
    assert not folder.exists(), "whoever removed it meant it"
    folder.mkdir()
    assert writer.flush(30)
    assert steps(folder) == [1, 2, 3] and "is writable again" in said[1]
    shutil.rmtree(folder)
    writer.rotate_if_due()
    writer.append(line(4))
    writer.close(seconds=0.0)
    assert writer.dropped == 1 and "was removed" in said[2] and len(said) == 3

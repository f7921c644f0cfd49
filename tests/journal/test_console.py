"""What was printed, as text for a file: lines, progress bars, secrets, limits."""

from __future__ import annotations

import os
from pathlib import Path

from trainvitals.journal import console
from trainvitals.journal.console import ConsoleLog, ConsolePlace, Tidier, show


def test_a_terminal_is_shown_as_it_looked_in_the_end() -> None:
    printed = "\x1b[31mred\x1b[0m\r\n 10%|#  |\r 50%|## |\r100%|###|\nlast\x07 line\x1b]0;title\x07"
    assert show(printed) == "red\n100%|###|\nlast line"


def test_lines_come_whole_however_they_are_cut() -> None:
    tidier = Tidier()
    pieces = ["lo", "ss 0.1", "\nacc", "uracy 0.9\nrest"]
    assert [tidier.feed(piece) for piece in pieces] == ["", "", "loss 0.1\n", "accuracy 0.9\n"]
    assert tidier.flush() == "rest\n"
    assert tidier.flush() == ""


def test_of_a_progress_bar_few_states_and_the_last_are_kept() -> None:
    tidier = Tidier()
    text = "".join(tidier.feed(f"\r{percent:3d}%|{'#' * 50}|") for percent in range(100)) + tidier.feed(
        "\r100%|done|\n"
    )
    assert text.endswith("100%|done|\n")
    assert len(text) < 1000
    assert show(text) == "100%|done|\n"


def test_a_line_that_never_ends_is_cut() -> None:
    tidier = Tidier()
    text = "".join(tidier.feed("x" * 1000) for _ in range(1000)) + tidier.flush()
    assert text.count("x") == 1_000_000
    assert max(map(len, text.splitlines())) <= console.LONGEST_LINE + 1000


def test_secrets_do_not_reach_the_file(tmp_path: Path) -> None:
    log = ConsoleLog(tmp_path, "console.rank0", limit=1 << 20)
    assert log.append("login with api_key=sk-abcdef0123456789abcdef\nloss 0.5\n")
    log.close()
    assert "abcdef0123456789" not in log.path.read_text()
    assert log.path.read_text().endswith("loss 0.5\n")
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_it_never_grows_beyond_its_limit(tmp_path: Path) -> None:
    log = ConsoleLog(tmp_path, "console.rank0", limit=100_000)
    for number in range(20_000):
        log.append(f"line {number}\n")
    log.close()
    older, newer = tmp_path / "console.rank0.older.log", tmp_path / "console.rank0.log"
    assert older.stat().st_size + newer.stat().st_size <= 100_100
    lines = (older.read_text() + newer.read_text()).splitlines()
    last = int(lines[-1].split()[1])
    assert last == 19_999
    assert lines == [f"line {number}" for number in range(last - len(lines) + 1, last + 1)]


def test_a_full_disk_is_survived_and_leaves_no_torn_text() -> None:
    log = ConsoleLog(Path("/dev"), "console.rank0", limit=1000)
    log._fd = os.open("/dev/full", os.O_WRONLY)
    assert log.append("loss 1\n") is False


def test_a_folder_that_is_gone_is_survived_and_found_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log = ConsoleLog(folder, "console.rank0", limit=1000)
    assert log.append("lost\n") is False
    folder.mkdir()
    assert log.append("kept\n") is True
    assert log.path.read_text() == "kept\n"


def test_another_process_goes_on_exactly_where_the_first_was_known_to_be(tmp_path: Path) -> None:
    first = ConsoleLog(tmp_path, "console.rank0", limit=1 << 20)
    first.append("one\n")
    place = first.place
    assert place is not None
    first.append("two, which nobody remembers having written\n")
    second = ConsoleLog(tmp_path, "console.rank0", limit=1 << 20)
    second.go_back(place)
    second.append("two\n")
    assert second.path.read_text() == "one\ntwo\n"
    third = ConsoleLog(tmp_path, "console.rank0", limit=1 << 20)
    third.go_back(ConsolePlace(place.inode + 1, 4))  # rotated meanwhile: all of the new file is to be written again
    third.append("three\n")
    assert third.path.read_text() == "three\n"


def test_a_link_in_its_place_is_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "console.rank0.log").symlink_to(precious)
    log = ConsoleLog(tmp_path, "console.rank0", limit=1000)
    assert not log.append("text\n") and precious.read_text() == "mine"

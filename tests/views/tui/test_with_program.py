from __future__ import annotations

import os
import sys

import pytest
from waiting import wait_until

from trainvitals.views.tui.with_program import KEPT_LINES, PaneProgram, ProgramOutput


def fed(*pieces: bytes) -> list[str]:
    output = ProgramOutput()
    for piece in pieces:
        output.feed(piece)
    return list(output.lines())


def test_output_becomes_lines_without_escape_sequences() -> None:
    assert fed(b"a\x1b[32mgreen\x1b[0m\nb\r\n", b"half") == ["agreen", "b", "half"]


def test_a_progress_bar_is_one_line() -> None:
    assert fed(b"10%\r20%\r", b"30%") == ["30%"]
    assert fed(b"10%\r20%\r\n") == ["20%"]


def test_pieces_may_be_cut_anywhere() -> None:
    data = "é \x1b[1;31mrot\x1b[0m\nend\n".encode()
    for place in range(len(data)):
        assert fed(data[:place], data[place:]) == ["é rot", "end"], place


def test_only_the_newest_lines_are_kept() -> None:
    lines = fed(b"".join(b"%d\n" % number for number in range(KEPT_LINES + 50)))
    assert len(lines) == KEPT_LINES and lines[-1] == str(KEPT_LINES + 49)


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_is_the_programs_own(code: str, expected: int, capfdbinary) -> None:  # type: ignore[no-untyped-def]
    program = PaneProgram([sys.executable, "-c", f"print('hello', flush=True); {code}"], 80, 24)
    assert program.stay_with() == expected
    assert "hello" in program.output.lines()
    assert str(expected) in program.status()
    assert b"hello" in capfdbinary.readouterr().out


def test_leaving_the_dashboard_says_that_the_program_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """On standard error, and not if it has ended already."""
    program = PaneProgram([sys.executable, "-c", "input()"], 80, 24)
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        os.write(program._terminal, b"\n")  # now it may end

    monkeypatch.setattr("trainvitals.views.tui.with_program.print_line", hear)
    assert program.stay_with() == 0
    assert len(said) == 1 and "the program continues" in said[0]
    assert program.stay_with() == 0 and len(said) == 1


def test_the_program_has_a_terminal_of_the_given_size() -> None:
    program = PaneProgram([sys.executable, "-c", "import os; print(os.get_terminal_size())"], 77, 11)
    wait_until(lambda: program.code is not None, "its end")
    assert "columns=77, lines=11" in "".join(program.output.lines())


def test_a_program_that_does_not_exist_ends_with_127() -> None:
    program = PaneProgram(["/no/such/program"], 80, 24)
    assert program.stay_with() == 127


def test_a_program_holds_all_its_processes_and_no_other() -> None:
    child = "import os, time; print('child', os.getpid(), 'is here', flush=True); time.sleep(600)"
    code = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)\n"
        "input(); child.kill()"
    )
    program = PaneProgram([sys.executable, "-c", code], 80, 24)
    try:
        # All of the line: a terminal may hand it over in pieces.
        wait_until(lambda: "is here" in "".join(program.output.lines()), "the child's number")
        pid = int("".join(program.output.lines()).split()[1])
        assert program.holds(program.pid) and program.holds(pid)
        assert not program.holds(os.getpid()) and not program.holds(2**22)
    finally:
        os.write(program._terminal, b"\n")
    wait_until(lambda: program.code is not None, "its end")
    assert not program.holds(pid)

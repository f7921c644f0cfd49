"""Lines on standard error: for the user, and never in the way of his program."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainvitals.stderr import print_error, print_line


def test_a_line_of_ours_begins_with_our_name(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("no active alerts")
    print_error("  as it is")
    assert capsys.readouterr() == ("", "trainvitals: no active alerts\n  as it is\n")


def test_a_full_disk_behind_standard_error_raises_nothing() -> None:
    program = "from trainvitals.stderr import print_line; print_line('lost'); print('went on')"
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"went on\n"


def test_a_closed_standard_error_raises_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/null", "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    print_line("lost")
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    print_line("lost")
    assert capsys.readouterr().out == ""

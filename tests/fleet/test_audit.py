"""Who did what: lines that are only added, within a bound, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainvitals.fleet import audit as audits
from trainvitals.fleet.audit import Audit


class Clock:
    now = 1.8e9

    def __call__(self) -> float:
        return self.now


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_done_again_and_again_is_one_line_at_once_and_one_afterwards(tmp_path: Path) -> None:
    clock, file = Clock(), tmp_path / "audit.jsonl"
    audit = Audit(file, clock)
    for _ in range(300):
        audit.count("wrote", who="cluster", run="a", status=200)
        clock.now += 1
    audit.count("wrote", who="cluster", run="b", status=200)
    assert [(row["run"], row.get("times")) for row in read(file)] == [("a", None), ("b", None)]
    clock.now += audits.AGAIN_SECONDS
    audit.note("token removed", name="cluster")
    audit.count("wrote", who="cluster", run="a", status=200)
    rows = read(file)[2:]
    assert [(row["did"], row.get("times")) for row in rows] == [
        ("token removed", None),
        ("wrote", 299),
        ("wrote", None),
    ]
    assert rows[1]["since"] < rows[1]["timestamp"]
    audit.count("wrote", who="cluster", run="a", status=200)
    audit.close()
    assert read(file)[-1]["times"] == 1, "nothing that was counted is forgotten"
    assert file.stat().st_mode & 0o777 == 0o600


def test_invented_names_fill_neither_memory_nor_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audits, "MOST_COUNTED", 20)
    monkeypatch.setattr(audits, "MAX_BYTES", 20_000)
    audit = Audit(tmp_path / "audit.jsonl")
    for number in range(2000):
        audit.count("refused", project=f"{number}\n\x1b[31m" + "x" * 5000, status=401)
    assert len(audit._counted) <= 20
    files = list(tmp_path.iterdir())
    assert len(files) == 1 + audits.KEPT_FILES and all(file.stat().st_size <= 20_000 for file in files)
    assert all(len(row["project"]) <= audits.LONGEST and "\x1b" not in row["project"] for row in read(files[0]))


def test_a_log_that_cannot_be_written_is_said_once_and_stops_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = Audit(tmp_path / "missing" / "audit.jsonl")
    for _ in range(3):
        audit.note("read", who="alice")
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_container_writes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Audit(audits.STANDARD_OUTPUT).note("read", who="alice", run="")
    row = json.loads(capfdbinary.readouterr().out)
    assert row["who"] == "alice" and "run" not in row

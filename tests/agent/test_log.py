"""The agent's own log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainvitals.agent.log import MAX_ONCE, Log


def test_every_line_is_json_with_the_fields_of_its_subject(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log").bind(correlation_id="abc")
    log.info("hello", step=1)
    log.bind(run_id="r", correlation_id="def").error("broken", error="it's\nbroken")
    first, second = [json.loads(line) for line in (tmp_path / "agent.log").read_text().splitlines()]
    assert first["level"] == "info" and first["correlation_id"] == "abc" and first["step"] == 1
    assert second["run_id"] == "r" and second["correlation_id"] == "def" and second["error"] == "it's\nbroken"
    assert first["timestamp"].endswith("Z")


def test_a_long_log_is_a_few_files_of_bounded_size_and_nothing_is_torn(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log", max_bytes=4000).bind(correlation_id="abc")
    for number in range(500):
        log.info("line", number=number)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["agent.log", "agent.log.1", "agent.log.2"]
    assert all(file.stat().st_size <= 4000 for file in files)
    numbers = [json.loads(line)["number"] for file in reversed(files) for line in file.read_text().splitlines()]
    assert numbers == list(range(numbers[0], 500))


def test_a_log_is_continued_by_the_next_agent(tmp_path: Path) -> None:
    for name in ("first", "second"):
        Log(tmp_path / "agent.log").bind(correlation_id=name).info("started")
    lines = [json.loads(line) for line in (tmp_path / "agent.log").read_text().splitlines()]
    assert [line["correlation_id"] for line in lines] == ["first", "second"]


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path: Path) -> None:
    log = Log(tmp_path / "missing" / "agent.log").bind(correlation_id="abc")
    log.info("into the void")
    (tmp_path / "missing").mkdir()
    log.info("heard")
    assert len((tmp_path / "missing" / "agent.log").read_text().splitlines()) == 1


@pytest.mark.promise("the same error repeatedly", "one log line")
def test_what_comes_again_and_again_is_written_once(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log").bind(run_id="r")
    for _ in range(5):
        log.warn_once("cannot write status.json", error="full")
        try:
            raise ValueError("bad row")
        except ValueError as error:
            log.exception_once("a listener failed", error, listener="alerts")
    log.warn_once("cannot write status.json", error="gone")
    rows = [json.loads(line) for line in (tmp_path / "agent.log").read_text().splitlines()]
    assert [(row["level"], row["error"]) for row in rows] == [
        ("warning", "full"),
        ("error", "ValueError: bad row"),
        ("warning", "gone"),
    ]
    assert "test_what_comes_again" in rows[1]["traceback"] and rows[1]["run_id"] == "r"


def test_errors_that_differ_each_time_do_not_fill_the_memory(tmp_path: Path) -> None:
    log = Log(tmp_path / "agent.log").bind()
    for number in range(MAX_ONCE + 10):
        log.warn_once("a step failed", step=number)
    assert len((tmp_path / "agent.log").read_text().splitlines()) == MAX_ONCE

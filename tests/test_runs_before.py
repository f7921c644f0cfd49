"""Run folders written by the version before open and show the same numbers (`tests/data/runs_before`)."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainvitals.views.cli.main import main

BEFORE = Path(__file__).parent / "data" / "runs_before"
RUNS = {
    folder.name.split("-")[2]: folder for project in ("default", "monitor") for folder in (BEFORE / project).iterdir()
}


@pytest.fixture(params=sorted(RUNS))
def run(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """(name, folder) of a copy: reading may mend what an older version left beside the segments."""
    return request.param, Path(shutil.copytree(RUNS[request.param], tmp_path / RUNS[request.param].name))


def test_every_row_of_an_older_run_reads_as_it_did(run: tuple[str, Path], tmp_path: Path) -> None:
    name, folder = run
    written = tmp_path / "rows.jsonl"
    assert main(["export", str(folder), "--format", "jsonl", "--table", "all", "-o", str(written)]) == 0
    with gzip.open(BEFORE / "expected" / f"{name}.rows.jsonl.gz", "rt") as lines:
        expected = [json.loads(line) for line in lines]
    assert [json.loads(line) for line in written.read_text().splitlines()] == expected


def test_an_older_run_is_shown_as_it_was(run: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    name, folder = run
    assert main(["runs", "show", str(folder), "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    expected: dict[str, Any] = json.loads((BEFORE / "expected" / f"{name}.shown.json").read_text())
    # The time of one that runs goes on, and that of several attempts was the last one's.
    if expected["status"] == "running" or len(expected["attempts"]) > 1:
        assert shown["summary"].pop("seconds") > expected["summary"].pop("seconds")
    assert _common(shown, expected) == expected


def _common(shown: Any, expected: Any) -> Any:
    """`shown` without keys that the version before did not know."""
    if isinstance(shown, dict) and isinstance(expected, dict):
        return {key: _common(value, expected[key]) for key, value in shown.items() if key in expected}
    if isinstance(shown, list) and isinstance(expected, list) and len(shown) == len(expected):
        return [_common(one, other) for one, other in zip(shown, expected, strict=True)]
    return shown

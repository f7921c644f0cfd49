"""Scripts written after W&B's documentation, run by W&B itself, offline, and with one line changed by the drop-in: the
values of every step are the same."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from trainvitals.journal.folder import list_folders
from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.trackers import wandb_files
from trainvitals.trackers.importing import Import
from trainvitals.trackers.run_writing import TrackedRuns

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
NAMES = [path.stem for path in SCRIPTS]
PROGRAM = """
import os, sys
imported, place, *scripts = sys.argv[1:]
for script in scripts:
    folder = os.path.join(place, os.path.basename(script))
    os.makedirs(folder)
    os.chdir(folder)
    source = open(script).read().replace("import wandb", imported)
    exec(compile(source, script, "exec"), {"__name__": "__main__"})
"""


class Ran(NamedTuple):
    """What the scripts left, by script."""

    runs: dict[str, RunReader]
    printed: str
    reported: str
    """On standard error."""


def run_scripts(place: Path, imported: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "TRAINVITALS_"))}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, imported, str(place), *map(str, SCRIPTS)],
        env={
            **kept,
            "TRAINVITALS_AGENT": "0",
            "MPLBACKEND": "Agg",
            "TRAINVITALS_RUNTIME_DIR": str(place / "runtime"),
            **environ,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def find_runs(*roots: Path) -> dict[str, RunReader]:
    """By project, which has the name of the script."""
    found = [RunReader(folder) for root in roots for folder in list_folders(root)]
    assert sorted(reader.info.project for reader in found) == NAMES
    return {reader.info.project: reader for reader in found}


@pytest.fixture(scope="session")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("ours")
    done = run_scripts(place, "import trainvitals.wandb as wandb")
    return Ran(find_runs(*(place / path.name / "trainvitals_runs" for path in SCRIPTS)), done.stdout, done.stderr)


@pytest.fixture(scope="session")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    place = tmp_path_factory.mktemp("theirs")
    done = run_scripts(place, "import wandb", WANDB_MODE="offline", WANDB_SILENT="true", HOME=str(place))
    importing = Import("wandb", wandb_files.open_source(str(place)), TrackedRuns(place / "imported", resolve({})))
    assert all(item.error is None for item in importing.take())
    importing.settle(stopped=True)
    return Ran(find_runs(place / "imported"), done.stdout, done.stderr)


def values(reader: RunReader) -> dict[tuple[str, int], Any]:
    """The last value of each name at each step."""
    found: dict[tuple[str, int], Any] = {}
    for row in reader.rows():
        for name, value in row.items():
            if name not in ("timestamp", "step") and not name.startswith("wandb/system/"):
                found[(name, row["step"])] = value
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name != "step_metrics"])
def test_the_values_of_every_step_are_those_of_wandb(ours: Ran, theirs: Ran, name: str) -> None:
    found, expected = values(ours.runs[name]), values(theirs.runs[name])
    assert expected and found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == value or math.isclose(float(found[key]), float(value), rel_tol=1e-12), key


def test_a_step_metric_counts_the_steps(ours: Ran) -> None:
    found = values(ours.runs["step_metrics"])
    assert {step: value for (name, step), value in found.items() if name == "validation_loss"} == {
        i**2: 1 / (i + 1) for i in range(6)
    }
    assert [step for name, step in found if name == "train/loss"] == [i * 10 for i in range(6)]
    assert [step for name, step in found if name == "loss"] == [2, 5, 8, 11, 14, 17]
    summary = json.loads((ours.runs["step_metrics"].folder / "files/wandb-summary.json").read_text())
    assert summary["loss"] == {"min": 0.0} and summary["acc"] == pytest.approx({"max": 0.5, "mean": 0.25})


@pytest.mark.parametrize("name", NAMES)
def test_configuration_tags_notes_and_status_are_those_of_wandb(ours: Ran, theirs: Ran, name: str) -> None:
    found, expected = ours.runs[name].info, theirs.runs[name].info
    assert found.file.config == (expected.file.config or {})
    assert (found.project, found.status) == (expected.project, expected.status) and found.status == "finished"
    assert set(expected.file.tags) <= set(found.file.tags)
    assert found.file.notes == expected.file.notes


def test_media_are_those_of_wandb(ours: Ran, theirs: Ran) -> None:
    def count(ran: Ran) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for item in ran.runs["media"].media():
            if item.kind != "histogram":
                found[(item.kind, item.name)] = found.get((item.kind, item.name), 0) + 1
        return found

    mine = count(ours)
    assert mine.pop(("text", "page")) == 1  # W&B keeps a page, of which an import counts only that it was there
    assert mine == count(theirs) == {("image", "examples"): 6, ("image", "figure"): 1, ("table", "predictions"): 1}
    for name in ("grads", "counted"):
        (found,), (expected,) = (ran.runs["media"].histograms(name) for ran in (ours, theirs))
        assert (found["step"], found["low"], found["high"]) == (expected["step"], expected["low"], expected["high"])
        assert sum(found["counts"]) == sum(expected["counts"])
    for ran in (ours, theirs):
        captions = [item.facts["caption"] for item in ran.runs["media"].media() if item.name == "examples"]
        assert captions == ["image 0", "image 1"] * 3


def test_files_alerts_and_artifacts_are_in_the_run_folder(ours: Ran) -> None:
    folder = ours.runs["media"].folder
    assert (folder / "files/notes.txt").read_text() == "kept"
    (kept,) = folder.glob("artifacts/model/*/notes.txt")
    assert kept.stat().st_mode & 0o777 == 0o600
    (alert,) = [row for row in ours.runs["media"].events() if row.event == "alert"]
    assert (alert.message, alert.severity) == ("Low accuracy: Accuracy is low", "warning")


def test_only_what_is_left_out_is_reported(ours: Ran) -> None:
    lines = [line for line in ours.reported.splitlines() if "step 3 is before" not in line]
    assert lines == []


def test_the_summary_is_that_of_wandb(ours: Ran, theirs: Ran) -> None:
    def read(ran: Ran) -> list[str]:
        lines = [line for line in ran.printed.splitlines() if line.startswith("summary")]
        return [line.replace(".0,", ",") for line in lines]  # W&B gives 1 for 1.0

    found = read(ours)
    assert len(found) == 2 and "best_accuracy" in found[0]
    assert found == read(theirs)
    folder = ours.runs["config_and_summary"].folder
    assert json.loads((folder / "files/wandb-summary.json").read_text())["best_accuracy"] == 0.75
    for ran in (ours, theirs):
        (event,) = [row for row in ran.runs["config_and_summary"].events() if row.event == "summary"]
        assert event.data == {"best_accuracy": 0.75, "done": True}

"""A diagnosis from a run folder: which curves are read, how ranks are put together, and when it is made anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainvitals.analysis.diagnosis import diagnose
from trainvitals.analysis.findings import Finding
from trainvitals.conditions import Conditions
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName
from trainvitals.journal.reader import RunReader
from trainvitals.journal.writer import LineWriter
from trainvitals.views.data import diagnosis

BEGAN = 1_790_000_000.0


def write(
    folder: Path,
    table: str,
    rows: list[dict[str, Any]],
    *,
    rank: int | None = None,
    each: float = 1.0,
    attempt: int = 1,
) -> None:
    writer = LineWriter(folder, FileName(table, attempt, "", rank=rank))
    for place, row in enumerate(rows):
        writer.append(encode_line({"timestamp": format_time(BEGAN + place * each), **row}))
    writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "p" / "run"
    run_folder.create(place)
    run = {"format": 1, "id": "run", "project": "p", "name": "run", "status": "finished", "attempt": 1}
    run_folder.write_run(
        place, RunFile.parse({**run, "started": format_time(BEGAN), "ended": format_time(BEGAN + 1000)})
    )
    return place


def rules(found: dict[str, Any]) -> list[str]:
    return [item["rule"] for item in found["findings"]]


def test_metrics_are_found_under_their_other_names(folder: Path) -> None:
    rows = [{"step": step, "train/loss": math.nan if step > 90 else 1.0} for step in range(100)]
    write(folder, "training", rows)
    assert rules(diagnosis.describe_diagnosis(RunReader(folder), Conditions())) == ["loss.nonfinite"]


def test_where_no_step_time_was_logged_the_time_between_lines_is_taken(folder: Path) -> None:
    write(folder, "training", [{"step": step * 2, "loss": 1.0} for step in range(50)], each=0.5)
    curve = diagnosis.TrainingCurves(RunReader(folder)).get("batch_time")
    assert curve is not None and curve.y.tolist() == pytest.approx([0.25] * 49)


def test_steps_shorter_than_the_clock_shows_are_not_judged(folder: Path) -> None:
    write(folder, "training", [{"step": step, "loss": 1.0} for step in range(20_000)], each=0.00003)
    assert diagnosis.TrainingCurves(RunReader(folder)).get("batch_time") is None
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert "step.outlier" in [gap["rule"] for gap in found["not_judged"]]


def test_ranks_are_compared_by_their_own_work(folder: Path) -> None:
    for rank in range(3):
        slow = 0.3 if rank == 1 else 0.1
        rows = [
            {"step": step, "loss": 1.0, "batch_time": 0.5, "data_time": 0.01, "forward_time": slow}
            for step in range(100)
        ]
        write(folder, "training", rows, rank=rank)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    (straggler,) = [item for item in found["findings"] if item["rule"] == "straggler.rank"]
    assert straggler["subject"] == "rank 1"


def test_a_slow_rank_is_explained_by_the_gpu_it_ran_on(folder: Path) -> None:
    for rank in range(3):
        slow = 0.3 if rank == 1 else 0.1
        rows = [{"step": step, "batch_time": 0.5, "data_time": 0.01, "forward_time": slow} for step in range(100)]
        write(folder, "training", rows, rank=rank)
    sampled = [
        {"host": "node", "gpu_index": index, "gpu_uuid": f"GPU-{index}", "throttle_thermal_seconds": second / 2 * hot}
        for second in range(100)
        for index, hot in enumerate((False, False, True))
    ]
    write(folder, "gpu", sampled, each=1 / 3)

    def find_straggler(held: Sequence[int]) -> dict[str, Any]:
        status = {"host": "node", "ranks": {str(rank): {"gpus": [f"GPU-{gpu}"]} for rank, gpu in enumerate(held)}}
        run_folder.write_status(folder, Status.parse(status), "node")
        found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
        (straggler,) = [item for item in found["findings"] if item["rule"] == "straggler.rank"]
        return straggler

    straggler = find_straggler([0, 2, 1])
    assert straggler["cause"] == "gpu.throttle"
    assert straggler["evidence"][-2:] == ["100 % of what it takes longer is the forward pass", "it ran on GPU 2"]
    assert find_straggler([0, 1, 2])["cause"] is None


@pytest.mark.parametrize("names", [("step_time",), ("train/step_time", "forward_time")])
def test_ranks_are_compared_whatever_their_times_are_called(folder: Path, names: Sequence[str]) -> None:
    for rank in range(3):
        slow = 0.05 if rank == 1 else 0.03
        write(folder, "training", [{"step": step, **dict.fromkeys(names, slow)} for step in range(100)], rank=rank)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    (straggler,) = [item for item in found["findings"] if item["rule"] == "straggler.rank"]
    assert straggler["subject"] == "rank 1"


def test_advice_names_the_gpu_that_is_meant(folder: Path) -> None:
    rows = [
        {"gpu_index": index, "gpu_uuid": f"G{index}", "temperature_celsius": 91.0 if index == 5 else 60.0}
        for _ in range(90)
        for index in (4, 5)
    ]
    write(folder, "gpu", rows, each=0.5)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    (hot,) = [item for item in found["findings"] if item["rule"] == "gpu.hot"]
    assert hot["subject"] == "GPU 5" and "nvidia-smi -i 5 -pl" in hot["advice"]


def test_statistics_are_of_every_device_and_say_what_is_simulated(folder: Path) -> None:
    rows = [
        {"gpu_index": index, "gpu_uuid": f"G{index}", "simulated": 1, "utilization_percent": 50.0 + second % 3}
        for second in range(90)
        for index in range(2)
    ]
    write(folder, "gpu", rows, each=0.5)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert [(row["subject"], row["low"], row["mean"], row["high"]) for row in found["resources"]] == [
        ("GPU 0", 50.0, 51.0, 52.0),
        ("GPU 1", 50.0, 51.0, 52.0),
    ]
    assert all(row["simulated"] for row in found["resources"])
    assert any("simulated" in line for line in found["findings"][0]["evidence"])


def test_gpus_of_other_people_are_not_judged(folder: Path) -> None:
    rows = [
        {
            "host": "node",
            "gpu_index": index,
            "gpu_uuid": f"GPU-{index}",
            "power_draw_watts": 300.0,
            "utilization_percent": 95.0 if index == 0 else 0.0,
            "temperature_celsius": 92.0 if index == 5 else 60.0,
            "xid_errors_total": int(index == 5 and second > 50),
        }
        for second in range(120)
        for index in range(8)
    ]
    write(folder, "gpu", rows, each=0.125)
    everybodys = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert {"gpu.low_use", "gpu.waste", "gpu.hot", "gpu.error"} <= {*rules(everybodys)}
    status = {"host": "node", "state": "finished", "held_gpus": ["GPU-0"], "visible_gpus": ["GPU-0", "GPU-5"]}
    run_folder.write_status(folder, Status.parse(status), "node")
    own = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert rules(own) == [] and "GPU errors" in own["fine"]
    assert {row["subject"] for row in own["resources"]} == {"GPU 0"}


def test_a_run_without_gpus_is_not_judged_by_those_beside_it(folder: Path) -> None:
    write(folder, "gpu", [{"gpu_index": 0, "gpu_uuid": "G0", "utilization_percent": 0.0}] * 90)
    run_folder.write_status(folder, Status.parse({"visible_gpus": []}))
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert rules(found) == [] and "gpu.low_use" in [gap["rule"] for gap in found["not_judged"]]


def test_a_gpu_that_was_lost_is_found_by_what_its_driver_said(folder: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"gpu_index": index, "gpu_uuid": f"G{index}", "state": "ok", "utilization_percent": 95.0}
        for _ in range(60)
        for index in (0, 1)
    ]
    rows += [{"gpu_index": index, "gpu_uuid": f"G{index}", "state": "lost"} for index in (1, 2) for _ in range(9)]
    write(folder, "gpu", rows)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    lost = [(item["subject"], item["time"]) for item in found["findings"] if item["rule"] == "gpu.lost"]
    assert lost == [("GPU 1", BEGAN + 120), ("GPU 2", BEGAN + 129)]


def test_an_empty_run_is_not_called_fine(folder: Path) -> None:
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    # Its status alone shows that it did not fail.
    assert found["findings"] == [] and found["fine"] == ["failures and hangs"] and len(found["not_judged"]) > 20


def test_only_the_newest_steps_of_a_very_long_run_are_looked_at(folder: Path) -> None:
    rows = [{"step": step * 10_000, "loss": math.nan if step < 10 else 1.0} for step in range(500)]
    write(folder, "training", rows)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert found["from_step"] == 4_990_000 - diagnosis.MAX_STEPS
    assert "loss.nonfinite" not in rules(found)


def test_a_very_long_run_that_learned_before_the_steps_that_are_looked_at_is_not_said_to_never_learn(
    folder: Path,
) -> None:
    shares = [min(place / 200, 1.0) for place in range(500)]
    rows = [
        {"step": n * 10_000, "loss": 5.0 - 4.0 * share + n % 7 / 100, "accuracy": 0.3 * share + n % 5 / 1000}
        for n, share in enumerate(shares)
    ]
    write(folder, "training", rows)
    found = diagnosis.describe_diagnosis(RunReader(folder), Conditions())
    assert "loss.never_learns" not in rules(found)
    (gap,) = [row for row in found["not_judged"] if row["rule"] == "loss.never_learns"]
    assert "the first steps" in gap["needs"]


def test_a_diagnosis_is_kept_until_the_run_changes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "training", [{"step": step, "loss": 1.0} for step in range(10)])
    cache = diagnosis.DiagnosisCache()
    first = cache.read("run", RunReader(folder), Conditions())
    assert cache.read("run", RunReader(folder), Conditions()) is first
    (path,) = folder.glob("training_metrics_*.jsonl")
    with open(path, "ab") as file:
        file.write(encode_line({"timestamp": format_time(BEGAN + 99), "step": 10, "loss": math.nan}))
    assert cache.read("run", RunReader(folder), Conditions()) is first, "it is fresh enough"
    monkeypatch.setattr(diagnosis.DiagnosisCache, "FRESH", -1.0)
    assert rules(cache.read("run", RunReader(folder), Conditions())) == ["loss.nonfinite"]


def resumed(folder: Path, *, jump: float = 0.0, stays: bool = False, rate: float = 1e-4, begin: int = 600) -> None:
    """1,000 steps of which the second attempt made those from `begin` on; the first one had gone on to 650."""
    random = np.random.default_rng(0)
    for attempt, steps in ((1, range(650)), (2, range(begin, 1000))):
        rows = []
        for step in steps:
            loss = 0.5 + 2 * math.exp(-step / 300) + random.normal(0, 0.02)
            if attempt == 2:
                loss += jump * (1 if stays else math.exp((begin - step) / 60))
            rows.append({"step": step, "loss": loss, "learning_rate": rate if attempt == 2 else 1e-4})
        write(folder, "training", rows, attempt=attempt)


def findings_of(folder: Path) -> dict[str, Finding]:
    measured = diagnosis.read_measurements(RunReader(folder))
    return {finding.rule: finding for finding in diagnose(measured, Conditions()).findings}


def test_a_learning_rate_that_changed_at_a_resume_explains_the_loss(folder: Path) -> None:
    resumed(folder, jump=1.5, stays=True, rate=1e-3)
    found = findings_of(folder)
    rate, loss = found["lr.jump"], found["loss.resume"]
    assert (rate.step, rate.cause) == (600, None) and "where the run was resumed at step 600" in rate.title
    assert (loss.step, loss.named_at, loss.until, loss.severity, loss.cause) == (600, 604, None, "warning", "lr.jump")
    assert "most likely the scheduler was not restored" in loss.evidence[2]
    for rule in ("loss.divergence", "loss.spike"):
        assert found[rule].cause == "loss.resume" and "the run was resumed at step 600" in found[rule].evidence


def test_a_loss_that_jumps_at_a_resume_and_comes_back_has_lost_its_optimizer(folder: Path) -> None:
    resumed(folder, jump=1.5)
    found = findings_of(folder)
    loss = found.pop("loss.resume")
    assert loss.severity == "info" and loss.until is not None and 650 < loss.until < 850
    assert "most likely the state of the optimizer was not restored" in loss.evidence[2]
    assert "lr.jump" not in found and all(
        finding.cause == "loss.resume" for rule, finding in found.items() if rule in ("loss.spike", "loss.divergence")
    )


def test_a_warm_up_that_begins_again_is_a_schedule_that_was_not_restored(folder: Path) -> None:
    for attempt, steps in ((1, range(600)), (2, range(600, 1000))):
        rows = [{"step": step, "loss": 1.0, "learning_rate": 1e-4 * min(1, (step % 600 + 1) / 100)} for step in steps]
        write(folder, "training", rows, attempt=attempt)
    found = findings_of(folder)["lr.jump"]
    assert found.step == 600 and "from 0.0001 to 1e-6 where the run was resumed at step 600" in found.title


@pytest.mark.parametrize("begin", [0, 600])
def test_a_resume_that_restored_everything_is_no_finding(folder: Path, begin: int) -> None:
    resumed(folder, begin=begin, jump=0.0 if begin else 3.0)
    assert not {"lr.jump", "loss.resume", "loss.spike", "loss.divergence"} & set(findings_of(folder))

"""Findings in reinforcement learning: what the live rules fire on, found in the curves of the whole run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from made_runs import make_run, write
from rl_runs import FAULTS, Meanings, make_healthy, spell

sys.path.insert(0, str(Path(__file__).parent))

from trainings import CONDITIONS, Curves, training

from trainvitals.analysis.diagnosis import Diagnosis, diagnose
from trainvitals.analysis.findings import Curve, Measurements
from trainvitals.conditions.rl import ROWS
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.diagnosis import read_measurements

FINDINGS = {row.id: row.findings[0] for row in ROWS}


def judge(run: Meanings) -> Diagnosis:
    curves = {}
    for name, values in run.items():
        there = np.flatnonzero(~np.isnan(values))
        curves[name] = Curve(there + 1.0, values[there])
    return diagnose(Measurements(Curves(curves)), CONDITIONS)


def test_healthy_runs_have_no_finding_and_everything_is_fine() -> None:
    for seed in range(6):
        found = judge(make_healthy(seed))
        assert [finding.title for finding in found.findings] == []
        assert {row.title for row in ROWS} <= set(found.fine)


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_a_finding_with_its_step_and_its_advice(rule: str) -> None:
    run = make_healthy(7)
    FAULTS[rule](run)
    found = [finding for finding in judge(run).findings if finding.rule == FINDINGS[rule]]
    assert len(found) == 1
    condition = next(row for row in ROWS if row.id == rule)
    assert found[0].advice == condition.advice and found[0].severity == condition.severity
    assert found[0].step is not None and found[0].named_at is not None and found[0].step <= found[0].named_at <= 240


def test_what_is_over_is_info_and_has_its_end() -> None:
    run = make_healthy(8)
    run["rl_reward"][40:80] = 0.0
    found = judge(run).findings[0]
    assert (found.rule, found.severity, found.step, found.until) == ("rl.reward_constant", "info", 60, 81)


def test_an_ordinary_training_is_not_judged_by_it_and_nothing_is_missing() -> None:
    found = diagnose(Measurements(Curves(training())), CONDITIONS)
    assert not [gap for gap in found.not_judged if gap.rule.startswith("rl.")]
    assert not {row.title for row in ROWS} & set(found.fine)


def test_what_a_framework_does_not_log_is_not_judged() -> None:
    run = {name: make_healthy(9)[name] for name in ("rl_response_length", "rl_reward")}
    gaps = {gap.rule: gap.needs for gap in judge(run).not_judged}
    assert gaps["rl.kl_high"] == "'rl_kl' (not logged)"
    assert "rl.reward_constant" not in gaps


@pytest.mark.parametrize("framework", ["verl", "prime-rl"])
def test_the_names_of_a_framework_are_found_in_its_run(tmp_path: Path, framework: str) -> None:
    run = make_healthy(10)
    FAULTS["rl_stale"](run)
    folder = make_run(tmp_path / "project" / "run")
    write(folder, [{"step": step, **row} for step, row in spell(run, framework)])
    found = diagnose(read_measurements(RunReader(folder)), CONDITIONS)
    assert [finding.rule for finding in found.findings if finding.rule.startswith("rl.")] == ["rl.stale"]

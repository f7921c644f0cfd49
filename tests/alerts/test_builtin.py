"""What built-in rules make of losses below zero, of gradients that are rightly nothing, and of rare checkpoints."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from judging import judge

from trainvitals import settings
from trainvitals.alerts.builtin import make_rules, rules_of
from trainvitals.alerts.engine import Point
from trainvitals.analysis.diagnosis import diagnose
from trainvitals.analysis.episodes import find_rises, find_shifts
from trainvitals.analysis.findings import Curve, Measurements
from trainvitals.conditions import Conditions
from trainvitals.episodes import Episode
from trainvitals.views.cli.main import COMMANDS
from trainvitals.views.data.measured_table import TableCurves

T = 1_800_000_000.0


def train(rows: Iterable[Mapping[str, float]]) -> list[tuple[str, str]]:
    points = (Point("training", {"rank": 0}, dict(row), T + step / 10, step) for step, row in enumerate(rows))
    return [(change.state, change.rule.name) for change in judge(points)]


def train_with(thresholds: Mapping[str, float], rows: Iterable[Mapping[str, float]]) -> list[tuple[str, str, str]]:
    """With thresholds of one's own; what fires, and how severe it is."""
    points = (Point("training", {"rank": 0}, dict(row), T + step / 10, step) for step, row in enumerate(rows))
    changes = judge(points, make_rules(Conditions(thresholds)))
    return [(change.state, change.rule.name, change.rule.severity) for change in changes]


def test_a_gradient_norm_above_a_limit_of_one_s_own_alerts_from_the_start_and_throughout() -> None:
    rows = [{"gradient_norm": 15.0 + step % 3} for step in range(300)]
    assert train_with({"grad_norm_exploded": 10}, rows) == [("firing", "gradient_exploded", "warning")]
    assert train_with({}, rows) == []  # high and steady: only a limit that somebody set calls it wrong
    start = [{"gradient_norm": 50.0 if step < 10 else 1.0} for step in range(100)]
    assert train_with({"grad_norm_exploded": 10}, start) == [
        ("firing", "gradient_exploded", "warning"),
        ("resolved", "gradient_exploded", "warning"),
    ]
    assert train_with({"grad_norm_exploded": 10}, [{"gradient_norm": 9.0}] * 300) == []


def test_a_limit_of_one_s_own_holds_for_clipped_gradients_without_the_advice_to_clip_what_is_clipped() -> None:
    rows = [{"gradient_norm": 15.0, "gradient_clip_norm": 1.0}] * 300
    assert train_with({"grad_norm_exploded": 10}, rows) == [("firing", "gradient_exploded", "warning")]
    advice = {rule.name: rule.advice for rule in make_rules(Conditions({"grad_norm_exploded": 10}))}
    assert "If gradients are not clipped, clip them" in advice["gradient_exploded"]


def test_a_plateau_of_the_length_that_somebody_named_is_a_warning() -> None:
    rows = [{"loss": 5.0 - 0.001 * min(step, 2000)} for step in range(3500)]
    assert train_with({"loss_plateau_steps": 500}, rows) == [("firing", "loss_plateau", "warning")]
    assert ("firing", "loss_plateau", "warning") not in train_with({}, rows)


def test_gpu_memory_over_the_limit_that_somebody_named_is_a_warning() -> None:
    points = [
        Point("gpu", {"gpu_index": 0, "gpu_uuid": "GPU-0"}, {"memory_percent": 95.0}, T + second)
        for second in range(120)
    ]
    for thresholds, severity in (({"gpu_memory_percent": 90.0}, "warning"), ({}, "info")):
        found = judge(points, make_rules(Conditions(thresholds)))
        assert [(change.rule.name, change.rule.severity) for change in found] == [("gpu_memory_high", severity)]


def diverge(level: float, height: float, after: float, noise: float) -> list[dict[str, float]]:
    """Steady, then a slow rise by `height`, then back to `after`."""
    random = np.random.default_rng(0)
    rise = [height * min(1.0, max(0.0, (step - 1000) / 300)) if step < 2500 else after - level for step in range(4500)]
    return [{"loss": level + up + float(random.normal(0, noise))} for up in rise]


@pytest.mark.parametrize(
    ("level", "height", "after"),
    [(-100.0, 100.0, -100.0), (-100.0, 100.0, -120.0), (-1.0, 3.0, -1.0), (0.0, 2.0, 0.0), (2.0, 4.0, 2.0)],
)
def test_a_loss_that_diverges_and_comes_back_is_told_and_resolved(level: float, height: float, after: float) -> None:
    found = [item for item in train(diverge(level, height, after, 0.02 * height)) if item[1] == "loss_diverging"]
    assert found == [("firing", "loss_diverging"), ("resolved", "loss_diverging")]


def test_a_loss_that_rises_by_a_third_diverges() -> None:
    random = np.random.default_rng(0)
    loss = [3 + 2 * np.exp(-step / 200) + 0.9 * min(1.0, max(0.0, (step - 2000) / 200)) for step in range(3000)]
    assert train({"loss": float(value + random.normal(0, 0.08))} for value in loss) == [("firing", "loss_diverging")]


def test_a_loss_far_above_its_best_is_critical_as_its_finding_is() -> None:
    random = np.random.default_rng(0)
    loss = [3 + 2 * np.exp(-step / 200) + 3 * min(1.0, max(0.0, (step - 2000) / 200)) for step in range(3000)]
    found = train_with({}, ({"loss": float(value + random.normal(0, 0.08))} for value in loss))
    assert found[:2] == [("firing", "loss_diverging", "warning"), ("firing", "loss_diverged", "critical")]


def test_a_loss_that_rises_while_the_reward_does_is_no_alert() -> None:
    random = np.random.default_rng(0)
    rows = [
        {"loss": 3 + 3 * min(1.0, max(0.0, (step - 2000) / 200)) + random.normal(0, 0.08), "reward": up + noise}
        for step, (up, noise) in enumerate(zip(np.arange(3000) / 1000, random.normal(0, 0.1, 3000), strict=True))
    ]
    assert {rule for _, rule in train(rows)}.isdisjoint({"loss_diverging", "loss_diverged"})
    flat = [{**row, "reward": row["reward"] - step / 1000} for step, row in enumerate(rows)]
    assert train(flat)[0] == ("firing", "loss_diverging")


def test_data_that_is_waited_for_most_of_the_time_is_critical_as_its_finding_is() -> None:
    for wait, fired in ((0.01, []), (0.08, ["warning"]), (0.12, ["warning", "critical"])):
        found = train_with({}, [{"batch_time": 0.2, "data_time": wait}] * 600)
        assert [severity for state, _, severity in found if state == "firing"] == fired
        curves = {
            name: Curve(np.arange(600.0), np.full(600, value))
            for name, value in (("batch_time", 0.2), ("data_time", wait))
        }
        severities = [item.severity for item in diagnose(Measurements(TableCurves(curves)), Conditions()).findings]
        assert severities == (fired[-1:] if fired else [])


@pytest.mark.parametrize("ranks", [2, 4, 5])
@pytest.mark.parametrize("slow", ["data_time", "transfer_time", "forward_time"])
@pytest.mark.parametrize("left_out", [(), ("transfer_time",), ("data_time", "transfer_time")])
def test_a_rank_that_is_slow_in_its_own_work_is_told(ranks: int, slow: str, left_out: Sequence[str]) -> None:
    """`left_out`: what is not known of it, as without a loader."""
    usual = {"data_time": 0.02, "transfer_time": 0.01, "forward_time": 0.05}
    points = []
    for step in range(800):
        for rank in range(ranks):
            late = 0.06 if rank == 1 and 100 <= step < 500 else 0.0
            values = {name: seconds + late * (name == slow) for name, seconds in usual.items()}
            known = {name: seconds for name, seconds in values.items() if name not in left_out}
            points.append(Point("training", {"rank": rank}, known, T + step / 4 + rank / 100, step))
    found = [(change.state, change.rule.name, change.labels["rank"]) for change in judge(points)]
    told = [("firing", "straggler", 1), ("resolved", "straggler", 1)]
    assert found == (told if not left_out or slow == "forward_time" else [])


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize(
    ("rule", "metric", "find"),
    [("loss_diverging", "loss", find_rises), ("steps_slower", "batch_time", find_shifts)],
)
def test_an_alert_comes_at_the_step_at_which_the_finding_was_known(
    rule: str, metric: str, find: Callable[[Curve, float], list[Episode]], every: int
) -> None:
    random = np.random.default_rng(0)
    values = 3.0 + 2 * np.exp(-np.arange(3000) / 200) * (metric == "loss") + random.normal(0, 0.02, 3000)
    values[2000:] *= 1.2
    steps = np.arange(3000)[::every]
    points = [
        Point("training", {"rank": 0}, {metric: float(values[step])}, 1e9 + 0.1 * step, int(step)) for step in steps
    ]
    changes = [change for change in judge(points) if change.rule.name == rule]
    share = {"loss": 0.1, "batch_time": 0.04}[metric]
    (known,) = find(Curve(steps.astype(np.float64), values[::every]), share)
    assert [(change.state, change.step) for change in changes] == [("firing", known.named_at)]
    assert 2000 < known.named_at <= 2200
    assert f"since about step {known.since}" in changes[0].message


@pytest.mark.parametrize("level", [-100.0, -1.0, 0.5, 100.0])
def test_a_spike_is_told_and_resolved_whatever_the_sign_of_the_loss(level: float) -> None:
    random = np.random.default_rng(0)
    size = abs(level)
    rows = [
        {"loss": level + (2 * size if 600 <= step < 610 else 0.0) + float(random.normal(0, 0.02 * size))}
        for step in range(1000)
    ]
    assert train(rows) == [("firing", "loss_spike"), ("resolved", "loss_spike")]


@pytest.mark.parametrize(("start", "level"), [(0.0, -100.0), (400.0, 100.0)])
def test_a_jump_that_is_small_against_the_loss_is_no_spike_on_either_side_of_zero(start: float, level: float) -> None:
    """Thirty times the noise, and a tenth of the loss."""
    random = np.random.default_rng(0)
    falling = [level + (start - level) * 0.99**step for step in range(1000)]
    rows = [
        {"loss": value + (10.0 if 600 <= step < 610 else 0.0) + float(random.normal(0, 0.3))}
        for step, value in enumerate(falling)
    ]
    assert train(rows) == []


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_loss_that_falls_from_above_or_below_zero_is_healthy(sign: float) -> None:
    random = np.random.default_rng(0)
    fall = [sign * 50.0 - 100.0 * (1 - 0.998**step) for step in range(4000)]
    rows = [{"loss": value + float(random.normal(0, 5.0)), "gradient_norm": 3.0} for value in fall]
    assert train(rows) == []


def explode(**more: float) -> list[dict[str, float]]:
    """Norms of 1, of 25 for ten steps now and then."""
    random = np.random.default_rng(0)
    return [
        {
            "loss": 1 + float(random.normal(0, 0.02)),
            "gradient_norm": (25.0 if step > 300 and step % 300 < 10 else 1.0) + float(random.normal(0, 0.05)),
            **more,
        }
        for step in range(1500)
    ]


def test_large_gradients_are_reported_where_nothing_clips_them() -> None:
    assert {name for _, name in train(explode())} == {"gradient_exploded", "gradient_outlier"}


def test_large_gradients_that_are_clipped_are_not_reported() -> None:
    assert train(explode(gradient_clip_norm=1.0)) == []


def test_clipped_gradients_are_reported_once_the_loss_moves_too_without_the_advice_to_clip() -> None:
    rows = explode(gradient_clip_norm=0.5)
    for row in rows[900:910]:
        row["loss"] += 3
    found = train(rows)
    assert ("firing", "gradient_over_clip") in found
    assert {name for _, name in found} == {"gradient_over_clip", "loss_spike"}
    assert "clip gradients" not in Conditions()["gradient_over_clip"].advice.lower()


def test_the_loss_of_a_policy_gradient_is_not_judged_like_one_with_a_floor() -> None:
    random = np.random.default_rng(0)
    rows = [{"loss": float(random.standard_t(2)) * (1 + step / 300)} for step in range(4000)]
    assert train(rows) == []


def test_a_gradient_of_nothing_is_right_where_the_loss_is_nothing() -> None:
    hinge = [max(0.0, 1 - step / 500) for step in range(1500)]
    assert train({"loss": value, "gradient_norm": value} for value in hinge) == []
    for dead in (0.0, 1e-9):
        rows = [{"loss": 2.3, "gradient_norm": dead if step > 300 else 1.0} for step in range(600)]
        assert train(rows) == [("firing", "gradient_vanished")]
    alone = [{"gradient_norm": 1e-9 if step > 300 else 1.0} for step in range(600)]
    assert train(alone) == [("firing", "gradient_vanished")]


def checkpoints(times: Iterable[float], until: int) -> list[tuple[str, str]]:
    waiting = sorted(times)
    points, before = [], None
    for second in range(until):
        points.append(Point("training", {"rank": 0}, {"loss": 1.0 / (1 + second)}, T + second, second))
        while waiting and waiting[0] <= second:
            now = waiting.pop(0)
            values = {"total": float(len(points))} | ({} if before is None else {"interval": now - before})
            points.append(Point("event", {"event": "checkpoint"}, values, T + now))
            before = now
    return [(change.state, change.rule.name) for change in judge(points)]


def test_no_new_best_for_some_epochs_is_no_overdue_checkpoint() -> None:
    epochs = [30.0 * epoch for epoch in range(7)]
    assert checkpoints(epochs, 1200) == []
    now_and_then = [30.0 * epoch for epoch in (0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 13, 14, 19)]
    assert checkpoints(now_and_then, 1800) == []


def test_a_checkpoint_that_came_like_clockwork_and_does_not_is_overdue() -> None:
    assert checkpoints([30.0 * n for n in range(12)], 1200) == [("firing", "checkpoint_overdue")]


def test_commands_that_advice_names_exist() -> None:
    advice = " ".join(rule.advice for rule in rules_of(settings.resolve()))
    named = set(re.findall(r"trainvitals (\w+)", advice))
    assert named and named <= {name for name, _, _ in COMMANDS}

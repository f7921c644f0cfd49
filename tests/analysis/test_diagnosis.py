"""Every detector finds its fault, says nothing of a healthy run, and says what it lacks."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import trainings
from trainings import (
    CONDITIONS,
    SECONDS,
    STEPS,
    Curves,
    by_step,
    find,
    gpu,
    healthy,
    host,
    process,
    ranks,
    rules,
    training,
    with_curves,
)

from trainvitals.analysis.diagnosis import DETECTORS, diagnose
from trainvitals.analysis.findings import INTERVALS, Curve, Device, Finding, Measurements, RankPlace, RunEnding
from trainvitals.analysis.speed import find_periods
from trainvitals.conditions import Conditions
from trainvitals.journal.documents.cause import STALLED, Cause
from trainvitals.journal.identity import TRAINER, Participant
from trainvitals.prices import Prices

LOSS = training()["loss"].y
STEP_TIME = training()["batch_time"].y


ORDINARY = [detector for detector in DETECTORS if detector.applies(Measurements(Curves({})))]
"""Those that judge every training."""


@pytest.mark.parametrize("seed", range(6))
def test_a_healthy_run_has_no_findings_and_everything_is_judged(seed: int) -> None:
    found = diagnose(healthy(seed), CONDITIONS)
    assert [item for item in found.findings if item.severity != "info"] == []
    assert [gap.rule for gap in found.not_judged] == []
    assert len(found.fine) + len(rules(found)) == len(ORDINARY)


def test_without_any_input_nothing_is_fine_and_each_says_what_it_needs() -> None:
    found = diagnose(Measurements(Curves({})), CONDITIONS)
    assert found.findings == () and found.fine == ()
    assert [gap.rule for gap in found.not_judged] == [detector.rule for detector in ORDINARY]
    assert all(gap.needs for gap in found.not_judged)


@pytest.mark.parametrize("values", [[], [1.0], [math.nan], [math.nan] * 500, [1.0] * 500, [math.inf, -math.inf] * 300])
def test_odd_curves_are_judged_without_a_mistake(values: list[float]) -> None:
    odd = by_step(np.array(values, dtype=np.float64))
    curves = dict.fromkeys(training(), odd)
    device = gpu()
    broken = replace(device, curves=dict.fromkeys(device.curves, odd))
    found = diagnose(
        Measurements(
            Curves(curves), {Participant(rank=0): odd, Participant(rank=1): odd}, [broken], [broken], [broken]
        ),
        CONDITIONS,
    )
    assert len({item.rule for item in found.findings}) + len(found.fine) + len(found.not_judged) >= len(ORDINARY) - 2


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 900), st.sampled_from([1e-300, 1e-9, 1.0, 1e9, 1e300]))
def test_any_numbers_give_an_answer(seed: int, count: int, size: float) -> None:
    random = np.random.default_rng(seed)

    def make() -> Curve:
        values = random.normal(0, 1, count) * size
        odd = random.random(count)
        values[odd < 0.02] = math.nan
        values[odd > 0.99] = math.inf
        values[(odd > 0.5) & (odd < 0.6)] = 0.0
        return Curve(np.sort(random.integers(0, 2000, count)).astype(np.float64), values)

    curves = {name: make() for name in training()}
    names = [*gpu().curves, *host().curves, *process().curves]
    device = replace(gpu(), curves={name: make() for name in names})
    with np.errstate(all="ignore"):
        measured = Measurements(
            Curves(curves),
            {Participant(rank=0): make(), Participant(rank=1): make()},
            [device],
            [device],
            [device],
            True,
        )
        found = diagnose(measured, CONDITIONS)
    assert all(item.title and item.evidence and item.advice for item in found.findings)


def test_nan_in_the_loss() -> None:
    values = LOSS.copy()
    values[2000:] = math.nan
    found = find(with_curves(loss=by_step(values)), "loss.nonfinite")
    assert found.step == 2000 and found.severity == "critical"
    assert "NaN at step 2,000" in found.title
    assert "1,000 values of 3,000" in found.evidence[0]


def test_a_loss_that_comes_back_from_nan_is_a_warning() -> None:
    values = LOSS.copy()
    values[700] = math.inf
    found = find(with_curves(loss=by_step(values)), "loss.nonfinite")
    assert found.severity == "warning" and "recovered" in found.title


def test_divergence() -> None:
    values = LOSS.copy()
    values[2000:] *= 1 + np.linspace(0, 1.2, STEPS - 2000)
    found = find(with_curves(loss=by_step(values)), "loss.divergence")
    assert found.severity == "critical"
    assert found.step is not None and 1900 < found.step < 2300


def test_a_spike_is_told_with_its_step_and_recovery() -> None:
    values = LOSS.copy()
    values[1500:1503] *= 3
    found = find(with_curves(loss=by_step(values)), "loss.spike")
    assert found.step in (1500, 1501, 1502) and found.severity == "info"
    assert "recovered" in found.evidence[1]


def test_a_spike_that_never_comes_down_has_not_recovered() -> None:
    """The usual level comes up to it, which is no recovery."""
    step = np.arange(600)
    values = 2 * np.exp(-step / 200) + np.random.default_rng(1).normal(0, 0.02, 600)
    values[300:] += np.exp((step[300:] - 300) / 25)
    found = find(with_curves(loss=by_step(values)), "loss.spike")
    assert "has not recovered" in found.evidence
    assert "at step" not in found.evidence[0], "the step where it begins is not that of its highest value"


def test_a_loss_many_times_as_high_is_told_as_a_ratio() -> None:
    values = LOSS.copy()
    values[2000:] *= 300
    found = find(with_curves(loss=by_step(values)), "loss.divergence")
    assert found.evidence[0].endswith("x)") and "%" not in found.evidence[0]


@pytest.mark.parametrize(("values_each", "severity"), [(1, "info"), (2, "warning")])
def test_many_spikes_are_unstable_if_the_next_values_show_them_too(values_each: int, severity: str) -> None:
    values = LOSS.copy()
    for start in (1500, 1600, 1700, 1800):
        values[start : start + values_each] *= 4
    found = find(with_curves(loss=by_step(values)), "loss.spike")
    assert found.severity == severity and found.values["count"] >= 4


def test_a_plateau_and_the_same_after_a_decayed_learning_rate() -> None:
    random = np.random.default_rng(0)
    flat = by_step(2.0 + 3 * np.exp(-np.arange(6000) / 200) + random.normal(0, 0.03, 6000))
    assert find(with_curves(loss=flat), "loss.plateau").severity == "info"
    decayed = by_step(np.linspace(1e-3, 1e-6, 6000))
    assert "loss.plateau" not in rules(diagnose(with_curves(loss=flat, learning_rate=decayed), CONDITIONS))


def test_overfitting_names_the_best_step() -> None:
    values = np.concatenate([np.linspace(3, 2, 8), np.linspace(2.05, 2.6, 7)])
    found = find(with_curves(val_loss=by_step(values, 200)), "loss.overfit")
    assert found.step == 1400 and found.severity == "warning"


@pytest.mark.parametrize("name", ["val_accuracy", "val/acc@5", "val/rouge1", "val_mAP50", "eval/reward"])
def test_overfitting_with_a_metric_that_still_improves_is_overconfidence(name: str) -> None:
    found = find_overfit(name)
    assert found.severity == "info" and f"{name} is still improving: overconfident" in found.evidence[-1]


@pytest.mark.parametrize("name", ["val/bitmap_bytes", "val/vacc_seconds", "val/temperature"])
def test_overfitting_with_a_number_that_rises_and_need_not_is_overfitting(name: str) -> None:
    assert find_overfit(name).severity == "warning"


def find_overfit(name: str) -> Finding:
    """While this rises."""
    values = np.concatenate([np.linspace(3, 2, 8), np.linspace(2.05, 2.6, 7)])
    rising = by_step(np.linspace(0.5, 0.9, 15), 200)
    return find(
        healthy(training=Curves({**training(), "val_loss": by_step(values, 200), name: rising})), "loss.overfit"
    )


def test_exploding_gradients() -> None:
    values = training()["gradient_norm"].y.copy()
    values[2000:2010] = 400
    found = find(with_curves(gradient_norm=by_step(values)), "grad.explode")
    assert found.step == 2000 and found.severity == "warning"
    assert any("last" in line for line in found.evidence), "the largest layer is named"
    # As the alerts: far above a usual value that is small, it is not large.
    small = find(with_curves(gradient_norm=by_step(values / 50)), "grad.explode")
    assert small.step == 2000 and small.severity == "info"


def test_gradients_that_are_clipped_are_not_called_exploding() -> None:
    values = training()["gradient_norm"].y.copy()
    values[2000:2010] = 400
    clipped = with_curves(gradient_norm=by_step(values), gradient_clip_norm=by_step(np.ones(STEPS)))
    assert "grad.explode" not in rules(diagnose(clipped, CONDITIONS))


def test_the_loss_of_a_policy_gradient_has_neither_spikes_nor_a_divergence() -> None:
    random = np.random.default_rng(0)
    loss = random.standard_t(2, STEPS) * np.linspace(1, 10, STEPS)
    assert not {"loss.spike", "loss.divergence"} & set(rules(diagnose(with_curves(loss=by_step(loss)), CONDITIONS)))


def test_layers_that_learn_nothing() -> None:
    dead = by_step(np.full(30, 1e-9), 100)
    found = find(with_curves(**{"gradient_norm/first": dead}), "grad.vanish")
    assert "first" in found.evidence[1] and "last" not in found.evidence[1]
    assert (found.step, found.named_at) == (0, 400), "by the fifth sample"
    dies = by_step(np.where(np.arange(60) < 30, 1.0, 0.0), 100)
    found = find(with_curves(**{"gradient_norm/first": dies}), "grad.vanish")
    assert (found.step, found.named_at) == (3000, 4000), "when most of twenty samples are zero"


def test_a_gradient_is_small_beside_the_weights_of_its_layer() -> None:
    def judge(gradient: float, weight: float) -> bool:
        curves = {"gradient_norm/first": by_step(np.full(30, gradient), 100)}
        curves["weight_norm/first"] = by_step(np.full(30, weight), 100)
        return "grad.vanish" in rules(diagnose(with_curves(**curves), CONDITIONS))

    assert judge(1e-6, 100.0) and judge(0.0, 0.0)
    assert not judge(1e-9, 1e-3)


def test_waiting_for_data() -> None:
    wait = np.full(STEPS, 0.2)
    found = find(with_curves(data_time=by_step(wait), batch_time=by_step(STEP_TIME + 0.2)), "data.bound")
    assert found.severity == "critical"
    assert found.values["share"] == pytest.approx(0.51, abs=0.03)
    assert found.step is not None and found.step < 60 and found.named_at is not None and found.named_at < 60
    wait[:1000] = 0.0
    found = find(with_curves(data_time=by_step(wait), batch_time=by_step(STEP_TIME + wait)), "data.bound")
    assert found.step is not None and abs(found.step - 1000) <= 40
    assert found.named_at is not None and 1000 < found.named_at < 1500


def test_time_between_the_steps() -> None:
    rest = np.full(STEPS, 0.1)
    curves = {"other_time": by_step(rest), "batch_time": by_step(STEP_TIME + 0.1)}
    found = find(with_curves(**curves), "step.other")
    assert found.severity == "warning"
    curves["completions/mean_length"] = by_step(np.full(STEPS, 100.0))  # it generates responses in that time
    assert "step.other" not in rules(diagnose(with_curves(**curves), CONDITIONS))


def test_time_outside_the_model_of_a_loop_without_a_loader_may_be_data_loading() -> None:
    curves = {"batch_time": by_step(STEP_TIME + 0.1), "other_time": by_step(np.full(STEPS, 0.1))}
    found = find(Measurements(Curves(curves)), "data.unseen")
    assert "watch.batches" in found.advice and found.severity == "warning"
    assert "step.other" not in rules(diagnose(Measurements(Curves(curves)), CONDITIONS))
    curves["completions/mean_length"] = by_step(np.full(STEPS, 100.0))
    assert "data.unseen" not in rules(diagnose(Measurements(Curves(curves)), CONDITIONS))


def test_slow_steps_at_regular_intervals_and_at_random() -> None:
    regular = STEP_TIME.copy()
    regular[100::100] *= 6
    found = find(with_curves(batch_time=by_step(regular)), "step.periodic")
    assert "Every 100 steps" in found.title
    random = STEP_TIME.copy()
    random[np.random.default_rng(3).choice(STEPS, 60, replace=False)] *= 6
    assert find(with_curves(batch_time=by_step(random)), "step.outlier").values["lost"] > 0.05


@pytest.mark.parametrize(("factor", "text"), [(1.08, "8.0 % slower"), (1.5, "50 % slower"), (24, "24x slower")])
def test_steps_that_became_slower_for_good(factor: float, text: str) -> None:
    values = np.full_like(STEP_TIME, 0.2)
    values[1800:] *= factor
    found = find(with_curves(batch_time=by_step(values)), "step.fail_slow")
    assert found.step is not None and abs(found.step - 1800) <= 100
    assert f"been {text} since" in found.title


def test_steps_that_became_a_little_slower_in_noise() -> None:
    values = STEP_TIME.copy()
    values[1800:] *= 1.08
    found = find(with_curves(batch_time=by_step(values)), "step.fail_slow")
    assert found.step is not None and abs(found.step - 1800) <= 100


def test_a_slow_phase_that_is_over_is_no_warning_and_says_when_it_ended() -> None:
    values = STEP_TIME.copy()
    values[1200:1500] *= 1.5
    (found,) = [
        item
        for item in diagnose(with_curves(batch_time=by_step(values)), CONDITIONS).findings
        if item.rule == "step.fail_slow"
    ]
    assert found.severity == "info"
    assert abs((found.step or 0) - 1200) <= 10 and abs((found.until or 0) - 1500) <= 10


def test_a_slow_rank_is_named() -> None:
    found = find(healthy(rank_steps=ranks(slow=2)), "straggler.rank")
    assert found.subject == "rank 2" and found.values["ratio"] == pytest.approx(1.5, abs=0.1)


@pytest.mark.parametrize("hosts", [2, 3])
def test_a_host_whose_ranks_are_all_slow_is_named_with_what_is_odd_there(hosts: int) -> None:
    even = ranks(count=4 * hosts)
    curves, places = {}, {}
    for participant, curve in even.items():
        place = participant.rank // 4
        curves[participant] = Curve(curve.x, curve.y * (1.6 if place == 1 else 1.0))
        places[participant.title] = RankPlace(f"node{place}")
    machines = [replace(host(), title=f"node{place}") for place in range(hosts)]
    machines[1] = replace(host(cpu_usage_percent=np.full(SECONDS, 98.0)), title="node1")
    measured = healthy(rank_steps=curves, places=places, hosts=machines)
    found = find(measured, "straggler.host")
    assert found.subject == "node1" and found.title.startswith("All 4 ranks of node1 take 1.")
    assert found.values["ratio"] == pytest.approx(1.6, rel=0.03)
    assert found.about == ("rank 4", "rank 5", "rank 6", "rank 7")
    assert any(line.startswith("CPU use on node1: 98 %, on the others 4") for line in found.evidence)
    assert "straggler.rank" not in rules(diagnose(measured, CONDITIONS))
    # One of its ranks alone is that rank.
    alone = {who: curve if who.rank == 5 else even[who] for who, curve in curves.items()}
    assert find(healthy(rank_steps=alone, places=places, hosts=machines), "straggler.rank").subject == "rank 5"


def test_low_use_says_whose_gpus_wait_most() -> None:
    waits = [replace(process(rank, gpu_waiting_percent=np.full(SECONDS, 15.0 + 45 * rank))) for rank in (0, 1)]
    measured = healthy(gpus=[gpu(0), gpu(1, utilization_percent=np.full(SECONDS, 40.0))], processes=waits)
    line = "no kernel ran on the GPUs of rank 1 60 % of the time, on those of rank 0 15 %"
    assert line in find(measured, "gpu.low_use").evidence


def test_ranks_are_compared_with_those_of_their_own_role() -> None:
    slower_role = {who: by_step(5 * curve.y) for who, curve in ranks(role="rollout").items()}
    assert "straggler.rank" not in rules(diagnose(healthy(rank_steps=ranks() | slower_role), CONDITIONS))
    found = find(healthy(rank_steps=ranks() | ranks(slow=1, role="rollout")), "straggler.rank")
    assert found.subject == "rollout 1" and found.title.startswith("Rollout 1 takes")


def low_use() -> np.ndarray:
    return np.clip(np.random.default_rng(0).normal(30, 10, SECONDS), 0, 100)


def test_low_use_quotes_the_gpu_that_it_names() -> None:
    idle = gpu(3, utilization_percent=np.full(SECONDS, 2.0))
    found = find(healthy(gpus=[*(gpu(index) for index in range(3)), idle]), "gpu.low_use")
    assert found.subject == "GPU 3" and found.severity == "warning"
    assert found.evidence[0] == "utilization p5 / p50 / p95: 2 / 2 / 2 %"


def test_low_use_of_several_gpus_quotes_each_the_worst_first() -> None:
    levels = (60.0, 30.0, 50.0, 0.0, 55.0, 40.0)
    gpus = [gpu(index, utilization_percent=np.full(SECONDS, level)) for index, level in enumerate(levels)]
    found = find(healthy(gpus=gpus), "gpu.low_use")
    assert found.severity == "warning" and found.values == {"p5": 0.0, "p50": 0.0, "p95": 0.0}
    assert [line.partition(":")[0] for line in found.evidence[:5]] == [
        *(f"GPU {index}" for index in (3, 1, 5, 2)),
        "likely cause",
    ]
    assert found.evidence[1] == "GPU 1: utilization p5 / p50 / p95: 30 / 30 / 30 %"
    assert found.subject.startswith("GPU 0, GPU 1, ")


def test_half_an_hour_of_low_use_is_found_where_the_alert_fired_though_the_rest_was_busy() -> None:
    def used(minutes: int) -> Device:
        values = np.concatenate([np.full(36_000, 95.0), np.full(60 * minutes, 15.0), np.full(36_000, 95.0)])
        return Device("GPU 0", {"utilization_percent": Curve(np.arange(len(values)) + 1.7e9, values)})

    found = find(healthy(gpus=[used(40)]), "gpu.low_use")
    assert (found.title, found.severity) == ("GPU 0 is underused", "info")
    assert found.evidence[0].endswith("15 % over the lowest 30 minutes")
    assert "gpu.low_use" not in rules(diagnose(healthy(gpus=[used(15)]), CONDITIONS))


def test_low_use_blames_the_data_loader() -> None:
    wait = np.full(STEPS, 0.2)
    curves = {**training(), "data_time": by_step(wait), "batch_time": by_step(STEP_TIME + 0.2)}
    measured = healthy(training=Curves(curves), gpus=[gpu(utilization_percent=low_use())])
    found = find(measured, "gpu.low_use")
    assert "waiting for data" in found.evidence[1]


def test_low_use_blames_storage_and_the_cpu() -> None:
    busy = np.full(SECONDS, 80.0)
    low = [gpu(utilization_percent=low_use())]
    stored = healthy(gpus=low, hosts=[host(cpu_iowait_percent=busy)])
    cause = find(stored, "gpu.low_use").evidence[1]
    assert cause == "likely cause: the host waits for storage (I/O wait above 50 % in 98 % of the samples)"
    assert find(stored, "io.bound").severity == "warning"
    pinned = healthy(gpus=low, hosts=[host(cpu_usage_percent=busy + 18)])
    assert "CPUs" in find(pinned, "gpu.low_use").evidence[1]
    assert find(pinned, "cpu.bound").values["cpu_usage_percent"] > 0.9
    single = healthy(gpus=low, processes=[process(main_cpu_percent=busy + 19.5)])
    assert "one Python thread" in find(single, "gpu.low_use").evidence[1]


def crowded(others: float, own: float, pressure: float, has_gpus: bool = False) -> Measurements:
    """A machine of four CPUs; shares of all of them in percent."""
    used = {"cpu_usage_percent": others + own, "cpu_count": 4.0, "pressure_cpu_percent": pressure}
    hosts = [host(**{name: np.full(SECONDS, value) for name, value in used.items()})]
    ours = [process(cpu_percent=np.full(SECONDS, own * 4), main_cpu_percent=np.full(SECONDS, own * 4))]
    return healthy(hosts=hosts, processes=ours, gpus=[gpu()] if has_gpus else [])


def test_other_programs_on_the_cpus_explain_what_is_slow() -> None:
    wait = {"data_time": by_step(np.full(STEPS, 0.05)), "batch_time": by_step(STEP_TIME + 0.05)}
    measured = replace(crowded(90.0, 10.0, 95.0), training=Curves({**training(), **wait}))
    found = diagnose(measured, CONDITIONS).findings
    assert [(item.rule, item.cause) for item in found[:2]] == [("cpu.contended", None), ("data.bound", "cpu.contended")]
    assert found[0].title == "Other programs use 90 % of the CPUs, and the training waits for one"


@pytest.mark.parametrize(
    "measured",
    [
        crowded(20.0, 80.0, 95.0),  # its own workers
        crowded(60.0, 40.0, 5.0),  # there is room for both
        crowded(40.0, 10.0, 95.0),
        crowded(90.0, 10.0, 95.0, has_gpus=True),  # the GPUs are busy all the same
    ],
)
def test_a_busy_machine_that_does_no_harm_is_no_finding(measured: Measurements) -> None:
    assert "cpu.contended" not in rules(diagnose(measured, CONDITIONS))


def test_bursts() -> None:
    values = np.tile(np.repeat([98.0, 2.0], 20), SECONDS // 40)
    assert "busy and idle" in find(healthy(gpus=[gpu(utilization_percent=values)]), "gpu.low_use").title


def test_throttling_tells_the_share_of_time_and_the_temperature() -> None:
    held = np.cumsum(np.tile([0.0, 0.0, 0.0, 0.6], SECONDS // 4))
    hot = np.full(SECONDS, 92.0)
    found = find(healthy(gpus=[gpu(throttle_thermal_seconds=held, temperature_celsius=hot)]), "gpu.throttle")
    assert found.severity == "critical" and found.values["share"] == pytest.approx(0.15, abs=0.01)
    assert "92 °C" in found.evidence[1]


@pytest.mark.parametrize(("degrees", "severity"), [(85.0, "warning"), (88.0, "critical"), (92.0, "critical")])
def test_a_gpu_is_hot_above_the_threshold_and_critical_from_its_own_limit_on(degrees: float, severity: str) -> None:
    found = find(healthy(gpus=[gpu(temperature_celsius=np.full(SECONDS, degrees))]), "gpu.hot")
    assert found.severity == severity and f"{degrees:.0f} °C" in found.evidence[0]


@pytest.mark.parametrize(
    ("rule", "changed", "measured"),
    [
        ("gpu.hot", {"gpu_temperature_celsius": 50}, healthy()),
        ("gpu.memory_full", {"gpu_memory_percent": 60}, healthy()),
        ("gpu.waste", {"gpu_idle_percent": 99}, healthy()),
        ("gpu.low_use", {"gpu_low_use_p95_percent": 100.1}, healthy()),
        ("data.bound", {"data_share_notable_percent": 0.5}, healthy()),
        ("straggler.rank", {"straggler_factor": 1.1}, healthy(rank_steps=ranks(slow=2, factor=1.2))),
    ],
)
def test_a_changed_threshold_changes_the_finding(rule: str, changed: dict[str, float], measured: Measurements) -> None:
    assert rule not in rules(diagnose(measured, CONDITIONS))
    assert rule in rules(diagnose(measured, Conditions(changed)))


def test_errors_count_from_the_start_of_the_run() -> None:
    errors = np.full(SECONDS, 3.0)
    errors[600:] = 5.0
    found = find(healthy(gpus=[gpu(ecc_uncorrected_total=errors)]), "gpu.error")
    assert "+2" in found.evidence[0] and "10 min" in found.evidence[0]


@pytest.mark.parametrize(
    ("states", "severity", "title"),
    [
        ([(0, "ok"), (900, "lost")], "critical", "GPU 1 is lost"),
        ([(0, "lost")], "critical", "GPU 1 is lost"),
        ([(0, "ok"), (300, "unresponsive"), (900, "lost")], "critical", "GPU 1 is lost"),
        ([(0, "ok"), (900, "reset required")], "critical", "GPU 1 needs a reset"),
        ([(0, "ok"), (900, "unresponsive")], "critical", "GPU 1 does not respond"),
        ([(0, "ok"), (600, "lost"), (900, "ok")], "warning", "GPU 1 was lost for 5.0 min"),
        ([(0, "ok"), (600, "unresponsive"), (630, "ok")], "warning", "GPU 1 did not respond for 30 s"),
        ([(0, "ok"), (600, "unresponsive"), (603, "ok")], None, ""),
        ([(0, "ok"), (600, "asleep")], None, ""),
    ],
)
def test_a_gpu_that_its_driver_lost(states: list[tuple[float, str]], severity: str | None, title: str) -> None:
    lost = replace(gpu(1), states=[(trainings.START + at, word) for at, word in states])
    measured = healthy(
        gpus=[gpu(0), lost], places={f"rank {n}": RankPlace("", frozenset({f"GPU {n}"})) for n in (0, 1)}
    )
    if severity is None:
        assert "gpu.lost" not in rules(diagnose(measured, CONDITIONS))
        return
    found = find(measured, "gpu.lost")
    assert (found.severity, found.title, found.subject) == (severity, title, "GPU 1")
    assert "used by rank 1" in found.evidence and found.advice


def test_a_lost_gpu_explains_the_hang_of_the_run_and_its_xid_the_loss() -> None:
    errors = np.zeros(SECONDS)
    errors[900:] = 1.0
    lost = replace(
        gpu(1, xid_errors_total=errors, xid_last=79 * errors),
        states=[(trainings.START, "ok"), (trainings.START + 901, "lost")],
    )
    stall = Cause(kind=STALLED, seconds=50.0, rank=0)
    measured = healthy(gpus=[gpu(0), lost], ending=RunEnding("hung", stall, stall=stall, world_size=2))
    story = [(item.rule, item.cause) for item in diagnose(measured, CONDITIONS).findings[:3]]
    assert story == [("gpu.error", None), ("gpu.lost", "gpu.error"), ("end.hang", "gpu.lost")]


@pytest.mark.parametrize(("share", "severity"), [(0.5, "warning"), (0.2, "info"), (0.05, None)])
def test_a_step_that_waits_for_its_batch_to_get_to_the_gpu(share: float, severity: str | None) -> None:
    copy = by_step(STEP_TIME * share / (1 - share))
    measured = with_curves(transfer_time=copy, batch_time=by_step(STEP_TIME + copy.y))
    if severity is None:
        assert "transfer.bound" not in rules(diagnose(measured, CONDITIONS))
        return
    found = find(measured, "transfer.bound")
    assert found.severity == severity and found.values["share"] == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize(("share", "severity"), [(0.5, "warning"), (0.2, "info"), (0.05, None)])
def test_a_step_that_waits_for_other_ranks_by_any_name(share: float, severity: str | None) -> None:
    wait = by_step(STEP_TIME * share / (1 - share))
    found = diagnose(with_curves(**{"time/comm": wait}, batch_time=by_step(STEP_TIME + wait.y)), CONDITIONS)
    assert [item.severity for item in found.findings if item.rule == "comm.bound"] == [severity] * bool(severity)
    milliseconds = diagnose(with_curves(comm_time=by_step(STEP_TIME * 300)), CONDITIONS)
    (gap,) = [gap for gap in milliseconds.not_judged if gap.rule == "comm.bound"]
    assert gap.needs == "'communication_time' in seconds (found more than a whole step)"
    assert not [gap for gap in diagnose(healthy(), CONDITIONS).not_judged if gap.rule == "comm.bound"]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(
    ("name", "rule"),
    [("checkpoint_time", "checkpoint.bound"), ("eval_runtime", "evaluation.bound"), ("logging_time", "logging.bound")],
)
def test_what_is_done_seldom_counts_whether_step_times_include_it_or_not(name: str, rule: str, inside: bool) -> None:
    def judge(seconds: float) -> dict[str, Finding]:
        steps = STEP_TIME.copy()
        if inside:
            steps[::300] += seconds
        curves = {name: by_step(np.full(10, seconds), 300), "batch_time": by_step(steps)}
        found = diagnose(with_curves(**curves), CONDITIONS).findings
        return {item.rule: item for item in found}

    total = float(STEP_TIME.sum())
    found = judge(0.06 * total)  # each of ten times
    assert found[rule].severity == ("info" if name == "eval_runtime" else "warning")
    assert found[rule].values["share"] == pytest.approx(0.6 / 1.6, abs=0.01)
    assert found[rule].evidence[0].startswith("10 times, ")
    assert found[rule].evidence[1] == "without it, training would be up to 1.60 times as fast"
    assert rule not in judge(0.001 * total)


def test_memory_that_tensors_never_give_back() -> None:
    values = training()["memory_allocated_mb"].y + np.arange(STEPS) * 2.0
    found = find(with_curves(memory_allocated_mb=by_step(values)), "gpu.memory_leak")
    assert found.values["mb_per_1000_steps"] == pytest.approx(2000, rel=0.1)
    assert found.step is not None and found.step <= 150


@pytest.mark.parametrize("since", [1000, 2000])
def test_memory_that_is_leaked_from_some_step_on_is_dated_and_forecast(since: int) -> None:
    random = np.random.default_rng(since)
    values = 40_000 + 20 * random.normal(size=STEPS) + np.clip(np.arange(STEPS) - since, 0, None) * 4.0
    found = find(with_curves(memory_allocated_mb=by_step(values)), "gpu.memory_leak")
    assert found.step == pytest.approx(since, abs=60) and found.step < (found.named_at or 0) < STEPS - 1
    assert found.values["mb_per_1000_steps"] == pytest.approx(4000, rel=0.1)
    assert found.values["steps_left"] == pytest.approx((81_920 - values[-1]) / 4, rel=0.1)
    assert "at this rate the GPU's 80 GB are full" in found.evidence[-1]


@pytest.mark.parametrize("at", [700, 1500, 2600])
def test_a_buffer_that_is_made_later_is_no_leak(at: int) -> None:
    values = training()["memory_allocated_mb"].y + 4000.0 * (np.arange(STEPS) > at)
    found = diagnose(with_curves(memory_allocated_mb=by_step(values)), CONDITIONS)
    assert "gpu.memory_leak" not in rules(found)


def test_fragmented_memory() -> None:
    assert find(with_curves(memory_reserved_mb=by_step(np.full(STEPS, 70_000.0))), "gpu.fragmentation")


def test_memory_that_is_full_soon_and_full_now() -> None:
    rising = np.linspace(50, 90, SECONDS)
    live = replace(healthy(gpus=[gpu(memory_percent=rising)]), is_live=True)
    found = find(live, "gpu.memory_forecast")
    assert found.values["seconds"] == pytest.approx(300, rel=0.1)
    assert find(healthy(gpus=[gpu(memory_percent=np.full(SECONDS, 97.0))]), "gpu.memory_full")


def test_processes_that_grow() -> None:
    growing = 8000 + np.arange(SECONDS) * 5.0
    found = find(healthy(processes=[process(rss_mb=growing)]), "host.memory_leak")
    assert found.values["mb_per_hour"] == pytest.approx(18_000, rel=0.05)


def test_processes_that_grew_and_stopped_are_told_without_a_forecast() -> None:
    x = np.arange(6000) + 1.7e9
    grown = Device("rank 0", {"rss_mb": Curve(x, 8000 + 5.0 * np.minimum(np.arange(6000), 2000))})
    found = find(healthy(processes=[grown]), "host.memory_leak")
    assert found.severity == "info" and found.title.startswith("Memory of rank 0 grew by")
    assert "seconds_left" not in found.values


def test_a_disk_that_fills() -> None:
    free = 100 - np.arange(SECONDS) * 0.05
    assert find(healthy(hosts=[host(disk_free_gb=free)]), "disk.full").values["seconds"] == pytest.approx(801, rel=0.1)


def test_waste_has_hours_energy_and_money() -> None:
    values = np.concatenate([np.full(SECONDS // 2, 95.0), np.zeros(SECONDS // 2)])
    measured = healthy(gpus=[gpu(utilization_percent=values)], prices=Prices(gpu_hour=3.6, currency="EUR"))
    found = find(measured, "gpu.waste")
    assert found.values["share"] == pytest.approx(0.5, abs=0.01)
    assert found.values["kwh"] == pytest.approx(600 * 500 / 3.6e6, rel=0.05)
    assert found.values["money"] == pytest.approx(0.6, rel=0.02)
    assert any("0.60 EUR" in line for line in found.evidence)


def test_gpus_that_are_half_busy_could_be_fewer_and_a_nearly_empty_one_smaller() -> None:
    half = [gpu(place, utilization_percent=np.full(SECONDS, 38.0)) for place in range(4)]
    found = find(healthy(gpus=half), "gpu.oversized")
    assert (found.severity, found.values["gpus_needed"]) == ("info", 2)
    assert "2 of 4 GPUs would be 76 % busy with the same work" in found.evidence[0]
    large = gpu(utilization_percent=np.full(SECONDS, 30.0), memory_used_mb=np.full(SECONDS, 9_000.0))
    (evidence,) = find(healthy(gpus=[replace(large, model="NVIDIA H100 80GB HBM3")]), "gpu.oversized").evidence
    assert "RTX 4090 at 0.74 USD per hour" in evidence and "instead of H100 SXM" in evidence
    for busy in ([gpu(0), gpu(1)], [replace(gpu(), model="NVIDIA H100 80GB HBM3")], [large]):
        assert not [
            item for item in diagnose(healthy(gpus=busy), Conditions()).findings if item.rule == "gpu.oversized"
        ]


def test_without_a_price_there_is_no_money() -> None:
    found = find(healthy(gpus=[gpu(utilization_percent=np.zeros(SECONDS))]), "gpu.waste")
    assert "money" not in found.values


def test_what_is_simulated_is_said_to_be() -> None:
    found = find(healthy(gpus=[gpu(utilization_percent=np.zeros(SECONDS), simulated=True)]), "gpu.waste")
    assert any("simulated" in line for line in found.evidence)


def test_the_worst_comes_first() -> None:
    values = LOSS.copy()
    values[1500] *= 4
    values[2500:] = math.nan
    found = diagnose(with_curves(loss=by_step(values), gradient_norm=None), CONDITIONS)
    severities = [item.severity for item in found.findings]
    assert severities == sorted(severities, key=["critical", "warning", "info"].index)
    assert any(gap.rule == "grad.explode" and "gradient_norm" in gap.needs for gap in found.not_judged)


def test_a_curve_without_its_broken_values() -> None:
    curve = Curve(np.arange(4.0), np.array([1.0, math.nan, math.inf, 4.0]))
    assert curve.finite().x.tolist() == [0.0, 3.0]


def test_a_learning_rate_that_jumps_is_named_with_its_step() -> None:
    values = np.full(3000, 3e-4)
    values[1700:] *= 10
    (found,) = [
        f for f in diagnose(with_curves(learning_rate=by_step(values)), CONDITIONS).findings if f.rule == "lr.jump"
    ]
    assert (found.step, found.named_at, found.severity) == (1700, 1700, "warning")


@pytest.mark.parametrize("kind", ["warmup", "cosine with restarts", "steps down", "constant", "warmup by doubling"])
def test_a_schedule_is_no_jump(kind: str) -> None:
    steps = np.arange(3000.0)
    rates = {
        "warmup": 3e-4 * np.minimum(1, (steps + 1) / 500),
        "cosine with restarts": 3e-4 * (0.5 + 0.5 * np.cos(np.pi * (steps % 1000) / 1000)) + 1e-9,
        "steps down": 3e-4 * 0.1 ** (steps // 1000),
        "constant": np.full(3000, 3e-4),
        "warmup by doubling": 3e-4 * 2.0 ** np.minimum(steps - 10, 0),
    }
    assert "lr.jump" not in rules(diagnose(with_curves(learning_rate=by_step(rates[kind])), CONDITIONS))


def test_two_periods_at_once_are_both_found() -> None:
    values = STEP_TIME.copy()
    values[::97] *= 3
    values[::98] *= 3
    (found,) = [
        f for f in diagnose(with_curves(batch_time=by_step(values)), CONDITIONS).findings if f.rule == "step.periodic"
    ]
    assert "every 98 and every 97 steps" in found.evidence[-1]


def test_a_rank_that_is_slow_for_ten_steps_is_named_with_its_interval() -> None:
    ranks = {}
    for rank in range(10):
        values = np.exp(np.random.default_rng(rank).normal(0, 0.02, 300)) * 0.2
        if rank == 6:
            values[150:160] *= 2
        ranks[Participant(TRAINER, rank)] = by_step(values)
    (found,) = diagnose(Measurements(training=Curves({}), rank_steps=ranks), CONDITIONS).findings
    assert found.subject == "rank 6" and "in steps 150 to 159" in found.title
    assert (found.step, found.named_at, found.until, found.severity) == (150, 154, 160, "info")


def test_a_slow_rank_of_sixteen_is_found_in_44_steps() -> None:
    ranks = {
        Participant(TRAINER, rank): by_step(
            np.exp(np.random.default_rng(rank).normal(0, 0.02, 44)) * (0.4 if rank == 5 else 0.2)
        )
        for rank in range(16)
    }
    (found,) = diagnose(Measurements(training=Curves({}), rank_steps=ranks), CONDITIONS).findings
    assert found.subject == "rank 5" and found.severity == "warning"


@pytest.mark.parametrize("length", [2100, 3000, 5000, 20_000])
def test_a_noisy_plateau_stays_one(length: int) -> None:
    values = 2.0 * np.exp(np.random.default_rng(1).normal(0, 0.05, length))
    rates = by_step(np.full(length, 3e-4))
    assert "loss.plateau" in rules(diagnose(with_curves(loss=by_step(values), learning_rate=rates), CONDITIONS))


def test_a_loss_that_crosses_zero_is_not_judged_for_divergence() -> None:
    values = np.random.default_rng(1).normal(0, 1, 3000) + np.arange(3000) / 1000
    found = diagnose(with_curves(loss=by_step(values)), CONDITIONS)
    assert "loss.divergence" not in rules(found)
    assert "cross zero" in next(gap.needs for gap in found.not_judged if gap.rule == "loss.divergence")


def test_an_xid_is_named_with_its_meaning_and_what_to_do() -> None:
    count = (np.arange(trainings.SECONDS) >= 600).astype(float)
    broken = gpu(1, xid_errors_total=count, xid_last=np.where(count > 0, 79.0, np.nan))
    finding = find(healthy(gpus=[gpu(0), broken]), "gpu.error")
    assert finding.title == "GPU 1 reported Xid 79: the GPU has fallen off the bus"
    assert finding.severity == "critical" and finding.advice.startswith("Restart the machine")


def test_slow_steps_name_what_they_coincide_with_and_where_the_time_goes() -> None:
    curves = training()
    slow = np.arange(99, 3000, 100)
    batch, other = curves["batch_time"].y.copy(), curves["other_time"].y.copy()
    batch[slow] += 0.6
    other[slow] += 0.6
    measured = with_curves(batch_time=by_step(batch), other_time=by_step(other))
    finding = find(replace(measured, moments={"checkpoint": slow.astype(float)}), "step.periodic")
    assert "checkpoint: at 29 of the 29 slow steps" in finding.evidence
    assert "100 % of what they take longer is outside the model" in finding.evidence


def test_a_rank_0_that_is_always_a_little_slower_does_more_than_the_others() -> None:
    finding = find(healthy(rank_steps=ranks(slow=0, factor=1.18)), "straggler.rank_zero")
    assert finding.severity == "info" and finding.subject == "rank 0"
    assert finding.named_at is not None and finding.named_at < 60


def test_spikes_that_are_far_apart_are_told_one_by_one() -> None:
    loss = 2 + 2 * np.exp(-np.arange(STEPS) / 300) + np.random.default_rng(7).normal(0, 0.03, STEPS)
    loss[[700, 2200]] += 2.0, 3.0
    found = [
        item for item in diagnose(with_curves(loss=by_step(loss)), CONDITIONS).findings if item.rule == "loss.spike"
    ]
    assert sorted((item.step, item.named_at, item.severity) for item in found) == [
        (700, 700, "info"),
        (2200, 2200, "info"),
    ]


def test_a_schedule_that_begins_again_too_early_is_told() -> None:
    step = np.arange(STEPS)
    rate = 0.5e-3 * (1 + np.cos(np.pi * step / STEPS)) + 1e-6
    rate[1800:] = rate[: STEPS - 1800]
    found = find(with_curves(learning_rate=by_step(rate)), "lr.jump")
    assert (found.step, found.named_at, found.severity) == (1800, 1800, "info")


def test_a_plateau_is_known_when_it_has_lasted_as_long_as_the_fall() -> None:
    step = np.arange(6000)
    loss = 3 * (1 + np.minimum(step, 2000) / 500) ** -0.5 * (1 + np.random.default_rng(2).normal(0, 0.02, 6000))
    found = find(with_curves(loss=by_step(loss)), "loss.plateau")
    assert found.step is not None and abs(found.step - 2000) <= 400
    assert found.named_at is not None and 3500 <= found.named_at <= 5500
    before = Curve(np.arange(3000.0), loss[:3000])
    assert "loss.plateau" not in rules(diagnose(with_curves(loss=before), CONDITIONS))


def test_evaluations_that_vary_are_no_overfitting() -> None:
    random = np.random.default_rng(1)
    at = np.arange(100.0, STEPS, 100)
    lucky = np.clip(1.6 + random.normal(0, 0.08, len(at)), 1.45, 1.75)
    lucky[-3:] = 1.65
    assert "loss.overfit" not in rules(diagnose(with_curves(val_loss=Curve(at, lucky)), CONDITIONS))


def test_slow_steps_say_when_they_were_known_and_evaluations_are_no_warning() -> None:
    times = STEP_TIME.copy()
    times[99::100] *= 15
    slow = find(with_curves(batch_time=by_step(times)), "step.periodic")
    assert slow.severity == "warning" and slow.step in (99, 199)
    assert slow.named_at == slow.step + 700  # the eighth
    evaluated = replace(with_curves(batch_time=by_step(times)), moments={"evaluation": np.arange(99.0, STEPS, 100)})
    assert find(evaluated, "step.periodic").severity == "info"


def test_of_two_ranks_the_slower_one_is_compared_with_the_other() -> None:
    random = np.random.default_rng(9)
    times = {rank: by_step(0.2 * np.exp(random.normal(0, 0.02, 300))) for rank in (0, 1)}
    times[1].y[100:] *= 1.4
    measured = replace(healthy(0), rank_steps={Participant(TRAINER, rank): curve for rank, curve in times.items()})
    found = find(measured, "straggler.rank")
    assert (found.subject, found.step) == ("rank 1", 100)


@pytest.mark.parametrize("name", ["reward", "rollout/ep_rew_mean", "charts/episodic_return"])
def test_a_loss_that_rises_while_the_reward_does_is_no_warning(name: str) -> None:
    """Errors of whoever estimates the returns grow with them."""
    random = np.random.default_rng(3)
    loss = by_step((0.02 + 0.5 * (1 - np.exp(-np.arange(STEPS) / 900))) * np.exp(random.normal(0, 0.3, STEPS)))
    reward = np.linspace(10, 200, STEPS // 10) + random.normal(0, 10, STEPS // 10)
    found = find(with_curves(loss=loss, **{name: by_step(reward, 10)}), "loss.divergence")
    assert found.severity == "info" and f"{name} rose meanwhile" in found.evidence[-1]
    collapsed = find(with_curves(loss=loss, **{name: by_step(reward[::-1], 10)}), "loss.divergence")
    assert collapsed.severity == "critical"


def test_a_loss_that_has_nearly_come_back_is_no_warning() -> None:
    step = np.arange(STEPS)
    loss = 1 + 3 * np.exp(-step / 100) + np.random.default_rng(1).normal(0, 0.002, STEPS)
    loss[1000:] += 0.15 - 0.08 * np.minimum((step[1000:] - 1000) / 1500, 1)
    found = find(with_curves(loss=by_step(loss)), "loss.divergence")
    assert found.until is None and found.severity == "info"


def test_slow_steps_that_are_usual_or_few_are_no_warning() -> None:
    random = np.random.default_rng(4)
    two_lengths = STEP_TIME * np.where(random.random(STEPS) < 0.25, 2.0, 1.0)
    assert find(with_curves(batch_time=by_step(two_lengths)), "step.outlier").severity == "info"
    accumulating = STEP_TIME * np.where(np.arange(STEPS) % 8 == 7, 3.0, 1.0)
    assert find(with_curves(batch_time=by_step(accumulating)), "step.periodic").severity == "info"
    few = STEP_TIME.copy()
    few[[500, 901, 1444, 2000]] *= 150
    assert find(with_curves(batch_time=by_step(few)), "step.outlier").severity == "info"
    many = STEP_TIME * np.where(random.random(STEPS) < 0.03, 8.0, 1.0)
    assert find(with_curves(batch_time=by_step(many)), "step.outlier").severity == "warning"


def test_pauses_between_the_lines_are_no_warning_unless_they_are_checkpoints() -> None:
    times = STEP_TIME.copy()
    times[99::100] *= 15
    measured = with_curves(batch_time=by_step(times), **{INTERVALS: by_step(times)})
    assert find(measured, "step.periodic").severity == "info"
    saved = replace(measured, moments={"checkpoint": np.arange(99.0, STEPS, 100)})
    assert find(saved, "step.periodic").severity == "warning"


def test_slow_steps_at_random_have_no_period() -> None:
    for seed in range(100):
        random = np.random.default_rng(seed)
        places = np.flatnonzero(random.random(int(random.integers(300, 2000))) < random.choice([0.03, 0.1, 0.3]))
        assert find_periods(places.astype(np.float64)) == []


def test_exploding_gradients_say_when_they_were_known() -> None:
    values = training()["gradient_norm"].y.copy()
    values[2000:2010] = 400
    assert find(with_curves(gradient_norm=by_step(values)), "grad.explode").named_at == 2002
    values = training()["gradient_norm"].y.copy()
    values[STEPS - 100 :: 5] = math.nan
    found = find(with_curves(gradient_norm=by_step(values)), "grad.nonfinite")
    assert (found.step, found.named_at) == (STEPS - 100, STEPS - 50)


def test_several_spikes_are_dated_by_the_first() -> None:
    values = LOSS.copy()
    for start, height in ((700, 3), (1100, 3), (1500, 3), (2220, 6)):
        values[start] *= height
    found = find(with_curves(loss=by_step(values)), "loss.spike")
    assert (found.step, found.named_at) == (700, 700) and "at step 2,220" in found.evidence[0]

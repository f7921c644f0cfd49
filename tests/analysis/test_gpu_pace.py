"""GPUs that are busy and could do more: each is told with its numbers, and a healthy one is not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trainings import CONDITIONS, SECONDS, STEPS, by_step, find, gpu, healthy, process, rules, training, with_curves

from trainvitals.analysis.diagnosis import diagnose
from trainvitals.analysis.findings import RankPlace
from trainvitals.conditions import Conditions

STEP_TIME = training()["batch_time"].y


def all_of(value: float) -> np.ndarray:
    return np.full(SECONDS, value)


def test_a_busy_gpu_whose_sms_are_not_and_a_busy_thread_are_launch_bound() -> None:
    tiny = [gpu(0, sm_active_percent=all_of(9.0)), gpu(1)]
    places = {"rank 0": RankPlace("box", frozenset({"GPU 0"})), "rank 1": RankPlace("box", frozenset({"GPU 1"}))}
    others = [process(0, main_cpu_percent=all_of(99.0)), process(1)]
    found = find(healthy(gpus=tiny, processes=others, places=places), "launch.bound")
    assert (found.severity, found.about) == ("warning", ("GPU 0",))
    assert found.evidence[0] == "GPU 0: utilization 92 %, but 9 % of its SMs active"
    assert found.evidence[-1] == "rank 0's main thread uses 99 % of a core"
    assert found.values["main_cpu_percent"] == 99.0
    # The thread of another GPU is no reason.
    others = [process(0), process(1, main_cpu_percent=all_of(99.0))]
    assert find(healthy(gpus=tiny, processes=others, places=places), "launch.bound").severity == "info"


def test_a_busy_gpu_whose_sms_are_not_while_ranks_exchange_a_lot_waits_for_them() -> None:
    waiting = [gpu(place, sm_active_percent=all_of(14.0), nvlink_rx_mb_s=all_of(40_000.0)) for place in (0, 1)]
    places = {f"rank {place}": RankPlace("box", frozenset({f"GPU {place}"})) for place in (0, 1)}
    found = find(healthy(gpus=waiting, places=places), "comm.bound")
    assert found.title == "GPU 0, GPU 1 mostly wait for other ranks"
    assert found.evidence[-1] == "meanwhile 40,000 MB/s received over NVLink"
    assert "launch.bound" not in rules(diagnose(healthy(gpus=waiting, places=places), CONDITIONS))


def test_a_link_with_half_of_its_lanes_under_load_is_told_beside_those_that_have_all() -> None:
    narrow = gpu(1, pcie_link_width=all_of(8.0), pcie_link_generation=all_of(4.0))
    found = find(healthy(gpus=[gpu(0), narrow]), "gpu.link")
    assert found.title == "GPU 1 uses PCIe 4.0 x8, but could use 5.0 x16"
    assert found.evidence == (
        "under load, about 25 % of its bandwidth",
        "the other GPU has a faster link",
    )


def test_a_link_that_is_slow_while_the_gpu_has_nothing_to_do_is_not_judged() -> None:
    idle = gpu(utilization_percent=all_of(20.0), pcie_link_generation=all_of(1.0))
    found = diagnose(healthy(gpus=[idle]), CONDITIONS)
    assert "gpu.link" not in rules(found)
    (gap,) = [gap for gap in found.not_judged if gap.rule == "gpu.link"]
    assert gap.needs == "30 GPU samples above 80 % utilization"


def test_a_low_clock_is_told_where_neither_heat_nor_power_explains_it() -> None:
    held = {"graphics_clock_mhz": all_of(1200.0)}
    found = find(healthy(gpus=[gpu(0, **held), gpu(1)]), "gpu.clock")
    assert found.evidence[0] == "1,200 MHz under load, 61 % of its 1,980 MHz"
    capped = gpu(0, **held, throttle_power_seconds=np.arange(SECONDS) * 0.9)
    assert "gpu.clock" not in rules(diagnose(healthy(gpus=[capped, gpu(1)]), CONDITIONS))


def test_a_clock_below_that_of_its_peers_is_told() -> None:
    slower = gpu(2, graphics_clock_mhz=all_of(1750.0))
    found = find(healthy(gpus=[gpu(0), gpu(1), slower]), "gpu.clock")
    assert (found.subject, found.evidence) == (
        "GPU 2",
        ("1,750 MHz under load; others of its model run at 1,900 MHz",),
    )
    other = replace(slower, model="another card")
    assert "gpu.clock" not in rules(diagnose(healthy(gpus=[gpu(0), gpu(1), other]), CONDITIONS))


@pytest.mark.parametrize(("memory", "times"), [(41.0, 2), (20.0, 4), (3.0, 4)])
def test_a_larger_batch_is_advised_with_its_gain_where_part_of_a_step_does_not_grow(memory: float, times: int) -> None:
    update = np.full(STEPS, 0.06)
    measured = replace(
        with_curves(optimizer_time=by_step(update), batch_time=by_step(STEP_TIME + 0.05)),
        gpus=[gpu(0, memory_percent=all_of(memory)), gpu(1, memory_percent=all_of(memory / 2))],
    )
    found = find(measured, "batch.small")
    assert (found.severity, found.values["times"]) == ("info", times)
    share = 0.064 / float(np.median(STEP_TIME + 0.05))
    assert found.values["gain"] == pytest.approx(1 / (1 - share * (1 - 1 / times)) - 1, abs=0.01)
    full = replace(measured, gpus=[gpu(0, memory_percent=all_of(memory)), gpu(1)])
    assert "batch.small" not in rules(diagnose(full, CONDITIONS))


def test_a_larger_batch_that_gains_nothing_is_not_advised() -> None:
    measured = healthy(gpus=[gpu(0, memory_percent=all_of(10.0))])
    assert "batch.small" not in rules(diagnose(measured, Conditions({"batch_gain_percent": 20})))


def test_tensor_cores_that_are_not_used_while_fp32_is() -> None:
    single = gpu(0, tensor_active_percent=all_of(0.0), fp32_active_percent=all_of(55.0))
    found = find(healthy(gpus=[single, gpu(1)]), "gpu.precision")
    assert found.evidence == ("GPU 0: tensor cores 0.0 % active, FP32 pipe 55 %",)
    assert "bfloat16" in found.advice
    light = gpu(0, tensor_active_percent=all_of(0.0), fp32_active_percent=all_of(5.0))
    assert "gpu.precision" not in rules(diagnose(healthy(gpus=[light, gpu(1)]), CONDITIONS))

"""What is said about the machine that a benchmark ran on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from trainvitals.bench.machine import add_energy, describe_machine, explain, read_hardware
from trainvitals.journal.documents.benchmark import UNAVAILABLE, Latency, MeasuredVariant
from trainvitals.journal.reader import RunReader

QUIET = MeasuredVariant(variant="fp32", threads=1, latency=Latency(calls=2000, median=1.0, outliers=2, steady=True))
NOISY = MeasuredVariant(variant="int8", threads=1, latency=Latency(calls=2000, median=1.0, outliers=40, steady=True))


def test_a_quiet_machine_needs_no_warning() -> None:
    assert explain([QUIET], 0.9, {}) == []
    assert explain([], 9.0, {}) == []  # nothing was timed


def test_outliers_are_explained_by_what_was_seen_meanwhile() -> None:
    (warning,) = explain([QUIET, NOISY], 3.1, {"cpu_steal_percent": 12.0, "throttle_seconds": 2.0})
    assert warning.startswith("int8/b1/t1: 40 of 2,000 calls were slower than 5 MAD; the machine's load was 3.1")
    assert "other virtual machines took 12 %" in warning
    assert "the GPU was throttled for 2.0 s" in warning
    (of_the_cpu,) = explain([QUIET, NOISY], 3.1, {"throttle_seconds": 2.0}, "cpu")
    assert "the machine's load was 3.1" in of_the_cpu and "GPU" not in of_the_cpu


def test_outliers_without_a_cause_are_still_reported() -> None:
    (warning,) = explain([NOISY], 0.5, {})
    assert "no cause found on this machine" in warning


def test_energy_is_power_by_throughput_of_a_model_that_had_the_gpu_alone() -> None:
    timed, refused = replace(QUIET, items_per_second=50.0), MeasuredVariant(variant="aoti", state=UNAVAILABLE)
    seen = {"gpu_watts": 200.0}
    assert [row.joules_per_item for row in add_energy([timed, refused], "cuda", seen)] == [4.0, None]
    assert [row.joules_per_item for row in add_energy([timed, timed], "cuda", seen)] == [None, None]
    assert add_energy([timed], "cpu", seen)[0].joules_per_item is None
    assert add_energy([timed], "cuda", {})[0].joules_per_item is None


@pytest.mark.parametrize(("gpus", "watts"), [(0, None), (1, 200.0), (2, None)])
def test_power_is_that_of_the_only_gpu(tmp_path: Path, gpus: int, watts: float | None) -> None:
    with open(tmp_path / "gpu_metrics_20260101_000000.jsonl", "w", encoding="utf-8") as file:
        for second, power in enumerate((150.0, 250.0)):
            for index in range(gpus):
                about = {"gpu_index": index, "gpu_uuid": f"GPU-{index}", "power_draw_watts": power}
                file.write(json.dumps({"timestamp": f"2026-01-01T00:00:0{second}.000Z", **about}) + "\n")
    assert read_hardware(RunReader(tmp_path)).get("gpu_watts") == watts


def test_drift_and_a_warm_up_without_end_are_reported() -> None:
    row = MeasuredVariant(variant="fp32", latency=Latency(calls=100, median=1.0, drift=0.2, warm_up=1000))
    drift, unsteady = explain([row], 0.0, {})
    assert "the second half was 20 % slower" in drift
    assert unsteady == "fp32/b1: timings were still changing at the end of warm-up"


def test_many_rows_that_are_not_steady_are_one_warning() -> None:
    rows = [MeasuredVariant(variant=name, latency=Latency(calls=10, median=1.0)) for name in "abcde"]
    (warning,) = explain(rows, 0.0, {})
    assert warning.startswith("a/b1, b/b1, c/b1 and 2 more: ")


def test_the_container_s_quota_and_the_governor_are_read(tmp_path: Path) -> None:
    for name, content in (
        ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
        ("proc/cpuinfo", "processor : 0\nmodel name\t: A fast one\n"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text(content)
    found = describe_machine(tmp_path)
    assert (found["cpu_quota"], found["governor"], found["cpu"]) == (1.5, "powersave", "A fast one")
    assert "governor" not in describe_machine(tmp_path / "elsewhere")

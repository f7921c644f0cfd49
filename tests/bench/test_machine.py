"""What is said about the machine that a benchmark ran on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainvitals.bench.machine import describe_machine, explain, read_power
from trainvitals.journal.documents.benchmark import Latency, MeasuredVariant
from trainvitals.journal.encoding import format_time
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


@pytest.mark.parametrize(
    ("gpus", "counter", "watts"), [(0, True, None), (1, True, 100.0), (1, False, 200.0), (2, True, None)]
)
def test_power_is_that_of_the_only_gpu_between_two_moments(
    tmp_path: Path, gpus: int, counter: bool, watts: float | None
) -> None:
    start = 1.8e9
    with open(tmp_path / "gpu_metrics_20260101_000000.jsonl", "w", encoding="utf-8") as file:
        for second in range(20):
            for index in range(gpus):
                row = {"timestamp": format_time(start + second), "gpu_index": index, "gpu_uuid": f"GPU-{index}"}
                row["power_draw_watts"] = 200.0 if 5 <= second <= 10 else 50.0
                if counter:
                    row["energy_joules"] = 100.0 * second
                file.write(json.dumps(row) + "\n")
    reader = RunReader(tmp_path)
    assert read_power(reader, start + 4.5, start + 10.5) == watts
    assert read_power(reader, start + 4.5, start + 6.5) is None, "too few readings for a mean"


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

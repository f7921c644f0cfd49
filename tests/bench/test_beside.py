"""A benchmark beside a training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import some_models
import torch
from waiting import wait_until
from watching import events, lines, running

from trainvitals.bench.beside import choose_cores, classic_values, rows_of
from trainvitals.errors import TrainvitalsError
from trainvitals.integrations.classic.training import TrainingMonitor
from trainvitals.journal.benchmarks import read_benchmarks
from trainvitals.journal.documents.benchmark import Benchmark, Latency, MeasuredVariant, ModelMemory
from trainvitals.trainer.run import Run

QUICK = {"seconds": 0.1}


def messages_of(run: Run) -> str:
    return " ".join(event["message"] for event in events(run) if event["event"] == "benchmark_failed")


def test_the_result_is_in_the_run_at_the_step_of_the_model(tmp_path: Path) -> None:
    model = some_models.mlp().train()
    with running(tmp_path) as run:
        run.log({"loss": 1.0}, step=40)
        found = run.benchmark(model, torch.zeros(2, 64), wait=True, **QUICK)
        assert found is not None
        assert (found.step, found.model, found.inputs) == (40, "Sequential", "2x64")
        assert model.training
        assert read_benchmarks(run.folder) == [found]
        (row,) = [line for line in lines(run) if "benchmark_latency_ms" in line]
        assert row["step"] == 40
        assert row["benchmark_latency_ms"] == found.results[0].latency.median
        assert run.step == 40
        assert any(event["event"] == "benchmark" for event in events(run))


def test_the_classic_monitor_returns_the_classic_names(tmp_path: Path) -> None:
    monitor = TrainingMonitor({"dir": str(tmp_path), "agent": False})
    try:
        found = monitor.log_model_inference_benchmark(some_models.mlp(), "cpu", torch.zeros(1, 64), **QUICK)
    finally:
        monitor.stop_monitoring()
    assert {"avg_latency_ms", "samples_per_second", "model_size_mb", "memory_footprint_mb"} <= found.keys()
    assert found["model_size_mb"] == pytest.approx(4 * 10_384 / (1 << 20))


@pytest.mark.promise("a model that cannot be benchmarked", "the training continues; the run's events give the reason")
@pytest.mark.parametrize(
    ("model", "inputs", "text"),
    [
        (object(), torch.zeros(1), "an object is not a torch module"),
        (some_models.mlp(), "text", "an input is a str"),
        (some_models.mlp(), torch.tensor(1.0), "an input is a Tensor"),
    ],
)
def test_what_cannot_be_measured_is_an_event_and_raises_nothing(
    model: Any, inputs: Any, text: str, tmp_path: Path, capsys: Any
) -> None:
    with running(tmp_path) as run:
        assert run.benchmark(model, inputs, wait=True) is None
        assert text in messages_of(run)
        assert text in capsys.readouterr().err


def test_without_a_core_to_spare_it_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 10_000)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with running(tmp_path) as run:
        assert run.benchmark(some_models.mlp(), torch.zeros(1, 64)) is None
        assert "the training uses all" in messages_of(run)
        assert "wait=True" in messages_of(run)


def test_it_gets_the_cores_that_the_training_leaves() -> None:
    mine = frozenset({0, 1, 2, 3})
    assert choose_cores(4, waits=True, allowed=mine, count=4) == (0, 1, 2, 3)
    assert choose_cores(3, waits=False, allowed=mine, count=4) == (3,)
    assert choose_cores(4, waits=False, allowed=mine, count=6) == (4, 5)
    with pytest.raises(TrainvitalsError, match="uses all 4 cores"):
        choose_cores(4, waits=False, allowed=mine, count=4)


PROGRAM = """
import os, torch, trainvitals
if len(os.sched_getaffinity(0)) > 1:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
torch.set_num_threads(1)

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
    def forward(self, ids, scale):
        return {"y": self.layer(ids.float()) * scale}

run = trainvitals.init(dir="runs", agent=False)
run.log({"loss": 1.0}, step=3)
run.benchmark(Own(), {"ids": torch.zeros(2, 4, dtype=torch.int64), "scale": torch.ones(2, 1)}, seconds=0.1)
print(run.folder)
run.finish()
"""


def test_a_model_of_the_program_itself_is_measured_after_the_program_went_on(tmp_path: Path) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: nothing is left beside the training")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    folder = Path(done.stdout.strip())
    (found,) = wait_until(lambda: read_benchmarks(folder), "the benchmark")
    assert (found.model, found.step, found.results[0].state) == ("Own", 3, "measured")
    assert found.inputs == "ids=int64:2x4<1,scale=2x1"


def test_rows_and_classic_names_of_a_result() -> None:
    reference = MeasuredVariant(
        variant="fp32", threads=1, reference=True, latency=Latency(median=2.0, mean=2.5), items_per_second=500.0,
        disk_mb=4.0, memory=ModelMemory(peak=10.0, weights=3.9),
    )  # fmt: skip
    small = MeasuredVariant(variant="int8-ort", threads=1, latency=Latency(median=1.0), disk_mb=1.0)
    found = Benchmark(results=(reference, small))
    assert rows_of(found) == {
        "benchmark_latency_ms": 2.0,
        "benchmark_items_per_sec": 500.0,
        "benchmark_memory_mb": 10.0,
        "benchmark_disk_mb": 4.0,
        "benchmark_latency_ms/int8-ort/b1/t1": 1.0,
        "benchmark_disk_mb/int8-ort/b1/t1": 1.0,
    }
    assert classic_values(found) == {
        "avg_latency_ms": 2.5,
        "samples_per_second": 500.0,
        "model_size_mb": 3.9,
        "memory_footprint_mb": 10.0,
        "quantization_ratio": 4.0,
    }
    assert classic_values(Benchmark()) == {}

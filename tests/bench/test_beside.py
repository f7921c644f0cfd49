"""A benchmark beside a training."""

from __future__ import annotations

import json
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

from trainvitals.bench import beside
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
    monkeypatch.setattr(beside.machine, "read_available_cores", lambda: frozenset(os.sched_getaffinity(0)))
    with running(tmp_path) as run:
        assert run.benchmark(some_models.mlp(), torch.zeros(1, 64)) is None
        assert "the training uses all" in messages_of(run)
        assert "wait=True" in messages_of(run)


def test_it_gets_the_cores_that_the_training_leaves() -> None:
    mine, more = frozenset({0, 1, 2, 3}), frozenset(range(6))
    assert choose_cores(3, mine, mine) == (3,)
    assert choose_cores(4, mine, more) == (4, 5)
    with pytest.raises(TrainvitalsError, match="uses all 4 cores"):
        choose_cores(4, mine, mine)


def test_cores_of_other_ranks_are_not_free() -> None:
    pinned, machine = frozenset({0, 1, 2, 3}), frozenset(range(16))
    with pytest.raises(TrainvitalsError, match="uses all 4 cores"):
        choose_cores(4, pinned, machine, ranks=4)  # each pinned to four
    assert choose_cores(1, machine, machine, ranks=8) == tuple(range(8, 16))
    with pytest.raises(TrainvitalsError, match="uses all 16 cores"):
        choose_cores(2, machine, machine, ranks=8)


def test_the_cores_of_a_container_are_those_that_the_kernel_gives_out() -> None:
    """A process that is pinned finds what its parent may use, and stays pinned."""
    program = (
        "import os, json; from trainvitals.bench.machine import read_available_cores; "
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "print(json.dumps([sorted(read_available_cores()), sorted(os.sched_getaffinity(0))]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    available, own = json.loads(done.stdout)
    assert set(available) >= os.sched_getaffinity(0) and own == [min(os.sched_getaffinity(0))]
    for core in available:  # a process of ours may have each of them
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
            os.sched_setaffinity(child.pid, [core])
            child.communicate(b"\n")


@pytest.mark.promise("a benchmark in the background that fails in any way", "the run's events give the reason")
def test_a_core_that_may_not_be_used_is_an_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beyond = os.sysconf("SC_NPROCESSORS_CONF") + 1
    monkeypatch.setattr(beside, "choose_cores", lambda *_: (beyond,))
    with running(tmp_path) as run:
        assert run.benchmark(some_models.mlp(), torch.zeros(1, 64), **QUICK) is None
        text = wait_until(lambda: messages_of(run), "the event")
    assert f"cannot run on the cores {beyond}" in text


def test_what_breaks_a_benchmark_is_an_event(tmp_path: Path) -> None:
    with running(tmp_path) as run:
        (run.folder / "benchmarks").write_text("a file in its place")
        assert run.benchmark(some_models.mlp(), torch.zeros(1, 64), wait=True, **QUICK) is None
        assert "no benchmark: FileExistsError" in messages_of(run)


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

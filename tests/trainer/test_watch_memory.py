"""Memory, FLOPs and the budget: numbers of known input."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from watching import events, steps

from trainvitals.leaks import LEAST_STEPS
from trainvitals.trainer.run import Run
from trainvitals.trainer.watch import memory
from trainvitals.trainer.watch.budget import UNSEEN, Budget
from trainvitals.trainer.watch.flops import peak_flops
from trainvitals.trainer.watch.memory import MIB, parse_allocator, read_allocator, read_host

pytestmark = pytest.mark.usefixtures("own_places")


def test_the_allocators_counters_become_megabytes() -> None:
    found = parse_allocator(
        {
            "allocated_bytes.all.current": 100 * MIB,
            "allocated_bytes.all.peak": 300 * MIB,
            "reserved_bytes.all.current": 400 * MIB,
            "reserved_bytes.all.peak": 500 * MIB,
            "inactive_split_bytes.all.current": 40 * MIB,
            "num_alloc_retries": 2,
            "num_ooms": 1,
        }
    )
    assert found == {
        "memory_allocated_mb": 100,
        "memory_reserved_mb": 400,
        "memory_peak_allocated_mb": 300,
        "memory_peak_reserved_mb": 500,
        "memory_fragmentation_percent": 10,
        "memory_alloc_retries": 2,
        "memory_ooms": 1,
    }


def test_what_an_allocator_does_not_say_is_absent() -> None:
    assert parse_allocator({}) == {}
    assert read_allocator(torch.device("cpu")) == {}
    assert read_allocator(None) == {}


def test_host_memory_is_that_of_this_process() -> None:
    with open("/proc/self/status") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))
    assert read_host()["host_memory_mb"] == pytest.approx(kilobytes / 1024, rel=0.2)


def test_a_leak_is_said_once_with_its_rate(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    leaking = iter(range(10_000))
    monkeypatch.setattr(memory, "read_host", lambda: {"host_memory_mb": float(next(leaking))})
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, memory_every=1, gradients_every=0, layers_every=0, budget_percent=0)
    for _ in range(int(LEAST_STEPS) + 50):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    run.finish()
    (event,) = events(run)
    assert event["message"].startswith("host memory grows by 1 MB per step")


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


def test_when_memory_runs_out_the_allocators_state_is_saved(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "summarize_allocator", lambda device: "| allocated | 79 GiB |")

    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model = nn.Linear(1, 1)
    run.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(OutOfMemoryError):
        Greedy.apply(model(torch.ones(1, 1))).sum().backward()
    (file,) = (run.folder / "reports").glob("oom.*")
    assert file.name == "oom.rank0.step0.txt"
    assert "Tried to allocate 2.00 GiB" in file.read_text()
    assert "79 GiB" in file.read_text()
    assert [event["event"] for event in events(run)] == ["out_of_memory"]


def test_a_forward_that_runs_out_of_memory_saves_it_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "summarize_allocator", lambda device: "| allocated | 79 GiB |")

    class Greedy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise OutOfMemoryError("CUDA out of memory.")

    model = Greedy()
    run.watch(model)
    with pytest.raises(OutOfMemoryError):
        model(torch.ones(1))
    assert len(list((run.folder / "reports").glob("oom.*"))) == 1


# -- FLOPs


def test_flops_are_counted_once_and_become_a_rate(run: Run) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, count_flops=True, peak_flops=1e12)
    for _ in range(6):
        model(torch.randn(10, 32)).sum().backward()
        optimizer.step()
    run.finish()
    multiplications = 10 * (32 * 64 + 64 * 16)
    line = steps(run)[-1]
    assert line["flops_per_sec"] * line["batch_time"] == pytest.approx(3 * 2 * multiplications)
    assert line["mfu_percent"] == pytest.approx(100 * line["flops_per_sec"] / 1e12)


def test_given_flops_are_not_counted(run: Run) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, flops_per_step=6e9)
    for _ in range(2):
        model(torch.randn(1, 2)).sum().backward()
        optimizer.step()
    run.finish()
    line = steps(run)[0]
    assert line["flops_per_sec"] * line["batch_time"] == pytest.approx(6e9)
    assert "mfu_percent" not in line  # of which card?


def test_the_peak_is_that_of_the_card_with_the_longest_fitting_name() -> None:
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989.4e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("NVIDIA GeForce RTX 4090") == 165.2e12
    assert peak_flops("Quadro P400") is None
    assert peak_flops("") is None


# -- the budget


def test_a_budget_is_kept_over_time_whatever_one_look_costs() -> None:
    assert spend_all(Budget(1.0), [0.002] * 500_000) == pytest.approx(0.01 * 1000, rel=0.02)


def test_a_pause_pays_in_no_more_than_a_few_steps() -> None:
    steps_alone = spend_all(Budget(1.0), [0.002] * 10_000)
    with_pauses = spend_all(Budget(1.0), ([0.002] * 19 + [10.0]) * 500)
    assert with_pauses < 1.5 * steps_alone


def test_steps_that_become_longer_pay_in_more() -> None:
    budget = Budget(1.0)
    spend_all(budget, [0.002] * 100)
    assert spend_all(budget, [2.0] * 100) == pytest.approx(0.01 * 200, rel=0.3)


def spend_all(budget: Budget, steps: Iterable[float]) -> float:
    """Seconds spent while these steps are made, on measurements of 50 ms."""
    budget.settle()
    spent = 0.0
    for seconds in steps:
        budget.earn(seconds)
        if budget.allows():
            budget.spend(0.05 / UNSEEN)
            spent += 0.05
    return spent


def test_no_budget_means_no_limit() -> None:
    budget = Budget(0)
    budget.spend(1e9)
    budget.settle()
    assert budget.allows()
    budget.earn(0.001)
    assert budget.allows()

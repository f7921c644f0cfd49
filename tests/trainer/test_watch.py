"""Phases and steps of real PyTorch loops of every shape, with known sleeps."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from waiting import GENTLE_EXIT
from watching import PHASES, VirtualClock, events, lines, messages, steps

from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader, open_run
from trainvitals.trainer.run import Run
from trainvitals.trainer.watch import discovery
from trainvitals.trainer.watch.loop import Watch

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


class Sleepy(nn.Module):
    """A forward and a backward of known length."""

    def __init__(self, clock: VirtualClock, forward: float = 0.2, backward: float = 0.3) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.clock, self.forward_seconds, self.backward_seconds = clock, forward, backward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.clock.sleep(self.forward_seconds)
        out: torch.Tensor = self.linear(x)
        if out.requires_grad:
            out.register_hook(lambda _: self.clock.sleep(self.backward_seconds))
        return out


class SleepySGD(torch.optim.SGD):
    """Calls the step of its parent, as many optimizers do; torch then runs the hooks of both."""

    def __init__(self, clock: VirtualClock, parameters: Any, seconds: float = 0.05) -> None:
        super().__init__(parameters, lr=0.01)
        self.clock, self.seconds = clock, seconds

    def step(self, closure: Any = None) -> Any:
        self.clock.sleep(self.seconds)
        return super().step(closure)


class SleepyData(Dataset[torch.Tensor]):
    def __init__(self, clock: VirtualClock, length: int = 8, seconds: float = 0.01) -> None:
        self.clock, self.length, self.seconds = clock, length, seconds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.sleep(self.seconds)
        return torch.full((4,), float(index))


def phases(line: dict[str, Any]) -> dict[str, float]:
    return {name: line[name] for name in PHASES if line.get(name)}


def watch(run: Run, clock: VirtualClock, *args: Any, **options: Any) -> Watch:
    watch = run.watch(*args, **options)
    clock.govern(watch)
    return watch


def test_every_phase_of_a_plain_loop_gets_the_time_that_was_spent_in_it(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    loader = DataLoader(SleepyData(clock), batch_size=2)
    watch(run, clock, model, optimizer, loader)
    for batch in loader:
        loss = model(batch).square().mean()
        clock.sleep(0.04)  # the loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        clock.sleep(0.1)  # logging
    run.finish()
    assert len(steps(run)) == 4
    for line in steps(run):
        assert phases(line) == pytest.approx(
            {
                "data_time": 0.02,
                "forward_time": 0.24,
                "backward_time": 0.3,
                "optimizer_time": 0.05,
                "other_time": 0.1,
            }
        )
        assert line["batch_time"] == pytest.approx(0.71)
        assert line["throughput_samples_per_sec"] == pytest.approx(2 / 0.71)


def test_with_real_sleeps_the_phases_add_up_to_the_step(run: Run) -> None:
    class Slow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.01)
            return super().forward(x)

    model = Slow(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=2)
    watched = run.watch(model, optimizer, loader)
    for (batch,) in loader:
        with watched.phase("transfer"):
            time.sleep(0.01)
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.02)
    run.finish()
    assert len(steps(run)) == 4
    for line in steps(run):
        assert sum(line[name] for name in PHASES) == pytest.approx(line["batch_time"], rel=0.02)
        assert line["transfer_time"] >= 0.01
        assert line["forward_time"] >= 0.01
        assert line["other_time"] >= 0.02
        assert line["backward_time"] > 0
        assert line["optimizer_time"] > 0
        assert line["data_time"] > 0


class SleepyLoss(Sleepy):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().mean()


@pytest.mark.parametrize(
    ("model", "loss", "phase"),
    [
        (SleepyLoss, lambda out: out, "other_time"),
        (SleepyLoss, lambda out: out / 3, "other_time"),
        (SleepyLoss, lambda out: torch.amp.GradScaler("cpu").scale(out * 0.1), "other_time"),
        (SleepyLoss, lambda out: out + 1, "forward_time"),
        (Sleepy, lambda out: out.square().mean(), "forward_time"),
    ],
    ids=["of the model", "divided", "scaled", "and a penalty", "of its output"],
)
def test_time_between_forward_and_backward_is_forward_time_only_if_the_loss_was_computed_there(
    run: Run, clock: VirtualClock, model: type[Sleepy], loss: Any, phase: str
) -> None:
    trained = model(clock)
    optimizer = SleepySGD(clock, trained.parameters())
    watch(run, clock, trained, optimizer)
    for _ in range(3):
        out = loss(trained(torch.ones(2, 4)))
        clock.sleep(0.4)  # less than three times the forward
        out.backward()
        optimizer.step()
    run.finish()
    for line in steps(run):
        found = phases(line)
        assert found.pop(phase) == pytest.approx(0.6 if phase == "forward_time" else 0.4)
        assert found == pytest.approx(
            {"backward_time": 0.3, "optimizer_time": 0.05} | ({} if phase == "forward_time" else {"forward_time": 0.2})
        )


def test_gradient_accumulation_is_one_step_of_several_forwards_and_backwards(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    loader = DataLoader(SleepyData(clock), batch_size=1)
    watch(run, clock, model, optimizer, loader)
    for index, batch in enumerate(loader, 1):
        (model(batch).mean() / 4).backward()
        if index % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    run.finish()
    assert len(steps(run)) == 2
    for line in steps(run):
        assert phases(line) == pytest.approx(
            {"data_time": 0.04, "forward_time": 0.8, "backward_time": 1.2, "optimizer_time": 0.05}
        )
        assert line["throughput_samples_per_sec"] == pytest.approx(4 / 2.09)


def test_evaluation_in_the_middle_is_other_time_and_no_step(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    loader = DataLoader(SleepyData(clock, 4), batch_size=2)
    held_out = DataLoader(SleepyData(clock, 4, seconds=1), batch_size=2)
    watch(run, clock, model, optimizer)
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            for other in held_out:
                model(other)
        model.train()
    run.finish()
    assert [phases(line)["other_time"] for line in steps(run)] == pytest.approx([4.4, 4.4])
    assert [phases(line)["data_time"] for line in steps(run)] == pytest.approx([0.02, 0.02])


def test_another_loader_than_the_given_one_is_other_time_even_with_gradients_on(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    loader = DataLoader(SleepyData(clock, 4), batch_size=2)
    second = DataLoader(SleepyData(clock, 2, seconds=1), batch_size=1)
    watch(run, clock, model, optimizer, loader)
    for batch in loader:
        for _ in second:
            pass
        model(batch).mean().backward()
        optimizer.step()
    run.finish()
    assert [line["other_time"] for line in steps(run)] == pytest.approx([2, 2])


def test_two_optimizers_and_several_forwards_are_one_step(run: Run, clock: VirtualClock) -> None:
    critic, maker = Sleepy(clock), Sleepy(clock)
    first, second = SleepySGD(clock, critic.parameters()), SleepySGD(clock, maker.parameters())
    watch(run, clock, [critic, maker], [first, second])
    for _ in range(3):
        critic(torch.ones(2, 4)).mean().backward()
        first.step()
        maker(torch.ones(2, 4)).mean().backward()
        second.step()
    run.finish()
    assert len(steps(run)) == 3
    for line in steps(run):
        assert phases(line) == pytest.approx({"forward_time": 0.4, "backward_time": 0.6, "optimizer_time": 0.1})


def test_a_generator_is_timed_through_batches(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())

    def generate() -> Iterator[torch.Tensor]:
        for _ in range(3):
            clock.sleep(0.5)
            yield torch.ones(6, 4)

    watched = watch(run, clock, model, optimizer)
    for batch in watched.batches(generate()):
        model(batch).mean().backward()
        optimizer.step()
    run.finish()
    assert [line["data_time"] for line in steps(run)] == pytest.approx([0.5, 0.5, 0.5])
    assert steps(run)[0]["throughput_samples_per_sec"] == pytest.approx(6 / steps(run)[0]["batch_time"])


def test_without_a_loader_the_parts_that_a_loss_is_made_of_are_called_with_one_batch(
    run: Run, clock: VirtualClock
) -> None:
    body, policy, value = Sleepy(clock), nn.Linear(1, 2), nn.Linear(1, 1)
    parameters = [p for part in (body, policy, value) for p in part.parameters()]
    optimizer = SleepySGD(clock, parameters)
    watch(run, clock, [body, policy, value], optimizer)
    for _ in range(3):
        for _ in range(2):  # micro-batches
            state = body(torch.ones(5, 4))
            (policy(state).mean() + value(state).mean()).backward()
        optimizer.step()
    run.finish()
    rates = [line["throughput_samples_per_sec"] * line["batch_time"] for line in steps(run)]
    assert rates == pytest.approx([10, 10, 10])


def test_a_closure_is_evaluated_with_one_batch(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    watch(run, clock, model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    run.finish()
    rates = [line["throughput_samples_per_sec"] * line["batch_time"] for line in steps(run)[1:]]
    assert rates == pytest.approx([5, 5])


def test_without_a_loader_several_losses_leave_open_what_the_batch_is(run: Run, clock: VirtualClock) -> None:
    critic, actor = Sleepy(clock), Sleepy(clock)
    optimizers = [SleepySGD(clock, critic.parameters()), SleepySGD(clock, actor.parameters())]
    watch(run, clock, [critic, actor], optimizers)
    for _ in range(3):
        for model, optimizer in zip((critic, actor), optimizers, strict=True):
            model(torch.ones(5, 4)).mean().backward()
            optimizer.step()
    run.finish()
    assert len(steps(run)) == 3
    assert not any("throughput_samples_per_sec" in line for line in steps(run))


def test_two_optimizers_of_one_loss_have_one_batch(run: Run, clock: VirtualClock) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    optimizers = [SleepySGD(clock, part.parameters()) for part in model]
    watch(run, clock, model, optimizers)
    for _ in range(3):
        model(torch.ones(5, 4)).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    run.finish()
    rates = [line["throughput_samples_per_sec"] * line["batch_time"] for line in steps(run)]
    assert rates == pytest.approx([5, 5, 5])


def test_finding_the_model_takes_no_time_of_the_first_step(
    run: Run, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = discovery.find_models

    def find_slowly(parameters: Any) -> list[Any]:
        clock.sleep(50)
        return find(parameters)

    monkeypatch.setattr(discovery, "find_models", find_slowly)
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    clock.govern(run.watch())
    for _ in range(3):
        model(torch.ones(5, 4)).mean().backward()
        optimizer.step()
    run.finish()
    assert [line["batch_time"] for line in steps(run)[1:]] == pytest.approx([0.55, 0.55])
    assert all(line["batch_time"] < 1 for line in steps(run) if "batch_time" in line)


def test_an_optimizer_for_each_parameter_costs_no_look_at_every_object_each(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    find_models, find_optimizers = discovery.find_models, discovery.find_optimizers
    monkeypatch.setattr(discovery, "find_models", lambda wanted: looks.append(1) or find_models(wanted))
    monkeypatch.setattr(discovery, "find_optimizers", lambda: looks.append(1) or find_optimizers())
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    run.watch(report=True)
    losses = []
    for _ in range(4):
        loss = model(torch.ones(5, 4)).square().mean()
        loss.backward()
        losses.append(loss.item())
    run.finish()
    assert [line["loss"] for line in steps(run)] == pytest.approx(losses)
    assert len(looks) <= 4


def test_a_trained_number_outside_of_every_module_is_no_sign_that_no_model_is_known(run: Run) -> None:
    temperature = torch.zeros(1, requires_grad=True)
    policy = nn.Linear(4, 1)
    first, second = torch.optim.SGD([temperature], lr=0.1), torch.optim.SGD(policy.parameters(), lr=0.1)
    run.watch(report=True, budget_percent=0)
    for _ in range(4):
        for optimizer, loss in ((first, temperature.exp().sum()), (second, policy(torch.ones(5, 4)).mean())):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run.finish()
    assert "model" not in messages(run) and "module" not in messages(run)
    assert any("weight_norm/bias" in line for line in steps(run))


def test_updates_without_a_backward_have_no_backward_time_and_it_is_said(run: Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(report=True)

    def compute_loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = torch.func.functional_call(model, parameters, (torch.ones(5, 4),)).square().mean()
        return loss

    for _ in range(4):
        gradients, _ = torch.func.grad_and_value(compute_loss)(dict(model.named_parameters()))
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
    run.finish()
    assert len(steps(run)) == 4
    assert all("optimizer_time" in line and "backward_time" not in line for line in steps(run)[1:])
    assert messages(run).count("no backward is seen (torch.func, or gradients set by hand)") == 1


def test_a_generator_given_as_loader_is_said_to_be_untimed(run: Run, clock: VirtualClock) -> None:
    run.watch(nn.Linear(1, 1), loader=(n for n in range(3)))
    assert "a generator cannot be timed in place: for data_time, use watch.batches(loader)" in messages(run)


def test_without_a_loader_a_step_ends_where_the_next_forward_begins(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    watch(run, clock, model, optimizer)
    clock.sleep(100)  # setting up belongs to no step
    for _ in range(3):
        model(torch.ones(5, 4)).mean().backward()
        optimizer.step()
        clock.sleep(0.1)
    clock.sleep(100)  # nor does what comes after the training
    run.finish()
    assert [line["batch_time"] for line in steps(run)] == pytest.approx([0.65, 0.65, 0.55])
    assert all(line["throughput_samples_per_sec"] == pytest.approx(5 / line["batch_time"]) for line in steps(run))


def test_a_closure_is_forward_and_backward_and_the_rest_is_the_optimizer(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    watch(run, clock, model, optimizer)

    def closure() -> torch.Tensor:
        loss = model(torch.ones(2, 4)).mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    run.finish()
    line = steps(run)[-1]
    assert phases(line) == pytest.approx({"forward_time": 0.2, "backward_time": 0.3, "optimizer_time": 0.05})


def test_a_batch_that_must_move_to_the_models_device_costs_transfer_time(run: Run, clock: VirtualClock) -> None:
    model = nn.Linear(4, 1, device="meta")  # a device that every machine has
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(SleepyData(clock), batch_size=4)
    watch(run, clock, model, optimizer, loader)
    for batch in loader:
        moved = batch.to("meta")
        clock.sleep(0.25)
        model(moved).mean().backward()
        optimizer.step()
    run.finish()
    assert [line["transfer_time"] for line in steps(run)] == pytest.approx([0.25, 0.25])


def test_activation_checkpointing_runs_the_forward_again_inside_the_backward(run: Run, clock: VirtualClock) -> None:
    from torch.utils.checkpoint import checkpoint

    inner = Sleepy(clock, backward=0.0)
    optimizer = SleepySGD(clock, inner.parameters())
    watch(run, clock, inner, optimizer)
    for _ in range(2):
        checkpoint(inner, torch.ones(2, 4), use_reentrant=False).mean().backward()
        optimizer.step()
    run.finish()
    assert phases(steps(run)[0]) == pytest.approx({"forward_time": 0.2, "backward_time": 0.2, "optimizer_time": 0.05})


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_model_has_forward_time_whichever_of_the_two_is_watched(
    run: Run, clock: VirtualClock, fullgraph: bool
) -> None:
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    run.watch(model if fullgraph else None, activations=["1"], activations_every=1, layers_every=1)
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        compiled(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run.finish()
    timed = [line for line in steps(run) if "batch_time" in line]
    assert len(timed) >= 2
    for line in timed[1:]:
        assert line["forward_time"] > 0
        assert line["backward_time"] > 0
    assert not [event for event in events(run) if "not watched any more" in event["message"]]


def test_a_whole_compiled_step_still_compiles_in_one_piece(run: Run) -> None:
    torch.compiler.reset()
    model = nn.Linear(4, 1)
    run.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))

    @torch.compile(backend="eager", fullgraph=True)
    def forward_and_clip(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(x).sum()
        return out

    forward_and_clip(torch.ones(2, 4)).backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("whole", [False, True])
def test_an_optimizer_step_that_is_compiled_has_nothing_of_ours_and_its_steps_are_still_seen(
    run: Run, whole: bool
) -> None:
    counters = import_module("torch._dynamo.utils").counters
    earlier = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)  # as of another cell of a notebook
    for parameter in earlier.param_groups[0]["params"]:
        parameter.grad = torch.ones_like(parameter)

    def train() -> tuple[list[float], int, int]:
        torch.compiler.reset()
        counters.clear()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def update() -> None:
            optimizer.step()

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            compiled()
            return loss

        compiled = update if whole else torch.compile(update, backend="eager")
        make_step = torch.compile(step, backend="eager") if whole else step
        losses = [make_step().item() for _ in range(6)]
        return losses, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    plain = train()
    run.watch(report=True)
    assert train() == plain
    run.finish()
    if not whole:  # of which nothing can be seen
        assert [line["loss"] for line in steps(run)] == pytest.approx(plain[0])
        assert not any("optimizer_time" in line for line in steps(run))


def test_mixed_precision_with_a_scaler_reports_the_gradient_norm_unscaled(run: Run) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run.watch(model, optimizer, budget_percent=0, report=True)
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    run.finish()
    for line in steps(run):
        assert line["gradient_norm"] == pytest.approx(5**0.5, rel=0.01)  # four weights of 1, and a bias of 1
        assert line["loss"] == pytest.approx(loss.item())


def test_a_step_that_the_scaler_skips_is_a_step_with_its_own_loss_and_no_norm(run: Run, clock: VirtualClock) -> None:
    model = Sleepy(clock)
    optimizer = SleepySGD(clock, model.parameters())
    scaler = torch.amp.GradScaler("cpu")
    watch(run, clock, model, optimizer, report=True, budget_percent=0)
    for scale in (float("inf"), 1.0, float("inf"), 1.0):
        scaler.scale(model(torch.ones(2, 4)).mean() * scale).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    run.finish()
    assert [line["forward_time"] for line in steps(run)] == pytest.approx([0.2] * 4)
    assert [math.isinf(float(line["loss"])) for line in steps(run)] == [True, False, True, False]
    assert ["gradient_norm" in line for line in steps(run)] == [False, True, False, True]


# -- step numbers beside the user's own lines


def loop(run: Run, count: int, log: Any = None) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    for index in range(count):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        if log is not None:
            log(index)


def test_lines_have_the_step_that_the_user_logs(run: Run) -> None:
    loop(run, 4, lambda index: run.log({"loss": 1.0}, step=100 + 10 * index))
    run.finish()
    assert [line["step"] for line in steps(run)] == [100, 110, 120, 130]
    assert all("loss" not in line for line in steps(run))
    assert [line["step"] for line in lines(run) if "loss" in line] == [100, 110, 120, 130]


def test_steps_are_counted_where_the_user_logs_only_some(run: Run) -> None:
    loop(run, 6, lambda index: run.log({"loss": 1.0}, step=index) if index % 3 == 2 else None)
    run.finish()
    assert [line["step"] for line in steps(run)] == [0, 1, 2, 3, 4, 5]


def test_counted_steps_and_a_log_without_a_step_agree(run: Run) -> None:
    loop(run, 6, lambda index: run.log({"loss": float(index)}) if index % 3 == 2 else None)
    run.finish()
    assert [(line["step"], line["loss"]) for line in lines(run) if "loss" in line] == [(2, 2.0), (5, 5.0)]


def test_a_user_who_logs_by_epoch_does_not_set_the_steps_back(run: Run) -> None:
    loop(run, 6, lambda index: run.log({"validation": 1.0}, step=index // 3) if index % 3 == 2 else None)
    run.finish()
    assert [line["step"] for line in steps(run)] == [0, 1, 2, 3, 4, 5]


def test_short_steps_are_written_many_at_once_and_none_is_lost(run: Run) -> None:
    loop(run, 500)
    run.finish()
    assert [line["step"] for line in steps(run)] == list(range(500))


# -- before and after


def test_remove_puts_everything_back(run: Run) -> None:
    before = (
        torch.autograd.backward,
        DataLoader.__iter__,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = run.watch(model, optimizer, activations=["*"], activations_every=1)
    assert torch.autograd.backward is not before[0]
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    watched.remove()
    after = (
        torch.autograd.backward,
        DataLoader.__iter__,
        torch.utils.data.dataloader._BaseDataLoaderIter.__next__,
    )
    assert after == before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_pre_hooks
    model(torch.ones(2, 4)).mean().backward()
    optimizer.step()
    run.finish()
    assert len(steps(run)) == 0 or steps(run)[-1]["step"] == 0


def test_a_model_that_is_deleted_is_gone(run: Run) -> None:
    import weakref

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, budget_percent=0, layers_every=1)
    for _ in range(3):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    ghost = weakref.ref(model.weight)
    del model, optimizer
    gc.collect()
    assert ghost() is None


def launch(tmp_path: Path, script: str) -> RunReader:
    """Two ranks under torchrun; their run."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(script))
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(path),
        str(tmp_path / "runs"),
    ]
    environ = os.environ | GENTLE_EXIT
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    return open_run("latest", tmp_path / "runs")


def read(run: RunReader, name: str, rank: int) -> list[float]:
    found = run.series([name], participants=[Participant(rank=rank)])
    return [float(value) for value in found[0].y] if found else []


def test_two_ranks_with_ddp_each_have_their_own_phases(tmp_path: Path) -> None:
    found = launch(
        tmp_path,
        """
        import sys, torch, trainvitals
        import torch.distributed as dist
        from torch import nn
        dist.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = trainvitals.init(dir=sys.argv[1], agent=False)
        run.watch(model, optimizer, budget_percent=0, layers_every=1)
        for _ in range(5):
            model(torch.ones(2, 4) * (1 + dist.get_rank())).mean().backward()
            optimizer.step(); optimizer.zero_grad()
        run.finish()
        dist.destroy_process_group()
        """,
    )
    assert len(read(found, "batch_time", 0)) == len(read(found, "batch_time", 1)) == 5
    assert read(found, "gradient_norm", 0) == read(found, "gradient_norm", 1)  # what DDP averaged
    assert read(found, "gradient_norm/0", 1)  # by the name it has without DDP


def test_two_ranks_with_fsdp_know_their_share_of_the_gradients(tmp_path: Path) -> None:
    found = launch(
        tmp_path,
        """
        import sys, torch, trainvitals
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))  # the last bias fits on one rank only
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run = trainvitals.init(dir=sys.argv[1], agent=False)
        run.watch(model, optimizer, budget_percent=0, layers_every=1, histograms_every=1)
        for _ in range(5):
            model(torch.ones(2, 4)).mean().backward()
            whole = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).full_tensor()
            run.log({"whole": float(whole)})
            optimizer.step(); optimizer.zero_grad()
        run.finish()
        dist.destroy_process_group()
        """,
    )
    shares = [read(found, "gradient_norm_shard", rank) for rank in (0, 1)]
    together = [(one**2 + other**2) ** 0.5 for one, other in zip(*shares, strict=True)]
    assert together == pytest.approx(read(found, "whole", 0), rel=1e-5)
    assert len(read(found, "batch_time", 1)) == 5
    assert read(found, "gradient_norm", 0) == []
    assert read(found, "weight_norm/0", 1)
    assert found.events() == []


def test_two_ranks_that_clip_know_the_whole_norm(tmp_path: Path) -> None:
    found = launch(
        tmp_path,
        """
        import sys, torch, trainvitals
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        dist.init_process_group("gloo")
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run = trainvitals.init(dir=sys.argv[1], agent=False)
        run.watch(model, optimizer, budget_percent=0)
        for _ in range(5):
            model(torch.ones(2, 4)).mean().backward()
            whole = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            run.log({"whole": float(whole.full_tensor())})
            optimizer.step(); optimizer.zero_grad()
        run.finish()
        dist.destroy_process_group()
        """,
    )
    for rank in (0, 1):
        assert read(found, "gradient_norm", rank) == pytest.approx(read(found, "whole", 0))
        assert read(found, "gradient_norm_shard", rank) == []


def test_two_ranks_with_the_first_fsdp_know_their_share_too(tmp_path: Path) -> None:
    launch(
        tmp_path,
        """
        import sys, torch, trainvitals
        import torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import FullyShardedDataParallel
        dist.init_process_group("gloo")
        for project in ("flat", "original"):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            options = {"device_id": torch.device("cpu"), "use_orig_params": project == "original"}
            model = FullyShardedDataParallel(model, **options)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            run = trainvitals.init(project, dir=sys.argv[1], agent=False)
            run.watch(model, optimizer, budget_percent=0, layers_every=1, histograms_every=1)
            for _ in range(5):
                model(torch.ones(2, 4)).mean().backward()
                run.log({"whole": float(model.clip_grad_norm_(1e9))})
                optimizer.step(); optimizer.zero_grad()
            run.finish()
        dist.destroy_process_group()
        """,
    )
    for project, layer in (("flat", "_flat_param"), ("original", "0")):
        (folder,) = (path.parent for path in (tmp_path / "runs" / project).glob("*/run.json"))
        found = RunReader(folder)
        shares = [read(found, "gradient_norm_shard", rank) for rank in (0, 1)]
        together = [(one**2 + other**2) ** 0.5 for one, other in zip(*shares, strict=True)]
        assert together == pytest.approx(read(found, "whole", 0), rel=1e-5)
        assert len(read(found, "batch_time", 1)) == 5
        assert all(seconds > 0 for name in ("forward_time", "backward_time") for seconds in read(found, name, 1))
        assert read(found, "gradient_norm", 0) == []
        assert read(found, f"weight_norm/{layer}", 0)
        assert found.events() == []

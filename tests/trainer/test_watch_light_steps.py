"""Short steps: once the phases have had their share of the time, most steps have only their time and their loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watching import VirtualClock, messages, running, steps

from trainvitals.trainer.run import Run
from trainvitals.trainer.watch import budget, loop
from trainvitals.trainer.watch.loop import Watch

X = torch.linspace(-1, 1, 48).view(12, 4)

pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(autouse=True)
def no_time_for_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "FIRST_STEPS", 2)
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.0)


class Training:
    """One optimizer, by default without a loader."""

    def __init__(self, run: Run, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.watch: Watch = run.watch(self.model, **{"report": True, "budget_percent": 1e-9} | options)
        self.losses: list[float] = []

    def step(self, batch: torch.Tensor = X) -> None:
        loss = (self.model(batch) - 2).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    @property
    def is_light(self) -> bool:
        return self.watch.moments.light.active


def test_a_step_without_phases_has_its_time_loss_and_learning_rate_and_nothing_invented(run: Run) -> None:
    training = Training(run, gradients_every=1)
    for _ in range(30):
        training.step()
    assert training.is_light
    run.finish()
    written = steps(run)
    assert [line["step"] for line in written] == list(range(30))
    assert [line["loss"] for line in written] == pytest.approx(training.losses)
    # The first look is never refused; a busy machine may make it so long that the second is.
    assert "forward_time" in written[1] and "gradient_norm" in written[0]
    assert set(written[-2]) == {"timestamp", "step", "batch_time", "loss", "learning_rate", "watch_time"}


def test_steps_with_and_without_phases_follow_each_other_without_a_gap(run: Run) -> None:
    clock = VirtualClock()
    training = Training(run)
    clock.govern(training.watch)
    for number in range(31):
        training.watch._budget._seconds = 0.0 if number % 4 else 1.0
        clock.sleep(0.25)  # before the forward: belongs to the step before
        training.step()
        clock.sleep(0.75)
    run.finish()
    written = steps(run)
    assert [line["batch_time"] for line in written[1:-1]] == pytest.approx([1.0] * 29)
    assert sum("forward_time" in line for line in written[4:-1]) in (6, 7)


def test_phases_and_looks_are_paid_from_one_budget_and_come_together(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(budget, "MOST_SECONDS", 0.001)
    clock = VirtualClock()
    training = Training(run, gradients_every=1, memory_every=1, budget_percent=0.01)
    clock.govern(training.watch)
    for _ in range(200):
        training.step()
        clock.sleep(1)
    run.finish()
    written = steps(run)[loop.FIRST_STEPS :]
    in_full = [line for line in written if "forward_time" in line]
    assert 1 < len(in_full) < len(written)
    assert all("gradient_norm" in line and "host_memory_mb" in line for line in in_full)
    seconds = sum(line["batch_time"] for line in written)
    # The last one may have taken more than there was.
    assert budget.UNSEEN * sum(line["watch_time"] for line in in_full[:-1]) <= 0.0001 * seconds + 0.001


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
def test_an_evaluation_between_steps_belongs_to_the_step_before_it(run: Run, loader: bool) -> None:
    clock = VirtualClock()
    training = Training(run)
    clock.govern(training.watch)
    data: Any = DataLoader(TensorDataset(X), batch_size=2) if loader else [(row,) for row in X.split(2)]
    for epoch in range(3):
        for (batch,) in data:
            training.step(batch)
            clock.sleep(0.5)
        training.model.eval()
        with torch.no_grad():
            for (batch,) in data:
                training.model(batch)
        clock.sleep(10)
        training.model.train()
        assert training.is_light, epoch
    run.finish()
    written = steps(run)
    assert [line["loss"] for line in written] == pytest.approx(training.losses)
    times = [line.get("batch_time") for line in written]
    # With a loader the step ends where it is asked for a batch and has none: before the evaluation.
    assert times[10:13] == pytest.approx([0.5, 0.5, 10.5] if loader else [0.5, 10.5, 0.5])
    if loader:
        assert [line["epoch"] for line in written] == [0] * 6 + [1] * 6 + [2] * 6


def test_a_second_optimizer_that_appears_later_is_followed_in_full(run: Run) -> None:
    training = Training(run)
    for _ in range(10):
        training.step()
    assert training.is_light
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    for _ in range(5):
        training.step()
        other.step()
    assert not training.is_light
    run.finish()
    written = steps(run)
    assert len(written) == 15
    assert [next(v for k, v in line.items() if k.startswith("loss")) for line in written] == pytest.approx(
        training.losses
    )
    assert messages(run) == ""


def test_the_end_of_the_loop_is_the_end_of_its_last_step(run: Run) -> None:
    clock = VirtualClock()
    training = Training(run)
    clock.govern(training.watch)
    for _ in range(10):
        training.step()
        clock.sleep(1)
    run.finish()
    assert [line.get("batch_time") for line in steps(run)[2:]] == pytest.approx([1.0] * 7 + [0.0], abs=0.01)


def test_the_learning_rate_is_that_of_the_step_not_what_the_scheduler_makes_of_it(run: Run) -> None:
    training = Training(run)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 1, gamma=0.5)
    rates = []
    for _ in range(12):
        rates.append(scheduler.get_last_lr()[0])
        training.step()
        scheduler.step()
    run.finish()
    assert [line["learning_rate"] for line in steps(run)] == pytest.approx(rates)


def test_steps_that_the_program_numbers_itself_keep_their_numbers(run: Run) -> None:
    training = Training(run, report=False)
    for number in range(5, 205, 10):
        training.step()
        run.log({"loss": training.losses[-1]}, step=number)
    run.finish()
    assert [line["step"] for line in steps(run)] == list(range(5, 205, 10))


def test_the_norm_that_the_training_clips_by_is_in_every_line(run: Run) -> None:
    training = Training(run)
    norms = []
    for _ in range(12):
        (training.model(X) - 2).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)))
        training.optimizer.step()
        training.optimizer.zero_grad()
    run.finish()
    written = steps(run)
    assert [line["gradient_norm"] for line in written] == pytest.approx(norms)
    assert written[1]["gradient_clip_norm"] == pytest.approx(0.1)


def test_a_norm_that_is_only_computed_is_not_clipping(run: Run) -> None:
    training = Training(run)
    (training.model(X) - 2).square().mean().backward()
    nn.utils.clip_grad_norm_(training.model.parameters(), float("inf"))
    training.optimizer.step()
    run.finish()
    assert "gradient_clip_norm" not in steps(run)[0]


def test_a_step_that_the_scaler_skips_is_a_step_without_a_norm(run: Run) -> None:
    training = Training(run)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    losses = []
    for number in range(12):
        loss = (training.model(X) - 2).square().mean()
        losses.append(loss.item())
        training.optimizer.zero_grad()
        scaler.scale(loss * (float("inf") if number == 8 else 1)).backward()
        scaler.step(training.optimizer)
        scaler.update()
    assert training.is_light
    run.finish()
    written = steps(run)
    assert len(written) == 12
    assert [line["loss"] for line in written][9:] == pytest.approx(losses[9:])


def test_weights_are_the_same_to_the_bit(tmp_path: Any) -> None:
    found = []
    for percent in (0, 1e-9):
        with running(tmp_path / str(percent)) as run:
            training = Training(run, budget_percent=percent)
            for _ in range(20):
                training.step()
            assert training.is_light == bool(percent)
            found.append([p.detach().clone() for p in training.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_of_torch_is_left_changed_when_the_watch_ends_within_short_steps(run: Run) -> None:
    training = Training(run)
    for _ in range(10):
        training.step()
    assert training.is_light
    training.watch.remove()
    training.step()
    assert nn.Module._compiled_call_impl is None
    assert not training.is_light

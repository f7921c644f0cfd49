"""One line per iteration, and its loss as the program itself would print it, for loops of every kind, with the phases
of every step and with those of few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watching import steps

from trainvitals.trainer.run import Run
from trainvitals.trainer.watch import budget, loop

X = torch.linspace(-1, 1, 48).view(12, 4)
REPORT = {"report": True, "budget_percent": 0}


pytestmark = pytest.mark.usefixtures("own_places")


@pytest.fixture(autouse=True, params=["all phases", "few phases"])
def time_for_phases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once as if phases cost nothing, once as if the first steps had used up the time for them."""
    if request.param == "few phases":
        monkeypatch.setattr(loop, "FIRST_STEPS", 1)
        monkeypatch.setattr(budget, "MOST_SECONDS", 0.0)
        monkeypatch.setitem(REPORT, "budget_percent", 1e-9)


class Generator(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)


class Critic(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 1)


def read(run: Run, name: str = "loss") -> list[Any]:
    run.finish()
    return [line.get(name) for line in steps(run)]


def batches(size: int = 2) -> DataLoader[Any]:
    return DataLoader(TensorDataset(X), batch_size=size)


def make() -> tuple[nn.Linear, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def test_of_a_closure_the_loss_is_the_first_evaluation(run: Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    run.watch(model, **REPORT)
    firsts = []
    for _ in range(3):
        seen: list[float] = []

        def closure(seen: list[float] = seen) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (model(X) - 3).square().mean()
            loss.backward()
            seen.append(loss.item())
            return loss

        optimizer.step(closure)
        firsts.append(seen[0])
        assert len(seen) > 1 or len(firsts) > 1
    assert read(run) == pytest.approx(firsts)


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
@pytest.mark.parametrize("divided", [True, False], ids=["divided", "undivided"])
def test_accumulation_has_the_mean_of_its_micro_batches_also_in_a_last_group_with_fewer(
    run: Run, divided: bool, loader: bool
) -> None:
    model, optimizer = make()
    run.watch(model, **REPORT)
    expected, group = [], []
    source = batches(1) if loader else [(row,) for row in X.split(1)]
    for _ in range(2):
        for index, (batch,) in enumerate(source):  # 12 batches, by 5: the last group has 2
            loss = (model(batch) - 2).square().mean()
            (loss / 5 if divided else loss).backward()
            group.append(loss.item())
            if index % 5 == 4 or index == 11:
                optimizer.step()
                optimizer.zero_grad()
                expected.append(sum(group) / len(group))
                group = []
    assert read(run) == pytest.approx(expected)


def test_several_losses_of_one_batch_are_one_sum(run: Run) -> None:
    model, optimizer = make()
    run.watch(model, **REPORT)
    expected = []
    for (batch,) in batches():
        out = model(batch)
        first, second, third = out.square().mean(), out.abs().mean(), (out + 1).square().mean()
        first.backward(retain_graph=True)
        torch.autograd.backward([second, third])
        optimizer.step()
        optimizer.zero_grad()
        expected.append(first.item() + second.item() + third.item())
    assert read(run) == pytest.approx(expected)


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
@pytest.mark.parametrize("given", [True, False], ids=["given", "discovered"])
def test_two_optimizers_have_a_loss_each_and_one_step_per_iteration_from_the_first(
    run: Run, given: bool, loader: bool
) -> None:
    maker, critic = Generator(), Critic()
    optimizers = [torch.optim.Adam(model.parameters()) for model in (maker, critic)]
    run.watch(*([[maker, critic], optimizers] if given else []), **REPORT)
    expected: list[tuple[float, float]] = []
    for (batch,) in batches(3) if loader else [(X[:3],)] * 4:
        optimizers[0].zero_grad()
        made = maker(batch)
        maker_loss = critic(made).square().mean()
        maker_loss.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        real, fake = (critic(batch) - 1).square().mean(), critic(made.detach()).square().mean()
        real.backward()
        fake.backward()
        optimizers[1].step()
        expected.append((maker_loss.item(), real.item() + fake.item()))
    assert read(run, "loss") == [None] * 4
    found = [(line["loss/Generator"], line["loss/Critic"]) for line in steps(run)]
    assert found == [pytest.approx(pair) for pair in expected]


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
def test_a_critic_that_is_trained_more_often_makes_the_iterations(run: Run, loader: bool) -> None:
    maker, critic = Generator(), Critic()
    of_maker, of_critic = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, critic))
    run.watch(**REPORT)
    for index, (batch,) in enumerate(batches(2) if loader else [(X[:2],)] * 6):
        critic(batch).square().mean().backward()
        of_critic.step()
        if index % 3 == 2:
            critic(maker(batch)).mean().backward()
            of_maker.step()
    run.finish()
    assert len(steps(run)) == 6
    assert [index for index, line in enumerate(steps(run)) if "loss/Generator" in line] == [2, 5]


def test_a_generator_that_steps_first_and_only_with_some_batches_does_not_join_them(run: Run) -> None:
    maker, critic = Generator(), Critic()
    of_maker, of_critic = (torch.optim.SGD(model.parameters(), lr=0.01) for model in (maker, critic))
    run.watch(**REPORT)
    expected = []
    for index, (batch,) in enumerate(batches(2)):
        if index % 3 == 0:
            critic(maker(batch)).mean().backward()
            of_maker.step()
        loss = critic(batch).square().mean()
        loss.backward()
        of_critic.step()
        expected.append(loss.item())
    assert read(run, "loss/Critic") == pytest.approx(expected)
    assert [index for index, line in enumerate(steps(run)) if "loss/Generator" in line] == [0, 3]


@pytest.mark.parametrize("loader", [True, False], ids=["with a loader", "without"])
def test_a_model_and_an_optimizer_for_each_fold_are_not_those_of_one_step(run: Run, loader: bool) -> None:
    run.watch(**REPORT)
    losses, kept = [], []
    for fold in range(6):
        model, optimizer = make()
        if fold < 3:
            kept.append(optimizer)  # of the others the next one may get the place in memory
        for (x,) in batches(4) if loader else [(x,) for x in X.split(4)]:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert read(run) == pytest.approx(losses)


def test_an_optimizer_that_is_there_but_never_steps_changes_nothing(run: Run) -> None:
    model, optimizer = make()
    unused = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    run.watch(**REPORT)
    expected = []
    for _ in range(50):
        loss = model(X).square().mean()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert read(run) == pytest.approx(expected)
    assert unused.param_groups


def test_two_backwards_of_a_batch_are_one_sum_from_the_first_iteration_on(run: Run) -> None:
    generator, critic = Generator(), Critic()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (critic, generator)]
    run.watch(**REPORT)
    expected = []
    for (batch,) in batches():
        real = (critic(batch) - 1).square().mean()
        real.backward()
        made = generator(batch)
        fake = (critic(made.detach()) + 1).square().mean()
        fake.backward()
        optimizers[0].step()
        loss = (critic(made) - 1).square().mean()
        loss.backward()
        optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected.append((real + fake).item())
    assert read(run, "loss/Critic") == pytest.approx(expected)


def test_two_optimizers_of_one_loss_have_one_loss(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model]
    run.watch(**REPORT)
    expected = []
    for _ in range(4):
        loss = model(X).square().mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        expected.append(loss.item())
    assert read(run) == pytest.approx(expected)


GRADIENTS: dict[str, Callable[[torch.Tensor, nn.Module], Iterable[torch.Tensor]]] = {
    "grad, a list": lambda loss, model: torch.autograd.grad(loss, list(model.parameters())),
    "grad, a generator": lambda loss, model: torch.autograd.grad(loss, model.parameters()),
    "grad, a dict": lambda loss, model: torch.autograd.grad(loss, dict(model.named_parameters())).values(),
    "grad, values of a dict": lambda loss, model: torch.autograd.grad(loss, dict(model.named_parameters()).values()),
}


@pytest.mark.parametrize("way", ["backward", *GRADIENTS])
def test_weights_that_are_updated_by_hand_make_steps(run: Run, way: str) -> None:
    model = nn.Linear(4, 1)
    run.watch(model, **REPORT)
    expected = []
    for _ in range(6):
        loss = (model(X) - 1).square().mean()
        parameters = list(model.parameters())
        if way == "backward":
            model.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in parameters]
        else:
            gradients = list(GRADIENTS[way](loss, model))
        nn.utils.clip_grad_norm_(parameters, 10.0)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                assert gradient is not None
                parameter -= 0.1 * gradient
        expected.append(loss.item())
    run.finish()
    assert [line["loss"] for line in steps(run)] == pytest.approx(expected)
    assert all(line["forward_time"] > 0 and line["backward_time"] > 0 for line in steps(run))
    if way == "backward":
        assert all(line["gradient_norm"] > 0 for line in steps(run))


def test_what_autograd_grad_refuses_is_refused_as_ever(run: Run) -> None:
    model, _ = make()
    run.watch(model, **REPORT)

    def fail() -> Iterable[torch.Tensor]:
        yield from ()
        raise KeyError("of the program")

    refused: dict[type[Exception], Any] = {KeyError: fail(), RuntimeError: iter(()), TypeError: 5}
    for error, inputs in refused.items():
        loss = model(X).sum()
        with pytest.raises(error) as caught:
            torch.autograd.grad(loss, inputs)
        assert all(entry.path.name != "taps.py" for entry in caught.traceback)


def test_a_module_that_holds_none_of_the_parameters_loses_no_loss_when_that_is_found_out(run: Run) -> None:
    shape = nn.Linear(4, 1, device="meta")
    parameters = {name: nn.Parameter(torch.zeros(value.shape)) for name, value in shape.named_parameters()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.1)
    run.watch(**REPORT)
    losses = []
    for _ in range(6):
        loss = (torch.func.functional_call(shape, parameters, (X,)) - 2).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert read(run) == pytest.approx(losses)


def test_parameters_without_a_module_make_steps(run: Run) -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    run.watch(**REPORT)
    expected = []
    for _ in range(4):
        loss = (X @ weight).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert read(run) == pytest.approx(expected)


def test_a_gradient_penalty_inside_a_loss_is_no_backward(run: Run) -> None:
    model, optimizer = make()
    run.watch(model, **REPORT)
    expected = []
    for _ in range(3):
        inputs = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        loss = model(X).square().mean() + gradient.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert read(run) == pytest.approx(expected)


def test_without_a_source_of_batches_there_is_no_data_time_rather_than_0(run: Run) -> None:
    model, optimizer = make()
    run.watch(model, **REPORT)
    for _ in range(3):
        model(X).mean().backward()
        optimizer.step()
    run.finish()
    assert all("data_time" not in line and "transfer_time" not in line for line in steps(run))


def test_a_rollout_by_methods_of_the_model_is_other_time(run: Run) -> None:
    class Agent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)

        def act(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.actor(x).sum() + self.critic(x).sum()
            return out

    agent = Agent()
    optimizer = torch.optim.SGD(agent.parameters(), lr=0.01)
    watched = run.watch(agent, **REPORT | {"budget_percent": 0})
    hours = 3600 * 10**9
    now = [0]
    watched.clock.now = lambda: now[0]
    for _ in range(3):
        with torch.no_grad():
            agent.act(X)
            now[0] += hours  # the environment
            agent.act(X)
        loss = agent.act(X)
        now[0] += 1000
        loss.backward()
        optimizer.step()
    run.finish()
    for line in steps(run)[1:-1]:
        assert (line["other_time"], line["forward_time"]) == (3600, 1e-6)

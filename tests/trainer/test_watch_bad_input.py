"""Whatever the training does, it goes on as it would have, and what could not be seen is said in one line."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watching import events, messages, steps

from trainvitals.errors import SettingError
from trainvitals.trainer.run import Run

EVERY_STEP = {"layers_every": 1, "activations": ["*"], "activations_every": 1, "budget_percent": 0}


pytestmark = pytest.mark.usefixtures("own_places")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, count: int = 3) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        model(inputs).abs().float().sum().backward()
        optimizer.step()


def test_a_model_without_parameters_is_timed_and_that_is_said(run: Run) -> None:
    free = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([free], lr=0.1)
    model = nn.ReLU()
    run.watch(model, optimizer, **EVERY_STEP)
    for _ in range(3):
        model(free * 2).sum().backward()
        optimizer.step()
    run.finish()
    assert "ReLU has no parameters: no gradients or layers to look at" in messages(run)
    assert [line["step"] for line in steps(run)] == [0, 1, 2]
    assert steps(run)[0]["gradient_norm"] == pytest.approx(math.sqrt(12))


def test_frozen_layers_and_missing_gradients_are_left_out(run: Run) -> None:
    model = nn.ModuleDict({"frozen": nn.Linear(4, 4), "used": nn.Linear(4, 1), "unused": nn.Linear(4, 1)})
    model["frozen"].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, **EVERY_STEP)
    for _ in range(6):
        model["used"](model["frozen"](torch.ones(2, 4))).sum().backward()
        optimizer.step()
    run.finish()
    line = steps(run)[-1]
    assert "gradient_norm/used" in line
    assert "gradient_norm/unused" not in line
    assert "weight_norm/unused" in line
    assert not [key for key in line if key.endswith("/frozen") and "activation" not in key]
    assert events(run) == []


def test_sparse_gradients_have_their_norm(run: Run) -> None:
    model = nn.Embedding(10, 4, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, **EVERY_STEP)
    tokens = torch.tensor([1, 1, 2])
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()
    run.finish()
    expected = math.sqrt(4 * 2**2 + 4 * 1**2)  # row 1 twice, row 2 once
    assert steps(run)[1]["gradient_norm"] == pytest.approx(expected)
    assert steps(run)[1]["gradient_norm/weight"] == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.complex64])
def test_any_type_of_parameter_has_its_norm(run: Run, dtype: torch.dtype) -> None:
    model = nn.Linear(4, 1, bias=False, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, optimizer, **EVERY_STEP)
    train(model, optimizer, torch.ones(1, 4, dtype=dtype))
    run.finish()
    for line in steps(run):
        assert line["gradient_norm"] == pytest.approx(2.0, rel=0.01)
    assert "any more" not in messages(run)
    assert "weight_norm/weight" in steps(run)[1]


def test_parameters_of_mixed_types_are_one_norm(run: Run) -> None:
    first, second = (
        nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        nn.Parameter(torch.ones(4, dtype=torch.float64)),
    )
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    run.watch(None, optimizer, budget_percent=0)
    for _ in range(2):
        optimizer.zero_grad()
        (first.sum().double() + second.sum()).backward()
        optimizer.step()
    run.finish()
    assert steps(run)[1]["gradient_norm"] == pytest.approx(math.sqrt(7))


def test_a_parameter_that_becomes_nan_is_named_and_every_number_is_kept(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, **EVERY_STEP)
    train(model, optimizer, torch.ones(2, 4), 2)
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    for _ in range(2):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    run.finish()
    assert steps(run)[2]["gradient_norm"] == "NaN"
    assert steps(run)[2]["gradient_nan/0"] > 0
    said = {(event["event"], event["data"]["layer"]) for event in events(run)}
    assert ("layer_nonfinite_weights", "0") in said
    assert ("layer_nonfinite_gradient", "0") in said
    assert len(steps(run)) == 4


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.broken:
            raise KeyError("of the user's own")
        out: torch.Tensor = self.linear(x)
        return out


def test_a_forward_that_raises_raises_the_same_and_the_next_steps_are_right(run: Run) -> None:
    model = Raises()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, count_flops=True, **EVERY_STEP)
    for index in range(6):
        model.broken = index == 2
        if model.broken:
            with pytest.raises(KeyError, match="of the user's own"):
                model(torch.ones(2, 4))
        else:
            train(model, optimizer, torch.ones(2, 4), 1)
    run.finish()
    assert len(steps(run)) == 5
    assert all(line["forward_time"] > 0 and line["backward_time"] > 0 for line in steps(run))
    assert events(run) == []


def test_an_exception_between_forward_and_backward_is_the_users_alone(run: Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=2)
    run.watch(model, optimizer, loader, **EVERY_STEP)
    done = 0
    for index, (batch,) in enumerate(loader):
        try:
            loss = model(batch).sum()
            if index == 2:
                raise ValueError("loss is too odd")
            loss.backward()
            optimizer.step()
            done += 1
        except ValueError:
            continue
    run.finish()
    assert len(steps(run)) == done == 5


def test_an_optimizer_that_raises_does_not_confuse_what_follows(run: Run) -> None:
    model = nn.Linear(4, 1)

    class Refuses(torch.optim.SGD):
        broken = False

        def step(self, closure: object = None) -> None:  # type: ignore[override]
            if self.broken:
                raise RuntimeError("no")
            super().step()

    optimizer = Refuses(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.ones(12, 4)), batch_size=2)
    run.watch(model, optimizer, loader)
    for index, (batch,) in enumerate(loader):
        model(batch).sum().backward()
        optimizer.broken = index == 1
        try:
            optimizer.step()
        except RuntimeError as error:
            assert str(error) == "no"
    run.finish()
    lines = steps(run)
    assert len(lines) == 5
    assert all(line["data_time"] > 0 and line["forward_time"] > 0 for line in lines)


def test_watching_twice_is_watching_once(run: Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = run.watch(model, optimizer)
    assert run.watch(model, optimizer) is first
    assert run.watch(model, optimizer, layers_every=7) is first
    train(model, optimizer, torch.ones(2, 4), 4)
    run.finish()
    assert [line["step"] for line in steps(run)] == [0, 1, 2, 3]
    assert "called again with other options: the first ones count" in messages(run)


def test_a_loader_of_length_zero_makes_no_steps(run: Run) -> None:
    model = nn.Linear(4, 1)
    loader = DataLoader(TensorDataset(torch.ones(0, 4)), batch_size=2)
    run.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    assert list(loader) == []
    run.finish()
    assert steps(run) == []
    assert events(run) == []


def test_ten_thousand_parameters_are_a_line_that_can_be_read(run: Run) -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(10_000)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=1, budget_percent=0)
    for _ in range(2):
        optimizer.zero_grad()
        torch.cat(list(model)).sum().backward()
        optimizer.step()
    run.finish()
    line = steps(run)[1]
    assert line["gradient_norm"] == pytest.approx(math.sqrt(20_000), rel=1e-4)
    assert sum(key.startswith("gradient_norm/") for key in line) <= 200


def test_a_model_that_moves_after_watch_is_still_watched(run: Run) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = run.watch(model, optimizer, budget_percent=0)
    train(model, optimizer, torch.ones(2, 4), 2)
    model.to("meta")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(optimizer=optimizer)
    watched._written = 0  # look at the device now, not in 100 ms
    train(model, optimizer, torch.ones(2, 4, device="meta"), 3)
    run.finish()
    assert len(steps(run)) == 5
    assert "left out of gradient_norm: tensors on the meta device have no values" in messages(run)


def test_things_that_are_no_model_and_no_optimizer_are_said(run: Run) -> None:
    run.watch("a model", "an optimizer")
    assert "a str is no torch module: its forward is not seen" in messages(run)
    run.watch(nn.Linear)
    assert "the class Linear is no torch module: its forward is not seen" in messages(run)
    assert "a str is no torch optimizer: its steps are not seen" in messages(run)


def test_an_unknown_option_is_refused_at_the_call_with_the_nearest_name(run: Run) -> None:
    with pytest.raises(SettingError, match="watch\\(\\) has no option 'layer_every', did you mean 'layers_every'"):
        run.watch(nn.Linear(1, 1), layer_every=3)
    with pytest.raises(SettingError, match="gradients_every='often' is not an integer"):
        run.watch(nn.Linear(1, 1), gradients_every="often")


def test_an_unknown_phase_is_other_time_and_said(run: Run) -> None:
    watched = run.watch(nn.Linear(1, 1))
    with watched.phase("thinking"):
        pass
    assert "phase 'thinking' is not one of data," in messages(run)


@pytest.mark.promise("a bug in `watch`", "watching ends, the training does not")
def test_a_failure_of_ours_ends_the_watching_and_not_the_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = run.watch(model, optimizer)
    train(model, optimizer, torch.ones(2, 4), 2)

    def break_down(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(watched._measures, "before_optimizer", break_down)
    before = model.weight.detach().clone()
    train(model, optimizer, torch.ones(2, 4), 1)
    assert not torch.equal(before, model.weight)
    assert "the training is not watched any more, optimizer_begins failed: ZeroDivisionError()" in messages(run)
    run.finish()
    assert not optimizer._optimizer_step_pre_hooks


def test_a_look_that_fails_is_the_last_of_its_kind_and_the_phases_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = run.watch(model, optimizer, layers_every=1, budget_percent=0)

    def break_down(*_: object, **__: object) -> None:
        raise LookupError("nothing to see here")

    monkeypatch.setattr(watched._measures, "_begin_layers", break_down)
    train(model, optimizer, torch.ones(2, 4), 4)
    run.finish()
    assert messages(run).count("layers are not measured any more: LookupError('nothing to see here')") == 1
    assert [line["step"] for line in steps(run)] == [0, 1, 2, 3]


def test_a_second_thread_that_runs_the_model_does_not_disturb_the_steps(run: Run) -> None:
    import threading

    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            model(torch.ones(1, 4))

    train(model, optimizer, torch.ones(2, 4), 1)
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        train(model, optimizer, torch.ones(2, 4), 20)
    finally:
        stop.set()
        thread.join()
    run.finish()
    assert [line["step"] for line in steps(run)] == list(range(21))
    assert events(run) == []

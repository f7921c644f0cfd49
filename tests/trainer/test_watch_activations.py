"""What flows through modules, against torch's own numbers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from watching import messages, steps

from trainvitals.trainer.run import Run
from trainvitals.trainer.watch.activations import ELEMENTS, STATISTICS, describe, entropy, take_rows

pytestmark = pytest.mark.usefixtures("own_places")


def described(output: torch.Tensor, units: int) -> dict[str, float]:
    return dict(zip(STATISTICS, describe(take_rows(output, units)[None])[0].tolist(), strict=True))


def test_mean_spread_zeros_and_dead_units() -> None:
    output = torch.tensor([[0.0, 1.0, 0.0, 3.0], [0.0, 2.0, 4.0, 0.0]])
    found = described(output, units=1)
    assert found["mean"] == pytest.approx(float(output.mean()))
    assert found["std"] == pytest.approx(float(output.std(correction=0)))
    assert found["zeros"] == pytest.approx(4 / 8)
    assert found["dead"] == pytest.approx(1 / 4)  # the first unit


def test_channels_of_a_convolution_are_its_units() -> None:
    output = torch.ones(2, 3, 5, 5)
    output[:, 1] = 0
    assert described(output, units=1)["dead"] == pytest.approx(1 / 3)


def test_kurtosis_tells_a_normal_distribution_from_one_with_outliers() -> None:
    torch.manual_seed(0)
    normal = torch.randn(1000, 50)
    spiky = normal.clone()
    spiky[:, 0] *= 50
    assert described(normal, 1)["kurtosis"] == pytest.approx(3, abs=0.3)
    assert described(spiky, 1)["kurtosis"] > 20


def test_a_large_output_is_thinned_out_but_keeps_all_its_units() -> None:
    output = torch.ones(64, 1024, 128)
    output[..., 5] = 0
    assert output.numel() > ELEMENTS
    assert described(output, units=2)["dead"] == pytest.approx(1 / 128)


def test_outputs_of_one_shape_are_described_together_as_each_alone() -> None:
    torch.manual_seed(0)
    outputs = [torch.randn(6, 4), torch.randn(6, 4).relu(), torch.full((6, 4), math.nan)]
    together = describe(torch.stack([take_rows(output, 1) for output in outputs]))
    for output, numbers in zip(outputs, together, strict=True):
        alone = list(described(output, 1).values())
        assert numbers.tolist() == pytest.approx(alone, nan_ok=True)


def test_an_output_that_is_changed_in_place_afterwards_is_seen_as_it_was(run: Run) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, activations=["0", "1"], activations_every=1, budget_percent=0)
    for _ in range(2):
        model(torch.randn(16, 8)).mean().backward()
        optimizer.step()
    run.finish()
    line = steps(run)[-1]
    assert line["activation_zeros/0"] == 0
    assert line["activation_zeros/1"] > 0


def test_half_precision_does_not_overflow() -> None:
    found = described(torch.full((64, 64), 300.0, dtype=torch.float16), 1)
    assert found["mean"] == 300
    assert found["std"] == 0


def test_entropy_of_attention_is_none_for_one_position_and_log_n_for_all() -> None:
    assert float(entropy(torch.eye(8).expand(2, 4, 8, 8))) == pytest.approx(0, abs=1e-6)
    assert float(entropy(torch.full((2, 4, 8, 8), 1 / 8))) == pytest.approx(math.log(8))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.feed(self.attention(x, x, x, need_weights=True)[0])
        return out


def test_chosen_modules_are_looked_at_every_n_steps(run: Run) -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, activations=["attention", "feed.1"], activations_every=2, budget_percent=0)
    for _ in range(4):
        model(torch.randn(3, 5, 8)).mean().backward()
        optimizer.step()
    run.finish()
    lines = steps(run)
    assert [line["step"] for line in lines if "activation_mean/feed.1" in line] == [1, 3]
    assert 0 < lines[1]["activation_zeros/feed.1"] < 1
    assert 0 < lines[1]["attention_entropy/attention"] <= math.log(5) + 1e-6
    assert "activation_mean/feed.0" not in lines[1]
    assert lines[1]["watch_time/activations"] > 0


def test_a_model_that_is_a_single_layer_is_named_after_its_kind(run: Run) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, activations=["*"], activations_every=1, budget_percent=0)
    for _ in range(3):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
    run.finish()
    assert "activation_mean/Linear" in {name for row in steps(run) for name in row}


def test_a_pattern_that_means_no_module_is_said(run: Run) -> None:
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, activations=["decoder"], activations_every=1, budget_percent=0)
    for _ in range(3):
        model(torch.randn(3, 5, 8)).mean().backward()
        optimizer.step()
    assert "no module matches decoder" in messages(run)

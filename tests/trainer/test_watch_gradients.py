"""Norms, layers and their health: against torch's own numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from watching import events, steps

import trainvitals
from trainvitals.conditions import Conditions
from trainvitals.trainer.run import Run
from trainvitals.trainer.watch.gradients import LayerNumbers
from trainvitals.trainer.watch.health import PATIENCE, LayerHealth
from trainvitals.trainer.watch.layers import group, matches

pytestmark = pytest.mark.usefixtures("own_places")


def norm(tensors: Any) -> float:
    return math.sqrt(sum(float(tensor.detach().double().abs().square().sum()) for tensor in tensors))


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def test_the_global_norm_is_that_of_all_gradients_at_every_step(run: Run) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, budget_percent=0)
    expected = []
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        expected.append(norm(p.grad for p in model.parameters()))
        optimizer.step()
    run.finish()
    assert [line["gradient_norm"] for line in steps(run)] == pytest.approx(expected)


def test_the_norm_before_clipping_is_what_is_written(run: Run) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer)
    expected = []
    for _ in range(3):
        optimizer.zero_grad()
        (1000 * model(torch.randn(3, 4)).square().mean()).backward()
        expected.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
    run.finish()
    assert min(expected) > 1
    assert [line["gradient_norm"] for line in steps(run)] == pytest.approx(expected)
    assert all("watch_time/gradients" not in line for line in steps(run))  # it cost nothing


def test_every_n_steps_each_layer_is_looked_at(run: Run) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=2, gradients_every=0, budget_percent=0)
    expected = []
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        layer = model.get_submodule("2")
        parameters = list(layer.parameters())
        before = [p.detach().clone() for p in parameters]
        numbers = {
            "gradient_norm/2": norm(p.grad for p in parameters),
            "gradient_max/2": max(float(p.grad.abs().max()) for p in parameters if p.grad is not None),
            "weight_norm/2": norm(parameters),
        }
        optimizer.step()
        change = norm(after - old for after, old in zip(parameters, before, strict=True))
        expected.append({**numbers, "update_ratio/2": change / norm(before)})
    run.finish()
    lines = steps(run)
    assert [line["step"] for line in lines if "weight_norm/2" in line] == [1, 3]
    for index in (1, 3):
        found = {key: lines[index][key] for key in expected[index]}
        assert found == pytest.approx(expected[index])
    assert {key.rpartition("/")[2] for key in lines[1] if key.startswith("weight_norm/")} == {"0", "2", "4"}


def test_only_the_layers_asked_for_are_looked_at(run: Run) -> None:
    model = nn.ModuleDict({"encoder": small_model(), "decoder": nn.Linear(1, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=1, track_layers=["encoder"], budget_percent=0)
    for _ in range(3):
        model["decoder"](model["encoder"](torch.randn(3, 4))).sum().backward()
        optimizer.step()
    run.finish()
    layers = {key for key in steps(run)[1] if key.startswith("gradient_norm/")}
    assert layers == {"gradient_norm/encoder.0", "gradient_norm/encoder.2", "gradient_norm/encoder.4"}


def test_histograms_are_written_when_asked_for(run: Run) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, histograms_every=2, budget_percent=0)
    for _ in range(4):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    run.finish()
    rows = [json.loads(line) for line in (run.folder / "media" / "histograms.rank0.jsonl").read_text().splitlines()]
    assert {row["step"] for row in rows} == {1, 3}
    assert {row["name"] for row in rows} == {f"{kind}/{n}" for kind in ("weights", "gradients") for n in (0, 2, 4)}
    first = next(row for row in rows if row["name"] == "weights/0")
    assert sum(first["counts"]) == 4 * 8 + 8
    assert first["low"] < 0 < first["high"]


def histograms_of(run: Run) -> list[dict[str, Any]]:
    (path,) = (run.folder / "media").glob("histograms*")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_histogram_counts_what_torch_counts_and_what_is_not_finite_apart(run: Run) -> None:
    model = nn.Module()
    torch.manual_seed(0)
    values = {
        "many": torch.randn(64, 32),
        "few": torch.tensor([1.0, 2.0, 2.0, 5.0]),
        "same": torch.full((9,), 3.0),
        "tiny": torch.tensor([0.0, 1e-45, 0.0]),
        "broken": torch.tensor([1.0, math.nan, 3.0, math.inf]),
        "lost": torch.full((5,), math.nan),
    }
    for name, value in values.items():
        model.register_parameter(name, nn.Parameter(value.clone()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run.watch(model, optimizer, histograms_every=1, layers_every=0, gradients_every=0, budget_percent=0)
    for _ in range(2):
        sum(p.sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
        optimizer.step()
    run.finish()
    found = {row["name"].removeprefix("weights/"): row for row in histograms_of(run) if row["step"] == 1}
    for name in ("many", "few"):
        low, high = float(values[name].min()), float(values[name].max())
        expected = torch.histc(values[name], bins=64, min=low, max=high).int().tolist()
        assert (found[name]["low"], found[name]["high"]) == (low, high)
        assert found[name]["counts"] == expected
    assert found["same"]["counts"] == [9]
    assert sum(found["tiny"]["counts"]) == 3
    assert sum(found["broken"]["counts"]) == 2
    assert found["broken"]["nonfinite"] == 2
    assert "lost" not in found
    assert found["gradients/few"]["counts"] == [4]


def test_layers_of_several_types_and_layouts_have_the_norms_of_their_own_parameters(run: Run) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "narrow": nn.Linear(40, 30, dtype=torch.bfloat16),
            "wide": nn.Linear(40, 30, dtype=torch.float64),
            "last": nn.Conv2d(8, 16, 3).to(memory_format=torch.channels_last),
            "turned": nn.Linear(3, 5),
        }
    )
    model["turned"].weight = nn.Parameter(torch.randn(50, 100).t())
    model["cut"] = nn.Linear(1, 1)
    model["cut"].weight = nn.Parameter(torch.randn(60, 60)[:, ::2])  # neither dense nor contiguous
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.watch(model, optimizer, layers_every=1, budget_percent=0)
    expected: dict[str, float] = {}
    for _ in range(2):
        optimizer.zero_grad()
        sum((p.double() ** 2).sum() for p in model.parameters()).backward()  # type: ignore[union-attr]
        for name, layer in model.items():
            expected[name] = math.sqrt(sum(float(p.detach().double().square().sum()) for p in layer.parameters()))
        optimizer.step()
    run.finish()
    line = steps(run)[1]
    for name, norm in expected.items():
        assert line[f"weight_norm/{name}"] == pytest.approx(norm, rel=1e-3)
        assert line[f"gradient_norm/{name}"] == pytest.approx(2 * norm, rel=1e-2)
        assert line[f"update_ratio/{name}"] == pytest.approx(0.02, rel=0.2)  # each step takes 2 % of every weight
    assert events(run) == []


def test_a_layer_that_is_thawed_later_is_looked_at_from_then_on(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=1, budget_percent=0)
    for index in range(4):
        model[0].requires_grad_(index >= 2)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    run.finish()
    assert ["gradient_norm/0" in line for line in steps(run)] == [False, False, True, True]
    assert ["gradient_norm/1" in line for line in steps(run)] == [False, True, True, True]


def test_the_layers_of_two_optimizers_are_all_looked_at(run: Run) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
    run.watch(model, optimizers, layers_every=1, histograms_every=1, budget_percent=0)
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    run.finish()
    assert {"gradient_norm/0", "gradient_norm/1"} <= set(steps(run)[1])
    names = {row["name"] for row in histograms_of(run)}
    assert {"weights/0", "weights/1", "gradients/0", "gradients/1"} <= names


def test_a_share_of_the_time_bounds_what_may_be_looked_at(run: Run) -> None:
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = run.watch(model, optimizer, budget_percent=0.001, layers_every=1)
    watched._measures._budget._seconds = 0.0  # nothing on the house
    for _ in range(50):
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    run.finish()
    lines = steps(run)
    assert len(lines) == 50
    assert sum("gradient_norm" in line for line in lines) < 50
    assert all(line["batch_time"] > 0 for line in lines)  # the phases are always there


# -- layers by name


def test_a_pattern_is_a_part_of_the_name_or_a_shell_pattern() -> None:
    assert matches("model.encoder.layers.0", ["encoder"])
    assert matches("model.encoder.layers.0", ["layers.0"])
    assert matches("model.encoder.layers.0", ["*.encoder.*"])
    assert not matches("model.encoder.layers.10", ["layers.1"])
    assert matches("anything", [])


def test_ten_thousand_modules_become_two_hundred_layers() -> None:
    names = [(f"model.layers.{n // 100}.experts.{n % 100}.weight", n) for n in range(10_000)]
    layers = group(names, most=200)
    assert len(layers) == 100
    assert layers["model.layers.7.experts"] == list(range(700, 800))
    flat = group([(f"p{n}", n) for n in range(10_000)], most=200)
    assert len(flat) == 200
    assert sum(len(members) for members in flat.values()) == 10_000


# -- health


def numbers(gradient: float | None, weight: float = 1.0, nan: int = 0) -> dict[str, LayerNumbers]:
    return {"encoder": LayerNumbers(gradient, gradient, weight, None, nan, 0)}


def said(health: LayerHealth, *norms: float) -> list[str]:
    return [finding.event for value in norms for finding in health.judge(numbers(value))]


def test_a_layer_whose_norm_jumps_is_exploding_and_said_once() -> None:
    health = LayerHealth(Conditions())
    assert said(health, 1.0, 1.1, 0.9, 500.0, 600.0) == ["layer_exploding"]
    assert said(health, 1.0, 700.0) == ["layer_exploding"]  # it had recovered


def test_a_layer_without_any_gradient_for_a_while_is_dead() -> None:
    health = LayerHealth(Conditions())
    assert said(health, 1.0, *[0.0] * (PATIENCE - 1)) == []
    assert said(health, 0.0, 0.0) == ["layer_dead"]


def test_a_layer_whose_gradient_is_nothing_beside_its_weights_is_vanishing() -> None:
    health = LayerHealth(Conditions())
    assert said(health, *[1e-12] * (PATIENCE + 2)) == ["layer_vanishing"]


def test_how_large_and_how_small_is_what_the_user_says() -> None:
    loose = Conditions({"layer_exploding_factor": 1000, "layer_vanishing_ratio": 1e-15})
    assert said(LayerHealth(loose), 1.0, 500.0) == []
    assert said(LayerHealth(loose), *[1e-12] * (PATIENCE + 2)) == []


def test_a_threshold_of_the_settings_reaches_watch(tmp_path: Path) -> None:
    run = trainvitals.init(dir=tmp_path, agent=False, alerts_thresholds={"layer_vanishing_ratio": 1e9})
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=1, budget_percent=0)
    for _ in range(PATIENCE + 2):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    run.finish()
    assert "layer_vanishing" in {event["event"] for event in events(run)}


def test_nan_is_named_with_its_layer() -> None:
    (finding,) = LayerHealth(Conditions()).judge(numbers(math.nan, nan=3))
    assert finding.event == "layer_nonfinite_gradient"
    assert finding.message == "gradient of encoder has 3 NaN and 0 infinite elements"


def test_a_frozen_layer_is_neither_dead_nor_vanishing() -> None:
    health = LayerHealth(Conditions())
    assert [health.judge(numbers(None)) for _ in range(10)] == [[]] * 10


def test_a_dead_relu_is_found_in_a_real_training(run: Run) -> None:
    model = small_model()
    with torch.no_grad():
        model.get_submodule("2").bias.fill_(-1000.0)  # no unit behind it ever fires again
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.watch(model, optimizer, layers_every=1, budget_percent=0)
    for _ in range(6):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()
    run.finish()
    found = [(event["event"], event["data"]["layer"]) for event in events(run) if event["event"] == "layer_dead"]
    assert sorted(found) == [("layer_dead", "0"), ("layer_dead", "2")]

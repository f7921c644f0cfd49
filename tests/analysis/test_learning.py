"""A model that does not learn, learns in steps of the wrong size, or is another one on each rank."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trainings import CONDITIONS, STEPS, by_step, find, healthy, rules, training, with_curves

from trainvitals.analysis.diagnosis import diagnose
from trainvitals.analysis.findings import Curve
from trainvitals.journal.identity import TRAINER, Participant


def noisy(level: np.ndarray, noise: float, seed: int = 1) -> Curve:
    return by_step(level + np.random.default_rng(seed).normal(0, noise, len(level)))


def updates(ratio: float) -> dict[str, Curve]:
    return {f"update_ratio/{name}": by_step(np.full(30, ratio), 100) for name in ("first", "last")}


FLAT = noisy(np.full(3000, 2.3), 0.05)
CHANCE = noisy(np.full(60, 0.1), 0.01)
LEARNING = {"loss.never_learns", "lr.too_high", "lr.too_low"}


def test_a_loss_that_is_where_it_began_at_chance_is_a_warning() -> None:
    finding = find(with_curves(loss=FLAT, accuracy=CHANCE), "loss.never_learns")
    assert finding.severity == "warning" and "accuracy stays at" in " ".join(finding.evidence)


def test_a_flat_loss_alone_is_only_noted() -> None:
    assert find(with_curves(loss=FLAT), "loss.never_learns").severity == "info"


def test_tiny_updates_explain_why_nothing_is_learned() -> None:
    slow = noisy(2.3 - 0.2 * np.arange(800) / 800, 0.02)
    found = diagnose(with_curves(loss=slow, accuracy=CHANCE, val_loss=None, **updates(1e-6)), CONDITIONS)
    finding = next(item for item in found.findings if item.rule == "lr.too_low")
    assert finding.severity == "warning" and "hardly change" in finding.title
    assert finding.step == 0 and finding.named_at == pytest.approx(500, abs=5), "not before the loss was judged"


def test_large_updates_are_a_finding_only_where_the_loss_suffers() -> None:
    assert "lr.too_high" not in rules(diagnose(with_curves(**updates(0.05)), CONDITIONS))
    found = diagnose(with_curves(loss=FLAT, accuracy=CHANCE, **updates(0.3)), CONDITIONS)
    high = next(item for item in found.findings if item.rule == "lr.too_high")
    assert high.severity == "critical"
    assert high.step == 0 and high.named_at is not None and high.named_at < STEPS / 2
    assert next(item for item in found.findings if item.rule == "loss.never_learns").cause == "lr.too_high"


def test_nothing_is_said_of_the_beginning_of_a_run_if_that_is_not_looked_at() -> None:
    for ratio in (0.05, 1e-6):
        measured = with_curves(loss=FLAT, accuracy=CHANCE, val_loss=None, **updates(ratio))
        assert rules(diagnose(measured, CONDITIONS)) & LEARNING
        measured = dataclasses.replace(measured, from_step=8_000_000)
        assert rules(diagnose(measured, CONDITIONS)) & LEARNING == set()


def test_dead_units_are_named_with_their_layer() -> None:
    dead = {"activation_dead/relu1": by_step(np.full(20, 0.9), 50), "activation_dead/relu2": by_step(np.full(20, 0.1))}
    finding = find(with_curves(**dead), "units.dead")
    assert finding.severity == "warning" and finding.title == "90 % of the units of relu1 are never active"


@pytest.mark.parametrize("name", ["loss_scale", "train/grad_scale", "amp_scale"])
def test_a_loss_scale_that_is_halved_again_and_again_collapses(name: str) -> None:
    scale = np.full(3000, 65536.0)
    for at in range(1500, 1600, 10):
        scale[at:] /= 2
    finding = find(with_curves(**{"loss_scale": None, name: by_step(scale)}), "amp.scale_collapse")
    assert (finding.step, finding.named_at) == (1500, 1540)


def test_a_loss_scale_that_is_halved_now_and_then_is_as_it_should_be() -> None:
    scale = np.where(np.arange(3000) // 500 % 2, 32768.0, 65536.0)
    assert "amp.scale_collapse" not in rules(diagnose(with_curves(loss_scale=by_step(scale)), CONDITIONS))


def test_large_steps_that_make_the_accuracy_worse_are_too_large() -> None:
    """The loss came down from an absurd start, and nothing is learned all the same."""
    loss = 1.43 + 0.09 * (np.arange(STEPS) < 20) + np.random.default_rng(1).normal(0, 0.02, STEPS)
    accuracy = np.concatenate([[0.43, 0.29, 0.27], np.full(13, 0.24)])
    updates = np.array([3.8, 0.02, 0.002, 0.001, 0.001, 0.002, 0.001, 0.002])
    curves = {"loss": by_step(loss), "val_accuracy": by_step(accuracy)}
    curves |= {f"update_ratio/{layer}": by_step(updates) for layer in ("first", "last")}
    assert find(with_curves(**curves), "lr.too_high").severity == "critical"


def test_an_accuracy_that_goes_up_and_down_oscillates() -> None:
    swinging = by_step(0.7 + 0.05 * (-1.0) ** np.arange(40), 50)
    assert find(with_curves(val_accuracy=swinging), "loss.oscillation").severity == "info"


@pytest.mark.parametrize("digits", [4, 16])
@pytest.mark.parametrize("cases", [32, 128])
def test_an_accuracy_of_few_cases_goes_up_and_down_by_chance(cases: int, digits: int) -> None:
    for seed in range(5):
        accuracy = np.round(np.random.default_rng(seed).binomial(cases, 0.85, 400) / cases, digits)
        found = diagnose(with_curves(accuracy=by_step(accuracy)), CONDITIONS)
        assert "loss.oscillation" not in rules(found)


def test_an_accuracy_that_rises_goes_up_and_down_by_the_chance_of_its_time() -> None:
    """At a half, 128 cases differ by twice as much as at the end."""
    rising = 0.97 - 0.6 * np.exp(-np.arange(300) / 60)
    for seed in range(5):
        accuracy = np.random.default_rng(seed).binomial(128, rising) / 128
        assert "loss.oscillation" not in rules(diagnose(with_curves(accuracy=by_step(accuracy)), CONDITIONS))


def test_a_loss_that_fell_between_the_first_lines_of_a_sparse_log_has_learned() -> None:
    steps = np.arange(0, 3000, 10)
    loss = 1 + 2 * np.exp(-steps / 20) + np.random.default_rng(1).normal(0, 0.02, len(steps))
    curves = {"loss": Curve(steps.astype(float), loss)}
    assert "loss.never_learns" not in rules(diagnose(with_curves(**curves), CONDITIONS))


def test_weights_that_were_the_same_on_both_ranks_and_differ_later_are_critical() -> None:
    steps = np.arange(0, 2000, 100)
    same = Curve(steps.astype(float), 5 + 0.001 * steps)
    apart = Curve(same.x, np.where(steps >= 1000, same.y * 1.01, same.y))
    ranks = {Participant(TRAINER, 0): same, Participant(TRAINER, 1): apart}
    finding = find(healthy(rank_weights={"fc": ranks}), "replica.mismatch")
    assert finding.step == 1000 and finding.title == "The weights of rank 0 and rank 1 differ since step 1,000"


def test_shards_of_the_weights_are_not_compared() -> None:
    steps = np.arange(0, 2000, 100, dtype=float)
    ranks = {Participant(TRAINER, n): Curve(steps, np.full(20, 3.0 + n)) for n in range(2)}
    found = diagnose(healthy(rank_weights={"fc": ranks}), CONDITIONS)
    assert "replica.mismatch" in {gap.rule for gap in found.not_judged}


def test_spikes_at_the_same_place_of_every_pass_are_the_data() -> None:
    loss = training()["loss"].y.copy()
    loss[500::700] *= 4
    found = diagnose(with_curves(loss=by_step(loss)), CONDITIONS)
    finding = next(item for item in found.findings if item.rule == "data.bad_batch")
    assert finding.title == "The loss spikes every 700 steps" and finding.step == 500
    assert next(item for item in found.findings if item.rule == "loss.spike").cause == "data.bad_batch"


def test_overfitting_is_known_at_the_third_evaluation_above_the_best() -> None:
    held = 2.0 + np.abs(np.arange(15) - 7) * 0.1
    finding = find(with_curves(val_loss=by_step(held, 200)), "loss.overfit")
    assert (finding.step, finding.named_at) == (1400, 2000)


def test_healthy_runs_have_none_of_these() -> None:
    for seed in range(5):
        found = diagnose(healthy(seed), CONDITIONS)
        assert not [item for item in found.findings if item.severity != "info"]


def broken_at(step: int, layers: str, names: str, prefix: str) -> dict[str, Curve]:
    """Samples every 100 steps; those of some layers are NaN from a step on."""
    x = np.arange(30) * 100
    return {
        f"{prefix}/{name}": by_step(np.where((x >= step) & (name in layers.split()), np.nan, 1.0), 100)
        for name in names.split()
    }


def skipped(curves: dict[str, Curve]) -> dict[str, Curve]:
    """Without the sample of step 1,500."""
    return {name: Curve(np.delete(curve.x, 15), np.delete(curve.y, 15)) for name, curve in curves.items()}


BLOCKS = "blocks.1 blocks.2 blocks.10 head"


@pytest.mark.parametrize(
    ("curves", "title", "evidence"),
    [
        (
            broken_at(1500, "blocks.10 head", BLOCKS, "activation_mean"),
            "blocks.10",
            "in 2 of 4 layers: blocks.10, head",
        ),
        (broken_at(1500, BLOCKS, BLOCKS, "activation_mean"), "", "it came with the input, or about in the first"),
        (broken_at(9999, "", BLOCKS, "activation_mean"), "", "outputs of 4 layers finite at step 1,500: it came about"),
        (
            broken_at(1400, "blocks.1 blocks.2", BLOCKS, "gradient_norm"),
            "blocks.2",
            "gradients NaN or infinite at step",
        ),
        (broken_at(1400, BLOCKS, BLOCKS, "gradient_norm"), "", "it came about behind the last"),
        (
            broken_at(1500, BLOCKS, BLOCKS, "gradient_norm") | broken_at(1500, "head", BLOCKS, "weight_norm"),
            "head",
            "weights NaN or infinite at step 1,500 in 1 of 4 layers: head",
        ),
        (broken_at(1500, "blocks.1 head", BLOCKS, "activation_mean"), "", "in 2 of 4 layers: blocks.1, head"),
        (
            broken_at(1500, "a a.norm", "a a.fc a.norm", "activation_mean"),
            "a.norm",
            "in 1 of 2 layers: a.norm",
        ),
        (broken_at(1500, BLOCKS, BLOCKS, "gradient_norm"), "", None),
        (broken_at(1600, "head", BLOCKS, "activation_mean"), "", "outputs of 4 layers finite at step 1,500"),
        (
            broken_at(1600, "head", BLOCKS, "activation_mean") | skipped(broken_at(9999, "", BLOCKS, "weight_norm")),
            "head",
            "outputs NaN or infinite at step 1,600 in 1 of 4 layers: head",
        ),
        (
            skipped(broken_at(1600, BLOCKS, BLOCKS, "activation_mean"))
            | skipped(broken_at(1600, BLOCKS, BLOCKS, "weight_norm")),
            "",
            None,
        ),
    ],
    ids=[
        "outputs",
        "input",
        "loss",
        "gradients",
        "all gradients",
        "weights",
        "no order",
        "nested",
        "no sample",
        "later",
        "skipped",
        "spread",
    ],
)
def test_a_loss_that_becomes_nan_names_where_it_began(
    curves: dict[str, Curve], title: str, evidence: str | None
) -> None:
    loss = np.where(np.arange(3000) < 1500, 1.0, np.nan)
    others = dict.fromkeys(name for name in training() if name.startswith("gradient_norm/"))
    finding = find(with_curves(**{"loss": by_step(loss), **others, **curves}), "loss.nonfinite")
    assert finding.title == "The loss became NaN at step 1,500" + (f", first in {title}" if title else "")
    told = [text for text in finding.evidence if "layer" in text]
    assert evidence in told[0] if evidence else not told

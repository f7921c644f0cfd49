"""Findings in the gradients: explosion and layers that learn nothing. Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from trainvitals.analysis.findings import Curve, Finding, Measurements, NotJudged
from trainvitals.analysis.robust import blocks, lasting_since, usual_highs
from trainvitals.analysis.wording import count_of, percent, show
from trainvitals.conditions import Conditions, Severity

LAYER = "gradient_norm/"
WEIGHTS = "weight_norm/"
OUTPUTS = "activation_mean/"
MAX_LAYERS = 400
RECENT = 200
"""Newest norms among which those that are not finite are counted."""
FEWEST_HIGH = 3
"""Norms close together that are an explosion."""
_SEEN_IN = {WEIGHTS: "weights", OUTPUTS: "outputs", LAYER: "gradients"}
SAMPLES = 20
"""Newest samples of a layer whose median is judged ..."""
FEWEST_SAMPLES = 5
"""... and how many there must be."""
LARGEST_WEIGHTS = 1e5
"""No layer's weights have a larger norm: those of a layer whose gradient is larger need not be read."""


def detect_explosion(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Norms of many times the usual, several times close together. Where they are clipped, those that are finite are
    of no consequence."""
    limits = conditions.thresholds
    factor = limits["gradient_outlier_factor"]
    norm = measured.need("gradient_norm", 200)
    finite = norm.finite()
    _, middle, spread = blocks(finite.x, finite.y, 100)
    rest = len(finite.y) % 100
    x, y = finite.x[rest + 100 :], finite.y[rest + 100 :]
    level, scale = np.repeat(middle[:-1], 100), np.repeat(spread[:-1], 100)
    often = np.repeat(usual_highs(finite.y, 100), 100)
    far = np.maximum(factor * level, level + limits["gradient_outlier_deviations"] * scale)
    clipped = measured.training.get("gradient_clip_norm") is not None
    high = np.flatnonzero((y > far) & (y > 2 * often)) if not clipped else np.zeros(0, dtype=int)
    last = FEWEST_HIGH - 1
    close = high[last:] - high[:-last] < 20 if len(high) > last else np.zeros(0, dtype=bool)
    recent = norm.x[-RECENT:][~np.isfinite(norm.y[-RECENT:])]
    broken, judged = len(recent), len(norm.y[-RECENT:])
    harmless = int(limits["gradient_not_finite_percent"] / 100 * judged)
    if not close.any() and broken <= harmless:
        return []
    evidence = []
    step = named = None
    condition = conditions["gradient_over_clip" if clipped else "gradient_outlier"]
    # As grave as the alert: norms far above a usual value that is small need not be large.
    severity: Severity = "warning" if broken > harmless else condition.severity
    if close.any():
        third = int(close.argmax())
        step, named = int(x[high[third]]), int(x[high[third + last]])
        peak = int(high[y[high].argmax()])
        evidence.append(
            f"{count_of(len(high), 'norm')} above {factor:g} times the usual; max {show(y[peak])} at step "
            f"{int(x[peak]):,}, where {show(level[peak])} is usual"
        )
        if float(np.partition(y[high], -FEWEST_HIGH)[-FEWEST_HIGH]) > limits["grad_norm_exploded"]:
            condition = conditions["gradient_exploded"]
            severity = condition.severity
        worst = _largest_layer(measured, x[peak])
        evidence += [f"largest layer at that time: {worst}"] if worst else []
    if broken:
        evidence.append(f"{broken} of the last {judged} norms are NaN or infinite: those steps were wasted")
    if step is None:
        step, named = int(recent[0]), int(recent[harmless])
    return [
        Finding(
            "grad.explode" if close.any() else "grad.nonfinite",
            severity,
            f"Exploding gradients from step {step:,}"
            if close.any()
            else f"NaN or infinite gradients from step {step:,}",
            tuple(evidence),
            condition.advice,
            step=step,
            named_at=named,
            values={"high": float(len(high)), "nonfinite_recent": float(broken)},
        )
    ]


def _largest_layer(measured: Measurements, x: float) -> str | None:
    found: list[tuple[float, str]] = []
    for name in _layers(measured):
        curve = measured.training.get(name)
        if curve is None:
            continue
        finite = curve.finite()
        if len(finite.x):
            near = min(int(np.searchsorted(finite.x, x)), len(finite.x) - 1)
            found.append((float(finite.y[near]), name.removeprefix(LAYER)))
    return f"{max(found)[1]} with {show(max(found)[0])}" if found else None


def _layers(measured: Measurements) -> list[str]:
    return [name for name in measured.training.names() if name.startswith(LAYER)][:MAX_LAYERS]


def detect_vanishing(measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Layers whose gradient is as good as zero beside their weights."""
    limit = conditions.thresholds["layer_vanishing_ratio"]
    layers = _layers(measured)
    if not layers:
        raise NotJudged("gradients by layer (trainvitals.watch)")
    still = []
    dates = []
    for name in layers:
        curve = measured.training.get(name)
        if curve is None:
            continue
        x, norms = curve.finite().x, np.abs(curve.finite().y)
        last = norms[-SAMPLES:]
        middle = float(np.median(last)) if len(last) >= FEWEST_SAMPLES else np.inf
        layer = name.removeprefix(LAYER)
        small = limit * _weight(measured, layer) if 0 < middle < limit * LARGEST_WEIGHTS else 0.0
        if not middle or middle < small:
            still.append(layer)
            quiet = (norms == 0) | (norms < small)
            dates.append(lasting_since(x, quiet, SAMPLES, FEWEST_SAMPLES))
    if not still:
        return []
    known = [date for date in dates if date is not None]
    share = len(still) / len(layers)
    return [
        Finding(
            "grad.vanish",
            "warning",
            f"{count_of(len(still), 'layer')} of {len(layers)} not learning",
            (
                f"median gradient norm over the last {SAMPLES} samples below {limit:g} of the weight norm "
                f"({percent(share)} of the layers)",
                "layers: " + ", ".join(still[:8]) + (" ..." if len(still) > 8 else ""),
            ),
            conditions["layer_vanishing"].advice,
            step=min((since for since, _ in known), default=None),
            named_at=min((named for _, named in known), default=None),
            values={"layers": float(len(still))},
        )
    ]


def _weight(measured: Measurements, layer: str) -> float:
    """The newest norm of a layer's weights; 1 where only its gradient was logged."""
    curve = measured.training.get(WEIGHTS + layer)
    known = curve.finite().y if curve is not None else np.zeros(0)
    return float(known[-1]) if len(known) else 1.0


class FirstBroken(NamedTuple):
    """Where something that is not finite was first."""

    text: str
    layer: str = ""
    """If it can be told."""


def find_origin(measured: Measurements, loss: Curve, step: float) -> FirstBroken | None:
    """Where it was before the loss was NaN or infinite at `step`, or at that step, from the samples of the layers; None
    where none was taken in time. An update spreads it to every layer: samples after it tell something only if there was
    none, as where a loss scaler skips it, so that the weights are finite."""
    weights = _samples(measured, WEIGHTS, np.inf)
    sound = _first_sound(weights, loss, step)
    samples = {
        WEIGHTS: _until(weights, step),
        OUTPUTS: _until(_samples(measured, OUTPUTS, np.inf), step if sound is None else sound),
        # The gradients of a loss that is not finite are not either, wherever that came from.
        LAYER: _samples(measured, LAYER, np.nextafter(step, -np.inf)),
    }
    starts = {prefix: x for prefix, layers in samples.items() if (x := _first_broken(layers)) is not None}
    if not starts:
        seen = step if sound is None else sound
        finite = sum(curve.x[-1] == seen for curve in samples[OUTPUTS].values())
        text = f"outputs of {count_of(finite, 'layer')} finite at step {int(seen):,}: it came about in the loss"
        return FirstBroken(text) if finite else None
    # Of what is found at the same step the first of these: weights make outputs, outputs the loss, and that gradients.
    prefix = min(starts, key=lambda name: starts[name])
    at = starts[prefix]
    values = {name: curve.y[place] for name, curve in samples[prefix].items()
              if (place := int(np.searchsorted(curve.x, at))) < len(curve.x) and curve.x[place] == at}  # fmt: skip
    order = sorted(values, key=_by_number)
    broken = [name for name in order if not np.isfinite(values[name])]
    # A step may be there twice, with another value.
    return FirstBroken(*_describe_origin(prefix, int(at), order, broken)) if broken else None


def _describe_origin(prefix: str, step: int, order: list[str], broken: list[str]) -> tuple[str, str]:
    what = _SEEN_IN[prefix]
    if len(broken) == len(order) > 1:
        come = {OUTPUTS: ": it came with the input, or about in the first", LAYER: ": it came about behind the last"}
        return f"{what} of all {len(order)} layers NaN or infinite at step {step:,}{come.get(prefix, '')}", ""
    # It spreads from a layer to those behind it, gradients to those before it: if so, this is the order of the model.
    spread = {OUTPUTS: order[-len(broken) :], LAYER: order[: len(broken)]}.get(prefix, [])
    first = broken[0] if len(broken) == 1 else "" if broken != spread else broken[-1 if prefix == LAYER else 0]
    names = ", ".join(broken[:6]) + (" ..." if len(broken) > 6 else "")
    return (
        f"{what} NaN or infinite at step {step:,} in {len(broken)} of {count_of(len(order), 'layer')}: {names}",
        first,
    )


def _samples(measured: Measurements, prefix: str, until: float) -> dict[str, Curve]:
    """Of the layers, without modules that contain others: what those give out is not finite as well."""
    names = [name.removeprefix(prefix) for name in measured.training.names() if name.startswith(prefix)][:MAX_LAYERS]
    leaves = [name for name in names if not any(other.startswith(name + ".") for other in names)]
    return _until(
        {name: curve for name in leaves if (curve := measured.training.get(prefix + name)) is not None}, until
    )


def _first_sound(weights: Mapping[str, Curve], loss: Curve, step: float) -> float | None:
    """The first step from `step` on at which the loss was not finite and all weights were."""
    broken = loss.x[(loss.x >= step) & ~np.isfinite(loss.y)]
    steps = next(iter(weights.values())).x if weights else np.zeros(0)
    for x in np.intersect1d(steps, broken)[:1]:
        places = [(curve, int(np.searchsorted(curve.x, x))) for curve in weights.values()]
        if all(at < len(curve.x) and curve.x[at] == x and np.isfinite(curve.y[at]) for curve, at in places):
            return float(x)
    return None


def _until(layers: Mapping[str, Curve], step: float) -> dict[str, Curve]:
    counts = {name: int(np.searchsorted(curve.x, step, side="right")) for name, curve in layers.items()}
    return {name: Curve(curve.x[:count], curve.y[:count]) for name, curve in layers.items() if (count := counts[name])}


def _first_broken(layers: Mapping[str, Curve]) -> float | None:
    starts = [curve.x[places[0]] for curve in layers.values() if len(places := np.flatnonzero(~np.isfinite(curve.y)))]
    return float(min(starts)) if starts else None


def _by_number(name: str) -> list[tuple[int, str]]:
    """`layers.2` before `layers.10`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]

"""Findings in the gradients: explosion and layers that learn nothing."""

from __future__ import annotations

import numpy as np

from trainvitals.analysis.findings import Finding, Measurements, NotJudged
from trainvitals.analysis.robust import blocks, usual_highs
from trainvitals.analysis.wording import count_of, percent, show

LAYER = "gradient_norm/"
VANISHED = 1e-7
MAX_LAYERS = 400


def detect_explosion(measured: Measurements) -> list[Finding]:
    """Norms of ten times the usual, several times close together."""
    norm = measured.need("gradient_norm", 200)
    finite = norm.finite()
    _, middle, spread = blocks(finite.x, finite.y, 100)
    rest = len(finite.y) % 100
    x, y = finite.x[rest + 100 :], finite.y[rest + 100 :]
    level, scale = np.repeat(middle[:-1], 100), np.repeat(spread[:-1], 100)
    often = np.repeat(usual_highs(finite.y, 100), 100)
    high = np.flatnonzero((y > np.maximum(10 * level, level + 8 * scale)) & (y > 2 * often))
    close = high[2:] - high[:-2] < 20 if len(high) > 2 else np.zeros(0, dtype=bool)
    broken = int((~np.isfinite(norm.y[-200:])).sum())
    if not close.any() and broken <= 0.05 * len(norm.y[-200:]):
        return []
    evidence = []
    step = None
    if close.any():
        first = int(high[int(close.argmax())])
        step = int(x[first])
        peak = int(high[y[high].argmax()])
        evidence.append(
            f"{count_of(len(high), 'norm')} above ten times the usual; highest {show(y[peak])} at step "
            f"{int(x[peak]):,}, usual there {show(level[peak])}"
        )
        worst = _largest_layer(measured, x[peak])
        evidence += [f"largest layer near it: {worst}"] if worst else []
    if broken:
        evidence.append(f"{broken} of the last {len(norm.y[-200:])} norms are NaN or infinite: those steps are lost")
    return [
        Finding(
            "grad.explode",
            "warning",
            "The gradients explode" + (f" from step {step:,} on" if step is not None else ""),
            tuple(evidence),
            "Clip the gradient norm at 1.0; lower the learning rate; check how the largest layer is initialised.",
            step=step,
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


def detect_vanishing(measured: Measurements) -> list[Finding]:
    """Layers whose gradient is as good as zero."""
    layers = _layers(measured)
    if not layers:
        raise NotJudged("gradients by layer (trainvitals.watch)")
    still = []
    for name in layers:
        curve = measured.training.get(name)
        last = curve.finite().y[-20:] if curve is not None else np.zeros(0)
        if len(last) >= 5 and float(np.median(np.abs(last))) < VANISHED:
            still.append(name.removeprefix(LAYER))
    if not still:
        return []
    share = len(still) / len(layers)
    return [
        Finding(
            "grad.vanish",
            "warning",
            f"{count_of(len(still), 'layer')} of {len(layers)} learn nothing",
            (
                f"median gradient norm of their last 20 looks below {VANISHED:g} ({percent(share)} of the layers)",
                "they are " + ", ".join(still[:8]) + (" ..." if len(still) > 8 else ""),
            ),
            "If they are not frozen on purpose: residual connections or normalisation, another activation, another "
            "initialisation; with fp16, a larger loss scale or bf16.",
            values={"layers": float(len(still))},
        )
    ]

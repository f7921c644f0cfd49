"""Which layers are in trouble, judged from their norms over time. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from trainvitals.trainer.watch.gradients import LayerNumbers

EXPLODING = 100.0
"""Times the layer's own usual norm."""
VANISHING = 1e-7
"""Gradient norm over weight norm; a step of any sane size then rounds to nothing in single precision."""
PATIENCE = 3
"""Looks in a row before a layer is called vanishing or dead: a single one may be chance."""


class Finding(NamedTuple):
    """One layer, said once when it begins."""

    event: str
    severity: str
    message: str
    layer: str


class LayerHealth:
    """Remembers what is usual for each layer, and what was said."""

    def __init__(self) -> None:
        self._usual: dict[str, float] = {}
        self._quiet: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._said: set[tuple[str, str]] = set()

    def judge(self, layers: Mapping[str, LayerNumbers]) -> list[Finding]:
        """What is new with these numbers. A layer that recovers may be said again."""
        findings = []
        for name, numbers in layers.items():
            for event, severity, true, message in self._look(name, numbers):
                if true and (event, name) not in self._said:
                    findings.append(Finding(event, severity, message, name))
                (self._said.add if true else self._said.discard)((event, name))
        return findings

    def _look(self, name: str, numbers: LayerNumbers) -> list[tuple[str, str, bool, str]]:
        norm, weight = numbers.gradient_norm, numbers.weight_norm
        checks = [
            (
                "layer_nonfinite_weights",
                "critical",
                not math.isfinite(weight),
                f"weights of {name} are {weight}",
            )
        ]
        if norm is None:
            return checks
        broken = not math.isfinite(norm)
        where = (
            f"{numbers.nan} NaN and {numbers.infinite} infinite elements" if numbers.nan or numbers.infinite else norm
        )
        checks.append(("layer_nonfinite_gradient", "critical", broken, f"gradient of {name} has {where}"))
        usual = self._usual.get(name)
        exploding = not broken and usual is not None and usual > 0 and norm > EXPLODING * usual
        checks.append(
            (
                "layer_exploding",
                "warning",
                exploding,
                f"gradient norm of {name} is {norm:.3g}, usually {usual or 0:.3g}",
            )
        )
        if not broken and not exploding:
            self._usual[name] = norm if usual is None else 0.8 * usual + 0.2 * norm
        self._dead[name] = self._dead.get(name, 0) + 1 if norm == 0 else 0
        small = 0 < norm < VANISHING * weight
        self._quiet[name] = self._quiet.get(name, 0) + 1 if small else 0
        checks.append(
            (
                "layer_vanishing",
                "warning",
                self._quiet[name] >= PATIENCE,
                f"gradient norm of {name} is {norm:.3g} with weights of {weight:.3g}: it hardly learns",
            )
        )
        checks.append(("layer_dead", "warning", self._dead[name] >= PATIENCE, f"gradient of {name} is exactly 0"))
        return checks

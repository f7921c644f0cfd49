"""Which layers are in trouble, judged from their norms over time. Pure.

An event has the id of its condition, and its severity.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from trainvitals.conditions import Conditions
from trainvitals.trainer.watch.gradients import LayerNumbers

PATIENCE = 3
"""Looks in a row before a layer is called vanishing or dead: a single one may be chance."""

EVENTS = ("layer_nonfinite_weights", "layer_nonfinite_gradient", "layer_exploding", "layer_vanishing", "layer_dead")


class HealthFinding(NamedTuple):
    """One layer, said once when it begins."""

    event: str
    severity: str
    message: str
    layer: str


class LayerHealth:
    """Remembers what is usual for each layer, and what was said."""

    def __init__(self, conditions: Conditions) -> None:
        self._exploding = conditions.thresholds["layer_exploding_factor"]
        self._vanishing = conditions.thresholds["layer_vanishing_ratio"]
        self._severities = {event: conditions[event].severity for event in EVENTS}
        self._usual: dict[str, float] = {}
        self._quiet: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        self._said: set[tuple[str, str]] = set()

    def judge(self, layers: Mapping[str, LayerNumbers]) -> list[HealthFinding]:
        """What is new with these numbers. A layer that recovers may be said again."""
        findings = []
        for name, numbers in layers.items():
            true = self._look(name, numbers)
            if true or self._said:
                findings += [
                    HealthFinding(event, self._severities[event], self._describe(event, name, numbers), name)
                    for event in true
                    if (event, name) not in self._said
                ]
                for event in EVENTS:
                    (self._said.add if event in true else self._said.discard)((event, name))
        return findings

    def _look(self, name: str, numbers: LayerNumbers) -> list[str]:
        """The events that are true of this layer now."""
        norm, weight = numbers.gradient_norm, numbers.weight_norm
        true = [] if math.isfinite(weight) else ["layer_nonfinite_weights"]
        if norm is None:
            return true
        usual = self._usual.get(name)
        if not math.isfinite(norm):
            true.append("layer_nonfinite_gradient")
        elif usual is not None and 0 < self._exploding * usual < norm:
            true.append("layer_exploding")
        else:
            self._usual[name] = norm if usual is None else 0.8 * usual + 0.2 * norm
        self._dead[name] = self._dead.get(name, 0) + 1 if norm == 0 else 0
        self._quiet[name] = self._quiet.get(name, 0) + 1 if 0 < norm < self._vanishing * weight else 0
        if self._quiet[name] >= PATIENCE:
            true.append("layer_vanishing")
        if self._dead[name] >= PATIENCE:
            true.append("layer_dead")
        return true

    def _describe(self, event: str, name: str, numbers: LayerNumbers) -> str:
        norm, weight = numbers.gradient_norm, numbers.weight_norm
        if event == "layer_nonfinite_weights":
            return f"weights of {name} are {weight}"
        if event == "layer_nonfinite_gradient":
            counts = f"{numbers.nan} NaN and {numbers.infinite} infinite elements"
            return f"gradient of {name} has {counts if numbers.nan or numbers.infinite else norm}"
        if event == "layer_exploding":
            return f"gradient norm of {name} is {norm:.3g}, usually {self._usual[name]:.3g}"
        if event == "layer_vanishing":
            return f"gradient norm of {name} is {norm:.3g} with weights of {weight:.3g}: it hardly learns"
        return f"gradient of {name} is exactly 0"

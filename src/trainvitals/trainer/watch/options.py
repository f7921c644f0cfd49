"""What `watch` measures and how often: the settings, and what was said at the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from trainvitals import settings
from trainvitals.errors import SettingError, nearest


@dataclass(frozen=True)
class Options:
    """Every `*_every` is in optimizer steps, and 0 means never."""

    gradients_every: int
    layers_every: int
    histograms_every: int
    activations_every: int
    memory_every: int
    track_layers: tuple[str, ...]
    max_layers: int
    activations: tuple[str, ...]
    budget_percent: float
    count_flops: bool
    flops_per_step: float | None = None
    """Of one rank, forward and backward."""
    peak_flops: float | None = None
    """FLOP/s that the card could do at most."""
    report: bool = False
    """Also write loss, learning rate and epoch: for trainings whose own code logs nothing."""


def read_options(effective: settings.Settings, given: Mapping[str, Any]) -> Options:
    """The options in force; SettingError for a name that is none or a value that does not fit."""
    names = [field.name for field in fields(Options)]
    values: dict[str, Any] = {}
    for name in names:
        row = getattr(settings.Settings, f"watch_{name}", None)
        if row is not None:
            values[name] = getattr(effective, f"watch_{name}")
    for name, value in given.items():
        if name not in names:
            raise SettingError(
                f"watch() has no option '{name}'{nearest(name, names)}", hint=f"it has: {', '.join(names)}"
            )
        row = getattr(settings.Settings, f"watch_{name}", None)
        try:
            values[name] = row.kind.parse(_listed(value)) if row is not None else value
        except ValueError as error:
            raise SettingError(f"watch(): {name}={value!r:.100} is not {error}") from None
    return Options(**values)


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value

"""All rows, with the thresholds in force."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from trainvitals.conditions import endings, gpu, host, processes, rl, training
from trainvitals.conditions.row import Colour, Condition, Threshold
from trainvitals.errors import SettingError, nearest

GROUPS: tuple[tuple[str, tuple[Condition, ...]], ...] = (
    ("GPU", gpu.ROWS),
    ("Machine", host.ROWS),
    ("Training", training.ROWS),
    ("Reinforcement learning", rl.ROWS),
    ("Processes", processes.ROWS),
    ("Endings", endings.ROWS),
)
"""Headings and rows, in the order of the documentation."""
ROWS: tuple[Condition, ...] = tuple(row for _, rows in GROUPS for row in rows)

REMOVED = {"gpu_price_per_hour": "set `price.gpu_hour`"}
"""Thresholds of earlier versions, and what to do instead."""


class Level(NamedTuple):
    """A value from which a number is coloured."""

    severity: Literal["warning", "critical"]
    value: float
    below: bool = False
    """True where small is bad."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The rows and the thresholds in force. Never changes; whoever judges is given one."""

    changed: Mapping[str, float] = field(default_factory=dict)
    """The setting `alerts.thresholds`; a name that is not there is a SettingError."""
    rows: tuple[Condition, ...] = ROWS
    thresholds: Mapping[str, float] = field(init=False)
    """Every threshold by name, as it is in force."""
    levels: Mapping[tuple[str, str], tuple[Level, ...]] = field(init=False)
    """(table, metric) -> the values from which it is coloured, the mildest first."""
    _by_id: Mapping[str, Condition] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        by_id = {row.id: row for row in self.rows}
        known = {threshold.name: threshold for row in self.rows for threshold in row.thresholds}
        if len(by_id) < len(self.rows) or len(known) < sum(len(row.thresholds) for row in self.rows):
            raise ValueError("two conditions or two thresholds have the same name")
        for name, value in self.changed.items():
            if name in REMOVED:
                raise SettingError(f"alerts.thresholds: '{name}' was removed: {REMOVED[name]}")
            if name not in known:
                raise SettingError(
                    f"alerts.thresholds: unknown threshold '{name}'{nearest(name, known)}",
                    hint="docs/rules.md lists all of them",
                )
            if not math.isfinite(value):
                raise SettingError(f"alerts.thresholds: '{name}' cannot be {value}")
        values = {name: float(self.changed.get(name, threshold.default)) for name, threshold in known.items()}
        levels = {
            (colour.table, colour.metric): _find_levels(colour, values, known)
            for row in self.rows
            for colour in row.colours
        }
        object.__setattr__(self, "changed", MappingProxyType(dict(self.changed)))
        object.__setattr__(self, "thresholds", MappingProxyType(values))
        object.__setattr__(self, "levels", MappingProxyType(levels))
        object.__setattr__(self, "_by_id", by_id)

    def __getitem__(self, id: str) -> Condition:
        return self._by_id[id]

    def __iter__(self) -> Iterator[Condition]:
        return iter(self.rows)

    def levels_of(self, table: str, metric: str) -> tuple[Level, ...]:
        """The levels of one metric; empty for one that has none or is the user's own."""
        return self.levels.get((table, metric), ())

    def severity_of(self, table: str, metric: str, value: float) -> Literal["warning", "critical"] | None:
        """The colour of a value, None inside its limits. NaN and infinity of a metric with a level are critical."""
        found = None
        for level in self.levels_of(table, metric):
            inside = value > level.value if level.below else value < level.value
            if not inside:
                found = level.severity
        return found


def _find_levels(colour: Colour, values: Mapping[str, float], known: Mapping[str, Threshold]) -> tuple[Level, ...]:
    def level(severity: Literal["warning", "critical"], given: str | float | None) -> Level | None:
        if isinstance(given, str):
            return Level(severity, values[given], known[given].below)
        return Level(severity, given) if given is not None else None

    warning, critical = level("warning", colour.warning), level("critical", colour.critical)
    if warning is None or critical is None:
        return tuple(found for found in (warning, critical) if found is not None)
    # A warning that was set beyond the critical value takes its place: the user wants to hear of it no sooner.
    milder = warning.value > critical.value if warning.below else warning.value < critical.value
    return (warning, critical) if milder else (warning,)

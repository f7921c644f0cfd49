"""Lines of W&B's file stream as rows of ours: history, system metrics, console.

A line is JSON with the tokens NaN and Infinity. A nested mapping is flattened with dots between the keys, as the
client does in its own summary.
Tested in tests/trackers/intake/test_wandb.py.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainvitals.journal.encoding import NONFINITE, format_time
from trainvitals.journal.histograms import Histogram, from_other
from trainvitals.plain_json import parse_json
from trainvitals.trackers.wandb_conventions import find_framework_step

LONGEST_NAME = 500
MOST_DEPTH = 20
_OWN = ("_step", "_timestamp", "_runtime", "_wandb")
_CONSOLE = re.compile(r"(?P<error>ERROR )?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z? (?P<text>.*)", re.DOTALL)
_GPU = re.compile(r"system\.gpu\.(?:process\.)?(?P<index>\d{1,4})\.(?P<key>.+)")

GPU_NAMES: Mapping[str, tuple[str, float]] = {
    "gpu": ("utilization_percent", 1.0),
    "memory": ("memory_utilization_percent", 1.0),
    "memoryAllocated": ("memory_percent", 1.0),
    "memoryAllocatedBytes": ("memory_used_mb", 1 / (1 << 20)),
    "temp": ("temperature_celsius", 1.0),
    "powerWatts": ("power_draw_watts", 1.0),
    "enforcedPowerLimitWatts": ("power_limit_watts", 1.0),
    "smClock": ("sm_clock_mhz", 1.0),
    "graphicsClock": ("graphics_clock_mhz", 1.0),
    "memoryClock": ("memory_clock_mhz", 1.0),
    "fanSpeed": ("fan_speed_percent", 1.0),
}
"""W&B's key below `system.gpu.N.`: our name, and what to multiply with."""
SYSTEM_NAMES: Mapping[str, str] = {"system.memory_percent": "memory_usage_percent"}
"""W&B's other keys that mean the same as one of ours; the rest is `wandb/system/…`."""


class LoggedMedia(NamedTuple):
    """An object of a history line that is not a number: an image, a table, a histogram."""

    name: str
    value: Mapping[str, Any]

    def as_histogram(self) -> Histogram | None:
        """None if it is something else."""
        return from_other(self.value) if self.value.get("_type") == "histogram" else None


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One step as W&B has it."""

    values: dict[str, float]
    step: int | None = None
    time: float | None = None
    media: tuple[LoggedMedia, ...] = ()
    left_out: tuple[str, ...] = ()
    """What is neither a number nor media."""
    own: Mapping[str, float] = field(default_factory=dict)
    """W&B's own count of steps and seconds, which a client that resumes wants back."""


class StepMetrics:
    """Which metric counts the steps, by `define_metric(name, step_metric=...)`."""

    def __init__(self, defined: object, begun: Collection[str] = ()) -> None:
        """`defined` is the list in the run's configuration: keys are the numbers of protobuf fields, and a step metric
        is given by its name or by its place in the list. Metrics that have `begun` without it go on without it."""
        self._begun = frozenset(begun)
        items = [item for item in defined if isinstance(item, Mapping)] if isinstance(defined, list) else []
        self._exact: dict[str, str] = {}
        self._patterns: list[tuple[str, str]] = []
        for item in items:
            step = item.get("4")
            place = item.get("5")
            if not isinstance(step, str) and isinstance(place, int) and 0 < place <= len(items):
                step = items[place - 1].get("1")
            if not isinstance(step, str):
                continue
            if isinstance(name := item.get("1"), str):
                self._exact[name] = step
            if isinstance(pattern := item.get("2"), str):
                self._patterns.append((pattern, step))

    def find_step(self, values: Mapping[str, Any]) -> int | None:
        """The step of a row, if all its metrics that have a step metric have the same, and the row has it too. What a
        framework counts with is the step from the first row on, also before its definition comes."""
        if (counted := find_framework_step(values)) is not None:
            return counted
        if not self._exact and not self._patterns:
            return None
        found = {name: step for name in values if (step := self._find(name)) is not None and step != name}
        if len(set(found.values())) != 1 or not self._begun.isdisjoint(found):
            return None
        return _whole(values.get(next(iter(found.values()))))

    def _find(self, name: str) -> str | None:
        found = self._exact.get(name)
        if found is None:
            found = next((step for pattern, step in self._patterns if fnmatch.fnmatchcase(name, pattern)), None)
        return found


def parse_history(line: object, steps: StepMetrics) -> HistoryLine:
    """One line of wandb-history.jsonl. One that is not JSON has no values."""
    try:
        data = parse_json(line) if isinstance(line, str) else None
    except ValueError:
        data = None
    if not isinstance(data, dict):
        return HistoryLine({}, left_out=("a line that is not JSON",))
    media: list[LoggedMedia] = []
    left_out: list[str] = []
    values: dict[str, float] = {}
    for name, value in data.items():
        kind = type(value)
        if name in _OWN:
            continue
        if kind is float or kind is int:
            values[name] = value
        else:
            _sort(name, value, values, media, left_out, 0)
    step = steps.find_step(values)
    return HistoryLine(
        values,
        step if step is not None else _whole(data.get("_step")),
        _seconds(data.get("_timestamp")),
        tuple(media),
        tuple(left_out),
        {
            name: value
            for name in ("_step", "_runtime", "_timestamp")
            if isinstance(value := data.get(name), (int, float))
        },
    )


def _sort(
    name: str, value: Any, values: dict[str, float], media: list[LoggedMedia], left_out: list[str], depth: int
) -> None:
    if isinstance(value, bool):
        values[name] = int(value)
    elif isinstance(value, (int, float)):
        values[name] = value
    elif isinstance(value, str) and value in NONFINITE:
        values[name] = NONFINITE[value]
    elif isinstance(value, dict) and "_type" in value:
        media.append(LoggedMedia(name, value))
    elif isinstance(value, dict) and depth < MOST_DEPTH:
        for key, inner in value.items():
            _sort(f"{name}.{key}", inner, values, media, left_out, depth + 1)
    elif value is not None:
        left_out.append(name)


def parse_system(line: object, host: str) -> list[tuple[str, dict[str, Any]]]:
    """One line of wandb-events.jsonl as rows, each with its table. Empty if it has no time."""
    try:
        data = parse_json(line) if isinstance(line, str) else None
    except ValueError:
        return []
    if not isinstance(data, dict) or (when := _seconds(data.get("_timestamp"))) is None:
        return []
    stamp = format_time(when)
    system: dict[str, Any] = {}
    gpus: dict[int, dict[str, Any]] = {}
    for name, value in data.items():
        if not name.startswith("system.") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        match = _GPU.fullmatch(name)
        known = GPU_NAMES.get(match["key"]) if match is not None and ".process." not in name else None
        if match is not None and known is not None:
            gpus.setdefault(int(match["index"]), {})[known[0]] = value * known[1]
        elif name in SYSTEM_NAMES:
            system[SYSTEM_NAMES[name]] = value
        else:
            system[f"wandb/system/{name.removeprefix('system.')}"[:LONGEST_NAME]] = value
    rows = [("gpu", {"timestamp": stamp, "gpu_index": index, "host": host, **row}) for index, row in gpus.items()]
    if system:
        rows.append(("system", {"timestamp": stamp, "host": host, **system}))
    return rows


def show_console(lines: Iterable[object]) -> Iterator[str]:
    """Lines of output.log without W&B's time stamps."""
    for line in lines:
        text = line if isinstance(line, str) else ""
        match = _CONSOLE.fullmatch(text.rstrip("\n"))
        yield (match["text"] if match is not None else text.rstrip("\n")).replace("\n", " ")


def _seconds(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and 0 <= value < 1e11 else None


def _whole(value: object) -> int | None:
    return int(value) if isinstance(value, (int, float)) and abs(value) < 2**53 else None

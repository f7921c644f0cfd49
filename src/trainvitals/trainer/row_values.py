"""The arguments of `log`, sorted: numbers to write, numbers that a device is still computing, the step.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from trainvitals.trainer import scalars
from trainvitals.trainer.refusals import Refusals


class RowValues(NamedTuple):
    """One call of `log`."""

    step: Any
    """As passed; None if it was not."""
    values: dict[str, Any]
    waiting: dict[str, scalars.Waiting]


class MeasuredRow(NamedTuple):
    """A line that was measured beside the loop."""

    step: int
    values: Mapping[str, float]
    microseconds: int
    """When, since 1970."""


def sort_values(
    metrics: Mapping[str, Any] | None,
    step: Any,
    more: Mapping[str, Any],
    refusals: Refusals,
    on_foreign: Callable[[], None],
) -> RowValues:
    """Flatten nested mappings and convert numbers; anything else is refused. `on_foreign` is called for each
    tensor, array or the like."""
    flat: dict[str, Any] = {}
    for name, item in itertools.chain(scalars.flatten(metrics or {}), scalars.flatten(more)):
        if name in flat:
            refusals.refuse(f"'{name:.100}' is logged twice in one call", "the last one counts", name=name)
        flat[name] = item
    if "step" in flat:
        inner = flat.pop("step")
        step = inner if step is None else step
    if "timestamp" in flat:
        flat.pop("timestamp")
        refusals.refuse("'timestamp' is a reserved name; choose another")
    values: dict[str, Any] = {}
    waiting: dict[str, scalars.Waiting] = {}
    for key, item in flat.items():
        kind = type(item)
        if kind is float or kind is int:
            values[key] = item
            continue
        value = scalars.convert(item)
        if value is None:
            continue
        if kind.__module__ != "builtins":
            on_foreign()
        if isinstance(value, scalars.Refused):
            refusals.refuse(f"'{key:.100}' is {value.what}, not a number", name=key)
        elif isinstance(value, (int, float)):
            values[key] = value
        else:
            waiting[key] = value
    return RowValues(step, values, waiting)


def choose_step(step: Any, following: int, refusals: Refusals) -> int:
    """The step as an integer; `following` if none was passed or it is invalid."""
    if step is None:
        return following
    if type(step) is int and -(2**63) <= step < 2**64:
        return step
    converted = scalars.convert(step)
    if isinstance(converted, (int, float)) and abs(converted) < 2**62:
        return int(converted)
    what = converted.what if isinstance(converted, scalars.Refused) else "NaN or beyond 64 bits"
    refusals.refuse(f"step= is {what}, not an integer", f"logged as step {following}")
    return following

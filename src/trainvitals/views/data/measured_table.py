"""Measurements of a training from a table of another program: one row per step, or per step and rank.
Tested in tests/views/cli/test_diagnose.py."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from trainvitals import catalog
from trainvitals.analysis.findings import INTERVALS, Curve, Floats, Measurements
from trainvitals.analysis.metric_sense import is_held_out
from trainvitals.analysis.speed import choose_intervals
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.identity import TRAINER, Participant
from trainvitals.trackers.cells import is_missing
from trainvitals.views.data.csv_rows import parse_number, read_rows

STEPS = ("step", "global_step", "iteration", "iter", "_step")
RANKS = ("rank", "worker", "worker_id", "rank_id")
SECONDS = ("wall_s", "wall_time", "elapsed_s", "_runtime", "time")
"""Seconds since the run began, or since 1970."""
ROWS_AT_ONCE = 5000
"""Rows whose cells are read together."""
MILLISECONDS = {"step_ms": "batch_time", "batch_ms": "batch_time", "data_ms": "data_time", "forward_ms": "forward_time"}
OTHER_NAMES = {"step_s": "batch_time", "step_time_s": "batch_time", "lr": "learning_rate", "grad_norm": "gradient_norm"}


class TableCurves:
    """The columns of a table under the catalog's names."""

    def __init__(self, columns: Mapping[str, Curve]) -> None:
        self._columns = dict(columns)

    def get(self, name: str) -> Curve | None:
        return self._columns.get(name)

    def names(self) -> Sequence[str]:
        return list(self._columns)


def read_measurements(file: TextIO, name: str) -> Measurements:
    """What the detectors look at, from CSV with a header. Raises TrainvitalsError for what is no such table."""
    columns = _read_columns(file, name)
    ranks = next((columns.pop(key).values for key in RANKS if key in columns), None)
    steps = next((columns.pop(key).values for key in STEPS if key in columns), None)
    if not columns:
        raise TrainvitalsError(f"{name} has no column to judge", hint="such as: step,train_loss,val_loss,step_ms")
    count = len(next(iter(columns.values())).values)
    if steps is None:
        steps = np.arange(count, dtype=np.float64)
    if ranks is None:
        return _measure(_curves_of(columns, steps))
    found = {}
    for rank in np.unique(ranks[np.isfinite(ranks)]):
        mine = ranks == rank
        part = _curves_of({key: column.of(mine) for key, column in columns.items()}, steps[mine])
        found[Participant(TRAINER, int(rank))] = part
    if not found:
        raise TrainvitalsError(f"{name}: no row has a rank", hint="ranks are numbers: 0, 1, 2")
    times = {who: curves["batch_time"] for who, curves in found.items() if "batch_time" in curves}
    return _measure(found[min(found)], times)


def _measure(curves: Mapping[str, Curve], times: Mapping[Participant, Curve] | None = None) -> Measurements:
    held_out = [curve.x for key, curve in curves.items() if is_held_out(key)]
    moments = {"evaluation": np.unique(np.concatenate(held_out))} if held_out else {}
    return Measurements(training=TableCurves(curves), rank_steps=times or {}, moments=moments)


class _Column(NamedTuple):
    values: Floats
    written: NDArray[np.bool_]
    """Where a number is, or NaN was written: an empty cell is no value."""

    def of(self, rows: NDArray[np.bool_]) -> _Column:
        return _Column(self.values[rows], self.written[rows])


def _curves_of(columns: Mapping[str, _Column], steps: Floats) -> dict[str, Curve]:
    known = np.isfinite(steps)
    curves = {}
    for key, (values, written) in columns.items():
        canonical, factor = _canonical(key)
        given = known & (written if canonical == "loss" else ~np.isnan(values))
        if given.any():
            curves[canonical] = _ascending(steps[given], values[given] * factor)
    seconds = next((columns[key].values for key in SECONDS if key in columns), None)
    if seconds is not None:
        clock = _ascending(steps[known & np.isfinite(seconds)], seconds[known & np.isfinite(seconds)])
        apart, took = np.diff(clock.x), np.diff(clock.y)
        good = (apart > 0) & (took > 0)
        by_clock = Curve(clock.x[1:][good], took[good] / apart[good])
        intervals = choose_intervals(curves.get("batch_time"), by_clock)
        if intervals is not None:
            curves[INTERVALS] = intervals
        curves.setdefault("batch_time", by_clock)
    return curves


def _spell(key: str) -> str:
    """`Train Loss` is spelled as `train_loss`, where it has no meaning as it is."""
    return key if catalog.find("training", key) is not None else key.strip().lower().replace(" ", "_")


def _canonical(key: str) -> tuple[str, float]:
    """The catalog's name of a column, and what its values are multiplied by."""
    if key in MILLISECONDS:
        return MILLISECONDS[key], 0.001
    if key in OTHER_NAMES:
        return OTHER_NAMES[key], 1.0
    metric = catalog.find("training", key)
    return (metric.name if metric is not None else key), 1.0


def _ascending(x: Floats, y: Floats) -> Curve:
    """By step; of a step that comes twice the later row counts, as where a run was resumed before it."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    last = np.concatenate([x[1:] != x[:-1], [True]]) if len(x) else np.zeros(0, dtype=bool)
    return Curve(x[last], y[last])


def _parse(cells: Sequence[str]) -> _Column:
    try:
        if not any(cells):
            return _Column(np.full(len(cells), math.nan), np.zeros(len(cells), dtype=bool))
        # Nearly always: numbers all of them. To Python 1_000 is one too.
        if "_" not in ",".join(cells):
            return _Column(np.array(list(map(float, cells))), np.ones(len(cells), dtype=bool))
    except ValueError:
        pass
    numbers = [parse_number(cell) if cell else math.nan for cell in cells]
    written = [bool(cell) and number is not None and not is_missing(cell)
               for cell, number in zip(cells, numbers, strict=True)]  # fmt: skip
    values = [math.nan if number is None else number for number in numbers]
    return _Column(np.array(values, dtype=np.float64), np.array(written, dtype=bool))


def _join(parts: Sequence[_Column]) -> _Column:
    if not parts:
        return _Column(np.zeros(0), np.zeros(0, dtype=bool))
    return _Column(np.concatenate([part.values for part in parts]), np.concatenate([part.written for part in parts]))


def _read_columns(file: TextIO, name: str) -> dict[str, _Column]:
    rows = read_rows(file, name)
    header = next(rows)
    parts: list[list[_Column]] = [[] for _ in header]
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        cells = dict(enumerate(zip_longest(*piece, fillvalue="")))
        for place, part in enumerate(parts):
            part.append(_parse(cells.get(place, ("",) * len(piece))))
    columns = {_spell(key): _join(part) for key, part in zip(header, parts, strict=True) if key}
    # Infinity and NaN are values; a column of texts has none.
    return {key: column for key, column in columns.items() if column.written.any()}

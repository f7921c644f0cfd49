"""Measurements of a training from a table of another program: one row per step, or per step and rank.
Tested in tests/views/cli/test_diagnose.py."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice, zip_longest
from typing import NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from trainvitals import catalog
from trainvitals.analysis.findings import INTERVALS, Curve, Floats, Measurements, RankPlace
from trainvitals.analysis.metric_sense import is_held_out
from trainvitals.analysis.speed import choose_intervals
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import TRAINER, Participant
from trainvitals.stderr import print_line
from trainvitals.trackers import tables
from trainvitals.trackers.cells import is_missing
from trainvitals.views.data.csv_rows import parse_number, read_rows

EPOCH = "epoch"
STEPS = tuple(name for name in ("steps", "iterations", *tables.STEPS) if name != EPOCH)
RANKS = ("rank", "worker", "worker_id", "rank_id", "local_rank")
SECONDS = ("wall_s", "elapsed_s", "_runtime", *tables.TIMES)
"""Since the run began, or since 1970; or a date with its time."""
CLOCK_RISES = 0.95
"""Share of the rows in which a column of these rises at least: else it tells how long each step took, or no time."""
ROWS_AT_ONCE = 5000
"""Rows whose cells are read together."""
PARTS = {"data": "data_time", "forward": "forward_time"}
OTHER_NAMES = {"lr": "learning_rate", "grad_norm": "gradient_norm"}
_STEP_TIME = re.compile(
    r"((?P<of>step|batch|iter|iteration|data|forward)(_(time|duration))?|(time|sec|secs|seconds)_per_(step|batch|iter|iteration))"
    r"_?[(\[]?(?P<unit>ms|msec|milliseconds|s|sec|secs|seconds|)[)\]]?"
)
_LOSS = re.compile(r"(^|[^a-z])loss([^a-z]|$)")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
_NUMBERED = re.compile(r".*?(\d+)")


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
    columns, ranks = _read_columns(file, name)
    steps = next((columns.pop(key).values for key in STEPS if key in columns), None)
    epochs = columns.pop(EPOCH).values if EPOCH in columns else None
    if not columns:
        raise TrainvitalsError(
            f"{name} has no column to judge",
            hint="such as: step,train_loss,val_loss,step_ms; separated by commas, semicolons, tabs or |",
        )
    count = len(next(iter(columns.values())).values)
    if steps is None:
        alone = epochs is not None and len(np.unique(epochs)) == count and bool(np.isfinite(epochs).all())
        steps = epochs if epochs is not None and alone else np.arange(count, dtype=np.float64)
    if ranks is None:
        return _measure(_curves_of(columns, steps))
    found = {}
    for participant, mine in ranks.rows.items():
        found[participant] = _curves_of({key: column.of(mine) for key, column in columns.items()}, steps[mine])
    if not found:
        raise TrainvitalsError(f"{name}: no row has a rank", hint="ranks are numbers or names: 0, 1, node-2")
    times = {who: curves["batch_time"] for who, curves in found.items() if "batch_time" in curves}
    return _measure(found[min(found)], times, ranks.places)


def _measure(
    curves: Mapping[str, Curve],
    times: Mapping[Participant, Curve] | None = None,
    places: Mapping[str, RankPlace] | None = None,
) -> Measurements:
    held_out = [curve.x for key, curve in curves.items() if is_held_out(key)]
    moments = {"evaluation": np.unique(np.concatenate(held_out))} if held_out else {}
    return Measurements(training=TableCurves(curves), rank_steps=times or {}, moments=moments, places=places or {})


class _Ranks(NamedTuple):
    """Which rows are whose. Names of ranks that are no numbers are told as where those ran."""

    rows: Mapping[Participant, NDArray[np.bool_]]
    places: Mapping[str, RankPlace]

    @classmethod
    def of(cls, cells: Sequence[str]) -> _Ranks:
        spelled = {cell: cell.strip() for cell in set(cells) if not is_missing(cell)}
        names = sorted(set(spelled.values()))
        numbers = [_number_of(name) for name in names]
        if None in numbers or len(set(numbers)) < len(names):
            numbers = list(range(len(names)))
        place = {name: at for at, name in enumerate(names)}
        places_of_cells = {cell: place[name] for cell, name in spelled.items()}
        whose = np.array([places_of_cells.get(cell, -1) for cell in cells])
        who = {name: Participant(TRAINER, number) for name, number in zip(names, numbers, strict=True)
               if number is not None}  # fmt: skip
        places = {one.title: RankPlace(name) for name, one in who.items() if parse_number(name) is None}
        return cls({one: whose == place[name] for name, one in who.items()}, places)


def _number_of(name: str) -> int | None:
    """Of `3`, `3.0`, `worker-3`."""
    number = parse_number(name)
    if number is not None:
        return int(number) if math.isfinite(number) else None
    numbered = _NUMBERED.fullmatch(name)
    return int(numbered[1]) if numbered is not None else None


class _Column(NamedTuple):
    values: Floats
    written: NDArray[np.bool_]
    """Where a number is, or NaN was written: an empty cell is no value."""

    def of(self, rows: NDArray[np.bool_]) -> _Column:
        return _Column(self.values[rows], self.written[rows])


def _curves_of(columns: Mapping[str, _Column], steps: Floats) -> dict[str, Curve]:
    known = np.isfinite(steps)
    curves = {}
    loss = _find_loss(list(columns))
    for key, (values, written) in columns.items():
        canonical, factor = ("loss", 1.0) if key == loss else _canonical(key)
        given = known & (written if canonical == "loss" else ~np.isnan(values))
        if given.any():
            curves[canonical] = _ascending(steps[given], values[given] * factor)
    seconds = next((columns[key].values for key in SECONDS if key in columns), None)
    if seconds is not None:
        clock = _ascending(steps[known & np.isfinite(seconds)], seconds[known & np.isfinite(seconds)])
        apart, took = np.diff(clock.x), np.diff(clock.y)
        good = (apart > 0) & (took > 0)
        if good.sum() >= CLOCK_RISES * len(took) > 0:
            by_clock = Curve(clock.x[1:][good], took[good] / apart[good])
            intervals = choose_intervals(curves.get("batch_time"), by_clock)
            if intervals is not None:
                curves[INTERVALS] = intervals
            curves.setdefault("batch_time", by_clock)
    return curves


def _find_loss(keys: Sequence[str]) -> str | None:
    """The column that is the loss of the training by its name, where none has one of ours; None of several."""
    if any(_canonical(key)[0] == "loss" for key in keys):
        return None
    found = [key for key in keys if _LOSS.search(key.lower()) and not is_held_out(key) and "scale" not in key.lower()]
    return found[0] if len(found) == 1 else next((key for key in found if key == "total_loss"), None)


def _spell(key: str) -> str:
    """`Train Loss` is spelled as `train_loss`, where it has no meaning as it is."""
    return key if catalog.find("training", key) is not None else key.strip().lower().replace(" ", "_")


def _canonical(key: str) -> tuple[str, float]:
    """The catalog's name of a column, and what its values are multiplied by."""
    if key in OTHER_NAMES:
        return OTHER_NAMES[key], 1.0
    metric = catalog.find("training", key)
    if metric is not None:
        return metric.name, 1.0
    timed = _STEP_TIME.fullmatch(key)
    if timed is None or timed.group() == timed["of"]:
        return key, 1.0
    return PARTS.get(timed["of"], "batch_time"), 0.001 if timed["unit"].startswith("m") else 1.0


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
    grouped = [cell for cell in cells if "," in cell]
    if grouped and all(_THOUSANDS.fullmatch(cell.strip()) for cell in grouped):
        cells = [cell.replace(",", "") for cell in cells]
    numbers = [parse_number(cell) if cell else math.nan for cell in cells]
    written = [bool(cell) and number is not None and not is_missing(cell)
               for cell, number in zip(cells, numbers, strict=True)]  # fmt: skip
    values = [math.nan if number is None else number for number in numbers]
    return _Column(np.array(values, dtype=np.float64), np.array(written, dtype=bool))


def _join(parts: Sequence[_Column]) -> _Column:
    if not parts:
        return _Column(np.zeros(0), np.zeros(0, dtype=bool))
    return _Column(np.concatenate([part.values for part in parts]), np.concatenate([part.written for part in parts]))


def _parse_clock(cells: Sequence[str]) -> _Column:
    """Numbers of seconds, or dates with their time."""
    found = _parse(cells)
    if found.written.any():
        return found
    values = np.array([math.nan if (at := parse_time(cell.strip())) is None else at for cell in cells])
    return _Column(values, np.isfinite(values))


def _read_columns(file: TextIO, name: str) -> tuple[dict[str, _Column], _Ranks | None]:
    """The columns that have numbers, by their names, and who each row is of, if there are several ranks."""
    rows = read_rows(file, name)
    header = [_spell(key) for key in next(rows)]
    labels = next((place for key in RANKS for place, name in enumerate(header) if name == key), None)
    parts: list[list[_Column]] = [[] for _ in header]
    ranks: list[str] = []
    unreadable = dict.fromkeys(header, 0)
    while piece := list(islice(rows, ROWS_AT_ONCE)):
        cells = dict(enumerate(zip_longest(*piece, fillvalue="")))
        for place, (key, part) in enumerate(zip(header, parts, strict=True)):
            texts = cells.get(place, ("",) * len(piece))
            if place == labels:
                ranks += texts
                continue
            part.append((_parse_clock if key in SECONDS else _parse)(texts))
            if not part[-1].written.all():
                unreadable[key] += sum(not known and cell != "" and not is_missing(cell)
                                       for cell, known in zip(texts, part[-1].written, strict=True))  # fmt: skip
    columns = {key: _join(part) for place, (key, part) in enumerate(zip(header, parts, strict=True))
               if key and place != labels}  # fmt: skip
    # Infinity and NaN are values; a column of texts has none.
    columns = {key: column for key, column in columns.items() if column.written.any()}
    for key, column in columns.items():
        if unreadable[key]:
            print_line(f"{unreadable[key]:,} of {len(column.values):,} values of '{key}' are not numbers: skipped")
    return columns, _Ranks.of(ranks) if labels is not None else None

"""Curves of many runs in one answer: a line per run, or per group of runs with its mean and band.

Each metric of a run is read once and kept until the run's files change: another grouping, another band or one more
metric reads nothing again.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from trainvitals.analysis.comparison import group_seeds, without_seed
from trainvitals.analysis.groups import BandKind, make_group
from trainvitals.analysis.metric_sense import better
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.downsample import pick
from trainvitals.views.data.comparison import decisive
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.series import PLAIN_AXES, move_to_metric, pack_series, steps_between
from trainvitals.views.data.shapes import CurveJson, CurvesJson, LineJson, RowJson
from trainvitals.views.data.wire import mark_broken, pack_axis

MOST_RUNS = 500
"""Of which curves are read in one answer: the newest."""
USUAL_NAMES = 4
READ_POINTS = 2000
"""Of each curve, however many are asked for: thinned out for a chart, whole for a group. Of a longer curve, the lowest
and the highest of each piece are read, and its mean there is the mean of these."""
MEMORY_BYTES = 96 << 20
CURVE_BYTES = READ_POINTS * 16
"""At most, of one that is kept."""
READERS = 4
"""Runs that are read at the same time."""
EXPERIMENT = "experiment"
"""The grouping by everything in the configuration but the seed."""
AUTO = "auto"
"""By experiment if most of the runs are seeds of one, else each run by itself."""
ROW_FIELDS = ("project", "status", "host", "attempt", "kind")
GROUPINGS = (EXPERIMENT, "tags", *ROW_FIELDS)
"""Beside `config.KEY`."""
TITLE_KEYS = 4
"""Of an experiment, unless others have the same values there."""

Range = tuple[float | None, float | None]
EVERYTHING: Range = (None, None)
_Key = tuple[str, str, Range]


class CurveCache:
    """The curves that were read last, each with the state of the files that it was read from. For several threads."""

    def __init__(self, most_bytes: int = MEMORY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[_Key, tuple[object, dict[str, Series | None]]] = OrderedDict()

    def read(
        self, key: str, reader: Reader, names: Sequence[str], axis: str, within: Range, more: int = 0
    ) -> list[Series]:
        """Of the run's lowest participant, on an axis of `PLAIN_AXES`. If its files must be read, so many other metrics
        are read along for the next time: most of the time goes into the first."""
        asked = key, axis, within
        stamp = reader.stamp()
        with self._lock:
            kept_stamp, kept = self._kept.get(asked, (None, {}))
            known = dict(kept) if kept_stamp == stamp else {}
        if missing := [name for name in names if name not in known]:
            if more:
                others = (name for name in decisive(reader.names()) if name not in known and name not in missing)
                missing += islice(others, more)
            found = reader.series(
                missing,
                x=axis,  # type: ignore[arg-type]
                start=within[0],
                end=within[1],
                max_points=READ_POINTS,
                participants=lowest_of(reader),
            )
            known |= dict.fromkeys(missing)  # what was never logged is not looked for again
            for series in reversed(found):
                known[series.name] = series
        self._keep(asked, stamp, known)
        return [curve for name in names if (curve := known[name]) is not None]

    def _keep(self, asked: _Key, stamp: object, known: dict[str, Series | None]) -> None:
        with self._lock:
            self._drop(asked)
            self._kept[asked] = stamp, known
            self._bytes += _size(known)
            while self._bytes > self._most_bytes and self._kept:
                self._drop(next(iter(self._kept)))

    def _drop(self, asked: _Key) -> None:
        if (dropped := self._kept.pop(asked, None)) is not None:
            self._bytes -= _size(dropped[1])


def _size(curves: dict[str, Series | None]) -> int:
    return sum(series.x.nbytes + series.y.nbytes for series in curves.values() if series is not None)


def describe_curves(
    rows: Sequence[RowJson],
    open_run: Callable[[str], Reader],
    cache: CurveCache,
    *,
    names: Sequence[str] = (),
    axis: str = "step",
    points: int = 500,
    group: str = "",
    band: BandKind = "range",
    within: Range = EVERYTHING,
) -> CurvesJson:
    """Of the given runs, the newest first. Without `names`, of the metrics that show best how good they are. `axis` is
    step, time, relative, or the name of a metric such as `epoch`: what a run without it logged is not drawn."""
    chosen = list(rows[:MOST_RUNS])
    wanted = list(names) or _usual_names(chosen)
    if group == AUTO:
        group = EXPERIMENT if _are_seeds(chosen) else ""
    lines = group_rows(chosen, group) if group else [LineGroup(row["key"], row["name"], [row]) for row in chosen]
    # What the user may add next, as far as it leaves room for other runs.
    more = MEMORY_BYTES // 2 // CURVE_BYTES // max(len(chosen), 1)

    def read(row: RowJson) -> list[Series]:
        try:
            return _read(cache, row["key"], open_run(row["key"]), wanted, axis, within, more)
        except (TrainvitalsError, OSError):
            return []  # removed or half-copied since it was listed

    with ThreadPoolExecutor(READERS, thread_name_prefix="curves") as pool:
        found = dict(zip((row["key"] for row in chosen), pool.map(read, chosen), strict=True))
    series: list[CurveJson] = []
    for place, line in enumerate(lines):
        for name in wanted:
            curves = [item for row in line.rows for item in found[row["key"]] if item.name == name and len(item.x)]
            if curves:
                packed = (
                    _pack_group(name, curves, axis, points, band)
                    if group
                    else pack_series(_thin(curves[0], points), axis)
                )
                series.append({"line": place, **packed})  # type: ignore[typeddict-item]
    described: list[LineJson] = [
        {"id": line.id, "title": line.title, "runs": [row["key"] for row in line.rows]} for line in lines
    ]
    return {
        "total": len(rows),
        "left_out": len(rows) - len(chosen),
        "axis": axis,
        "group": group,
        "names": wanted,
        "lines": described,
        "series": series,
    }


def _read(
    cache: CurveCache,
    key: str,
    reader: Reader,
    wanted: Sequence[str],
    axis: str,
    within: Range,
    more: int,
) -> list[Series]:
    if axis in PLAIN_AXES:
        return cache.read(key, reader, wanted, axis, within, more if within == EVERYTHING else 0)
    whole = cache.read(key, reader, [axis, *wanted], "step", EVERYTHING, more)
    scale = next((series for series in whole if series.name == axis), None)
    if scale is None:
        return []
    found = cache.read(key, reader, wanted, "step", steps_between(scale, *within))
    return move_to_metric(found, scale, *within, READ_POINTS)


def _thin(series: Series, points: int) -> Series:
    shown = pick(series.y, points)
    return replace(series, x=series.x[shown], y=series.y[shown])


def _usual_names(rows: Sequence[RowJson]) -> list[str]:
    """Those of which it is known whether more is better; any if there are none."""
    ranked = decisive(common_names(rows))
    return ([name for name in ranked if better(name)] or ranked)[:USUAL_NAMES]


def common_names(rows: Sequence[RowJson]) -> list[str]:
    """What any of the runs logged, that of the most runs first."""
    counts: dict[str, int] = {}
    for row in rows:
        for name in row["summary"]:
            counts[name] = counts.get(name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))


def _pack_group(name: str, curves: Sequence[Series], axis: str, points: int, band: BandKind) -> dict[str, Any]:
    made = make_group([(item.x, item.y) for item in curves], points, band)
    packed: dict[str, Any] = {
        "name": name,
        "labels": {},
        "rank": None,
        "total": sum(item.total for item in curves),
        "nonfinite_total": sum(item.nonfinite for item in curves),
        "members": len(curves),
        "x": pack_axis(np.round(made.x) if axis == "step" else made.x, axis),
        "y": made.mean,
        "low": made.low,
        "high": made.high,
        "counts": made.members,
    }
    mark_broken(packed, made.broken)  # type: ignore[arg-type]
    return packed


# -- groups of runs


def _are_seeds(rows: Sequence[RowJson]) -> bool:
    """Whether at least half of the runs differ from another one in nothing but the seed."""
    several = [group for group in group_seeds([row["config"] for row in rows]) if len(group) > 1]
    return bool(several) and 2 * sum(map(len, several)) >= len(rows)


class LineGroup(NamedTuple):
    """Runs that are one line of every chart."""

    id: str
    """The same one after a reload, and when other runs come and go."""
    title: str
    rows: list[RowJson]


def group_rows(rows: Sequence[RowJson], by: str) -> list[LineGroup]:
    """In the order of the titles, numbers by their value. `by` is `config.KEY` or one of `GROUPINGS`. A run with
    several tags is in several groups; one without the value is in the group `none`."""
    if by == EXPERIMENT:
        return _group_experiments(rows)
    groups: dict[str, list[RowJson]] = {}
    for row in rows:
        for title in _titles(row, by):
            groups.setdefault(title, []).append(row)
    return _in_order(LineGroup(title, title, members) for title, members in groups.items())


def _in_order(groups: Iterable[LineGroup]) -> list[LineGroup]:
    return sorted(groups, key=lambda group: _natural(group.title))


def _titles(row: RowJson, by: str) -> list[str]:
    if by == "tags":
        return list(dict.fromkeys(row["tags"])) or ["none"]
    value = row["config"].get(by.removeprefix("config.")) if by.startswith("config.") else row.get(by)
    return ["none" if value is None or value == "" else _to_text(value)]


def _group_experiments(rows: Sequence[RowJson]) -> list[LineGroup]:
    """Runs of one configuration, whatever their seed. Without a configuration nothing says that two are the same."""
    configs: dict[str, tuple[dict[str, Any], list[RowJson]]] = {}
    for row in rows:
        rest = without_seed(row["config"])
        same = json.dumps(rest, sort_keys=True, default=str) if rest else row["key"]
        configs.setdefault(same, (rest, []))[1].append(row)
    titles = _name_experiments([{key: _to_text(value) for key, value in rest.items()} for rest, _ in configs.values()])
    return _in_order(
        LineGroup(hashlib.blake2b(same.encode(), digest_size=8).hexdigest(), title or members[0]["name"], members)
        for (same, (_, members)), title in zip(configs.items(), titles, strict=True)
    )


def _name_experiments(texts: Sequence[Mapping[str, str]]) -> list[str]:
    """What differs, the first `TITLE_KEYS` of it; for those that are alike there, what tells them apart as well. Empty
    for one that has nothing of it."""
    values = {key: {text.get(key) for text in texts} for text in texts for key in text}
    differing = [key for key, found in values.items() if len(found) > 1]
    shown = [[key for key in differing if key in text][:TITLE_KEYS] for text in texts]
    alike: dict[str, list[int]] = {}
    for place, text in enumerate(texts):
        alike.setdefault(_draw(text, shown[place]), []).append(place)
    for places in alike.values():
        more = _distinguish([texts[place] for place in places], differing)
        for place in places:
            shown[place] += [key for key in more if key in texts[place]]
    found = []
    for text, keys in zip(texts, shown, strict=True):
        is_cut = keys and any(key in text and key not in keys for key in differing)
        found.append(_draw(text, keys) + (", …" if is_cut else ""))
    return found


def _draw(text: Mapping[str, str], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={text[key]}" for key in keys)


def _distinguish(texts: Sequence[Mapping[str, str]], keys: Sequence[str]) -> list[str]:
    """Those of the keys that tell these texts apart, none that adds nothing to those before it."""
    found: list[str] = []
    kinds = 1
    for key in keys:
        with_it = len({tuple(map(text.get, [*found, key])) for text in texts})
        if with_it > kinds:
            found.append(key)
            kinds = with_it
    return found


def _to_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), default=str)


def _natural(title: str) -> tuple[bool, list[tuple[bool, float, str]]]:
    """Numbers within the text by their value, and `none` last."""
    parts = re.split(r"(\d+\.?\d*(?:[eE][+-]?\d+)?)", title)
    return title == "none", [(at % 2 == 0, float(part) if at % 2 else 0.0, part) for at, part in enumerate(parts)]

"""What the API says of a run, as plain values: made from the folder alone, so that a report says the same.

Every function takes a `RunReader` (or several) and gives a dict that `wire.encode` makes JSON of.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from trainvitals import catalog
from trainvitals.alerts import records
from trainvitals.analysis.bands import make_band
from trainvitals.analysis.comparison import compare_configs, compare_metric, flatten, last_stretch
from trainvitals.analysis.health import judge_health
from trainvitals.analysis.metric_sense import better
from trainvitals.analysis.progress import find_progress
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.cursor import Cursor
from trainvitals.journal.encoding import TimeParser, number
from trainvitals.journal.reader import MetricSummary, RunInfo, RunReader, Series
from trainvitals.views import panels
from trainvitals.views.web.wire import pack_axis, pack_values

MAX_NAMES = 20_000
LAYER_MEASURES = ("gradient_norm", "gradient_max", "weight_norm", "update_ratio", "gradient_nan", "gradient_inf")
MAX_LAYERS = 400
MAX_SUMMARY = 200
Answer = dict[str, Any]


# -- what is known without a run


def describe_panels() -> Answer:
    """The dashboard's panels, their groups, and every metric of the catalog."""
    return {
        "groups": [{"id": name, "title": title} for name, title in panels.GROUPS],
        "panels": [_describe_panel(panel) for panel in panels.PANELS],
        "metrics": {
            table: [
                {"name": m.name, "unit": m.unit, "help": m.help, "kind": m.kind, "aliases": list(m.aliases)}
                for m in rows
            ]
            for table, rows in catalog.TABLES.items()
        },
        "thresholds": [
            {"table": table, "metric": name, "severity": t.severity, "value": t.value, "below": t.below}
            for (table, name), found in panels.THRESHOLDS.items()
            for t in found
        ],
    }


def _describe_panel(panel: panels.Panel) -> Answer:
    return {
        "id": panel.id,
        "title": panel.title,
        "group": panel.group,
        "table": panel.table,
        "metrics": list(panel.metrics),
        "importance": panel.importance,
        "chart": panel.chart,
        "by": list(panel.by),
        "limit": panel.limit,
        "low": panel.low,
        "high": panel.high,
        "log": panel.log_scale,
        "smooth": panel.smooth,
        "unit": panel.unit,
        "rate": panel.is_rate,
        "thresholds": [{"severity": t.severity, "value": t.value, "below": t.below} for t in panel.thresholds],
    }


# -- one run


def describe_row(info: RunInfo, key: str, statuses: Sequence[Mapping[str, Any]]) -> Answer:
    """A run on one line of the table of runs: run.json and what the agents said, nothing else is read."""
    run = info.details
    said = newest_status(info, statuses)
    values: dict[str, Any] = {}
    summary = said.get("summary")
    if isinstance(summary, Mapping):
        for name, item in list(summary.items())[:MAX_SUMMARY]:
            if isinstance(item, Mapping) and number(item.get("last")) is not None:
                values[str(name)] = item["last"]
    config = run.get("config")
    return {
        "key": key,
        "id": info.id,
        "name": info.name,
        "project": info.project,
        "status": info.status,
        "live": info.is_live,
        "cause": info.cause,
        "kind": str(run.get("kind") or ""),
        "started": info.started,
        "ended": info.ended,
        "seconds": _seconds(info),
        "step": _last_step(run, said),
        "attempt": info.attempt,
        "simulated": info.simulated,
        "tags": [str(tag) for tag in run.get("tags") or []],
        "host": str((run.get("host") or {}).get("name") or "") if isinstance(run.get("host"), Mapping) else "",
        "config": flatten(config) if isinstance(config, Mapping) else {},
        "summary": values,
        "energy_joules": _energy(statuses),
    }


def newest_status(info: RunInfo, statuses: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the agents said of the newest attempt; of several hosts, the one that follows the lowest rank."""
    current = [said for said in statuses if said.get("attempt") in (None, info.attempt)]

    def lowest(said: Mapping[str, Any]) -> int:
        ranks = said.get("ranks")
        numbers = [int(rank) for rank in ranks if str(rank).isdecimal()] if isinstance(ranks, Mapping) else []
        return min(numbers, default=1 << 30)

    return min(current, key=lowest, default={})


def describe_run(reader: RunReader, key: str, prices: Mapping[str, Any] | None = None) -> Answer:
    """Everything about a run but its series."""
    info = reader.info
    statuses = run_folder.read_statuses(reader.folder)
    summary = reader.summary()
    alerts = reader.alerts()
    firing = [row for row in records.current(alerts) if not _is_silenced(row)]
    latest = {name: item.last for name, item in summary.items()}
    row = describe_row(info, key, statuses)
    if row["step"] is None:
        row["step"] = max((item.last_step for item in summary.values() if item.last_step is not None), default=None)
    row["summary"] = dict(list(latest.items())[:MAX_SUMMARY])
    ranks = _ranks(statuses)
    pace = _pace(ranks, reader, info)
    progress = find_progress(info.details.get("config") or {}, row["step"], latest.get("epoch"), pace, info.is_live)
    damage = reader.damage()
    gpu_seconds = _gpu_seconds(reader, info)
    return {
        **row,
        "health": judge_health(info.status, info.cause, firing, latest)._asdict(),
        "progress": progress._asdict(),
        "step_seconds": pace,
        "cost": find_cost(prices or {}, gpu_seconds, row["energy_joules"]),
        "gpu_seconds": gpu_seconds,
        "metrics": describe_metrics(summary),
        "tables": {table: _describe_table(reader, table) for table in reader.tables()},
        "layers": layer_measures(reader.names()),
        "histograms": list_histograms(reader.folder),
        "ranks": ranks,
        "firing": firing,
        "damage": asdict(damage),
        "details": _details(info),
        "stacks": [path.name for path in stack_files(reader.folder)],
        "consoles": [path.name for path in console_files(reader.folder)],
    }


def describe_metrics(summary: Mapping[str, MetricSummary]) -> list[Answer]:
    """Every training metric with its last, lowest and highest value."""
    return [
        {"name": name, **asdict(item), "better": better(name), **_unit_of("training", name)}
        for name, item in list(summary.items())[:MAX_NAMES]
    ]


def _unit_of(table: str, name: str) -> Answer:
    metric = catalog.find(table, name)
    return {"unit": metric.unit if metric else "", "help": metric.help if metric else ""}


def _describe_table(reader: RunReader, table: str) -> Answer:
    names = reader.names(table)
    return {"names": names[:MAX_NAMES], "left_out": max(len(names) - MAX_NAMES, 0), "labels": reader.labels(table)}


def _details(info: RunInfo) -> Answer:
    hidden = ("config", "tags", "status", "cause")
    return {
        **{key: value for key, value in info.details.items() if key not in hidden},
        "config": info.details.get("config") or {},
        "folder": str(info.folder),
    }


def _is_silenced(row: Mapping[str, Any]) -> bool:
    until = row.get("silenced")
    if not until:
        return False
    return until is True or records.seconds(row, "silenced") > time.time()


def _last_step(run: Mapping[str, Any], said: Mapping[str, Any]) -> int | None:
    steps = [run.get("last_step")]
    ranks = said.get("ranks")
    if isinstance(ranks, Mapping):
        steps += [rank.get("step") for rank in ranks.values() if isinstance(rank, Mapping)]
    return max((step for step in steps if isinstance(step, int) and not isinstance(step, bool)), default=None)


def _seconds(info: RunInfo) -> float | None:
    started, ended = parse_time(info.started), parse_time(info.ended)
    if started is None or (ended is None and not info.is_live):
        return None
    return max((ended if ended is not None else time.time()) - started, 0.0)


def parse_time(text: object) -> float | None:
    """Seconds since 1970, or None."""
    micros = TimeParser().parse(text) if isinstance(text, str) else None
    return micros / 1e6 if micros is not None else None


def _ranks(statuses: Iterable[Mapping[str, Any]]) -> list[Answer]:
    found = []
    for said in statuses:
        ranks = said.get("ranks")
        for name, rank in ranks.items() if isinstance(ranks, Mapping) else ():
            if isinstance(rank, Mapping) and str(name).isdecimal():  # `command0` is the program around rank 0
                wanted = ("pid", "state", "alive", "step", "step_seconds", "last_log", "lines", "exit_code", "cause")
                found.append({"rank": str(name), "host": said.get("host"), **{k: rank[k] for k in wanted if k in rank}})
    return sorted(found, key=lambda rank: (len(rank["rank"]), rank["rank"]))


def _pace(ranks: Sequence[Mapping[str, Any]], reader: RunReader, info: RunInfo) -> float | None:
    """Seconds per step: what the agent measured of the slowest rank, else from the first and last line."""
    known = [rank["step_seconds"] for rank in ranks if isinstance(rank.get("step_seconds"), (int, float))]
    if known:
        return float(max(known))
    started, ended = parse_time(info.started), parse_time(info.ended)
    step = info.details.get("last_step")
    if started is not None and ended is not None and isinstance(step, int) and step > 0:
        return (ended - started) / step
    return None


def _energy(statuses: Iterable[Mapping[str, Any]]) -> float | None:
    """Joules of all GPUs, as the agents added it up; None if no card told."""
    found = [
        float(gpu["energy_used_joules"])
        for said in statuses
        if isinstance(said.get("gpu_summary"), Mapping)
        for gpu in said["gpu_summary"].values()
        if isinstance(gpu, Mapping) and isinstance(gpu.get("energy_used_joules"), (int, float))
    ]
    return sum(found) if found else None


def _gpu_seconds(reader: RunReader, info: RunInfo) -> float | None:
    """GPUs times the time of the run; None without GPUs or a known end."""
    seconds = _seconds(info)
    count = len(reader.labels("gpu"))
    return seconds * count if seconds is not None and count else None


def find_cost(prices: Mapping[str, Any], gpu_seconds: float | None, energy_joules: float | None) -> Answer | None:
    """What the run cost so far, where a price is set: GPU hours, else energy."""
    hour, kwh, currency = prices.get("gpu_hour"), prices.get("kwh"), prices.get("currency") or ""
    if hour is not None and gpu_seconds is not None:
        return {"amount": gpu_seconds / 3600 * hour, "currency": currency, "of": "GPU hours"}
    if kwh is not None and energy_joules is not None:
        return {"amount": energy_joules / 3.6e6 * kwh, "currency": currency, "of": "energy"}
    return None


# -- series


def describe_series(
    reader: RunReader,
    names: Sequence[str],
    *,
    table: str = "training",
    axis: str = "step",
    start: float | None = None,
    end: float | None = None,
    points: int = 1000,
    ranks: Sequence[int] | None = None,
    band: bool = False,
    rate: bool = False,
    all_attempts: bool = False,
) -> Answer:
    """Series of the given names. `axis` is step, time, relative, or the name of a training metric such as `epoch`;
    `band` puts the ranks of a name together as lowest, mean and highest; `rate` draws a counter per second."""
    plain = axis in ("step", "time", "relative")
    found = reader.series(
        names,
        table=table,
        x=axis if plain else "step",  # type: ignore[arg-type]
        start=start if plain else None,
        end=end if plain else None,
        max_points=points,
        ranks=ranks,
        all_attempts=all_attempts,
    )
    if not plain:
        found = _on_metric(reader, found, axis, start, end, points)
    if rate:
        found = [_per_second(series) for series in found]
    if band:
        return {"axis": axis, "table": table, "series": _bands(found, axis, points)}
    return {"axis": axis, "table": table, "series": [pack_series(series, axis) for series in found]}


def pack_series(series: Series, axis: str) -> Answer:
    """One series for the wire."""
    return {
        "name": series.name,
        "labels": dict(series.labels),
        "rank": series.rank,
        "total": series.total,
        "x": pack_axis(series.x, axis),
        **pack_values(series.y),
    }


def _on_metric(
    reader: RunReader, found: list[Series], axis: str, start: float | None, end: float | None, points: int
) -> list[Series]:
    """The same values over another metric: its value at each step, between two looks interpolated."""
    scale = next(iter(reader.series([axis], max_points=max(points, 2000))), None)
    if scale is None:
        return []
    finite = np.isfinite(scale.y)
    if not finite.any():
        return []
    moved = []
    for series in found:
        x = np.interp(series.x, scale.x[finite], scale.y[finite])
        order = np.argsort(x, kind="stable")
        x, y = x[order], series.y[order]
        keep = np.ones(len(x), dtype=bool)
        if start is not None:
            keep &= x >= start
        if end is not None:
            keep &= x <= end
        moved.append(Series(series.name, series.labels, series.rank, x[keep], y[keep], series.total))
    return moved


def _per_second(series: Series) -> Series:
    """A counter as its rate. A counter that falls began anew: its rate there is not known."""
    if len(series.x) < 2:
        return Series(series.name, series.labels, series.rank, series.x[:0], series.y[:0], series.total)
    span, rise = np.diff(series.x), np.diff(series.y)
    known = (span > 0) & (rise >= 0)
    return Series(series.name, series.labels, series.rank, series.x[1:][known], rise[known] / span[known], series.total)


def _bands(found: Sequence[Series], axis: str, points: int) -> list[Answer]:
    by_name: dict[str, list[Series]] = {}
    for series in found:
        by_name.setdefault(series.name, []).append(series)
    bands = []
    for name, several in by_name.items():
        if len(several) == 1:
            bands.append(pack_series(several[0], axis))
            continue
        made = make_band([(series.x, series.y) for series in several], max(points // 2, 1))
        x = np.round(made.x) if axis == "step" else made.x
        bands.append(
            {
                "name": name,
                "labels": {},
                "rank": None,
                "total": sum(series.total for series in several),
                "members": len(several),
                "x": pack_axis(x, axis),
                **pack_values(made.mean),
                "low": made.low,
                "high": made.high,
            }
        )
    return bands


# -- layers and histograms


def layer_measures(names: Iterable[str]) -> dict[str, int]:
    """What was measured of layers, and of how many."""
    counts: dict[str, int] = {}
    for name in names:
        head, slash, _ = name.partition("/")
        if slash and head in LAYER_MEASURES:
            counts[head] = counts.get(head, 0) + 1
    return counts


def describe_layers(reader: RunReader, measure: str, points: int = 200, rank: int | None = None) -> Answer:
    """One measure of every layer over the steps, as a grid: `values[layer][column]`, null where nothing was seen."""
    names = [name for name in reader.names() if name.partition("/")[0] == measure and "/" in name]
    names.sort(key=_natural)
    left_out = max(len(names) - MAX_LAYERS, 0)
    names = names[:MAX_LAYERS]
    ranks = None if rank is None else [rank]
    found: dict[str, Series] = {}
    for series in reader.series(names, max_points=points * 2, ranks=ranks):
        found.setdefault(series.name, series)
    if not found:
        return {"measure": measure, "layers": [], "x": [], "values": [], "left_out": left_out}
    start = min(float(series.x[0]) for series in found.values())
    end = max(float(series.x[-1]) for series in found.values())
    columns = min(points, max(len(series.x) for series in found.values()))
    edges = np.linspace(start, end, columns + 1)
    rows = []
    for series in found.values():
        place = np.clip(np.searchsorted(edges, series.x, side="right") - 1, 0, columns - 1)
        row = np.full(columns, np.nan)
        row[place] = series.y
        rows.append([None if not np.isfinite(value) else float(value) for value in row])
    return {
        "measure": measure,
        "layers": [name.partition("/")[2] for name in found],
        "x": edges[:-1].round().astype(np.int64),
        "values": rows,
        "left_out": left_out,
    }


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts if part]


def histogram_files(folder: Path) -> list[Path]:
    """The files that hold histograms, rank 0 first."""
    return sorted((folder / "media").glob("histograms.rank*.jsonl"), key=lambda path: (len(path.name), path.name))


def list_histograms(folder: Path) -> list[str]:
    """Names of the histograms, from the beginning of rank 0's file: all are written at each look."""
    names: dict[str, None] = {}
    for path in histogram_files(folder)[:1]:
        names.update((str(row.get("name")), None) for row in Cursor(path).read(1 << 20))
    return list(names)


def describe_histograms(reader: RunReader, name: str, limit: int = 200) -> Answer:
    """The histograms of one name over the steps, evenly thinned out to `limit`."""
    rows = [
        row for path in histogram_files(reader.folder)[:1] for row in Cursor(path).read() if row.get("name") == name
    ]
    if len(rows) > limit:
        rows = [rows[int(at)] for at in np.linspace(0, len(rows) - 1, limit)]
    wanted = ("step", "low", "high", "counts", "nonfinite")
    return {"name": name, "histograms": [{key: row.get(key) for key in wanted} for row in rows]}


# -- lines


def describe_events(reader: RunReader, limit: int = 1000, text: str = "") -> Answer:
    """The newest events, newest first, and how many there are."""
    rows = reader.events()
    if text:
        wanted = text.lower()
        rows = [row for row in rows if any(wanted in str(value).lower() for value in row.values())]
    return {"total": len(rows), "events": rows[::-1][:limit]}


def describe_alerts(reader: RunReader, limit: int = 1000) -> Answer:
    """What fires now, and every change and delivery, newest first."""
    rows = reader.alerts()
    changes = records.changes(rows)
    deliveries = [row for row in rows if "delivery" in row or "action" in row]
    return {
        "firing": records.current(rows),
        "total": len(changes),
        "history": changes[::-1][:limit],
        "deliveries": deliveries[::-1][:limit],
    }


def stack_files(folder: Path) -> list[Path]:
    """The stack dumps of the run, empty ones left out."""
    return _plain_files(folder / layout.STACKS, "*.txt")


def console_files(folder: Path) -> list[Path]:
    """What the program printed, where it was recorded."""
    return _plain_files(folder, "console*.log") + _plain_files(folder, "output*.log")


def _plain_files(folder: Path, pattern: str) -> list[Path]:
    """Regular files only: a link in a run folder may point anywhere."""
    try:
        return sorted(
            path for path in folder.glob(pattern) if path.is_file() and not path.is_symlink() and path.stat().st_size
        )
    except OSError:
        return []


def read_text_tail(files: Sequence[Path], name: str, limit: int) -> Answer:
    """The end of the file called `name` among `files`, at most `limit` bytes of it."""
    for path in files:
        if path.name == name:
            try:
                with open(path, "rb") as file:
                    size = file.seek(0, 2)
                    file.seek(max(size - limit, 0))
                    text = file.read(limit).decode("utf-8", "replace")
            except OSError as error:
                raise JournalError(f"{name} cannot be read: {error.strerror}") from error
            return {"name": name, "size": size, "cut": size > limit, "text": text}
    raise JournalError(f"there is no file '{name}' in this run")


# -- several runs


def describe_comparison(
    readers: Sequence[tuple[str, RunReader]],
    names: Sequence[str],
    *,
    axis: str = "step",
    points: int = 600,
    start: float | None = None,
    end: float | None = None,
) -> Answer:
    """Runs beside each other; the first is the baseline. Without `names`, of all metrics that several have."""
    infos = [reader.info for _, reader in readers]
    summaries = [reader.summary() for _, reader in readers]
    shared = [name for name in summaries[0] if any(name in other for other in summaries[1:])] if summaries else []
    shared += sorted({name for other in summaries[1:] for name in other} - set(shared)) if not shared else []
    series: list[Answer] = []
    wanted = list(names) or _telling(shared)
    for place, (key, reader) in enumerate(readers):
        found = reader.series(wanted, x=axis, start=start, end=end, max_points=points)  # type: ignore[arg-type]
        chosen = [item for item in found if item.rank in (None, 0)]
        series += [{"run": place, "key": key, **pack_series(item, axis)} for item in chosen]
    rows = [_compare_row(name, summaries) for name in shared[:MAX_SUMMARY]]
    return {
        "runs": [
            describe_row(info, key, run_folder.read_statuses(info.folder))
            for info, (key, _) in zip(infos, readers, strict=True)
        ],
        "config": [
            {"key": item.key, "values": list(item.values)}
            for item in compare_configs([info.details.get("config") or {} for info in infos])
        ],
        "metrics": rows,
        "verdicts": _verdicts([reader for _, reader in readers], [n for n in _telling(shared) if better(n)][:8]),
        "axis": axis,
        "names": wanted,
        "series": series,
    }


def _telling(names: Sequence[str]) -> list[str]:
    """The metrics worth comparing first: those that say which run is better."""

    def order(name: str) -> tuple[bool, bool, bool, bool]:
        is_time = name.endswith("_time")
        return name != "loss", is_time, better(name) is None, "val" not in name

    ranked = sorted(
        (name for name in names if name.partition("/")[0] not in LAYER_MEASURES or "/" not in name), key=order
    )
    return ranked[:12]


def _compare_row(name: str, summaries: Sequence[Mapping[str, MetricSummary]]) -> Answer:
    direction = better(name)
    values: list[Answer | None] = []
    for summary in summaries:
        item = summary.get(name)
        values.append(None if item is None else {"last": item.last, "low": item.low, "high": item.high})
    best = None
    if direction is not None:
        extreme = "low" if direction == "lower" else "high"
        known = [(value[extreme], at) for at, value in enumerate(values) if value and value[extreme] is not None]
        if len({value for value, _ in known}) > 1 or len(known) == 1:  # equal values have no best
            best = (min(known) if direction == "lower" else max(known))[1]
    return {"name": name, "better": direction, "values": values, "best": best, **_unit_of("training", name)}


def _verdicts(readers: Sequence[RunReader], names: Sequence[str]) -> list[Answer]:
    """Each run but the first against the first."""
    if len(readers) < 2:
        return []
    ends = [{item.name: item for item in reader.series(names, max_points=4) if not item.rank} for reader in readers]
    found = []
    for place, reader in enumerate(readers[1:], 1):
        for name in names:
            if name not in ends[0] or name not in ends[place]:
                continue
            # Every value of the last stretch and nothing else: extremes would tell of another spread.
            start, end = last_stretch(ends[0][name].x, ends[place][name].x)
            base = _of_lowest_rank(readers[0], name, start, end)
            verdict = compare_metric(name, base, _of_lowest_rank(reader, name, start, end), stretch=(start, end))
            found.append({"run": place, **verdict._asdict()})
    return found


def _of_lowest_rank(reader: RunReader, name: str, start: float, end: float) -> tuple[Any, Any]:
    for series in reader.series([name], start=start, end=end):
        if not series.rank:
            return series.x, series.y
    return np.empty(0), np.empty(0)

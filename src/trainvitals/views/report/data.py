"""The contents of a report: the answers of the web API in one object, with few enough points for a file to share.
Tested in tests/views/report/test_document.py."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from trainvitals import __version__
from trainvitals.analysis.expressions import ExpressionError, LoggedMetric
from trainvitals.conditions import Conditions
from trainvitals.errors import JournalError
from trainvitals.journal.contracts import Reader, Series, TextKind
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.encoding import format_time
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.redaction import redact, redact_text
from trainvitals.views import panels
from trainvitals.views.data import comparison, dashboard, run_details
from trainvitals.views.data.benchmark import describe_benchmarks
from trainvitals.views.data.chosen import Chosen, choose, compute_series
from trainvitals.views.data.clock import read_clock
from trainvitals.views.data.diagnosis import describe_diagnosis
from trainvitals.views.data.layers import LAYER_MEASURES, describe_histograms, describe_layers
from trainvitals.views.data.media import collect_media
from trainvitals.views.data.patches import read_patch_text
from trainvitals.views.data.project_view import describe_view
from trainvitals.views.data.series import describe_states, pack_series
from trainvitals.views.data.shapes import (
    ClockJson,
    PatchTextJson,
    ReportDataJson,
    ReportPanelJson,
    ReportRunJson,
    SeriesJson,
    StatesJson,
    TableJson,
    TextJson,
    ViewJson,
)

POINTS = 360_000
"""Points of all series of a report together: about 3 MB in the file."""
MOST, LEAST = 6000, 40
"""Points of one series, however few or many there are."""
MAX_NAMES = 600
"""Training metrics in a report; what is left out is counted."""
CLOCK = 2000
MAX_LINES = 1000
MAX_TEXTS, TEXT_BYTES = 6, 64 << 10
MAX_HISTOGRAMS = 24
DIGITS = 7
"""Significant digits of a value in a report."""


def make_data(runs: Sequence[tuple[str, Reader]], conditions: Conditions, prices: Prices = NO_PRICES) -> ReportDataJson:
    """Everything about one run, or several side by side, the first being the baseline."""
    share = POINTS // max(len(runs), 1)
    data: ReportDataJson = {
        "about": {"version": __version__, "root": "", "allow_edit": False, "runs": len(runs), "machines": []},
        "panels": dashboard.describe_panels(conditions),
        "runs": {key: _describe(key, reader, share, conditions, prices) for key, reader in runs},
        "views": _describe_views(reader for _, reader in runs),
        "written": format_time(time.time()),
    }
    if len(runs) > 1:
        data["comparison"] = redact(comparison.describe_comparison(runs, [], points=2000))
    return data


def _describe(key: str, reader: Reader, points: int, conditions: Conditions, prices: Prices) -> ReportRunJson:
    run = run_details.describe_run(reader, key, prices)
    view = _find_view(reader)
    own = {panel.items: _choose(panel.items, reader) for panel in (view.panels if view is not None else ())}
    own_names = {name for chosen in own.values() for name, item in chosen.items if isinstance(item, LoggedMetric)}
    training = choose_names(run["tables"]["training"]["names"] if "training" in run["tables"] else [], own_names)
    for table, wanted in (("training", training), *((table, None) for table in run["tables"] if table != "training")):
        if table in run["tables"]:
            _limit_names(run["tables"][table], wanted if wanted is not None else panel_names(table))
    hardware = {table: run["tables"][table]["names"] for table in run["tables"] if table != "training"}
    series = _read_series(reader, training, hardware, points)
    own_panels = [_read_panel(reader, items, chosen, series["training"]["step"]) for items, chosen in own.items()]
    return {
        # What was written before secrets were looked for, or by another program, is looked through once more.
        "run": redact(run),
        "own_panels": own_panels,
        "series": series,
        "clock": _read_clock(reader, training),
        "layers": {measure: describe_layers(reader, measure, 120) for measure in run["layers"]},
        "histograms": {
            name: describe_histograms(reader, name, 60)["histograms"] for name in run["histograms"][:MAX_HISTOGRAMS]
        },
        "states": [state for table in run["tables"] for state in _read_states(reader, table)],
        "events": redact(run_details.describe_events(reader, MAX_LINES)),
        "alerts": redact(run_details.describe_alerts(reader, MAX_LINES)),
        "texts": dict(_read_texts(reader)),
        "patch": _read_patch(reader),
        "media": collect_media(reader),
        "diagnosis": describe_diagnosis(reader, conditions, prices),
        "benchmarks": redact(describe_benchmarks(reader)),
    }


def _describe_views(readers: Iterable[Reader]) -> dict[str, ViewJson]:
    views = {reader.info.project: _find_view(reader) for reader in readers}
    return {project: describe_view(project, view) for project, view in views.items() if view is not None}


def _find_view(reader: Reader) -> ViewFile | None:
    try:
        return reader.view()
    except JournalError:
        return None  # the page says what is wrong with it; a report does without


def _choose(items: Sequence[str], reader: Reader) -> Chosen:
    try:
        return choose(items, reader.names())
    except ExpressionError as error:
        return Chosen((), (error.message,))


def _read_panel(reader: Reader, items: Sequence[str], chosen: Chosen, among: list[SeriesJson]) -> ReportPanelJson:
    """What it draws; curves that it computes are put among the others, once."""
    known = {series["name"] for series in among}
    computed = tuple(item for item in chosen.items if not isinstance(item[1], LoggedMetric) and item[0] not in known)
    series, problems = compute_series(reader, Chosen(computed, ()), points=MOST // 4)
    among += _pack(series, "step")
    names = [name for name, _ in chosen.items]
    return {"items": list(items), "names": names, "problems": [*chosen.problems, *problems]}


def choose_names(names: Sequence[str], own: Collection[str] = ()) -> list[str]:
    """The training metrics that a report shows: those of own and declared panels, then the others, layers last."""
    declared = {
        name for panel in panels.PANELS if panel.table == "training" for name in panels.find_names(panel, names)
    }

    def order(name: str) -> tuple[bool, bool, str]:
        head, slash, _ = name.partition("/")
        is_layer = bool(slash) and head in LAYER_MEASURES and name not in own
        return name not in own and name not in declared, is_layer, name

    # Layers are shown as a map, not one by one.
    wanted = [name for name in sorted(names, key=order) if not order(name)[1]]
    return wanted[:MAX_NAMES]


def panel_names(table: str) -> set[str]:
    """What the panels of a table draw, limits included."""
    found: set[str] = set()
    for panel in panels.PANELS:
        if panel.table == table:
            found.update(panel.metrics)
            found.update([panel.limit] if panel.limit else [])
    return found


def _limit_names(table: TableJson, wanted: Iterable[str]) -> None:
    keep = set(wanted)
    names = table["names"]
    table["names"] = [name for name in names if name in keep]
    table["left_out"] += len(names) - len(table["names"])


def _read_series(
    reader: Reader, training: Sequence[str], hardware: Mapping[str, Sequence[str]], points: int
) -> dict[str, dict[str, list[SeriesJson]]]:
    """Every series on its own axis: training over steps, the rest over time."""
    units = {table: max(len(reader.labels(table)), 1) * len(names) for table, names in hardware.items()}
    ranks = _count_ranks(reader, training)
    count = len(training) * ranks
    # Hardware gets at most two fifths, so that many GPUs do not make the loss coarse.
    each = _clamp(int(points * 0.6) // max(count, 1), MOST)
    others = _clamp((points - min(each * count, int(points * 0.6))) // max(sum(units.values()), 1), MOST // 4)
    found = {"training": {"step": _pack(reader.series(training, max_points=each), "step")}}
    for table, names in hardware.items():
        found[table] = {"time": _pack(reader.series(names, table=table, x="time", max_points=others), "time")}
    return found


def _clamp(points: int, most: int) -> int:
    return max(min(points, most), LEAST)


def _count_ranks(reader: Reader, names: Sequence[str]) -> int:
    return max((len(reader.series([name], max_points=4)) for name in names[:1]), default=1) or 1


def _pack(found: Iterable[Series], axis: str) -> list[SeriesJson]:
    return [pack_series(replace(series, y=round_digits(series.y)), axis) for series in found]


def round_digits(values: Any, digits: int = DIGITS) -> Any:
    """Rounded to significant digits; NaN and infinity stay."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.floor(np.log10(np.abs(values)))
    exponent = np.where(np.isfinite(exponent), exponent, 0.0)
    power = digits - 1 - exponent
    usual = np.abs(power) < 300  # beyond, a power of ten overflows: there the value stays as it is
    factor = np.power(10.0, np.where(usual, power, 0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = np.round(values * factor) / factor
    return np.where(np.isfinite(rounded) & usual, rounded, values)


def _read_states(reader: Reader, table: str) -> list[StatesJson]:
    """What is a word: the newest changes of each."""
    names = [
        name for panel in panels.PANELS if (panel.table, panel.chart) == (table, "states") for name in panel.metrics
    ]
    found = describe_states(reader, names, table=table)["states"] if names else []
    return [{**state, "changes": state["changes"][-MAX_LINES:]} for state in found]


def _read_clock(reader: Reader, names: Sequence[str]) -> ClockJson | None:
    """Which step was when, so that training curves can be drawn over time without being in the file twice."""
    clock = read_clock(reader, names, points=CLOCK)
    return clock and {"step": clock.steps.astype(np.int64), "time": np.round(clock.times, 3)}


def _read_patch(reader: Reader) -> PatchTextJson | None:
    try:
        return read_patch_text(reader)
    except JournalError:
        return None


def _read_texts(reader: Reader) -> Iterable[tuple[str, TextJson]]:
    kinds: tuple[TextKind, ...] = ("stack", "console")
    for kind in kinds:
        for file in reader.texts(kind)[-MAX_TEXTS:]:
            try:
                found = reader.read_text(kind, file.name, TEXT_BYTES)
            except JournalError:
                continue  # removed since it was listed: the report is of the rest
            yield file.name, {**asdict(found), "text": redact_text(found.text)}

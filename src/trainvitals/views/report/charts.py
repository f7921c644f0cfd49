"""The declared panels, filled with the numbers of a run or of several. Tested in tests/views/report/test_svg.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trainvitals import catalog
from trainvitals.analysis.bands import make_band
from trainvitals.errors import TrainvitalsError, nearest
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.identity import gpu_title
from trainvitals.views import panels
from trainvitals.views.data.participants import lowest_of
from trainvitals.views.data.series import per_second
from trainvitals.views.report.svg import SvgChart, SvgLine

POINTS = 1600
MANY = 8
"""Lines of one metric beyond which they are drawn as a band."""
MAX_OWN = 12


"""The unit in a name, which the axis already has."""


def make_charts(reader: Reader, wanted: Sequence[str] = ()) -> list[SvgChart]:
    """Charts of one run: of the panels or metrics that are `wanted`, else of what a sheet shows."""
    origin = parse_time(reader.info.started) or 0.0
    began = _find_attempts(reader, origin)
    return [replace(chart, attempts=began[chart.axis]) for chart in _choose_charts(reader, wanted, origin)]


def _find_attempts(reader: Reader, origin: float) -> dict[str, dict[int, float]]:
    """Where later attempts began, on each axis."""
    started = {item.number: parse_time(item.started) for item in reader.info.file.attempts[1:] if item.number}
    first = reader.first_steps() if started else {}
    by_step = {number: float(first[number]) for number in started if number in first}
    return {"step": by_step, "time": {number: at - origin for number, at in started.items() if at is not None}}


def _choose_charts(reader: Reader, wanted: Sequence[str], origin: float) -> list[SvgChart]:
    if wanted:
        return [_find_chart(reader, name, origin) for name in wanted]
    found = [_panel_chart(reader, panel, origin) for panel in panels.overview()]
    charts = [chart for chart in found if chart is not None]
    if not any(chart.axis == "step" for chart in charts):
        names = [name for name in reader.names() if name != "epoch"][:MAX_OWN]
        charts = [_metric_chart(reader, name) for name in names] + charts
    return charts


def _find_chart(reader: Reader, name: str, origin: float) -> SvgChart:
    panel = panels.PANELS.get(name)
    chart = _panel_chart(reader, panel, origin) if panel is not None else None
    if chart is not None:
        return chart
    known = reader.names()
    if name in known:
        return _metric_chart(reader, name)
    if panel is not None:
        raise TrainvitalsError(
            f"run {reader.info.id} has no data for panel '{name}'", hint=f"it shows {', '.join(panel.metrics)}"
        )
    ids = [panel.id for panel in panels.PANELS]
    raise TrainvitalsError(
        f"unknown panel or metric '{name}'{nearest(name, [*ids, *known])}", hint=f"panels: {', '.join(ids)}"
    )


def _panel_chart(reader: Reader, panel: panels.Panel, origin: float) -> SvgChart | None:
    """None where nothing of it was measured."""
    logged = set(reader.names(panel.table))
    names = panels.find_names(panel, logged)
    if not names or panel.chart == "states":
        return None
    axis = "step" if panel.table == "training" else "time"
    stacked = panel.chart == "stacked"
    found = reader.series(
        names,
        table=panel.table,
        x=axis,  # type: ignore[arg-type]
        max_points=POINTS * 2 if stacked else POINTS,
        participants=lowest_of(reader) if stacked and panel.table == "training" else None,
    )
    found = [per_second(item) for item in found] if panel.is_rate else found
    found = [_mean_of_neighbours(item) for item in found] if stacked else found
    found = [item for item in found if len(item.x)]
    if not found:
        return None
    shift = 0.0 if axis == "step" else origin or float(min(item.x[0] for item in found))
    return SvgChart(
        panels.title_of(panel, names, logged),
        _lines(found, panel.by, shift),
        unit=f"{panel.unit}/s" if panel.is_rate else panel.unit,
        axis=axis,
        stacked=stacked,
        low=panel.low,
        high=panel.high,
        log=panel.log_first,
        smooth=panel.smooth,
        note="simulated" if any(item.labels.get("simulated") for item in found) else "",
        limit=_limit(reader, panel),
    )


def _limit(reader: Reader, panel: panels.Panel) -> float | None:
    if panel.limit is None:
        return None
    ends = [item.y[-1] for item in reader.series([panel.limit], table=panel.table, x="time", max_points=4)]
    return float(min(ends)) if ends else None


def _mean_of_neighbours(item: Series, pieces: int = 240) -> Series:
    """Parts of a whole are stacked by their means: extremes of each would add up to a step that never was."""
    size = -(-len(item.x) // pieces)
    if size < 2:
        return item
    count = len(item.x) // size
    x, y = (values[: count * size].reshape(count, size).mean(axis=1) for values in (item.x, item.y))
    return replace(item, x=x, y=y)


def _metric_chart(reader: Reader, name: str) -> SvgChart:
    return _own_chart(name, _lines(reader.series([name], max_points=POINTS), ("rank",), 0.0))


def _own_chart(name: str, lines: list[SvgLine]) -> SvgChart:
    """A metric alone: called as its panel is, or by its own name."""
    metric = catalog.find("training", name)
    alone = (metric.name if metric else name,)
    declared = next((panel for panel in panels.PANELS if panel.without_validation == alone), None)
    own = catalog.title_name(name) if metric and metric.name == name else name
    panel = declared or panels.own_panel(name)
    return SvgChart(
        declared.title if declared else own,
        lines,
        unit=metric.unit if metric else "",
        log=panel.log_first,
        smooth=panel.smooth,
        low=panel.low,
    )


def _lines(found: Sequence[Series], by: Sequence[str], shift: float) -> list[SvgLine]:
    names = list(dict.fromkeys(item.name for item in found))
    lines = []
    for name in names:
        several = [item for item in found if item.name == name]
        if len(several) > MANY:
            band = make_band([(item.x - shift, item.y) for item in several], POINTS // 4)
            title = f"all {len(several)} (min, mean, max)"
            title = title if len(names) == 1 else f"{name}, {title}"
            broken = band.x[[at for at, _ in band.broken]]
            lines.append(SvgLine(title, band.x, band.mean, band.low, band.high, broken))
        else:
            many = len(several) > 1
            lines += [SvgLine(_title(item, by, len(names) > 1, many), item.x - shift, item.y) for item in several]
    return lines


def _title(item: Series, by: Sequence[str], several_names: bool, several_lines: bool) -> str:
    words = []
    if several_names:
        words.append(catalog.short_name(item.name))
    if several_lines:
        for label in by:
            if label == "rank":
                words.append(item.participant.title)
            elif (value := item.labels.get(label)) is not None:
                words.append(gpu_title(item.labels) if label == "gpu_index" else f"{label} {value}")
    return " ".join(words) or item.name


def make_comparison(runs: Sequence[tuple[str, Reader]], names: Sequence[str]) -> list[SvgChart]:
    """The same metrics of several runs over each other, the lowest participant of each."""
    charts = []
    for name in names:
        lines = []
        for title, reader in runs:
            found = reader.series([name], max_points=POINTS, participants=lowest_of(reader))
            lines += [SvgLine(title, item.x, item.y) for item in found[:1]]
        if lines:
            charts.append(_own_chart(name, lines))
    return charts

"""One chart: a title with the newest value, the curve, its axes, thresholds, marks and the crosshair."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from rich.segment import Segment
from rich.style import Style

from trainvitals.analysis.bands import make_band
from trainvitals.analysis.smoothing import REACH, smooth
from trainvitals.conditions import Level
from trainvitals.views.data.quantities import format_duration, format_measure, format_short
from trainvitals.views.panels import Panel
from trainvitals.views.tui.canvas import Axes, Canvas, Floats, Mark
from trainvitals.views.tui.paint import Line, crop, fit, width_of
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Chart
from trainvitals.views.tui.snapshot import Line as Curve

_MARKS = {"nan": "✕", "high": "▲", "low": "▼"}
RAW_LINES = 2
"""With more curves than this the raw ones are omitted if smoothed ones are drawn."""
SINGLE_LINES = 4
"""With more curves than this a small chart shows their range and mean; a large one shows all of them."""
LARGE_HEIGHT = 18
LARGEST = 1.79e308
"""About the largest float: an axis ends here at the latest."""
UNMOVED_SECONDS = 5.0
"""A drawn curve is reused for so long at most, if it would not have moved by a cell."""
LIVE_SECONDS = 15.0
"""A curve that ends this close to now ends now."""
LEAST_SECONDS = 60.0
"""A time axis is at least this long, so that a short history does not jump."""


@dataclass(frozen=True, slots=True)
class Look:
    """How charts are drawn now."""

    palette: Palette
    now: float
    other_scale: bool = False
    """Whether charts are drawn on the other scale than their default, if they support both."""
    smooth: bool = True
    window: tuple[float, float] | None = None
    cross: float | None = None
    selected: bool = False
    patience: float = 0.0
    """Seconds for which a drawn curve may be reused although there are new points."""
    levels: tuple[Level, ...] = ()
    """Drawn as dotted lines."""
    starts: tuple[float, ...] = ()
    """Where later attempts of the run begin: dotted lines upwards."""

    def is_log(self, panel: Panel) -> bool:
        return panel.log_scale and panel.log_first != self.other_scale


@dataclass(slots=True)
class _Drawing:
    """A chart as it was drawn. The chart is kept too, so that no other array can take over the identity of its own."""

    chart: Chart
    curves: tuple[object, ...]
    lines: list[Line]
    axes: Axes | None
    """None where there was nothing to draw."""
    moment: float

    def still_holds(self, curves: list[Curve], width: int, height: int, now: float, patience: float) -> bool:
        """Whether it may be reused although there are new points: it is recent, or its end would not move by a cell in
        any direction."""
        age = now - self.moment
        if age < patience:
            return True
        if self.axes is None or patience <= 0 or age > UNMOVED_SECONDS:
            return False
        axes = self.axes
        wide, tall = (axes.right - axes.left) / width, (axes.high - axes.low) / height
        drawn = [curve for curve in self.chart.lines if len(curve.x)]
        return len(drawn) == len(curves) and all(
            float(new.x[-1]) - axes.right < wide
            and axes.low <= float(new.y[-1]) <= axes.high
            and abs(float(new.y[-1]) - float(old.y[-1])) < tall
            for new, old in zip(curves, drawn, strict=True)
        )


_drawings: dict[tuple[object, ...], _Drawing] = {}
_KEPT_DRAWINGS = 64


def draw_chart(chart: Chart, width: int, height: int, look: Look) -> list[Line]:
    """`height` lines of `width` cells. An unchanged chart is not redrawn, and a changed one may wait for
    `look.patience`, except for its newest value: a key is handled at once however many charts are on the screen."""
    live = chart.axis == "time" and any(_is_live(curve, look.now) for curve in chart.lines)
    curves = tuple((curve.metric, curve.label, id(curve.x), id(curve.y)) for curve in chart.lines)
    how = replace(look, now=0.0, patience=0.0)
    key = (chart.panel.id, chart.axis, chart.of, len(chart.lines), width, height, how, live)
    known = _drawings.get(key)
    now = time.monotonic()
    if known is not None:
        if known.curves == curves:
            return known.lines
        filled = [curve for curve in chart.lines if len(curve.x)]
        still = look.window is None and look.cross is None
        if still and known.still_holds(filled, width, height, now, look.patience):
            plot = height - (2 if height >= 5 else 1)
            return [_title(chart, filled, None, width, plot, look), *known.lines[1:]] if filled else known.lines
    if len(_drawings) >= _KEPT_DRAWINGS:
        _drawings.clear()
    # Values near the float limits overflow on the way; a warning would be printed across the screen.
    with np.errstate(over="ignore", invalid="ignore"):
        lines, axes = _draw(chart, width, height, look)
    _drawings[key] = _Drawing(chart, curves, lines, axes, now)
    return lines


def _is_live(curve: Curve, now: float) -> bool:
    return len(curve.x) > 0 and abs(now - float(curve.x[-1])) < LIVE_SECONDS


def _draw(chart: Chart, width: int, height: int, look: Look) -> tuple[list[Line], Axes | None]:
    palette = look.palette
    if height < 2 or width < 8:
        return [[Segment(" " * width, palette.text)] for _ in range(height)], None
    curves = [curve for curve in chart.lines if len(curve.x)]
    extent = find_extent(curves, look.window, LEAST_SECONDS if chart.axis == "time" else 0.0)
    if extent is None:
        title = _title(chart, [], None, width, height, look)
        middle = [[Segment(fit("  no values yet", width), palette.faint)]]
        return _pad([title, *([[]] * max((height - 2) // 2, 0)), *middle], width, height, palette), None
    axes = find_axes(chart.panel, curves, extent, look.is_log(chart.panel))
    with_foot = height >= 5
    plot_height = height - (2 if with_foot else 1)
    labels = _axis_labels(chart.panel, axes, plot_height)
    gutter = max((len(text) for text in labels.values()), default=0) + 1 if width >= 30 else 0
    plot_width = max(width - gutter - 1, 4)
    cross = None if look.cross is None else axes.left + look.cross * (axes.right - axes.left)
    plot = _plot(chart, curves, axes, plot_width, plot_height, look)
    lines = [_title(chart, curves, cross, width, plot_height, look)]
    for row, content in enumerate(plot):
        text = labels.get(row, "")
        head = [Segment(fit(text, gutter - 1, right=True) + "│", palette.faint)] if gutter else []
        if text and gutter:
            head = [
                Segment(fit(text, gutter - 1, right=True), palette.dim),
                Segment("┤", palette.faint),
            ]
        lines.append([*head, *content, Segment(" ")])
    if with_foot:
        lines.append(_foot(chart, axes, gutter, plot_width, cross, look))
    return _pad(lines, width, height, palette), axes


def find_extent(
    curves: list[Curve], window: tuple[float, float] | None, least: float = 0.0
) -> tuple[float, float] | None:
    """Left and right edge: the window, else everything, at least `least` long; None without a point."""
    if not curves:
        return None
    if window is not None:
        return window
    right = max(float(curve.x[-1]) for curve in curves)
    return min(right - least, *(float(curve.x[0]) for curve in curves)), right


def find_axes(panel: Panel, curves: list[Curve], extent: tuple[float, float], log: bool) -> Axes:
    """The window that shows the curves: from zero where that is more useful, with a little space above."""
    left, right = extent
    low, high = math.inf, -math.inf
    if panel.chart == "stacked":
        high = max(float(np.nansum([_last(curve) for curve in curves])), _stack_top(curves, left, right))
        return Axes(left, right, 0.0, min(high * 1.05, LARGEST) if high > 0 else 1.0)
    for curve in curves:
        inside = curve.y[(curve.x >= left) & (curve.x <= right)]
        inside = inside[np.isfinite(inside) & (inside > 0)] if log else inside[np.isfinite(inside)]
        if len(inside):
            low, high = min(low, float(inside.min())), max(high, float(inside.max()))
    if low > high:
        low, high = (0.1, 1.0) if log else (0.0, 1.0)
    if log:
        return Axes(left, right, max(low / 1.1, 1e-300), min(high * 1.1, LARGEST), log=True)
    if panel.high is not None and high <= panel.high:
        high = panel.high
    elif high > low:
        high = min(high + high / 20 - low / 20, LARGEST)
    if panel.low is not None and low >= panel.low:
        low = panel.low
    if high - low <= abs(high) * 1e-9:
        # A flat line: in the middle, or at the bottom if it is the lowest possible value.
        low = low if low == panel.low else low - (abs(low) * 0.1 or 0.5)
        high += abs(high) * 0.1 or 0.5
    return Axes(left, right, max(low, -LARGEST), min(high, LARGEST))


def _stack_top(curves: list[Curve], left: float, right: float) -> float:
    x = curves[0].x
    total = np.zeros(len(x))
    for curve in curves:
        total += np.nan_to_num(np.interp(x, curve.x, curve.y))
    inside = total[(x >= left) & (x <= right)]
    return float(np.percentile(inside, 99)) if len(inside) else 1.0


def _last(curve: Curve) -> float:
    return float(curve.y[-1])


def _plot(chart: Chart, curves: list[Curve], axes: Axes, width: int, height: int, look: Look) -> list[list[Segment]]:
    palette, panel = look.palette, chart.panel
    canvas = Canvas(width, height)
    styles: list[Style] = []
    marks: list[Mark] = []
    gaps = chart.axis == "time"
    if panel.chart == "stacked":
        _stack(canvas, curves, axes, styles, palette)
    elif is_crowded(curves, height):
        many, others = _split(curves)
        styles += [palette.faint, palette.series[0]]
        for index, curve in enumerate(others, 1):
            styles.append(palette.series[index % len(palette.series)])
            marks += canvas.curve(curve.x, curve.y, axes, len(styles) - 1, gaps=gaps)
        band = make_band([_inside(curve, axes) for curve in many], width * 2)
        canvas.band(band.x, band.low, band.high, axes, 0)
        # Non-finite values of any of them are marked on the mean.
        places, strange = [at for at, _ in band.broken], [value for _, value in band.broken]
        finite = np.isfinite(band.mean)
        x, y = np.concatenate([band.x[finite], band.x[places]]), np.concatenate([band.mean[finite], strange])
        order = np.argsort(x, kind="stable")
        marks += canvas.curve(x[order], y[order], axes, 1)
    else:
        # The first curve is drawn last, so that it lies on top.
        for index, curve in reversed(list(enumerate(curves))):
            colour = palette.series[index % len(palette.series)]
            smoothed = look.smooth and panel.smooth and len(curve.x) > 8
            if not smoothed or len(curves) <= RAW_LINES:
                styles.append(palette.faint if smoothed else colour)
                marks += canvas.curve(curve.x, curve.y, axes, len(styles) - 1, gaps=gaps)
            if smoothed:
                styles.append(colour)
                shown = axes.right - axes.left
                x, y = _inside(curve, axes, around=shown * REACH)
                canvas.curve(x, smooth(x, y, shown), axes, len(styles) - 1, gaps=gaps)
                if len(curves) > RAW_LINES:
                    marks += Canvas(width, height).curve(curve.x, curve.y, axes, 0)
    limits = _limit_rows(look.levels, axes, height)
    column = None if look.cross is None else min(int(look.cross * width), width - 1)
    placed = {(mark.row, mark.column): _MARKS[mark.kind] for mark in marks}
    upright = {_column_of(start, axes, width): "┊" for start in look.starts if axes.left < start < axes.right}
    if column is not None:
        upright[column] = "│"
    return [
        _row(text, owners, styles, row, limits.get(row), upright, placed, palette)
        for row, (text, owners) in enumerate(canvas.rows())
    ]


def _inside(curve: Curve, axes: Axes, around: float = 0.0) -> tuple[Floats, Floats]:
    """What of the curve is in the window or no further than `around` from it, with a neighbour on either side, so that
    it reaches the edges."""
    first, last = np.searchsorted(curve.x, [axes.left - around, axes.right + around])
    part = slice(max(int(first) - 1, 0), int(last) + 1)
    return curve.x[part], curve.y[part]


def is_crowded(curves: list[Curve], height: int) -> bool:
    """Whether the curves would hide each other."""
    many, others = _split(curves)
    return len(many) > max(SINGLE_LINES, len(others)) and height < LARGE_HEIGHT


def _split(curves: list[Curve]) -> tuple[list[Curve], list[Curve]]:
    """Those of the first metric, and what is drawn beside them, such as validation."""
    first = curves[0].metric if curves else ""
    return [curve for curve in curves if curve.metric == first], [curve for curve in curves if curve.metric != first]


def _stack(canvas: Canvas, curves: list[Curve], axes: Axes, styles: list[Style], palette: Palette) -> None:
    x = curves[0].x
    reached: Floats = np.zeros(len(x))
    for index, curve in enumerate(curves):
        top = reached + np.nan_to_num(np.interp(x, curve.x, curve.y))
        styles.append(palette.phases.get(curve.metric, palette.series[index % len(palette.series)]))
        canvas.band(x, reached, top, axes, index)
        reached = top


def _limit_rows(levels: tuple[Level, ...], axes: Axes, height: int) -> dict[int, str]:
    """Row -> severity of the level that runs through it."""
    rows: dict[int, str] = {}
    for level in levels:
        if axes.low < level.value < axes.high:
            row = int(axes.rows(np.array([level.value]), height * 4)[0]) // 4
            edge = min(level.value - axes.low, axes.high - level.value) / (axes.high - axes.low)
            if edge > 0.03:  # on the edge it would look like an axis
                rows[row] = level.severity
    return rows


def _column_of(x: float, axes: Axes, width: int) -> int:
    return min(int((x - axes.left) / (axes.right - axes.left) * width), width - 1)


def _row(
    text: str,
    owners: list[int],
    styles: list[Style],
    row: int,
    limit: str | None,
    upright: Mapping[int, str],
    marks: dict[tuple[int, int], str],
    palette: Palette,
) -> list[Segment]:
    blank = "┄" if limit else " "
    blank_style = palette.severity(limit) + Style(dim=True) if limit else palette.text
    segments: list[Segment] = []
    run: list[str] = []
    style: Style | None = None
    for column, character in enumerate(text):
        if (row, column) in marks:
            character, cell = marks[row, column], palette.critical
        elif character != " ":
            cell = styles[owners[column]]
        elif column in upright:
            character, cell = upright[column], palette.dim
        else:
            character, cell = blank, blank_style
        if cell is not style:
            if run:
                segments.append(Segment("".join(run), style))
            run, style = [], cell
        run.append(character)
    if run:
        segments.append(Segment("".join(run), style))
    return segments


def _axis_labels(panel: Panel, axes: Axes, height: int) -> dict[int, str]:
    """Row -> value written beside it: top, bottom, and the middle where there is room."""
    unit = panel.unit if panel.unit in ("%", "°C", "W", "s", "MB", "MB/s") and not panel.is_rate else ""

    def text(value: float) -> str:
        if unit:
            return format_measure(value, unit).replace(" ", "")
        return format_short(float(f"{value:.3g}")) if math.isfinite(value) else format_short(value)

    def scaled(value: float) -> str:
        # Nothing has no size of its own: beside KB/s it would read 0 MB/s.
        return "0" if value == 0 and unit.startswith("MB") else text(value)

    if height < 3:
        return {0: text(axes.high)}
    labels = {0: text(axes.high), height - 1: scaled(axes.low)}
    if height >= 7:
        middle = math.sqrt(axes.low * axes.high) if axes.log else (axes.low + axes.high) / 2
        labels[height // 2] = text(middle)
    return labels


def _title(chart: Chart, curves: list[Curve], cross: float | None, width: int, height: int, look: Look) -> Line:
    palette, panel = look.palette, chart.panel
    name = [
        Segment("▸ " if look.selected else "  ", palette.accent),
        Segment(
            fit(panel.title, min(_cells(panel.title), max(width - 4, 1))),
            palette.accent if look.selected else palette.strong,
        ),
    ]
    if not curves:
        return crop(name, width, palette.text)
    crowded = is_crowded(curves, height)
    values = _values(chart, curves, cross, palette, crowded)
    notes: list[Segment] = []
    if look.is_log(panel):
        notes.append(Segment(" log", palette.dim))
    if chart.total > len(chart.lines):
        notes.append(Segment(f" +{chart.total - len(chart.lines)} more", palette.dim))
    line = [*name, *notes, Segment("  ")]
    for part in values:
        if width_of(line) + width_of(part) > width:
            break  # a truncated number is a wrong number
        line += [*part, Segment("  ")]
    span = _span(panel, curves) if cross is None and not crowded else ""
    room = width - width_of(line) - len(span) - 2
    if span and room >= 0:
        line += [Segment(" " * room), Segment(f" {span} ", palette.dim)]
    return crop(line, width, palette.text)


def _cells(text: str) -> int:
    return width_of([Segment(text[:500])])


def _values(chart: Chart, curves: list[Curve], cross: float | None, palette: Palette, crowded: bool) -> list[Line]:
    """The newest value of each curve, or the one under the crosshair; each a piece of the title."""
    unit = f"{chart.panel.unit}/s" if chart.panel.is_rate else chart.panel.unit
    values = [float(curve.y[-1]) if cross is None else _at(curve, cross) for curve in curves]
    if crowded:
        many, others = _split(curves)
        if others:
            own = [_values(chart, [curve], cross, palette, crowded=False) for curve in others]
            return [*_values(chart, many, cross, palette, crowded=True), *(part for parts in own for part in parts)]
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return [[Segment("NaN", palette.critical)]]
        mean = sum(known) / len(known)
        low, high = format_measure(min(known), unit), format_measure(max(known), unit)
        summary: list[Line] = [[Segment(format_measure(mean, unit), palette.series[0])]]
        if len(known) < len(values):
            summary.append([Segment(f"{len(values) - len(known)} of {len(values)} not finite", palette.critical)])
        elif low != high:
            summary.append([Segment(f"{low} to {high} of {len(curves)}", palette.dim)])
        return summary
    brief = unit if len(curves) == 1 or unit in ("%", "°C", "W", "s", "MB", "MB/s") else ""
    parts: list[Line] = []
    for index, (curve, value) in enumerate(zip(curves, values, strict=True)):
        if chart.panel.chart == "stacked" and value == 0.0:
            continue  # a phase that takes no time is not in the chart
        colour = palette.series[index % len(palette.series)]
        if chart.panel.chart == "stacked":
            colour = palette.phases.get(curve.metric, colour)
        if not math.isfinite(value):
            colour = palette.critical
        name = legend(chart, curve)
        if index == 0 and curve.label.startswith("rank "):
            name = f"rank {name}"
        part = [Segment(format_measure(value, brief), colour)]
        parts.append([Segment(f"{name} ", palette.dim), *part] if name else part)
    return parts


def legend(chart: Chart, curve: Curve) -> str:
    """What distinguishes this curve from the others of the chart: `0`, `rank 1`, `read`; empty for the only one."""
    words = []
    is_one = len(chart.panel.without_validation) == 1
    names = tuple(dict.fromkeys(line.metric for line in chart.lines)) if is_one else chart.panel.metrics
    if len(names) > 1:
        common = _common(names)
        words.append(curve.metric.removeprefix(common[0]).removesuffix(common[1]).replace("_", " ") or curve.metric)
    if curve.label:
        words.append(curve.label.removeprefix("GPU ").removeprefix("rank "))
    return " ".join(words)


def _common(names: tuple[str, ...]) -> tuple[str, str]:
    """The words that all names begin and end with."""
    parts = [name.split("_") for name in names]
    shortest = min(len(words) for words in parts)
    start = 0
    while start < shortest - 1 and len({words[start] for words in parts}) == 1:
        start += 1
    end = 0
    while end < shortest - 1 - start and len({words[-1 - end] for words in parts}) == 1:
        end += 1
    first = parts[0]
    prefix = "_".join(first[:start]) + "_" if start else ""
    suffix = "_" + "_".join(first[len(first) - end :]) if end else ""
    return prefix, suffix


def _at(curve: Curve, x: float) -> float:
    place = int(np.searchsorted(curve.x, x))
    if place > 0 and (place == len(curve.x) or x - curve.x[place - 1] < curve.x[place] - x):
        place -= 1
    return float(curve.y[place])


def _span(panel: Panel, curves: list[Curve]) -> str:
    """The lowest and the highest value; empty where they read the same."""
    finite = [curve.y[np.isfinite(curve.y)] for curve in curves]
    finite = [values for values in finite if len(values)]
    if not finite:
        return ""
    unit = f"{panel.unit}/s" if panel.is_rate else panel.unit
    low, high = min(float(v.min()) for v in finite), max(float(v.max()) for v in finite)
    lowest, highest = format_measure(low, unit), format_measure(high, unit)
    return f"{lowest} to {highest}" if lowest != highest else ""


def _foot(chart: Chart, axes: Axes, gutter: int, width: int, cross: float | None, look: Look) -> Line:
    if chart.axis == "time" and abs(look.now - axes.right) < LIVE_SECONDS:
        left, right = f"-{format_duration(axes.right - axes.left)}", "now"
    else:
        left, right = _place(chart, axes.left, axes), _place(chart, axes.right, axes)
    palette = look.palette
    line: Line = [Segment(" " * gutter)]
    if cross is not None and look.cross is not None:
        text = f"step {cross:,.0f}" if chart.axis == "step" else _place(chart, cross, axes)
        at = min(max(int(look.cross * width) - len(text) // 2, 0), max(width - len(text), 0))
        before = fit(left, at) if at > len(left) else " " * at
        room = width - at - len(text)
        after = fit(right, room, right=True) if room > len(right) else ""
        return [
            *line,
            Segment(before, palette.dim),
            Segment(text, palette.strong),
            Segment(after, palette.dim),
        ]
    space = width - len(left) - len(right)
    if space < 1:
        return [*line, Segment(fit(left, width), palette.dim)]
    return [*line, Segment(left, palette.dim), Segment(" " * space), Segment(right, palette.dim)]


def _place(chart: Chart, x: float, axes: Axes) -> str:
    if chart.axis == "step":
        return f"{x:,.0f}"
    days = axes.right - axes.left > 86_400
    return time.strftime("%d %b %H:%M" if days else "%H:%M:%S", time.localtime(x))


def _pad(lines: list[Line], width: int, height: int, palette: Palette) -> list[Line]:
    full = [crop(line, width, palette.text) for line in lines[:height]]
    return full + [[Segment(" " * width, palette.text)] for _ in range(height - len(full))]

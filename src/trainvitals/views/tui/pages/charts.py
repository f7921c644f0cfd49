"""Charts side by side, or one on the full page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment

from trainvitals.views.panels import levels_of
from trainvitals.views.tui.pages import Hit, Page, empty
from trainvitals.views.tui.paint import Line, fit
from trainvitals.views.tui.snapshot import Chart, Snapshot
from trainvitals.views.tui.view import View

if TYPE_CHECKING:
    from trainvitals.views.tui.charts import Look

LEAST_WIDTH = 44
LEAST_HEIGHT = 8
NAME_WIDTH = 40


def shape(width: int, height: int) -> tuple[int, int]:
    """(charts side by side, charts one below the other)."""
    across = max(min(width // LEAST_WIDTH, 4), 1)
    return across, max(height // LEAST_HEIGHT, 1)


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    """The page."""
    view.rows = len(snapshot.panels)
    if not snapshot.panels:
        if view.filter:
            return Page(empty(f"no metrics match '{view.filter}'", width, view.palette, "esc to clear the filter"), [])
        word = "loading..." if snapshot.waiting else "no data yet"
        return Page(empty(word, width, view.palette), [])
    if view.full:
        return _draw_one(snapshot, view, width, height)
    return draw_grid(snapshot, view, width, height, select=True)


def look_of(snapshot: Snapshot, view: View, chart: Chart, *, selected: bool) -> Look:
    from trainvitals.views.tui.charts import Look

    return Look(
        palette=view.palette,
        now=snapshot.time,
        other_scale=view.other_scale,
        smooth=view.smooth,
        window=view.windows.get(chart.axis),
        cross=view.cross,
        selected=selected,
        patience=view.patience,
        levels=levels_of(chart.panel, view.conditions),
        starts=_starts_on(chart.axis, snapshot),
    )


def _starts_on(axis: str, snapshot: Snapshot) -> tuple[float, ...]:
    """Where later attempts begin, on an axis of steps or of time."""
    restarts = snapshot.run.restarts if snapshot.run is not None else ()
    places = (restart.step if axis == "step" else restart.time for restart in restarts)
    return tuple(float(place) for place in places if place is not None)


def first_chart(view: View, width: int, height: int) -> int:
    """The first panel shown, so that the selected one is visible."""
    across, down = shape(width, height)
    return max(view.row // across - down + 1, 0) * across


def draw_grid(snapshot: Snapshot, view: View, width: int, height: int, *, select: bool) -> Page:
    """As many charts as fit."""
    from trainvitals.views.tui.charts import draw_chart  # numpy, which must not delay the first frame

    across, down = shape(width, height)
    view.chart_columns = across if select else view.chart_columns
    charts = snapshot.charts[: across * down]
    across = min(across, len(charts)) or 1
    down = -(-len(charts) // across)
    size, tall = width // across, max(height // max(down, 1), 2)
    first = first_chart(view, width, height) if select else 0
    gap, below = Segment(" ", view.palette.text), [Segment(" " * size, view.palette.text)]
    lines: list[Line] = []
    hits: list[Hit] = []
    for row in range(down):
        last = height - tall * (down - 1) if row == down - 1 else tall
        pictures = []
        for column in range(across):
            place = row * across + column
            if place >= len(charts):
                pictures.append([[Segment(" " * size, view.palette.text)] for _ in range(last)])
                continue
            chosen = select and first + place == view.row
            chart = charts[place]
            # The crosshair is drawn in every chart with the same axis, so that they can be compared.
            picture = draw_chart(chart, size - 1, last - 1, look_of(snapshot, view, chart, selected=chosen))
            pictures.append([*([*line, gap] for line in picture), below])
            hits.append(Hit(row * tall, row * tall + last, column * size, (column + 1) * size, "chart", first + place))
        lines += [[segment for picture in pictures for segment in picture[y]] for y in range(last)]
    return Page(lines[:height], hits)


def _draw_one(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    chart = next(iter(snapshot.charts), None)
    if chart is None:
        return Page(empty("loading...", width, view.palette), [])
    from trainvitals.views.tui.charts import draw_chart

    look = look_of(snapshot, view, chart, selected=True)
    lines = list(draw_chart(chart, width, height - 1, look))
    names = {line.metric for line in chart.lines}
    parts = [
        *(fit(name, min(len(name), NAME_WIDTH)) for name in names if len(names) == 1),
        f"x: {chart.axis}",
        f"{sum(len(line.x) for line in chart.lines):,} points",
    ]
    if chart.panel.log_scale:
        parts.append(f"l: {'linear' if look.is_log(chart.panel) else 'log'} scale")
    if chart.panel.smooth:
        parts.append(f"m: {'raw' if view.smooth else 'smoothed'}")
    lines.append([Segment(fit("  " + "   ".join(parts), width), view.palette.dim)])
    return Page(lines, [Hit(0, height, 0, width, "chart", view.row)])

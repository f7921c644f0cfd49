"""On the charts page: another chart, another scale, zoom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainvitals.views.tui.actions import Desk
from trainvitals.views.tui.actions.moving import turn_page

if TYPE_CHECKING:
    from trainvitals.journal.points import Axis

ZOOM = 0.6
PAN = 0.25
LEAST_SPAN = 1e-3
"""Smallest share of the data that a zoomed window shows."""


def move_chart(desk: Desk, by: int) -> None:
    """To the next chart, and from the last to the first; to the next page where there is no chart."""
    if desk.view.rows:
        desk.view.selected["charts"] = (desk.view.row + by) % desk.view.rows
    else:
        turn_page(desk, by)


def toggle_full(desk: Desk) -> None:
    desk.view.full = not desk.view.full


def toggle_log(desk: Desk) -> None:
    desk.view.other_scale = not desk.view.other_scale


def toggle_smooth(desk: Desk) -> None:
    desk.view.smooth = not desk.view.smooth


def toggle_axis(desk: Desk) -> None:
    desk.view.axis = "time" if desk.view.axis == "step" else "step"
    desk.view.cross = None


def move_cross(desk: Desk, by: int) -> None:
    """By a cell; at the edge it wraps around."""
    view = desk.view
    cells = max(desk.size.width // view.chart_columns - 9, 10)
    here = view.cross if view.cross is not None else (1.0 if by < 0 else 0.0)
    view.cross = min(max(here + by / cells, 0.0), 1.0)


def put_cross(desk: Desk, share: float) -> None:
    desk.view.cross = share


def zoom(desk: Desk, factor: float) -> None:
    """Show `factor` of what is shown, around the crosshair or at the right edge."""
    extent = _find_extent(desk)
    if extent is None:
        return
    axis, left, right = extent
    view = desk.view
    start, end = view.windows.get(axis, (left, right))
    left, right = min(left, start), max(right, end)
    span = max((end - start) * factor, (right - left) * LEAST_SPAN, 1e-9)
    if span >= right - left:
        view.windows.pop(axis, None)
        return
    share = view.cross if view.cross is not None else 1.0
    centre = start + (end - start) * share
    new_start = min(max(centre - span * share, left), right - span)
    view.windows[axis] = (new_start, new_start + span)


def pan(desk: Desk, share: float) -> None:
    """Move the zoomed window by a share of it."""
    extent = _find_extent(desk)
    if extent is None or extent[0] not in desk.view.windows:
        return
    axis, left, right = extent
    start, end = desk.view.windows[axis]
    left, right = min(left, start), max(right, end)
    by = min(max((end - start) * share, left - start), right - end)
    desk.view.windows[axis] = (start + by, end + by)


def _find_extent(desk: Desk) -> tuple[Axis, float, float] | None:
    """(axis, left, right) of everything in the selected chart; None if it has no point."""
    panel = next(iter(desk.snapshot.panels[desk.view.row :]), None)
    chart = next((chart for chart in desk.snapshot.charts if chart.panel is panel), None)
    lines = [line for line in chart.lines if len(line.x)] if chart is not None else []
    if chart is None or not lines:
        return None
    return chart.axis, min(float(line.x[0]) for line in lines), max(float(line.x[-1]) for line in lines)

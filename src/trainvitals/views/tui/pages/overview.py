"""The overview: the run, the GPUs, the host, and as many charts as there is room for."""

from __future__ import annotations

import textwrap

from rich.segment import Segment

from trainvitals.views.tui.pages import Hit, Page, empty, rule
from trainvitals.views.tui.pages.charts import draw_grid
from trainvitals.views.tui.pages.gpus import COMPACT_WIDTH, draw_gpus, needed_lines
from trainvitals.views.tui.pages.host import draw_host
from trainvitals.views.tui.pages.lists import LEAST_ON_GPUS, draw_on_gpus, grouped_alerts
from trainvitals.views.tui.pages.strip import draw_strip
from trainvitals.views.tui.paint import Line, fit
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.view import View, key_of

CHART_HEIGHT = 7
LEAST_CHART = 6
"""Minimum lines of a curve, including the blank one above it."""
ROOMY_HEIGHT = 18
"""Minimum height for headings."""
HOST_LINES = 2
"""Lines of the host shown with many GPUs: CPU and memory."""
OUTPUT_LINES = 4
"""Minimum lines of the output pane, including its heading."""
MOST_OUTPUT_LINES = 14
OUTPUT_HEIGHT = 14
"""A lower page has no output pane; the events page shows it."""
NOTE_LINES = 3
ALERT_LINES = 4
STRIP_LINES = 5
"""Of the run, without its worst finding."""
ON_GPUS_SHARE = 4
"""The table of who is on the GPUs takes at most this part of the page: charts need room too."""
LEAST_LINES = 4
"""Lines of a run without hardware."""


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    """The page in at most `height` lines."""
    palette = view.palette
    lines: list[Line] = []
    hits: list[Hit] = []
    view.rows = len(snapshot.gpus)
    roomy = height >= ROOMY_HEIGHT
    health = snapshot.health
    pane = OUTPUT_LINES if has_output(snapshot, height) else 0
    if snapshot.run is not None:
        most = STRIP_LINES + bool(snapshot.judged is not None and snapshot.judged.problems)
        strip = max(min(height // 3, most), 1)
        lines += draw_strip(snapshot.run, health, snapshot.judged, snapshot.time, width, strip, view)
        if roomy:
            lines.append([])
    elif health.severity != "ok":
        lines.append([Segment(fit(f" {health.word}: {health.reason}", width), palette.severity(health.severity))])
    for note in snapshot.notes if roomy and not snapshot.gpus else ():
        for piece in textwrap.wrap(note, max(width - 2, 1))[:NOTE_LINES]:
            lines.append([Segment(fit(f" {piece}", width), palette.dim)])
    host = draw_host(snapshot.system, width, max(height - pane - len(lines) - 2, 0), view)
    host_lines = ([rule("Host", width, palette, snapshot.host)] if roomy and host else []) + host
    if snapshot.gpus:
        if _is_tight(snapshot, width, height - pane - len(lines) - roomy, len(host_lines)):
            # Every GPU matters more than the last lines about the host and some spacing.
            host = host_lines = host[:HOST_LINES]
            if lines and not lines[-1]:
                lines.pop()
        room = height - pane - len(lines)
        reserve = len(host_lines) if room - len(host_lines) >= 4 else min(len(host), max(room - 4, 0))
        block = draw_gpus(
            snapshot.gpus,
            width,
            max(min(room - reserve, _wanted(len(snapshot.gpus), width, room)), 1),
            view,
            view.row if view.details or view.selected.get("overview") is not None else None,
            driver=snapshot.driver if roomy else None,
        )
        view.visible, view.gpu_columns = max(block.shown, 1), block.across
        hits += [hit._replace(top=hit.top + len(lines), bottom=hit.bottom + len(lines)) for hit in block.hits]
        lines += block.lines
        users, host_lines = _on_gpus(snapshot, view, width, height - pane - len(lines), host_lines)
        lines += users
        if roomy and len(lines) + len(host_lines) < height - pane - CHART_HEIGHT:
            lines.append([])
    room = max(height - pane - len(lines), 0)
    lines += (host_lines if len(host_lines) <= room else host)[:room]
    if not snapshot.gpus and snapshot.run is None and not snapshot.system:
        word = "loading..." if snapshot.waiting or not snapshot.notes else "no data"
        lines += empty(word, width, palette)
    lines += _alert_lines(snapshot, view, width, height - pane - len(lines))
    room = height - len(lines)
    with_charts = bool(snapshot.charts) and room - pane >= LEAST_CHART
    if pane:
        pane = min(max(room // 2, OUTPUT_LINES), room - LEAST_CHART) if with_charts else room
        pane = min(pane, MOST_OUTPUT_LINES)
    if with_charts:
        lines += [[]] if lines and lines[-1] else []
        lines += draw_grid(snapshot, view, width, height - len(lines) - pane, select=False).lines
    if pane:
        lines += _output(snapshot, view, width, pane)
    return Page(lines[:height], hits)


def has_output(snapshot: Snapshot, height: int) -> bool:
    """Whether a page of this height has an output pane."""
    return bool(snapshot.output) and height >= OUTPUT_HEIGHT


def charts_that_fit(width: int, height: int) -> int:
    """How many charts to request; a few too many cost little."""
    return max(width // 44, 1) * max(min((height - LEAST_LINES) // CHART_HEIGHT, 3), 0)


def _is_tight(snapshot: Snapshot, width: int, room: int, host: int) -> bool:
    """Whether more GPUs, or more about them, fit if less of the host is shown."""
    for needed in needed_lines(snapshot.gpus, width):
        if needed <= room - host:
            return False
        if needed <= room - HOST_LINES:
            return True
    return True


def _wanted(count: int, width: int, room: int) -> int:
    """Lines for the GPUs: one each if that leaves room, else side by side."""
    if count + 2 <= max(room - 6, 10):
        return count + 2
    across = max(width // COMPACT_WIDTH, 1)
    return -(-count // across) + 1


def _on_gpus(snapshot: Snapshot, view: View, width: int, room: int, host: list[Line]) -> tuple[list[Line], list[Line]]:
    """Who is on the GPUs, and what is left of the host: its last line gives way to one line about them."""
    rows = snapshot.on_gpus
    if not rows:
        return [], host
    free = room - len(host)
    if free < 1 and len(host) > HOST_LINES:
        host, free = host[:-1], free + 1
    most = max((room + len(snapshot.gpus)) // ON_GPUS_SHARE, LEAST_ON_GPUS)
    charts = CHART_HEIGHT if snapshot.charts and free > CHART_HEIGHT else 0
    return draw_on_gpus(rows, view, width, min(free - charts, most, len(rows) + 2)), host


def _alert_lines(snapshot: Snapshot, view: View, width: int, room: int) -> list[Line]:
    active = snapshot.firing
    if len(active) < 2:
        return []  # a single one is in the strip already
    groups = grouped_alerts(active)
    count = min(len(groups), ALERT_LINES, room - 2)
    if count < min(len(groups), 2):
        return []
    shown = groups if len(groups) <= count else groups[: count - 1]
    lines: list[Line] = [[], rule(f"{len(active)} alerts", width, view.palette)]
    for row, places in shown:
        grave = row.severity or "warning"
        text = f" {row.rule}: {row.message}" + (f" ({places})" if places else "")
        lines.append([Segment(fit(text, width), view.palette.severity(grave))])
    if len(shown) < len(groups):
        lines.append(
            [Segment(fit(f" {len(groups) - len(shown)} more: press {key_of('alerts')}", width), view.palette.dim)]
        )
    return lines


def _output(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """Its newest lines, at the bottom of the page."""
    lines: list[Line] = [rule("Output", width, view.palette)]
    return lines + [[Segment(fit(f" {text}", width), view.palette.text)] for text in snapshot.output[-(height - 1) :]]

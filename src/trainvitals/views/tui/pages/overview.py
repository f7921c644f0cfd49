"""The overview: the run, the GPUs, the host, and as many charts as there is room for."""

from __future__ import annotations

import textwrap

from rich.segment import Segment

from trainvitals.views.tui.pages import Hit, Page, empty, rule
from trainvitals.views.tui.pages.charts import draw_grid
from trainvitals.views.tui.pages.gpus import COMPACT_WIDTH, draw_gpus
from trainvitals.views.tui.pages.host import draw_host
from trainvitals.views.tui.pages.strip import draw_strip
from trainvitals.views.tui.paint import Line, fit
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.view import View

CHART_HEIGHT = 7
OUTPUT_LINES = 8
NOTE_LINES = 3


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    """The page in at most `height` lines."""
    palette = view.palette
    lines: list[Line] = []
    hits: list[Hit] = []
    view.rows = len(snapshot.gpus)
    roomy = height >= 18
    health = snapshot.health
    if snapshot.run is not None:
        lines += draw_strip(snapshot.run, health, snapshot.time, width, max(min(height // 3, 5), 1), palette)
        if roomy:
            lines.append([])
    elif health.severity != "ok":
        lines.append([Segment(fit(f" {health.word}: {health.reason}", width), palette.severity(health.severity))])
    for note in snapshot.notes if roomy and not snapshot.gpus else ():
        for piece in textwrap.wrap(note, max(width - 2, 1))[:NOTE_LINES]:
            lines.append([Segment(fit(f" {piece}", width), palette.dim)])
    host = draw_host(snapshot.system, width, max(height - len(lines) - 2, 0), palette)
    host_lines = ([rule("Host", width, palette, snapshot.host)] if roomy and host else []) + host
    if snapshot.gpus:
        room = height - len(lines)
        reserve = len(host_lines) if room - len(host_lines) >= 4 else min(len(host), max(room - 4, 0))
        block, places = draw_gpus(
            snapshot.gpus,
            width,
            max(min(room - reserve, _wanted(len(snapshot.gpus), width, room)), 1),
            palette,
            view.row if view.details or view.selected.get("overview") is not None else None,
            heading=roomy,
        )
        hits += [hit._replace(top=hit.top + len(lines), bottom=hit.bottom + len(lines)) for hit in places]
        lines += block
        if roomy and len(lines) + len(host_lines) < height - CHART_HEIGHT:
            lines.append([])
    lines += (host_lines if len(lines) + len(host_lines) <= height else host)[: max(height - len(lines), 0)]
    if not snapshot.gpus and snapshot.run is None and not snapshot.system:
        word = "looking..." if snapshot.waiting or not snapshot.notes else "nothing to show"
        lines += empty(word, width, palette)
    view.visible = max(min(view.rows, height), 1)
    lines += _alert_lines(snapshot, view, width, height - len(lines))
    room = height - len(lines)
    if snapshot.output and room >= OUTPUT_LINES + 2:
        pane = _output(snapshot, view, width, max(min(room // 2, 14), OUTPUT_LINES))
        room -= len(pane)
    else:
        pane = []
    if room > CHART_HEIGHT and snapshot.charts:
        lines.append([])
        grid = draw_grid(snapshot, view, width, room - 1, select=False)
        lines += grid.lines
    lines += pane
    return Page(lines[:height], hits)


def charts_that_fit(width: int, height: int) -> int:
    """How many charts to ask for; a few too many cost little."""
    return max(width // 44, 1) * max(min((height - 12) // CHART_HEIGHT, 3), 0)


def _wanted(count: int, width: int, room: int) -> int:
    """Lines for the GPUs: one each if that leaves room, else side by side."""
    if count + 2 <= max(room - 6, 10):
        return count + 2
    across = max(width // COMPACT_WIDTH, 1)
    return -(-count // across) + 1


def _alert_lines(snapshot: Snapshot, view: View, width: int, room: int) -> list[Line]:
    active = snapshot.firing
    if len(active) < 2 or room < len(active[:3]) + 2:
        return []  # a single one stands in the strip already
    lines: list[Line] = [[], rule(f"{len(active)} alerts", width, view.palette)]
    for row in active[:3]:
        grave = str(row.get("severity", "warning"))
        text = f" {row.get('rule', '')}: {row.get('message', '')}"
        lines.append([Segment(fit(text, width), view.palette.severity(grave))])
    return lines


def _output(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    lines: list[Line] = [[], rule("Output", width, view.palette)]
    lines += [[Segment(fit(f" {text}", width), view.palette.text)] for text in snapshot.output[-(height - 2) :]]
    return lines

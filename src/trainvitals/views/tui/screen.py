"""The whole screen as lines of text: a pure function of the snapshot, the view and the size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.segment import Segment

from trainvitals.journal.documents.rows import SEVERITIES
from trainvitals.views.tui.pages import Hit, Page, boxes, charts, findings, lists, machines, overview
from trainvitals.views.tui.paint import Line, as_ascii, crop, drop, fit, is_safe, make_safe, width_of
from trainvitals.views.tui.snapshot import Request, Snapshot
from trainvitals.views.tui.view import View, key_of

DRAW: dict[str, Callable[[Snapshot, View, int, int], Page]] = {
    "overview": overview.draw,
    "charts": charts.draw,
    "processes": lists.draw_processes,
    "ranks": lists.draw_ranks,
    "alerts": lists.draw_alerts,
    "findings": findings.draw,
    "events": lists.draw_events,
    "runs": lists.draw_runs,
    "machines": machines.draw,
}

HINTS: dict[str, str] = {
    "overview": "? help  / charts  space details  s save  q quit",
    "charts": "? help  / choose  enter enlarge  ←→ crosshair  ↑↓ zoom  l log  s save",
    "processes": "? help  / filter  o sort  k signal  space details",
    "ranks": "? help  / filter  space details  q quit",
    "alerts": "? help  a acknowledge  z silence  / filter  space details",
    "findings": "? help  / filter  space details  q quit",
    "events": "? help  / filter  space details",
    "runs": "? help  / filter  enter show  space details",
    "machines": "? help  / filter  enter runs  space details",
}


BRAND = " trainvitals "
PAUSED = " paused "
CLOCK = "HH:MM:SS "
TABS = ((BRAND, 99, True), (" ", 99, True), (" ", 99, False), (BRAND, 1, False), (" ", 1, False), (" ", 0, False))
"""What is in the header, the widest first: before the tabs, letters of the titles that are not chosen, the keys."""


class Frame(NamedTuple):
    """One frame of the screen: `height` lines of `width` cells, and the areas that respond to the mouse."""

    lines: list[Line]
    hits: list[Hit]


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Frame:
    """Draw everything. Any size works, down to one cell."""
    palette = view.palette
    if width < 1 or height < 1:
        return Frame([], [])
    header, hits = _header(snapshot, view, width)
    body_height = height - (2 if height >= 3 else 1 if height >= 2 else 0)
    page = DRAW[view.page](snapshot, view, width, max(body_height, 0))
    lines = [header] if height >= 2 else []
    hits += [hit._replace(top=hit.top + len(lines), bottom=hit.bottom + len(lines)) for hit in page.hits]
    lines += page.lines[: max(body_height, 0)]
    lines = [crop(line, width, palette.text) for line in lines]
    foot = 1 if height >= 3 else 0
    lines += [[Segment(" " * width, palette.text)] for _ in range(height - foot - len(lines))]
    if foot:
        lines.append(crop(_footer(snapshot, view, width, height), width, palette.text))
    lines = lines[:height]
    box = _box(snapshot, view, width, height)
    if box is not None:
        hits = []
        _lay_over(lines, box, width, view)
    # The gate: whatever a page took from a file, nothing but text reaches the terminal.
    lines = [line if is_safe(line) else crop(make_safe(line), width, palette.text) for line in lines]
    if view.ascii:
        lines = [as_ascii(line) for line in lines]
    return Frame(lines, hits)


def request(snapshot: Snapshot, view: View, width: int, height: int) -> Request:
    """What the feed should read for this view."""
    body = max(height - 2, 1)
    offset = 0
    if view.page == "charts":
        if view.full:
            offset, count = view.row, 1
        else:
            across, down = charts.shape(width, body)
            offset, count = charts.first_chart(view, width, body), across * down
    elif view.page == "overview":
        count = overview.charts_that_fit(width, body)
    else:
        count = 0
    return Request(
        page=view.page,
        filter=view.filters.get("charts", "") if view.page == "charts" else "",
        offset=offset,
        charts=count,
        axis=view.axis,
        window=view.windows.get(view.axis) if view.page == "charts" else None,
    )


def _header(snapshot: Snapshot, view: View, width: int) -> tuple[Line, list[Hit]]:
    palette = view.palette
    hits: list[Hit] = []
    counted = _count_problems(snapshot)
    brand, texts = _fitting_tabs(view, {name: count for name, (count, _) in counted.items()}, width)
    line: Line = [Segment(brand, palette.accent)]
    for place, ((name, _), text) in enumerate(zip(view.pages, texts, strict=True)):
        if not text:
            continue
        chosen = name == view.page
        start = width_of(line)
        style = palette.strong + palette.selected if chosen else palette.dim
        if name in counted and not chosen:
            style = palette.severity(counted[name][1])
        line.append(Segment(text, style))
        hits.append(Hit(0, 1, start, start + len(text), "page", place))
    clock = time.strftime("%H:%M:%S ", time.localtime(snapshot.time)) if snapshot.time else ""
    where = f"  {snapshot.host}  {snapshot.origin}  " if snapshot.origin else ""
    room = width - width_of(line)
    right: list[Segment] = []
    # The most important part is placed first, at the far right.
    for text, style in (
        (PAUSED if view.paused else "", palette.warning),
        (clock, palette.dim),
        (where, palette.dim),
    ):
        if text and len(text) <= room:
            right.insert(0, Segment(text, style))
            room -= len(text)
    line += [Segment(" " * max(room, 0)), *right]
    return crop(line, width, palette.text), hits


def _count_problems(snapshot: Snapshot) -> dict[str, tuple[int, str]]:
    """What the tabs of some pages tell: how many there are, and how bad the worst is."""
    found = {}
    if snapshot.firing:
        found["alerts"] = (len(snapshot.firing), snapshot.firing[0].severity or "warning")
    problems = snapshot.judged.problems if snapshot.judged is not None else ()
    if problems:
        found["findings"] = (len(problems), max((row.severity for row in problems), key=SEVERITIES.index))
    return found


def _fitting_tabs(view: View, counts: Mapping[str, int], width: int) -> tuple[str, list[str]]:
    """What is before the tabs, and the text of each: as much as there is room for."""
    paused = len(PAUSED) if view.paused else 0
    for brand, longest, numbered in TABS:
        texts = []
        for place, (name, title) in enumerate(view.pages):
            text = title if name == view.page else title[:longest]
            if text and name in counts:
                text += f" {counts[name]}"
            texts.append((f" {place + 1} {text} " if numbered else f" {text} ") if text else "")
        clock = len(CLOCK) if brand == BRAND else 0  # of the two, the clock is more use
        if len(brand) + sum(map(len, texts)) + paused + clock <= width:
            break
    return brand, texts


def _footer(snapshot: Snapshot, view: View, width: int, height: int) -> Line:
    palette = view.palette
    if view.typing:
        return [
            Segment(" / ", palette.accent),
            Segment(view.filter, palette.strong),
            Segment("▏", palette.accent),
            Segment("  enter to apply, esc to clear", palette.dim),
        ]
    if view.message:
        style = palette.severity(view.severity) if view.severity else palette.text
        return [Segment(fit(f" {view.message}", width), style)]
    line: Line = []
    if view.filter:
        line += [Segment(f" / {view.filter} ", palette.accent)]
    hints = HINTS[view.page].split("  ")
    if view.page == "overview" and snapshot.output and not overview.has_output(snapshot, height - 2):
        hints.insert(1, f"{key_of('events')} output")
    line.append(Segment(f" {_fitting(hints, width - width_of(line) - 1)}", palette.dim))
    health = snapshot.health
    right: Line = [Segment(f"  every {view.interval:g} s ", palette.dim)]
    if view.page != "overview" and health.severity != "ok":
        right.insert(0, Segment(f"  {health.word}", palette.severity(health.severity)))
    space = width - width_of(line) - width_of(right)
    if space >= 0:
        line += [Segment(" " * space), *right]
    return line


def _fitting(hints: list[str], room: int) -> str:
    """As many of the hints as fit, none of them cut."""
    text = ""
    for hint in hints:
        longer = f"{text}  {hint}" if text else hint
        if len(longer) > room:
            break
        text = longer
    return text


def _box(snapshot: Snapshot, view: View, width: int, height: int) -> tuple[list[Line], int, int] | None:
    if view.asking is not None:
        return boxes.draw_box("Send a signal?", boxes.question(view.asking), width, height, view.palette)
    if view.help:
        return boxes.draw_box("Keys", boxes.help_rows(), width, height, view.palette, view.help_offset)
    if view.details:
        title, rows = boxes.details(snapshot, view)
        return boxes.draw_box(title, rows, width, height, view.palette, view.help_offset)
    return None


def _lay_over(lines: list[Line], box: tuple[list[Line], int, int], width: int, view: View) -> None:
    content, left, top = box
    palette = view.palette
    for place, line in enumerate(content):
        row = top + place
        if row < len(lines):
            under = lines[row]
            whole = [*crop(under, left, palette.text), *line, *drop(under, left + width_of(line))]
            lines[row] = crop(whole if left > 0 else line, width, palette.text)

"""One frame, printed: `trainvitals top --once` and `--json`, for scripts."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import IO

from rich.console import Console
from rich.segment import Segment

from trainvitals.views.tui import palette as palettes
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.paint import Line
from trainvitals.views.tui.save import json_text
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.view import View

WAIT_SECONDS = 15.0
"""The first sample takes a moment, on a busy node longer: a frame without it is useless."""
FINDINGS_SECONDS = 5.0
"""A run of some million steps takes longer to judge; then its frame has no findings."""
TALLEST = 400
CHART_LINES = 18


def read_whole(feed: Feed, wait: float = WAIT_SECONDS) -> Snapshot:
    """A snapshot with numbers in it: our own samples take a moment, rates take two."""
    deadline = time.monotonic() + wait
    snapshot = feed.read()
    rates_by: float | None = None
    while time.monotonic() < deadline:
        ready = bool(snapshot.system)
        if snapshot.origin != "own sampling":
            break
        if ready and rates_by is None:
            rates_by = time.monotonic() + max(min(feed.interval, 1.0), 0.2) + 0.1
        if rates_by is not None and time.monotonic() >= rates_by:
            break
        time.sleep(0.05)
        snapshot = feed.read()
    if feed.shown is not None and feed.findings is not None:
        judged = feed.findings.wait(feed.shown.info.last, min(wait, FINDINGS_SECONDS))
        snapshot = replace(snapshot, judged=judged)
    feed.stop()
    return snapshot


def print_json(feed: Feed, stream: IO[str] | None = None) -> int:
    """The frame as JSON."""
    print(json_text(read_whole(feed)), file=stream or sys.stdout)
    return 0


def print_frame(feed: Feed, stream: IO[str] | None = None) -> int:
    """The overview as text, in colour where the stream is a terminal that has any."""
    console = Console(file=stream, highlight=False)
    width = max(console.width, 20)
    palette = palettes.BY_NAME["mono" if console.no_color or not console.is_terminal else "terminal"]
    view = View(
        palette=palette,
        conditions=feed.options.conditions,
        interval=feed.interval,
        ascii="utf" not in console.encoding.lower(),
        with_machines=feed.options.machines is not None,
        page=feed.options.first_page,
    )
    feed.want(screen.request(Snapshot(time=0.0), view, width, 60))
    snapshot = read_whole(feed)
    lines = draw_frame(snapshot, view, width)
    for line in lines:
        if console.is_terminal:
            console.print(_Line(line), end="\n", soft_wrap=True)
        else:
            console.file.write("".join(segment.text for segment in line).rstrip() + "\n")
    return 0


def draw_frame(snapshot: Snapshot, view: View, width: int) -> list[Line]:
    """As many lines as needed; charts only for a run, since a history of one moment is not worth a chart."""
    lines = _page(replace(snapshot, charts=()), view, width, TALLEST)
    return _page(snapshot, view, width, len(lines) + CHART_LINES) if snapshot.run is not None else lines


def _page(snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    lines = screen.draw(snapshot, view, width, height + 2).lines[1:-1]  # tabs and keys mean nothing in printed output
    while lines and not "".join(segment.text for segment in lines[-1]).strip():
        lines.pop()
    return lines


class _Line:
    """Segments that rich prints as they are."""

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments

    def __rich_console__(self, console: Console, options: object) -> list[Segment]:
        return self._segments

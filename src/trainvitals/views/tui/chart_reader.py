"""Which panels have data, and the curves of those that are shown. Tested in tests/views/tui/test_feed.py."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from trainvitals import catalog
from trainvitals.views.panels import PANELS, Panel, find_names, own_panel, title_of
from trainvitals.views.tui.hardware import LIVE_TABLES, Hardware
from trainvitals.views.tui.snapshot import Chart, Line, Request

if TYPE_CHECKING:
    from trainvitals.journal.points import Axis
    from trainvitals.views.tui.curves import Detail
    from trainvitals.views.tui.shown_run import ShownRun
    from trainvitals.views.tui.tracks import Track

MAX_LINES = 64
"""Curves in one chart; more cannot be distinguished."""
DETAIL_SECONDS = 5.0
COARSE_POINTS = 1000
"""A curve with fewer points is in full resolution."""


class ChartReader:
    """Takes the curves of a run from its folder, and missing ones from the live hardware.

    `shown` is the run on the screen, `live` the hardware of this machine, if the run uses it.
    """

    def __init__(self, gpus: tuple[str, ...]) -> None:
        """`gpus` are the indices to show; empty is all."""
        self._gpus = gpus
        self._known_panels: tuple[tuple[object, ...], tuple[Panel, ...]] | None = None
        self._detail: tuple[tuple[object, ...], float, list[Detail]] | None = None

    def find_panels(self, shown: ShownRun | None, live: Hardware | None, words: str) -> tuple[Panel, ...]:
        """The panels that have data, most important first; then the user's own metrics."""
        logged: dict[str, set[str]] = {}
        for table in ("training", *LIVE_TABLES):
            names = set(shown.curves.names(table)) if shown is not None else set()
            if live is not None and table != "training":
                names |= live.names(table)
            logged[table] = names
        # Names are only ever added, so their count shows whether there are new ones among thousands.
        key = (id(shown), *(len(names) for names in logged.values()))
        if self._known_panels is None or self._known_panels[0] != key:
            self._known_panels = (key, _choose_panels(logged))
        panels, wanted = self._known_panels[1], words.casefold().split()
        if not wanted:
            return panels
        return tuple(panel for panel in panels if all(any(word in text for text in _texts(panel)) for word in wanted))

    def read(self, panel: Panel, shown: ShownRun | None, live: Hardware | None, request: Request) -> Chart:
        """A panel with its curves."""
        from trainvitals.analysis.rates import rate_of

        axis: Axis = request.axis if panel.table == "training" else "time"
        lines: list[Line] = []
        total = 0
        for metric in panel.metrics:
            tracks = self._find_tracks(panel, metric, axis, shown, live)
            # Several metrics of one rank or GPU are legible; those of all of them are not.
            if len(panel.without_validation) > 1 or lines:
                tracks = tracks[:1]
            total += len(tracks)
            many = len(tracks) > 1
            for track in tracks[: max(MAX_LINES - len(lines), 0)]:
                x, y = track.points()
                if panel.is_rate:
                    x, y = rate_of(x, y)
                lines.append(Line(track.metric, track.owner.label if many else "", x, y))
        if request.window is not None and shown is not None and panel.table == "training":
            lines = [self._read_detail(line, panel, axis, shown, request.window) for line in lines]
        return Chart(panel, axis, tuple(lines), total, shown.place if shown is not None else "")

    def _find_tracks(
        self, panel: Panel, metric: str, axis: Axis, shown: ShownRun | None, live: Hardware | None
    ) -> list[Track]:
        recorded: list[Track] = []
        if shown is not None:
            name = catalog.find_spelling(panel.table, metric, shown.curves.names(panel.table))
            recorded = shown.curves.tracks(panel.table, name, axis) if name is not None else []
            if self._gpus and panel.table == "gpu":
                recorded = [track for track in recorded if track.owner.label.split()[-1].split(":")[0] in self._gpus]
        return recorded or (live.tracks(panel.table, metric) if live is not None else [])

    def _read_detail(self, line: Line, panel: Panel, axis: Axis, shown: ShownRun, window: tuple[float, float]) -> Line:
        """The line with the window reread in full resolution, unless it already is."""
        inside = int(((line.x >= window[0]) & (line.x <= window[1])).sum())
        if inside == len(line.x) or len(line.x) < COARSE_POINTS:
            return line
        key = (shown.place, panel.id, line.metric, axis, window)
        if self._detail is None or self._detail[0] != key or time.monotonic() - self._detail[1] > DETAIL_SECONDS:
            found = shown.curves.read_detail(panel.table, line.metric, axis, *window)
            self._detail = (key, time.monotonic(), found)
        match = next((detail for detail in self._detail[2] if detail.label == (line.label or detail.label)), None)
        if match is None or len(match.x) <= inside:
            return line
        return Line(line.metric, line.label, match.x, match.y)


def _choose_panels(logged: Mapping[str, Iterable[str]]) -> tuple[Panel, ...]:
    declared = [
        replace(panel, title=title_of(panel, names, set(logged[panel.table])))
        for panel in PANELS
        if panel.chart != "states" and (names := find_names(panel, logged[panel.table]))
    ]
    declared.sort(key=lambda panel: panel.importance)
    used = {name for panel in declared if panel.table == "training" for name in find_names(panel, logged["training"])}
    own = [
        own_panel(name)
        for name in sorted(logged["training"])
        if name not in used and catalog.find("training", name) is None
    ]
    return (*declared, *own)


def _texts(panel: Panel) -> tuple[str, ...]:
    return (panel.title.casefold(), panel.id.casefold(), *(name.casefold() for name in panel.metrics))

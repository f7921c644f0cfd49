"""The last minutes of the metric that fired, as a small PNG. None if it cannot be drawn: a message never waits for one.

Our own SVG, drawn by resvg (the package resvg-py, in the extra `notify`).
Tested in tests/alerts/test_channels.py.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals.journal import layout
from trainvitals.journal.encoding import TimeParser, number
from trainvitals.journal.identity import Participant

WIDTH, HEIGHT = 480, 160
LEFT, RIGHT, TOP, BOTTOM = 8, 472, 30, 152
TAIL_BYTES = 1 << 20
POINTS = 600

Points = list[tuple[float, float]]


def draw_file(folder: str, body: Mapping[str, Any]) -> str | None:
    """The path of a new PNG, for the caller to remove."""
    try:
        import resvg_py
    except ImportError:
        return None
    found = read_points(Path(folder), body)
    if len(found) < 2:
        return None
    threshold = body.get("threshold")
    svg = draw_svg(found, str(body.get("metric", "")), threshold if isinstance(threshold, float) else None)
    try:
        data = bytes(resvg_py.svg_to_bytes(svg_string=svg))
        handle, path = tempfile.mkstemp(prefix="trainvitals-", suffix=".png")
    except (OSError, ValueError, RuntimeError):
        return None
    with os.fdopen(handle, "wb") as file:
        file.write(data)
    return path


def read_points(folder: Path, body: Mapping[str, Any]) -> Points:
    """The newest values of the metric the message is about, of its first GPU or participant: (time, value)."""
    table, _, name = str(body.get("metric", "")).partition(".")
    alerts = body.get("alerts") or [{}]
    labels = dict(alerts[0].get("labels") or {})
    listed = [item for item in layout.list_files(folder) if item[0].table == table and item[1] == ".jsonl"]
    if table == "training":  # whose lines are known by the name of their file
        whose = Participant.of(labels)
        listed = [item for item in listed if item[0].participant == whose]
        labels = {key: value for key, value in labels.items() if key not in whose.labels}
    files = [path for _, _, path in listed]
    times = TimeParser()
    points: Points = []
    for path in files[-2:]:
        for row in _tail(path):
            value = number(row.get(name))
            when = times.parse(str(row.get("timestamp", "")))
            if value is None or when is None or any(row.get(key) != item for key, item in labels.items()):
                continue
            points.append((when / 1e6, value))
    return points[-POINTS:]


def _tail(path: Path) -> list[dict[str, Any]]:
    from trainvitals.journal.cursor import Cursor, find_line

    try:
        return Cursor(path, find_line(path, path.stat().st_size - TAIL_BYTES)).read()
    except OSError:
        return []


def draw_svg(points: Sequence[tuple[float, float]], title: str, threshold: float | None) -> str:
    """A line, its threshold, and a red mark at the bottom wherever the value was NaN or infinite."""
    finite = [(when, value) for when, value in points if value - value == 0]
    start, end = points[0][0], points[-1][0]
    values = [value for _, value in finite] + ([threshold] if threshold is not None else [])
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    spread, span = (high - low) or 1.0, (end - start) or 1.0

    def x(when: float) -> float:
        return round(LEFT + (when - start) / span * (RIGHT - LEFT), 1)

    def y(value: float) -> float:
        return round(BOTTOM - (value - low) / spread * (BOTTOM - TOP), 1)

    line = " ".join(f"{x(when)},{y(value)}" for when, value in finite)
    marks = "".join(
        f'<rect x="{x(when)}" y="{BOTTOM - 6}" width="2" height="6" fill="#c0392b"/>'
        for when, value in points
        if value - value != 0
    )
    limit = ""
    if threshold is not None:
        place = y(threshold)
        limit = f'<path d="M{LEFT} {place}H{RIGHT}" stroke="#c0392b" stroke-dasharray="4 3" fill="none"/>'
    newest = f"{finite[-1][1]:.5g}" if finite else "no finite values"
    label = f"{title}: {newest}, last {max(1, round(span / 60))} min"
    safe = label.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        f'<text x="{LEFT}" y="20" font-size="13" font-family="sans-serif" fill="#333333">{safe}</text>'
        f'{limit}<polyline points="{line}" fill="none" stroke="#1f77b4" stroke-width="1.5"/>{marks}</svg>'
    )

"""What is shown, as files and as text: for the key `s`, `--once` and `--json`."""

from __future__ import annotations

import csv
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from trainvitals.journal.encoding import dump_json, format_time, spell, spell_all
from trainvitals.runtime import write_atomically
from trainvitals.safe_text import csv_cell
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.view import View


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """The snapshot as plain values. What is missing is absent; NaN and infinity are spelled as in the journal."""
    shown = snapshot.run
    run = {**asdict(shown), "progress": shown.progress._asdict()} if shown is not None else None
    content: dict[str, Any] = {
        "timestamp": format_time(snapshot.time),
        "host": snapshot.host,
        "origin": snapshot.origin,
        "health": snapshot.health._asdict(),
        "run": run,
        "gpus": [{name: value for name, value in asdict(gpu).items() if name != "history"} for gpu in snapshot.gpus],
        "system": dict(snapshot.system),
        "processes": [asdict(process) for process in snapshot.processes],
        "alerts": [row.as_json() for row in snapshot.firing],
        "notes": list(snapshot.notes),
    }
    if snapshot.judged is not None:
        content["findings"] = [finding._asdict() for finding in snapshot.judged.findings]
    if snapshot.machines:
        from trainvitals.views.data.machines import describe_machine

        content["machines"] = [describe_machine(machine) for machine in snapshot.machines]
    found: dict[str, Any] = spell_all(_without_none(content))
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(item) for item in value]
    return value


def json_text(snapshot: Snapshot) -> str:
    """The same as indented text."""
    return dump_json(as_json(snapshot), orjson.OPT_INDENT_2).decode()


def curves(snapshot: Snapshot) -> Iterator[tuple[str, str, str, str, float, float | str]]:
    """(panel, metric, device or rank, axis, x, value) of every point of every chart."""
    for chart in snapshot.charts:
        for line in chart.lines:
            for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True):
                yield chart.panel.id, line.metric, line.label, chart.axis, x, spell(y)


def csv_text(snapshot: Snapshot) -> str:
    """The charts that are shown, one point per line."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(("panel", "metric", "device", "axis", "x", "value"))
    for row in curves(snapshot):
        writer.writerow((*map(csv_cell, row[:4]), *row[4:]))
    return text.getvalue()


def save(snapshot: Snapshot, view: View, picture: str, folder: Path | None = None) -> str:
    """Write the three files to the current folder or, if that is not allowed, the temporary folder. Returns a
    sentence with the place."""
    stem = f"trainvitals-top-{time.strftime('%Y%m%d-%H%M%S')}"
    places = (folder if folder is not None else Path.cwd(), Path(tempfile.gettempdir()))
    files = {
        ".json": json_text(snapshot).encode(),
        ".csv": csv_text(snapshot).encode("utf-8", "replace"),
        ".svg": picture.encode("utf-8", "replace"),
    }
    for place in places:
        try:
            for suffix, data in files.items():
                write_atomically(place / f"{stem}{suffix}", data)
        except OSError:
            if place == places[-1]:
                raise
            continue
        break
    return f"saved {place / stem}.json, .csv and .svg"

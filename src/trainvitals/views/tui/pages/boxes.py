"""Boxes over a page: help, details, the confirmation of a signal."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rich.segment import Segment

from trainvitals import catalog
from trainvitals.views.data.machines import MachineNow
from trainvitals.views.data.quantities import format_duration, format_measure
from trainvitals.views.tui.keys import KEYS
from trainvitals.views.tui.pages.findings import describe, shown_findings
from trainvitals.views.tui.pages.lists import shown_alerts, shown_events, shown_processes, shown_ranks, shown_runs
from trainvitals.views.tui.pages.machines import shown_machines
from trainvitals.views.tui.paint import Line, crop, fit, width_of
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Gpu, ProcessRow, Snapshot
from trainvitals.views.tui.view import SIGNALS, View

Pairs = list[tuple[str, str]]
MOST_PIECES = 8
"""Maximum lines of one text."""


def help_rows() -> Pairs:
    """Every key and what it does."""
    rows: Pairs = []
    before = ""
    for key in KEYS:
        if not key.shown:
            continue  # explained with another key
        if key.where != before:
            before = key.where
            if rows:
                rows.append(("", ""))
            rows.append(("", key.where.upper()))
        rows.append((key.shown, key.help))
    return rows


def question(process: ProcessRow) -> Pairs:
    """The confirmation before a signal is sent."""
    return [
        ("process", f"{process.pid} of {process.user}"),
        ("command", process.command),
        *([("run", run_of(process))] if process.run else []),
        ("", ""),
        *((key, f"send {name}") for key, name in SIGNALS),
        ("esc", "do nothing"),
    ]


def run_of(process: ProcessRow) -> str:
    """Its run and participant; empty without a run."""
    return f"{process.run}, {process.participant.title}" if process.participant is not None else ""


def details(snapshot: Snapshot, view: View) -> tuple[str, Pairs]:
    """Everything known about the selection: (title, rows)."""
    row = view.row
    if view.page == "overview" and row < len(snapshot.gpus):
        return _gpu(snapshot.gpus[row])
    if view.page == "processes":
        rows = shown_processes(snapshot, view)
        if row < len(rows):
            return _process(rows[row])
    if view.page == "ranks" and row < len(ranks := shown_ranks(snapshot, view)):
        rank = ranks[row]
        return rank.participant.title.capitalize(), _pairs(
            {name: getattr(rank, name) for name in ("host", "pid", "step")}
        )
    if view.page == "alerts":
        alerts = shown_alerts(snapshot, view)
        if row < len(alerts):
            return "Alert", _pairs(alerts[row].as_json())
    if view.page == "findings" and row < len(found := shown_findings(snapshot, view)):
        return "Finding", [(name, text) for name, text in describe(found[row], snapshot) if text]
    if view.page == "events":
        events = shown_events(snapshot, view)
        if row < len(events):
            return "Event", _pairs(events[row].as_json())
    if view.page == "runs":
        runs = shown_runs(snapshot, view)
        chosen = runs[row] if row < len(runs) else None
        if chosen is not None:
            info = chosen.info
            names = ("id", "name", "project", "status", "folder")
            more = {
                "cause": info.cause_text,
                "host": chosen.host,
                "job": str(info.file.placed),
                "last step": chosen.last_step,
            }
            return "Run", _pairs({name: getattr(info, name) for name in names} | more)
    if view.page == "machines" and row < len(machines := shown_machines(snapshot, view)):
        return machines[row].state.name, _machine(machines[row])
    if snapshot.run is not None:
        return "Run", _run(snapshot)
    return "Host", [(name, _value("system", name, value)) for name, value in sorted(snapshot.system.items())]


def _machine(machine: MachineNow) -> Pairs:
    state = machine.state
    names = ("detail", "hint", "host", "version", "place")
    rows = _pairs({"state": state.word} | {name: getattr(state, name) for name in names})
    for gpu in machine.gpus:
        values = ", ".join(f"{_value('gpu', name, value)}" for name, value in gpu.values.items())
        rows.append((f"GPU {gpu.index}", f"{gpu.name}{f' ({gpu.problem})' if gpu.problem else ''}  {values}"))
    return rows + [(name, _value("system", name, value)) for name, value in machine.host.items()]


def _run(snapshot: Snapshot) -> Pairs:
    run = snapshot.run
    assert run is not None
    rows = _pairs({name: getattr(run, name) for name in ("id", "project", "status", "cause", "job", "folder")})
    rows += [(name, _value("training", name, value)) for name, value in sorted(run.values.items())]
    return rows


def _gpu(gpu: Gpu) -> tuple[str, Pairs]:
    rows = [("uuid", gpu.uuid), *([("problem", gpu.problem)] if gpu.problem else [])]
    rows += [(name, _value("gpu", name, value)) for name, value in gpu.values.items()]
    return f"GPU {gpu.index}  {gpu.name}" + ("  SIMULATED" if gpu.simulated else ""), rows


def _process(process: ProcessRow) -> tuple[str, Pairs]:
    rows: Pairs = [
        ("command", process.command),
        ("user", process.user),
        ("state", process.state),
        ("GPUs", ", ".join(process.gpus)),
        ("run", run_of(process)),
        ("job", process.job),
        ("CPU", format_measure(process.cpu_percent, "%")),
        ("memory", format_measure(process.rss_mb, "MB")),
        ("GPU memory", format_measure(process.gpu_memory_mb, "MB")),
        ("threads", str(process.threads or "")),
        ("age", format_duration(process.age) if process.age is not None else ""),
    ]
    return f"Process {process.pid}", [row for row in rows if row[1] not in ("", "-")]


def _value(table: str, name: str, value: object) -> str:
    if not isinstance(value, (int, float)):
        return str(value)
    metric = catalog.find(table, name)
    return format_measure(float(value), metric.unit if metric is not None else "")


def _pairs(row: Mapping[str, Any]) -> Pairs:
    return [(str(name), _plain(value)) for name, value in row.items() if value not in (None, "", {}, ())]


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(item)}" for name, item in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, (list, tuple)) else str(value)


def draw_box(
    title: str, rows: Sequence[tuple[str, str]], width: int, height: int, palette: Palette, offset: int = 0
) -> tuple[list[Line], int, int]:
    """A framed list of (word, text). Returns its lines and where it is: left and top.

    Long texts are wrapped; what does not fit below is scrolled to with `offset`.
    """
    most = width // 2 if width >= 60 else max(width // 3, 4)
    key_width = min(max((len(word) for word, _ in rows), default=0), most)
    inner = min(max((key_width + 2 + width_of([Segment(text[:200])]) for _, text in rows), default=10), width - 6)
    inner = max(inner, min(width_of([Segment(title[:200])]) + 2, width - 6), 4)
    body: list[Line] = []
    for word, text in rows:
        room = max(inner - key_width - 2, 1)
        pieces = textwrap.wrap(text[: room * MOST_PIECES], room, break_on_hyphens=False)[:MOST_PIECES] or [""]
        for place, piece in enumerate(pieces):
            head = fit(word if place == 0 else "", key_width)
            heading = not word and text.isupper()
            style = palette.dim if heading else palette.text
            body.append([Segment(head, palette.accent), Segment("  "), Segment(fit(piece, room), style)])
    space = max(min(len(body), height - 4), 1)
    offset = min(max(offset, 0), max(len(body) - space, 0))
    shown = body[offset : offset + space]
    top = [
        Segment("┌ ", palette.dim),
        Segment(fit(title, min(width_of([Segment(title)]), inner - 1)), palette.strong),
    ]
    top.append(Segment(" " + "─" * (inner + 2 - width_of(top)) + "┐", palette.dim))
    more = f" {offset + space} of {len(body)} " if len(body) > space else ""
    lines: list[Line] = [top]
    lines += [
        [Segment("│ ", palette.dim), *crop(line, inner, palette.text), Segment(" │", palette.dim)] for line in shown
    ]
    lines.append([Segment("└" + "─" * (inner + 2 - len(more)) + more + "┘", palette.dim)])
    return lines, max((width - inner - 4) // 2, 0), max((height - len(lines)) // 2, 0)

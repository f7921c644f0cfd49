"""The page with a line for each machine of `--host`. Tested in tests/views/tui/test_machines_page.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rich.style import Style

from trainvitals.analysis.wording import count_of
from trainvitals.views.data.machines import MachineNow
from trainvitals.views.data.quantities import NONE, format_duration, format_measure
from trainvitals.views.tui.pages import Page, empty, rule
from trainvitals.views.tui.pages.lists import draw_list, text_column
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.table import Column
from trainvitals.views.tui.view import View


def shown_machines(snapshot: Snapshot, view: View) -> list[MachineNow]:
    """Those that match the filter: a part of the name, the host or the state."""
    words = view.filters.get("machines", "").casefold().split()
    return [
        machine
        for machine in snapshot.machines
        if all(word in f"{machine.state.name} {machine.state.host} {machine.state.word}".casefold() for word in words)
    ]


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    palette = view.palette
    rows = shown_machines(snapshot, view)
    view.rows = len(rows)
    if not rows:
        return Page(empty("no machines match", width, palette, "esc to clear the filter"), [])

    def state_style(row: MachineNow) -> Style:
        return {"up": palette.good, "connecting": palette.dim, "slow": palette.warning}.get(
            row.state.word, palette.severity("critical")
        )

    def number_style(row: MachineNow) -> Style:
        # Numbers of a machine that does not answer are those of when it did.
        return palette.text if row.is_current else palette.dim

    def alert_style(row: MachineNow) -> Style:
        return palette.warning if row.firing else palette.dim

    def gpu_style(row: MachineNow) -> Style:
        return palette.warning if row.troubled else number_style(row)

    longest = min(max(7, _longest(row.state.name for row in rows)), 30)
    widest = max(5, _longest(row.state.word for row in rows))
    most_gpus, most_runs = _longest(map(_count_gpus, rows)), _longest(map(_count_runs, rows))
    columns: list[Column[MachineNow]] = [
        text_column("MACHINE", longest, 1, lambda row: row.state.name, _always(palette.strong)),
        text_column("STATE", widest, 2, lambda row: row.state.word, state_style),
        text_column("GPUS", min(most_gpus, 6), 3, _count_gpus, gpu_style, most=most_gpus),
        text_column("USE", 5, 4, lambda row: _measure(row.utilization, "%"), number_style, right=True),
        text_column("GPU MEMORY", 13, 5, _memory, number_style, most=15, right=True),
        text_column("POWER", 7, 6, lambda row: _measure(row.power, "W"), number_style, right=True),
        text_column("CPU", 5, 9, _share("cpu_usage_percent"), number_style, right=True),
        text_column("MEM", 5, 10, _share("memory_usage_percent"), number_style, right=True),
        text_column("RUNS", min(most_runs, 10), 7, _count_runs, _always(palette.text), most=most_runs),
        text_column("ALERTS", 6, 8, lambda row: str(row.firing) if row.firing else "", alert_style, right=True),
        text_column("", 16, 11, lambda row: _remark(row, snapshot.time), _always(palette.dim), most=200),
    ]
    silent = sum(row.state.word != "up" for row in rows)
    heading = count_of(len(rows), "machine") + (f", {silent} not up" if silent else "")
    return draw_list(columns, rows, view, width, height, rule(heading, width, palette, "enter to show its runs"))


def _always(style: Style) -> Callable[[MachineNow], Style]:
    return lambda _: style


def _longest(words: Iterable[str]) -> int:
    return max(4, *map(len, words))


def _share(name: str) -> Callable[[MachineNow], str]:
    return lambda row: _measure(row.host.get(name), "%")


def _measure(value: float | None, unit: str) -> str:
    return format_measure(value, unit).replace(" ", "") if value is not None else NONE


def _count_gpus(row: MachineNow) -> str:
    whole = [gpu for gpu in row.gpus if ":" not in gpu.index]
    if not whole:
        return NONE
    mark = " SIM" if any(gpu.simulated for gpu in whole) else ""
    return f"{len(whole)}{mark}" + (f", {row.troubled} not ok" if row.troubled else "")


def _memory(row: MachineNow) -> str:
    used, total = row.memory_used_mb, row.memory_total_mb
    if used is None or total is None:
        return NONE
    return f"{format_measure(used, 'MB')} / {format_measure(total, 'MB')}".replace(" GB", "G").replace(" MB", "M")


def _count_runs(row: MachineNow) -> str:
    if row.state.heard is None:
        return NONE
    return f"{row.live} live, {row.state.runs}" if row.live else str(row.state.runs)


def _remark(row: MachineNow, now: float) -> str:
    state = row.state
    if state.word == "up":
        if not state.hardware.samples:
            return "no metrics: no agent is running there"
        return "" if row.is_current else "the agent there has stopped sampling"
    heard = f", last heard {format_duration(max(now - state.heard, 0.0))} ago" if state.heard is not None else ""
    return f"{state.detail or 'connecting'}{heard}{f'; {state.hint}' if state.hint else ''}"

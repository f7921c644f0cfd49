"""The host in a few lines: CPU, memory, swap, disk, network, pressure."""

from __future__ import annotations

from collections.abc import Mapping

from rich.segment import Segment

from trainvitals.views.data.quantities import format_measure, format_short
from trainvitals.views.tui.paint import Line, bar, crop, fit, width_of
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Value
from trainvitals.views.tui.view import View

CELL_WIDTH = 36
LABEL = 5


def draw_host(system: Mapping[str, Value], width: int, height: int, view: View) -> list[Line]:
    """As many lines as needed, at most `height`; the first cells are the most important."""
    cells = [draw for draw in (_cpu, _memory, _disk, _network, _pressure, _swap) if draw(system, 40, view)]
    if not cells or height <= 0:
        return []
    across = min(max(width // CELL_WIDTH, 1), len(cells))
    size = (width - 1) // across
    lines: list[Line] = []
    for start in range(0, len(cells), across):
        line: Line = [Segment(" ")]
        for draw in cells[start : start + across]:
            line += crop(draw(system, size - 3, view), size, view.palette.text)
        lines.append(crop(line, width, view.palette.text))
    return lines[:height]


def _number(system: Mapping[str, Value], name: str) -> float | None:
    value = system.get(name)
    return float(value) if isinstance(value, (int, float)) else None


def _gauge(
    label: str,
    share: float | None,
    text: str,
    grave: str | None,
    width: int,
    palette: Palette,
    colour: int = 0,
) -> Line:
    head = [Segment(fit(label, LABEL), palette.dim)]
    style = palette.severity(grave) if grave else palette.text
    tail = [Segment(f" {text}", style)]
    size = width - LABEL - width_of(tail)
    fill = palette.severity(grave) if grave else palette.series[colour]
    return [*head, *bar(share, max(size, 3), fill, palette), *tail]


def _words(label: str, parts: list[tuple[str, str, str | None]], palette: Palette) -> Line:
    """Label, then (word, value, severity) triples."""
    line: Line = [Segment(fit(label, LABEL), palette.dim)]
    for word, value, grave in parts:
        line += [
            Segment(f"{word} " if word else "", palette.dim),
            Segment(value, palette.severity(grave) if grave else palette.text),
            Segment("  "),
        ]
    return line


def _cpu(system: Mapping[str, Value], width: int, view: View) -> Line:
    use = _number(system, "cpu_usage_percent")
    if use is None:
        return []
    count = _number(system, "cpu_count")
    text = fit(format_measure(use, "%"), 4, right=True)
    if count is not None:
        text += f" of {format_short(count)}"
    return _gauge("CPU", use / 100, text, view.grade("system", "cpu_usage_percent", use), width, view.palette)


def _memory(system: Mapping[str, Value], width: int, view: View) -> Line:
    percent = _number(system, "memory_usage_percent")
    used, total = _number(system, "memory_used_mb"), _number(system, "memory_total_mb")
    if percent is None:
        return []
    text = format_measure(percent, "%") if used is None or total is None else f"{used / 1024:.1f}/{total / 1024:.0f}G"
    grave = view.grade("system", "memory_usage_percent", percent)
    return _gauge("MEM", percent / 100, text, grave, width, view.palette, 4)


def _swap(system: Mapping[str, Value], width: int, view: View) -> Line:
    used, percent = _number(system, "swap_used_mb"), _number(system, "swap_usage_percent")
    if used is None:
        return []
    if percent is None:
        return _words("SWAP", [("", "none", None)], view.palette)
    return _gauge(
        "SWAP",
        percent / 100,
        format_measure(used, "MB"),
        view.grade("system", "swap_usage_percent", percent),
        width,
        view.palette,
        4,
    )


def _disk(system: Mapping[str, Value], width: int, view: View) -> Line:
    read, written = _number(system, "disk_read_mb_s"), _number(system, "disk_write_mb_s")
    used = _number(system, "disk_usage_percent")
    parts: list[tuple[str, str, str | None]] = []
    if read is not None:
        parts.append(("r", format_short(round(read, 1)), None))
    if written is not None:
        parts.append(("w", f"{format_short(round(written, 1))} MB/s", None))
    if used is not None:
        parts.append(("", f"{used:.0f}% full", view.grade("system", "disk_usage_percent", used)))
    return _words("DISK", parts, view.palette) if parts else []


def _network(system: Mapping[str, Value], width: int, view: View) -> Line:
    received, sent = _number(system, "network_receive_mb_s"), _number(system, "network_send_mb_s")
    if received is None or sent is None:
        return []
    parts: list[tuple[str, str, str | None]] = [
        ("↓", format_short(round(received, 1)), None),
        ("↑", f"{format_short(round(sent, 1))} MB/s", None),
    ]
    return _words("NET", parts, view.palette)


def _pressure(system: Mapping[str, Value], width: int, view: View) -> Line:
    parts: list[tuple[str, str, str | None]] = []
    for word, name in (
        ("cpu", "pressure_cpu_percent"),
        ("mem", "pressure_memory_percent"),
        ("io", "pressure_io_percent"),
    ):
        value = _number(system, name)
        if value is not None:
            parts.append((word, f"{value:.0f}%", view.grade("system", name, value)))
    return _words("WAIT", parts, view.palette) if parts else []

"""The GPUs as a table, or side by side in short where there are too many for one line each."""

from __future__ import annotations

from collections.abc import Callable

from rich.segment import Segment

from trainvitals.views.panels import severity
from trainvitals.views.tui.numbers import MISSING, measure, short
from trainvitals.views.tui.pages import Hit, rule
from trainvitals.views.tui.paint import Line, bar, crop, fit, overlay, sparkline
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Gpu
from trainvitals.views.tui.table import Column, draw_heading, draw_row, first_shown, lay_out

COMPACT_WIDTH = 26
_HARMLESS = ("", "none", "idle", "application clocks")


def describe(gpus: tuple[Gpu, ...]) -> str:
    """`8 x NVIDIA H100 80GB HBM3`, or how many of what."""
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    names = _names(gpus)
    known = [gpu for gpu in whole if gpu.name in names]
    if len(names) == 1:
        parts = [f"{len(known)} x {known[0].name}" if len(known) > 1 else known[0].name]
        parts += [f"{len(whole) - len(known)} without an answer"] if len(known) < len(whole) else []
    else:
        parts = [f"{len(whole)} GPUs" if len(whole) > 1 else "1 GPU"]
    slices = len(gpus) - len(whole)
    return ", ".join([*parts, *([f"{slices} slices"] if slices else [])])


def _names(gpus: tuple[Gpu, ...]) -> set[str]:
    """What kinds there are; a GPU that does not answer may not have told its own yet."""
    return {gpu.name for gpu in gpus if gpu.name and not gpu.is_slice and not gpu.problem}


def totals(gpus: tuple[Gpu, ...]) -> str:
    """Power and memory of all together."""
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    power = [value for gpu in whole if (value := gpu.number("power_draw_watts")) is not None]
    return measure(sum(power), "W") if len(power) > 1 else ""


def marks(gpu: Gpu) -> tuple[str, str | None]:
    """What is to be said about the GPU in words, the gravest first, and how grave it is."""
    if gpu.problem:
        return gpu.problem, None if gpu.problem == "asleep" else "critical"
    words: list[tuple[str, str]] = []
    xids = gpu.number("xid_errors_total")
    if xids:
        last = gpu.number("xid_last")
        words.append((f"Xid {last:.0f}" if last is not None else f"{xids:.0f} Xid errors", "critical"))
    errors = gpu.number("ecc_uncorrected_total")
    if errors:
        words.append((f"ECC {errors:.0f}", "critical"))
    if gpu.number("row_remap_failed"):
        words.append(("row remap failed", "critical"))
    elif gpu.number("row_remap_pending"):
        words.append(("row remap pending", "warning"))
    action = str(gpu.values.get("recovery_action", "none"))
    if action not in ("none", ""):
        words.append((f"needs {action}", "critical"))
    reasons = str(gpu.values.get("throttle_reasons", ""))
    if reasons not in _HARMLESS:
        words.append((reasons, "critical" if "hardware" in reasons else "warning"))
    if not words and gpu.is_slice:
        return gpu.name.partition("MIG ")[2], None
    grave = next((s for _, s in words if s == "critical"), words[0][1] if words else None)
    return ", ".join(text for text, _ in words), grave


def columns(gpus: tuple[Gpu, ...], palette: Palette) -> list[Column[Gpu]]:
    """Every column there is; which are shown depends on the width."""

    def value(gpu: Gpu, name: str, unit: str) -> Segment:
        number = gpu.number(name)
        grave = severity("gpu", name, number) if number is not None else None
        style = palette.dim if number is None else palette.severity(grave) if grave else palette.text
        return Segment(measure(number, unit).replace(" ", ""), style)

    def index(gpu: Gpu, width: int) -> Line:
        text = f"└{gpu.index.partition(':')[2]}" if gpu.is_slice else gpu.index
        return [Segment(fit(text, width, right=True), palette.strong)]

    def utilization(gpu: Gpu, width: int) -> Line:
        number = gpu.number("utilization_percent")
        share = None if number is None else number / 100
        text = fit(measure(number, "%") if number is not None else MISSING, 4, right=True)
        return [*bar(share, width - 5, palette.accent, palette), Segment(f" {text}", palette.text)]

    def memory(gpu: Gpu, width: int) -> Line:
        used, total = gpu.number("memory_used_mb"), gpu.number("memory_total_mb")
        percent = gpu.number("memory_percent")
        grave = severity("gpu", "memory_percent", percent) if percent is not None else None
        style = palette.severity(grave) if grave else palette.series[4]
        amount = MISSING if used is None else f"{used / 1024:.1f}" if used < 102400 else f"{used / 1024:.0f}"
        text = f"{amount}/{total / 1024:.0f}G" if total else amount
        size = max(9, len(text))
        shown = palette.severity(grave) if grave else palette.text
        share = None if percent is None else percent / 100
        return [
            *bar(share, width - size - 1, style, palette),
            Segment(f" {fit(text, size, right=True)}", shown),
        ]

    def power(gpu: Gpu, width: int) -> Line:
        drawn, limit = gpu.number("power_draw_watts"), gpu.number("power_limit_watts")
        text = MISSING if drawn is None else f"{drawn:.0f}/{limit:.0f}W" if limit else f"{drawn:.0f}W"
        held = "power" in str(gpu.values.get("throttle_reasons", ""))
        style = palette.dim if drawn is None else palette.warning if held else palette.text
        return [Segment(fit(text, width, right=True), style)]

    def cell(name: str, unit: str) -> Callable[[Gpu, int], Line]:
        def draw(gpu: Gpu, width: int) -> Line:
            segment = value(gpu, name, unit)
            return [Segment(fit(segment.text, width, right=True), segment.style)]

        return draw

    def history(gpu: Gpu, width: int) -> Line:
        return sparkline(gpu.history, width, 0.0, 100.0, palette.series[5], palette)

    def note(gpu: Gpu, width: int) -> Line:
        text, grave = marks(gpu)
        return [Segment(fit(text, width), palette.severity(grave) if grave else palette.dim)]

    def traffic(gpu: Gpu, width: int) -> Line:
        received, sent = gpu.number("pcie_rx_mb_s"), gpu.number("pcie_tx_mb_s")
        if received is None or sent is None:
            return [Segment(fit(MISSING, width, right=True), palette.dim)]
        text = f"{short(received)}/{short(sent)}"
        return [Segment(fit(text, width, right=True), palette.text)]

    found: list[Column[Gpu]] = [
        Column("GPU", 3, 1, index, right=True),
        Column("UTIL", 9, 2, utilization, most=26),
        Column("MEMORY", 13, 3, memory, most=34),
        Column("TEMP", 5, 4, cell("temperature_celsius", "°C"), right=True),
        Column("POWER", 9, 5, power, right=True),
        Column("CLOCK", 7, 7, cell("graphics_clock_mhz", "MHz"), right=True),
        Column("FAN", 4, 8, cell("fan_speed_percent", "%"), right=True),
        Column("HISTORY", 10, 9, history, most=72),
        Column("PROCS", 5, 10, cell("process_count", ""), right=True),
        Column("MEM CLK", 8, 12, cell("memory_clock_mhz", "MHz"), right=True),
        Column("PCIe MB/s", 11, 13, traffic, right=True),
    ]
    if any(marks(gpu)[0] for gpu in gpus):
        found.append(Column("NOTE", 9, 6, note, most=34))
    if len(_names(gpus)) > 1:
        found.insert(
            1,
            Column("NAME", 12, 11, lambda gpu, width: [Segment(fit(gpu.name, width), palette.dim)], most=26),
        )
    absent = {
        "FAN": "fan_speed_percent",
        "PROCS": "process_count",
        "PCIe MB/s": "pcie_rx_mb_s",
        "MEM CLK": "memory_clock_mhz",
        "CLOCK": "graphics_clock_mhz",
    }
    return [
        column
        for column in found
        if column.title not in absent or any(absent[column.title] in gpu.values for gpu in gpus)
    ]


def draw_gpus(
    gpus: tuple[Gpu, ...], width: int, height: int, palette: Palette, selected: int | None, heading: bool
) -> tuple[list[Line], list[Hit]]:
    """The block in at most `height` lines, with the places that answer to the mouse."""
    lines: list[Line] = []
    is_compact = height - heading < len(gpus) + 1 and width >= 2 * COMPACT_WIDTH
    if heading:
        simulated = any(gpu.simulated for gpu in gpus)
        title = describe(gpus)
        right = totals(gpus)
        if is_compact:
            right = f"use, memory, °C   {right}".rstrip()
        line = rule(f"{title}  SIMULATED" if simulated else title, width, palette, right)
        if simulated and len(line) > 2:
            line[1:2] = [Segment(f"{title}  ", palette.dim), Segment("SIMULATED", palette.warning)]
        lines.append(line)
    room = height - len(lines)
    draw = _draw_compact if is_compact else _draw_table
    table, hits = draw(gpus, width, room, palette, selected, len(lines))
    return lines + table, hits


def _draw_table(
    gpus: tuple[Gpu, ...], width: int, height: int, palette: Palette, selected: int | None, top: int
) -> tuple[list[Line], list[Hit]]:
    placed = lay_out(columns(gpus, palette), width - 2)
    with_titles = height > min(len(gpus), 2)
    lines: list[Line] = [[Segment(" "), *draw_heading(placed, palette)]] if with_titles else []
    space = max(height - len(lines), 0)
    first = first_shown(len(gpus), space, selected or 0)
    hits = []
    for place in range(first, min(first + space, len(gpus))):
        gpu = gpus[place]
        hits.append(Hit(top + len(lines), top + len(lines) + 1, 0, width, "row", place))
        line = [Segment(" "), *draw_row(placed, gpu, palette)]
        if gpu.problem:
            # Nothing is known of it now: one sentence across the row says more than a row of dashes.
            text, grave = marks(gpu)
            name = gpu.name or gpu.uuid
            line = [
                *line[:2],
                Segment("  "),
                Segment(
                    fit(f"{name}: {text}" if name else text, width - 8),
                    palette.severity(grave) if grave else palette.dim,
                ),
            ]
        if place == selected:
            line = overlay(crop(line, width, palette.text), palette.selected)
        lines.append(line)
    return lines, hits


def _draw_compact(
    gpus: tuple[Gpu, ...], width: int, height: int, palette: Palette, selected: int | None, top: int
) -> tuple[list[Line], list[Hit]]:
    """Several GPUs per line: index, bar, utilisation, memory, temperature."""
    across = max(width // COMPACT_WIDTH, 1)
    needed = -(-len(gpus) // across)
    size = width // across
    first = first_shown(needed, height, (selected or 0) // across)
    lines: list[Line] = []
    hits = []
    for row in range(first, min(first + height, needed)):
        line: Line = []
        for column in range(across):
            place = row * across + column
            if place >= len(gpus):
                break
            cell = crop(_compact(gpus[place], size - 2, palette), size, palette.text)
            if place == selected:
                cell = overlay(cell, palette.selected)
            line += cell
            hits.append(Hit(top + len(lines), top + len(lines) + 1, column * size, (column + 1) * size, "row", place))
        lines.append(line)
    return lines, hits


def _compact(gpu: Gpu, width: int, palette: Palette) -> Line:
    index = Segment(" " + fit(gpu.index, 4, right=True) + " ", palette.strong)
    text, grave = marks(gpu)
    if gpu.problem:
        return [index, Segment(fit(text, width - 6), palette.severity(grave) if grave else palette.dim)]
    use, memory = gpu.number("utilization_percent"), gpu.number("memory_percent")
    heat = gpu.number("temperature_celsius")
    style = palette.severity(grave) if grave else palette.accent
    hot = severity("gpu", "temperature_celsius", heat) if heat is not None else None
    full = severity("gpu", "memory_percent", memory) if memory is not None else None
    return [
        index,
        *bar(None if use is None else use / 100, max(width - 20, 3), style, palette),
        Segment(fit(measure(use, "%"), 5, right=True), palette.text),
        Segment(fit(measure(memory, "%"), 5, right=True), palette.severity(full) if full else palette.dim),
        Segment(
            fit(MISSING if heat is None else f"{heat:.0f}°", 4, right=True),
            palette.severity(hot) if hot else palette.dim,
        ),
    ]

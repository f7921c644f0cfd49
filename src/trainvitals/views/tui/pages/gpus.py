"""The GPUs as a table, or as compact cells side by side if there are too many for one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.segment import Segment

from trainvitals.analysis.wording import count_of
from trainvitals.views.data.quantities import NONE, format_measure, format_short
from trainvitals.views.tui.pages import Hit, rule
from trainvitals.views.tui.paint import Line, bar, crop, fit, overlay, sparkline, width_of
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Gpu
from trainvitals.views.tui.table import Column, draw_heading, draw_row, first_shown, lay_out
from trainvitals.views.tui.view import View

COMPACT_WIDTH = 26
LEAST_SCROLLED = 3
"""With so many lines one of them shows how many GPUs are hidden."""
LEAST_NOTE, MOST_NOTE = 9, 16
"""So much room the words about a GPU have before the columns of less importance: shorter ones are not made shorter."""
_BRIEF = (
    ("thermal slowdown", "heat"),
    ("slowdown", "slow"),
    ("power brake", "brake"),
    ("current limit", "current"),
    ("hardware", "hw"),
    ("software", "sw"),
    ("memory", "mem"),
    ("regulator", "vr"),
    ("power cap", "power"),
)
_HARMLESS = ("", "none", "idle", "application clocks")


def describe(gpus: tuple[Gpu, ...]) -> str:
    """`8 x NVIDIA H100 80GB HBM3`, or how many of what."""
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    names = _names(gpus)
    known = [gpu for gpu in whole if gpu.name in names]
    if len(names) == 1:
        parts = [f"{len(known)} x {known[0].name}" if len(known) > 1 else known[0].name]
        parts += [f"{len(whole) - len(known)} not responding"] if len(known) < len(whole) else []
    else:
        parts = [count_of(len(whole), "GPU")]
    slices = len(gpus) - len(whole)
    return ", ".join([*parts, *([count_of(slices, "slice")] if slices else [])])


def _names(gpus: tuple[Gpu, ...]) -> set[str]:
    """The GPU models; a GPU that does not respond may not have reported its own yet."""
    return {gpu.name for gpu in gpus if gpu.name and not gpu.is_slice and not gpu.problem}


def totals(gpus: tuple[Gpu, ...]) -> str:
    """Total power and memory."""
    whole = [gpu for gpu in gpus if not gpu.is_slice]
    power = [value for gpu in whole if (value := gpu.number("power_draw_watts")) is not None]
    return format_measure(sum(power), "W") if len(power) > 1 else ""


def marks(gpu: Gpu) -> tuple[str, str | None]:
    """Notes about the GPU, worst first, and how bad they are."""
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


def brief(text: str, width: int = 0) -> str:
    """The same, abbreviated as far as needed to fit."""
    for word, shorter in _BRIEF:
        if len(text) <= width:
            break
        text = text.replace(word, shorter)
    return text


def columns(gpus: tuple[Gpu, ...], view: View) -> list[Column[Gpu]]:
    """All columns; which are shown depends on the width."""
    palette = view.palette

    def value(gpu: Gpu, name: str, unit: str) -> Segment:
        number = gpu.number(name)
        grave = view.grade("gpu", name, number)
        style = palette.dim if number is None else palette.severity(grave) if grave else palette.text
        return Segment(format_measure(number, unit).replace(" ", ""), style)

    def index(gpu: Gpu, width: int) -> Line:
        text = f"└{gpu.index.partition(':')[2]}" if gpu.is_slice else gpu.index
        return [Segment(fit(text, width, right=True), palette.strong)]

    def utilization(gpu: Gpu, width: int) -> Line:
        number = gpu.number("utilization_percent")
        share = None if number is None else number / 100
        text = fit(format_measure(number, "%") if number is not None else NONE, 4, right=True)
        return [*bar(share, width - 5, palette.accent, palette), Segment(f" {text}", palette.text)]

    def memory(gpu: Gpu, width: int) -> Line:
        used, total = gpu.number("memory_used_mb"), gpu.number("memory_total_mb")
        percent = gpu.number("memory_percent")
        grave = view.grade("gpu", "memory_percent", percent)
        style = palette.severity(grave) if grave else palette.series[4]
        amount = NONE if used is None else f"{used / 1024:.1f}" if used < 102400 else f"{used / 1024:.0f}"
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
        text = NONE if drawn is None else f"{drawn:.0f}/{limit:.0f}W" if limit else f"{drawn:.0f}W"
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
        return [Segment(fit(brief(text, width), width), palette.severity(grave) if grave else palette.dim)]

    def traffic(gpu: Gpu, width: int) -> Line:
        received, sent = gpu.number("pcie_rx_mb_s"), gpu.number("pcie_tx_mb_s")
        if received is None or sent is None:
            return [Segment(fit(NONE, width, right=True), palette.dim)]
        text = f"{format_short(received)}/{format_short(sent)}"
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
    notes = [len(brief(text, LEAST_NOTE)) for gpu in gpus if (text := marks(gpu)[0]) and not gpu.problem]
    if notes:
        found.append(Column("NOTE", min(max(notes), MOST_NOTE), 6, note, most=34))
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


class Block(NamedTuple):
    """The GPUs as drawn."""

    lines: list[Line]
    hits: list[Hit]
    shown: int
    """How many of them are visible."""
    across: int
    """How many are side by side."""


class _Cell(NamedTuple):
    """A compact layout of a GPU; the bar takes the rest of the width."""

    least: int
    numbers: str
    """What the numbers are."""
    details: bool
    """With memory and temperature."""
    bar: bool


def _cells(gpus: Sequence[Gpu]) -> tuple[_Cell, ...]:
    """The compact layouts, the most detailed first."""
    index = max((len(gpu.index) for gpu in gpus), default=1)
    return (
        _Cell(max(COMPACT_WIDTH, index + 22), "util, memory, °C", details=True, bar=True),
        _Cell(index + 11, "use", details=False, bar=True),
        _Cell(index + 6, "use", details=False, bar=False),
    )


def _rows_of(count: int, width: int, cell: _Cell) -> int:
    return -(-count // max(width // cell.least, 1))


def needed_lines(gpus: Sequence[Gpu], width: int) -> list[int]:
    """Lines that all GPUs need in each compact layout, without the heading."""
    return [_rows_of(len(gpus), width, cell) for cell in _cells(gpus)]


def draw_gpus(
    gpus: tuple[Gpu, ...], width: int, height: int, view: View, selected: int | None, driver: str | None
) -> Block:
    """The block in at most `height` lines: a line each, or side by side in the most detailed layout that fits.

    GPUs that still do not fit are counted, and scroll into view with the selected one. `driver` is for the heading;
    None is no heading.
    """
    top = 0 if driver is None else 1
    room = max(height - top, 0)
    cell = None
    if room < len(gpus) + 1:
        cell = next((cell for cell in _cells(gpus) if _rows_of(len(gpus), width, cell) <= room), _cells(gpus)[-1])
        if width // cell.least < 2:
            cell = None
    lines = [] if driver is None else [_heading(gpus, driver, width, view.palette, cell)]
    if cell is None:
        block = _draw_table(gpus, width, room, view, selected, top)
    else:
        block = _draw_cells(gpus, width, room, view, selected, top, cell)
    return block._replace(lines=lines + block.lines)


def _heading(gpus: tuple[Gpu, ...], driver: str, width: int, palette: Palette, cell: _Cell | None) -> Line:
    simulated = any(gpu.simulated for gpu in gpus)
    title, right = describe(gpus), totals(gpus)
    if cell is not None:
        right = f"{cell.numbers}   {right}".rstrip()
    if driver and len(title) + len(driver) + len(right) + 10 <= width:
        title = f"{title}  {driver}"
    line = rule(f"{title}  SIMULATED" if simulated else title, width, palette, right)
    if simulated and len(line) > 2:
        line[1:2] = [Segment(f"{title}  ", palette.dim), Segment("SIMULATED", palette.warning)]
    return line


def _more(above: int, below: int, palette: Palette) -> Line:
    return [Segment(f" {above + below} more: ↑ {above}  ↓ {below}", palette.dim)]


def _draw_table(gpus: tuple[Gpu, ...], width: int, height: int, view: View, selected: int | None, top: int) -> Block:
    palette = view.palette
    placed = lay_out(columns(gpus, view), width - 2)
    with_titles = height > min(len(gpus), 2)
    lines: list[Line] = [[Segment(" "), *draw_heading(placed, palette)]] if with_titles else []
    space = max(height - len(lines), 0)
    is_cut = space < len(gpus) and space >= LEAST_SCROLLED
    space -= is_cut
    first = first_shown(len(gpus), space, selected or 0)
    last = min(first + space, len(gpus))
    hits = []
    for place in range(first, last):
        gpu = gpus[place]
        hits.append(Hit(top + len(lines), top + len(lines) + 1, 0, width, "row", place))
        line = [Segment(" "), *draw_row(placed, gpu, palette)]
        if gpu.problem:
            # No current values: one sentence across the row is more useful than a row of dashes.
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
    if is_cut:
        lines.append(_more(first, len(gpus) - last, palette))
    return Block(lines, hits, last - first, 1)


def _draw_cells(
    gpus: tuple[Gpu, ...], width: int, height: int, view: View, selected: int | None, top: int, cell: _Cell
) -> Block:
    """Several GPUs per line."""
    palette = view.palette
    across = width // cell.least
    needed = _rows_of(len(gpus), width, cell)
    size = width // across
    is_cut = height < needed and height >= LEAST_SCROLLED
    height -= is_cut
    first = first_shown(needed, height, (selected or 0) // across)
    last = min(first + height, needed)
    lines: list[Line] = []
    hits = []
    index = max(len(gpu.index) for gpu in gpus)
    for row in range(first, last):
        line: Line = []
        for column, gpu in enumerate(gpus[row * across : (row + 1) * across]):
            place = row * across + column
            drawn = crop(_draw_cell(gpu, index, size - 1, cell, view), size, palette.text)
            line += overlay(drawn, palette.selected) if place == selected else drawn
            hits.append(Hit(top + len(lines), top + len(lines) + 1, column * size, (column + 1) * size, "row", place))
        lines.append(line)
    before, after = first * across, max(len(gpus) - last * across, 0)
    if is_cut:
        lines.append(_more(before, after, palette))
    return Block(lines, hits, len(gpus) - before - after, across)


def _draw_cell(gpu: Gpu, index_width: int, width: int, cell: _Cell, view: View) -> Line:
    palette = view.palette
    text, grave = marks(gpu)
    # The list says beside the bar what is wrong; here the GPU's number is colored, and a bar looks the same in both.
    marked = palette.severity(grave) if grave and cell.details else palette.strong
    index = Segment(f" {fit(gpu.index, index_width, right=True)}", marked)
    room = width - index_width - 1
    if gpu.problem:
        style = palette.severity(grave) if grave else palette.dim
        return [index, Segment(fit(f" {text}" if len(text) < room or cell.details else "  ✕", room), style)]
    use, memory = gpu.number("utilization_percent"), gpu.number("memory_percent")
    heat = gpu.number("temperature_celsius")
    hot = view.grade("gpu", "temperature_celsius", heat)
    full = view.grade("gpu", "memory_percent", memory)
    if not cell.details:
        # Problems of values not shown here colour the one that is.
        grave = next((word for word in ("critical", "warning") if word in (grave, hot, full)), grave)
    colour = palette.severity(grave) if grave and not cell.details else palette.text
    if not cell.bar:
        return [index, Segment(f" {fit(format_measure(use, '%'), 4)}", colour)]
    numbers = [Segment(fit(format_measure(use, "%"), 5, right=True), colour)]
    if cell.details:
        degrees = NONE if heat is None else f"{heat:.0f}°"
        numbers += [
            Segment(fit(format_measure(memory, "%"), 5, right=True), palette.severity(full) if full else palette.dim),
            Segment(fit(degrees, 4, right=True), palette.severity(hot) if hot else palette.dim),
        ]
    size = max(room - 1 - width_of(numbers), 1)
    return [index, Segment(" "), *bar(None if use is None else use / 100, size, palette.accent, palette), *numbers]

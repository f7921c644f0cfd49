"""Charts as SVG, without a browser: axes with units, legend, bands, NaN marks, two themes."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis import smoothing
from trainvitals.analysis.gaps import find_gaps
from trainvitals.views.report import ticks

Floats = NDArray[np.float64]
FONT = "Source Sans Pro, DejaVu Sans, Liberation Sans, Noto Sans, Helvetica, Arial, sans-serif"
LETTER = 0.54
"""Mean width of a letter, in font sizes: there is no way to measure text here."""


class Theme(NamedTuple):
    """Colours. The lines stay apart for colour-blind eyes (after Okabe and Ito), as on the page."""

    page: str
    panel: str
    grid: str
    text: str
    dim: str
    critical: str
    warning: str
    lines: tuple[str, ...]


THEMES = {
    "light": Theme(
        *("#ffffff", "#ffffff", "#e4e9ee", "#17212a", "#55636f", "#b3261e", "#8f5500"),
        ("#0072b2", "#c46a00", "#00805c", "#8a7a00", "#b0508a", "#c43c1a", "#4a57c9", "#555555"),
    ),
    "dark": Theme(
        *("#0e1318", "#161d24", "#2a3540", "#e6ecf1", "#9aa8b4", "#ff7d6b", "#f0ab33"),
        ("#56b4e9", "#e69f00", "#2fc59b", "#f0e442", "#e07bb5", "#f2764a", "#9fb4ff", "#c9c9c9"),
    ),
}
MANY_LINES = 4
"""Beyond, lines are thin: they lie over each other."""
ATTEMPT_WIDTH = 64.0
"""Of the words that name an attempt."""
_DASHES = ("", "7 4", "2 3", "10 4 2 4")


@dataclass(frozen=True, slots=True)
class SvgLine:
    """One line; with `low` and `high`, the middle of a band."""

    title: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None
    broken: Floats | None = None
    """x of a band where some of its series are NaN or infinite; of a plain line they are in `y`."""


@dataclass(frozen=True, slots=True)
class SvgChart:
    """What is drawn. `unit` is the catalog's; `axis` is `step` or `time` (seconds since the start)."""

    title: str
    lines: Sequence[SvgLine]
    unit: str = ""
    axis: str = "step"
    stacked: bool = False
    low: float | None = None
    high: float | None = None
    log: bool = False
    smooth: bool = False
    note: str = ""
    """Said beside the title: `simulated`."""
    limit: float | None = None
    """A ceiling, drawn as a dashed line."""
    attempts: Mapping[int, float] = field(default_factory=dict)
    """Where on the axis later attempts of the run began, by their numbers."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where values are on the paper."""

    left: float
    top: float
    width: float
    height: float
    x_low: float
    x_high: float
    y_low: float
    y_high: float
    log: bool = False
    bottom: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bottom", self.top + self.height)

    def x(self, values: Floats) -> Floats:
        return self.left + (values - self.x_low) / (self.x_high - self.x_low) * self.width

    def y(self, values: Floats) -> Floats:
        low, high = self.y_low, self.y_high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.log10(values)
            low, high = math.log10(low), math.log10(high)
        # Halves, for the whole of the largest numbers there are is infinite.
        return self.bottom - (values / 2 - low / 2) / (high / 2 - low / 2) * self.height


def escape(text: str) -> str:
    """Text for SVG: names are anybody's, and XML knows no control characters."""
    shown = "".join(c if c.isprintable() or c == " " else "\N{REPLACEMENT CHARACTER}" for c in text)
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def shorten(text: str, width: float, size: float) -> str:
    """Cut to what fits into `width`."""
    most = max(int(width / (size * LETTER)), 1)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def draw_text(
    text: str,
    x: float,
    y: float,
    size: float,
    colour: str,
    *,
    anchor: str = "start",
    bold: bool = False,
    rest: str = "",
) -> str:
    """One line of text; `rest` are elements that follow it directly."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-family="{FONT}" font-size="{size:g}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{escape(text)}{rest}</text>'
    )


class SvgNote(NamedTuple):
    """A line above the charts."""

    text: str
    severity: str = ""
    """`critical` or `warning`: its colour."""


NOTE_ROW = 22


def draw_svg(charts: Sequence[SvgChart], *, title: str = "", subtitle: str = "", notes: Sequence[SvgNote] = (),
             theme: str = "light", width: int = 1200, chart_height: int = 320, columns: int = 2) -> str:  # fmt: skip
    """All charts on one sheet, `columns` beside each other, below a title and notes."""
    colours = THEMES[theme]
    columns = max(min(columns, len(charts)), 1)
    gap, top = 16, (62 if title else 0)
    head = top + len(notes) * NOTE_ROW + (8 if notes else 0)
    each = (width - gap * (columns + 1)) / columns
    rows = -(-len(charts) // columns)
    height = head + gap + max(rows, 1) * (chart_height + gap)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img"><title>{escape(title or (charts[0].title if charts else "trainvitals"))}</title>',
        f'<rect width="{width}" height="{height}" fill="{colours.page}"/>',
    ]
    if title:
        parts.append(draw_text(shorten(title, width - 2 * gap, 22), gap, 34, 22, colours.text, bold=True))
        parts.append(draw_text(shorten(subtitle, width - 2 * gap, 14), gap, 56, 14, colours.dim))
    tones = {"critical": colours.critical, "warning": colours.warning}
    for place, note in enumerate(notes):
        tone = tones.get(note.severity, colours.text)
        y = top + (place + 1) * NOTE_ROW
        parts.append(draw_text(shorten(note.text, width - 2 * gap, 15), gap, y, 15, tone))
    if not charts:
        parts.append(draw_text("no data", width / 2, head + chart_height / 2, 16, colours.dim, anchor="middle"))
    for place, chart in enumerate(charts):
        x = gap + (place % columns) * (each + gap)
        y = head + gap + (place // columns) * (chart_height + gap)
        parts.append(f'<g transform="translate({x:.1f} {y:.1f})">{draw_chart(chart, each, chart_height, colours)}</g>')
    return "".join([*parts, "</svg>"])


def draw_chart(chart: SvgChart, width: float, height: float, colours: Theme) -> str:
    """One chart as SVG elements."""
    lines = _stack(chart.lines) if chart.stacked else list(chart.lines)
    legend = _legend_rows(lines, width) if _has_legend(lines) else []
    place = _place(chart, lines, width, height, legend=len(legend))
    border = "none" if colours.panel == colours.page else colours.grid
    parts = [f'<rect width="{width:.1f}" height="{height}" rx="6" fill="{colours.panel}" stroke="{border}"/>']
    parts.append(_draw_head(chart, width, colours))
    if chart.note:
        parts.append(draw_text(chart.note, width - 14, 24, 13, colours.warning, anchor="end"))
    finite = [line for line in lines if np.isfinite(line.y).any()]
    if not any(len(line.x) for line in lines):
        parts.append(draw_text("no values", width / 2, height / 2, 14, colours.dim, anchor="middle"))
        return "".join(parts)
    parts.append(_draw_axes(chart, place, colours))
    curves = "".join(_draw_line(chart, lines, at, line, place, colours) for at, line in enumerate(lines))
    tall = place.height + 4
    box = f'<rect x="{place.left:.1f}" y="{place.top - 2:.1f}" width="{place.width:.1f}" height="{tall:.1f}"/>'
    # VS Code puts the pictures of a notebook into one page, where a name means the first that has it.
    clip = f"plot{zlib.crc32((box + curves).encode()):08x}"
    parts.append(f'<clipPath id="{clip}">{box}</clipPath><g clip-path="url(#{clip})">{curves}')
    if chart.limit is not None and place.y_low < chart.limit <= place.y_high:
        y = float(place.y(np.array([chart.limit]))[0])
        parts.append(
            f'<path d="M{place.left:.1f} {y:.1f}h{place.width:.1f}" stroke="{colours.dim}" stroke-dasharray="5 4"/>'
        )
        parts.append(draw_text("limit", place.left + place.width - 4, y - 4, 11, colours.dim, anchor="end"))
    parts.append("</g>")
    parts.append(_draw_attempts(chart, place, colours))
    parts.append(_draw_broken(lines, place, colours))
    if not finite:
        parts.append(draw_text("no finite values", width / 2, height / 2, 14, colours.critical, anchor="middle"))
    parts.append(_draw_legend(legend, lines, colours, height))
    return "".join(parts)


def _draw_attempts(chart: SvgChart, place: _Place, colours: Theme) -> str:
    parts = []
    free = place.left
    for attempt, began in sorted(chart.attempts.items()):
        x = float(place.x(np.array([began]))[0])
        if not place.left < x < place.left + place.width:
            continue
        line = f'<path d="M{x:.1f} {place.top:.1f}v{place.height:.1f}" stroke="{colours.dim}" stroke-dasharray="2 3"/>'
        parts.append(line)
        if free <= x <= place.left + place.width - ATTEMPT_WIDTH:  # of many, those are named that have room
            parts.append(draw_text(f"attempt {attempt}", x - 3, place.top - 4, 11, colours.dim))
            free = x + ATTEMPT_WIDTH
    return "".join(parts)


def _has_legend(lines: Sequence[SvgLine]) -> bool:
    """A single line is named by the title; a band by its members."""
    return len(lines) > 1 or any(line.low is not None for line in lines)


SHORT_UNIT = 4
"""Letters of a unit that are written at every mark; a longer one is written once, beside the title."""


def _draw_head(chart: SvgChart, width: float, colours: Theme) -> str:
    """The title, and after it a unit that is too long for the marks."""
    unit = chart.unit if len(chart.unit) > SHORT_UNIT else ""
    room = width - 40 - (len(unit) + len(chart.note)) * 13 * LETTER
    # A part of the same text follows the title wherever that ends: there is no way to measure it here.
    after = f'<tspan dx="8" font-size="12" font-weight="400" fill="{colours.dim}">{escape(unit)}</tspan>'
    title = shorten(chart.title, max(room, 80.0), 15)
    return draw_text(title, 14, 24, 15, colours.text, bold=True, rest=after if unit else "")


def _mark_unit(chart: SvgChart) -> str:
    return chart.unit if len(chart.unit) <= SHORT_UNIT else ""


def _place(chart: SvgChart, lines: Sequence[SvgLine], width: float, height: float, legend: int) -> _Place:
    xs = np.concatenate([line.x for line in lines]) if lines else np.empty(0)
    everything = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    ys = np.concatenate(everything) if everything else np.empty(0)
    ys = ys[np.isfinite(ys)]
    log = chart.log and len(ys) > 0 and bool((ys > 0).all())
    x_low, x_high = (float(xs.min()), float(xs.max())) if len(xs) else (0.0, 1.0)
    if x_high <= x_low:
        x_low, x_high = x_low - 0.5, x_high + 0.5
    y_low, y_high = ticks.find_range(ys, chart.low, chart.high, log)
    labels = [ticks.format_value(v, _mark_unit(chart)) for v in ticks.find_ticks(y_low, y_high, log, chart.unit)]
    left = 20 + max([len(text) for text in labels] or [3]) * 12 * LETTER
    top = 40
    below = 46 + legend * LEGEND_ROW + (4 if legend else 0)
    return _Place(left, top, width - left - 24, height - top - below, x_low, x_high, y_low, y_high, log)


def _draw_axes(chart: SvgChart, place: _Place, colours: Theme) -> str:
    parts = []
    for value in ticks.find_ticks(place.y_low, place.y_high, place.log, chart.unit):
        y = float(place.y(np.array([value]))[0])
        parts.append(
            f'<path d="M{place.left:.1f} {y:.1f}h{place.width:.1f}" stroke="{colours.grid}" stroke-width="1"/>'
        )
        text = ticks.format_value(value, _mark_unit(chart))
        parts.append(draw_text(text, place.left - 6, y + 4, 12, colours.dim, anchor="end"))
    find = ticks.find_span_ticks if chart.axis == "time" else ticks.find_ticks
    for value in find(place.x_low, place.x_high, count=max(int(place.width / 90), 2)):
        x = float(place.x(np.array([value]))[0])
        parts.append(f'<path d="M{x:.1f} {place.top}v{place.height:.1f}" stroke="{colours.grid}" stroke-width="1"/>')
        text = ticks.format_span(value) if chart.axis == "time" else ticks.format_value(value, "")
        parts.append(draw_text(text, x, place.bottom + 17, 12, colours.dim, anchor="middle"))
    axis = "time since start" if chart.axis == "time" else chart.axis
    parts.append(draw_text(axis, place.left + place.width / 2, place.bottom + 34, 12, colours.dim, anchor="middle"))
    return "".join(parts)


_ROUND = ' stroke-linejoin="round" stroke-linecap="round"'


def _style(at: int, colours: Theme) -> tuple[str, str]:
    dash = _DASHES[at // len(colours.lines) % len(_DASHES)]
    return colours.lines[at % len(colours.lines)], f' stroke-dasharray="{dash}"' if dash else ""


def _draw_line(chart: SvgChart, lines: Sequence[SvgLine], at: int, line: SvgLine, place: _Place, colours: Theme) -> str:
    colour, dash = _style(at, colours)
    parts = []
    if chart.stacked:
        below = lines[at - 1].y if at and len(lines[at - 1].y) == len(line.y) else np.zeros(len(line.y))
        parts.append(f'<path d="{_area(place, line.x, below, line.y)}" fill="{colour}" fill-opacity="0.75"/>')
    elif line.low is not None and line.high is not None:
        parts.append(f'<path d="{_area(place, line.x, line.low, line.high)}" fill="{colour}" fill-opacity="0.22"/>')
    if chart.stacked:
        return "".join(parts)
    single = int(np.isfinite(line.y).sum()) <= 1
    if single:
        for x, y in zip(place.x(line.x), place.y(line.y), strict=True):
            if math.isfinite(y):
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        return "".join(parts)
    # The mean of a band lies within it, and a mean of many is smooth by itself.
    smooth = chart.smooth and line.low is None and len(line.y) > 60
    width = 1 if smooth or len(lines) > MANY_LINES else 1.5
    gaps = find_gaps(line.x) if chart.axis == "time" else ()
    path = _path(place.x(line.x), place.y(line.y), gaps)
    parts.append(
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="{width}"{_ROUND}'
        f"{' stroke-opacity=' + chr(34) + '0.35' + chr(34) if smooth else ''}{dash}/>"
    )
    if smooth:
        path = _path(place.x(line.x), place.y(smoothing.smooth(line.x, line.y)), gaps)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{_ROUND}{dash}/>')
    return "".join(parts)


def _path(xs: Floats, ys: Floats, gaps: Iterable[int] = ()) -> str:
    """Points joined by lines; a gap where one is not finite, and after these places."""
    words, joined, ends = [], False, frozenset(gaps)
    places = list(zip(np.round(xs, 1).tolist(), np.round(ys, 1).tolist(), strict=True))
    for at, (x, y) in enumerate(places):
        if not math.isfinite(y):
            joined = False
            continue
        words.append(f"{'L' if joined else 'M'}{x:g} {y:g}")
        goes_on = at not in ends and at + 1 < len(places) and math.isfinite(places[at + 1][1])
        if not joined and not goes_on:
            words.append("h0")  # with round ends a dot: what no line reaches would not be seen
        joined = at not in ends
    return "".join(words)


def _area(place: _Place, x: Floats, low: Floats, high: Floats) -> str:
    keep = np.isfinite(low) & np.isfinite(high)
    xs, tops, bottoms = place.x(x), place.y(high), place.y(low)
    if place.log:
        bottoms = np.where(np.isfinite(bottoms), bottoms, place.bottom)
    words = []
    for piece in np.split(np.arange(len(x)), np.flatnonzero(~keep)):
        inside = piece[keep[piece]]
        if len(inside) > 1:
            there, back = inside, inside[::-1]
            words.append(_path(np.concatenate([xs[there], xs[back]]), np.concatenate([tops[there], bottoms[back]])))
    return "".join(f"{word}Z" for word in words)


def _stack(lines: Sequence[SvgLine]) -> list[SvgLine]:
    """Each line on top of those before it; they are brought to the same x first."""
    if not lines:
        return []
    x = max((line.x for line in lines), key=len)
    total = np.zeros(len(x))
    made = []
    for line in lines:
        keep = np.isfinite(line.y)
        total = total + (np.interp(x, line.x[keep], line.y[keep]) if keep.any() else 0.0)
        made.append(SvgLine(line.title, x, total))
    return made


def _draw_broken(lines: Sequence[SvgLine], place: _Place, colours: Theme) -> str:
    """Red marks at the bottom wherever a value was NaN or infinite."""
    broken = [line.x[~np.isfinite(line.y)] if line.broken is None else line.broken for line in lines]
    xs = np.unique(np.concatenate([np.round(place.x(x), 0) for x in broken] or [np.empty(0)]))
    return "".join(
        f'<rect x="{x - 1:g}" y="{place.bottom - 7:.1f}" width="2" height="7" fill="{colours.critical}"/>' for x in xs
    )


LEGEND_ROW = 18
MOST_ROWS = 3


def _legend_rows(lines: Sequence[SvgLine], width: float) -> list[list[tuple[float, str]]]:
    """Rows of (x, title), in the order of the lines; what three rows do not hold is counted."""
    rows: list[list[tuple[float, str]]] = [[]]
    x = 16.0
    for at, line in enumerate(lines):
        title = shorten(line.title, width * 0.6, 12)
        size = 28 + len(title) * 12 * LETTER
        left = len(lines) - at
        if x + size > width - (90 if left > 1 and len(rows) == MOST_ROWS else 10) and rows[-1]:
            if len(rows) == MOST_ROWS:
                rows[-1].append((x, f"and {left} more"))
                break
            rows.append([])
            x = 16.0
        rows[-1].append((x, title))
        x += size + 8
    return rows


def _draw_legend(
    rows: Sequence[Sequence[tuple[float, str]]], lines: Sequence[SvgLine], colours: Theme, height: float
) -> str:
    parts, at = [], 0
    for number, row in enumerate(rows):
        y = height - 10 - (len(rows) - 1 - number) * LEGEND_ROW
        for x, title in row:
            is_line = not (at == sum(map(len, rows)) - 1 < len(lines) - 1)  # the last may be "and 3 more"
            if is_line:
                colour, dash = _style(at, colours)
                parts.append(f'<path d="M{x:.1f} {y - 4}h14" stroke="{colour}" stroke-width="3"{dash}/>')
            parts.append(draw_text(title, x + (19 if is_line else 0), y, 12, colours.dim))
            at += 1
    return "".join(parts)

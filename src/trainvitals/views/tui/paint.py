"""Graphics in one line of text: fitted words, bars, sparklines, heat rows.

Everything here returns segments; a line is a list of them. Widths are terminal cells, so wide characters count two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from trainvitals.safe_text import one_line
from trainvitals.views.tui.palette import Palette

Line = list[Segment]

_BLOCKS = "▁▂▃▄▅▆▇█"


def fit(text: str, width: int, *, right: bool = False) -> str:
    """`text` in exactly `width` cells: padded, or cut with an ellipsis."""
    if width <= 0:
        return ""
    # A name may have a million characters; those beyond the width cannot be seen.
    text = one_line(text[: width * 2 + 2])
    size = len(text) if text.isascii() else cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + "…" if width > 1 else "…"
    space = " " * (width - size)
    return space + text if right else text + space


def is_safe(line: Line) -> bool:
    """Whether the line has no control characters."""
    return "".join([text for text, _, _ in line]).isprintable()


def make_safe(line: Line) -> Line:
    """The line with every control character replaced."""
    return [Segment(one_line(segment.text), segment.style) for segment in line]


def width_of(line: Iterable[Segment]) -> int:
    """Cells of the whole line."""
    return sum(len(s.text) if s.text.isascii() else cell_len(s.text) for s in line)


def crop(line: Line, width: int, style: Style) -> Line:
    """The line in exactly `width` cells, cut or padded."""
    room, kept = width, []
    for segment in line:
        size = len(segment.text) if segment.text.isascii() else cell_len(segment.text)
        if size >= room:
            kept.append(segment if size == room else Segment(set_cell_size(segment.text, room), segment.style))
            return kept
        kept.append(segment)
        room -= size
    if room > 0:
        kept.append(Segment(" " * room, style))
    return kept


def drop(line: Line, width: int) -> Line:
    """What is left of the line after its first `width` cells."""
    kept: Line = []
    for segment in line:
        size = len(segment.text) if segment.text.isascii() else cell_len(segment.text)
        if width >= size:
            width -= size
            continue
        text = segment.text
        if width > 0:
            head = set_cell_size(text, width)
            text = text[len(head.rstrip()) if cell_len(head) != len(head) else width :]
            width = 0
        kept.append(Segment(text, segment.style))
    return kept


def overlay(line: Line, style: Style) -> Line:
    """The line with `style` laid over every part: a selected row."""
    return [Segment(s.text, (s.style + style) if s.style else style) for s in line]


def bar(share: float | None, width: int, style: Style, palette: Palette) -> Line:
    """A thin bar, `share` of it filled (0 to 1, kept inside); an empty track for None or NaN."""
    if width <= 0:
        return []
    if share is None or math.isnan(share):
        return [Segment("─" * width, palette.faint)]
    halves = round(min(max(share, 0.0), 1.0) * width * 2)
    if share > 0 and halves == 0:
        halves = 1  # a little is not nothing
    full, half = divmod(halves, 2)
    line = [Segment("━" * full + ("╸" if half else ""), style)] if halves else []
    if full + half < width:
        line.append(Segment("─" * (width - full - half), palette.faint))
    return line


_DOTS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Bits of a Braille cell: left and right column, each from the bottom up."""


_NO_LEVEL = -1


def _pair(left: int, right: int) -> str:
    """The character for two neighbouring levels; a steep part is one line, not two dots."""
    code = _DOTS[0][left] | _DOTS[1][right]
    for level in range(min(left, right) + 1, max(left, right)):
        code |= _DOTS[1][level]
    return chr(0x2800 + code)


_PAIRS = {(left, right): _pair(left, right) for left in range(4) for right in range(4)}


def sparkline(values: Sequence[float], width: int, low: float, high: float, style: Style, palette: Palette) -> Line:
    """The newest values as a fine curve, two to a cell; `✕` marks NaN and infinity."""
    shown = list(values[-2 * width :]) if width > 0 else []
    if len(shown) % 2:
        shown = shown[1:] if len(shown) > 1 else [shown[0], shown[0]]
    blank = width - len(shown) // 2
    line: Line = [Segment(" " * blank, palette.faint)] if blank > 0 else []
    scale = 4 / (high - low) if high > low else 0.0
    levels = [_NO_LEVEL if v - v != 0 else 0 if v <= low else min(int((v - low) * scale), 3) for v in shown]
    text = "".join([_PAIRS.get(pair, "✕") for pair in zip(levels[::2], levels[1::2], strict=True)])
    if text:
        line.append(Segment(text, style))
    return line


def stacked(parts: Sequence[tuple[float, Style]], width: int) -> Line:
    """One bar of coloured parts, each as long as its share; parts too small for a cell are omitted."""
    total = sum(value for value, _ in parts)
    if total <= 0 or width <= 0:
        return []
    line: Line = []
    # Without colour the parts differ in how dense they are.
    plain = len({style for _, style in parts}) < len(parts) - 1
    before, reached = 0, 0.0
    for index, (value, style) in enumerate(parts):
        reached += value
        end = width if index == len(parts) - 1 else round(reached / total * width)
        if end > before:
            line.append(Segment(("█▒▓░"[index % 4] if plain else "▄") * (end - before), style))
            before = end
    return line


def heat(ratios: Sequence[float | None], palette: Palette) -> Line:
    """A cell per ratio: 1 is as usual, 2 is twice as long. Height and colour both show it; a dot is a missing value."""
    line: Line = []
    steps = len(palette.heat)
    for ratio in ratios:
        if ratio is None or math.isnan(ratio):
            line.append(Segment("·", palette.faint))
            continue
        place = (min(ratio, 2.0) - 0.6) / 1.4
        level = min(max(int(place * 8), 0), 7)
        line.append(Segment(_BLOCKS[level], palette.heat[min(max(int(place * steps), 0), steps - 1)]))
    return line


_BRAILLE = {code: " .':|*#"[min(bin(code & 0xFF).count("1"), 6)] for code in range(0x2800, 0x2900)}
# Each drawn character and the plain one for it.
_PLAIN = "━= ╸- ─- │| ┄- └+ ▓% ▒: ░. ▄= █# ·. ✕x ✗x ●* ○o ▲^ ▼v ▸> …~ °' ▏| ∞8 µu ┤| ┌+ ┐+ ┘+ ↓v ↑^ ←< →>"
_ASCII = str.maketrans(
    {
        **{chr(code): character for code, character in _BRAILLE.items()},
        **dict(zip(_BLOCKS, "_.-=+*%#", strict=True)),
        **{pair[0]: pair[1] for pair in _PLAIN.split()},
    }
)


def as_ascii(line: Line) -> Line:
    """The line for a terminal that is not UTF-8: a plain character for each drawn one, `?` for the rest."""
    return [
        s if s.text.isascii() else Segment(s.text.translate(_ASCII).encode("ascii", "replace").decode(), s.style)
        for s in line
    ]

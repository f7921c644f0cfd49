"""The only widget of the dashboard: lines of text, of which only the changed ones are redrawn.
Tested in tests/views/tui/test_app.py."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from trainvitals.views.tui.paint import Line


class Board(Widget):
    """Lines of text. `show` marks the lines that differ from what is on the terminal already."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []
        self._lines: list[Line] = []

    def show(self, lines: list[Line], blank: Style) -> None:
        width = self.size.width
        before, self._lines = self._lines, lines
        changed = []
        for y, line in enumerate(lines):
            if y < len(before) and line == before[y]:
                continue
            strip = Strip(_joined(line, blank), width)
            if y < len(self._strips):
                self._strips[y] = strip
            else:
                self._strips.append(strip)
            changed.append(y)
        del self._strips[len(lines) :]
        if changed:
            self.refresh(*_regions(changed, width))

    def forget(self) -> None:
        """Redraw everything, for another size or theme."""
        self._strips, self._lines = [], []

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def text(self) -> str:
        """What is on the screen, without colours."""
        return "\n".join(strip.text.rstrip() for strip in self._strips)


def _joined(line: Line, blank: Style) -> Line:
    """The line with adjacent segments of one style merged: fewer bytes for the terminal."""
    joined: Line = []
    text: str = ""
    style: Style | None = None
    for piece, own, _ in line:
        own = blank if own is None else own
        if own is style:
            text += piece
            continue
        if text:
            joined.append(Segment(text, style))
        text, style = piece, own
    if text:
        joined.append(Segment(text, style))
    return joined


def _regions(lines: list[int], width: int) -> list[Region]:
    """Neighbouring lines as one region."""
    regions: list[Region] = []
    start = before = lines[0]
    for line in [*lines[1:], -1]:
        if line == before + 1:
            before = line
            continue
        regions.append(Region(0, start, width, before - start + 1))
        start = before = line
    return regions

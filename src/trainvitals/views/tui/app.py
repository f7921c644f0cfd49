"""The live program: Textual hosts one widget that shows the lines of the screen and redraws only those that changed."""

from __future__ import annotations

import gc
import os
import signal
import sys
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from rich.segment import Segment
from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from trainvitals.errors import TrainvitalsError
from trainvitals.views.tui import palette as palettes
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.keys import KEYS
from trainvitals.views.tui.pages import Hit
from trainvitals.views.tui.snapshot import EMPTY, Snapshot
from trainvitals.views.tui.view import PAGES, PROCESS_SORTS, SIGNALS, View

if TYPE_CHECKING:
    from trainvitals.views.tui.around import Program

INTERVALS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
ZOOM = 0.6
PATIENCE_SECONDS = 0.9
"""Curves are drawn anew at most about once a second; their newest values are always shown."""
KEY_PATIENCE_SECONDS = 5.0
"""A key is answered with the curves at hand; the next snapshot brings the new ones."""
SWITCH_SECONDS = 0.001
FIRST_LOOK_SECONDS = 0.01
LEAST_SPAN = 1e-3
"""Share of all there is that a zoomed window shows at least."""


class Board(Widget):
    """Lines of text. `show` marks the lines that differ from what is on the terminal already."""

    can_focus = False

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []
        self._lines: list[list[Segment]] = []

    def show(self, lines: list[list[Segment]], blank: Any) -> None:
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
        """Everything is to be drawn anew: another size, another theme."""
        self._strips, self._lines = [], []

    def render_line(self, y: int) -> Strip:
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def text(self) -> str:
        """What is on the screen, without colours."""
        return "\n".join(strip.text.rstrip() for strip in self._strips)


def _joined(line: list[Segment], blank: Any) -> list[Segment]:
    """The line with neighbours of one style as one piece: fewer bytes for the terminal."""
    joined: list[Segment] = []
    text, style = "", None
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


class Fresh(Message, bubble=False):
    """A new snapshot from the feed, and how it looks in the view and size of that moment (None: could not be drawn)."""

    def __init__(self, snapshot: Snapshot, frame: screen.Frame | None, view: View, drawn_for: tuple[int, Size]) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.frame = frame
        self.view = view
        self.drawn_for = drawn_for


class TopApp(App[int]):
    """`trainvitals top`."""

    TITLE = "trainvitals top"
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None
    BINDINGS: ClassVar[list[Any]] = []
    CSS = "Screen { padding: 0; } Board { width: 100%; height: 100%; }"

    def __init__(
        self,
        feed: Feed,
        *,
        palette: palettes.Palette | None = None,
        ascii: bool = False,
        program: Program | None = None,
    ) -> None:
        no_color = "NO_COLOR" in os.environ
        super().__init__(ansi_color=True)
        self.feed = feed
        self.snapshot: Snapshot = EMPTY
        chosen = palette or palettes.choose(self.console.color_system, no_color or self.no_color)
        self.view = View(
            palette=chosen,
            conditions=feed.options.conditions,
            readonly=feed.options.readonly,
            interval=feed.interval,
            ascii=ascii,
        )
        self.board = Board()
        self._hits: list[Hit] = []
        self._program = program
        self._ending: int | None = None
        """The exit code, once a signal has asked for the end."""
        self._looking = False
        self._typed_on: str | None = None
        """The page from which charts are being chosen, while that is so."""
        self._version = 0
        """Grows with every change of the view."""
        self._actions = {key: item.action for item in KEYS for key in item.keys}

    # -- life

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self._paint_background()
        if self._ending is not None:
            self.exit(self._ending)

    def end_on_signals(self) -> None:
        """A dashboard is not a training: a signal that asks it to end is answered by ending it, in good order."""
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None:
                signal.signal(number, self._end_by_signal)

    def _end_by_signal(self, number: int, frame: object) -> None:
        self._ending = 128 + number
        if self.is_running:
            self.call_later(self.exit, self._ending)

    def on_unmount(self) -> None:
        self.feed.stop()

    def _deliver(self, snapshot: Snapshot) -> None:
        """Called on the feed's thread, which draws too: so the screen's own thread is free for keys."""
        version, size, view = self._version, self.size, copy(self.view)
        view.patience = PATIENCE_SECONDS
        frame = None
        try:
            frame = screen.draw(snapshot, view, size.width, size.height)
        except Exception:  # noqa: BLE001, S110 - drawn again on the screen's own thread, where a fault is seen
            pass
        self.post_message(Fresh(snapshot, frame, view, (version, size)))

    def on_fresh(self, fresh: Fresh) -> None:
        if self.view.paused:
            return
        self.snapshot, frame, view = fresh.snapshot, fresh.frame, fresh.view
        told = self._program.status() if self._program is not None and not self.view.message else ""
        if told:
            self.view.say(told, "info")
        if told or frame is None or fresh.drawn_for != (self._version, self.size):
            self.draw()  # a key came in between: what was drawn is not what is wanted now
            return
        self.view.rows, self.view.visible = view.rows, view.visible
        self.view.chart_columns, self.view.gpu_columns = view.chart_columns, view.gpu_columns
        self._show(frame)

    # -- drawing

    def draw(self) -> None:
        """Draw the screen from what is known, and say to the feed what is wanted next."""
        width, height = self.size.width, self.size.height
        if not self.board.is_mounted or width <= 0 or height <= 0:
            return
        self._version += 1
        self.view.patience = KEY_PATIENCE_SECONDS
        self._show(screen.draw(self.snapshot, self.view, width, height))

    def _show(self, frame: screen.Frame) -> None:
        if not self.board.is_mounted:
            return
        self._hits = frame.hits
        self.board.show(frame.lines, self.view.palette.text)
        # First the answer to a key on the terminal, then the look at the world: both at once would take twice as long.
        self.call_after_refresh(self.feed.want, screen.request(self.snapshot, self.view, *self.size))

    def _paint_background(self) -> None:
        self.board.styles.background = self.view.palette.background
        self.screen.styles.background = self.view.palette.background

    def on_resize(self, event: events.Resize) -> None:
        self.board.forget()
        if self._program is not None:
            self._program.resize(event.size.width - 2, event.size.height // 3)
        self.call_after_refresh(self.draw)
        if not self._looking:
            self._looking = True
            # After the first picture: what is imported to look at the world would hold it up.
            self.set_timer(FIRST_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """What was made until now stays: the collector need not look at it again, which would hold up keys."""
        gc.freeze()
        gc.enable()
        self.feed.start(self._deliver)

    # -- keys

    def on_key(self, event: events.Key) -> None:
        view = self.view
        view.message, view.severity = "", None
        event.stop()
        event.prevent_default()
        if view.asking is not None:
            self._answer(event)
        elif view.typing:
            self._type(event)
        else:
            if event.key.isdigit() and 1 <= int(event.key) <= len(PAGES):
                self._show_page(int(event.key) - 1)
            else:
                action = self._actions.get(event.key) or self._actions.get(event.character or "")
                if action is not None:
                    getattr(self, f"do_{action}")()
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        if self.view.typing:
            self._set_filter(self.view.filter + event.text.strip()[:200])
            self.draw()

    def _type(self, event: events.Key) -> None:
        view = self.view
        if event.key == "escape":
            view.typing = False
            self._set_filter("")
            view.page = self._typed_on or view.page  # nothing was chosen: back to where it began
        elif event.key in ("enter", "tab", "up", "down"):
            view.typing = False
        elif event.key in ("backspace", "ctrl+h"):
            self._set_filter(view.filter[:-1])
        elif event.key == "ctrl+u":
            self._set_filter("")
        elif event.key == "ctrl+c":
            self.do_quit()
        elif event.character is not None and event.is_printable and len(view.filter) < 200:
            self._set_filter(view.filter + event.character)
        if not view.typing:
            self._typed_on = None

    def _set_filter(self, text: str) -> None:
        self.view.filters[self.view.page] = text
        self.view.selected[self.view.page] = 0

    def _answer(self, event: events.Key) -> None:
        from trainvitals.views.tui.processes import send

        process, self.view.asking = self.view.asking, None
        name = dict(SIGNALS).get(event.key)
        if process is None or name is None:
            self.view.say("nothing was sent")
            return
        try:
            self.view.say(send(process, name), "warning")
        except TrainvitalsError as error:
            self.view.say(error.message, "critical")

    def _show_page(self, place: int) -> None:
        self.view.page = PAGES[place % len(PAGES)][0]
        self.view.typing, self._typed_on = False, None
        self.view.details = self.view.help = False
        self.view.help_offset = 0

    def do_quit(self) -> None:
        self.exit(0)

    def do_help(self) -> None:
        self.view.help = not self.view.help
        self.view.help_offset = 0

    def do_next_page(self) -> None:
        self._step_page(1)

    def do_previous_page(self) -> None:
        self._step_page(-1)

    def _step_page(self, by: int) -> None:
        if self.view.page == "charts" and self.view.rows:
            self.view.selected["charts"] = (self.view.row + by) % self.view.rows
            return
        names = [name for name, _ in PAGES]
        self._show_page(names.index(self.view.page) + by)

    @property
    def _row(self) -> int:
        """How many places further the next row is."""
        view = self.view
        return view.gpu_columns if view.page == "overview" and not (view.help or view.details) else 1

    def _vertical(self, by: int) -> None:
        if self.view.help or self.view.details:
            self.view.help_offset = max(self.view.help_offset + by, 0)
        else:
            self.view.move(by)

    def do_up(self) -> None:
        if self._on_charts:
            self._zoom(ZOOM)
        else:
            self._vertical(-self._row)

    def do_down(self) -> None:
        if self._on_charts:
            self._zoom(1 / ZOOM)
        else:
            self._vertical(self._row)

    def do_page_up(self) -> None:
        self._vertical(-max(self.view.visible - 1, 1))

    def do_page_down(self) -> None:
        self._vertical(max(self.view.visible - 1, 1))

    def do_first(self) -> None:
        if self._on_charts:
            self.view.cross = 0.0
        else:
            self._vertical(-1_000_000)

    def do_last(self) -> None:
        if self._on_charts:
            self.view.cross = 1.0
        else:
            self._vertical(1_000_000 if not (self.view.help or self.view.details) else 30)

    def do_left(self) -> None:
        self._horizontal(-1)

    def do_right(self) -> None:
        self._horizontal(1)

    def _horizontal(self, by: int) -> None:
        view = self.view
        if self._on_charts:
            here = view.cross if view.cross is not None else (1.0 if by < 0 else 0.0)
            view.cross = min(max(here + by / max(self.size.width // view.chart_columns - 9, 10), 0.0), 1.0)
        elif view.page == "overview":
            view.move(by)
        else:
            names = [name for name, _ in PAGES]
            self._show_page(names.index(view.page) + by)

    def do_details(self) -> None:
        view = self.view
        view.help_offset = 0
        if view.help:
            view.help = False
        elif view.page == "charts":
            view.full = not view.full
        else:
            view.details = not view.details

    def do_enter(self) -> None:
        from trainvitals.views.tui.pages.lists import shown_runs

        view = self.view
        if view.page != "runs" or view.details:
            self.do_details()
            return
        rows = shown_runs(self.snapshot, view)
        chosen = rows[view.row] if view.row < len(rows) else None
        self.feed.choose(chosen)
        view.windows.clear()
        view.cross = None
        self._show_page(0)
        view.say(f"showing {chosen.info.name}" if chosen is not None else "showing this machine")

    def do_escape(self) -> None:
        view = self.view
        if view.help or view.details:
            view.help = view.details = False
        elif view.cross is not None or view.windows:
            view.cross = None
            view.windows.clear()
        elif view.full:
            view.full = False
        elif view.filter:
            self._set_filter("")
        else:
            view.selected.pop(view.page, None)

    def do_filter(self) -> None:
        if self.view.page == "overview":
            self._show_page(1)
            self._typed_on = "overview"
        self.view.typing = True

    def do_save(self) -> None:
        from trainvitals.views.tui.save import save

        try:
            self.view.say(save(self.snapshot, self.view, self.export_screenshot()))
        except OSError as error:
            self.view.say(f"cannot save: {error.strerror or error}", "critical")

    def do_reset(self) -> None:
        self.feed.reset()
        self.view.windows.clear()
        self.view.cross = None
        self.view.say("history reset: charts start again from now")

    def do_pause(self) -> None:
        self.view.paused = not self.view.paused

    def do_faster(self) -> None:
        self._set_interval([value for value in INTERVALS if value < self.view.interval][-1:])

    def do_slower(self) -> None:
        self._set_interval([value for value in INTERVALS if value > self.view.interval][:1])

    def _set_interval(self, wanted: list[float]) -> None:
        if wanted:
            self.view.interval = wanted[0]
            self.feed.set_interval(wanted[0])
        self.view.say(f"every {self.view.interval:g} s")

    def do_theme(self) -> None:
        self.view.palette = palettes.following(self.view.palette)
        self.board.forget()
        self._paint_background()
        self.view.say(f"theme: {self.view.palette.name}")

    # -- charts

    @property
    def _on_charts(self) -> bool:
        return self.view.page == "charts" and not self.view.help

    def do_log(self) -> None:
        self.view.other_scale = not self.view.other_scale

    def do_smooth(self) -> None:
        self.view.smooth = not self.view.smooth

    def do_axis(self) -> None:
        self.view.axis = "time" if self.view.axis == "step" else "step"
        self.view.cross = None

    def do_pan_left(self) -> None:
        self._pan(-0.25)

    def do_pan_right(self) -> None:
        self._pan(0.25)

    def _extent(self) -> tuple[str, float, float] | None:
        """(axis, left, right) of everything in the selected chart."""
        place = self.view.row - screen.request(self.snapshot, self.view, *self.size).offset
        if not 0 <= place < len(self.snapshot.charts):
            return None
        chart = self.snapshot.charts[place]
        lines = [line for line in chart.lines if len(line.x)]
        if not lines:
            return None
        return chart.axis, min(float(line.x[0]) for line in lines), max(float(line.x[-1]) for line in lines)

    def _zoom(self, factor: float) -> None:
        extent = self._extent()
        if extent is None:
            return
        axis, left, right = extent
        start, end = self.view.windows.get(axis, (left, right))
        all_left, all_right = min(left, start), max(right, end)
        centre = start + (end - start) * (self.view.cross if self.view.cross is not None else 1.0)
        span = max((end - start) * factor, (all_right - all_left) * LEAST_SPAN, 1e-9)
        if span >= all_right - all_left:
            self.view.windows.pop(axis, None)
            return
        share = self.view.cross if self.view.cross is not None else 1.0
        new_start = min(max(centre - span * share, all_left), all_right - span)
        self.view.windows[axis] = (new_start, new_start + span)

    def _pan(self, share: float) -> None:
        extent = self._extent()
        if extent is None or extent[0] not in self.view.windows:
            return
        axis, left, right = extent
        start, end = self.view.windows[axis]
        left, right = min(left, start), max(right, end)
        by = min(max((end - start) * share, left - start), right - end)
        self.view.windows[axis] = (start + by, end + by)

    # -- processes

    def do_sort(self) -> None:
        self.view.sort = (self.view.sort + 1) % len(PROCESS_SORTS)

    def do_reverse(self) -> None:
        self.view.descending = not self.view.descending

    def do_signal(self) -> None:
        from trainvitals.views.tui.pages.lists import shown_processes

        view = self.view
        if view.page != "processes":
            return
        if view.readonly:
            view.say("signals are off: started with --readonly", "warning")
            return
        rows = shown_processes(self.snapshot, view)
        if view.row < len(rows):
            view.asking = rows[view.row]

    # -- mouse

    def _hit(self, x: int, y: int) -> Hit | None:
        return next((hit for hit in self._hits if hit.top <= y < hit.bottom and hit.left <= x < hit.right), None)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        view = self.view
        view.message = ""
        if view.help or view.details or view.asking:
            view.help = view.details = False
            view.asking = None
        else:
            hit = self._hit(event.screen_x, event.screen_y)
            if hit is not None and hit.action == "page":
                self._show_page(hit.value)
            elif hit is not None:
                view.selected[view.page] = hit.value
                if hit.action == "chart":
                    view.cross = min(max((event.screen_x - hit.left - 7) / max(hit.right - hit.left - 9, 1), 0.0), 1.0)
        self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self.do_up()
        self.draw()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self.do_down()
        self.draw()


def run(feed: Feed, *, palette: palettes.Palette | None = None, program: Program | None = None) -> int:
    """Show the dashboard, around `program` if there is one, until it is left. Returns the exit code."""
    # The feed's thread draws: hand over often, so that a key does not wait for a chart.
    sys.setswitchinterval(SWITCH_SECONDS)
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    app = TopApp(feed, palette=palette, ascii="utf" not in encoding, program=program)
    app.end_on_signals()
    result = app.run()
    return result if isinstance(result, int) else app.return_code or 0

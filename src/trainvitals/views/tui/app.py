"""The live program: Textual hosts one widget, forwards keys and mouse events, and runs the timers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.geometry import Size
from textual.message import Message

from trainvitals.views.tui import palette as palettes
from trainvitals.views.tui import screen
from trainvitals.views.tui.actions import filtering, moving
from trainvitals.views.tui.board import Board
from trainvitals.views.tui.ending import TopEnding, find_ending
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.keys import find_action, press
from trainvitals.views.tui.pages import Hit
from trainvitals.views.tui.snapshot import EMPTY, Snapshot
from trainvitals.views.tui.view import View

if TYPE_CHECKING:
    from trainvitals.views.tui.with_program import PaneProgram

PATIENCE_SECONDS = 0.9
"""Curves are redrawn about once a second at most; their newest values are always shown."""
KEY_PATIENCE_SECONDS = 5.0
"""A key is handled with the current curves; the next snapshot brings new ones."""
SWITCH_SECONDS = 0.001
FIRST_LOOK_SECONDS = 0.01


class Fresh(Message, bubble=False):
    """A new snapshot from the feed, drawn for the view and size of that moment (None: could not be drawn)."""

    def __init__(self, snapshot: Snapshot, frame: screen.Frame | None, view: View, drawn_for: tuple[int, Size]) -> None:
        super().__init__()
        self.snapshot = snapshot
        self.frame = frame
        self.view = view
        self.drawn_for = drawn_for


class TopApp(App[int]):
    """`trainvitals top`. What keys do is in `keys` and `actions`, to which this is the `Desk`."""

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
        program: PaneProgram | None = None,
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
            with_machines=feed.options.machines is not None,
            page=feed.options.first_page,
        )
        self.board = Board()
        self._hits: list[Hit] = []
        self._program = program
        self.ending: TopEnding | None = None
        """Makes sure that quitting does not take forever."""
        self._exit_code: int | None = None
        """Set once a signal has requested the exit."""
        self._looking = False
        self._version = 0
        """Incremented with every change of the view."""

    # -- life

    def compose(self) -> ComposeResult:
        yield self.board

    def on_mount(self) -> None:
        self._paint_background()
        if self._exit_code is not None:
            self.exit(self._exit_code)

    def leave(self) -> None:
        self.exit(0)

    def end_on_signals(self) -> None:
        """Exit cleanly on a signal: unlike a training, a dashboard has nothing to finish."""
        for name in ("SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT"):
            number = getattr(signal, name, None)
            if number is not None:
                signal.signal(number, self._end_by_signal)

    def _end_by_signal(self, number: int, frame: object) -> None:
        self._exit_code = 128 + number
        if self.ending is not None:
            self.ending.begin(self._exit_code)
        if self.is_running:
            # The event loop, which waits for keys and the feed, is not woken by a signal, only by this.
            asyncio.get_running_loop().call_soon_threadsafe(self.call_later, self.exit, self._exit_code)

    def exit(self, result: int | None = None, return_code: int = 0, message: Any = None) -> None:
        if self.ending is not None:
            self.ending.begin(result or return_code)
        super().exit(result, return_code, message)

    def on_unmount(self) -> None:
        self.feed.stop()

    # -- snapshots

    def _look(self) -> None:
        """Freeze what exists so far: scanning it again in every garbage collection would delay keys."""
        gc.freeze()
        gc.enable()
        self.feed.start(self._deliver)

    def _deliver(self, snapshot: Snapshot) -> None:
        """Called on the feed's thread, which also draws, so that the screen's thread is free for keys."""
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
        status = self._program.status() if self._program is not None and not self.view.message else ""
        if status:
            self.view.show_message(status, "info")
        if status or frame is None or fresh.drawn_for != (self._version, self.size):
            self.draw()  # a key came in between: this frame is outdated
            return
        self.view.rows, self.view.visible = view.rows, view.visible
        self.view.chart_columns, self.view.gpu_columns = view.chart_columns, view.gpu_columns
        self._show(frame)

    # -- drawing

    def draw(self) -> None:
        """Draw the screen from the current snapshot, and request what is needed next."""
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
        # First show the effect of a key, then read new data: both at once would take twice as long.
        self.call_after_refresh(self.feed.want, screen.request(self.snapshot, self.view, *self.size))

    def repaint(self) -> None:
        self.board.forget()
        self._paint_background()

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
            # After the first frame: the imports for reading data would delay it.
            self.set_timer(FIRST_LOOK_SECONDS, self._look)

    # -- keys and mouse

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        self.view.show_message("")
        press(self, event.key, event.character if event.is_printable else None)
        self.draw()

    def on_paste(self, event: events.Paste) -> None:
        if self.view.typing:
            filtering.paste(self, event.text.strip())
            self.draw()

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll("up")

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll("down")

    def _scroll(self, key: str) -> None:
        """The action of that key on the page, even while typing or in a question."""
        action = find_action(self.view, key)
        if action is not None:
            action(self)
        self.draw()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        view, x, y = self.view, event.screen_x, event.screen_y
        view.show_message("")
        hit = next((hit for hit in self._hits if hit.top <= y < hit.bottom and hit.left <= x < hit.right), None)
        if view.help or view.details or view.asking:
            view.asking = None
            moving.close_box(self)
        elif hit is not None and hit.action == "page":
            moving.show_page(self, hit.value)
        elif hit is not None:
            view.selected[view.page] = hit.value
            if hit.action == "chart":
                view.cross = min(max((x - hit.left - 7) / max(hit.right - hit.left - 9, 1), 0.0), 1.0)
        self.draw()


def run(feed: Feed, *, palette: palettes.Palette | None = None, program: PaneProgram | None = None) -> int:
    """Show the dashboard, around `program` if there is one, until the user quits. Returns the exit code."""
    # The feed's thread draws: switch threads often, so that a key does not wait for a chart.
    sys.setswitchinterval(SWITCH_SECONDS)
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower()
    app = TopApp(feed, palette=palette, ascii="utf" not in encoding, program=program)
    if program is None:  # else the program continues, and must not lose its terminal
        app.ending = find_ending()
    app.end_on_signals()
    result = app.run()
    return result if isinstance(result, int) else app.return_code or 0

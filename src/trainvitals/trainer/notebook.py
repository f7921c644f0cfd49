"""When a notebook cell is running: a kernel that waits for its user is not a stalled training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from trainvitals.journal.encoding import format_time


class Cells:
    """Callbacks for when a cell of this IPython starts, with the time, and ends. Neither may raise."""

    def __init__(self, shell: Any, on_begin: Callable[[str], None], on_end: Callable[[], None]) -> None:
        self._shell = shell
        self._on_begin = on_begin
        self._on_end = on_end
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._ends)

    def _begins(self, _: Any) -> None:
        self._on_begin(format_time())

    def _ends(self, _: Any) -> None:
        self._on_end()

    def remove(self) -> None:
        self._shell.events.unregister("pre_run_cell", self._begins)
        self._shell.events.unregister("post_run_cell", self._ends)


def find_shell() -> Any:
    """The IPython that runs this code, in a notebook or a terminal; None outside of one."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return ask() if ask is not None else None

"""A run that shows itself in a notebook: a picture below the cell, redrawn while it trains.

A child process draws (`trainvitals.views.cli.inline`), so nothing that draws is imported here. A thread hands its
pictures to the notebook: while a cell is running, the kernel's own thread has no time to. It is the only lasting thread
of ours in a training process, starts only where somebody asked to see a run, and waits for the child nearly all the
time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.run_info import default_root
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings, resolve
from trainvitals.stderr import print_line
from trainvitals.trainer import dashboard, notebook, notices

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

THEMES = ("light", "dark")
MOST_RUNS = 20
SETTLE_SECONDS = 10.0
"""How long the end of a cell may wait for its picture, so that a notebook saved then has it."""

_shown: dict[tuple[str, ...], NotebookPicture] = {}
"""The pictures that are still redrawn, by theme and folders. A run shown in two cells is drawn once."""
_told: set[str] = set()


def show(*runs: Run | str | Path, theme: str = "light") -> None:
    """Show runs below this cell of a notebook: status, alerts, findings and charts, redrawn while they train.

    A run is a `Run`, a folder, a name, an id or a part of one that no other run has; without any, the newest. Several
    are compared. Outside of a notebook, a line says how to look at them.
    """
    if theme not in THEMES:
        raise TrainvitalsError(f"theme '{theme}' is not one of {', '.join(THEMES)}")
    folders = [_find_folder(run) for run in runs or ("latest",)]
    folders = list(dict.fromkeys(folders))
    if len(folders) > MOST_RUNS:
        raise TrainvitalsError(f"cannot show more than {MOST_RUNS} runs together, got {len(folders)}")
    shell = find_kernel_shell()
    if shell is None:
        for folder in folders:
            print_line(notices.describe(folder.name, folder))
        return
    given = next((run.settings for run in runs if not isinstance(run, (str, Path))), None)
    _show(shell, folders, theme, given or resolve())


def _find_folder(run: Run | str | Path) -> Path:
    found = run_folder.find(run, default_root()) if isinstance(run, (str, Path)) else run.folder
    return found.resolve()


def find_kernel_shell() -> Any:
    """The IPython of a notebook's kernel; None in a terminal and outside of IPython, where no picture can be seen."""
    shell = notebook.find_shell()
    return shell if getattr(shell, "kernel", None) is not None else None


def _show(shell: Any, folders: Sequence[Path], theme: str, settings: Settings) -> None:
    key = (theme, *map(str, folders))
    picture = _shown.get(key)
    if picture is None or not picture.is_live:
        try:
            picture = _shown[key] = NotebookPicture(shell, folders, theme, settings)
        except OSError as error:  # no memory or no process left: the training may still have enough
            _warn_once(f"cannot draw runs in this notebook: {error}")
            return
    picture.put_into_cell()


def _warn_once(text: str) -> None:
    if text not in _told:
        _told.add(text)
        print_line(text)


class NotebookPicture:
    """One picture of a notebook, in as many cells as it was put into."""

    def __init__(self, shell: Any, folders: Sequence[Path], theme: str, settings: Settings) -> None:
        self._shell = shell
        self._folders = folders
        self._owner = os.getpid()
        self._id = f"trainvitals-{os.urandom(8).hex()}"
        names = ", ".join(one_line(folder.name) for folder in folders)
        self._newest: dict[str, Any] = {"data": {"text/plain": f"trainvitals run {names}"}, "metadata": {}}
        self._has_arrived = threading.Event()
        """Or never will."""
        self._is_over = threading.Event()
        self._exit_code: int | None = None
        process = _start_drawing(folders, theme, settings)
        threading.Thread(target=self._follow, args=(process,), name="trainvitals-picture", daemon=True).start()
        shell.events.register("post_run_cell", self._settle)

    @property
    def is_live(self) -> bool:
        """Whether it is still redrawn, by this process."""
        return not self._is_over.is_set() and self._owner == os.getpid()

    def put_into_cell(self) -> None:
        """Show it below the cell that is running."""
        self._publish(update=False)

    def _publish(self, *, update: bool) -> None:
        transient = {"display_id": self._id}
        data, metadata = self._newest["data"], self._newest["metadata"]
        self._shell.display_pub.publish(data, metadata, transient=transient, update=update)

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        try:
            lines: BinaryIO = process.stdout  # type: ignore[assignment]
            with lines:
                for line in lines:
                    self._newest = orjson.loads(line)
                    self._publish(update=True)
                    self._has_arrived.set()
        except Exception:  # noqa: BLE001, S110 - the kernel is ending, or was replaced: nobody looks any more
            pass
        finally:
            self._exit_code = process.wait()  # it ends by itself: its output is closed
            self._is_over.set()
            self._has_arrived.set()

    def _settle(self, _: Any) -> None:
        """A cell has ended: the first picture is awaited, and the last one of runs that have ended."""
        if self._owner != os.getpid():
            return
        deadline = time.monotonic() + SETTLE_SECONDS
        if not self._has_arrived.wait(SETTLE_SECONDS):
            self._has_arrived.set()  # no other cell waits for it
            _warn_once("drawing the run takes long; the picture appears below its cell when it is done")
        if self._is_over.is_set() or not any(_is_running(folder) for folder in self._folders):
            self._is_over.wait(max(0.0, deadline - time.monotonic()))
            if self._exit_code:
                _warn_once(
                    f"drawing the run failed with exit code {self._exit_code}; {notices.how_to_look(self._folders[0])}"
                )
            self._shell.events.unregister("post_run_cell", self._settle)
            for key in [key for key, picture in _shown.items() if picture is self]:
                del _shown[key]


def _is_running(folder: Path) -> bool:
    found = run_folder.find_run(folder)
    return found is not None and not found.is_over


def _start_drawing(folders: Sequence[Path], theme: str, settings: Settings) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "trainvitals.views.cli.inline", "--theme", theme]
    command += ["--until-pid", str(os.getpid()), *map(str, folders)]
    # A session of its own: an interrupt of the cell goes to the whole group of the kernel.
    return subprocess.Popen(
        command,
        env=dashboard.pass_on(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

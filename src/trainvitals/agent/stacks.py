"""Where a stalled process hangs: the Python stack of every thread, taken without stopping it.

The trainer has armed faulthandler with a signal nobody uses and a file in `<run>/stacks/`; it works when every
thread is stuck and needs no rights. A process that does not import trainvitals is asked with py-spy, where that is
installed and allowed. Worker processes that were forked from it, such as those of a DataLoader, have the signal and the
file from it, and are asked as well: what the training waits for may be stuck in one of them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trainvitals
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.registration import Registration
from trainvitals.runtime import catches_signal, is_same_process
from trainvitals.sources.procfs import read_children

WAIT_SECONDS = 3.0
"""How long a process may take to begin its dump, and then to continue it: on a busy node it waits for its turn."""
SETTLE_SECONDS = 0.3
PY_SPY_SECONDS = 15.0
LARGEST_DUMP = 1 << 20
EXTRACT_FRAMES = 6
MAX_WORKERS = 16

_CURRENT = "Current thread"
_HELP = "install py-spy (pip install 'trainvitals[stacks]') to see where a process hangs"


_FOREIGN = re.compile(
    r"<frozen |/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)|/(?:site|dist)-packages/torch/|"
    + re.escape(f"{Path(trainvitals.__file__).parent}{os.sep}")
)
"""Of the standard library, torch, or ours: every training is at such places."""
_LOADER = "/torch/utils/data/dataloader.py"
_WORKER_START = "/multiprocessing/process.py"


@dataclass(frozen=True, slots=True)
class Stacks:
    """What was found: the file with all stacks and the frames of the main thread, innermost first, or why there is
    neither."""

    path: Path | None = None
    frames: tuple[str, ...] = ()
    note: str | None = None
    workers: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Of each worker process that is at work, its frames."""

    @property
    def extract(self) -> tuple[str, ...]:
        """The innermost frames, which is where it is."""
        return self.frames[:EXTRACT_FRAMES]

    def describe(self) -> str:
        """Where it hangs, in words; empty if that is not known."""
        if not self.frames:
            return ""
        own = find_own_frame(self.frames)
        place = f"the main thread is at {own or self.frames[0]}"
        inner = self.frames[: self.frames.index(own)] if own else ()
        if any(_LOADER in frame for frame in inner):
            place += ", waiting for a DataLoader"
        stuck = {pid: find_own_frame(frames) for pid, frames in self.workers.items()}
        pid = next((pid for pid, frame in stuck.items() if frame), None)
        return place if pid is None else f"{place}; its worker {pid} is at {stuck[pid]}"


def find_own_frame(frames: Sequence[str]) -> str | None:
    """The innermost frame that is not of the standard library, torch or trainvitals."""
    return next((frame for frame in frames if not _FOREIGN.search(frame)), None)


def collect_stacks(registration: Registration, pidfd: int | None, state: str | None) -> Stacks:
    """Ask for the stacks of all threads. Takes up to a few seconds; `state` is the process's own."""
    if state == "stopped":
        return Stacks(note="the process is stopped, so it cannot dump its stacks")
    if registration.stack_signal and registration.stack_file:
        found = _ask_faulthandler(registration, pidfd, registration.stack_signal, Path(registration.stack_file))
        if found is not None:
            return found
    return _ask_py_spy(registration)


# -- faulthandler in the process itself


def _ask_faulthandler(registration: Registration, pidfd: int | None, number: int, path: Path) -> Stacks | None:
    before = path.stat().st_size if path.exists() else 0
    # A signal that is not caught would kill the training: look immediately before sending, and send to this very
    # process, not to one that got its number.
    if not catches_signal(registration.pid, number):
        return None
    if not is_same_process(registration.pid, registration.pid_start):
        return None
    try:
        if pidfd is not None:
            signal.pidfd_send_signal(pidfd, number)
        else:
            os.kill(registration.pid, number)
    except OSError:
        return None
    text = _read_appended(path, before)
    if not text:
        return None
    return Stacks(path, parse_main_thread(text), workers=_ask_workers(registration.pid, number, path))


def _ask_workers(parent: int, number: int, path: Path) -> dict[int, tuple[str, ...]]:
    """The frames of the processes that were forked from it to work for it and are at work."""
    found = {}
    for pid in (read_children("/proc", parent) or ())[:MAX_WORKERS]:
        before = path.stat().st_size
        if not catches_signal(pid, number):
            continue  # another program, or one that was not forked after the signal was armed
        try:
            os.kill(pid, number)
        except OSError:
            continue
        frames = parse_main_thread(_read_appended(path, before))
        # A forked process has the frames of its parent below its own.
        start = next((place for place, frame in enumerate(frames) if _WORKER_START in frame), 0)
        if find_own_frame(frames[:start]):
            found[pid] = frames[:start]
    return found


def _read_appended(path: Path, before: int) -> str:
    """What was appended after `before`, once it has stopped growing.

    The thread that had the signal, which is the main one, comes last: without it the dump was only interrupted.
    """
    size, grown_at = before, time.monotonic()
    while (quiet := time.monotonic() - grown_at) < WAIT_SECONDS:
        time.sleep(0.05)
        now = path.stat().st_size if path.exists() else 0
        if now != size:
            size, grown_at = now, time.monotonic()
        elif size > before and quiet > SETTLE_SECONDS and _CURRENT in _read_from(path, before):
            break
    return _read_from(path, before) if size > before else ""


def _read_from(path: Path, offset: int) -> str:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(LARGEST_DUMP).decode("utf-8", "replace")


def parse_main_thread(dump: str) -> tuple[str, ...]:
    """The frames of the main thread out of a dump of faulthandler, innermost first.

    The signal reaches the main thread, which faulthandler calls the current one; where it does not, the main thread
    is the last, for the newest threads come first.
    """
    blocks = re.split(r"\n\s*\n", dump.strip())
    current = next((block for block in blocks if block.startswith(_CURRENT)), blocks[-1])
    return tuple(line.strip() for line in current.splitlines()[1:] if line.strip().startswith("File "))


# -- py-spy from outside


def _ask_py_spy(registration: Registration) -> Stacks:
    program = _find_py_spy()
    if program is None:
        return Stacks(note=_HELP)
    command = [program, "dump", "--nonblocking", "--full-filenames", "--pid", str(registration.pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Stacks(note=f"py-spy failed: {error}")
    if done.returncode != 0 or not done.stdout:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[:1] or ["no output"]
        return Stacks(note=f"py-spy failed: {reason[0]:.200}")
    text = done.stdout.decode("utf-8", "replace")
    name = f"{registration.kind}{registration.participant}.py-spy.txt"
    try:
        place = run_folder.make_within(Path(registration.folder), layout.STACKS)
        path = place / name
        with os.fdopen(run_folder.open_within(place, name), "a") as file:
            file.write(text)
    except OSError as error:
        return Stacks(
            frames=parse_py_spy(text, registration.pid),
            note=f"cannot save the stacks: {error.strerror}",
        )
    return Stacks(path, parse_py_spy(text, registration.pid))


def _find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy.exe" if sys.platform == "win32" else "py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def parse_py_spy(dump: str, pid: int) -> tuple[str, ...]:
    """The frames of the main thread out of `py-spy dump`, innermost first.

    The main thread has the number of the process; py-spy does not know its name in a process without threading.
    """
    blocks = [block.splitlines() for block in re.split(r"\n(?=Thread )", dump) if block.startswith("Thread ")]
    main = next((block for block in blocks if re.match(rf"Thread {pid} |.*\"MainThread\"", block[0])), [])
    return tuple(line.strip() for line in main[1:])

"""Where a stalled process hangs: the Python stack of every thread, and of the worker processes below it.

They are read from outside with py-spy, which neither stops nor signals the process: one that is only slow, such as in
a native `poll`, must not notice. Where py-spy is missing or may not look, a process that is known to hang can be sent
the signal for which the trainer has armed faulthandler, which writes to a file in `<run>/stacks/`. That interrupts
native calls, so it is the last resort, and the setting `hang_signal` switches it off.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainvitals.analysis.frames import find_own_frame, format_frame
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.registration import Registration
from trainvitals.runtime import catches_signal, is_same_process
from trainvitals.sources.procfs import read_children

WAIT_SECONDS = 10.0
"""How long a process may take to begin its dump, and then to continue it: on a busy node it waits for its turn."""
SETTLE_SECONDS = 0.3
PY_SPY_SECONDS = 15.0
LARGEST_DUMP = 1 << 20
EXTRACT_FRAMES = 6
MAX_WORKERS = 16

_CURRENT = "Current thread"
_HELP = "install py-spy (pip install 'trainvitals[stacks]') to see where a process is before it hangs"
_LOADER = "/torch/utils/data/dataloader.py"
_WORKER_START = "/multiprocessing/process.py"
_PY_SPY_FRAME = re.compile(r"\s+(?P<function>.+) \((?P<file>.+?)(?::(?P<line>\d+))?\)")


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


def collect_stacks(registration: Registration, pidfd: int | None, state: str | None, *, may_signal: bool) -> Stacks:
    """Read the stacks of all threads. Takes up to a few seconds; `state` is the process's own."""
    if state == "stopped":
        return Stacks(note="the process is stopped, so its stacks are not read")
    if not is_same_process(registration.pid, registration.pid_start):
        return Stacks(note="the process is gone")
    found = _ask_py_spy(registration)
    if not found.frames and may_signal and registration.stack_signal and registration.stack_file:
        number, path = registration.stack_signal, Path(registration.stack_file)
        found = _ask_faulthandler(registration, pidfd, number, path) or found
    return found


def _cut_to_work(frames: tuple[str, ...]) -> tuple[str, ...]:
    """Of a worker process: without the frames of its parent, which a forked one has below its own. Empty if it is not
    at work."""
    start = next((place for place, frame in enumerate(frames) if _WORKER_START in frame), 0)
    return frames[:start] if find_own_frame(frames[:start]) else ()


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
        if frames := _cut_to_work(parse_main_thread(_read_appended(path, before))):
            found[pid] = frames
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
        # One of its children may be no Python program, and then all are refused.
        text = _run([*command, "--subprocesses"]) or _run(command, must=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Stacks(note=f"py-spy failed: {error!s:.200}")
    found = parse_py_spy(text)
    frames = found.pop(registration.pid, ())
    working = {pid: cut for pid, frames in list(found.items())[:MAX_WORKERS] if (cut := _cut_to_work(frames))}
    name = f"{registration.kind}{registration.participant}.py-spy.txt"
    try:
        place = run_folder.make_within(Path(registration.folder), layout.STACKS)
        with os.fdopen(run_folder.open_within(place, name), "a") as file:
            file.write(text)
    except OSError as error:
        return Stacks(frames=frames, note=f"cannot save the stacks: {error.strerror}", workers=working)
    return Stacks(place / name, frames, workers=working)


def _run(command: list[str], must: bool = False) -> str:
    """What the command prints; empty, or an exception if it `must` succeed, where it does not."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_SECONDS, check=False)
    if done.returncode == 0 and done.stdout:
        return done.stdout.decode("utf-8", "replace")
    if must:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[:1] or ["no output"]
        raise subprocess.SubprocessError(reason[0])
    return ""


def _find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy.exe" if sys.platform == "win32" else "py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def parse_py_spy(dump: str) -> dict[int, tuple[str, ...]]:
    """The frames of the main thread of each process out of `py-spy dump`, innermost first.

    The main thread has the number of the process; py-spy does not know its name in a process without threading.
    """
    found = {}
    for process in re.split(r"^(?=Process \d+: )", dump, flags=re.MULTILINE):
        number = re.match(r"Process (\d+): ", process)
        threads = re.split(r"^(?=Thread )", process, flags=re.MULTILINE)[1:]
        main = re.compile(rf"Thread {number[1]} |Thread .*\"MainThread\"") if number is not None else None
        block = next((thread for thread in threads if main is not None and main.match(thread)), "")
        if number is not None and block:
            lines = (_PY_SPY_FRAME.fullmatch(line) for line in block.splitlines()[1:])
            found[int(number[1])] = tuple(
                format_frame(line["file"], line["line"] or "?", line["function"]) for line in lines if line
            )
    return found

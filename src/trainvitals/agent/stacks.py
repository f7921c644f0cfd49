"""Where a stalled process hangs: the Python stack of every thread, taken without stopping it.

The trainer has armed faulthandler with a signal nobody uses and a file in `<run>/stacks/`; it works when every
thread is stuck and needs no rights. A process that does not import trainvitals is asked with py-spy, where that is
installed and allowed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.registration import Registration
from trainvitals.runtime import catches_signal, is_same_process

WAIT_SECONDS = 3.0
"""How long a process may take to begin its dump, and then to go on with it: on a busy node it waits for its turn."""
SETTLE_SECONDS = 0.3
PY_SPY_SECONDS = 15.0
LARGEST_DUMP = 1 << 20
EXTRACT_FRAMES = 6

_CURRENT = "Current thread"
_HELP = "install py-spy (pip install 'trainvitals[stacks]') to see where such a process hangs"


@dataclass(frozen=True, slots=True)
class Stacks:
    """What was found: the file with all stacks and the top of the main thread's, or why there is neither."""

    path: Path | None = None
    extract: tuple[str, ...] = ()
    note: str | None = None


def collect_stacks(registration: Registration, pidfd: int | None, state: str | None) -> Stacks:
    """Ask for the stacks of all threads. Takes up to a few seconds; `state` is the process's own."""
    if state == "stopped":
        return Stacks(note="the process is stopped, so it cannot be asked for its stacks")
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
    return Stacks(path, parse_main_thread(text))


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
    """The innermost frames of the main thread out of a dump of faulthandler, innermost first.

    The signal reaches the main thread, which faulthandler calls the current one; where it does not, the main thread
    is the last, for the newest threads come first.
    """
    blocks = re.split(r"\n\s*\n", dump.strip())
    current = next((block for block in blocks if block.startswith(_CURRENT)), blocks[-1])
    frames = [line.strip() for line in current.splitlines()[1:] if line.strip().startswith("File ")]
    return tuple(frames[:EXTRACT_FRAMES])


# -- py-spy from outside


def _ask_py_spy(registration: Registration) -> Stacks:
    program = _find_py_spy()
    if program is None:
        return Stacks(note=_HELP)
    command = [program, "dump", "--nonblocking", "--pid", str(registration.pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PY_SPY_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Stacks(note=f"py-spy gave no stacks: {error}")
    if done.returncode != 0 or not done.stdout:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()[:1] or ["no output"]
        return Stacks(note=f"py-spy gave no stacks: {reason[0]:.200}")
    text = done.stdout.decode("utf-8", "replace")
    name = f"{registration.kind}{registration.rank}.py-spy.txt"
    try:
        place = run_folder.make_within(Path(registration.folder), layout.STACKS)
        path = place / name
        with os.fdopen(run_folder.open_within(place, name), "a") as file:
            file.write(text)
    except OSError as error:
        return Stacks(
            extract=parse_py_spy(text, registration.pid),
            note=f"the stacks could not be kept: {error.strerror}",
        )
    return Stacks(path, parse_py_spy(text, registration.pid))


def _find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy.exe" if sys.platform == "win32" else "py-spy")
    return str(beside) if beside.is_file() else shutil.which("py-spy")


def parse_py_spy(dump: str, pid: int) -> tuple[str, ...]:
    """The innermost frames of the main thread out of `py-spy dump`, innermost first.

    The main thread has the number of the process; py-spy does not know its name in a process without threading.
    """
    blocks = [block.splitlines() for block in re.split(r"\n(?=Thread )", dump) if block.startswith("Thread ")]
    main = next((block for block in blocks if re.match(rf"Thread {pid} |.*\"MainThread\"", block[0])), [])
    return tuple(line.strip() for line in main[1 : EXTRACT_FRAMES + 1])

"""Where the trainer, the commands and the agent of one machine and user find each other.

    <runtime>/agent.lock        held by the living agent, for as long as it lives
    <runtime>/agent.json        what it reports about itself
    <runtime>/latest.json       its newest samples
    <runtime>/agent.log         its structured log
    <runtime>/intake.lock       held by the process that clients of other trackers log to (`trackers.intake.process`)
    <runtime>/intake.json       where it listens, and its token
    <runtime>/runs/*.json       one registration per rank: "watch this process, write into that folder"
    <runtime>/shipping/*.json   runs that a gateway does not have as a whole yet (`agent.shipping`)
    <runtime>/rows/*            what lists show of ended runs, a cache for each folder of runs (`journal.row_cache`)

The folder is on the machine itself, never on a shared file system. The lock is right even after `kill -9`: the
kernel releases it with the process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

from trainvitals import plain_json
from trainvitals.errors import AgentError
from trainvitals.ownership import explain_foreign_status

MOST_DESCRIPTORS = 65_536
MOST_BYTES = 64 << 20
"""A larger document is not read: a run.json is a few kilobytes, with a very large configuration some megabytes."""
HIDING = ("_VISIBLE_DEVICES", "_VISIBLE_CORES", "_AFFINITY_MASK")
"""How the variables end with which vendors hide devices from a program."""
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
"""For files that we write: in a folder that others may write, a link could lead to any file of this user."""
START_SECONDS = 60.0
"""How long who needs the agent waits for it: it is up in half a second, or on a busy node after many of them."""


def usual_dir() -> Path:
    """Where the folder is unless it is moved. Not in XDG_RUNTIME_DIR, which ends with the user's last session while
    trainings run on, and which not all programs of a user are told."""
    user = str(os.getuid()) if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    return Path(tempfile.gettempdir()) / f"trainvitals-{user}"


def runtime_dir() -> Path:
    """The folder, created 0700 and owned by this user. TRAINVITALS_RUNTIME_DIR moves it."""
    override = os.environ.get("TRAINVITALS_RUNTIME_DIR")
    if override:
        folder = Path(override).absolute()  # the agent runs in another folder
        _make(folder)
        return folder
    folder = usual_dir()
    _make(folder)
    status = folder.lstat()
    # Anybody may create names in /tmp: refuse a folder or a link of another user.
    if hasattr(os, "getuid") and (not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid()):
        raise AgentError(
            f"{folder} is owned by another user",
            hint="set TRAINVITALS_RUNTIME_DIR to a local folder that you own",
        )
    return folder


def make_folders(folder: Path, mode: int = 0o700) -> None:
    """Make the folder and those above it that are missing, all with these rights: `mkdir` gives them to the last alone,
    and to the others what the umask leaves."""
    for place in reversed([folder, *folder.parents]):
        if not place.is_dir():
            place.mkdir(mode=mode, exist_ok=True)


def _make(folder: Path) -> None:
    try:
        make_folders(folder)
    except OSError as error:
        raise AgentError(
            f"cannot create the runtime folder {folder}: {error.strerror}",
            hint="set TRAINVITALS_RUNTIME_DIR to a local folder that you own",
        ) from None


def host_name() -> str:
    """This machine's name, as written in files and labels."""
    return socket.gethostname() or "localhost"


def visible_devices(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of a program that hide GPUs, whichever vendor reads them: which those are is known to the sources,
    and they are not here."""
    return {name: value for name, value in environ.items() if name.endswith(HIDING)}


def raise_descriptor_limit() -> int:
    """As many open files as this process may have; how many that is."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
        return MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    except (ImportError, OSError, ValueError):
        return 256


# -- processes


def process_start(pid: int) -> float | None:
    """When the process started, in a unit of the platform's own: equal means the same process, not a reused pid.
    None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            after_name = file.read().rpartition(b") ")[2].split()
        return None if after_name[0] in (b"Z", b"X") else float(after_name[19])
    except FileNotFoundError:
        if sys.platform == "linux":
            return None
    except (OSError, IndexError, ValueError):
        return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def is_same_process(pid: int, start: float | None) -> bool:
    """Whether `pid` is alive and still the process that started at `start` (unknown start: alive is enough)."""
    now = process_start(pid)
    return now is not None and (start is None or now == start)


def catches_signal(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise. Where that cannot be seen: no."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    except (OSError, ValueError, StopIteration, IndexError):
        return False
    return bool(caught >> (number - 1) & 1)


# -- files


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` in one step, once all of it is written: a reader sees the old or the new
    content, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | NO_LINK, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = error.filename or str(path)  # an error of a full disk does not name the file
        raise


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace the content of `path` in one step."""
    with replacing(path, mode) as file:
        file.write(data)


def measure_file_clock(folder: Path) -> float:
    """Seconds by which the clock of its file system is ahead of ours: a server has its own. OSError if no file can be
    written there."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".trainvitals-clock-") as file:
        before = time.time()
        file.write(b"x")
        file.flush()
        return os.fstat(file.fileno()).st_mtime - before


def read_regular(path: Path, most: int, *, own: bool = False) -> bytes:
    """The content of a file of at most this many bytes. OSError for anything else: opening a pipe or a device that
    somebody put in its place would wait for ever, or read without end. With `own` also for a file that somebody else
    may have written."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        if found.st_size > most:
            raise OSError(errno.EFBIG, f"is larger than {most >> 20} MB", str(path))
        if own and (why := explain_foreign_status(found)) is not None:
            raise PermissionError(errno.EPERM, f"is not used: {why}", str(path))
        pieces = []
        while piece := os.read(descriptor, found.st_size + 1):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def read_json(path: Path, *, own: bool = False) -> dict[str, Any] | None:
    """The object in the file, or None if it is not there or not an object; with `own` also if somebody else may have
    written it."""
    try:
        return load_json(path, own=own)
    except (OSError, ValueError):
        return None


def load_json(path: Path, *, own: bool = False) -> dict[str, Any]:
    """The object in the file. OSError or ValueError with what is wrong."""
    return plain_json.parse_object(read_regular(path, MOST_BYTES, own=own))


# -- the agent's lock


CHECKED_SECONDS = 5.0
"""For how long a lock may be held by processes that only check it, on a busy machine."""


class AgentLock:
    """The lock that makes an agent, or another process of ours, the only one of this machine and user."""

    def __init__(self, name: str = "agent.lock") -> None:
        self._name = name
        self._file: IO[bytes] | None = None
        self._folder = -1

    def acquire(self, seconds: float = 0.0) -> bool:
        """True if the lock is ours now. Who starts tries for CHECKED_SECONDS: those who only look whether somebody has
        the lock have it themselves for an instant."""
        deadline = time.monotonic() + seconds
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def _try(self) -> bool:
        path = runtime_dir() / self._name
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b")
        if not try_lock(file.fileno()) or not _is_at(file, path):
            file.close()
            return False
        self.release()
        self._file = file
        return True

    def is_ours(self) -> bool:
        """Whether the lock still keeps others out: a cleaner of temporary files may have removed the file, and then the
        next agent locks another one of the same name."""
        return self._file is not None and _is_at(self._file, runtime_dir() / self._name)

    def guard_folder(self) -> None:
        """Keep systemd's cleaner of temporary files away: it passes over folders that somebody has locked."""
        if sys.platform == "linux" and self._folder < 0:
            import fcntl

            self._folder = os.open(runtime_dir(), os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                pass  # the cleaner is at it: what is touched is not old

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._folder >= 0:
            os.close(self._folder)
            self._folder = -1


def _is_at(file: IO[bytes], path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return os.path.samestat(found, os.fstat(file.fileno()))


def try_lock(descriptor: int, seconds: float = 0.0) -> bool:
    """Lock an open file or folder against other processes. False if one has locked it, and does not unlock it within
    `seconds`, or where nothing can be locked."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if not isinstance(error, BlockingIOError) or time.monotonic() >= deadline:
                return False
        time.sleep(0.005)


def agent_is_alive() -> bool:
    """Whether an agent holds the lock."""
    lock = AgentLock()
    try:
        free = lock.acquire()
    except (OSError, AgentError):
        return False  # without a runtime folder there is none
    lock.release()
    return not free


def read_agent_file() -> dict[str, Any] | None:
    """agent.json of the living agent; None while there is none, or it starts or ends."""
    about = read_json(runtime_dir() / "agent.json", own=True) if agent_is_alive() else None
    pid = about.get("pid") if about is not None else None
    # It may be of an agent before, if that one was killed and the new one has not written yet.
    return about if about is not None and type(pid) is int and is_same_process(pid, about.get("start")) else None


def start_detached(module: str, *arguments: str, **more: str) -> bool:
    """Start a module of ours in the background, with `more` in its environment. False if it cannot be started.

    It is not a child of this process: a training that waits for its own children never meets it, and a Ctrl-C or the
    end of this process does not reach it.
    """
    if not sys.executable:
        return False
    command = [sys.executable, "-P", "-m", module, *arguments]
    # Said, not found again: without a place to write in /tmp the answer depends on the current folder.
    environment = {**os.environ, **more, "TRAINVITALS_RUNTIME_DIR": str(runtime_dir())}
    if environment.get("PYTHONPATH"):  # what is relative is meant from here, and the module runs elsewhere
        places = environment["PYTHONPATH"].split(os.pathsep)
        environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(place) for place in places if place)  # noqa: PTH100
    try:
        if sys.platform == "win32":
            flags = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
            subprocess.Popen(command, creationflags=flags, env=environment, close_fds=True)
        else:
            # The shell puts it in the background and ends at once, so it is reparented to init.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" </dev/null >/dev/null 2>&1 &', "sh", *command],
                start_new_session=True,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                check=False,
                timeout=10,
            )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def ensure_agent(wait: float = 0.0, *, keep: bool = False) -> bool:
    """Start the agent if there is none. True if one runs or was started; `wait` seconds for it to report its identity.
    An agent started with `keep` stays when there is no run."""
    if not agent_is_alive():
        more = ["--keep"] if keep else []
        if not start_detached("trainvitals.agent", *more, TRAINVITALS_AGENT_PARENT=str(os.getpid())):
            return False
    deadline = time.monotonic() + wait
    while wait and read_agent_file() is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True

"""Making segments of closed journal files, in a process of its own: `python -P -m trainvitals.agent.sealing FOLDER`.

Sealing needs numpy and DuckDB, which are larger than the whole agent, so they are never loaded there. One job at a
time, at low priority; what a job did comes back as lines of JSON.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainvitals.journal import layout
from trainvitals.journal.layout import FileName

CLOSED_SECONDS = 3.0
"""A file that has a successor and was not written for this long is closed."""
NICENESS = 15
LONGEST_JOB = 3600.0

Result = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """Files of one run folder to seal, and what to clean up afterwards."""

    folder: str
    files: tuple[str, ...]
    keep: bool = False
    mode: int = 0o600
    root: str | None = None
    """Where to remove old runs; None: nowhere."""
    max_age: float | None = None
    max_size_gb: float | None = None


def find_closed(
    folder: Path,
    *,
    is_ours: Callable[[FileName], bool],
    ended: bool,
    min_bytes: float,
    keep: bool = False,
    now: float | None = None,
) -> list[str]:
    """Names of files that nobody writes any more and that are worth a segment.

    Of each writer all but the newest; of an ended run the newest too, if it has `min_bytes`. Only those that
    `is_ours`: a folder may be shared with other machines. One that has its segment is still to be removed, unless files
    are to be kept: a sealer was killed just before it did so.
    """
    moment = time.time() if now is None else now
    writers: dict[object, list[FileName]] = {}
    for entry in os.scandir(folder):
        parsed = layout.parse_name(entry.name)
        if parsed and parsed[1] == ".jsonl" and parsed[0].table not in layout.LINE_TABLES and is_ours(parsed[0]):
            writers.setdefault(parsed[0].writer, []).append(parsed[0])
    found = []
    for names in writers.values():
        names.sort(key=lambda name: (name.attempt, name.stamp))
        for name in names:
            try:
                status = (folder / name.jsonl).stat()
            except FileNotFoundError:
                continue
            newest = name is names[-1]
            if newest and not (ended and status.st_size >= min_bytes):
                continue
            if not ended and moment - status.st_mtime < CLOSED_SECONDS:
                continue
            if not keep or not (folder / layout.SEGMENTS / f"{name.stem}.parquet").exists():
                found.append(name.jsonl)
    return found


class Sealer:
    """Runs jobs one after the other, each in a child process."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, Callable[[list[Result]], None]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._ending = False
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        return self._waiting > 0

    def submit(self, job: Job, done: Callable[[list[Result]], None]) -> None:
        """`done` is called from another thread with what was made of each file."""
        with self._lock:
            self._waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
                self._thread.start()
        self._jobs.put((job, done))

    def end(self) -> None:
        """Stop the job under way; its files stay as they are."""
        self._ending = True
        with self._lock:
            if self._child is not None:
                self._child.terminate()

    def _run(self) -> None:
        while True:
            job, done = self._jobs.get()
            try:
                done([] if self._ending else self._work(job))
            finally:
                with self._lock:
                    self._waiting -= 1

    def _work(self, job: Job) -> list[Result]:
        command = [sys.executable, "-P", "-m", "trainvitals.agent.sealing", job.folder]
        try:
            with self._lock:
                child = self._child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
                )
            output, trouble = child.communicate(json.dumps(asdict(job)).encode(), LONGEST_JOB)
        except (OSError, subprocess.TimeoutExpired) as error:
            if self._child is not None:
                self._child.kill()
            return [{"file": name, "error": str(error)} for name in job.files]
        finally:
            with self._lock:
                self._child = None
        results = _parse_results(output)
        if child.returncode != 0 and not self._ending:
            reason = trouble.decode("utf-8", "replace").strip().splitlines()[-1:] or [_describe_exit(child.returncode)]
            told = {row.get("file") for row in results}
            results += [{"file": name, "error": reason[0]} for name in job.files if name not in told]
        return results


def _parse_results(output: bytes) -> list[Result]:
    """What the child said; its last line may have been cut off by its death."""
    found = []
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _describe_exit(code: int) -> str:
    import signal

    return f"its process was killed by {signal.Signals(-code).name}" if code < 0 else f"its process ended with {code}"


# -- the child process


def main(arguments: list[str]) -> int:
    """Do the job that comes as JSON on standard input."""
    import signal

    # An exception instead of sudden death, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    job = json.loads(sys.stdin.buffer.read())
    umask = os.umask(0o077)
    os.umask(umask)
    folder = Path(arguments[0])
    for name in job["files"]:
        result = _seal(folder / name, keep=job["keep"], mode=job["mode"] & ~umask)
        if result is not None:
            _say(result)
    if job["root"] is not None:
        from trainvitals.journal import retention

        removed = retention.clean(Path(job["root"]), max_age=job["max_age"], max_size_gb=job["max_size_gb"])
        if removed:
            _say({"removed": [str(path) for path in removed]})
    return 0


def _seal(path: Path, *, keep: bool, mode: int) -> Result | None:
    from trainvitals.errors import TrainvitalsError
    from trainvitals.journal import segments

    try:
        sealed = segments.seal(path, keep=keep, mode=mode)
    except FileNotFoundError:
        return None  # somebody else sealed it meanwhile, or the run was removed
    except (OSError, TrainvitalsError) as error:
        return {"file": path.name, "error": str(error)}
    damage: Mapping[str, int] = asdict(sealed.damage)
    return {"file": path.name, "lines": sealed.lines, "values": sealed.values, **damage}


def _say(result: Result) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sealing: which files of a run are closed, and making segments of them in a child process.

Segments need numpy and DuckDB, which are larger than the whole agent, so they are only loaded in the child
(`python -P -m trainvitals.agent.sealing FOLDER`). Of each file system one job at a time, at low priority; its results
come back as lines of JSON. When a listener needs rows of a segment because it was added late, a child reads them, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.cursor import Row
from trainvitals.journal.documents.events import ListenerBehind
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import MIB

if TYPE_CHECKING:
    from trainvitals.agent.run_context import RunContext
    from trainvitals.agent.run_files import RunLines
    from trainvitals.journal.listening import Listener

LEAST_SHARE = 0.25
"""Of `rotate_size_mb`: the last files of an ended run that are smaller stay as they are, to be read with `cat`."""
CLOSED_SECONDS = 3.0
"""A file that has a successor and was not written for this long is closed."""
NICENESS = 15
LONGEST_JOB = 3600.0
LONGEST_DIAGNOSIS = 300.0
FIRST_WAIT, LONGEST_WAIT = 5.0, 3600.0
LAST_TRIES = 3
"""How often the files of an ended run are tried. They are read as well when they are not sealed."""
HELD_SECONDS = 3600.0
HELD_BYTES = 1 << 30
"""How long, and how many bytes of a run, a listener can hold back by not acknowledging files. After that they are
sealed and it reads on from the segments: nothing is lost, but reading costs more."""

Result = dict[str, Any]
IsOurs = Callable[[FileName], bool]


@dataclass(frozen=True, slots=True)
class SealingJob:
    """Files of one run folder to seal, and what to do afterwards."""

    folder: str
    files: tuple[str, ...]
    keep: bool = False
    mode: int = 0o600
    diagnose: bool = False
    """Whether to keep the findings of the run, which has ended, in its folder."""
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
    """Names of finished files that are worth a segment.

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
    """Runs jobs, each in a child process: of every file system one after the other, so that one which stalls holds up
    no run on another."""

    def __init__(self) -> None:
        self._queues: dict[int | None, queue.SimpleQueue[tuple[SealingJob, Callable[[list[Result]], None]]]] = {}
        self._children: set[subprocess.Popen[bytes]] = set()
        self._ending = False
        self._lock = threading.Lock()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        return self._waiting > 0

    def submit(self, job: SealingJob, done: Callable[[list[Result]], None]) -> None:
        """`done` is called from another thread with what was made of each file."""
        device = _find_device(job.folder)
        with self._lock:
            self._waiting += 1
            if device not in self._queues:
                self._queues[device] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(self._queues[device],), name="sealer", daemon=True).start()
            jobs = self._queues[device]
        jobs.put((job, done))

    def end(self) -> None:
        """Stop the jobs under way; their files stay as they are."""
        self._ending = True
        with self._lock:
            for child in self._children:
                child.terminate()

    def _run(self, jobs: queue.SimpleQueue[tuple[SealingJob, Callable[[list[Result]], None]]]) -> None:
        while True:
            job, done = jobs.get()
            try:
                done([] if self._ending else self._work(job))
            finally:
                with self._lock:
                    self._waiting -= 1

    def _work(self, job: SealingJob) -> list[Result]:
        command = [sys.executable, "-P", "-m", "trainvitals.agent.sealing", job.folder]
        child: subprocess.Popen[bytes] | None = None
        try:
            with self._lock:
                child = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
                )
                self._children.add(child)
            output, trouble = child.communicate(json.dumps(asdict(job)).encode(), LONGEST_JOB)
        except (OSError, subprocess.TimeoutExpired) as error:
            if child is not None:
                child.kill()
            return [{"file": name, "error": str(error)} for name in job.files]
        finally:
            with self._lock:
                self._children -= {child}
        results = _parse_results(output)
        if child.returncode != 0 and not self._ending:
            reported = {row.get("file") for row in results}
            reason = _explain(trouble, child.returncode)
            results += [{"file": name, "error": reason} for name in job.files if name not in reported]
        return results


def _find_device(folder: str) -> int | None:
    try:
        return os.stat(folder).st_dev  # noqa: PTH116
    except OSError:
        return None


def _parse_results(output: bytes) -> list[Result]:
    """The output of the child; its last line may have been cut off by its death."""
    found = []
    for line in output.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _explain(trouble: bytes, code: int) -> str:
    """The last line that a child printed, or how it ended."""
    import signal

    printed = trouble.decode("utf-8", "replace").strip().splitlines()[-1:]
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    return printed[0] if printed else f"the sealing process {ended}"


class Seals:
    """Asks the sealer for work, one job of this run at a time. What failed is tried again, ever more rarely."""

    def __init__(self, context: RunContext, lines: RunLines) -> None:
        self._folder = context.folder
        self._settings = context.settings
        self._sealer = context.machine.sealer
        self._log = context.log
        self._lines = lines
        self._waits: dict[str, tuple[float, float]] = {}  # file: (not before, how long it waits after the next failure)
        self._reported: set[tuple[str, str]] = set()
        self._results: deque[Result] = deque()
        self._under_way = 0
        self._last: tuple[IsOurs, int] | None = None
        self._diagnose = False
        self._held: dict[str, float] = {}  # file that waits for a listener: since when
        self._sealing: set[str] = set()
        self._lines_of: dict[str, int] = {}
        self._segments = SegmentChildren()
        self.given_up = 0
        """Files that were sealed although a listener had not acknowledged them."""

    @property
    def busy(self) -> bool:
        """Whether a job is under way, or another try at the last files of the run is due."""
        return self._under_way > 0 or self._last is not None

    def request(
        self, is_ours: IsOurs, is_read: Callable[[str], bool], behind: Callable[[str], Sequence[Listener]]
    ) -> None:
        """Seal the closed files of a living run that are safely counted (`is_read`) and acknowledged by every listener
        (nobody is `behind`), or held back by one for too long."""
        if self.busy:
            return
        now = time.monotonic()
        names = [name for name in self._find(is_ours, ended=False) if is_read(name)]
        held = {name: listeners for name in names if (listeners := behind(name))}
        self._held = {name: self._held.get(name, now) for name in held}
        late = self._find_late(now)
        for name in late:
            self._give_up(name, held[name])
        ready = [name for name in names if name not in held or name in late]
        self._submit([name for name in ready if self._waits.get(name, (0.0, 0.0))[0] <= now])

    def _find_late(self, now: float) -> set[str]:
        """Files that have waited for too long; of those that are too much together the oldest."""
        late = {name for name, since in self._held.items() if now - since > HELD_SECONDS}
        room = HELD_BYTES
        for name in reversed(list(self._held)):
            room -= _size(self._folder / name)
            if room < 0:
                late.add(name)
        return late

    def _give_up(self, name: str, listeners: Sequence[Listener]) -> None:
        who = ", ".join(sorted({listener.name for listener in listeners}))
        if (name, who) not in self._reported:
            self._reported.add((name, who))
            self.given_up += 1
            message = f"{name} was sealed before {who} acknowledged it; {who} continues from the segment"
            data = ListenerBehind(file=name, listeners=who, files=self.given_up)
            self._lines.write_event("listener_behind", message, severity="warning", data=data)

    def read_sealed(self, path: Path, first: int) -> Iterator[Row] | None:
        """The rows of a segment from the `first` on; None while it is being made or opened, so that nobody waits."""
        name = f"{path.stem}.jsonl"
        if name in self._sealing:
            return None
        if self._lines_of.get(name) == first:
            return iter(())
        return self._segments.read(path, first)

    def request_last(self, is_ours: IsOurs, *, diagnose: bool = False) -> None:
        """Seal what an ended run leaves, keep its findings, and remove runs that are too old or too many."""
        self._last = (is_ours, LAST_TRIES)
        self._diagnose = diagnose
        self._try_last()

    def tend(self) -> None:
        """Try the files of an ended run again that failed, and write the events of what has been done meanwhile."""
        if self._last is not None and not self._under_way:
            self._try_last()
        while self._results:
            result = self._results.popleft()
            if "not_shipped" in result:
                self._lines.write_event("not_shipped", result["not_shipped"], severity="warning")
            elif "error" in result:
                message = f"{result['file']} was not sealed, keeping the file: {result['error']}"
                if (result["file"], result["error"]) not in self._reported:  # once, not with every try
                    self._reported.add((result["file"], result["error"]))
                    self._lines.write_event("sealing_failed", message, severity="warning", data=result)
            else:
                message = f"{result['file']} was sealed: {result['lines']} lines"
                self._lines.write_event("sealed", message, data=result)

    def _try_last(self) -> None:
        assert self._last is not None
        is_ours, tries = self._last
        files = self._find(is_ours, ended=True)
        first = tries == LAST_TRIES
        self._last = (is_ours, tries - 1) if files and tries > 1 else None
        if first or files:
            self._submit(files, last=first)

    def _find(self, is_ours: IsOurs, *, ended: bool) -> list[str]:
        settings = self._settings
        min_bytes = settings.rotate_size_mb * MIB * LEAST_SHARE
        return find_closed(self._folder, is_ours=is_ours, ended=ended, min_bytes=min_bytes, keep=settings.keep_jsonl)

    def _submit(self, files: list[str], *, last: bool = False) -> None:
        settings = self._settings
        cleans = last and (settings.max_age is not None or settings.max_size_gb is not None)
        diagnoses = last and self._diagnose
        if not files and not cleans and not diagnoses:
            return
        job = SealingJob(
            folder=str(self._folder),
            files=tuple(files),
            keep=settings.keep_jsonl,
            mode=settings.file_mode,
            diagnose=diagnoses,
            root=str(self._folder.parent.parent) if cleans else None,
            max_age=settings.max_age,
            max_size_gb=settings.max_size_gb,
        )
        self._under_way += 1
        self._sealing.update(files)
        self._sealer.submit(job, self._take)

    def _take(self, results: list[Result]) -> None:
        """Called from the sealer's thread."""
        for result in results:
            if "not_shipped" in result:
                self._log.warning("not shipped", reason=result["not_shipped"])
                self._results.append(result)
                continue
            if "removed" in result:
                self._log.info("old runs were removed", folders=result["removed"])
                continue
            if "error" in result:
                wait = self._waits.get(result["file"], (0.0, FIRST_WAIT))[1]
                self._waits[result["file"]] = (time.monotonic() + wait, min(2 * wait, LONGEST_WAIT))
                self._log.warning("sealing failed", **result)
            else:
                self._waits.pop(result["file"], None)
                self._lines_of[result["file"]] = result["lines"]
                self._log.info("sealed", **result)
            self._results.append(result)
        self._sealing = set()  # there is one job of a run at a time
        self._under_way -= 1


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class SegmentChildren:
    """Rows of segments, read by children, so that this process does without DuckDB."""

    def __init__(self) -> None:
        self._opening: dict[tuple[Path, int], subprocess.Popen[bytes]] = {}

    def read(self, path: Path, first: int) -> Iterator[Row] | None:
        """The rows from the `first` on; None until the child has opened the segment."""
        child = self._opening.pop((path, first), None) or _open_segment(path, first)
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], 0)[0]:
            self._opening[path, first] = child
            return None
        return _read_rows(child)


def _open_segment(path: Path, first: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "trainvitals.agent.sealing", str(path), str(first)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")


def _read_rows(child: subprocess.Popen[bytes]) -> Iterator[Row]:
    """What `_open_segment` prints. Ends the child when nobody wants more of it."""
    with child:
        assert child.stdout is not None and child.stderr is not None
        try:
            yield from map(json.loads, child.stdout)
        except GeneratorExit:
            child.kill()
            raise
        trouble = child.stderr.read()
    if child.returncode != 0:
        raise JournalError(_explain(trouble, child.returncode))


# -- the child process


def main(arguments: list[str]) -> int:
    """Do the job that comes as JSON on standard input; or, with a segment and a number, print its rows from there."""
    import signal

    # An exception instead of sudden death, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if len(arguments) == 2:
        return _print_rows(Path(arguments[0]), int(arguments[1]))
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    job = json.loads(sys.stdin.buffer.read())
    umask = os.umask(0o077)
    os.umask(umask)
    folder = Path(arguments[0])
    for name in job["files"]:
        result = _seal(folder / name, keep=job["keep"], mode=job["mode"] & ~umask)
        if result is not None:
            _print_result(result)
    if job["diagnose"]:
        _keep_findings(folder)
    if job["root"] is not None:
        from trainvitals.journal import retention

        removed = retention.clean(
            Path(job["root"]),
            max_age=job["max_age"],
            max_size_gb=job["max_size_gb"],
            warn=lambda text: _print_result({"not_shipped": text}),
        )
        if removed:
            _print_result({"removed": [str(path) for path in removed]})
    return 0


def _keep_findings(folder: Path) -> None:
    """Lists of runs show them. What cannot be diagnosed now is diagnosed by whoever looks at the run."""
    # From the run folder, which is usually below the settings file of its project.
    command = [sys.executable, "-P", "-m", "trainvitals", "diagnose", str(folder), "--keep"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LONGEST_DIAGNOSIS,
            check=False,
        )


def _print_rows(path: Path, first: int) -> int:
    from trainvitals.journal.encoding import encode_line
    from trainvitals.journal.segment_reader import SealedSegments

    try:
        for row in SealedSegments(path.parent).rows(path, first):
            sys.stdout.buffer.write(encode_line(row))
        sys.stdout.buffer.flush()
    except JournalError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except BrokenPipeError:
        os._exit(0)  # whoever asked has gone; what is left in the buffer is for nobody
    return 0


def _seal(path: Path, *, keep: bool, mode: int) -> Result | None:
    from trainvitals.errors import TrainvitalsError
    from trainvitals.journal import segment_writer

    try:
        sealed = segment_writer.seal(path, keep=keep, mode=mode)
    except FileNotFoundError:
        return None  # another agent sealed it meanwhile, or the run was removed
    except (OSError, TrainvitalsError) as error:
        return {"file": path.name, "error": str(error)}
    damage: Mapping[str, int] = asdict(sealed.damage)
    return {"file": path.name, "lines": sealed.lines, "values": sealed.values, **damage}


def _print_result(result: Result) -> None:
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

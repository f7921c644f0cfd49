"""A run folder on its way to a gateway: what lies behind there, as frames, and what the answer means.

Nothing is remembered on disk. The gateway knows how far it has each file, the folder has the rest, and so whoever
ships a run next, after whatever end of the one before, goes on where the gateway's copy ends. Rows are never parsed
here: lines are cut at their ends, and a file that was sealed meanwhile goes as its segment.

An answer is not trusted. One that says that the gateway has more than there is here makes us leave the file alone: it
is another run of the same name. One that shows no progress makes the file wait, ever longer, so nothing goes round in
circles; the other files go on.

A run that `trainvitals run` has begun in one project, and its program has put into another, is shipped there from its
beginning, and what had arrived before is marked as moved, so that no viewer shows it.

Of a folder that several machines write, each ships its own files of the journal and its own status; the one that leads
the run ships everything else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainvitals import runtime
from trainvitals.fleet import wire
from trainvitals.fleet.gateway_client import FarGateway, GatewayRefused, NotNow, RunGone, RunNotNow, TooLarge
from trainvitals.fleet.wire import FileRange, Held, Kind
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.identity import Participant

STATUS_SECONDS = 5.0
"""Between two versions of a status file, which changes all the time, and two looks at who ships what."""
DEEP_SECONDS = 10.0
"""Between two looks into the folders of pictures and the like: there may be thousands of files."""
DEEP_SHARE = 200
"""The pause between such looks, as a multiple of how long one takes."""
LONGEST_LINE = wire.MOST_BYTES // 2
LARGEST_WHOLE = wire.MOST_BYTES - (64 << 10)
"""Of a file that is sent at once: there are headers, too."""
LEAST_BYTES = 64 << 10
MOST_FRAMES = 1000
HEAD = 256
"""Bytes that tell a file from one that was begun anew under its name."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 300.0
REFUSED_SECONDS = 3600.0
"""How long a file waits that the gateway has refused."""

_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | runtime.NO_LINK
_ORDER: Mapping[Kind, int] = {"document": 0, "lines": 1, "segment": 2, "bytes": 3}
"""A gateway learns of the run first, and of what is new before what is old."""

Warn = Callable[[str], None]


@dataclass(slots=True)
class _File:
    """A file of the folder as it was seen last."""

    path: str
    kind: Kind
    size: int = 0
    modified: int = 0
    inode: int = 0
    digest: str = ""
    """Of a document, as `digest_stamp` describes it."""
    digest_stamp: tuple[int, int, int] | None = None
    sent_at: float = float("-inf")
    """When a document was last sent."""
    torn: tuple[int, int] | None = None
    """(what the gateway had, the size): there is no whole line in between."""
    same: tuple[tuple[int, int, int], str, bool] | None = None
    """Whether the gateway's generation is this file's, as its stamp was when that was asked."""
    most: int = 0
    """The most of it that the gateway has ever had."""
    not_before: float = 0.0
    wait: float = FIRST_WAIT
    left_out: str = ""
    """Why it is not shipped."""

    @property
    def stamp(self) -> tuple[int, int, int]:
        return self.size, self.modified, self.inode


@dataclass(slots=True)
class _Share:
    """What this host ships of the folder."""

    leads: bool = True
    token: str | None = None
    mine: frozenset[Participant] = frozenset()
    theirs: frozenset[Participant] = frozenset()
    own_status: str = layout.STATUS_FILE
    consoles: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Copies of what programs print: (inode, size) up to which they stay. The rest may be cut off and copied again."""

    def has(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        parsed = layout.parse_name(name)
        if parsed is None:
            is_status = name.startswith("status.") and "/" not in path
            return name == self.own_status if is_status else self.leads
        file = parsed[0]
        if file.table == "training":
            return file.participant in self.mine or (self.leads and file.participant not in self.theirs)
        return file.host == self.token or (self.leads and file.host is None)


class RunShipment:
    """One run folder and its copy at a gateway. Used by one thread."""

    def __init__(self, folder: Path, host: str | None, warn: Warn = lambda text: None) -> None:
        """`host` is None for whoever ships the whole folder, whoever wrote it."""
        self.folder = folder
        self._host = host
        self._warn = warn
        self._held: dict[str, Held] | None = None
        self._files: dict[str, _File] = {}
        self._share = _Share()
        self._about = RunFile()
        self._about_stamp: tuple[int, int, int] | None = None
        self._place = ("", "")
        """Project and run, as the gateway knows them."""
        self._was_moved = False
        """Whether what it has in an earlier project was marked."""
        self._budget = wire.GOOD_BYTES
        self._alone = 0
        """So many more requests with one frame each: one of them was refused."""
        self._share_read = self._deep_read = float("-inf")
        self._deep_pause = DEEP_SECONDS
        self._deep: list[tuple[str, os.stat_result]] = []
        self._warned: set[str] = set()
        self.sent_bytes = 0
        """Of this folder, before they were compressed; without status files."""

    # -- asked by others

    @property
    def project(self) -> str:
        """As of the last look."""
        return self._place[0]

    @property
    def waiting_bytes(self) -> int:
        """What the gateway does not have as of the last look; of a file that is replaced or sent whole, its size.
        Without status files, which are never done while a run lives."""
        files = [file for file in list(self._files.values()) if not file.left_out and not _is_status(file.path)]
        return sum(self._count_behind(file) for file in files)

    @property
    def left_out(self) -> dict[str, str]:
        """Files that are not shipped, and why."""
        return {file.path: file.left_out for file in list(self._files.values()) if file.left_out}

    @property
    def has_all(self) -> bool:
        """Whether the gateway has everything, status files included, that was here at the last look."""
        files = self._files.values()
        return self._held is not None and not any(not file.left_out and self._count_behind(file) for file in files)

    # -- one step

    def ship(self, gateway: FarGateway) -> bool:
        """Look, and send one request with what lies behind, if anything does. Whether that got anything on, so that
        there may be more. Raises NotNow and RunGone, and OSError where the folder cannot be read."""
        now = time.monotonic()
        self.look(now)
        if self._held is None:
            self._held = gateway.ask(*self._place)
        if not self._was_moved and layout.RUN_FILE in self._held and self._share.leads:
            self._move(gateway)
        frames = list(self._collect(now))
        if not frames:
            return False
        try:
            answer = gateway.send(*self._place, frames)
        except NotNow:
            self._held = None  # it may have taken them
            raise
        except TooLarge:
            self._send_less(frames)
            return True
        except GatewayRefused as error:
            self._set_apart(frames, str(error))
            return True
        self._alone = max(self._alone - 1, 0)
        return self._take(frames, answer)

    def _name(self) -> tuple[str, str]:
        about = self._about
        project = wire.check_key("project", about.project or self.folder.parent.name)
        return project, wire.check_key("run", about.id or self.folder.name)

    def _move(self, gateway: FarGateway) -> None:
        """Now that the gateway has the run in its project: have what is in an earlier one shown no longer."""
        before, run = self._about.project_before, self._place[1]
        if before not in ("", self.project):
            if layout.MOVED_FILE in (held := self._held or {}):  # it has come back
                self._mark(gateway, self.project, held[layout.MOVED_FILE], wire.NOT_MOVED)
            # A token that is not for that project has put nothing there.
            with contextlib.suppress(RunNotNow, RunGone, GatewayRefused):
                if held := gateway.ask(before, run):
                    self._mark(gateway, before, held.get(layout.MOVED_FILE, Held()), wire.MOVED)
        self._was_moved = True

    def _mark(self, gateway: FarGateway, project: str, held: Held, content: bytes) -> None:
        """Make this its moved.json."""
        for _ in range(2):  # once more, if the gateway that was asked was behind
            if held.digest == wire.digest_of(content):
                return
            frame = FileRange(layout.MOVED_FILE, "document", content, generation=held.digest)
            held = gateway.send(project, self._place[1], [frame]).get(layout.MOVED_FILE, Held())

    def _send_less(self, frames: Sequence[FileRange]) -> None:
        total = sum(len(frame.data) for frame in frames)
        if len(frames) == 1 and (self._budget <= LEAST_BYTES or frames[0].kind not in ("lines", "bytes")):
            self._leave_out(frames[0].path, f"the gateway does not accept {total:,} bytes at once")
        elif self._budget <= LEAST_BYTES:
            self._alone = len(frames)
        self._budget = max(min(self._budget, total) // 2, LEAST_BYTES)

    def _set_apart(self, frames: Sequence[FileRange], why: str) -> None:
        """One of them is refused for good: send them one by one, and let that one wait."""
        if len(frames) > 1:
            self._alone = len(frames)
            return
        file = self._files[frames[0].path]
        file.not_before = time.monotonic() + REFUSED_SECONDS
        self._alone = max(self._alone - 1, 0)
        self._warn_once(f"the gateway refuses {file.path} of {self.folder.name}: {why}")

    def _take(self, frames: Sequence[FileRange], answer: Mapping[str, Held]) -> bool:
        """What the gateway has now. Where that is no more than before, the file waits. Whether any file got on."""
        assert self._held is not None
        self._held.update(answer)
        now, moved = time.monotonic(), False
        for frame in frames:
            file = self._files[frame.path]
            if _is_progress(frame, answer):
                moved = True
                end = answer[frame.path].end
                if end > file.most or frame.kind in ("document", "bytes"):
                    file.most, file.wait = end, FIRST_WAIT  # else it has lost some, and perhaps does so every time
                if not _is_status(frame.path):
                    self.sent_bytes += len(frame.data)
            else:
                file.not_before = now + file.wait
                file.wait = min(2 * file.wait, LONGEST_WAIT)
                if frame.path not in answer:
                    self._held.pop(frame.path, None)
        return moved

    # -- the folder

    def look(self, now: float) -> None:
        """Find out what there is. Raises OSError."""
        self._read_about()
        if now - self._share_read >= STATUS_SECONDS:
            self._share_read = now
            self._share = self._read_share()
        seen = set()
        for path, found in self._walk(now):
            kind = wire.kind_of(path)
            if kind is None or not self._share.has(path):
                continue
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _File(path, kind)
            file.size, file.modified, file.inode = found.st_size, found.st_mtime_ns, found.st_ino
            seen.add(path)
        for path in self._files.keys() - seen:
            del self._files[path]

    def _read_about(self) -> None:
        """Again when it was written anew. In another project the gateway has nothing of the run yet."""
        try:
            found = (self.folder / layout.RUN_FILE).stat()
        except FileNotFoundError:
            stamp = None
        else:
            stamp = found.st_size, found.st_mtime_ns, found.st_ino
        if stamp is None or stamp != self._about_stamp:
            self._about_stamp = stamp
            self._about = run_folder.find_run(self.folder) or self._about
        if (place := self._name()) != self._place:
            self._place, self._held, self._was_moved, self._alone = place, None, False, 0
            self._files.clear()

    def _walk(self, now: float) -> Iterator[tuple[str, os.stat_result]]:
        """(path, status) of every regular file. No link is followed: in a folder that others may write it leads
        anywhere."""
        yield from _list(self.folder, "")
        yield from _list(self.folder, layout.SEGMENTS)
        if now - self._deep_read >= self._deep_pause:
            began = time.monotonic()
            self._deep = list(_list_deep(self.folder))
            self._deep_read = time.monotonic()
            self._deep_pause = max(DEEP_SECONDS, DEEP_SHARE * (self._deep_read - began))
        yield from self._deep

    def look_deep(self) -> None:
        """Into every folder and document at the next look, because the run has ended."""
        self._deep_read = self._share_read = float("-inf")
        for file in list(self._files.values()):
            file.sent_at = float("-inf")

    def _read_share(self) -> _Share:
        statuses = {}
        for path, _ in _list(self.folder, ""):
            if _is_status(path):
                found = runtime.read_json(self.folder / path) or {}
                # The rest is long, and not of interest here.
                statuses[path] = Status.parse({name: found.get(name) for name in ("host", "ranks", "consoles")})
        consoles: dict[str, tuple[int, int]] = {}
        for status in statuses.values():
            for name, copied in status.consoles.items():
                if copied.inode is not None and copied.size is not None:
                    consoles[name] = (copied.inode, copied.size)
        if self._host is None:
            return _ShareOfAll(consoles=consoles)
        token = run_folder.own_token(self.folder, self._host)
        mine = [status for status in statuses.values() if status.host == self._host]
        others = [status for status in statuses.values() if status.host != self._host]
        return _Share(
            self._about.process.host in ("", self._host),
            token,
            frozenset(who for status in mine for who in status.participants()),
            frozenset(who for status in others for who in status.participants()),
            layout.status_file(token),
            consoles,
        )

    # -- what to send

    def _collect(self, now: float) -> Iterator[FileRange]:
        room, count = self._budget, 0
        most = 1 if self._alone else MOST_FRAMES
        behind = [
            file
            for file in self._files.values()
            if not file.left_out and file.not_before <= now and self._count_behind(file)
        ]
        for file in sorted(behind, key=lambda file: (_ORDER[file.kind], file.path)):
            if room <= 0 or count >= most:
                return
            try:
                frame = self._make(file, room, now, first=count == 0)
            except FileNotFoundError:
                continue  # sealed or removed meanwhile
            except OSError as error:
                file.not_before = now + LONGEST_WAIT
                self._warn_once(f"cannot read {file.path} of {self.folder.name}: {error.strerror or error}")
                continue
            if frame is not None:
                room -= len(frame.data)
                count += 1
                yield frame

    def _find_held(self, path: str) -> Held:
        return (self._held or {}).get(path, Held())

    def _count_behind(self, file: _File) -> int:
        """Bytes that the gateway has not got."""
        held = self._find_held(file.path)
        if file.kind == "document":
            return 0 if file.digest_stamp == file.stamp and held.digest == file.digest else max(file.size, 1)
        if file.kind == "lines":
            if held.sealed or self._goes_as_segment(file) or file.torn == (held.end, file.size):
                return 0
            return abs(file.size - held.end)
        if file.kind == "segment":
            is_there = held.end == file.size or self._find_held(_jsonl_of(file.path)).sealed
            return 0 if is_there else file.size
        if not held.generation:
            return self._find_limit(file)
        return max(self._find_limit(file) - held.end, 0) if self._is_same(file, held) else self._find_limit(file)

    def _goes_as_segment(self, lines: _File) -> bool:
        """Whether a file was sealed and is still there: its segment has all of its rows."""
        segment = self._files.get(_segment_of(lines.path))
        return segment is not None and not segment.left_out

    def _find_limit(self, file: _File) -> int:
        """Up to where it is as it will stay."""
        inode, size = self._share.consoles.get(file.path, (file.inode, file.size))
        return min(size, file.size) if inode == file.inode else 0

    def _is_same(self, file: _File, held: Held) -> bool:
        """Whether the gateway's copy is one of this file, and not of one that had its name before."""
        if held.end > file.size:
            return False
        if file.same is None or file.same[:2] != (file.stamp, held.generation):
            parts = held.generation.split("-")
            same = len(parts) == 4 and parts[0] == f"{file.inode:x}" and parts[1].isdigit()
            same = same and _read_head(self.folder / file.path, int(parts[1])) == parts[2]
            file.same = file.stamp, held.generation, same
        return file.same[2]

    def _make(self, file: _File, room: int, now: float, *, first: bool) -> FileRange | None:
        held, modified = self._find_held(file.path), file.modified / 1e9
        if file.kind == "document":
            return self._make_document(file, held, now)
        if file.kind == "lines":
            data = self._read_lines(file, held, room, first=first)
            return FileRange(file.path, "lines", data, offset=held.end, modified=modified) if data else None
        if file.kind == "segment":
            if file.size > LARGEST_WHOLE:
                self._leave_out(file.path, f"it has more than {LARGEST_WHOLE >> 20} MB")
                return None
            if file.size > room and not first:
                return None
            return FileRange(file.path, file.kind, _read(self.folder / file.path, 0, file.size), modified=modified)
        if held.generation and self._is_same(file, held):
            generation, offset = held.generation, held.end
        else:
            length = min(self._find_limit(file), HEAD)
            head = _read_head(self.folder / file.path, length)
            generation = f"{file.inode:x}-{length}-{head}-{file.modified:x}"
            offset = 0
        data = _read(self.folder / file.path, offset, min(room, self._find_limit(file) - offset))
        return FileRange(file.path, "bytes", data, offset, generation, modified)

    def _make_document(self, file: _File, held: Held, now: float) -> FileRange | None:
        if _is_status(file.path) and now - file.sent_at < STATUS_SECONDS:
            return None
        if file.size > wire.MOST_DOCUMENT:
            self._leave_out(file.path, f"it has more than {wire.MOST_DOCUMENT >> 20} MB")
            return None
        stamp = file.stamp
        data = _read(self.folder / file.path, 0, wire.MOST_DOCUMENT)
        file.digest, file.digest_stamp = wire.digest_of(data), stamp
        if held.digest == file.digest:
            return None
        file.sent_at = now
        return FileRange(file.path, "document", data, generation=held.digest, modified=file.modified / 1e9)

    def _read_lines(self, file: _File, held: Held, room: int, *, first: bool) -> bytes:
        path = self.folder / file.path
        if held.end > file.size:
            if held.end > path.stat().st_size:
                self._leave_out(
                    file.path, "the gateway has more of it than this folder: possibly another run with the same id"
                )
            return b""
        data = _read(path, held.end, min(room, file.size - held.end))
        end = data.rfind(b"\n") + 1
        if not end and len(data) < file.size - held.end and first:
            data = _read(path, held.end, LONGEST_LINE)
            end = data.find(b"\n") + 1
            if not end and len(data) == LONGEST_LINE:
                self._leave_out(file.path, f"it has a line of more than {LONGEST_LINE >> 20} MB")
        if not end and held.end + len(data) >= file.size:
            file.torn = held.end, file.size  # its writer is at it, or was killed at it
        return data[:end]

    def _leave_out(self, path: str, why: str) -> None:
        self._files[path].left_out = why
        self._warn_once(f"{path} of {self.folder.name} is not shipped: {why}")

    def _warn_once(self, text: str) -> None:
        if text not in self._warned and len(self._warned) < 100:
            self._warned.add(text)
            self._warn(text)


class _ShareOfAll(_Share):
    """Of whoever ships the whole folder."""

    __slots__ = ()

    def has(self, path: str) -> bool:
        return True


def _segment_of(jsonl: str) -> str:
    return f"{layout.SEGMENTS}/{jsonl.removesuffix('.jsonl')}.parquet"


def _jsonl_of(segment: str) -> str:
    return f"{segment.removeprefix(f'{layout.SEGMENTS}/').removesuffix('.parquet')}.jsonl"


def _is_status(path: str) -> bool:
    return path.startswith("status.") and path.endswith(".json") and "/" not in path


def _is_progress(frame: FileRange, answer: Mapping[str, Held]) -> bool:
    """Whether the gateway has more of the file than before, by its own word."""
    held = answer.get(frame.path, Held())
    if frame.kind == "document":
        return held.digest == wire.digest_of(frame.data)
    if frame.kind == "lines":
        return held.sealed or held.end > frame.offset
    if frame.kind == "bytes":
        return held.generation == frame.generation and held.end > frame.offset
    return held.end == len(frame.data)


def _list(folder: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder / below) as entries:
        for entry in entries:
            if entry.name.startswith(".") or not entry.is_file(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):
                found = entry.stat(follow_symlinks=False)
                yield (f"{below}/{entry.name}" if below else entry.name), found


def _list_deep(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """What is in folders within the folder, but for the segments."""
    for place, folders, _ in os.walk(folder):
        below = Path(place).relative_to(folder)
        depth = len(below.parts)
        folders[:] = [name for name in folders if not name.startswith(".") and (depth or name != layout.SEGMENTS)]
        if depth > 2:
            folders.clear()  # as deep as a path may be
        if depth:
            yield from _list(folder, below.as_posix())


def _read(path: Path, offset: int, size: int) -> bytes:
    """So many bytes, or less if there are less."""
    descriptor = os.open(path, _FLAGS)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        pieces = []
        while size > 0 and (piece := os.pread(descriptor, size, offset)):
            pieces.append(piece)
            offset, size = offset + len(piece), size - len(piece)
        return b"".join(pieces)
    finally:
        os.close(descriptor)


def _read_head(path: Path, length: int) -> str:
    try:
        return hashlib.blake2b(_read(path, 0, min(length, HEAD)), digest_size=8).hexdigest()
    except OSError:
        return ""

"""The far side: answers questions about the runs of this machine, as the user who asks, and changes nothing.

Every question names what is asked and, of a run, its key; every answer is made from what is on disk now. Only two
things are remembered between questions, to save work: which runs the other end has already, and where in a table or in
a run's new lines it is. Whoever loses the connection begins with another far side and loses nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from trainvitals import __version__, runtime
from trainvitals.errors import JournalError, MachineError, RunNotFound, TrainvitalsError
from trainvitals.journal import layout, registrations
from trainvitals.journal.documents.fields import finite, is_mapping, text, texts, whole
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import UNREADABLE
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.lab import codec, messages
from trainvitals.lab.messages import Message, MessageError

if TYPE_CHECKING:
    from trainvitals.journal.follower import Follower
    from trainvitals.journal.reader import RunReader

LISTED_BYTES = 2 << 20
"""Of the runs in one answer to `list`; the rest comes with the next ones."""
MOST_OF_A_RUN = 8 << 20
"""Of what a list says about one run."""
SUMMARY_SECONDS = 0.5
"""Of one answer to `list`, for the values of ended runs that no agent followed."""
SETTLED_SECONDS = 2.0
"""Two changes within one tick of a file system's clock look like one."""
POLL_BYTES = 1 << 20
ROWS_AT_ONCE = 5_000
MAX_OPEN = 16

Json = Mapping[str, Any]
ReadHardware = Callable[[], Json]
"""The newest samples of this machine: `origin`, `age`, `samples` and `reasons`."""


class RunsHere(Protocol):
    """Folders of runs, by key."""

    @property
    def place(self) -> str: ...
    def list_keys(self) -> list[str]: ...
    def describe(self, key: str) -> RunInfo: ...
    def statuses(self, key: str) -> list[Status]: ...
    def alerts(self, key: str) -> list[AlertRow]: ...
    def findings(self, key: str) -> FindingsFile | None: ...
    def has_values(self, key: str) -> bool: ...
    def folder(self, key: str) -> Path: ...
    def open(self, key: str) -> RunReader: ...


class FoldersHere:
    """The runs of a folder, and of every folder into which a training of this user on this machine writes or wrote
    since this process began: who asks from elsewhere does not know where each was started."""

    def __init__(self, root: Path) -> None:
        self._folders = {_resolve(root): FolderRuns(root)}
        self._of: dict[str, FolderRuns] = {}

    @property
    def place(self) -> str:
        return next(iter(self._folders.values())).place

    def list_keys(self) -> list[str]:
        """Oldest first, folder by folder."""
        with contextlib.suppress(TrainvitalsError, OSError):  # without a runtime folder nothing is registered
            for _, entry in registrations.read_all():
                root = Path(entry.folder).parent.parent
                if _resolve(root) not in self._folders and (Path(entry.folder) / layout.RUN_FILE).is_file():
                    self._folders[_resolve(root)] = FolderRuns(root)
        found: dict[str, FolderRuns] = {}
        for runs in self._folders.values():
            for key in runs.list_keys():
                found.setdefault(key, runs)
        self._of = found
        return list(found)

    def describe(self, key: str) -> RunInfo:
        return self._find(key).describe(key)

    def statuses(self, key: str) -> list[Status]:
        return self._find(key).statuses(key)

    def alerts(self, key: str) -> list[AlertRow]:
        return self._find(key).alerts(key)

    def findings(self, key: str) -> FindingsFile | None:
        return self._find(key).findings(key)

    def has_values(self, key: str) -> bool:
        return self._find(key).has_values(key)

    def folder(self, key: str) -> Path:
        return self._find(key).folder(key)

    def open(self, key: str) -> RunReader:
        return self._find(key).open(key)

    def _find(self, key: str) -> FolderRuns:
        if key not in self._of:
            self.list_keys()
        if key not in self._of:
            raise RunNotFound(f"no run '{key}' on this machine")
        return self._of[key]


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


class _Listed(NamedTuple):
    """What the other end has of a run."""

    stamp: tuple[int, ...]
    """Empty: look again each time."""
    digest: int
    """Of what was sent."""


class _Open(NamedTuple):
    reader: RunReader
    feeds: dict[tuple[str, ...], Follower]
    rows: dict[str, tuple[int, Iterator[dict[str, Any]]]]
    """Question -> how many rows were given, and the others."""


class BadQuestion(TrainvitalsError):
    """Not a question of this protocol."""


class FarSide:
    """Answers one questioner, one question at a time."""

    def __init__(self, runs: RunsHere, read_hardware: ReadHardware) -> None:
        self._runs = runs
        self._read_hardware = read_hardware
        self._listed: dict[str, _Listed] = {}
        self._order: list[str] | None = None
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, question: Json) -> Message:
        """Never raises: what goes wrong is an answer too."""
        with self._lock:
            try:
                found = self._answer(question)
            except TrainvitalsError as error:
                kind = type(error).__name__ if isinstance(error, (RunNotFound, JournalError)) else "MachineError"
                found = _fail(kind, error.message, error.hint)
            except OSError as error:
                found = _fail("JournalError", error.strerror or type(error).__name__)
            except Exception as error:  # noqa: BLE001 - a bug here must not end the connection of who asked
                found = _fail("MachineError", f"{type(error).__name__} while answering")
        return found._replace(json={**found.json, "id": question.get("id")})

    def _answer(self, question: Json) -> Message:
        asked = question.get("ask")
        if asked == "hello":
            return Message(hello(self._runs.place))
        if asked == "list":
            return Message(self._list(fresh=question.get("fresh") is True))
        if asked == "hardware":
            return Message({**self._read_hardware(), "now": time.time()})
        answer = _OF_A_RUN.get(asked) if isinstance(asked, str) else None
        if answer is None:
            raise BadQuestion(f"unknown question '{str(asked)[:40]}'")
        key = text(question.get("run"))
        if key is None:
            raise BadQuestion("a question about no run")
        made = answer(self._find(key), question)
        return made if isinstance(made, Message) else Message({"is": made})

    def _find(self, key: str) -> _Open:
        found = self._open.get(key)
        if found is None:
            found = self._open[key] = _Open(self._runs.open(key), {}, {})
        self._open.move_to_end(key)
        while len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return found

    # -- the list

    def _list(self, *, fresh: bool) -> dict[str, Any]:
        """The runs that are not as they were in the last answer, the newest first, and all keys if they changed."""
        if fresh:
            self._listed, self._order = {}, None
        keys = self._runs.list_keys()
        changed: list[dict[str, Any]] = []
        size, more = 0, False
        until = time.monotonic() + SUMMARY_SECONDS
        for key in reversed(keys):
            known = self._listed.get(key)
            with contextlib.suppress(TrainvitalsError, OSError):  # removed meanwhile: the next list is without it
                stamp = _stamp(self._runs.folder(key))
                if known is not None and known.stamp and known.stamp == stamp:
                    continue
                if size >= LISTED_BYTES:
                    more = True
                    break
                row, lasts = self._describe(key, until)
                encoded = dump_json(spell_all(row))
                if len(encoded) > MOST_OF_A_RUN:
                    row = {"key": key, "info": _too_large(self._runs.describe(key))}
                digest = hash(encoded)
                self._listed[key] = _Listed(stamp if lasts else (), digest)
                if known is None or known.digest != digest:
                    changed.append(row)
                    size += len(encoded)
        answer: dict[str, Any] = {"changed": changed, "more": more}
        if keys != self._order:
            present = set(keys)
            self._listed = {key: item for key, item in self._listed.items() if key in present}
            answer["order"] = keys
            self._order = keys
        return answer

    def _describe(self, key: str, until: float) -> tuple[dict[str, Any], bool]:
        """What lists show of a run, and whether it lasts until a file of the run changes."""
        runs = self._runs
        info, statuses, findings = runs.describe(key), runs.statuses(key), runs.findings(key)
        row = {
            "key": key,
            "info": codec.dump_info(info),
            "statuses": [status.as_json() for status in statuses],
            "alerts": [alert.as_json() for alert in runs.alerts(key)],
            "findings": findings.as_json() if findings is not None else None,
        }
        lasts = info.file.is_over
        if info.file.is_over and not statuses and runs.has_values(key):
            if time.monotonic() < until:
                found = runs.open(key).summary()
                row["summary"] = {name: item.as_json() for name, item in found.items()}
            else:
                lasts = False
        return row, lasts


def hello(place: str) -> dict[str, Any]:
    """Who answers."""
    return {"protocol": messages.PROTOCOL, "version": __version__, "host": runtime.host_name(), "place": place}


def _fail(kind: str, message: str, hint: str | None = None) -> Message:
    return Message({"error": {"kind": kind, "message": message, "hint": hint}})


def _too_large(info: RunInfo) -> dict[str, Any]:
    return {
        **codec.dump_info(info),
        "status": UNREADABLE,
        "cause": {"detail": "more is known about it than a list has room for"},
        "file": {},
    }


def _stamp(folder: Path) -> tuple[int, ...]:
    """Differs when run.json, a status or findings.json was replaced, or any file came or went; empty if that was just
    now."""
    found = [os.stat(folder), os.stat(folder / layout.RUN_FILE)]  # noqa: PTH116
    newest = max(item.st_mtime_ns for item in found)
    if newest / 1e9 > time.time() - SETTLED_SECONDS:
        return ()
    return tuple(part for item in found for part in (item.st_ino, item.st_mtime_ns, item.st_size))


# -- one run: what a question says is checked, for it may be of another version


def _text(question: Json, name: str, default: str | None = None) -> str:
    found = text(question.get(name))
    if found is None:
        found = default
    if found is None:
        raise BadQuestion(f"'{name}' is missing")
    return found


def _choice(question: Json, name: str, *words: str) -> str:
    found = _text(question, name, words[0])
    if found not in words:
        raise BadQuestion(f"'{name}' must be one of {', '.join(words)}")
    return found


def _table(question: Json) -> str:
    return _choice(question, "table", *layout.METRIC_TABLES, *layout.LINE_TABLES)


def _participant(value: object) -> Participant | None:
    return Participant.parse(value) if isinstance(value, str) else None


def _series(run: _Open, question: Json) -> Message:
    chosen = texts(question.get("participants"))
    most = whole(question.get("max_points"))
    found = run.reader.series(
        texts(question.get("names")) or (),
        table=_table(question),
        x=cast("Any", _choice(question, "x", "step", "time", "relative")),
        start=finite(question.get("start")),
        end=finite(question.get("end")),
        max_points=max(most, 1) if most is not None else None,
        participants=[found for item in chosen if (found := _participant(item))] if chosen is not None else None,
        all_attempts=question.get("all_attempts") is True,
    )
    return codec.dump_series(found)


def _summary(run: _Open, question: Json) -> Json:
    found = run.reader.summary(_table(question), _participant(question.get("participant")))
    return {name: item.as_json() for name, item in found.items()}


def _rows(run: _Open, question: Json) -> Json:
    """So many rows from the given one on; the next question usually goes on behind them."""
    extent = codec.load_extent(question["extent"]) if is_mapping(question.get("extent")) else None
    skip = max(whole(question.get("skip")) or 0, 0)
    asked = f"{_table(question)} {sorted(extent.items()) if extent is not None else ''}"
    given, rest = run.rows.pop(asked, (-1, iter(())))
    if given != skip:
        rest = islice(run.reader.rows(_table(question), extent), skip, None)
    found = list(islice(rest, ROWS_AT_ONCE))
    run.rows.clear()  # one at a time: an iterator may hold a file
    if len(found) == ROWS_AT_ONCE:
        run.rows[asked] = (skip + len(found), rest)
    return {"rows": found, "more": len(found) == ROWS_AT_ONCE}


def _end(run: _Open, question: Json) -> Json:
    """Where everything ends that is written in these tables."""
    return run.reader.follow(_tables(question), from_end=True).positions.as_json()


def _poll(run: _Open, question: Json) -> Json:
    """What was written behind these positions, and where that ends."""
    from trainvitals.journal.listening import Positions

    tables = _tables(question)
    at = Positions.parse(question.get("at"))
    limit = min(max(whole(question.get("limit")) or POLL_BYTES, 1), POLL_BYTES)
    feed = run.feeds.get(tables)
    if feed is None or feed.positions.as_json() != at.as_json():
        feed = run.reader.follow(tables)
        feed.positions = at
        run.feeds[tables] = feed
    found = feed.poll(limit)
    size = sum(len(dump_json(row)) for _, row in found)
    return {"rows": [[file.jsonl, row] for file, row in found], "at": feed.positions.as_json(), "more": size >= limit}


def _tables(question: Json) -> tuple[str, ...]:
    known = (*layout.METRIC_TABLES, *layout.LINE_TABLES)
    return tuple(table for table in texts(question.get("tables")) or () if table in known)


def _read_medium(run: _Open, question: Json) -> Message:
    file = _text(question, "file")
    item = next((item for item in run.reader.media() if item.file == file), None)
    if item is None:
        raise JournalError(f"no file '{file[:100]}' in this run")
    return Message({}, item.read())


def _read_patch(run: _Open, question: Json) -> Message:
    attempt = whole(question.get("attempt"))
    patch = next((patch for patch in run.reader.patches() if patch.about.attempt == attempt), None)
    if patch is None:
        raise JournalError("no patch of this attempt")
    return Message({}, patch.read())


def _read_text(run: _Open, question: Json) -> Json:
    found = run.reader.read_text(
        cast("Any", _choice(question, "kind", "console", "stack")),
        _text(question, "name"),
        min(max(whole(question.get("limit")) or 0, 1), 16 << 20),
        whole(question.get("after")),
    )
    return cast("Json", codec.dump_plain(found))


def _stamp_of(run: _Open, question: Json) -> str:
    import hashlib

    return hashlib.blake2b(repr(run.reader.stamp()).encode(), digest_size=16).hexdigest()


def _findings(run: _Open, question: Json) -> Json | None:
    found = run.reader.findings()
    return found.as_json() if found is not None else None


_OF_A_RUN: Mapping[str, Callable[[_Open, Json], Any]] = {
    "info": lambda run, _: codec.dump_info(run.reader.info),
    "statuses": lambda run, _: [item.as_json() for item in run.reader.statuses()],
    "findings": _findings,
    "damage": lambda run, _: codec.dump_plain(run.reader.damage()),
    "stamp": _stamp_of,
    "tables": lambda run, _: run.reader.tables(),
    "names": lambda run, question: run.reader.names(_table(question)),
    "labels": lambda run, question: run.reader.labels(_table(question)),
    "participants": lambda run, question: list(map(str, run.reader.participants(whole(question.get("attempt"))))),
    "series": _series,
    "states": lambda run, question: codec.dump_states(
        run.reader.states(texts(question.get("names")) or (), table=_table(question))
    ),
    "summary": _summary,
    "newest_steps": lambda run, question: run.reader.newest_steps(max(whole(question.get("count")) or 0, 0)),
    "first_steps": lambda run, _: list(run.reader.first_steps().items()),
    "histogram_names": lambda run, _: run.reader.histogram_names(),
    "histograms": lambda run, question: run.reader.histograms(_text(question, "name")),
    "events": lambda run, _: [item.as_json() for item in run.reader.events()],
    "alerts": lambda run, _: [item.as_json() for item in run.reader.alerts()],
    "count_benchmarks": lambda run, _: run.reader.count_benchmarks(),
    "benchmarks": lambda run, _: [item.as_json() for item in run.reader.benchmarks()],
    "extent": lambda run, question: dict(run.reader.extent(_table(question))),
    "rows": _rows,
    "end": _end,
    "poll": _poll,
    "texts": lambda run, question: codec.dump_plain(
        run.reader.texts(cast("Any", _choice(question, "kind", "console", "stack")))
    ),
    "read_text": _read_text,
    "patches": lambda run, _: [item.about.as_json() for item in run.reader.patches()],
    "read_patch": _read_patch,
    "media": lambda run, _: codec.dump_media(run.reader.media()),
    "read_medium": _read_medium,
}


# -- on standard input and output


def serve_stdio(far: FarSide, questions: IO[bytes], answers: IO[bytes]) -> None:
    """Greet, then answer every question until the other end hangs up."""
    answers.write(messages.GREETING + f"{messages.PROTOCOL}\n".encode())
    answers.flush()

    def read_bytes(size: int) -> bytes:
        data = questions.read(size)
        if len(data) < size:
            raise EOFError
        return data

    while True:
        try:
            question = messages.read(read_bytes, most_json=messages.MOST_QUESTION, most_rest=0)
        except EOFError:
            return
        except MessageError as error:
            raise MachineError(str(error), hint="see: trainvitals reader --help") from error
        answers.write(encode_answer(far, question.json))
        answers.flush()


def encode_answer(far: FarSide, question: Json) -> bytes:
    """The answer as bytes; one that is too large says so instead."""
    try:
        return messages.encode(far.answer(question))
    except MessageError as error:
        failed = _fail("MachineError", str(error), "ask for fewer points or a shorter range")
        return messages.encode(failed._replace(json={**failed.json, "id": question.get("id")}))


def take_standard_streams() -> tuple[IO[bytes], IO[bytes]]:
    """Standard input and output for messages alone: what anything in this process prints goes to standard error."""
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return questions, answers

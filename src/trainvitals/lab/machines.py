"""One machine: whether it answers, what runs it has and how its hardware is, from memory, so that nobody waits for it.

A thread of its own asks it every few seconds. A machine that does not answer, or not in time, is asked again after a
pause that doubles; until then everything known of it stays, and every question about one of its runs fails at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import orjson

from trainvitals.errors import MachineError, TrainvitalsError
from trainvitals.journal.documents.fields import finite, is_mapping, list_of, mapping, mapping_of, text, texts, whole
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.latest import AgentFile, LatestSample
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import ENDED, UNREADABLE, RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.journal.row_cache import MakeRow, Row
from trainvitals.journal.run_info import RunInfo
from trainvitals.journal.summaries import MetricSummary
from trainvitals.lab import codec
from trainvitals.lab.channels import CONNECT_SECONDS, Channel, ConnectionLost, OtherVersion, check_protocol
from trainvitals.lab.messages import Message
from trainvitals.lab.places import Place
from trainvitals.lab.readers import RemoteReader, load_summary
from trainvitals.safe_text import one_line

REFRESH_SECONDS = 2.0
SOON = 3
SOON_SECONDS = 0.4
"""Between the first answers."""
REST = 20
"""A machine with very many runs is asked less often: it rests for so many times as long as it took to answer."""
SLOW_SECONDS = 4.0
"""A machine that has not answered for this long is shown as slow."""
DEADLINE_SECONDS = 20.0
"""After this it does not answer."""
READ_SECONDS = 60.0
"""For a question about a run: a long one is read for a while."""
QUICK = frozenset({"info", "statuses", "findings", "alerts", "events", "end", "poll", "texts", "read_text"})
QUICK_SECONDS = 10.0
"""For what is asked every second of a run that somebody looks at."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
MOST_RUNS = 20_000
MOST_BYTES = 256 << 20
"""Of all that a list says: a far side that says more decides nothing about the memory of this process."""

StateWord = Literal["connecting", "up", "slow", "down", "incompatible"]


@dataclass(frozen=True, slots=True)
class MachineHardware:
    """The newest samples of a machine."""

    samples: Mapping[str, LatestSample] = field(default_factory=dict)
    """By unit."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a unit or a source has no newer sample."""
    origin: str = ""
    """`agent`, `own sampling`, or empty if there are none."""
    age: float | None = None
    """Seconds since they were written, when the machine was asked."""
    agent: AgentFile | None = None
    """None if none runs there."""

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> MachineHardware:
        agent = mapping(data.get("agent"))
        return cls(
            samples=mapping_of(lambda item: LatestSample.parse(item) if is_mapping(item) else None)(data.get("samples"))
            or {},
            reasons=mapping_of(text)(data.get("reasons")) or {},
            origin=text(data.get("origin")) or "",
            age=finite(data.get("age")),
            agent=AgentFile.parse(agent) if agent is not None else None,
        )


@dataclass(frozen=True, slots=True)
class MachineState:
    """What is known of a machine now."""

    name: str
    target: str
    word: StateWord
    detail: str
    """Why it is not up; empty if it is."""
    hint: str
    """What to do about that."""
    version: str
    """Of trainvitals there; empty if it never answered."""
    host: str
    """What it calls itself."""
    place: str
    """Where it keeps its runs."""
    heard: float | None
    """Seconds since 1970, when it answered last; None: never."""
    hardware: MachineHardware
    runs: int


class Entry:
    """What a list says of one run, parsed when somebody asks."""

    def __init__(self, machine: str, data: Mapping[str, Any]) -> None:
        self._machine = machine
        self._encoded = orjson.dumps(data)
        self.size = len(self._encoded)
        info = mapping(data.get("info")) or {}
        file = RunFile.parse(info.get("file"))
        self.created = file.created or text(info.get("started")) or ""
        self.identity = (file.id, self.created, file.host_name)
        """The same on two machines that see one folder."""
        self.is_live = text(info.get("status")) not in (*ENDED, UNREADABLE, None)
        self._row: Row | None = None

    def _document(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = orjson.loads(self._encoded)
        return found

    def info(self) -> RunInfo:
        return codec.load_info(mapping(self._document().get("info")) or {}, self._machine)

    def statuses(self) -> list[Status]:
        return [Status.parse(item) for item in codec.load_objects(self._document().get("statuses"))]

    def alerts(self) -> list[AlertRow]:
        return [AlertRow.parse(item) for item in codec.load_objects(self._document().get("alerts"))]

    def findings(self) -> FindingsFile | None:
        found = mapping(self._document().get("findings"))
        return FindingsFile.parse(found) if found is not None else None

    def summary(self) -> Mapping[str, MetricSummary] | None:
        """Of a run that no agent followed; None: to be asked for."""
        found = mapping(self._document().get("summary"))
        return load_summary(found) if found is not None else None

    def recall(self, make: MakeRow) -> Row:
        """What `make` gives, asked once of an ended run."""
        if self._row is not None:
            return self._row
        made = make()
        row: Row = orjson.loads(dump_json(spell_all(made.row)))
        if made.lasts:
            self._row = row
        return row


class Machine:
    """Safe for several threads: what they read is replaced, never changed."""

    def __init__(
        self, place: Place, connect: Callable[[], Channel], *, interval: float = REFRESH_SECONDS, patient: bool = False
    ) -> None:
        """`connect` opens a channel; one is for what is asked every few seconds, one for questions about runs, so that
        a long answer delays neither the list nor the hardware. `patient` is who asks once and has nothing else to do:
        then a machine that is slow is waited for."""
        self.place = place
        self._patient = patient
        self.name = place.name
        self.entries: Mapping[str, Entry] = {}
        """By key, oldest first."""
        self.answers = 0
        """How often it has told all that is asked every few seconds, since the connection was made."""
        self._connect = connect
        self._interval = interval
        self._word: StateWord = "connecting"
        self._problem: tuple[str, str] = ("", "")
        self._about: Mapping[str, Any] = {}
        self._order: tuple[str, ...] = ()
        self._heard: float | None = None
        self._asked: float | None = None
        """Monotonic time of the question that is not answered yet."""
        self._hardware = MachineHardware()
        self._reading = threading.Lock()
        self._read_channel: Channel | None = None
        self._watch_channel: Channel | None = None
        self._ended = threading.Event()
        self._hurry = threading.Event()
        self._tried = threading.Event()

    # -- for anybody

    def start(self) -> None:
        """Begin to ask, in a thread."""
        threading.Thread(target=self._watch, name=f"machine-{self.name}", daemon=True).start()

    def stop(self) -> None:
        """Ask no more, and hang up."""
        self._ended.set()
        self._hurry.set()
        for channel in (self._watch_channel, self._read_channel):
            if channel is not None:
                channel.close()

    def wait(self, seconds: float) -> bool:
        """Until all of its runs are known, or it is known not to answer; whether that is so."""
        return self._tried.wait(seconds)

    @property
    def state(self) -> MachineState:
        word, (detail, hint), asked = self._word, self._problem, self._asked
        waited = time.monotonic() - asked if asked is not None else 0.0
        if word in ("up", "connecting") and waited > SLOW_SECONDS:
            word, detail = "slow", f"no answer for {waited:.0f} s"
        return MachineState(
            name=self.name,
            target=self.place.target,
            word=word,
            detail=detail,
            hint=hint,
            version=text(self._about.get("version")) or "",
            host=text(self._about.get("host")) or "",
            place=text(self._about.get("place")) or "",
            heard=self._heard,
            hardware=self._hardware,
            runs=len(self.entries),
        )

    def open(self, key: str) -> RemoteReader:
        """A reader of one of its runs. Asks nothing yet."""
        return RemoteReader(self.name, partial(self._ask_run, key), lambda: self._find_summary(key))

    def _find_summary(self, key: str) -> Mapping[str, MetricSummary] | None:
        entry = self.entries.get(key)
        return entry.summary() if entry is not None else None

    # -- questions about runs, in the thread of who asks

    def _ask_run(self, key: str, asked: str, **more: Any) -> Message:
        self._require_up()
        with self._reading:
            self._require_up()  # it may have stopped answering while another question waited
            question = {"ask": asked, "run": key, **more}
            seconds = QUICK_SECONDS if asked in QUICK and not self._patient else READ_SECONDS
            try:
                try:
                    return self._open_reading().ask(question, seconds)
                except ConnectionLost:  # perhaps long ago: nothing is changed by asking twice
                    return self._open_reading().ask(question, seconds)
            except MachineError as error:
                if self._read_channel is None or not self._read_channel.is_open:
                    self._hurry.set()  # the watch finds out whether it is the machine
                raise MachineError(f"{self.name}: {error.message}", hint=error.hint) from error

    def _open_reading(self) -> Channel:
        """The channel for questions about runs, a new one if there is none."""
        if self._read_channel is None or not self._read_channel.is_open:
            self._read_channel = self._connect()
            self._greet(self._read_channel)
        return self._read_channel

    def _require_up(self) -> None:
        state = self.state
        if state.word != "up" and not (self._patient and state.word == "slow"):
            raise MachineError(
                f"{self.name} is {state.word}{f': {state.detail}' if state.detail else ''}", hint=state.hint or None
            )

    # -- what is asked every few seconds, in a thread of its own

    def _watch(self) -> None:
        pause = FIRST_PAUSE
        while not self._ended.is_set():
            begun = self._heard
            try:
                self._follow()
            except TrainvitalsError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - whatever a far side answers, the others are asked on
                self._fail(MachineError(f"invalid response: {type(error).__name__}"))
            self._tried.set()
            if self._ended.is_set():
                return
            pause = FIRST_PAUSE if self._heard != begun else min(2 * pause, LONGEST_PAUSE)
            self._hurry.clear()
            self._ended.wait(LONGEST_PAUSE if self._word == "incompatible" else pause)

    def _follow(self) -> None:
        """Until it fails."""
        self._asked = time.monotonic()
        self.answers = 0
        channel = self._watch_channel = self._connect()
        try:
            self._about = self._greet(channel)
            fresh = True
            while not self._ended.is_set():
                begun = time.monotonic()
                for _ in range(MOST_RUNS):
                    if not self._take_list(self._ask(channel, ask="list", fresh=fresh).json, fresh=fresh):
                        break
                    fresh = False
                fresh = False
                self._hardware = MachineHardware.parse(self._ask(channel, ask="hardware").json)
                self._word, self._problem, self._heard = "up", ("", ""), time.time()
                self.answers += 1
                self._tried.set()
                # What is measured only because we ask takes a moment.
                pause = self._interval if self.answers > SOON else min(SOON_SECONDS, self._interval)
                self._hurry.wait(max(pause, REST * (time.monotonic() - begun)))
                self._hurry.clear()
        finally:
            self._asked = None
            channel.close()

    def _ask(self, channel: Channel, **question: Any) -> Message:
        self._asked = time.monotonic()
        try:
            return channel.ask(question, DEADLINE_SECONDS)
        finally:
            self._asked = None

    def _greet(self, channel: Channel) -> Mapping[str, Any]:
        found = channel.ask({"ask": "hello"}, CONNECT_SECONDS).json
        about = {name: one_line(text(found.get(name)) or "")[:200] for name in ("version", "host", "place")}
        check_protocol(whole(found.get("protocol")), about["version"])
        return about

    def _fail(self, error: TrainvitalsError) -> None:
        self._word = "incompatible" if isinstance(error, OtherVersion) else "down"
        self._problem = (error.message, error.hint or "")

    def _take_list(self, answer: Mapping[str, Any], *, fresh: bool) -> bool:
        """Whether there is more of it. An answer without a run that promises more would be asked for ever."""
        known = dict(self.entries) if not fresh or "order" not in answer else {}
        before = self.entries
        changed = list_of(mapping)(answer.get("changed")) or ()
        size = sum(entry.size for entry in known.values())
        for item in changed:
            key = text(item.get("key"))
            if key is not None and _is_key(key) and len(known) < MOST_RUNS:
                made = Entry(self.name, item)
                size += made.size
                if size > MOST_BYTES:
                    break
                known[key] = made
        order = texts(answer.get("order"))
        if order is not None:
            # What was known before the connection was lost stays until it is told again.
            self.entries = {key: entry for key in order if (entry := known.get(key) or before.get(key)) is not None}
            self._order = order
        else:
            self.entries = {key: known[key] for key in self._order if key in known}
        return answer.get("more") is True and bool(changed)


def _is_key(key: str) -> bool:
    """Whether it may be part of an address: one that is not comes from no folder of ours."""
    return 0 < len(key) <= 250 and key.isprintable() and "/" not in key

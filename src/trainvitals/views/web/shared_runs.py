"""Runs for many viewers at once: what a list shows is kept until it changes, and each run has one guarded reader.

A request names a run by a key that is looked up in the listing: no text of a request ever becomes part of a path.
Tested in tests/views/web/test_app.py.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from trainvitals.errors import RunNotFound, nearest
from trainvitals.journal.contracts import AlertTally, Reader, Runs
from trainvitals.journal.documents.run import UNREADABLE
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.views.data.fleet_runs import FleetBook, FleetRun
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.shapes import RowJson
from trainvitals.views.data.wire import encode
from trainvitals.views.web.endpoints import NotFound

LISTING_SECONDS = 1.0
MAX_READERS = 32
TALLY_SECONDS = 60.0


class _Guarded:
    """A reader and the lock that makes it safe for several threads."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lock = threading.Lock()


class _Known(NamedTuple):
    row: RowJson
    encoded: bytes
    number: int
    """Of the listing in which it was first like this."""


class Changed(NamedTuple):
    """What is not as it was in an earlier listing."""

    keys: Set[str]
    """Of the runs that are new or have another row."""
    order: bool
    """Whether runs came, went or changed places."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All runs at one time, newest first."""

    server: str
    number: int
    """Higher than that of any earlier listing that was different."""
    ordered: int
    """The number of the first listing with the same runs in the same order."""
    rows: list[RowJson]
    known: Mapping[str, _Known]

    @property
    def version(self) -> str:
        return f"{self.server}-{self.number}"

    def changed(self, version: str) -> Changed | None:
        """Since that version; None if it is of another server."""
        server, _, number = version.partition("-")
        if server != self.server or not (number.isascii() and number.isdecimal()) or int(number) > self.number:
            return None
        since = int(number)
        return Changed({key for key, item in self.known.items() if item.number > since}, self.ordered > since)

    def encoded(self, row: RowJson) -> orjson.Fragment:
        """The row as it goes into an answer."""
        return orjson.Fragment(self.known[row["key"]].encoded)


class SharedRuns:
    """Safe for several threads, whatever `runs` is."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._lock = threading.Lock()
        self._listed = 0.0
        self._keys: dict[str, None] = {}
        self._readers: OrderedDict[str, _Guarded] = OrderedDict()
        self._reading_rows = threading.Lock()
        self._fleet = FleetBook()
        self._tallying = threading.Lock()
        self._tallies: tuple[object, float, list[AlertTally]] = (None, 0.0, [])
        self._born = secrets.token_hex(4)
        self._listing = Listing(self._born, 0, 0, [], {})

    @property
    def place(self) -> str:
        """Where the runs are kept."""
        return self._runs.place

    def keys(self) -> dict[str, None]:
        """Every run, oldest first."""
        with self._lock:
            if time.monotonic() - self._listed > LISTING_SECONDS:
                self._keys = dict.fromkeys(self._runs.list_keys())
                self._listed = time.monotonic()
            return self._keys

    def find(self, key: str) -> str:
        """The key itself, or that of the newest run for `latest`; raises NotFound."""
        keys = self.keys()
        if key == "latest" and keys:
            return next(reversed(keys))
        if key not in keys:
            with self._lock:
                self._listed = 0.0  # it may be younger than the listing
            keys = self.keys()
        if key not in keys:
            shown = key if len(key) <= 80 else f"{key[:79]}…"
            raise NotFound(
                f"no run '{shown}'{nearest(key, keys)}",
                hint="it may have been deleted or moved: 'trainvitals runs' and the Runs page list all runs",
            )
        return key

    def open(self, key: str) -> Reader:
        """A reader that nobody else uses; raises NotFound."""
        key = self.find(key)
        try:
            return self._runs.open(key)
        except RunNotFound as error:
            self.forget(key)
            raise NotFound(error.message, hint="it was deleted or moved") from error

    @contextmanager
    def reader(self, key: str) -> Iterator[Reader]:
        """The run's reader, for this thread alone while it is held."""
        key = self.find(key)
        guarded = self._guarded(key)
        with guarded.lock:
            try:
                yield guarded.reader
            except RunNotFound as error:
                self.forget(key)
                raise NotFound(error.message, hint=self._why_not(key)) from error

    def _guarded(self, key: str) -> _Guarded:
        guarded = self._readers.get(key) or _Guarded(self.open(key))
        with self._lock:
            guarded = self._readers.setdefault(key, guarded)  # another thread may have been faster
            self._readers.move_to_end(key)
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
        return guarded

    def _why_not(self, key: str) -> str:
        try:
            damaged = self._runs.describe(key).status == UNREADABLE
        except RunNotFound:
            damaged = False
        return "it is damaged or still being copied" if damaged else "it was deleted or moved"

    def forget(self, key: str) -> None:
        """The run is gone."""
        with self._lock:
            self._readers.pop(key, None)
            self._listed = 0.0

    def listing(self) -> Listing:
        """All runs as they are now. An ended run is read and encoded again only when it changed."""
        with self._reading_rows:  # a second thread finds them read
            rows = list_json(self._runs, reversed(self.keys()))
            before, number = self._listing, self._listing.number + 1
            known = before.known
            found: dict[str, _Known] = {}
            for row in rows:
                key = row["key"]
                old = known.get(key)
                if old is None or old.row is not row:
                    encoded = encode(row)
                    old = _Known(row, encoded, old.number if old is not None and old.encoded == encoded else number)
                found[key] = old
            ordered = before.ordered if list(found) == list(known) else number
            if ordered < number and all(item.number < number for item in found.values()):
                number = before.number
            self._listing = Listing(self._born, number, ordered, rows, found)
            return self._listing

    def fleet(self) -> list[FleetRun]:
        """The runs of the last weeks, with what each of their hosts reported."""
        return self._fleet.read(self._runs, self.keys())

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        """Which alerts fired in any run. Of weeks, so a minute more or less does not matter."""
        with self._tallying:
            asked = (tuple(sorted(rules)), round(end - start))
            known, until, found = self._tallies
            if known != asked or time.monotonic() >= until:
                found = self._runs.tally_alerts(rules, start, end)
                self._tallies = (asked, time.monotonic() + TALLY_SECONDS, found)
            return found

    def statuses(self, key: str) -> Sequence[Status]:
        """What the agents reported of the run, each of its host."""
        return self._runs.statuses(key)

    def has_project(self, project: str) -> bool:
        """Whether it has runs; most often known without reading any."""
        self.keys()
        return self._runs.has_folder(project) or any(row["project"] == project for row in self.listing().rows)

    def find_view(self, project: str) -> ViewFile | None:
        """How the page shows a project; raises JournalError if what is kept is damaged."""
        return self._runs.find_view(project)

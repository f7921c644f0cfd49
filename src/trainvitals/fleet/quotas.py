"""What projects and tokens have shipped, and whether they may ship more.

A gateway has no state, so what was used is in the engine, in `usage`: every gateway adds up what it took of each run by
day and token, writes the sums there every few seconds, and reads those of the others. A row has the sum so far, so it
does no harm when one comes twice.

A limit is looked at before a request is taken: so it is passed by the requests of that moment, and no request is too
large for it. What is over it is not refused for good. It stays in the folders of its host, and is asked for again.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trainvitals.errors import TrainvitalsError
from trainvitals.fleet.clickhouse import EngineError, literal
from trainvitals.fleet.intake import RowBlocks
from trainvitals.fleet.store import Store, rows_of, text
from trainvitals.fleet.tokens import Access, Limits, Tokens

SHARE_SECONDS = 10.0
"""Between two looks at what other gateways took; so long a refused project waits before its runs are counted again."""
RUNS_SECONDS = 600
"""What an agent is asked to wait where runs have to be removed first."""
DAY = 86_400


class OverQuota(TrainvitalsError):
    """A project or a token has had its share."""

    def __init__(self, message: str, seconds: int) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is counted by itself."""

    day: int
    project: str
    run: str
    token: str


class Quotas:
    """Of all projects. Used in the loop of the requests."""

    def __init__(self, store: Store, tokens: Tokens, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._tokens = tokens
        self._clock = clock
        self._gateway = secrets.token_hex(8)
        self._taken: Counter[_Taken] = Counter()
        """By this gateway, today; of the day before what is not written yet."""
        self._unwritten: set[_Taken] = set()
        self._changing = threading.Lock()
        self._writing = threading.Lock()
        self._today = 0
        self._own: Counter[tuple[str, str]] = Counter()
        """Bytes of today by project and token; of this gateway, and of the others."""
        self._others: Counter[tuple[str, str]] = Counter()
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self._begun: set[tuple[str, str]] = set()
        """New runs of which the first request is being taken: they are not in the engine yet."""
        self._full: dict[tuple[str, str], float] = {}
        """Projects and tokens without room for another run, and when that was found."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the loop of the requests."""
        self._task = asyncio.create_task(self._share())

    async def stop(self) -> None:
        """What was taken since the last time is written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await asyncio.to_thread(self._write)
        except EngineError:
            pass  # a few seconds' worth is not counted

    async def check(self, access: Access, project: str, run: str, *, is_new: bool) -> None:
        """Whether more may be taken of this run; `is_new` if nothing of it is in the engine. Raises OverQuota and
        EngineError. Whatever becomes of the request, `leave` is called at its end."""
        self._turn_day()
        limits = self._tokens.find_limits(project)
        for limit, who, token in (
            (limits, f"project {project!r}", ""),
            (access.limits, f"the token {access.name!r}", access.name),
        ):
            if limit:
                await self._check_bytes(limit, who, project, token)
                if is_new and (project, run) not in self._begun:
                    await self._check_runs(limit, who, project, token)
        if is_new:
            self._begun.add((project, run))

    def add(self, access: Access, project: str, run: str, size: int) -> None:
        """So many bytes are in the engine."""
        self._turn_day()
        taken = _Taken(self._today, project, run, access.name)
        with self._changing:
            self._taken[taken] += size
            self._unwritten.add(taken)
        self._own[project, access.name] += size

    def leave(self, project: str, run: str) -> None:
        """The request is over: what was taken is in the engine, and counted there."""
        self._begun.discard((project, run))

    def _turn_day(self) -> None:
        today = self._day()
        if today != self._today:
            self._today = today
            self._own.clear()
            self._looked = float("-inf")
            with self._changing:
                self._taken = Counter({taken: self._taken[taken] for taken in self._unwritten})

    # -- limits

    async def _check_bytes(self, limit: Limits, who: str, project: str, token: str) -> None:
        if limit.gb_per_day is None:
            return
        await self._look()
        used = sum(
            size
            for counted in (self._own, self._others)
            for (its_project, its_token), size in counted.items()
            if (its_token == token if token else its_project == project)
        )
        if used >= limit.gb_per_day * 1e9:
            left = DAY - int(self._clock()) % DAY
            raise OverQuota(f"{who} has shipped its {limit.gb_per_day:g} GB for today (UTC)", left)

    async def _check_runs(self, limit: Limits, who: str, project: str, token: str) -> None:
        if limit.runs_per_day is None and limit.runs is None:
            return
        key = (project, token)
        reason = f"{who} has reached its limit of runs"
        if self._clock() - self._full.get(key, float("-inf")) < SHARE_SECONDS:
            raise OverQuota(reason, RUNS_SECONDS)
        waiting = sum(1 for its_project, _ in self._begun if token or its_project == project)
        counts = await asyncio.to_thread(self._count_runs, limit, project, token)
        for count, most in zip(counts, (limit.runs_per_day, limit.runs), strict=True):
            if count is not None and most is not None and count + waiting >= most:
                self._full[key] = self._clock()
                raise OverQuota(reason, RUNS_SECONDS)

    def _count_runs(self, limit: Limits, project: str, token: str) -> tuple[int | None, int | None]:
        """New ones of today, and all that are kept."""
        engine = self._store.engine
        today = kept = None
        which = f"token = {literal(token)}" if token else f"project = {literal(project)}"
        if limit.runs_per_day is not None:
            self._write()
            first = f"SELECT project, run, min(received) AS first FROM usage WHERE {which} GROUP BY project, run"
            today = int(engine.execute(f"SELECT count() FROM ({first}) WHERE first = {self._day()}"))
        if limit.runs is not None:
            there = which if not token else f"(project, run) GLOBAL IN (SELECT project, run FROM usage WHERE {which})"
            kept = int(engine.execute(f"SELECT uniqExact(project, run) FROM ends WHERE {there}"))
        return today, kept

    # -- what other gateways took

    async def _share(self) -> None:
        while True:
            await asyncio.sleep(SHARE_SECONDS)
            try:
                await asyncio.to_thread(self._write)
            except EngineError:
                pass  # the sums are written when it is back

    async def _look(self) -> None:
        async with self._looking:
            if self._clock() - self._looked >= SHARE_SECONDS:
                self._others = await asyncio.to_thread(self._read_others)
                self._looked = self._clock()

    def _read_others(self) -> Counter[tuple[str, str]]:
        each = (
            "SELECT project, run, token, gateway, max(bytes) AS most FROM usage "
            f"WHERE received = {self._day()} AND gateway != {literal(self._gateway)} "
            "GROUP BY project, run, token, gateway"
        )
        found = self._store.engine.select(
            f"SELECT project, token, sum(most) AS total FROM ({each}) GROUP BY project, token"
        )
        return Counter({(text(row["project"]), text(row["token"])): int(row["total"]) for row in rows_of(found)})

    def _write(self) -> None:
        """When this returns, all that was taken before is in the engine."""
        with self._writing:
            with self._changing:
                sums = {taken: self._taken[taken] for taken in self._unwritten}
                self._unwritten = set()
            if not sums:
                return
            intake = RowBlocks()
            intake.add(
                "usage",
                {
                    "project": [taken.project for taken in sums],
                    "run": [taken.run for taken in sums],
                    "received": np.array([taken.day for taken in sums]),
                    "token": [taken.token for taken in sums],
                    "gateway": [self._gateway] * len(sums),
                    "bytes": np.array(list(sums.values())),
                },
            )
            try:
                self._store.write(intake.blocks)
            except EngineError:
                with self._changing:
                    self._unwritten |= sums.keys()
                    self._taken.update({taken: size for taken, size in sums.items() if taken not in self._taken})
                raise

    def _day(self) -> int:
        return int(time.strftime("%Y%m%d", time.gmtime(self._clock())))

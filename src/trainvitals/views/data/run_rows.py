"""A run on one line: the same in `trainvitals runs`, the terminal's list, the page's table and a report's head.

Made from run.json, the status files, alerts and findings.json, so that thousands are listed quickly, and without numpy.
Tested in tests/views/test_same_answers.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from trainvitals import catalog
from trainvitals.alerts.records import NOTHING_FIRED, Fired, count_fired
from trainvitals.alerts.records import current as current_alerts
from trainvitals.analysis.gpu_use import kept_energy
from trainvitals.analysis.health import Health, format_problems, judge_health
from trainvitals.errors import RunNotFound, TrainvitalsError
from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.findings import Counts, FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import UNREADABLE, RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.flat_config import flatten
from trainvitals.journal.run_info import RunInfo, make_info
from trainvitals.views.data.quantities import format_duration
from trainvitals.views.data.run_listing import MAX_OWN_SECONDS, recall_row

if TYPE_CHECKING:  # with all that the API answers, which a list of runs does not wait for
    from trainvitals.views.data.shapes import RowJson

CLOCK_SECONDS = 60.0
"""A difference of two clocks that is more than an unsynchronized minute or a slow disk."""
MAX_VALUES = 200
"""Metrics whose last value is in a row."""


@dataclass(frozen=True, slots=True)
class ListedRun:
    """A run as every list shows it; what nobody recorded is None or empty."""

    key: str
    """By which its `Runs` knows it."""
    info: RunInfo
    started: float | None
    """Seconds since 1970."""
    ended: float | None
    last_step: int | None
    """The step that the lowest participant logged last, which is not the highest where steps went back."""
    host: str
    """Where its first process runs or ran."""
    last_values: Mapping[str, float]
    """The last value of each training metric, under the name that was logged."""
    energy_joules: float | None
    """Of its own GPUs together, as the agents counted it."""
    firing: Sequence[AlertRow] = ()
    """The alerts that fire now, the worst first, without those that are silenced."""
    fired: Fired = NOTHING_FIRED
    findings: Counts | None = None
    """Of an ended run; None if it was not diagnosed yet."""
    watched: bool = True
    """Whether an agent reported anything."""
    ahead: float = 0.0
    """Seconds by which the clock of its agent is ahead of ours; 0 unless that is far. One that is behind looks like an
    agent for which nothing has changed."""
    lasts: bool = False
    """Whether all of this stays as it is until a file of the run changes: it does not with time, or with a process."""

    @property
    def kind(self) -> str:
        return self.info.file.kind

    @property
    def tags(self) -> list[str]:
        return list(self.info.file.tags)

    @property
    def health(self) -> Health:
        info = self.info
        return judge_health(info.status, info.cause_text, self.firing, self.last_values, self.fired, self.findings)

    @property
    def problems(self) -> str:
        """What is or was wrong beside the status and its cause: `loss is NaN, 1 critical alert, 2 findings`."""
        health = self.health
        if health.severity != "ok" and health.word != self.info.status:
            return health.reason
        found = format_problems(self.fired.ever, self.findings or Counts())
        return ", ".join(filter(None, (found, describe_ahead(self.ahead))))

    def last_value(self, metric: str) -> float | None:
        """Of a metric by the catalog's name, whichever of its names was logged."""
        name = catalog.find_spelling("training", metric, self.last_values)
        return self.last_values[name] if name is not None else None

    def seconds(self, now: float | None = None) -> float | None:
        """How long all attempts together took, or have taken until `now`, without the time between them and those whose
        end nobody noted; None if that is so of the newest. `now` is by our clock, the rest by that of its machine."""
        ended = self.ended
        if ended is None and self.info.is_live:
            ended = (now if now is not None else time.time()) + self.ahead
        if self.started is None or ended is None:
            return None
        return max(ended - self.started, 0.0) + seconds_before(self.info)


def count_findings(kept: FindingsFile | None, info: RunInfo) -> Counts | None:
    """The findings that a run's health counts, in every view: those of an ended run, made after its last attempt. The
    health of a live run is its status, alerts and newest values, since a list cannot diagnose each of its runs; its
    findings are shown beside that."""
    return kept.counts if kept is not None and kept.attempt == info.attempt and not info.is_live else None


def seconds_before(info: RunInfo) -> float:
    """How long the attempts before the newest took."""
    earlier = (attempt for attempt in info.file.attempts if attempt.number != info.attempt)
    spans = ((parse_time(attempt.started), parse_time(attempt.ended)) for attempt in earlier)
    return sum(max(end - start, 0.0) for start, end in spans if start is not None and end is not None)


def measure_ahead(said: float | None, now: float) -> float:
    """Seconds by which the clock of who said something at that moment is ahead of ours: nobody writes in the future. 0
    if that is no more than `CLOCK_SECONDS`."""
    return said - now if said is not None and said - now > CLOCK_SECONDS else 0.0


def describe_ahead(seconds: float) -> str:
    """In words; empty if it is not."""
    return f"its clock is {format_duration(seconds)} ahead of this machine's" if seconds else ""


def list_rows(runs: Runs) -> list[ListedRun]:
    """All runs, oldest first; a run that was removed meanwhile is left out, and one that cannot be shown is marked."""
    found = []
    until = time.monotonic() + MAX_OWN_SECONDS
    for key in runs.list_keys():
        try:
            row = read_row(runs, key)
            found.append(_recall_values(runs, row, until) if lacks_values(row) else row)
        except RunNotFound:
            continue
        except TrainvitalsError:  # what keeps them cannot be asked
            raise
        except Exception as error:  # noqa: BLE001 - a run may be anybody's: no other is kept from the list by it
            found.append(mark_row(runs, key, error))
    runs.keep_rows()
    return found


def _recall_values(runs: Runs, row: ListedRun, until: float) -> ListedRun:
    """With those of its own files, which are read once."""
    known = recall_row(runs, row.key, until)
    values = {name: float(value) for name, value in known["summary"].items() if value is not None}
    return replace(row, last_values=values, last_step=known["step"])


def lacks_values(row: ListedRun) -> bool:
    """Whether the run has ended and no agent followed it: then nobody noted what it logged last."""
    return row.lasts and not row.watched


def add_own_values(row: ListedRun, open: Callable[[], Reader]) -> ListedRun:
    """Those that nobody noted, as the run's own files have them."""
    if not lacks_values(row):
        return row
    try:
        summary = open().summary()
    except (TrainvitalsError, OSError):
        return row
    steps = [item.last_step for item in summary.values() if item.last_step is not None]
    return replace(
        row,
        last_values={name: item.last for name, item in islice(summary.items(), MAX_VALUES)},
        last_step=row.last_step if row.last_step is not None else max(steps, default=None),
    )


def read_row(runs: Runs, key: str) -> ListedRun:
    """A run as a list shows it: also one that cannot be read."""
    return make_row(key, runs.describe(key), runs.statuses(key), runs.alerts(key), runs.findings(key))


def mark_row(runs: Runs, key: str, error: Exception) -> ListedRun:
    """A run that nobody could make a row of, and why."""
    why = Cause(detail=f"{type(error).__name__}: {error}")
    info = make_info(f"{runs.place}/{key}", None, key, "", RunFile(), UNREADABLE, why)
    return make_row(key, info, (), (), None)


def read_row_of(reader: Reader, key: str) -> ListedRun:
    """The same of a run that is open."""
    row = make_row(key, reader.info, reader.statuses(), reader.alerts(), reader.findings())
    return add_own_values(row, lambda: reader)


def make_row(
    key: str, info: RunInfo, statuses: Sequence[Status], alerts: Sequence[AlertRow], findings: FindingsFile | None
) -> ListedRun:
    """`statuses` is what the agents reported, each of its host."""
    started = parse_time(info.started)
    now = time.time()
    current = [status for status in statuses if status.attempt in (None, info.attempt)]
    reported = [kept_energy(status) for status in statuses]
    energies = [joules for joules in reported if joules is not None]
    words = [moment for status in current if (moment := parse_time(status.updated)) is not None]
    return ListedRun(
        key=key,
        info=info,
        started=started,
        ended=parse_time(info.ended),
        last_step=_last_step(info, current),
        host=info.file.host_name,
        last_values=_last_values(current),
        energy_joules=sum(energies) if energies else None,
        firing=[alert for alert in current_alerts(alerts) if not alert.is_silenced(now)] if alerts else [],
        fired=count_fired(alerts, started) if alerts else NOTHING_FIRED,
        findings=count_findings(findings, info),
        watched=bool(statuses),
        ahead=measure_ahead(max(words, default=None), now) if info.is_live else 0.0,
        lasts=info.file.is_over and not any(alert.is_silenced(now) for alert in alerts),
    )


def describe_row(row: ListedRun) -> RowJson:
    """A run on one line of the table of runs."""
    info = row.info
    return {
        "key": row.key,
        "id": info.id,
        "name": info.name,
        "project": info.project,
        "status": info.status,
        "live": info.is_live,
        "cause": info.cause_text or None,
        "kind": row.kind,
        "started": info.started,
        "ended": info.ended,
        "seconds": row.seconds(),
        "step": row.last_step,
        "attempt": info.attempt,
        "simulated": info.simulated,
        "tags": row.tags,
        "host": row.host,
        "job": flatten(info.file.placed.as_json()),
        "config": flatten(info.file.config or {}),
        "summary": row.last_values,
        "energy_joules": row.energy_joules,
        "health": row.health._asdict(),
        "problems": row.problems,
        "alert_counts": row.fired.ever._asdict(),
        "finding_counts": row.findings._asdict() if row.findings is not None else None,
    }


def _last_step(info: RunInfo, current: Sequence[Status]) -> int | None:
    """As the run noted it at its end, else as the agents report it; both are of the lowest participant that logs."""
    if info.file.last_step is not None:
        return info.file.last_step if info.file.last_step >= 0 else None
    ranks = (item for status in current for item in status.participants().items())
    steps = {participant: rank.step for participant, rank in ranks if rank.step is not None and rank.step >= 0}
    if steps:
        return steps[min(steps)]
    # A program that is not seen to train and logs to files.
    summary = Status.of_lowest(current).summary.values()
    return max((item.last_step for item in summary if item.last_step is not None), default=None)


def _last_values(current: Sequence[Status]) -> dict[str, float]:
    """Of several hosts, as the one reports it that follows the lowest participant."""
    summary = Status.of_lowest(current).summary
    return {name: item.last for name, item in islice(summary.items(), MAX_VALUES)}

"""The alerts of one watched run: what the agent holds. Points and states of participants go in; all else follows.

    alerts = RunAlerts(folder, settings, about, pid=..., targets=...)
    alerts.see(batch)      # what was logged, events, what people ask for, of files that it `wants`
    alerts.see_sample(sample); alerts.see_participant(...)
    alerts.tick()          # several times a second
    alerts.end("finished") # or alerts.leave(): the agent goes, the run stays

All methods are called from the run's thread.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainvitals.alerts import builtin, records
from trainvitals.alerts.actions import Means, Target, act
from trainvitals.alerts.baseline import Baseline
from trainvitals.alerts.cases import FIRING
from trainvitals.alerts.channels.bell import find_terminals
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.environment import process_environment
from trainvitals.alerts.language import RuleError
from trainvitals.alerts.ledger import ANSWERS, Ledger, Policy
from trainvitals.alerts.outbox import Outbox
from trainvitals.alerts.points import EventPoints, life_point
from trainvitals.alerts.rule_leader import Claims
from trainvitals.alerts.rules import Rule
from trainvitals.journal import layout
from trainvitals.journal.cursor import find_line
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.rows import AlertRow, EventRow, new_alert_row
from trainvitals.journal.documents.status import AlertStatus
from trainvitals.journal.encoding import TimeParser, encode_line, parse_time
from trainvitals.journal.folder_notes import FolderNotes
from trainvitals.journal.follower import Follower
from trainvitals.journal.identity import Participant, subject_of
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Position, Positions
from trainvitals.journal.writer import MIB, LineWriter
from trainvitals.ownership import explain_foreign
from trainvitals.prices import Prices
from trainvitals.settings import Settings
from trainvitals.settings.addresses import REFERENCES, Address
from trainvitals.settings.channels import find_channel

TICK_SECONDS = 1.0
LEDGER_SECONDS = 0.2
CLAIM_SECONDS = 60.0
WARM_BYTES = 2 << 20
"""Of each training file that an earlier agent has judged: as much is read again to fill the windows of the rules."""
FAREWELL_SECONDS = 1.0
SAMPLE_SECONDS = 0.5
"""Built-in rules look at a GPU, the host and a process no more often than this, and at 20 lines a second of a rank."""
UNKNOWN_SECONDS = 60.0
"""How long a rule's metric may be missing before a warning."""

WriteEvent = Callable[[str, str, str], None]
"""Writes an event: name, message, severity."""


class RunAlerts:
    """Engine, ledger and outbox of one run on this host."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        about: Mapping[str, Any],
        *,
        name: FileName,
        pid: int | None = None,
        targets: Callable[[], list[Target]] = list,
        write_event: WriteEvent = lambda event, message, severity: None,
    ) -> None:
        """`about` is where the alerts are from (run, project, name, host); `name` is that of the agent's files."""
        adopt(folder)
        self.folder = folder
        self._settings = settings
        self._targets = targets
        self._write_event = write_event
        self._own = name._replace(table="alerts")
        self._about = {**about, **({"link": settings.alerts_link} if settings.alerts_link else {})}
        rules = builtin.read_rules(settings)
        self._rules = {rule.name: rule for rule in rules}
        self._claims = Claims(folder, str(about.get("host"))) if name.host is not None else None
        self._notes: deque[str] = deque()
        try:
            builtin.check_channels(settings, rules)
        except RuleError as error:  # the other channels and rules are still of use
            self._notes.append(error.message)
        self._baseline = Baseline(settings.alerts_baseline, folder, self._notes.append)
        # Built-in rules look at a sample of what a fast training logs; the user's own at every line.
        self._sampled = self._make_engine([rule for rule in rules if rule.built_in])
        own = [rule for rule in rules if not rule.built_in]
        self._engines = (self._sampled, self._make_engine(own)) if own else (self._sampled,)
        self._last_slot: dict[tuple[Any, ...], str] = {}
        self._last_sample: dict[tuple[Any, ...], float] = {}
        self._writer = LineWriter(
            folder,
            self._own,
            rotate_bytes=int(settings.rotate_size_mb * MIB),
            rotate_seconds=10 * 365 * 86400.0,  # state is read back from these files: few and small
            mode=settings.file_mode,
        )
        self.ledger = Ledger(
            Policy(
                channels=tuple(address.name for address in settings.alerts_notify),
                keepers=tuple(address.name for address in settings.alerts_notify if _may_keep(address)),
                min_severity=settings.alerts_min_severity,
                cooldown=settings.alerts_cooldown,
                repeat=settings.alerts_repeat,
                escalate_after=settings.alerts_escalate_after,
                escalate_notify=settings.alerts_escalate_notify,
            ),
            self._rules,
            self._about,
            self._write,
            self._may_speak if self._claims is not None else None,
        )
        self._deliveries: deque[AlertRow] = deque()
        self._outbox = Outbox(
            settings.alerts_notify,
            self._take_delivery,
            environment=process_environment(pid),
            folder=str(folder),
            terminals=lambda: find_terminals([target.pid for target in targets()]),
        )
        self._times = TimeParser()
        self._events = EventPoints()
        self._next_tick = 0.0
        self._next_ledger = 0.0
        self._next_claims = 0.0
        self._unknown_at: float | None = time.monotonic() + UNKNOWN_SECONDS
        self._judged = Positions()
        self.positions = Positions()
        self._restore()

    def _make_engine(self, rules: list[Rule]) -> Engine:
        enrich = partial(builtin.enrich, prices=Prices.of(self._settings))
        return Engine(rules, context=self._about, enrich=enrich, baseline=self._baseline.value)

    # -- going on after a restart

    def _restore(self) -> None:
        def is_own(item: FileName) -> bool:
            return item.rank is None and item.pid is None and item.host == self._own.host

        history = Follower(
            self.folder, ("events", "alerts"), wanted=lambda item: item.table == "alerts" or self.wants(item)
        )
        found = sorted(history.poll(), key=lambda item: str(item[1]["timestamp"]))
        self.positions = history.positions
        foreign = {
            name for name, _, path in layout.list_files(self.folder) if name.table == "alerts" and explain_foreign(path)
        }
        if foreign:
            self._notes.append(f"alerts in {len(foreign)} files are ignored: another user may have written them")
        alerts = [
            (name, AlertRow.parse(line)) for name, line in found if name.table == "alerts" and name not in foreign
        ]
        rows = [row for name, row in alerts if is_own(name)]
        # A line logged before the last change was judged: the agent may have read on further than it could note down.
        self._judged_until = max((row.seconds for row in records.changes(rows)), default=0.0)
        for name, line in found:
            if name.table == "events":
                self.see_event(EventRow.parse(line), judge=not rows)
        for _, row in alerts:
            if row.control is None:
                self.ledger.apply(row)
        theirs = [row for name, row in alerts if not is_own(name)]
        done = {(row.state, row.asked) for row in rows}
        for row in theirs:
            if row.control in ANSWERS and (ANSWERS[row.control], row.timestamp) not in done:
                self.ledger.take_row(row)  # asked for while there was no agent
        firing = {
            key: parse_time(alert.since) or 0.0
            for group in self.ledger.groups.values()
            for key, alert in group.firing.items()
            if alert.rule in self._rules
        }
        for engine in self._engines:
            engine.restore(firing)
        for row, channels in list(self.ledger.undelivered.values()):
            self._outbox.add(row, channels)

    def warm(self, judged: Positions) -> None:
        """An earlier agent has judged what was logged up to there. The end of that is to be handed over once more: it
        fills the windows."""
        self._judged = judged
        for file, position in judged.items():
            if file.table == "training":
                try:
                    start = find_line(self.folder / file.jsonl, position.offset - WARM_BYTES)
                except OSError:
                    start = position.offset  # sealed meanwhile
                self.positions.advance(file, Position(min(start, position.offset), None))

    # -- what is logged

    def wants(self, file: FileName) -> bool:
        """What the participants and commands write; the agents' own events and alerts come by other ways."""
        if file.table == "alerts":
            return file.rank is not None or file.pid is not None
        return file.table == "training" or (file.table == "events" and file.rank is not None)

    def see(self, batch: Batch) -> None:
        """New lines of a file."""
        file = batch.file
        self.positions.advance(file, batch.end)
        if file.table == "training":
            judge, participant = not self._judged.covers(file, batch.end.offset), file.participant
            for row in batch.rows:
                self.see_row(participant, row, judge=judge)
        else:
            for line in batch.rows:
                if file.table == "events":
                    self.see_event(EventRow.parse(line))
                else:
                    self.ledger.take_row(AlertRow.parse(line))

    # -- what is measured

    def see_sample(self, table: str, labels: Mapping[str, Any], values: Mapping[str, Any], when: float) -> None:
        identity = subject_of(table, labels)
        # Of one thing there may be readings of several kinds: the host's space on disk comes on its own, now and then.
        kind = (table, *identity.values(), next(iter(values), None))
        # A little under the half second, so that of ten a second every fifth is taken and of two a second each.
        sampled = not 0 <= when - self._last_sample.get(kind, 0.0) < SAMPLE_SECONDS * 0.9
        if sampled:
            self._last_sample[kind] = when
        if table == "gpu":  # for what one such GPU costs; the lines of the run have it, too
            values = {**values, "gpu_name": labels.get("gpu_name")}
        self._feed(Point(table, identity, values, when), sampled=sampled)

    def _feed(self, point: Point, *, judge: bool = True, sampled: bool = True) -> None:
        for engine in self._engines:
            if sampled or engine is not self._sampled:
                self._take(engine.feed(point, judge=judge))

    def see_row(self, participant: Participant, row: dict[str, Any], *, judge: bool = True) -> None:
        """A line that a participant has logged."""
        stamp: str = row["timestamp"]
        sampled = self._is_sampled(participant, row, stamp)
        if not sampled and len(self._engines) == 1:
            return
        micros = self._times.parse(stamp)
        when = micros / 1e6 if micros is not None else time.time()
        judge = judge and when > self._judged_until
        step = row.get("step")
        point = Point("training", participant.labels, row, when, step if type(step) is int else None)
        self._feed(point, judge=judge, sampled=sampled)

    def _is_sampled(self, participant: Participant, row: dict[str, Any], stamp: str) -> bool:
        """Whether built-in rules see this line: the first of its kind in each twentieth of a second, and each that is
        not finite."""
        kind = (participant.role, participant.rank, *row)
        slot = f"{stamp[:21]}{stamp[21:22] >= '5'}"
        if self._last_slot.get(kind) == slot:
            values = row.values()
            return "NaN" in values or "Infinity" in values or "-Infinity" in values
        if len(self._last_slot) > 1000:
            self._last_slot.clear()
        self._last_slot[kind] = slot
        return True

    def see_participant(
        self, participant: Participant, state: str, cause: Cause | None, silence: float, world_size: int
    ) -> None:
        """What the agent knows of it: running, stalled, hung, finished, failed, killed, crashed."""
        self._feed(life_point(participant, state, cause, silence, world_size, time.time()))

    def see_event(self, row: EventRow, *, judge: bool = True) -> None:
        """Something happened: a checkpoint, for instance."""
        self._feed(self._events.take(row, row.seconds or time.time()), judge=judge)

    # -- time

    def tick(self) -> None:
        """Cheap when nothing is due."""
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            while self._notes:
                self._write_event("alert_rule", self._notes.popleft(), "warning")
            unknown = self._unknown_at is not None and now >= self._unknown_at
            for engine in self._engines:
                self._take(engine.tick(time.time(), now))
                if unknown:
                    self._unknown_at = None
                    engine.report_unknown()
                for text in engine.take_problems():
                    self._write_event("alert_rule", text, "warning")
        if now >= self._next_ledger:
            self._next_ledger = now + LEDGER_SECONDS
            self._send_due()
        if self._claims is not None and now >= self._next_claims:
            self._next_claims = now + CLAIM_SECONDS
            self._claims.refresh()

    def _send_due(self) -> None:
        while self._deliveries:
            self.ledger.apply(self._deliveries.popleft())
        for row in self.ledger.tick(time.time()):
            self._outbox.add(row)
            if row.kind == "resolved" and self._claims is not None:
                self._claims.release(row.rule)

    def _take(self, changes: list[Change]) -> None:
        for change in changes:
            row = self.ledger.take(change)
            if change.state == FIRING and row is not None:
                self._act(change.rule, row)

    def _act(self, rule: Rule, row: AlertRow) -> None:
        wanted = dict.fromkeys((*rule.actions, *self._settings.alerts_actions.get(rule.name, ())))
        means = Means(self._settings.alerts_kill_after, self._settings.alerts_checkpoint_signal)
        distrust = explain_foreign(self.folder) if wanted else None
        for action in wanted:
            if distrust is None:
                act(action, row, rule.command, self._targets(), means, self._write)
            else:
                result = f"not done because the run folder is not trusted: {distrust}"
                self._write(new_alert_row(action=action, rule=row.rule, result=result))

    # -- what others may know

    def active(self) -> tuple[AlertStatus, ...]:
        """What fires now, for status.json."""
        return tuple(
            AlertStatus(
                rule=group.rule,
                severity=group.last.severity or "warning",
                count=len(group.firing),
                since=min(row.since or row.timestamp for row in group.firing.values()),
                message=group.last.message,
                acknowledged=group.acknowledged,
                silenced=group.silenced_until > time.time(),
            )
            for group in self.ledger.groups.values()
            if group.firing
        )

    def firing(self) -> list[AlertRow]:
        """Everything that fires now, each with its labels."""
        return [row for group in self.ledger.groups.values() for row in group.firing.values()]

    @property
    def waiting(self) -> int:
        """Messages that have not been delivered."""
        return self._outbox.waiting

    # -- the end

    def end(self, status: str) -> None:
        """The run is over. What is queued is sent, even if the agent watches nothing else."""
        for engine in self._engines:
            self._take(engine.end(f"the run is {status}"))
        for row in self.ledger.close(f"the run is {status}", time.time()):
            self._outbox.add(row)
        self._send_now()
        self._writer.flush(0.2)
        _linger(self)

    def leave(self) -> None:
        """The agent stops, the run continues: another agent continues from the written lines."""
        self._send_due()
        self._outbox.close(FAREWELL_SECONDS)
        self._writer.close(0.2)

    def close(self) -> None:
        """Stop sending; what waits stays in the run folder."""
        self._outbox.close()
        self._writer.close(0.2)

    def _send_now(self) -> None:
        """The last chance to send: nothing waits for more of the same any longer."""
        for row in self.ledger.tick(time.time(), self.ledger.policy.group_wait + 0.001):
            self._outbox.add(row)

    # -- writing

    def _write(self, row: AlertRow) -> None:
        self._writer.append(encode_line(row.as_json()))

    def _take_delivery(self, row: AlertRow) -> None:
        """Called from the channels' threads."""
        self._write(row)
        self._deliveries.append(row)

    def _may_speak(self, rule: str) -> bool:
        known = self._rules.get(rule)
        lead = known.lead if known is not None else ("training", None)
        if lead is not None and lead[0] in ("gpu", "system", "process", "openmetrics"):
            return True  # of this machine only: nobody else sees it
        return self._claims is None or self._claims.take(rule)


def _may_keep(address: Address) -> bool:
    """Whether it keeps alerts, as far as it is known before the address is looked up."""
    return find_channel(address.url).keeps_state or address.url.partition(":")[0] in REFERENCES


# -- runs that have ended and still have notifications to send

NOTES = FolderNotes("outbox")
_lingering: dict[str, RunAlerts] = {}
_lock = threading.Lock()


def _linger(alerts: RunAlerts) -> None:
    """Keep sending after the run, and leave a note for another agent in case this one is ended before it is done."""
    if not alerts.waiting:
        alerts.close()
        return
    with _lock:
        _lingering[str(alerts.folder)] = alerts
    NOTES.write(alerts.folder, alerts._settings, about=alerts._about, host=alerts._own.host)


def adopt(folder: Path) -> None:
    """Whoever watches this folder from now on sends what is left: nobody else may."""
    with _lock:
        before = _lingering.pop(str(folder), None)
    if before is not None:
        before.close()
    NOTES.remove(folder)


def still_sending() -> bool:
    """Whether an ended run still has messages to deliver. Lets go of those that are done."""
    with _lock:
        done = [key for key, alerts in _lingering.items() if not alerts.waiting]
        for key in done:
            alerts = _lingering.pop(key)
            alerts.close()
            NOTES.remove(alerts.folder)
        return bool(_lingering)


def resume_sending(make_settings: Callable[[Mapping[str, Any]], Settings]) -> int:
    """At the agent's start: take up what an earlier agent could not deliver. Returns how many runs that concerns."""
    count = 0
    for folder, known, more in NOTES.take():
        NOTES.remove(folder)
        if not (folder / layout.RUN_FILE).is_file():
            continue
        alerts = RunAlerts(
            folder,
            make_settings(known),
            more.get("about") or {},
            name=FileName("alerts", 1, "", host=more.get("host")),
        )
        count += 1
        _linger(alerts)
    return count

"""Rules whose condition is a Python function, judged in the training's own process: `run.alerts.add_rule(...)`.

They see each logged line right after it was written, behind a guard: one that raises is reported once and switched
off, and the training goes on. What they find goes into the run folder; the agent sends it like any other alert.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals.alerts import template
from trainvitals.alerts.rules import SEVERITIES
from trainvitals.errors import SettingError, nearest
from trainvitals.handlers import is_from_handler
from trainvitals.journal.documents.rows import new_alert_row
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.writer import LineWriter
from trainvitals.stderr import print_line


class NotLogged(AttributeError, KeyError):
    """A condition asked for a metric that has not been logged: it is not judged, and nothing is wrong."""


class Metrics(Mapping[str, float]):
    """The newest value of every metric: `m.loss`, `m["val/loss"]`, `m.step`."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def __getattr__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise NotLogged(name) from None

    def __getitem__(self, name: str) -> float:
        try:
            return self._values[name]
        except KeyError:
            raise NotLogged(name) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def update(self, values: Mapping[str, float], step: int) -> None:
        self._values.update(values)
        self._values["step"] = step


@dataclass(frozen=True, slots=True)
class Alert:
    """What an action is given."""

    rule: str
    severity: str
    message: str
    step: int
    metrics: Mapping[str, float]


@dataclass(slots=True)
class _PythonRule:
    name: str
    condition: Callable[[Any], Any]
    severity: str
    message: str
    advice: str
    cooldown: float
    action: Callable[..., Any] | None
    fired_at: float | None = None
    is_firing: bool = False
    since: str = ""
    said: str = ""
    disabled: bool = False


class PythonRules:
    """`run.alerts`."""

    def __init__(self, writer: LineWriter, participant: Participant, on_first: Callable[[], None]) -> None:
        """`on_first` notifies the run that there is something to check from now on."""
        self._writer = writer
        self._labels = participant.labels
        self._on_first = on_first
        self._rules: dict[str, _PythonRule] = {}
        self._metrics = Metrics()

    def add_rule(
        self,
        name: str,
        condition: Callable[[Any], Any],
        severity: str = "warning",
        message: str = "",
        cooldown_seconds: float = 300.0,
        action: Callable[..., Any] | None = None,
        advice: str = "",
    ) -> None:
        """Fire an alert whenever `condition(metrics)` becomes true.

        `metrics` has the newest value of each metric: `lambda m: m.loss > 2`. `message` may have fields: `{loss:.2f}`.
        `action` is called in this process, with an `Alert`. A rule of the same name is replaced.
        """
        if not callable(condition):
            raise SettingError(
                f"rule '{name}': condition must be a function of the metrics",
                hint="such as condition=lambda m: m.loss > 2; text rules go into alerts.rules in trainvitals.yaml",
            )
        if severity not in SEVERITIES:
            raise SettingError(
                f"rule '{name}': severity '{severity}' is not one of {', '.join(SEVERITIES)}"
                f"{nearest(severity, SEVERITIES)}"
            )
        if action is not None and not callable(action):
            raise SettingError(f"rule '{name}': action must be a function")
        template.check(message)
        template.check(advice)
        self._rules[name] = _PythonRule(
            name, condition, severity, message or name, advice, float(cooldown_seconds), action
        )
        self._on_first()

    add_alert_rule = add_rule

    def check(self, values: Mapping[str, float], step: int) -> None:
        """Judge every condition. Never raises."""
        self._metrics.update(values, step)
        for rule in list(self._rules.values()):
            if rule.disabled:
                continue
            try:
                holds = bool(rule.condition(self._metrics))
            except NotLogged:
                continue
            except Exception as error:
                if is_from_handler(error):
                    raise
                # The boundary around the user's own code, inside their loop.
                self._disable(rule, f"its condition raised {error!r:.200}")
                continue
            self._change(rule, holds, step)

    def _change(self, rule: _PythonRule, holds: bool, step: int) -> None:
        if holds and not rule.is_firing:
            now = time.monotonic()
            if rule.fired_at is not None and now - rule.fired_at < rule.cooldown:
                return
            rule.fired_at, rule.is_firing, rule.since = now, True, format_time()
            message = self._write(rule, "firing", step)
            if rule.action is not None:
                self._act(rule, Alert(rule.name, rule.severity, message, step, dict(self._metrics)))
        elif not holds and rule.is_firing:
            rule.is_firing = False
            self._write(rule, "resolved", step)

    def _write(self, rule: _PythonRule, state: str, step: int) -> str:
        fields = {**self._metrics, **self._labels, "step": step}
        message, missing = template.fill(rule.message, fields)
        if state == "resolved":
            message = rule.said  # the all-clear is about what was said
        rule.said = message
        advice, more = template.fill(rule.advice, fields)
        if missing or more:
            print_line(f"rule '{rule.name}': its message uses {', '.join((*missing, *more))}, which was not logged")
        row = new_alert_row(
            state=state,
            rule=rule.name,
            severity=rule.severity,
            labels=self._labels,
            message=message,
            advice=advice,
            values=dict(list(self._metrics.items())[:50]),
            step=step,
            since=rule.since,
            cooldown=rule.cooldown,
        )
        self._writer.append(encode_line(row.as_json()))
        return message

    def _act(self, rule: _PythonRule, alert: Alert) -> None:
        assert rule.action is not None
        try:
            takes = len(inspect.signature(rule.action).parameters)
        except (TypeError, ValueError):
            takes = 1
        result = "done"
        try:
            rule.action(alert) if takes else rule.action()
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's own code, inside their loop.
            result = f"raised {error!r:.200}"
            print_line(f"rule '{rule.name}': its action {result}; training continues")
        row = new_alert_row(action="callback", rule=rule.name, result=result)
        self._writer.append(encode_line(row.as_json()))

    def _disable(self, rule: _PythonRule, why: str) -> None:
        rule.disabled = True
        print_line(f"rule '{rule.name}' is disabled: {why}; training continues")
        row = new_alert_row(control="disabled", rule=rule.name, reason=why, labels=self._labels)
        self._writer.append(encode_line(row.as_json()))

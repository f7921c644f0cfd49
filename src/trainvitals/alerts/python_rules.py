"""Rules whose condition is a Python function, judged in the training's own process: `run.alerts.add_rule(...)`.

They see each line right after it was written, whether it was logged or measured by `watch`, behind a guard: one that
raises is reported once and disabled, and the training continues. What they find goes into the run folder; the agent
sends it like any other alert.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals import catalog
from trainvitals.alerts import template
from trainvitals.alerts.readings import Readings
from trainvitals.errors import SettingError, nearest
from trainvitals.handlers import is_from_handler
from trainvitals.journal.documents.rows import SEVERITIES, new_alert_row
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.writer import LineWriter
from trainvitals.stderr import print_line

MISSING_SECONDS = 60.0
"""For how long a condition may ask for something that is not there before it is reported."""
_OLDER_NAMES = {"cpu_memory_mb": "host_memory_mb"}


class NotLogged(AttributeError, KeyError):
    """A condition asked for a metric that has not been logged: it is not judged, and nothing is wrong."""


class Metrics(Mapping[str, float]):
    """The newest value of every metric of this process: `m.loss`, `m["val/loss"]`, `m.step`. Known metrics also go by
    their other spellings (`m.lr`), and what the agent measures is there too (`m.cpu_usage_percent`)."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._readings = Readings()

    def __getattr__(self, name: str) -> float:
        if name.startswith("_"):  # asked for by Python, perhaps before there is anything
            raise NotLogged(name)
        return self[name]

    def __getitem__(self, name: str) -> float:
        if name in self._values:
            return self._values[name]
        row = catalog.find("training", _OLDER_NAMES.get(name, name))
        for spelling in (row.name, *row.aliases) if row is not None else ():
            if spelling in self._values:
                return self._values[spelling]
        reading = self._readings.find(name)
        if reading is None:
            raise NotLogged(name)
        return reading

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
class PythonRule:
    name: str
    condition: Callable[[Any], Any]
    severity: str
    message: str
    advice: str
    cooldown: float
    action: Callable[..., Any] | None
    fields: frozenset[str]
    """Names in the texts."""
    scope: Mapping[str, Any]
    """Values that these names had where the rule was added."""
    fired_at: float | None = None
    is_firing: bool = False
    since: str = ""
    last_message: str = ""
    disabled: bool = False
    missing: str = ""
    """What its condition asks for and is not there, since then."""
    missing_since: float = 0.0
    missing_reported: bool = False

    def find_in_scope(self, name: str) -> object:
        """The value of a name as the condition sees it now, or as it was where the rule was added."""
        function: Any = inspect.unwrap(self.condition)
        code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
        if code is not None and name in code.co_freevars:
            with contextlib.suppress(ValueError):  # not assigned yet, or no more
                return function.__closure__[code.co_freevars.index(name)].cell_contents
        if code is not None and name in code.co_names and name in known:
            return known[name]
        return self.scope.get(name, known.get(name))


class RuleBook(ABC):
    """Takes rules."""

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

        `metrics` has the newest value of each metric: `lambda m: m.loss > 2`. `message` may have fields: `{loss:.2f}`,
        metrics or names of your program. `action` is called in this process, with an `Alert`. A rule of the same name
        is replaced.
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
        fields = template.check(message) | template.check(advice)
        caller = sys._getframe(1).f_locals if fields else {}
        scope = {field: caller[field] for field in fields if field in caller}
        text = message or name
        self.accept(PythonRule(name, condition, severity, text, advice, float(cooldown_seconds), action, fields, scope))

    add_alert_rule = add_rule

    @abstractmethod
    def accept(self, rule: PythonRule) -> None: ...


class WaitingRules(RuleBook):
    """Rules that come before the run whose metrics they are about; it may never come."""

    def __init__(self) -> None:
        self.rules: list[PythonRule] = []

    def accept(self, rule: PythonRule) -> None:
        self.rules.append(rule)


class PythonRules(RuleBook):
    """`run.alerts`."""

    def __init__(self, writer: LineWriter, participant: Participant, on_first: Callable[[], None]) -> None:
        """`on_first` notifies the run that there is something to check from now on."""
        self._writer = writer
        self._labels = participant.labels
        self._on_first = on_first
        self._rules: dict[str, PythonRule] = {}
        self._metrics = Metrics()

    def accept(self, rule: PythonRule) -> None:
        self._rules[rule.name] = rule
        self._on_first()

    def check(self, values: Mapping[str, float], step: int) -> None:
        """Judge every condition. Never raises."""
        self._metrics.update(values, step)
        for rule in list(self._rules.values()):
            if rule.disabled:
                continue
            try:
                holds = bool(rule.condition(self._metrics))
            except NotLogged as error:
                self._note_missing(rule, str(error.args[0]))
                continue
            except Exception as error:
                if is_from_handler(error):
                    raise
                # The boundary around the user's own code, inside their loop.
                self._disable(rule, f"its condition raised {error!r:.200}")
                continue
            rule.missing = ""
            self._change(rule, holds, step)

    def _note_missing(self, rule: PythonRule, name: str) -> None:
        now = time.monotonic()
        if rule.missing != name:
            rule.missing, rule.missing_since = name, now
        elif now - rule.missing_since > MISSING_SECONDS:
            self._report_missing(rule, "for a minute")

    def _report_missing(self, rule: PythonRule, how_long: str) -> None:
        if not rule.missing_reported:
            rule.missing_reported = True
            close = nearest(rule.missing, self._metrics)
            print_line(f"rule '{rule.name}' is skipped: no '{rule.missing}' was logged {how_long}{close}")

    def close(self) -> None:
        """The run ends: report what conditions asked for and never got."""
        for rule in self._rules.values():
            if rule.missing and not rule.disabled:
                self._report_missing(rule, "in this run")

    def _change(self, rule: PythonRule, holds: bool, step: int) -> None:
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

    def _write(self, rule: PythonRule, state: str, step: int) -> str:
        fields = {name: self._find_field(rule, name) for name in rule.fields} | {**self._labels, "step": step}
        message, missing = template.fill(rule.message, fields)
        if state == "resolved":
            message = rule.last_message  # the all-clear repeats what fired
        rule.last_message = message
        advice, more = template.fill(rule.advice, fields)
        if missing or more:
            names = ", ".join((*missing, *more))
            print_line(f"rule '{rule.name}': its message uses {names}, which was not logged and is not in scope")
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

    def _find_field(self, rule: PythonRule, name: str) -> object:
        try:
            return self._metrics[name]
        except NotLogged:
            found = rule.find_in_scope(name)
        if isinstance(found, (str, int, float)) or found is None:
            return found
        try:
            return float(found)  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - of a type of the user's own
            return str(found)[:200]

    def _act(self, rule: PythonRule, alert: Alert) -> None:
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

    def _disable(self, rule: PythonRule, why: str) -> None:
        rule.disabled = True
        print_line(f"rule '{rule.name}' is disabled: {why}; training continues")
        row = new_alert_row(control="disabled", rule=rule.name, reason=why, labels=self._labels)
        self._writer.append(encode_line(row.as_json()))

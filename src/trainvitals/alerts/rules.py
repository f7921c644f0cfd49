"""A rule: when it fires, how long it waits, when it clears, whom it notifies and with what text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainvitals.alerts import language, template
from trainvitals.alerts.language import Node, RuleError
from trainvitals.errors import nearest
from trainvitals.journal.documents.rows import SEVERITIES
from trainvitals.settings.kinds import parse_duration

ACTIONS = ("stop", "checkpoint", "dump_stacks", "exec")
MAX_RULES = 10_000


@dataclass(frozen=True, slots=True)
class Wait:
    """For how long something must hold: so many steps, or so many seconds."""

    steps: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        if self.steps is not None:
            return f"{self.steps} step{'s' * (self.steps != 1)}"
        return f"{self.seconds:g}s" if self.seconds else "at once"


NO_WAIT = Wait()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, parsed and checked."""

    name: str
    when: str
    condition: Node
    severity: str = "warning"
    message: str = ""
    advice: str = ""
    wait: Wait = NO_WAIT
    clear: str = ""
    clear_condition: Node | None = None
    clear_wait: Wait = NO_WAIT
    warmup: Wait = NO_WAIT
    cooldown: float | None = None
    repeat: float | None = None
    lets: tuple[tuple[str, Node], ...] = ()
    notify: tuple[str, ...] | None = None
    escalate_after: float | None = None
    escalate_notify: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    command: str = ""
    built_in: bool = False
    parameters: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        clear = (self.clear_condition,) if self.clear_condition is not None else ()
        return (self.condition, *clear, *(node for _, node in self.lets))

    @property
    def lead(self) -> tuple[str, tuple[str, ...] | None] | None:
        """(table, selector) of the things it is judged for one by one; None if it is judged once for the run."""
        return find_lead(self.nodes, self.when)

    @property
    def looks_at_time(self) -> bool:
        """Whether it can change without a new point of its subject."""
        if self.lead is None:
            return True
        found = [item for node in self.nodes for item in language.walk(node)]
        for item in found:
            if isinstance(item, language.Call):
                if item.name == "stale" or item.across or (item.window and item.window.seconds):
                    return True
            elif isinstance(item, language.MetricReference) and (item.table, item.selector) != self.lead:
                return True
        return False


_ORDER = ("gpu", "process", "run", "event", "openmetrics", "training", "system")


def find_lead(nodes: Iterable[Node], text: str) -> tuple[str, tuple[str, ...] | None] | None:
    """Which things the rule is judged for. Of several tables the one with more things in it leads; metrics of the
    others are those of the host, or of the lowest rank."""
    found = [metric for node in nodes for metric in language.metrics(node, across=False)]
    homes = {(metric.table, metric.selector) for metric in found}
    if len(homes) == 1:
        return next(iter(homes))
    open_tables = {table for table, selector in homes if selector is None}
    many = [table for table in ("gpu", "process", "openmetrics") if table in open_tables]
    if len(many) > 1:
        at = next(metric.position for metric in found if metric.table == many[1])
        raise RuleError(f"cannot match each {many[0]} with each {many[1]}: select one, such as gpu[0]", text, at)
    for table in _ORDER:
        if table in open_tables:
            return (table, None)
    return None


_KEYS = (
    *("name", "when", "for", "after", "clear", "clear_for", "severity", "message", "advice", "cooldown"),
    *("repeat", "notify", "escalate_after", "escalate_notify", "actions", "command", "let", "enabled"),
)


def parse_rule(given: Mapping[str, Any], parameters: Mapping[str, float], *, built_in: bool = False) -> Rule:
    """A rule from its keys, as in trainvitals.yaml. RuleError names the rule and the character."""
    name = str(given.get("name") or "").strip()
    if not name:
        raise RuleError(f"a rule needs a name; when: {str(given.get('when'))[:80]}")
    try:
        return _parse(name, given, parameters, built_in)
    except RuleError as error:
        raise _named(name, error) from None


def _named(name: str, error: RuleError) -> RuleError:
    named = RuleError(f"rule '{name}', {error.message}")
    named.reason, named.position = error.reason, error.position
    return named


def _parse(name: str, given: Mapping[str, Any], parameters: Mapping[str, float], built_in: bool) -> Rule:
    for key in given:
        if key not in _KEYS:
            raise RuleError(f"unknown key '{key}'{nearest(str(key), _KEYS)}")
    if len(name) > 100 or not name.isprintable():
        raise RuleError("the name is longer than 100 characters or not printable")
    when = given.get("when")
    if not isinstance(when, str):
        raise RuleError("when: a condition is missing, such as: loss > 2 * median(loss, 200)")
    when = " ".join(when.split())
    clear = " ".join(str(given.get("clear") or "").split())
    severity = str(given.get("severity") or "warning")
    if severity not in SEVERITIES:
        raise RuleError(f"severity '{severity}' is not one of {', '.join(SEVERITIES)}")
    message = str(given.get("message") or "")
    advice = str(given.get("advice") or "")
    template.check(message)
    template.check(advice)
    lets = given.get("let") or {}
    if not isinstance(lets, Mapping):
        raise RuleError("let: expected lines of 'name: expression'")
    actions = parse_words(given.get("actions"), "actions")
    for action in actions:
        if action not in ACTIONS:
            raise RuleError(f"action '{action}' is not one of {', '.join(ACTIONS)}{nearest(action, ACTIONS)}")
    command = str(given.get("command") or "")
    if "exec" in actions and not command:
        raise RuleError("the action exec needs 'command:'")
    rule = Rule(
        name=name,
        when=when,
        condition=_condition("when", when, parameters),
        severity=severity,
        message=message,
        advice=advice,
        wait=parse_wait(given.get("for"), "for"),
        clear=clear,
        clear_condition=_condition("clear", clear, parameters) if clear else None,
        clear_wait=parse_wait(given.get("clear_for"), "clear_for"),
        warmup=parse_wait(given.get("after"), "after"),
        cooldown=_seconds(given.get("cooldown"), "cooldown"),
        repeat=_seconds(given.get("repeat"), "repeat"),
        lets=tuple((str(key), _expression(f"let {key}", str(value), parameters)) for key, value in lets.items()),
        notify=None if given.get("notify") is None else parse_words(given["notify"], "notify"),
        escalate_after=_seconds(given.get("escalate_after"), "escalate_after"),
        escalate_notify=parse_words(given.get("escalate_notify"), "escalate_notify"),
        actions=actions,
        command=command,
        built_in=built_in,
        parameters=tuple(dict.fromkeys(re.findall(r"\$(\w+)", f"{when} {clear}"))),
    )
    _ = rule.lead  # two tables that cannot be matched are an error now, not when the first number comes
    return rule


def _condition(key: str, text: str, parameters: Mapping[str, float]) -> Node:
    try:
        return language.parse_condition(text, parameters)
    except RuleError as error:
        raise _at_key(key, error) from None


def _expression(key: str, text: str, parameters: Mapping[str, float]) -> Node:
    try:
        return language.parse(text, parameters)
    except RuleError as error:
        raise _at_key(key, error) from None


def _at_key(key: str, error: RuleError) -> RuleError:
    named = RuleError(f"{key}: {error.message}")
    named.reason, named.position = error.reason, error.position
    return named


_STEPS = re.compile(r"\s*(\d+)\s*(?:steps?|points?)\s*")


def parse_wait(value: Any, key: str) -> Wait:
    """`3 steps`, `30s`, or nothing."""
    if value is None or value == "":
        return NO_WAIT
    match = _STEPS.fullmatch(str(value))
    if match:
        return Wait(steps=int(match[1]))
    if isinstance(value, (int, float)) or re.fullmatch(r"[\d.]+", str(value).strip()):
        raise RuleError(f"{key}: {value} has no unit: use '{value} steps' or '{value}s'")
    seconds = _seconds(value, key)
    return Wait(seconds=seconds) if seconds else NO_WAIT


def _seconds(value: Any, key: str) -> float | None:
    if value is None or value == "" or value == "none":
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise RuleError(f"{key}: {value!r} is not {error}") from None
    if not 0 <= seconds < 1e9:
        raise RuleError(f"{key}: {value!r} is not a non-negative duration")
    return seconds


def parse_words(value: Any, key: str) -> tuple[str, ...]:
    """A list of words, or words with commas between them."""
    if value is None:
        return ()
    items: Sequence[Any] = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise RuleError(f"{key}: expected a list")
    return tuple(str(item).strip() for item in items if str(item).strip())


def parse_rules(
    given: Sequence[Mapping[str, Any]], parameters: Mapping[str, float], place: str = "alerts.rules"
) -> list[Rule]:
    """The user's rules, in order; `place` is where they are. A duplicate name is an error."""
    if len(given) > MAX_RULES:
        raise RuleError(f"{len(given):,} rules: at most {MAX_RULES:,} are allowed")
    rules: dict[str, Rule] = {}
    for number, item in enumerate(given, 1):
        if not isinstance(item, Mapping):
            raise RuleError(f"{place}: expected a list of rules with name and when, found {str(item)[:80]!r}")
        if str(item.get("enabled", "true")).strip().lower() in ("false", "no", "off", "0"):
            continue
        try:
            rule = parse_rule(item, parameters)
        except RuleError as error:
            if item.get("name"):
                raise
            raise RuleError(f"{place}, rule {number} of {len(given)}: {error.message}") from None
        if rule.name in rules:
            raise RuleError(f"duplicate rule name '{rule.name}'")
        rules[rule.name] = rule
    return list(rules.values())


def assemble(
    built_in: Sequence[Rule],
    own: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, float],
    disabled: Sequence[str] = (),
    place: str = "alerts.rules",
) -> list[Rule]:
    """Built-in rules, then the user's. A rule of the user's takes the place of a built-in one of the same name.
    `parameters` are the values of `$name`."""
    mine = parse_rules(own, parameters, place)
    names = {rule.name for rule in mine}
    known = [rule.name for rule in built_in]
    for word in disabled:
        if word != "all" and word not in known:
            raise RuleError(f"alerts.disable: unknown rule '{word}'{nearest(word, known)}")
    kept = [rule for rule in built_in if rule.name not in names and rule.name not in disabled and "all" not in disabled]
    return kept + mine

"""The rules that are on by default, made from the catalogue of conditions.

Every rule waits (`for`), has a threshold to clear that is lower than the one to fire (`clear`), and says what to do
(`advice`). They are judged on healthy and faulty runs by tests/alerts/test_quality.py.

Rules of severity `info` are recorded and shown; by default nobody is sent a message for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from trainvitals.alerts.language import RuleError
from trainvitals.alerts.rules import ACTIONS, Rule, assemble, parse_rule
from trainvitals.conditions import ROWS, Condition, Conditions, LiveRule
from trainvitals.errors import nearest
from trainvitals.journal.identity import Participant, gpu_title
from trainvitals.plugins import Registry
from trainvitals.prices import NO_PRICES, GpuRate, Prices
from trainvitals.settings import Settings


def make_rules(conditions: Conditions) -> list[Rule]:
    """The built-in rules with the thresholds in force. A threshold that was set makes its rule at least a warning: it
    was asked for."""
    rules = []
    for condition in conditions:
        if condition.live is None:
            continue
        rule = parse_rule(keys_of(condition, condition.live), conditions.thresholds, built_in=True)
        if any(name in conditions.changed for name in rule.parameters):
            if condition.named is not None:
                rule = parse_rule(keys_of(condition, condition.named), conditions.thresholds, built_in=True)
            if rule.severity == "info":
                rule = replace(rule, severity="warning")
        rules.append(rule)
    return rules


def keys_of(condition: Condition, live: LiveRule) -> dict[str, Any]:
    """A live rule as in trainvitals.yaml."""
    keys = {
        "name": condition.id,
        "when": live.when,
        "for": live.wait,
        "after": live.after,
        "clear": live.clear,
        "clear_for": live.clear_wait,
        "severity": condition.severity,
        "let": dict(live.let),
        "message": live.message,
        "advice": live.advice or condition.advice,
    }
    return {key: value for key, value in keys.items() if value}


def _check_plugin(row: Condition) -> None:
    """ValueError for a row of another package that is not a rule and nothing else. Thresholds and colours are known by
    name to the settings and to what is shipped, so they are built in."""
    if row.live is None:
        raise ValueError("a condition of another package needs a live rule")
    if row != Condition(row.id, row.subject, row.title, row.severity, row.advice, live=row.live):
        raise ValueError("a condition of another package has only a live rule: put numbers into its `when`")
    parse_rule(keys_of(row, row.live), Conditions().thresholds, built_in=True)


REGISTRY: Registry[Condition] = Registry("rules", ROWS, Condition, name=attrgetter("id"), check=_check_plugin)
"""The rows of the catalogue, and those of other packages (docs/plugins.md)."""


def rules_of(settings: Settings, rows: Iterable[Condition] = REGISTRY) -> list[Rule]:
    """All rules in force. A SettingError for one that cannot be used, or that nobody would hear of."""
    rules = read_rules(settings, rows)
    check_channels(settings, rules)
    return rules


def check_rules(settings: Settings) -> None:
    """RuleError if `rules_of` would raise one. For the training process, where other packages' rules are only looked
    up for a name that is not ours."""
    try:
        rules_of(settings, ROWS)
    except RuleError:
        rules_of(settings)


def read_rules(settings: Settings, rows: Iterable[Condition] = REGISTRY) -> list[Rule]:
    """The same, whoever is to be notified."""
    conditions = Conditions(settings.alerts_thresholds, tuple(rows))
    rules = assemble(
        make_rules(conditions),
        settings.alerts_rules,
        conditions.thresholds,
        settings.alerts_disable,
        f"alerts.rules ({settings.origin('alerts.rules')})",
    )
    check_actions(settings.alerts_actions, rules)
    return rules


def check_channels(settings: Settings, rules: Iterable[Rule]) -> None:
    """Every channel that is named must be one of `alerts.notify`."""
    wanted = [("alerts.escalate_notify", settings.alerts_escalate_notify)]
    for rule in rules:
        wanted.append((f"rule '{rule.name}', notify", rule.notify or ()))
        wanted.append((f"rule '{rule.name}', escalate_notify", rule.escalate_notify))
    known = [address.name for address in settings.alerts_notify]
    for place, names in wanted:
        for name in names:
            if name not in known:
                there = f"known: {', '.join(known)}" if known else "alerts.notify has none"
                raise RuleError(f"{place}: unknown channel '{name}'{nearest(name, known)} ({there})")


def check_actions(actions: Mapping[str, Iterable[str]], rules: Iterable[Rule]) -> None:
    """Actions by rule name: the rule must exist, and so must the action."""
    names = [rule.name for rule in rules]
    for name, wanted in actions.items():
        if name not in names:
            raise RuleError(f"alerts.actions: unknown rule '{name}'{nearest(name, names)}")
        for action in wanted:
            if action not in ACTIONS or action == "exec":
                known = ", ".join(word for word in ACTIONS if word != "exec")
                raise RuleError(f"alerts.actions: '{action}' is not one of {known}; use exec in a rule")


def enrich(rule: object, fields: dict[str, Any], prices: Prices = NO_PRICES) -> None:
    """Fields that a text needs and no measurement carries: what people call the rank or GPU it is about, where a rank
    hangs if it is known, what an underused GPU costs, the action for an Xid."""
    if "rank" in fields:
        fields["participant"] = title = Participant.of(fields).title
        fields["Participant"] = title.capitalize()
    if "seconds_since_step" in fields:
        fields["place"] = f" ({fields['cause']})" if fields.get("cause") else ""
    if "gpu_index" in fields or "gpu_uuid" in fields:
        fields["gpu"] = gpu_title(fields)
    if "mean_use" in fields:
        fields["waste"] = _describe_waste(fields["mean_use"], prices.per_hour([str(fields.get("gpu_name", ""))]))
    if "xid_last" in fields or "xid" in fields:
        from trainvitals.conditions.xids import find_xid

        xid = find_xid(int(fields.get("xid", fields.get("xid_last"))))  # type: ignore[arg-type]
        fields["xid_advice"] = xid.advise(fields.get("gpu_index", "?"))
        fields["xid_meaning"] = xid.meaning


def _describe_waste(percent: float, rate: GpuRate | None) -> str:
    if rate is None:
        return ""
    waste = (1 - percent / 100) * rate.per_hour
    return f", about {waste:.2f} of every {f'{rate.per_hour:.2f} {rate.currency}'.strip()} spent per hour is wasted"

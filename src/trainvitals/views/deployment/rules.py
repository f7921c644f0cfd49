"""Prometheus rules: recording rules for the expensive queries, and an alerting rule for every condition that has one.

Severities, waiting times and advice are those of the live rules, thresholds those in force. Left out are conditions
that compare steps with each other (a spike of the loss, a plateau): the agent sees every step, a scrape does not. Those
reach Prometheus as `trainvitals_alert_active`, and `TrainvitalsAlert` passes on those only: what has a rule here is
judged here, also where no run is monitored, and sent once.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import yaml

from trainvitals.alerts.builtin import make_rules
from trainvitals.alerts.rules import Rule, parse_wait
from trainvitals.conditions import Condition, Conditions, PrometheusRule
from trainvitals.exporters import names
from trainvitals.exporters.names import Spelling
from trainvitals.views.deployment.queries import duration_quantile, mean_duration, once

STEP_WINDOWS = ("2m", "1h")
"""A wait in steps is over when so many were done in one of these and the condition held in all of it: soon where steps
are quick, and within the hour where they are slow."""


class Recording(NamedTuple):
    """A query worth keeping the answer of."""

    record: str
    expression: str


RECORDINGS: tuple[Recording, ...] = (
    Recording(
        "rank:training_step_duration_seconds:mean5m",
        mean_duration("[5m]"),
    ),
    *(
        Recording(
            f"run:training_step_duration_seconds:p{round(share * 100)}_5m",
            duration_quantile(share, "[5m]", "run", "project"),
        )
        for share in (0.5, 0.99)
    ),
    Recording("run:training_steps:rate5m", "max by (run, project) (rate(training_steps_total[5m]))"),
    Recording("host:<gpu.utilization_percent>:avg", f"avg by (host) ({once('<gpu.utilization_percent>')})"),
    Recording("host:<gpu.power_draw_watts>:sum", f"sum by (host) ({once('<gpu.power_draw_watts>')})"),
    Recording("host:gpu_energy_joules:increase1h", f"sum by (host) ({once('increase(gpu_energy_joules_total[1h])')})"),
    Recording("gpu:<gpu.utilization_percent>:avg30m", "avg_over_time(<gpu.utilization_percent>[30m])"),
)


def fill(text: str, spelling: Spelling, conditions: Conditions) -> str:
    """An expression with its series, thresholds and units (`PrometheusRule` describes how they are written)."""
    text = re.sub(r"\$([a-z_]\w*)", lambda match: f"{conditions.thresholds[match[1]]:.12g}", text)
    text = re.sub(r"~(\w+)\.(\w+):([-+.\de]+)", lambda match: _convert(match, spelling), text)
    return re.sub(r"<(\w+)\.(\w+)>", lambda match: _export(match, spelling).series, text)


def _export(match: re.Match[str], spelling: Spelling) -> names.Export:
    export = names.export_of(match[1], match[2], spelling)
    if export is None:
        raise KeyError(match[0])
    return export


def _convert(match: re.Match[str], spelling: Spelling) -> str:
    return f"{float(match[3]) * _export(match, spelling).factor:.12g}"


def alert_name(condition: str) -> str:
    """`gpu_lost` -> `GpuLost`."""
    return "".join(word.capitalize() for word in condition.split("_"))


def build(spelling: Spelling, conditions: Conditions) -> dict[str, Any]:
    """The rules file as data."""
    live = {rule.name: rule for rule in make_rules(conditions)}
    alerts = [
        _alert(row, row.prometheus, live.get(row.id), spelling, conditions)
        for row in conditions
        if row.prometheus is not None
    ]
    judged_here = "|".join(row.id for row in conditions if row.prometheus is not None and row.live is not None)
    passed_on = {
        "alert": "TrainvitalsAlert",
        "expr": f'trainvitals_alert_active{{severity!="info",rule!~"{judged_here}"}} == 1',
        "labels": {"severity": "{{ $labels.severity }}"},
        "annotations": {"summary": "{{ $labels.rule }} ({{ $labels.run }} on {{ $labels.host }})"},
    }
    return {
        "groups": [
            {
                "name": "trainvitals-recording",
                "interval": "15s",
                "rules": [
                    {
                        "record": fill(item.record, spelling, conditions),
                        "expr": fill(item.expression, spelling, conditions),
                    }
                    for item in RECORDINGS
                ],
            },
            {"name": "trainvitals-alerts", "interval": "15s", "rules": [*alerts, passed_on]},
        ]
    }


def _alert(
    row: Condition, prometheus: PrometheusRule, live: Rule | None, spelling: Spelling, conditions: Conditions
) -> dict[str, Any]:
    expression = prometheus.expression
    wait = live.wait if live is not None else parse_wait(prometheus.wait, "wait")
    if wait.steps is not None:
        expression = " or ".join(
            f"{expression} and increase(training_steps_total[<held>]) >= {wait.steps}".replace("<held>", window)
            for window in STEP_WINDOWS
        )
    found: dict[str, Any] = {
        "alert": prometheus.name or alert_name(row.id),
        "expr": fill(expression, spelling, conditions),
    }
    if wait.seconds:
        found["for"] = f"{wait.seconds:.0f}s"
    found["labels"] = {"severity": live.severity, "rule": row.id} if live is not None else {"severity": row.severity}
    advice = row.advice.replace("{gpu_index}", "{{ $labels.gpu }}")
    found["annotations"] = {"summary": prometheus.summary, "description": advice}
    return found


def render(spelling: Spelling, conditions: Conditions) -> str:
    """The rules file as YAML."""
    head = "# Generated from the conditions: `trainvitals prometheus rules` prints it with your own thresholds.\n"
    return head + yaml.safe_dump(build(spelling, conditions), sort_keys=False, allow_unicode=True, width=1000)

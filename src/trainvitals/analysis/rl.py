"""Findings in reinforcement learning: the live rules of `conditions/rl.py`, judged over the curves of the whole run, so
that an alert and a finding are the same judgement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainvitals import catalog
from trainvitals.alerts.builtin import keys_of
from trainvitals.alerts.cases import FIRING, RESOLVED
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.language import metrics
from trainvitals.alerts.rules import Rule, parse_rule
from trainvitals.analysis.findings import Curve, Finding, Measurements, NotJudged
from trainvitals.analysis.wording import count_of
from trainvitals.conditions import Condition, Conditions

FEWEST = 10
"""Steps below which nothing is judged."""


def is_rl(measured: Measurements) -> bool:
    """Whether the run trains a language model by its own responses."""
    return catalog.find_spelling("training", catalog.RESPONSES, measured.training.names()) is not None


def is_ordinary(measured: Measurements) -> bool:
    """Whether it does not: then what a step does besides data and model is overhead, and not generation."""
    return not is_rl(measured)


def detect(condition: Condition, measured: Measurements, conditions: Conditions) -> list[Finding]:
    """Every episode of one condition; of one that comes and goes, the first."""
    assert condition.live is not None
    rule = parse_rule(keys_of(condition, condition.live), conditions.thresholds, built_in=True)
    wanted = sorted({metric.name for node in rule.nodes for metric in metrics(node)} - {"step"})
    curves = {name: measured.need(name) for name in wanted}
    rows = _merge(curves)
    if len(rows) < FEWEST:
        raise NotJudged(f"{FEWEST} steps with '{wanted[0]}' (found {len(rows)})")
    changes = list(_replay(rule, rows))
    began = [change for change in changes if change.state == FIRING]
    if not began:
        return []
    first, ended = began[0], [change for change in changes if change.state == RESOLVED]
    evidence = [f"since about step {_step_of(first):,}, judged over {count_of(len(rows), 'step')}"]
    if len(began) > 1:
        evidence.append(f"{count_of(len(began), 'time')}, last at step {_step_of(began[-1]):,}")
    return [
        Finding(
            condition.findings[0],
            condition.severity if len(ended) < len(began) else "info",
            began[-1].message,
            tuple(evidence),
            condition.advice,
            step=_step_of(first),
            named_at=first.step,
            until=ended[-1].step if len(ended) == len(began) else None,
            values={name: value for name, value in began[-1].values.items() if isinstance(value, float)},
        )
    ]


def _merge(curves: Mapping[str, Curve]) -> dict[int, dict[str, float]]:
    """The lines of a run again: step -> values by name."""
    rows: dict[int, dict[str, float]] = {}
    for name, curve in curves.items():
        for step, value in zip(curve.x.tolist(), curve.y.tolist(), strict=True):
            rows.setdefault(int(step), {})[name] = value
    return dict(sorted(rows.items()))


def _replay(rule: Rule, rows: Mapping[int, Mapping[str, float]]) -> Iterator[Change]:
    engine = Engine([rule])
    for step, values in rows.items():
        # Waits are in steps; the number of the step serves as the time, so that `since` is a step too.
        yield from engine.feed(Point("training", {"rank": 0}, values, float(step), step))


def _step_of(change: Change) -> int:
    """When the condition began to hold."""
    return int(change.since)

"""The built-in rules over a run: what they say, and on which of the healthy runs somebody would call that wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import curves
import held_out

from trainvitals.alerts import builtin
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.rules import Rule
from trainvitals.conditions import Conditions

RULES = builtin.make_rules(Conditions())

RIGHT = {"curriculum of three levels": {"loss_spike"}, "noise: bump": {"loss_diverging"}}
"""Sent about a healthy run, and rightly: with the next level the loss jumps to five times what it was; one that rises
by a quarter over hundreds of steps may come down again, which nobody can know then."""


def judge(points: Iterable[Point], rules: list[Rule] = RULES) -> list[Change]:
    """Everything that fires or resolves, as the agent would see it: ticks once a second between the points."""
    engine = Engine(rules, context={"host": "node", "run": "r"}, enrich=builtin.enrich)
    changes: list[Change] = []
    second = 0
    for point in points:
        found = engine.feed(point)
        if int(point.time) != second:
            second = int(point.time)
            found += engine.tick(point.time)
        changes += [change for change in found if change.state != "pending"]
    problems = engine.take_problems()
    assert problems == [], problems
    return changes


def make_set(seed: int, share: float = 1.0) -> dict[str, Callable[[], list[curves.Values]]]:
    """Healthy runs of every kind, with numbers that no rule was tuned by unless its seed says so. `share` of their
    length."""
    runs = dict(held_out.make_all(seed, share))
    for number, shape in enumerate(curves.SHAPES):
        runs[f"noise: {shape}"] = lambda n=number, s=shape: curves.varied(100 * seed + n, s, share)  # type: ignore[misc]
    return runs


def judge_healthy(seed: int, kind: str, share: float = 1.0) -> tuple[int, Counter[str], Counter[str]]:
    """How many steps the run of that kind has, what would be sent to somebody, and what is only noted (info)."""
    runs = make_set(seed, share)
    number = 100 * seed + list(runs).index(kind)
    rows = runs[kind]()
    changes = judge(point for point, _ in curves.measure(number, rows, curves.draw_world(number)))
    fired = [change.rule for change in changes if change.state == "firing"]
    sent = Counter(rule.name for rule in fired if rule.severity != "info")
    return len(rows), sent, Counter(rule.name for rule in fired if rule.severity == "info")

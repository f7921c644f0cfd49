"""The rules of reinforcement learning (conditions/rl.py): silent on healthy runs, and each fault is found, whichever
framework logs it."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from rl_runs import FAULTS, NAMES, STEPS, Row, make_healthy, spell

from trainvitals.alerts import builtin
from trainvitals.alerts.engine import Change, Engine, Point
from trainvitals.alerts.rules import Rule
from trainvitals.conditions import Conditions
from trainvitals.conditions.rl import ROWS

MINUTES = 150.0
RULES = builtin.make_rules(Conditions())


def judge(rows: Iterable[tuple[int, Row]], rules: Iterable[Rule] = RULES) -> list[Change]:
    engine = Engine(rules, enrich=builtin.enrich)
    changes = []
    for at, (step, row) in enumerate(rows):
        changes += engine.feed(Point("training", {"rank": 0}, row, 1_800_000_000.0 + MINUTES * at, step))
    assert engine.take_problems() == []
    return [change for change in changes if change.state != "pending"]


def fired(changes: list[Change]) -> list[str]:
    return [change.rule.name for change in changes if change.state == "firing"]


def metrics_of(rule: str) -> set[str]:
    live = next(row.live for row in ROWS if row.id == rule)
    assert live is not None
    return set(re.findall(r"(?<!\$)\brl_\w+", live.when))


@pytest.mark.parametrize("framework", NAMES)
def test_nothing_is_fired_on_healthy_runs(framework: str) -> None:
    found = {seed: fired(judge(spell(make_healthy(seed), framework))) for seed in range(10)}
    assert {seed: names for seed, names in found.items() if names} == {}


@pytest.mark.parametrize("rule", FAULTS)
def test_a_fault_is_found_with_every_framework_that_logs_it(rule: str) -> None:
    only = [item for item in RULES if item.name == rule]
    found = {}
    for framework, names in NAMES.items():
        for seed in range(3 if metrics_of(rule) <= names.keys() else 0):
            run = make_healthy(seed)
            FAULTS[rule](run)
            found[framework, seed] = fired(judge(spell(run, framework), only)) == [rule]
    assert found and all(found.values()), found


def test_every_condition_has_a_fault() -> None:
    assert set(FAULTS) == {row.id for row in ROWS}


def test_what_a_trainer_logs_every_tenth_step_among_lines_of_every_step_is_judged() -> None:
    run = make_healthy(1)
    FAULTS["rl_truncation"](run)
    mixed: list[tuple[int, Row]] = []
    for step, row in spell(run, "TRL", every=10):
        mixed += [(step - 9 + at, {"batch_time": 1.0}) for at in range(10)]
        mixed.append((step, row))
    assert "rl_truncation" in fired(judge(mixed))


def test_a_kl_an_entropy_and_a_reward_of_another_training_mean_nothing() -> None:
    run = make_healthy(2)
    for rule in ("rl_kl_high", "rl_entropy_collapsed", "rl_reward_constant", "rl_truncation"):
        FAULTS[rule](run)
    rows = spell(run, "TRL")
    assert {"rl_kl_high", "rl_truncation"} <= set(fired(judge(rows)))
    autoencoder = [(step, {k: v for k, v in row.items() if k != "completions/mean_length"}) for step, row in rows]
    assert fired(judge(autoencoder)) == []


def test_a_reward_that_recovers_clears_the_alert() -> None:
    run = make_healthy(3)
    run["rl_reward"][40:80] = 0.0
    changes = [change for change in judge(spell(run, "verl")) if change.rule.name == "rl_reward_constant"]
    assert [change.state for change in changes] == ["firing", "resolved"]
    assert changes[0].message == "The mean reward has been exactly 0 for 20 steps"
    assert changes[0].step == 60 and changes[1].step == 81 and STEPS > 81


def test_the_message_has_the_share_and_the_gain() -> None:
    run = make_healthy(4)
    FAULTS["rl_generation_bound"](run)
    found = [change for change in judge(spell(run, "verl")) if change.rule.name == "rl_generation_bound"]
    assert found[0].message == ("Generation takes 90 % of each step; twice as fast, steps would be 1.82 times as fast")

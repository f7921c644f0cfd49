"""Growth that is a leak, growth that is none, and that all who judge it say the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from trainvitals.alerts import windows
from trainvitals.alerts.language import Window
from trainvitals.analysis.findings import Curve
from trainvitals.analysis.memory import find_leak
from trainvitals.episodes import Episode
from trainvitals.leaks import LEAST_SECONDS, LEAST_STEPS, LeakJudge

STEPS = np.arange(3000)
BATCHES = np.random.default_rng(3).random(len(STEPS))
"""What batches of different lengths add on top, from 0 to 1."""


def judge(values: Sequence[float], least: float = LEAST_STEPS) -> LeakJudge:
    found = LeakJudge(0.05, least)
    for step, value in enumerate(values):
        found.add(step, float(value))
    return found


@pytest.mark.parametrize("since", [0, 700, 1900])
def test_a_leak_is_named_when_it_has_grown_enough_and_dated_where_it_began(since: int) -> None:
    found = judge(20_000 + 40 * BATCHES + 3 * np.clip(STEPS - since, 0, None))
    assert found.lasting is not None and found.episodes == [found.lasting]
    assert found.lasting.since == pytest.approx(since, abs=40)
    assert since + 300 <= found.lasting.named_at <= since + 450
    assert found.rate == pytest.approx(3, rel=0.05)


def test_a_slow_leak_below_loud_batches_is_found_in_long_pieces() -> None:
    found = judge(30_000 + 2000 * BATCHES + 2.0 * STEPS).lasting
    assert found is not None and found.since < 150 and found.named_at < 1500


@pytest.mark.parametrize(
    "values",
    [
        30_000 + 4000 * BATCHES,
        30_000 + 2000 * BATCHES + 4000 * (STEPS > 1500),
        np.minimum(STEPS, 300) * 20 + 5000 + 200 * (STEPS % 7),
        9000 * (1 - np.exp(-STEPS / 200)) + 40 * BATCHES,
        20_000 + 0.3 * STEPS,
    ],
    ids=["batches", "a later buffer", "a cache that fills", "start-up", "too little"],
)
def test_growth_that_is_no_leak(values: Sequence[float]) -> None:
    assert judge(values).episodes == []


def test_a_leak_that_begins_while_a_cache_still_fills_is_found() -> None:
    found = judge(6000 * (1 - np.exp(-STEPS / 200)) + 40 * BATCHES + 6.0 * np.clip(STEPS - 300, 0, None)).lasting
    assert found is not None and found.since < 600 and found.named_at < 1300


def test_what_came_back_once_is_not_named_again() -> None:
    found = judge(10_000 + 3.0 * (STEPS % 600)).episodes
    assert [(leak.since, leak.until) for leak in found] == [(0, 600)]


def test_a_leak_ends_when_memory_stays_or_is_freed() -> None:
    stays = judge(10_000 + 2.0 * np.minimum(STEPS, 1000) + 20 * BATCHES)
    assert stays.lasting is None and stays.episodes[0].until == pytest.approx(1000, abs=60)
    freed = judge([*(10_000 + 2.0 * np.arange(1000)), *[10_000.0] * 500])
    assert freed.lasting is None and freed.episodes[0].until == 1000


def test_a_run_that_resumes_begins_anew() -> None:
    found = LeakJudge(0.05, LEAST_STEPS)
    for steps in (range(1000), range(500, 1500)):
        for step in steps:
            found.add(step, 10_000 + 2.0 * (step - steps[0]))
    assert [(leak.since, leak.until) for leak in found.episodes] == [(0, 500), (500, None)]


def test_rule_and_finding_name_the_same_leak_at_the_same_step() -> None:
    values = [20_000 + 40 * batch + 3.0 * max(step - 700, 0) for step, batch in enumerate(BATCHES[:2000])]
    found = find_leak(Curve(STEPS[:2000].astype(float), np.array(values)), 0.05, LEAST_STEPS)
    assert isinstance(found, Episode)
    memory = windows.create("leaking", Window(), 0.05)
    answers = []
    for step, value in enumerate(values):
        memory.add(value, step + 1, step, 0.1 * step)
        answers.append(windows.question("leaking", memory, 0.05)(0.1 * step))
    assert next(step for step, share in enumerate(answers) if share) == found.named_at
    assert answers[-1] == pytest.approx(found.share)


def test_memory_of_processes_is_judged_by_time() -> None:
    memory = windows.create("leaking", Window(), 0.05, has_steps=False)
    ask = windows.question("leaking", memory, 0.05)
    named = None
    for count in range(2000):  # a sample every two seconds
        memory.add(5000.0 + 4 * count, count + 1, count + 1, 1e9 + 2.0 * count)
        named = named if named is not None or not ask(0.0) else 2.0 * count
    assert named == pytest.approx(LEAST_SECONDS, abs=60)

"""What latest.json shows: the newest of each value, and nothing that is overdue."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.agent import latest as module
from trainvitals.agent.latest import FIRST_INTERVAL, MOST_SAMPLES, OVERDUE, Latest
from trainvitals.agent.reading import Reading
from trainvitals.sources import Notice, Sample, Value


class Feed:
    """A unit that is read every second, on a clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.latest = Latest()
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def read(self, *, labels: dict[str, Value] | None = None, **values: Value) -> None:
        self.now += 1.0
        sample = Sample("gpu", labels or {"gpu_index": 0}, values, self.now)
        self.latest.take(Reading("nvidia", "nvidia:a", [sample], self.now, 0.0, 1.0))

    @property
    def values(self) -> dict[str, Any]:
        return dict(self.latest.as_json()["nvidia:a"]["values"])


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch) -> Feed:
    return Feed(monkeypatch)


def test_a_value_of_every_fifth_sample_stays_in_between_with_its_newest_number(feed: Feed) -> None:
    for number in range(20):
        slow: dict[str, Value] = {"process_count": number} if number % 5 == 0 else {}
        feed.read(utilization_percent=number, **slow)
        assert feed.values == {"utilization_percent": number, "process_count": number - number % 5}


def test_a_value_whose_next_turn_is_overdue_disappears(feed: Feed) -> None:
    for number in range(11):
        slow: dict[str, Value] = {"process_count": 3} if number % 5 == 0 else {}
        feed.read(utilization_percent=number, **slow)
    for _ in range(int(5 * OVERDUE)):
        feed.read(utilization_percent=1)
        assert "process_count" in feed.values
    feed.read(utilization_percent=1)
    assert feed.values == {"utilization_percent": 1}


def test_a_value_of_every_sample_is_missed_soon_and_one_that_came_once_not_at_once(feed: Feed) -> None:
    feed.read(utilization_percent=1, pss_mb=7)
    for _ in range(3):
        feed.read(utilization_percent=2)
    assert feed.values["pss_mb"] == 7
    feed.now += OVERDUE * FIRST_INTERVAL
    feed.read(utilization_percent=2)
    assert "pss_mb" not in feed.values


def test_one_long_pause_does_not_make_a_slow_value(feed: Feed) -> None:
    for number in range(10):
        slow: dict[str, Value] = {"encoder_percent": 1} if number % 2 == 0 else {}
        feed.read(utilization_percent=number, **slow)
    feed.now += 600.0
    feed.read(utilization_percent=1, encoder_percent=1)
    feed.read(utilization_percent=1)
    feed.now += 2 * 2 * OVERDUE
    assert feed.values == {"utilization_percent": 1}


def test_what_a_gpu_said_before_it_was_lost_is_not_shown(feed: Feed) -> None:
    feed.read(state="ok", utilization_percent=50, process_count=2)
    feed.read(state="ok", utilization_percent=50)
    assert feed.values["process_count"] == 2
    feed.read(state="lost")
    assert feed.values == {"state": "lost"}
    feed.read(state="ok", utilization_percent=1)
    assert feed.values == {"state": "ok", "utilization_percent": 1}


def test_the_samples_of_a_unit_are_kept_apart_and_forgotten_with_it(feed: Feed) -> None:
    def sample(index: int, **values: Value) -> Sample:
        return Sample("gpu", {"gpu_uuid": f"MIG-{index}"}, values, feed.now)

    first = [sample(0, process_count=1), sample(1, process_count=2)]
    second = [sample(1, utilization_percent=5), sample(0, utilization_percent=4)]
    for number, items in enumerate((first, second)):
        feed.latest.take(Reading("nvidia", "nvidia:a", items, feed.now + number, 0.0, 1.0))
    found = feed.latest.as_json()
    assert {item["labels"]["gpu_uuid"]: item["values"] for item in found.values()} == {
        "MIG-0": {"utilization_percent": 4, "process_count": 1},
        "MIG-1": {"utilization_percent": 5, "process_count": 2},
    }
    feed.latest.forget("nvidia:a")
    assert feed.latest.as_json() == {}


def test_only_samples_count_and_of_a_large_page_the_first(feed: Feed) -> None:
    feed.latest.take(Reading("nvidia", "nvidia:a", [Notice("e", "m")], feed.now, 0.0, 1.0))
    assert feed.latest.count == 0 and feed.latest.as_json() == {}
    page = [Sample("openmetrics", {"series": number}, {"value": number}, feed.now) for number in range(1000)]
    feed.latest.take(Reading("openmetrics", "openmetrics:x", page, feed.now, 0.0, 1.0))
    assert feed.latest.count == 1 and len(feed.latest.as_json()) == MOST_SAMPLES

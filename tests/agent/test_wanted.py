"""What the watched runs want measured, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainvitals.agent.wanted import Demand, combine, intervals_of, wants_source
from trainvitals.settings import Settings, resolve


def make(**given: Any) -> Settings:
    return resolve(given, environ={}, folder=Path("/"))


def test_nobody_wants_anything() -> None:
    assert combine([]) == Demand() and combine([]).sources == ()


def test_the_shortest_interval_of_each_table_is_met() -> None:
    demand = combine([make(interval=1.0, gpu_interval=0.1), make(interval=0.5)])
    assert demand.interval("gpu") == 0.1 and demand.interval("system") == 0.5
    assert demand.interval("openmetrics") == 0.5 and demand.interval(None) == 0.5


def test_processes_are_looked_at_every_two_seconds_at_most() -> None:
    assert intervals_of(make(interval=0.1))["process"] == 2.0
    assert intervals_of(make(interval=5))["process"] == 5.0


def test_sources_are_those_that_one_run_wants() -> None:
    assert "simulated" not in combine([make()]).sources and "openmetrics" not in combine([make()]).sources
    assert combine([make(sources=["system"]), make(sources=["nvidia"])]).sources == ("nvidia", "system")
    wishes = [make(simulate_gpus=2), make(simulate_gpus=4, openmetrics=["http://a/m"]), make()]
    both = combine(wishes, ["http://a/m", "http://a/m"])
    assert both.simulated_gpus == 4 and both.openmetrics_urls == ("http://a/m",)
    assert {"simulated", "openmetrics"} <= set(both.sources)
    assert not wants_source(make(simulate_gpus=2, sources=["system"]), "simulated")

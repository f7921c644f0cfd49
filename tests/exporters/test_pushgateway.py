"""Pushes to Debian's Pushgateway: a run's series, kept after its end; nothing that would freeze."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from servers import Answering, Server, fetch
from waiting import free_port, wait_until

from trainvitals.exporters.contracts import Order
from trainvitals.exporters.pushgateway import by_run, start
from trainvitals.exporters.pushing import Pushing
from trainvitals.settings import resolve


def families() -> list[Metric]:
    loss = GaugeMetricFamily("training_loss", "Loss", labels=("run", "project"))
    loss.add_metric(("first", "p"), 0.5)
    loss.add_metric(("second/run", "p"), 0.25)
    steps = CounterMetricFamily("training_steps", "Steps", labels=("run", "project"))
    steps.add_metric(("first", "p"), 10, created=1.0)
    heat = GaugeMetricFamily("gpu_temperature_celsius", "Heat", labels=("gpu",))
    heat.add_metric(("0",), 60.0)
    return [loss, steps, heat]


def start_gateway(url: str, warn: Callable[[str], None] = lambda text: None) -> Pushing:
    settings = resolve({"prometheus_push_interval": 3600}, environ={}, folder=Path("/"))
    return start(Order(url, settings, lambda options: families(), "box", 0.0, Path("/nowhere"), warn))


@pytest.mark.usefixtures("patient_end")
def test_each_run_is_a_group_with_its_own_series(start_pushgateway: Callable[[], Server]) -> None:
    server = start_pushgateway()
    gateway = start_gateway(server.url)
    gateway.close()  # pushes one last time
    page = fetch(f"{server.url}/metrics")[1]
    assert 'training_loss{instance="",job="trainvitals",project="p",run="first"} 0.5' in page
    assert 'training_loss{instance="",job="trainvitals",project="p",run="second/run"} 0.25' in page
    assert 'training_steps_total{instance="",job="trainvitals",project="p",run="first"} 10' in page
    assert "gpu_temperature_celsius{" not in page


def test_what_has_no_run_is_not_pushed() -> None:
    assert {run: [family.name for family in found] for run, found in by_run(families()).items()} == {
        "first": ["training_loss", "training_steps"],
        "second/run": ["training_loss"],
    }


def test_a_hurried_gateway_is_pushed_to_at_once(answering: Answering) -> None:
    gateway = start_gateway(answering.url)
    gateway.hurry()
    wait_until(lambda: len(answering.received) == 2, "both runs")
    gateway.close()


def test_trouble_is_told_once_and_says_where_and_harms_nothing(answering: Answering) -> None:
    told: list[str] = []
    for url in (f"http://joe:secret@127.0.0.1:{free_port()}", answering.url):
        answering.answers = [(400, b"no", {})]
        told.clear()
        gateway = start_gateway(url, told.append)
        gateway.push_now()
        gateway.push_now()
        gateway.close()
        assert len(told) == 1, url
        assert told[0].startswith(
            f"cannot push metrics to the Pushgateway {url.rpartition('@')[2].removeprefix('http://')}: "
        )
        assert "secret" not in told[0]

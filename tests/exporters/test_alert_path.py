"""From a fault on a fake GPU through Prometheus and Alertmanager to a webhook, and back to resolved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from servers import Answering, Server, Watched
from waiting import wait_until

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "trainvitals.rules.yml"
HEALTHY = "count = 2\ngpu.*.temp_gpu = 60\n"


def alerts(webhook: Answering, name: str) -> list[dict[str, str]]:
    """(status and labels) of every message about this alert."""
    bodies = [json.loads(body) for _, _, body in webhook.received]
    return [
        {"status": alert["status"], **alert["labels"], **alert["annotations"]}
        for body in bodies
        for alert in body["alerts"]
        if alert["labels"]["alertname"] == name
    ]


def test_a_lost_gpu_reaches_the_webhook_and_so_does_its_return(
    watched: Callable[..., Watched],
    start_prometheus: Callable[..., Server],
    start_alertmanager: Callable[..., Server],
    answering: Answering,
) -> None:
    machine = watched(HEALTHY)
    manager = start_alertmanager(answering.url)
    scrape = {
        "job_name": "trainvitals",
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{machine.port}"]}],
    }
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [manager.url.removeprefix("http://")]}]}]},
        "scrape_configs": [scrape],
    }
    # The groups have an interval of their own; here they are judged as often as everything is scraped.
    rules = machine.folder / "rules.yml"
    rules.write_text(RULES.read_text().replace("interval: 15s", "interval: 500ms"))
    prometheus = start_prometheus(config, rules)
    wait_until(lambda: prometheus.query('gpu_state{gpu="1",state="ok"} == 1'), "a healthy GPU 1")

    machine.fake.script(HEALTHY + "err.*.1 = 15\n")
    found = wait_until(lambda: alerts(answering, "GpuLost"), "the webhook")
    assert found[0]["status"] == "firing" and found[0]["gpu"] == "1" and found[0]["severity"] == "critical"
    assert found[0]["rule"] == "gpu_lost" and "lost" in found[0]["summary"]
    assert prometheus.query('gpu_temperature_celsius{gpu="0"}')
    wait_until(lambda: not prometheus.query('gpu_temperature_celsius{gpu="1"}'), "the series of the lost GPU to end")

    machine.fake.script(HEALTHY)
    wait_until(lambda: any(item["status"] == "resolved" for item in alerts(answering, "GpuLost")), "its return")
    assert prometheus.query('gpu_temperature_celsius{gpu="1"}')

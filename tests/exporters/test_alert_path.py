"""From a fault on a fake GPU through Prometheus and Alertmanager to a webhook, and back to resolved."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from memory_groups import memory_group
from servers import Answering, Front, Server, Watched, fetch
from waiting import wait_until

from trainvitals.conditions import Conditions
from trainvitals.views.deployment.rules import render

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "trainvitals.rules.yml"
QUICKLY = ("interval: 15s", "interval: 500ms")
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


def find_manager(manager: Server) -> dict[str, Any]:
    """Where a Prometheus sends its alerts, for its configuration."""
    return {"alertmanagers": [{"static_configs": [{"targets": [manager.url.removeprefix("http://")]}]}]}


def configure(machine: Watched, manager: Server, every: str = "500ms") -> tuple[dict[str, Any], Path]:
    """A Prometheus that scrapes this machine and evaluates our rules twice a second: its configuration.

    `every` is also how long a scrape may take: all series end with one that takes longer, and all alerts with them.
    """
    scrape = {
        "job_name": "trainvitals",
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{machine.port}"]}],
    }
    config = {
        "global": {"scrape_interval": every, "evaluation_interval": "500ms"},
        "alerting": find_manager(manager),
        "scrape_configs": [scrape],
    }
    rules = machine.folder / "rules.yml"
    rules.write_text(RULES.read_text().replace(*QUICKLY))
    return config, rules


def test_a_lost_gpu_reaches_the_webhook_and_so_does_its_return(
    watched: Callable[..., Watched],
    start_prometheus: Callable[..., Server],
    start_alertmanager: Callable[..., Server],
    answering: Answering,
) -> None:
    machine = watched(HEALTHY)
    prometheus = start_prometheus(*configure(machine, start_alertmanager(answering.url)))
    wait_until(lambda: prometheus.query('gpu_state{gpu="1",state="ok"} == 1'), "a healthy GPU 1")

    machine.fake.script(HEALTHY + "err.*.1 = 15\n")
    found = wait_until(lambda: alerts(answering, "GpuLost"), "the webhook")
    assert found[0]["status"] == "firing" and found[0]["gpu"] == "1" and found[0]["severity"] == "critical"
    assert found[0]["rule"] == "gpu_lost" and "lost" in found[0]["summary"]
    wait_until(lambda: prometheus.query('gpu_temperature_celsius{gpu="0"}'), "the series of the other GPU")
    wait_until(lambda: not prometheus.query('gpu_temperature_celsius{gpu="1"}'), "the series of the lost GPU to end")

    machine.fake.script(HEALTHY)
    wait_until(lambda: any(item["status"] == "resolved" for item in alerts(answering, "GpuLost")), "its return")
    wait_until(lambda: prometheus.query('gpu_temperature_celsius{gpu="1"}'), "its series")


LOOP = """
import os, signal, time
{begin}
import trainvitals
run = trainvitals.init(project="exported", name="{name}")
for step in range(1, 40):
    run.log({{"loss": 1.0 / step}}, step=step)
    time.sleep(0.05)
{end}
"""
ENDINGS = {
    "raises": ("raise ValueError('bad batch')", "failed", "exception", "ValueError: bad batch"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "signal", "killed by SIGKILL"),
    "hoards": ("hoard = []\nwhile True: hoard.append(bytearray(8 << 20))", "killed", "out_of_memory", "out of memory"),
}


def test_the_end_of_a_run_reaches_the_webhook_once_from_two_prometheus_servers(
    watched: Callable[..., Watched],
    start_prometheus: Callable[..., Server],
    start_alertmanager: Callable[..., Server],
    answering: Answering,
) -> None:
    machine = watched(HEALTHY)
    configuration = configure(machine, start_alertmanager(answering.url), every="5s")
    pair = [start_prometheus(*configuration) for _ in range(2)]
    for server in pair:
        wait_until(lambda server=server: server.query("trainvitals_run_info"), "a first scrape")
    with memory_group(128 << 20) as group:
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        for name, (end, *_) in ENDINGS.items():
            machine.train(LOOP.format(name=name, begin=join if name == "hoards" else "", end=end))
        machine.train(LOOP.format(name="finishes", begin="", end=""))
        machine.environ["TRAINVITALS_STALL_AFTER"] = "2"  # a hang is five times this, and by default 100 seconds
        machine.train(LOOP.format(name="hangs", begin="", end="time.sleep(3600)"))

        def fired() -> dict[str, dict[str, str]]:
            return {item["cause"]: item for item in alerts(answering, "RunFailed")}

        wait_until(lambda: len(fired()) == len(ENDINGS), "all three ends")
    wait_until(lambda: alerts(answering, "RunHung"), "the run that hangs")
    for _, status, cause, detail in ENDINGS.values():
        assert fired()[cause]["status"] == status and detail in fired()[cause]["summary"]

    def ends(server: Server) -> set[tuple[str, str]]:
        found = server.query("increase(trainvitals_runs_ended_total[10m]) > 0")
        return {(item["metric"]["status"], item["metric"].get("cause", "")) for item in found}

    expected = {(status, cause) for _, status, cause, _ in ENDINGS.values()} | {("finished", "")}
    for server in pair:  # the message may have come from the other one
        wait_until(lambda server=server: ends(server) == expected, lambda server=server: f"all ends: {ends(server)}")
        wait_until(
            lambda server=server: server.query('trainvitals_alert_active{rule="process_died"} == 1'), "the alert"
        )
    for alert in ("RunFailed", "RunHung"):
        told: dict[str, str] = {}
        for item in delivered(answering, alert):
            # A scrape that a busy machine missed ends the alert until the next one: that is another message.
            assert told.get(item["run"]) != item["state"], f"{alert} of {item['run']} was sent twice"
            told[item["run"]] = item["state"]


def delivered(webhook: Answering, name: str) -> list[dict[str, str]]:
    """(run and state) of every message about this alert, one for each body."""
    bodies = [json.loads(body) for _, _, body in webhook.received]
    return [
        {"run": body["groupLabels"].get("run", ""), "state": body["status"]}
        for body in bodies
        if body["groupLabels"]["alertname"] == name
    ]


@pytest.fixture
def pushers(tmp_path: Path) -> Iterator[Callable[[str, str], subprocess.Popen[bytes]]]:
    """`pushers(name, url)` starts an agent on a machine of this name, which only pushes."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, url: str) -> subprocess.Popen[bytes]:
        environ = {
            **{key: text for key, text in os.environ.items() if not key.startswith("TRAINVITALS_")},
            "TRAINVITALS_RUNTIME_DIR": str(tmp_path / name),
            "TRAINVITALS_DIR": str(tmp_path / "runs"),
            "TRAINVITALS_PROMETHEUS_REMOTE_WRITE": url,
            "TRAINVITALS_PROMETHEUS_PUSH_INTERVAL": "1",
            "TRAINVITALS_PROMETHEUS_HOST": name,
        }
        started.append(subprocess.Popen([sys.executable, "-P", "-m", "trainvitals.agent", "--keep"], env=environ))
        return started[-1]

    yield start
    for agent in started:
        agent.kill()
        agent.wait()


def test_a_pusher_that_falls_silent_and_one_that_is_refused_reach_the_webhook_but_not_one_that_ends(
    start_prometheus: Callable[..., Server],
    start_alertmanager: Callable[..., Server],
    answering: Answering,
    pushers: Callable[[str, str], subprocess.Popen[bytes]],
    tmp_path: Path,
) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text(render("mb", Conditions({"push_silence": 3.0})).replace(*QUICKLY))
    manager = start_alertmanager(answering.url)
    prometheus = start_prometheus({"alerting": find_manager(manager)}, rules)
    # What fires before it knows the Alertmanager is sent a minute later.
    wait_until(lambda: manager.url in fetch(f"{prometheus.url}/api/v1/alertmanagers")[1], "it to know the Alertmanager")
    front = Front(prometheus)
    agents = {name: pushers(name, front.url) for name in ("ends", "dies")}

    def expected(name: str) -> float | None:
        return prometheus.value(f'trainvitals_next_push_timestamp_seconds{{instance=~"{name}:.*"}}')

    for name in agents:
        wait_until(lambda name=name: expected(name), f"the first push of {name}")
    refused = iter([400])
    front.answer = lambda sent: next(refused, None) if b"dies:" in sent else None
    found = wait_until(lambda: alerts(answering, "TrainvitalsPushRejected"), "the webhook to hear of the refusal")
    assert found[0]["outcome"] == "rejected" and found[0]["host"] == "dies" and found[0]["severity"] == "warning"

    agents["ends"].terminate()
    wait_until(lambda: expected("ends") == math.inf, "its last word")
    agents["dies"].kill()

    def silent() -> set[str]:
        firing = prometheus.query('ALERTS{alertname="TrainvitalsSilent",alertstate="firing"}')
        return {item["metric"]["instance"].partition(":")[0] for item in firing}

    wait_until(lambda: silent() == {"dies"}, "the silence to be noticed, and only that")
    wait_until(
        lambda: [item for item in alerts(answering, "TrainvitalsSilent") if item["instance"].startswith("dies:")],
        "the webhook to hear of the silence",
    )
    front.close()

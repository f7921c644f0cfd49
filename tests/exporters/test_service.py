"""What is served while somebody wants it: opened, shared, given back, and the last values of a run seen once."""

from __future__ import annotations

import base64
import getpass
import re
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cramjam
import pytest
from servers import Answering, Server, fetch
from waiting import free_port, wait_until
from write_requests import read_request

from trainvitals.exporters.families import FamilyOptions
from trainvitals.exporters.runs import ActiveAlert, EndedAt, RunView
from trainvitals.exporters.service import Exports
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.journal.layout import FileName
from trainvitals.newest import Newest
from trainvitals.settings import Settings, resolve
from trainvitals.sources import Sample


def settings(**values: Any) -> Settings:
    return resolve({f"prometheus_{name}": value for name, value in values.items()}, environ={}, folder=Path("/"))


class Machine:
    def __init__(self, folder: Path) -> None:
        self.told: list[str] = []
        self.folder = folder / "p" / "run-1"
        self.folder.mkdir(parents=True)
        self.run = RunView("run-1", self.folder, "p", "run", "running")
        self.newest = Newest()
        self.exports = Exports("box", folder, self.newest, self.told.append)
        self._relay = Relay(self.folder)
        self._relay.add(self.exports.listen_to(self.folder))

    def log(self, step: int, **values: float) -> None:
        with open(self.folder / FileName("training", 1, "20260101_000000").jsonl, "ab") as file:
            file.write(encode_line({"timestamp": format_time(), "step": step, **values}))
        self._relay.poll()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    found = Machine(tmp_path)
    yield found
    found.exports.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which ended runs are kept."""
    found = [0.0]
    monkeypatch.setattr("trainvitals.exporters.ended_runs.monotonic", lambda: found[0])
    return found


def page(port: int) -> str:
    return fetch(f"http://127.0.0.1:{port}/metrics")[1]


def losses(machine: Machine) -> list[float]:
    """What a page would say of the loss, without anybody looking at one."""
    found = [family for family in machine.exports.collect(FamilyOptions()) if family.name == "training_loss"]
    return [sample.value for family in found for sample in family.samples]


def test_the_end_of_a_run_is_in_every_page_for_a_while_and_then_the_port_is_given_back(
    machine: Machine, clock: list[float]
) -> None:
    port = free_port()
    machine.log(1, loss=0.5)
    machine.exports.update([machine.run], {})
    machine.exports.want([settings(port=port)])
    wait_until(lambda: 'training_loss{host="box",project="p",rank="0",run="run-1"} 0.5' in page(port), "the loss")
    machine.log(2, loss=0.25)
    cause = Cause(kind="exception", detail="ValueError: token=hunter2hunter2hunter2")
    died = replace(
        machine.run,
        state="failed",
        ended=EndedAt(1000.0, cause),
        alerts=(ActiveAlert("process_died", "critical", {"rank": 0}),),
    )
    machine.exports.update([died], {})
    machine.exports.update([], {})
    for moment in (0.0, 300.0, 599.0):
        clock[0] = moment
        machine.exports.want([])
        text = page(port)
        assert 'run="run-1"} 0.25' in text and 'state="failed"} 1.0' in text
        assert 'trainvitals_runs_ended_total{cause="exception",host="box",status="failed"} 1.0' in text
        assert 'trainvitals_runs_ended_total{cause="",host="box",status="finished"} 0.0' in text
        ending = next(line for line in text.splitlines() if line.startswith("trainvitals_run_end_timestamp_seconds{"))
        assert 'cause="exception",detail="ValueError: ' in ending and ending.endswith(" 1000.0")
        assert "hunter2" not in text and 'rule="process_died"' in text
    clock[0] = 601.0
    assert "training_loss{" not in page(port)
    machine.exports.want([])
    assert page(port) == "" and machine.exports.idle


def test_a_run_that_is_resumed_has_no_end_any_longer(machine: Machine) -> None:
    port = free_port()
    machine.exports.want([settings(port=port)])
    machine.exports.update([replace(machine.run, state="failed", ended=EndedAt(1000.0))], {})
    machine.exports.update([], {})
    assert 'state="failed"} 1.0' in page(port) and "trainvitals_run_end_timestamp_seconds{" in page(port)
    machine.exports.update([machine.run], {})
    assert 'state="running"} 1.0' in page(port) and "trainvitals_run_end_timestamp_seconds{" not in page(port)


def test_ends_are_counted_on_by_the_next_agent(machine: Machine, tmp_path: Path) -> None:
    machine.exports.update([replace(machine.run, state="killed", ended=EndedAt(1000.0, Cause(kind="signal")))], {})
    machine.exports.update([], {})
    machine.exports.close()
    next_one = Exports("box", tmp_path, Newest(), machine.told.append)
    samples = [sample for family in next_one.collect(FamilyOptions()) for sample in family.samples]
    counted = [item.value for item in samples if item.name == "trainvitals_runs_ended_total" and item.value]
    assert counted == [1.0]


def gpu_settings(port: int, gpus: str | None) -> Settings:
    return resolve({"prometheus_port": port, "gpus": gpus}, environ={}, folder=Path("/"))


def test_only_the_gpus_that_somebody_measures_are_served(machine: Machine) -> None:
    port = free_port()
    samples = [
        Sample("gpu", {"gpu_index": index, "gpu_uuid": f"GPU-{index}f"}, {"temperature_celsius": 40.0}, 0.0)
        for index in range(4)
    ]
    machine.newest.take("made", "made", samples, time.monotonic(), 60.0)

    def served() -> list[str]:
        return re.findall(r'^gpu_temperature_celsius{gpu="(\d+)"', page(port), re.MULTILINE)

    machine.exports.want([gpu_settings(port, "1")])
    assert served() == ["1"]
    machine.exports.want([gpu_settings(port, "1"), gpu_settings(port, "GPU-3f")])
    assert served() == ["1", "3"]
    machine.exports.want([gpu_settings(port, "1"), gpu_settings(port, None)])
    assert served() == ["0", "1", "2", "3"]


def test_two_that_want_the_same_port_share_it_until_both_are_gone(machine: Machine) -> None:
    port = free_port()
    machine.exports.want([settings(port=port), settings(port=port)])
    machine.exports.want([settings(port=port)])
    assert "trainvitals_build_info" in page(port)
    machine.exports.want([])
    assert page(port) == ""


def test_who_wants_the_same_port_otherwise_is_told_and_gets_it_when_the_first_is_gone(machine: Machine) -> None:
    port = free_port()
    first, other = settings(port=port), settings(port=port, names="base", compat="dcgm")
    machine.exports.update([machine.run], {})
    machine.log(1, loss=0.5, memory_allocated_mb=1.0)
    for _ in range(2):
        machine.exports.want([first, other])
    wait_until(lambda: "memory_allocation_mb{" in page(port), "the spelling of the first")
    assert len(machine.told) == 1 and "prometheus.names, prometheus.compat of another run" in machine.told[0]
    machine.exports.want([other])
    wait_until(lambda: "memory_allocation_bytes{" in page(port), "the spelling of the other")


def test_a_taken_port_is_told_once_and_tried_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.service.RETRY_SECONDS", 0.0)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for _ in range(3):
            machine.exports.want([settings(port=port)])
        assert len(machine.told) == 1 and f"127.0.0.1:{port} is in use" in machine.told[0]
    wait_until(lambda: machine.exports.want([settings(port=port)]) or page(port), "the port to be free")
    assert "trainvitals_build_info" in page(port)


def test_a_secret_that_is_not_there_is_told_and_nothing_is_served(machine: Machine) -> None:
    port = free_port()
    machine.exports.want([settings(port=port, address="0.0.0.0", token="env:NO_SUCH_VARIABLE_HERE")])
    assert page(port) == "" and "NO_SUCH_VARIABLE_HERE is not set" in machine.told[0]


def test_everything_is_pushed_by_remote_write_and_counted_on_the_page(machine: Machine, answering: Answering) -> None:
    port = free_port()
    machine.exports.want([settings(port=port, remote_write=answering.url, push_interval=1.0)])
    wait_until(lambda: len(answering.received) >= 2, "two pushes")
    bodies = [bytes(cramjam.snappy.decompress_raw(body)) for _, _, body in answering.received]
    assert any(b"trainvitals_build_info" in body and f"box:{getpass.getuser()}".encode() in body for body in bodies)
    wait_until(lambda: 'trainvitals_remote_write_requests_total{host="box",outcome="sent"}' in page(port), "the count")


def test_the_end_of_a_run_is_pushed_at_once_and_stays_visible_until_the_push_is_closed(
    machine: Machine, start_prometheus: Callable[..., Server], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals.exporters.service.PUSH_LINGER_SECONDS", 0.0)
    server = start_prometheus()
    machine.exports.update([machine.run], {})
    machine.exports.want([settings(remote_write=f"{server.url}/api/v1/write", push_interval=3600.0)])
    wait_until(lambda: server.query("trainvitals_build_info"), "the first push")
    machine.log(1, loss=0.5)
    machine.log(2, loss=0.25)
    machine.exports.update([], {})
    machine.exports.want([])
    wait_until(lambda: server.value("training_loss") == 0.25, "the last value")
    machine.exports.want([])
    assert not machine.exports.idle
    clock[0] = 601.0
    wait_until(lambda: machine.exports.want([]) or machine.exports.idle, "the push to be closed")
    assert server.value("last_over_time(training_steps_total[1h])") == 2
    assert server.query("training_loss") == [] and server.query("trainvitals_build_info") == []


def test_a_push_that_nobody_wants_any_longer_ends_without_the_hurry_of_an_agent_that_ends(
    machine: Machine, start_prometheus: Callable[..., Server], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals.exporters.push_queue.PATIENCE", 0.0)
    monkeypatch.setattr("trainvitals.exporters.service.PUSH_LINGER_SECONDS", 0.0)
    server = start_prometheus()
    machine.exports.want([settings(remote_write=f"{server.url}/api/v1/write", push_interval=3600.0)])
    wait_until(lambda: server.query("trainvitals_build_info"), "the first push")
    wait_until(lambda: machine.exports.want([]) or machine.exports.idle, "the push to be closed")
    assert server.query("trainvitals_build_info") == []


def test_the_series_of_a_run_end_while_those_of_others_go_on(
    machine: Machine, start_prometheus: Callable[..., Server], clock: list[float]
) -> None:
    server = start_prometheus()
    wishes = [settings(remote_write=f"{server.url}/api/v1/write", push_interval=1.0)]
    machine.exports.update([machine.run], {})
    machine.exports.want(wishes)
    machine.log(1, loss=0.5)
    wait_until(lambda: server.value("training_loss") == 0.5, "the loss")
    machine.log(2, loss=0.25)
    machine.exports.update([], {})
    machine.exports.want(wishes)
    wait_until(lambda: server.value("training_loss") == 0.25, "the last value")
    clock[0] = 601.0
    wait_until(lambda: not server.query("training_loss"), "the end of the series")
    assert server.value("last_over_time(training_loss[1h])") == 0.25
    assert server.query("trainvitals_build_info") != []


@pytest.mark.usefixtures("patient_end")
def test_the_end_of_the_agent_pushes_what_was_logged_last(
    machine: Machine, start_prometheus: Callable[..., Server]
) -> None:
    server = start_prometheus()
    machine.exports.update([machine.run], {})
    machine.exports.want([settings(remote_write=f"{server.url}/api/v1/write")])
    wait_until(lambda: server.query("trainvitals_build_info"), "the first push")
    machine.log(3, loss=0.125)
    machine.exports.close()
    assert server.value("last_over_time(training_loss[1h])") == 0.125
    assert server.query("training_loss") == [] and server.query("trainvitals_build_info") == []


@pytest.mark.usefixtures("patient_end")
def test_how_a_run_ended_is_still_seen_by_rules_when_the_agent_stops_at_once(
    machine: Machine, start_prometheus: Callable[..., Server]
) -> None:
    server = start_prometheus()
    machine.exports.update([machine.run], {})
    machine.exports.want([settings(remote_write=f"{server.url}/api/v1/write")])
    wait_until(lambda: server.query("trainvitals_build_info"), "the first push")
    ending = EndedAt(1000.0, Cause(kind="signal", signal="SIGKILL"))
    machine.exports.update([replace(machine.run, state="killed", ended=ending)], {})
    machine.exports.update([], {})
    machine.exports.close()
    assert server.query("training_loss") == [] and server.query("trainvitals_build_info") == []
    assert server.value('trainvitals_run_state{state="killed"}') == 1
    assert server.value('trainvitals_run_end_timestamp_seconds{status="killed",cause="signal"}') == 1000


def test_a_page_and_a_push_each_show_the_last_values(machine: Machine, answering: Answering) -> None:
    port = free_port()
    wishes = [settings(port=port, pushgateway=answering.url, push_interval=3600.0)]
    machine.exports.update([machine.run], {})
    machine.exports.want(wishes)
    machine.log(1, loss=0.5)
    machine.exports.update([], {})
    wait_until(lambda: answering.received, "the push")
    assert 'rank="0",run="run-1"} 0.5' in page(port)


def test_pushes_carry_the_headers_and_the_newest_token(machine: Machine, answering: Answering, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first")
    machine.exports.want(
        [
            settings(
                remote_write=answering.url,
                push_interval=1.0,
                push_token=f"file:{token}",
                push_headers={"X-Scope-OrgID": "vision"},
                host="node-7",
                labels={"cluster": "lab"},
            )
        ]
    )
    wait_until(lambda: answering.received, "a push")
    _, headers, body = answering.received[0]
    assert headers["authorization"] == "Bearer first" and headers["x-scope-orgid"] == "vision"
    plain = bytes(cramjam.snappy.decompress_raw(body))
    assert b"node-7" in plain and b"cluster" in plain and b"box" not in plain
    token.write_text("second")
    wait_until(lambda: answering.received[-1][1]["authorization"] == "Bearer second", "the new token")


@pytest.mark.parametrize("native", [False, True])
def test_step_durations_are_pushed_as_buckets_or_as_one_native_histogram(
    native: bool, machine: Machine, answering: Answering
) -> None:
    machine.exports.update([machine.run], {})
    for step in (1, 2):
        machine.log(step, batch_time=0.5)
    machine.exports.want([settings(remote_write=answering.url, push_native_histograms=native)])
    wait_until(lambda: answering.received, "a push")
    found = {series.labels["__name__"]: series.value for series in read_request(*answering.received[0][1:])}
    assert ("training_step_duration_seconds" in found) == native
    assert ("training_step_duration_seconds_bucket" in found) != native


@pytest.mark.parametrize("kind", ["remote_write", "pushgateway"])
def test_an_address_by_reference_is_read_where_it_stands_and_again_when_it_is_replaced(
    kind: str, machine: Machine, answering: Answering, tmp_path: Path
) -> None:
    where = tmp_path / "where"

    def write(password: str) -> str:
        where.write_text(answering.url.replace("http://", f"http://joe:{password}@") + "\n")
        return f"Basic {base64.b64encode(f'joe:{password}'.encode()).decode()}"

    first = write("secret")
    machine.exports.update([machine.run], {})
    machine.exports.want([settings(**{kind: f"file:{where}"}, push_interval=1.0)])
    wait_until(lambda: answering.received, "a push")
    assert answering.received[0][1]["authorization"] == first
    where.unlink()
    second = write("secret2")
    wait_until(lambda: answering.received[-1][1]["authorization"] == second, "a push with the new password")
    assert not any("secret" in text for text in machine.told)

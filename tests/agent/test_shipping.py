"""The agent ships its runs to a gateway, whoever is killed on the way."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import honest_gateway
import pytest
from honest_gateway import Copy, HonestGateway
from run_copies import find_differences
from waiting import free_port, pause, wait_until

from trainvitals.agent.log import Log
from trainvitals.agent.shipping import Shipping, list_unshipped
from trainvitals.fleet.wire import VERSION, VERSION_HEADER, FileRange
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Shipment, Status
from trainvitals.settings import resolve

STEPS = """
    for step in range(100_000):
        run.log({{"loss": 1.0 / (step + 1), "text": "x" * 200}}, step=step)
        time.sleep(0.01)
        if os.path.exists({stop!r}):
            break
    run.finish()
"""


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[HonestGateway]:
    gateway = HonestGateway(tmp_path / "gateway")
    yield gateway
    gateway.close()


def read_shipment(folder: Path) -> Shipment:
    return next((status.shipment for status in run_folder.read_statuses(folder)), Shipment())


def wait_for_all(folder: Path) -> None:
    """Until the gateway has the status that says so, too."""
    wait_until(lambda: read_shipment(folder).complete and folder not in list_unshipped(), "all of the run")


def start(machine: Any, address: str, tmp_path: Path, **options: Any) -> tuple[Any, Callable[[], None]]:
    """A training that rotates and seals all the time, and how to end it."""
    stop = tmp_path / "stop"
    usual: dict[str, Any] = {"rotate_size_mb": 0.02, "gateway_interval": 0.1, "capture_git": False}
    settings = {"gateway": address, "console": "tee", **usual, **options}
    training = machine.train(STEPS.format(stop=str(stop)), **settings)
    return training, stop.touch


def test_a_run_is_shipped_while_it_lives_and_complete_when_it_has_ended(
    machine: Any, honest: HonestGateway, tmp_path: Path
) -> None:
    machine.start_agent()
    training, stop = start(machine, honest.address, tmp_path)
    copy = honest.copy("p", training.folder.name)
    wait_until(lambda: list((copy.folder / "segments").glob("*.parquet")), "a sealed file")
    wait_until(lambda: read_shipment(training.folder).sent, "a status that says how much was shipped")
    assert read_shipment(training.folder).is_due
    assert list_unshipped() == [training.folder]
    stop()
    training.wait_for_end()
    wait_for_all(training.folder)
    assert find_differences(training.folder, copy) == []
    found = read_shipment(training.folder)
    assert found.complete and (found.waiting, found.trouble, found.target) == (0, None, honest.address)


@pytest.mark.promise("agent and gateway are killed (kill -9) repeatedly", "every line of a run arrives exactly once")
def test_kills_of_both_ends_lose_and_double_nothing(machine: Any, tmp_path: Path) -> None:
    port, place, chance = free_port(), tmp_path / "gateway", random.Random(os.urandom(4))
    gateways: list[subprocess.Popen[str]] = []

    def start_gateway() -> None:
        command = [sys.executable, honest_gateway.__file__, str(place), str(port)]
        gateways.append(machine.spawn(command))

    start_gateway()
    agent = machine.start_agent()
    training, stop = start(machine, f"http://127.0.0.1:{port}", tmp_path)
    copy = Copy(place / "p" / training.folder.name)
    for number in range(6):
        wait_until(lambda: copy.folder.is_dir(), "the first request")
        pause(chance.uniform(0.1, 1.0))
        if number % 2:
            agent.kill()
            agent.wait()
            agent = machine.start_agent()
        else:
            gateways[-1].kill()
            gateways[-1].wait()
            start_gateway()
    agent.kill()
    agent.wait()
    stop()
    training.process.wait()
    machine.start_agent()
    training.wait_for_end()
    wait_for_all(training.folder)
    assert find_differences(training.folder, copy) == []


@pytest.mark.parametrize("forgets", [False, True])
def test_a_run_that_ended_without_a_gateway_is_shipped_by_the_next_agent(
    machine: Any, honest: HonestGateway, tmp_path: Path, forgets: bool
) -> None:
    honest.misbehave = lambda *_: (503, {"Retry-After": "0"}, b"")
    agent = machine.start_agent()
    training, stop = start(machine, honest.address, tmp_path)
    wait_until(lambda: read_shipment(training.folder).trouble, "a status that says what is wrong")
    training.wait_for_event("exporter_trouble")
    stop()
    training.wait_for_end()
    wait_until(lambda: read_shipment(training.folder).behind_since, "a status that says since when")
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    assert list_unshipped() == [training.folder] and not honest.copy("p", training.folder.name).folder.exists()
    if forgets:
        shutil.rmtree(machine.runtime / "shipping")  # as a reboot may
    honest.misbehave = lambda *_: None
    machine.start_agent()
    if forgets:
        other = machine.train("run.finish()", gateway=honest.address)
        wait_until(lambda: read_shipment(other.folder).complete, "another run of the same folder")
    wait_for_all(training.folder)
    assert find_differences(training.folder, honest.copy("p", training.folder.name)) == []


def test_an_agent_of_a_node_ships_runs_that_name_no_gateway(machine: Any, honest: HonestGateway) -> None:
    machine.start_agent("--keep", TRAINVITALS_GATEWAY=honest.address)
    training = machine.train("run.finish()")
    wait_for_all(training.folder)
    assert find_differences(training.folder, honest.copy("p", training.folder.name)) == []


def test_a_token_is_asked_for_where_the_training_has_it(machine: Any, honest: HonestGateway, tmp_path: Path) -> None:
    honest.token = "s3cret-of-the-project"
    agent = machine.start_agent()
    training, stop = start(machine, honest.address, tmp_path, gateway_token="env:MY_TOKEN")
    wait_until(lambda: "MY_TOKEN" in (read_shipment(training.folder).trouble or ""), "a refusal that is shown")
    stop()
    training.wait_for_end()
    place = {"gateway": honest.address, "gateway_token": "env:MY_TOKEN"}
    again = machine.train("sys.stdin.readline()\nrun.finish()", {"MY_TOKEN": honest.token}, **place)
    wait_until(lambda: read_shipment(again.folder).sent, "the first of the run with a token")
    again.go()
    wait_for_all(again.folder)
    assert list_unshipped() == [training.folder]
    assert find_differences(again.folder, honest.copy("p", again.folder.name)) == []
    agent.terminate()  # else it would replace files while they are looked through
    agent.wait()
    for path in (*again.folder.rglob("*"), *machine.runtime.rglob("*")):
        assert not path.is_file() or honest.token.encode() not in path.read_bytes(), path


# -- without an agent


def make_shipping() -> Shipping:
    return Shipping("here", Log(Path(os.devnull)).bind())


def test_no_gateway_no_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    shipping = make_shipping()
    shipping.add(tmp_path, resolve({}, environ={}, folder=Path("/")), {}, pytest.fail)
    assert not shipping.busy and shipping.describe(tmp_path) is None and list_unshipped() == []
    assert shipping.count() is None


def test_notes_of_runs_that_are_gone_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    settings = resolve({"gateway": f"http://127.0.0.1:{free_port()}"}, environ={}, folder=Path("/"))
    first = make_shipping()
    away, gone = tmp_path / "not mounted" / "p" / "r", tmp_path / "gone"
    for folder in (away, gone):
        first.add(folder, settings, {}, lambda text: None)
    first.close()
    after = make_shipping()
    assert after.take_up(lambda values: settings) == 2
    assert list_unshipped() == [away], "a file system may come back"
    after.close()


def test_a_gateway_that_is_away_for_a_day_lets_the_agent_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    run_folder.create(tmp_path / "p" / "r")
    run_folder.write_status(tmp_path / "p" / "r", Status(host="here"))
    settings = resolve({"gateway": f"http://127.0.0.1:{free_port()}"}, environ={}, folder=Path("/"))
    shipping = make_shipping()
    shipping.add(tmp_path / "p" / "r", settings, {}, lambda text: None)
    wait_until(lambda: (found := shipping.count()) and found.failures, "a request that fails")
    assert shipping.busy
    monkeypatch.setattr("trainvitals.agent.shipping.PATIENCE", -1.0)
    assert not shipping.busy
    shipping.close()
    assert len(list_unshipped()) == 1


class QuotaGateway(HonestGateway):
    """One of whose projects has had its share."""

    is_full = True
    refusals = 0

    def answer(self, method: str, path: str, token: str, frames: list[FileRange]) -> tuple[int, dict[str, str], bytes]:
        if method == "POST" and "/full/" in path and self.is_full:
            self.refusals += 1
            return 429, {"Retry-After": "1"}, b'{"error": "project full has had its share", "quota": true}'
        return super().answer(method, path, token, frames)


@pytest.mark.promise(
    "a project has shipped what its quota allows",
    "its runs wait in their folders and are shipped later; other projects are not delayed",
)
def test_a_run_over_quota_waits_alone_says_so_once_and_is_shipped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    gateway = QuotaGateway(tmp_path / "gateway")
    settings = resolve({"gateway": gateway.address, "gateway_interval": 0.1}, environ={}, folder=Path("/"))
    shipping, said = make_shipping(), []
    full, free = (tmp_path / project / "r" for project in ("full", "free"))
    for folder in (full, free):
        run_folder.create(folder)
        run_folder.write_status(folder, Status(host="here"))
        (folder / "training_metrics_20261118_060000.rank0.jsonl").write_bytes(b'{"step": 1, "loss": 2}\n')
        shipping.add(folder, settings, {}, said.append, watched=False)
    wait_until(lambda: list_unshipped() == [full] and gateway.refusals > 2, "the other run, and some tries")
    found = shipping.describe(full)
    assert found is not None and found.trouble == "project full has had its share" and found.waiting > 0
    gateway.is_full = False
    wait_until(lambda: list_unshipped() == [], "the rest")
    shipping.close()
    assert [text for text in said if "its share" in text] == [
        f"cannot ship to {gateway.address}, retrying: project full has had its share"
    ]
    for folder in (full, free):
        assert find_differences(folder, gateway.copy(folder.parent.name, "r")) == []
    gateway.close()


def test_a_run_that_was_removed_there_is_left_and_says_so_once(
    machine: Any, honest: HonestGateway, tmp_path: Path
) -> None:
    machine.start_agent()
    training, stop = start(machine, honest.address, tmp_path)
    wait_until(lambda: read_shipment(training.folder).sent, "some of it")
    asked = []

    def say_gone(method: str, frames: list[FileRange]) -> tuple[int, dict[str, str], bytes]:
        asked.append(method)
        return 410, {VERSION_HEADER: str(VERSION)}, b'{"error": "run \'r\' was removed from the store"}'

    honest.misbehave = say_gone
    wait_until(lambda: read_shipment(training.folder).removed, "a status that says so")
    assert not read_shipment(training.folder).is_due
    stop()
    training.wait_for_end()
    wait_until(lambda: list_unshipped() == [], "the agent to have nothing to ship")
    found = read_shipment(training.folder)
    assert (found.complete, found.removed, found.trouble) == (False, True, "run 'r' was removed from the store")
    assert len(asked) == 1
    troubles = [row["message"] for row in training.events("exporter_trouble")]
    assert len(troubles) == 1 and "no longer shipped" in troubles[0]


@pytest.mark.promise(
    "the token of a run is not for its project", "the run waits and says so; other runs with this token are shipped"
)
def test_a_run_whose_project_is_not_the_tokens_waits_alone_until_it_is_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    gateway = ProjectGateway(tmp_path / "gateway")
    settings = resolve({"gateway": gateway.address, "gateway_interval": 0.1}, environ={}, folder=Path("/"))
    shipping, said = make_shipping(), []
    shut, free = (tmp_path / project / "r" for project in ("shut", "free"))
    for folder in (shut, free):
        run_folder.create(folder)
        run_folder.write_run(folder, RunFile(id="r", project=folder.parent.name, status="finished"))
        run_folder.write_status(folder, Status(host="here"))
        shipping.add(folder, settings, {"TRAINVITALS_TOKEN": "t"}, said.append, watched=False)
    wait_until(lambda: list_unshipped() == [shut] and len(said) == 1, "the other run")
    assert "may not write in project 'shut'" in said[0]
    run_folder.change_run(shut, lambda run: replace(run, project="free2", project_before="shut"), 0o600)
    wait_until(lambda: list_unshipped() == [], "the run, at once in the project that its program named")
    shipping.close()
    assert find_differences(shut, gateway.copy("free2", "r")) == []
    gateway.close()


def test_a_run_that_was_shipped_by_hand_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    honest = HonestGateway(tmp_path / "gateway")
    honest.token = "right"
    settings = resolve({"gateway": honest.address, "gateway_interval": 0.1}, environ={}, folder=Path("/"))
    folder = tmp_path / "runs" / "p" / "r"
    run_folder.create(folder)
    run_folder.write_run(folder, RunFile(id="r", project="p", status="finished"))
    run_folder.write_status(folder, Status(host="here"))
    shipping, said = make_shipping(), []
    monkeypatch.setattr("trainvitals.agent.shipping.LONGEST_IDLE", 0.1)
    monkeypatch.setattr("trainvitals.fleet.gateway_client.CLOSED_PAUSE", 0.1)
    shipping.add(folder, settings, {"TRAINVITALS_TOKEN": "wrong"}, said.append, watched=False)
    wait_until(lambda: said and read_shipment(folder).waiting, "the trouble in status.json")
    environment = {**os.environ, "TRAINVITALS_TOKEN": "right"}
    command = [sys.executable, "-m", "trainvitals", "export", str(folder), "--to", "gateway", honest.address]
    subprocess.run(command, env=environment, check=True)
    wait_until(lambda: list_unshipped() == [], "the agent to see it")
    shipping.close()
    assert read_shipment(folder).complete
    honest.close()


class ProjectGateway(HonestGateway):
    """Of which a token is for all projects but one."""

    def answer(self, method: str, path: str, token: str, frames: list[FileRange]) -> tuple[int, dict[str, str], bytes]:
        if "/shut/" in path:
            return 403, {}, b'{"error": "this token may not write in project \'shut\'"}'
        return super().answer(method, path, token, frames)

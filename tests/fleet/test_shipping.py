"""A run folder and its copy at a gateway: the same bytes, whatever happens on the way."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_runs
import pytest
from honest_gateway import HonestGateway
from run_copies import find_differences

from trainvitals.fleet import shipping, wire
from trainvitals.fleet.gateway_client import FarGateway, GatewayAccess, NotNow
from trainvitals.fleet.shipping import RunShipment
from trainvitals.fleet.wire import FileRange
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import RankStatus, Status
from trainvitals.journal.segment_writer import seal

HOST = "here"


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[HonestGateway]:
    gateway = HonestGateway(tmp_path / "gateway")
    yield gateway
    gateway.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATUS_SECONDS", "DEEP_SECONDS", "DEEP_SHARE", "FIRST_WAIT", "LONGEST_WAIT"):
        monkeypatch.setattr(shipping, name, 0.0)
    monkeypatch.setattr("trainvitals.fleet.gateway_client.FIRST_PAUSE", 0.001)


def connect(honest: HonestGateway) -> FarGateway:
    return FarGateway(GatewayAccess(honest.address, "env:TRAINVITALS_TOKEN"))


def make_run(folder: Path, lines: int = 100, **more: Any) -> Path:
    """Ended, with two files of training lines, the older of them sealed, and one of every other kind."""
    made_runs.make_run(folder, process={"host": HOST}, **more)
    for number in range(2):
        rows = [{"step": step, "loss": 1.0 / (step + 1)} for step in range(lines * number, lines * (number + 1))]
        path = made_runs.write(folder, rows, f"training_metrics_20260101_00000{number}")
        if number == 0:
            seal(path)
    made_runs.write(folder, [{"event": "run_ended", "message": "ended"}], "events_20260101_000000")
    (folder / "console.rank0.log").write_text("printed\n" * 100)
    pictures = folder / "media" / "image" / "val"
    pictures.mkdir(parents=True)
    (pictures / "20.png").write_bytes(random.Random(0).randbytes(3000))
    (folder / "media" / "index.jsonl").write_text('{"kind": "image"}\n')
    (folder / "findings.json").write_text("{}\n")
    run_folder.write_status(folder, Status(host=HOST, ranks={"0": RankStatus()}))
    return folder


def ship_all(shipment: RunShipment, gateway: FarGateway, most: int = 200) -> int:
    """The number of steps that it took."""
    for number in range(most):
        try:
            if not shipment.ship(gateway) and shipment.has_all:
                return number
        except NotNow:
            pass  # its pause is over in a moment
    raise AssertionError(f"not all was shipped: {shipment.waiting_bytes} bytes are left")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "p" / "r")


def test_every_file_arrives_as_it_is(honest: HonestGateway, folder: Path) -> None:
    (folder / "reports").mkdir()
    (folder / "reports" / "run.html").write_text("made from the rest")
    (folder / "elsewhere").symlink_to("/etc/passwd")
    shipment = RunShipment(folder, HOST)
    steps = ship_all(shipment, connect(honest))
    assert find_differences(folder, honest.copy("p", "r")) == []
    assert steps == 1, "many files go in one request"
    assert not (honest.copy("p", "r").folder / "reports").exists()
    assert not (honest.copy("p", "r").folder / "elsewhere").exists(), "no link is followed"
    assert (shipment.waiting_bytes, shipment.left_out) == (0, {})


def test_what_is_added_is_sent_and_nothing_else(honest: HonestGateway, folder: Path) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    ship_all(shipment, gateway)
    before = len(honest.requests)
    assert not shipment.ship(gateway) and len(honest.requests) == before, "nothing new, no request"
    more = made_runs.write(folder, [{"step": 200, "loss": 0.5}], "training_metrics_20260101_000001")
    run_folder.write_status(folder, Status(host=HOST, ranks={"0": RankStatus(step=200)}))
    ship_all(shipment, gateway)
    (_, frames) = honest.requests[-1]
    assert {frame.path for frame in frames} == {more.name, "status.json"}
    assert find_differences(folder, honest.copy("p", "r")) == []


def test_another_one_goes_on_where_the_copy_ends(
    honest: HonestGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "GOOD_BYTES", 500)
    gateway = connect(honest)
    for _ in range(6):
        RunShipment(folder, HOST).ship(gateway)
    ship_all(RunShipment(folder, HOST), gateway)
    assert find_differences(folder, honest.copy("p", "r")) == []
    sent = sum(len(frame.data) for _, frames in honest.requests for frame in frames)
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert sent <= there, "nothing is sent twice"


def test_lines_are_cut_at_their_ends(honest: HonestGateway, folder: Path) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    path = folder / "training_metrics_20260101_000001.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"step": 7')
    ship_all(shipment, gateway)
    copy = honest.copy("p", "r").folder / path.name
    assert copy.read_bytes() == path.read_bytes().removesuffix(b'{"step": 7')
    with open(path, "ab") as file:
        file.write(b"}\n")
    ship_all(shipment, gateway)
    assert copy.read_bytes() == path.read_bytes()


def test_a_file_that_is_sealed_on_the_way_has_its_rows_there_once(honest: HonestGateway, folder: Path) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    path = folder / "training_metrics_20260101_000001.jsonl"
    ship_all(shipment, gateway)
    made_runs.write(folder, [{"step": 300, "loss": 0.1}], path.stem)  # which is sealed before it is shipped
    seal(path)
    ship_all(shipment, gateway)
    assert find_differences(folder, honest.copy("p", "r")) == []
    assert [frame.kind for frame in honest.requests[-1][1]] == ["segment"]


def test_a_file_that_is_kept_after_sealing_goes_as_its_segment(honest: HonestGateway, folder: Path) -> None:
    path = folder / "training_metrics_20260101_000001.jsonl"
    seal(path, keep=True)
    ship_all(RunShipment(folder, HOST), connect(honest))
    assert path.name not in {frame.path for _, frames in honest.requests for frame in frames}
    assert find_differences(folder, honest.copy("p", "r"), [path.name]) == []


def test_a_file_that_was_begun_anew_replaces_its_copy(honest: HonestGateway, folder: Path) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    ship_all(shipment, gateway)
    console = folder / "console.rank0.log"
    console.replace(folder / "console.rank0.older.log")
    console.write_text("another one\n" * 200)
    ship_all(RunShipment(folder, HOST), gateway)
    assert find_differences(folder, honest.copy("p", "r")) == []
    console.write_text("cut and written again\n")
    ship_all(shipment, gateway)
    assert find_differences(folder, honest.copy("p", "r")) == []


def test_output_that_may_be_copied_again_waits(honest: HonestGateway, folder: Path) -> None:
    console = folder / "console.rank0.log"
    noted = {console.name: {"inode": console.stat().st_ino, "size": 80}}
    run_folder.write_status(folder, Status(host=HOST, consoles=noted))
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    ship_all(shipment, gateway)
    copy = honest.copy("p", "r").folder / console.name
    assert copy.read_bytes() == console.read_bytes()[:80]
    run_folder.write_status(folder, Status(host=HOST))
    ship_all(shipment, gateway)
    assert copy.read_bytes() == console.read_bytes()


# -- a folder that several machines write


@pytest.mark.promise("a run folder on a shared file system", "each machine ships its own files, one ships the rest")
def test_every_machine_ships_its_own_files(honest: HonestGateway, tmp_path: Path) -> None:
    folder = made_runs.make_run_of_roles(tmp_path / "runs" / "p" / "r", process={"host": made_runs.HOSTS[0]})
    gateway = connect(honest)
    sent: dict[str, set[str]] = {}
    for host in made_runs.HOSTS:
        before = len(honest.requests)
        ship_all(RunShipment(folder, host), gateway)
        sent[host] = {frame.path for _, frames in honest.requests[before:] for frame in frames}
    first, second = (sent[host] for host in made_runs.HOSTS)
    assert not first & second and "run.json" in first
    assert all(f".host-{made_runs.HOSTS[1]}" in path or "rank1" in path for path in second), second
    assert find_differences(folder, honest.copy("p", "r")) == []


# -- a gateway that is in trouble, or makes some


@pytest.mark.promise("the gateway fails, or the connection breaks, at any moment", "nothing is lost or duplicated")
def test_failures_at_random_moments_lose_and_double_nothing(
    honest: HonestGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "GOOD_BYTES", 1000)
    chance = random.Random(0)
    original = honest.answer

    def fail(method: str, path: str, token: str, frames: list[FileRange]) -> tuple[int, dict[str, str], bytes]:
        dice = chance.random()
        if dice < 0.2:
            return 503, {"Retry-After": "0"}, b""
        answer = original(method, path, token, frames)
        if dice < 0.4:
            return 500, {}, b"lost after it was taken"
        return (200, {}, b"\x00nonsense") if dice < 0.5 else answer

    honest.answer = fail  # type: ignore[method-assign]
    ship_all(RunShipment(folder, HOST), connect(honest), 2000)
    assert find_differences(folder, honest.copy("p", "r")) == []


def test_a_gateway_that_lost_data_gets_it_again(honest: HonestGateway, folder: Path) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    ship_all(shipment, gateway)
    name = "training_metrics_20260101_000001.jsonl"
    copy = honest.copy("p", "r").folder / name
    copy.write_bytes(copy.read_bytes()[: copy.read_bytes().index(b"\n") + 1])
    made_runs.write(folder, [{"step": 200, "loss": 0.5}], Path(name).stem)
    ship_all(shipment, gateway)
    assert find_differences(folder, honest.copy("p", "r")) == []


def test_a_file_of_which_the_gateway_has_more_is_left_alone_and_said(honest: HonestGateway, folder: Path) -> None:
    name = "training_metrics_20260101_000001.jsonl"
    place = honest.copy("p", "r").folder / name
    place.parent.mkdir(parents=True)
    place.write_bytes(b'{"of": "another run"}\n' * 10_000)
    said: list[str] = []
    shipment = RunShipment(folder, HOST, said.append)
    ship_all(shipment, connect(honest))
    assert list(shipment.left_out) == [name] and place.read_bytes() == b'{"of": "another run"}\n' * 10_000
    assert len(said) == 1 and "another run with the same id" in said[0]
    with open(folder / name, "ab") as file:
        file.write(b"{}\n" * 200_000)
    assert not shipment.ship(connect(honest)), "it stays alone when it grows past that"


@pytest.mark.parametrize(
    "lie",
    [
        lambda files: {path: {**held, "end": 0, "digest": ""} for path, held in files.items()},
        lambda files: {},
        lambda files: {path: {"end": "far", "rows": -1, "digest": 7, "sealed": "yes"} for path in files},
        lambda files: {**files, "../../etc/passwd": {"end": 5}, "run.json/": {"end": 1}},
    ],
)
def test_a_gateway_that_lies_is_not_asked_without_end(
    honest: HonestGateway, folder: Path, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    monkeypatch.setattr(shipping, "FIRST_WAIT", 1000.0)
    honest.lie = lie
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    for _ in range(50):
        shipment.ship(gateway)
    assert len(honest.requests) < 8
    assert json.loads((folder / "run.json").read_bytes())["id"] == "r"


@pytest.mark.parametrize("limit", [1500, 300])
def test_a_gateway_that_takes_little_gets_little(
    honest: HonestGateway, folder: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(shipping, "LEAST_BYTES", 100)
    honest.misbehave = lambda method, frames: (413, {}, b"") if sum(len(f.data) for f in frames) > limit else None
    said: list[str] = []
    shipment = RunShipment(folder, HOST, said.append)
    ship_all(shipment, connect(honest))
    too_large = shipment.left_out.keys()
    assert len(said) == len(too_large)
    assert all((folder / path).stat().st_size > limit for path in too_large)
    wrong = find_differences(folder, honest.copy("p", "r"), too_large)
    assert wrong == ["rows of training"], "its segment is too large"
    assert "training_metrics_20260101_000001.jsonl" not in too_large


def test_a_gateway_that_takes_nothing_is_not_asked_without_end(honest: HonestGateway, folder: Path) -> None:
    honest.misbehave = lambda method, frames: (413, {}, b"") if frames else None
    shipment = RunShipment(folder, HOST)
    ship_all(shipment, connect(honest))
    assert {"run.json", "training_metrics_20260101_000001.jsonl"} <= shipment.left_out.keys()


def change_project(folder: Path, project: str, before: str) -> None:
    run_folder.change_run(folder, lambda run: replace(run, project=project, project_before=before), 0o600)


def test_a_run_that_its_program_puts_into_another_project_is_there_from_its_beginning(
    honest: HonestGateway, folder: Path
) -> None:
    shipment, gateway = RunShipment(folder, HOST), connect(honest)
    ship_all(shipment, gateway)
    change_project(folder, "vision", "p")
    ship_all(shipment, gateway)
    assert find_differences(folder, honest.copy("vision", "r")) == [], "also what has not changed since it was shipped"
    assert shipment.project == "vision"
    assert (honest.copy("p", "r").folder / "moved.json").read_bytes() == wire.MOVED
    before = len(honest.requests)
    ship_all(RunShipment(folder, HOST), gateway)
    assert all(method == "GET" for method, _ in honest.requests[before:]), "it is marked once"
    change_project(folder, "p", "vision")
    ship_all(shipment, gateway)
    assert (honest.copy("p", "r").folder / "moved.json").read_bytes() == wire.NOT_MOVED, "it has come back"
    assert (honest.copy("vision", "r").folder / "moved.json").read_bytes() == wire.MOVED


def test_a_token_that_is_not_for_the_earlier_project_has_nothing_to_mark_there(
    honest: HonestGateway, folder: Path
) -> None:
    change_project(folder, "vision", "elsewhere")
    refused = []

    def refuse(method: str, _: list[FileRange]) -> tuple[int, dict[str, str], bytes] | None:
        if method == "GET" and len(honest.requests) > 1:
            refused.append(method)
            return 403, {}, b""
        return None

    honest.misbehave = refuse
    access = GatewayAccess(honest.address, "env:TOKEN", environment={"TOKEN": "t"})
    ship_all(RunShipment(folder, HOST), FarGateway(access))
    assert refused == ["GET"] and find_differences(folder, honest.copy("vision", "r")) == []
    assert not honest.copy("elsewhere", "r").folder.exists()


def test_what_is_refused_waits_and_the_rest_arrives(honest: HonestGateway, folder: Path) -> None:
    name = "console.rank0.log"
    honest.misbehave = lambda _, frames: (400, {}, b"bad") if any(frame.path == name for frame in frames) else None
    said: list[str] = []
    shipment, gateway = RunShipment(folder, HOST, said.append), connect(honest)
    while shipment.ship(gateway):
        pass
    assert find_differences(folder, honest.copy("p", "r"), [name]) == []
    assert not shipment.has_all and shipment.waiting_bytes == (folder / name).stat().st_size
    assert len(said) == 1 and name in said[0] and "bad" in said[0]


def test_a_file_that_no_request_can_hold_is_left_out(
    honest: HonestGateway, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "LARGEST_WHOLE", 100)
    monkeypatch.setattr(shipping, "LONGEST_LINE", 2000)
    monkeypatch.setattr(wire, "GOOD_BYTES", 1000)
    with open(folder / "training_metrics_20260101_000001.jsonl", "ab") as file:
        file.write(b'{"text": "' + b"x" * 1500 + b'"}\n{"text": "' + b"x" * 3000 + b'"}\n')
    shipment = RunShipment(folder, HOST)
    ship_all(shipment, connect(honest))
    assert sorted(Path(path).suffix for path in shipment.left_out) == [".jsonl", ".parquet"]
    copy = honest.copy("p", "r").folder / "training_metrics_20260101_000001.jsonl"
    assert copy.read_bytes().endswith(b'x"}\n') and len(copy.read_bytes().splitlines()) == 101

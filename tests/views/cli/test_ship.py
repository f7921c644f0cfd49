"""`trainvitals export RUN --to gateway`, and where it is shown how far a gateway is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import made_runs
import pytest
from honest_gateway import HonestGateway
from run_copies import find_differences
from waiting import free_port

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Shipment, Status
from trainvitals.views.data.shipments import describe_shipment


@pytest.fixture
def honest(tmp_path: Path) -> Iterator[HonestGateway]:
    gateway = HonestGateway(tmp_path / "gateway")
    yield gateway
    gateway.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two hosts."""
    return made_runs.make_run_of_roles(tmp_path / "runs" / "p" / "r")


def call(tmp_path: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRAINVITALS_")}
    places = {"TRAINVITALS_DIR": str(tmp_path / "runs"), "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime")}
    command = [sys.executable, "-m", "trainvitals", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **places, **env}, cwd=tmp_path)


def test_a_run_is_shipped_whole_whoever_wrote_it(tmp_path: Path, honest: HonestGateway, folder: Path) -> None:
    honest.token = "right"
    done = call(tmp_path, "export", "r", "--to", "gateway", honest.address, TRAINVITALS_TOKEN="right")
    assert done.returncode == 0 and "has all of r" in done.stderr, done.stderr
    assert find_differences(folder, honest.copy("p", "r")) == []
    assert all(status.shipment.complete for status in run_folder.read_statuses(folder))
    settings = {"TRAINVITALS_TOKEN": "right", "TRAINVITALS_GATEWAY": honest.address}
    again = call(tmp_path, "export", "r", "--to", "gateway", **settings)
    assert again.returncode == 0 and "0 B were missing" in again.stderr, again.stderr
    shown = call(tmp_path, "runs", "show", "r")
    assert f"complete ({honest.address})" in shown.stdout, shown.stdout + shown.stderr


def test_mistakes_are_explained(tmp_path: Path, honest: HonestGateway, folder: Path) -> None:
    nowhere = call(tmp_path, "export", "r", "--to", "gateway")
    assert nowhere.returncode == 2 and "no gateway is set" in nowhere.stderr
    honest.token = "right"
    closed = call(tmp_path, "export", "r", "--to", "gateway", honest.address)
    assert closed.returncode == 1 and "TRAINVITALS_TOKEN is not set" in closed.stderr, closed.stderr


def test_doctor_asks_the_gateway(tmp_path: Path, honest: HonestGateway) -> None:
    there = call(tmp_path, "doctor", TRAINVITALS_GATEWAY=honest.address)
    assert f"{honest.address} takes runs of project default" in there.stdout
    address = f"http://127.0.0.1:{free_port()}"
    assert "refused" in call(tmp_path, "doctor", TRAINVITALS_GATEWAY=address).stdout


def test_a_shipment_in_words() -> None:
    done = Shipment(target="https://gw", sent=2048, complete=True)
    assert describe_shipment(done) == "2.0 KB shipped, complete (https://gw)"
    behind = Shipment(
        target="https://gw", waiting=3 << 20, behind_since="2026-01-01T00:00:00Z", left_out=1, trouble="HTTP 503"
    )
    text = describe_shipment(behind)
    assert text.startswith("0 B shipped, 3.0 MB waiting, behind since ") and text.endswith(
        ", 1 file left out; HTTP 503 (https://gw)"
    )
    assert Status.parse(Status(host="a", shipment=behind).as_json()).shipment == behind

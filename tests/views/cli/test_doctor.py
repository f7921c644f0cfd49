"""`trainvitals doctor`: what it finds, and when it fails."""

from __future__ import annotations

import json
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from trainvitals.settings import resolve
from trainvitals.sources import pci_vendor
from trainvitals.sources.sysfs import list_displays
from trainvitals.views.cli import checks


def findings(machine: Any, **environ: str) -> dict[str, list[dict[str, Any]]]:
    done = machine.run("doctor", "--json", environ=environ)
    found: dict[str, list[dict[str, Any]]] = {}
    for item in json.loads(done.stdout)["findings"]:
        found.setdefault(item["subject"], []).append(item)
    return found


def make_pci(root: Path, address: str, vendor: str, kind: str) -> None:
    device = root / "bus/pci/devices" / address
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """A machine without any GPU, whatever this one has."""
    root = tmp_path / "sys"
    root.mkdir()
    return {"TRAINVITALS_SYSFS_ROOT": str(root)}


def test_a_machine_without_gpus_is_healthy(machine: Any, bare: dict[str, str]) -> None:
    done = machine.run("doctor", environ=bare)
    assert done.returncode == 0, done.stdout
    assert "all checks passed" in done.stdout
    for subject in ("python", "packages", "nvidia", "system", "runtime", "agent", "runs", "clock"):
        assert f"  {subject}" in done.stdout
    assert sys.executable in done.stdout


def test_a_name_that_other_machines_may_have_is_said_where_many_are_seen_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = iter(("localhost.localdomain", "localhost", "gpu-1"))
    monkeypatch.setattr(socket, "gethostname", lambda: next(names))
    pushing = resolve({"prometheus_remote_write": "http://vm:8428/api/v1/write"}, environ={}, search=False)
    (found,) = checks.check_host(pushing)
    assert (found.state, found.fix) == ("note", "sudo hostnamectl set-hostname NAME")
    assert "localhost.localdomain, as that of others may be" in found.text
    assert list(checks.check_host(resolve(environ={}, search=False))) == [], "nobody else sees it"
    assert list(checks.check_host(pushing)) == []
    named = resolve({"prometheus_otlp": "http://vm", "prometheus_host": "node7"}, environ={}, search=False)
    assert list(checks.check_host(named)) == []


def test_every_source_is_looked_at(machine: Any, bare: dict[str, str]) -> None:
    from trainvitals.sources import REGISTRY

    assert {row.name for row in REGISTRY} <= set(findings(machine, **bare))


def test_a_driver_and_its_gpus_are_named(machine: Any, bare: dict[str, str], fake_nvml: Any) -> None:
    fake_nvml.script("count = 2\n")
    (found,) = findings(machine, **bare, **fake_nvml.env())["nvidia"]
    assert found["state"] == "ok"
    assert found["text"].startswith("2 x ")
    assert "driver" in found["text"]


def test_a_gpu_without_its_driver_is_a_failure_with_a_command(machine: Any, bare: dict[str, str]) -> None:
    make_pci(Path(bare["TRAINVITALS_SYSFS_ROOT"]), "0000:01:00.0", "0x10de", "0x030200")
    done = machine.run("doctor", environ=bare)
    assert done.returncode == 1
    assert "FAIL  nvidia" in done.stdout
    (found,) = findings(machine, **bare)["nvidia"]
    assert found["fix"]


def test_a_card_without_its_kernel_module_is_worth_a_note(machine: Any, bare: dict[str, str]) -> None:
    make_pci(Path(bare["TRAINVITALS_SYSFS_ROOT"]), "0000:03:00.0", "0x1002", "0x030000")
    (found,) = findings(machine, **bare)["amd"]
    assert (found["state"], found["fix"]) == ("note", "sudo modprobe amdgpu")


def test_other_devices_of_a_vendor_are_no_gpus(tmp_path: Path) -> None:
    make_pci(tmp_path, "0000:00:1f.0", "0x8086", "0x060100")
    assert list_displays(str(tmp_path), pci_vendor("intel")) == []


def test_a_run_root_that_cannot_be_written_is_a_failure(machine: Any, bare: dict[str, str]) -> None:
    machine.root.write_text("a file where the folder should be")
    found = findings(machine, **bare, TRAINVITALS_DIR=str(machine.root / "runs"))["runs"]
    assert found[0]["state"] == "fail"
    assert "TRAINVITALS_DIR" in found[0]["fix"]


@pytest.mark.parametrize(
    "environ", [{"TRAINVITALS_INTERVAL": "often"}, {"TRAINVITALS_ALERTS_THRESHOLDS": '{"gpu_temprature_celsius": 70}'}]
)
def test_a_setting_that_cannot_be_used_is_a_failure_and_the_rest_is_still_told(
    machine: Any, environ: dict[str, str]
) -> None:
    done = machine.run("doctor", environ=environ)
    assert done.returncode == 1
    assert "FAIL  settings" in done.stdout
    assert "python" in done.stdout


def test_a_variable_that_names_no_setting_is_worth_a_note(machine: Any, bare: dict[str, str]) -> None:
    found = findings(machine, **bare, TRAINVITALS_INTREVAL="1")["settings"]
    assert [item["state"] for item in found] == ["ok", "note"]
    assert found[1]["fix"] == "unset TRAINVITALS_INTREVAL"
    assert "did you mean 'TRAINVITALS_INTERVAL'?" in found[1]["text"]


def test_a_page_to_scrape_that_is_not_there_is_told(machine: Any, bare: dict[str, str]) -> None:
    (found,) = findings(machine, **bare, TRAINVITALS_OPENMETRICS="http://127.0.0.1:9/metrics")["openmetrics"]
    assert "127.0.0.1:9" in found["text"]


def test_a_driver_that_hangs_is_not_waited_for() -> None:
    assert checks.ask_in_time(threading.Event().wait, patience=0.05) is None
    assert checks.ask_in_time(lambda: "an answer") == "an answer"


def test_the_kind_of_file_system_is_that_of_the_nearest_mount() -> None:
    mounts = (
        "/dev/sda1 / ext4 rw 0 0\nserver:/home /home nfs4 rw 0 0\ntmpfs /home/me/with\\040space tmpfs rw 0 0\nbroken\n"
    )
    assert checks.parse_mounts(mounts, "/var/lib") == "ext4"
    assert checks.parse_mounts(mounts, "/home/me/runs") == "nfs4"
    assert checks.parse_mounts(mounts, "/homestead") == "ext4"
    assert checks.parse_mounts(mounts, "/home/me/with space/runs") == "tmpfs"


def test_little_space_is_worth_a_note(tmp_path: Path) -> None:
    given = {"dir": tmp_path, "alerts_thresholds": {"disk_free_gb": 1e12}}
    first = next(checks.check_root(resolve(given, environ={}, folder=Path("/"))))
    assert (first.state, first.fix) == ("note", "trainvitals runs clean --max-age 30d --dry-run")


def test_looking_changes_nothing(machine: Any, bare: dict[str, str]) -> None:
    machine.run("doctor", environ=bare)
    assert not machine.root.exists()
    assert not (machine.runtime / "runs").exists()
    assert not (machine.runtime / "agent.json").exists()

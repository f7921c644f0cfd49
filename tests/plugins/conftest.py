"""The packages in this folder, installed for one session, and a machine on which they are used."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

HERE = Path(__file__).parent


def install(package: str, target: Path) -> None:
    """What pip would do: the modules, and a dist-info with the entry points of pyproject.toml."""
    project = tomllib.loads((HERE / package / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    for module in (HERE / package).glob("*.py"):
        shutil.copy(module, target)
    about = target / f"{name.replace('-', '_')}-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{key} = {value}" for key, value in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with both packages."""
    target = tmp_path_factory.mktemp("site")
    for package in ("acme", "broken"):
        install(package, target)
    return target


class Machine:
    """A machine with two Acme cards, on which the plugins are installed."""

    def __init__(self, folder: Path, installed: Path) -> None:
        self.folder = folder
        self.root = folder / "runs"
        self.sysfs = folder / "sys"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
        path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.sysfs.mkdir()
        self.environ = {
            **kept,
            "PYTHONPATH": path,
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_DIR": str(self.root),
            "TRAINVITALS_SYSFS_ROOT": str(self.sysfs),
        }

    def add_cards(self, *temperatures: float) -> None:
        for index, temperature in enumerate(temperatures):
            card = self.sysfs / "class/acme" / f"card{index}"
            card.parent.mkdir(parents=True, exist_ok=True)
            card.write_text(
                json.dumps(
                    {
                        "utilization_percent": 95.0,
                        "temperature_celsius": temperature,
                        "temperature_limit_celsius": 90.0,
                        "memory_used_mb": 1024.0,
                        "memory_total_mb": 4096.0,
                        "memory_percent": 25.0,
                        "power_draw_watts": 300.0,
                        "acme_spin_rpm": 4711.0,
                        "state": "ok",
                    }
                )
            )

    def add_pci(self, vendor: str) -> None:
        device = self.sysfs / "bus/pci/devices/0000:01:00.0"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        (device / "class").write_text("0x030200\n")

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """`trainvitals ...`, to its end."""
        return self.python("-m", "trainvitals", *arguments, **environ)

    def python(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env={**self.environ, **environ},
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )

    def findings(self, **environ: str) -> list[dict[str, Any]]:
        """What doctor finds."""
        found: list[dict[str, Any]] = json.loads(self.run("doctor", "--json", **environ).stdout)["findings"]
        return found

    def agent_pid(self) -> int | None:
        try:
            return int(json.loads((self.folder / "runtime/agent.json").read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def stop_agent(self) -> None:
        pid = self.agent_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself this moment
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the agent")


@pytest.fixture(scope="session")
def make_machine(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Machine]]:
    """A new machine with each call; their agents are ended with the session."""
    made: list[Machine] = []

    def make() -> Machine:
        made.append(Machine(tmp_path_factory.mktemp("machine"), installed))
        return made[-1]

    yield make
    for machine in made:
        machine.stop_agent()


@pytest.fixture
def machine(make_machine: Callable[[], Machine]) -> Iterator[Machine]:
    """A new one for each test."""
    found = make_machine()
    yield found
    found.stop_agent()

"""Real servers on loopback, each with a folder and a port of its own, ended with the module that started them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_nvml import FakeNvml

sys.path.insert(0, str(Path(__file__).parent))  # servers.py beside this file; importlib mode adds no path

from servers import Answering, Server, Watched
from waiting import PATIENCE, free_port

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """`servers(command, url, ready)` starts one; all are ended with the module."""
    started: list[Server] = []

    def start(command: list[str], url: str, ready: str) -> Server:
        server = Server(command, url, ready, tmp_path_factory.mktemp("server") / "log")
        started.append(server)
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def start_prometheus(servers: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Server]:
    def start(config: Mapping[str, Any] | None = None, rules: Path | None = None, *features: str) -> Server:
        folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
        content = dict(config or {})
        if rules is not None:
            content["rule_files"] = [str(rules)]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(content))
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--web.enable-remote-write-receiver",
            f"--enable-feature={','.join(('exemplar-storage', *features))}",
            "--log.level=warn",
        ]
        return servers(command, f"http://127.0.0.1:{port}", "/-/ready")

    return start


@pytest.fixture(scope="module")
def start_victoria(servers: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Server]:
    def start() -> Server:
        folder, port = tmp_path_factory.mktemp("victoria"), free_port()
        command = [
            "victoria-metrics",
            f"-storageDataPath={folder}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-search.latencyOffset=0s",
            "-loggerLevel=ERROR",
        ]
        return servers(command, f"http://127.0.0.1:{port}", "/health")

    return start


@pytest.fixture(scope="module")
def start_pushgateway(servers: Callable[..., Server]) -> Callable[[], Server]:
    def start() -> Server:
        port = free_port()
        return servers(
            ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{port}"], f"http://127.0.0.1:{port}", "/-/ready"
        )

    return start


@pytest.fixture(scope="module")
def start_alertmanager(
    servers: Callable[..., Server], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Server]:
    def start(webhook: str) -> Server:
        folder, port = tmp_path_factory.mktemp("alertmanager"), free_port()
        shipped = (DEPLOY / "alertmanager" / "alertmanager.yml").read_text()
        config = yaml.safe_load(re.sub(r"group_(wait|interval): \w+", r"group_\1: 1s", shipped))
        config["receivers"][1]["webhook_configs"] = [{"url": webhook}]
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
        command = [
            "prometheus-alertmanager",
            f"--config.file={folder / 'alertmanager.yml'}",
            f"--storage.path={folder}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        return servers(command, f"http://127.0.0.1:{port}", "/-/ready")

    return start


@pytest.fixture
def answering() -> Iterator[Answering]:
    server = Answering()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def patient_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that a busy machine answers late would be made again, or given up."""
    for limit in ("push_queue.TIMEOUT", "pushgateway.TIMEOUT", "mlflow.SECONDS", "mlflow.STORE_SECONDS"):
        monkeypatch.setattr(f"trainvitals.exporters.{limit}", PATIENCE)


@pytest.fixture
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what is sent at the end: a server on a busy machine may take longer than an agent would wait."""
    for module in ("push_queue", "pushing", "service"):
        monkeypatch.setattr(f"trainvitals.exporters.{module}.PATIENCE", PATIENCE)


@pytest.fixture(scope="module")
def watched(fake_nvml_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Watched]]:
    """`watched(script, *flags)` starts one on a machine of this script; all are ended with the module."""
    started: list[Watched] = []

    def start(script: str, *flags: str, **trainings: str) -> Watched:
        folder = tmp_path_factory.mktemp("watched")
        fake = FakeNvml(fake_nvml_library, folder / "nvml")
        fake.script(script)
        machine = Watched(fake, folder, *flags, **trainings)
        started.append(machine)
        return machine

    yield start
    for machine in started:
        machine.end()

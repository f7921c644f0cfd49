"""Real engines: Debian's ClickHouse server, and today's engine behind a few lines of HTTP."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from waiting import free_port, wait_until

from trainvitals.fleet.clickhouse import ClickHouse, parse_address

USERS = """<yandex>
  <profiles><default><max_memory_usage>2000000000</max_memory_usage><log_queries>0</log_queries></default></profiles>
  <users><default><password></password><networks><ip>127.0.0.1</ip></networks>
    <profile>default</profile><quota>default</quota></default></users>
  <quotas><default/></quotas>
</yandex>"""
CONFIG = """<yandex>
  <logger><level>warning</level><log>{place}/log</log><errorlog>{place}/errors</errorlog></logger>
  <http_port>{port}</http_port><listen_host>127.0.0.1</listen_host>
  <path>{place}/data/</path><tmp_path>{place}/tmp/</tmp_path><users_config>{place}/users.xml</users_config>
  <default_profile>default</default_profile><default_database>default</default_database>
  <mark_cache_size>268435456</mark_cache_size>
</yandex>"""


class Engine:
    """A program that speaks ClickHouse's HTTP on loopback, and can be killed and started again."""

    def __init__(self, command: list[str], port: int, *, is_slow: bool = False) -> None:
        self.is_slow = is_slow
        """It starts again with every question, as a library does."""
        self._command = command
        self.port = port
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "the engine")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def address(self, database: str) -> str:
        return f"clickhouse://127.0.0.1:{self.port}/{database}"

    def open(self, database: str) -> ClickHouse:
        return ClickHouse(parse_address(self.address(database)))

    def _answers(self) -> bool:
        assert self.process.poll() is None, "the engine has ended"
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            connection.request("POST", "/", b"SELECT 1")
            return connection.getresponse().read() == b"1\n"
        return False


@contextlib.contextmanager
def run_debian(place: Path) -> Iterator[Engine]:
    """ClickHouse 18.16."""
    program = shutil.which("clickhouse-server")
    assert program is not None, "apt-get install clickhouse-server"
    port = free_port()
    place.mkdir(parents=True, exist_ok=True)
    (place / "users.xml").write_text(USERS)
    (place / "config.xml").write_text(CONFIG.format(place=place, port=port))
    engine = Engine([program, f"--config-file={place / 'config.xml'}"], port)
    try:
        yield engine
    finally:
        engine.kill()


@contextlib.contextmanager
def run_current(place: Path) -> Iterator[Engine]:
    """The engine of the package `chdb`."""
    port = free_port()
    front = Path(__file__).parent / "chdb_front.py"
    engine = Engine([sys.executable, str(front), str(place), str(port)], port, is_slow=True)
    try:
        yield engine
    finally:
        engine.kill()


@contextlib.contextmanager
def run_victoria(place: Path) -> Iterator[str]:
    """VictoriaMetrics; its address."""
    program = shutil.which("victoria-metrics")
    assert program is not None, "apt-get install victoria-metrics"
    port = free_port()
    command = [program, f"-storageDataPath={place}", f"-httpListenAddr=127.0.0.1:{port}", "-loggerLevel=ERROR"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _is_healthy(port), "VictoriaMetrics")
        yield address
    finally:
        process.kill()
        process.wait()


def _is_healthy(port: int) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    return False

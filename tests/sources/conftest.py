"""A fake /sys and the programs that judge what is read from it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from waiting import PATIENCE, free_port, wait_until


def load_fake_sysfs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_sysfs", Path(__file__).with_name("fake_sysfs.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_opened: list[str] | None = None


def _watch_opens(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch_opens)


@pytest.fixture
def opened() -> Iterator[list[str]]:
    """Every path that is opened from now on, in order."""
    global _opened
    _opened = []
    yield _opened
    _opened = None


class FakeSys:
    """A tree with two AMD cards (card0, card1), an i915 card (card2) and an xe card (card3)."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        load_fake_sysfs().build(self.root, 2, True)

    def path(self, name: str) -> Path:
        return Path(self.root, "class/drm", name)

    def put(self, name: str, value: object) -> None:
        """`card0/device/gpu_busy_percent`; a `hwmon/` part finds the card's only sensor folder."""
        path = self.sensor(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(value, bytes):
            path.write_bytes(value)
        else:
            path.write_text(f"{value}\n")

    def remove(self, name: str) -> None:
        path = self.sensor(name)
        if path.is_dir():
            shutil.rmtree(path.resolve())
        else:
            path.unlink()

    def sensor(self, name: str) -> Path:
        card, hwmon, rest = name.partition("/hwmon/")
        if not hwmon:
            return self.path(name)
        (folder,) = self.path(f"{card}/hwmon").iterdir()
        return folder / rest


@pytest.fixture
def fake_sys(tmp_path: Path) -> FakeSys:
    return FakeSys(tmp_path / "sys")


@pytest.fixture
def program() -> Callable[[str], str]:
    """The path of a program. Under CI a missing one is a failure, elsewhere the test is left out."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            missing = f"{name} is not installed"
            pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
        return path

    return find


@pytest.fixture
def node_exporter(program: Callable[[str], str]) -> Iterator[Callable[..., str]]:
    """Start the real node exporter with some flags; gives the address of its page."""
    path = program("prometheus-node-exporter")
    started: list[subprocess.Popen[bytes]] = []

    def start(*flags: str) -> str:
        address = f"127.0.0.1:{free_port()}"
        command = [path, f"--web.listen-address={address}", "--log.level=error", *flags]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        url = f"http://{address}/metrics"

        def answers() -> bool:
            try:
                urllib.request.urlopen(url, timeout=PATIENCE).close()
            except OSError:
                return False
            return True

        wait_until(answers, "the node exporter's start")
        return url

    yield start
    for child in started:
        child.kill()
        child.wait()


class Clock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def by_kind() -> Callable[..., SimpleNamespace]:
    """Sort what a unit gave into samples and notices."""
    from trainvitals.sources import Notice, Sample

    def sort(given: object) -> SimpleNamespace:
        items = list(given)  # type: ignore[call-overload]
        return SimpleNamespace(
            samples=[item for item in items if isinstance(item, Sample)],
            notices=[item for item in items if isinstance(item, Notice)],
        )

    return sort

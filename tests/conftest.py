"""What more than one test file needs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # fake_nvml.py beside this file; importlib mode adds no path

from fake_nvml import FakeNvml, build
from long_files import LONG_FILES

# A shell that starts the tests in the background has SIGINT ignored, and nohup SIGHUP: every program that they start
# would inherit that.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

# How long an example takes, or takes to be made up, says something about the machine and nothing about the code.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, then those with many tests, as xdist itself would order them; `make test` tells it not to."""
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONG_FILES)}
    count = Counter(item.path for item in items)
    items.sort(key=lambda item: (place.get(item.path, len(place)), -count[item.path]))


# Whatever a test leaves, it never reaches the runtime folder of the person who runs the tests.
_runtime = tempfile.TemporaryDirectory(prefix="trainvitals-tests-", ignore_cleanup_errors=True)
os.environ["TRAINVITALS_RUNTIME_DIR"] = _runtime.name


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 256 KB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    """A real file system on which folders and empty files can be made, but nothing can be written."""
    with open(small_disk / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    return small_disk


@pytest.fixture(scope="session")
def fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("fake_nvml"))


@pytest.fixture(scope="session")
def old_fake_nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("old_fake_nvml"), "-DFAKE_NVML_OLD")


@pytest.fixture
def fake_nvml(fake_nvml_library: Path, tmp_path: Path) -> Iterator[FakeNvml]:
    """A machine with eight fake H100s until told otherwise with `.script(text)`.

    `.env()` shows it to a child process, `.load()` to this one.
    """
    machine = FakeNvml(fake_nvml_library, tmp_path / "fake_nvml")
    yield machine
    machine.unload()


@pytest.fixture
def old_fake_nvml(old_fake_nvml_library: Path, tmp_path: Path) -> Iterator[FakeNvml]:
    """The same machine with a driver from before GPM, memory v2 and the third form of process lists."""
    machine = FakeNvml(old_fake_nvml_library, tmp_path / "old_fake_nvml")
    yield machine
    machine.unload()

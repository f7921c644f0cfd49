"""One engine of each kind for all tests here; every test has a database of its own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # engines.py, shipped.py; importlib mode adds no path

from engines import Engine, run_current, run_debian

from trainvitals.fleet import schema
from trainvitals.fleet.clickhouse import ClickHouse

_numbers = itertools.count()


@pytest.fixture(scope="session")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with run_debian(tmp_path_factory.mktemp("clickhouse")) as engine:
        yield engine


@pytest.fixture(scope="session")
def current(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with run_current(tmp_path_factory.mktemp("chdb")) as engine:
        yield engine


@pytest.fixture(scope="module", params=["debian", "current"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """The oldest engine that is supported, and the newest."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def prepare() -> Callable[[Engine], ClickHouse]:
    """A new database with our tables."""

    def make(engine: Engine) -> ClickHouse:
        found = engine.open(f"fleet{next(_numbers)}")
        schema.prepare(found)
        return found

    return make

"""Projects of the real trackio, in an environment of its own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path

import pytest
from made_imports import points, reader_of, take, values

from trainvitals.trackers.importing import ImportFailed

SCRIPT = """
import math, trackio

for name in ("one", "two"):
    run = trackio.init(project="mnist", name=name, config={"lr": 0.1, "token": "hf_abcdefghijklmnopqrstuvwxyz0123"})
    for step, odd in enumerate([math.nan, math.inf, -math.inf, 0.5]):
        trackio.log({"loss": 1 / (step + 1), "odd": odd, "word": "hi"}, step=step)
    trackio.finish()
"""


@pytest.fixture(scope="module")
def written(trackio_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trackio")
    environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(
        [trackio_python, "-c", SCRIPT], env={**environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}, check=True
    )
    return folder


def test_runs_of_the_real_trackio_are_imported_value_by_value(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(written))
    found = {item.title: item for item in take("trackio", "", tmp_path)}
    assert set(found) == {"one", "two"}
    for item in found.values():
        reader = reader_of(item)
        assert [(step, value) for step, _, value in points(reader, "loss")] == [(n, 1 / (n + 1)) for n in range(4)]
        assert values(reader, "odd") == ["NaN", "Infinity", "-Infinity", 0.5]
        assert item.left_out == {"texts and lists": 4}
        file = reader.info.file
        assert (file.project, file.config) == ("mnist", {"lr": 0.1, "token": "[redacted]"})
    assert [item.rows for item in take("trackio", written, tmp_path)] == [0, 0]


def test_a_database_of_an_older_version_is_read_by_the_names_of_its_runs(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "old.db")
    connection.execute(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
    )
    rows = [
        ("2025-11-17T11:46:40.25+00:00", "a", 1, '{"loss": 0.5}'),
        ("bad", "b", 2, '{"loss": NaN}'),
        ("", "a", 3, "{"),
    ]
    connection.executemany("INSERT INTO metrics (timestamp, run_name, step, metrics) VALUES (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    found = {item.title: item for item in take("trackio", tmp_path / "old.db", tmp_path / "runs")}
    assert points(reader_of(found["a"]), "loss") == [(1, "2025-11-17T11:46:40.250000Z", 0.5)]
    assert values(reader_of(found["b"]), "loss") == ["NaN"]


def test_what_is_no_project_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database at all")
    for target in ("text.db", "missing"):
        with pytest.raises(ImportFailed):
            take("trackio", tmp_path / target, tmp_path / "runs")

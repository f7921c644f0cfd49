"""Disk space is given back, but never that of a living run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainvitals import runtime
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Shipment, Status
from trainvitals.journal.retention import GB, clean, remove


def make_run(root: Path, name: str, *, days: float = 0, size: int = 1000, status: str = "finished") -> Path:
    folder = root / "p" / name
    run_folder.create(folder)
    me = {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}
    run_folder.write_run(folder, RunFile.parse({"format": 1, "id": name, "status": status, "process": me}))
    (folder / "training_metrics_20260101_000000.jsonl").write_bytes(b"x" * size)
    for path in folder.iterdir():
        os.utime(path, (time.time() - days * 86400,) * 2)
    return folder


def test_old_runs_go_and_young_ones_stay(tmp_path: Path) -> None:
    old, young = make_run(tmp_path, "old", days=40), make_run(tmp_path, "young", days=1)
    assert clean(tmp_path, max_age=30 * 86400, dry_run=True) == [old]
    assert old.exists()
    assert clean(tmp_path, max_age=30 * 86400) == [old]
    assert not old.exists() and young.exists()


def test_the_oldest_go_until_the_rest_fits(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"run{k}", days=10 - k, size=100_000) for k in range(5)]
    assert clean(tmp_path, max_size_gb=250_000 / GB) == runs[:3]
    assert [run.exists() for run in runs] == [False, False, False, True, True]


@pytest.mark.promise("clean-up of old runs while one is live", "a live run is never touched")
def test_a_living_run_is_never_touched(tmp_path: Path) -> None:
    live = make_run(tmp_path, "live", days=400, size=1_000_000, status="running")
    assert clean(tmp_path, max_age=1, max_size_gb=1e-9) == []
    with pytest.raises(JournalError, match="has not ended"):
        remove(live)
    assert live.exists()


def test_a_folder_that_is_no_run_is_never_touched(tmp_path: Path) -> None:
    stranger = tmp_path / "p" / "photos"
    stranger.mkdir(parents=True)
    (stranger / "cat.png").write_bytes(b"x")
    assert clean(tmp_path, max_age=0, max_size_gb=0) == []
    assert stranger.exists()


def test_a_folder_with_somebody_elses_run_json_is_never_touched(tmp_path: Path) -> None:
    stranger = tmp_path / "p" / "thesis"
    stranger.mkdir(parents=True)
    (stranger / "run.json").write_text('{"name": "another tool\'s", "status": "finished"}')
    assert clean(tmp_path, max_age=0, max_size_gb=0) == []
    with pytest.raises(JournalError):
        remove(stranger)
    assert (stranger / "run.json").exists()


@pytest.mark.promise("clean-up meets a link to a run elsewhere", "its target is kept")
def test_a_run_behind_a_link_is_left_where_it_is(tmp_path: Path) -> None:
    real = make_run(tmp_path / "archive", "run", days=400)
    (tmp_path / "root" / "p").mkdir(parents=True)
    link = tmp_path / "root" / "p" / "run"
    link.symlink_to(real)
    assert clean(tmp_path / "root", max_age=1, max_size_gb=1e-9) == []
    with pytest.raises(JournalError, match="is a symbolic link"):
        remove(link)
    assert link.is_symlink() and real.exists()


def make_unshipped(root: Path, name: str, *, days: float, size: int = 1000, complete: bool = False) -> Path:
    folder = make_run(root, name, days=days, size=size)
    run_folder.write_status(folder, Status(host="a", shipment=Shipment(target="https://gw", complete=complete)))
    os.utime(folder / "status.json", (time.time() - days * 86400,) * 2)
    return folder


@pytest.mark.promise("a run reaches its age or size limit before a gateway has it", "it is kept up to twice the limit")
def test_what_a_gateway_lacks_may_grow_twice_as_old(tmp_path: Path) -> None:
    late, done = make_unshipped(tmp_path, "late", days=40), make_unshipped(tmp_path, "done", days=40, complete=True)
    ancient = make_unshipped(tmp_path, "ancient", days=61)
    said: list[str] = []
    assert clean(tmp_path, max_age=30 * 86400, warn=said.append) == [ancient, done]
    assert late.exists()
    assert sorted(text.partition(" is ")[0] for text in said) == ["run ancient", "run late"]
    assert all("https://gw" in text and "2 times the limit" in text for text in said)


def test_what_a_gateway_lacks_may_take_twice_the_room(tmp_path: Path) -> None:
    late = [make_unshipped(tmp_path, f"late{k}", days=10 - k, size=100_000) for k in range(3)]
    young = make_run(tmp_path, "young", days=1, size=100_000)
    said: list[str] = []
    assert clean(tmp_path, max_size_gb=250_000 / GB, dry_run=True, warn=said.append) == [young]
    assert len(said) == 3 and all("is kept" in text or "and kept" in text for text in said)
    assert clean(tmp_path, max_size_gb=120_000 / GB, dry_run=True) == [*late[:2], young]

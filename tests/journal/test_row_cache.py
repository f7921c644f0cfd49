"""The cache of rows: with it, without it, and after anything that happens to runs or to it, the rows are the same."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import orjson
import pytest
from waiting import wait_until

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal import row_cache
from trainvitals.journal.documents.findings import FindingsFile, KeptFinding
from trainvitals.journal.documents.run import Attempt, Process, new_run
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.run_rows import describe_row, read_row
from trainvitals.views.data.shapes import RowJson


@pytest.fixture(autouse=True)
def own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(row_cache, "SETTLED_SECONDS", -60.0)  # `settle` waits for the clock instead


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


def make_run(root: Path, name: str, project: str = "p", **config: Any) -> Path:
    folder = root / project / name
    run_folder.create(folder)
    run = new_run(name, kind="training", project=project, name=name, facts={"config": config}, pid=None)
    run_folder.write_run(folder, replace(run, started="2026-11-01T00:00:00Z", process=Process(host="elsewhere")))
    return folder


def end(folder: Path, status: str = "finished") -> None:
    run_folder.change_run(folder, lambda run: run.end(status, when=1793491300.0, last_step=7))


def report(folder: Path, loss: float) -> None:
    summary = {"loss": {"count": 1, "last": loss if loss == loss else "NaN", "min": 0.0, "max": 1.0, "last_step": 7}}
    run_folder.write_status(folder, Status.parse({"attempt": 1, "host": "h", "summary": summary}))


def settle(root: Path) -> None:
    """Until the file system's clock has moved on: what changes now is seen to be another change."""
    probe = root / "probe"

    def now() -> int:
        probe.write_bytes(b"")
        return probe.stat().st_mtime_ns

    start = now()
    wait_until(lambda: now() > start, "the next tick of the file system's clock")
    probe.unlink()


def rows_without_cache(root: Path) -> list[Any]:
    runs = FolderRuns(root)
    found = []
    for key in runs.list_keys():
        try:
            found.append(orjson.loads(dump_json(spell_all(describe_row(read_row(runs, key))))))
        except RunNotFound:
            continue
    return found


def rows_with_cache(runs: FolderRuns) -> list[Any]:
    return list(list_json(runs, runs.list_keys()))


def cache_file(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "runtime" / "rows").iterdir()
    return file


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders of runs that are read from now on."""
    read: list[Path] = []
    original = run_folder.read_run

    def noting(folder: Path) -> Any:
        read.append(folder)
        return original(folder)

    monkeypatch.setattr(run_folder, "read_run", noting)
    return read


def test_an_ended_run_is_read_once_and_a_live_one_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, live = make_run(root, "ended", lr=0.1), make_run(root, "live")
    end(ended)
    settle(root)
    first = rows_with_cache(FolderRuns(root))
    read = count_reads(monkeypatch)
    again = FolderRuns(root)
    assert [row["name"] for row in rows_with_cache(again)] == [row["name"] for row in first]
    rows_with_cache(again)
    assert read == [live, live]


def test_what_was_written_just_now_is_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "SETTLED_SECONDS", 3600.0)
    folder = make_run(root, "young")
    end(folder)
    rows_with_cache(FolderRuns(root))
    read = count_reads(monkeypatch)
    rows_with_cache(FolderRuns(root))
    assert read == [folder]


def test_a_key_depends_on_the_other_runs(root: Path) -> None:
    end(make_run(root, "same", project="a"))
    settle(root)
    assert [row["key"] for row in rows_with_cache(FolderRuns(root))] == ["same"]
    end(make_run(root, "same", project="b"))
    settle(root)
    assert sorted(row["key"] for row in rows_with_cache(FolderRuns(root))) == ["a~same", "b~same"]


def test_a_kept_run_that_lost_its_document_is_left_out(root: Path) -> None:
    (make_run(root, "one", lr=1) / "file").write_text("")
    folder = make_run(root, "two", lr=1)
    for name in ("one", "two"):
        end(root / "p" / name)
    settle(root)
    assert len(rows_with_cache(FolderRuns(root))) == 2
    (folder / "run.json").unlink()
    assert [row["key"] for row in rows_with_cache(FolderRuns(root))] == ["one"]


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def falsify(file: Path) -> None:
    file.write_bytes(file.read_bytes().replace(b'"lr":0.1', b'"lr":0.9'))


def make_older(file: Path) -> None:
    head, _, body = file.read_bytes().partition(b"\n")
    words = head.split(b" ")
    file.write_bytes(b" ".join([*words[:2], b"0", *words[3:]]) + b"\n" + body.replace(b'"lr":0.1', b'"lr":0.9'))


def make_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [truncate, falsify, make_older, make_a_folder, Path.unlink])
@pytest.mark.promise("the cache of the run list is damaged, outdated or deleted", "the list is still correct")
def test_a_damaged_cache_is_ignored(root: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    end(make_run(root, "one", lr=0.1))
    settle(root)
    expected = rows_with_cache(FolderRuns(root))
    damage(cache_file(tmp_path))
    assert rows_with_cache(FolderRuns(root)) == expected == rows_without_cache(root)


@pytest.mark.parametrize("mode", [0o666, 0o602])
@pytest.mark.promise("another user could have written the cache of the run list", "it is not used, and replaced")
def test_a_cache_that_others_may_write_is_not_trusted(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    folder = make_run(root, "one")
    end(folder)
    settle(root)
    rows_with_cache(FolderRuns(root))
    cache_file(tmp_path).chmod(mode)
    read = count_reads(monkeypatch)
    rows_with_cache(FolderRuns(root))
    assert read == [folder]
    assert cache_file(tmp_path).stat().st_mode & 0o777 == 0o600
    rows_with_cache(FolderRuns(root))
    assert read == [folder]


def test_without_a_runtime_folder_it_goes_without(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "file" / "runtime"))
    end(make_run(root, "one"))
    assert rows_with_cache(FolderRuns(root)) == rows_without_cache(root)


def test_what_is_too_much_for_the_file_is_left_out(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        end(make_run(root, name, text="x" * 1000))
    settle(root)
    monkeypatch.setattr(row_cache, "MOST_BYTES", 3000)
    monkeypatch.setattr(row_cache, "ROWS_TOGETHER", 1)
    rows_with_cache(FolderRuns(root))
    assert 1000 < cache_file(tmp_path).stat().st_size < 3100, "one of the two"
    assert rows_with_cache(FolderRuns(root)) == rows_without_cache(root)


# -- any sequence of changes


def act(root: Path, chance: random.Random, number: int) -> None:
    """One thing that happens to the runs below a folder."""
    folders = run_folder.list_folders(root)
    what = chance.choice(
        ("new", "new", "end", "tag", "by hand", "in place", "report", "judge", "alert", "remove", "replace", "copy")
    )
    if what == "new" or not folders:
        make_run(root, f"run-{chance.randrange(6)}", project=chance.choice("ab"), number=number)
        return
    folder = chance.choice(folders)
    if what == "end":
        end(folder, chance.choice(("finished", "failed")))
    elif what == "tag":
        run_folder.change_run(folder, lambda run: replace(run, tags=(f"t{number % 10}",)))
    elif what == "by hand":
        file = folder / "run.json"
        file.write_bytes(file.read_bytes().replace(b'"number": ', b'"number": 1'))
    elif what == "in place":  # as `cp` over a file does it: the folder does not show it
        for name in ("status.json", "findings.json"):
            if (folder / name).exists():
                (folder / name).write_bytes(
                    (folder / name).read_bytes().replace(b"0.5", b"0.7").replace(b"warn", b"info")
                )
    elif what == "report":
        report(folder, chance.choice((0.5, 0.25, float("nan"))))
    elif what == "judge":
        found = FindingsFile(attempt=1, findings=(KeptFinding(rule="r", severity="warning", title="t"),) * (number % 3))
        run_folder.write_findings(folder, found)
    elif what == "alert":
        line = {"timestamp": "2026-11-01T00:00:01Z", "rule": f"r{number}", "state": "firing", "severity": "critical"}
        run_folder.append_within(folder, "alerts_20261101_000000.jsonl", orjson.dumps(line) + b"\n")
    elif what == "remove":
        shutil.rmtree(folder)
    elif what == "replace":  # by another of the same name, size and time
        times = (folder / "run.json").stat()
        shutil.rmtree(folder)
        make_run(root, folder.name, folder.parent.name, number=number)
        os.utime(folder / "run.json", ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        shutil.copytree(folder, root / "copies" / f"{folder.name}x", dirs_exist_ok=True)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_the_same_after_any_changes(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    if seed % 2:  # as of very many runs
        monkeypatch.setattr(row_cache, "PLAIN_BYTES", 0)
        monkeypatch.setattr(row_cache, "ROWS_TOGETHER", 2)
    server = FolderRuns(root, inside_only=True)  # lives on, as a server does
    for number in range(40):
        settle(root)
        act(root, chance, number)
        settle(root)
        if chance.random() < 0.1:
            shutil.rmtree(tmp_path / "runtime" / "rows", ignore_errors=True)
        expected = steady(rows_without_cache(root))
        assert steady(rows_with_cache(server)) == expected
        assert steady(rows_with_cache(FolderRuns(root))) == expected


def steady(rows: list[Any]) -> list[Any]:
    """Without how long a live run has taken until now."""
    return [{**row, "seconds": None} if row["live"] else row for row in rows]


# -- what is kept


def test_the_format_is_raised_when_rows_change(root: Path) -> None:
    folder = make_run(root, "one", lr=0.1, model={"name": "resnet", "layers": [1, 2]})
    report(folder, float("nan"))
    alert = {"timestamp": "2026-11-01T00:00:01Z", "rule": "r", "state": "firing", "severity": "critical"}
    run_folder.append_within(folder, "alerts_20261101_000000.jsonl", orjson.dumps({**alert, "message": "m"}) + b"\n")
    found = KeptFinding(rule="r", severity="warning", title="t")
    run_folder.write_findings(folder, FindingsFile(attempt=1, findings=(found,)))
    first = Attempt(number=0, started="2026-10-31T00:00:00Z", ended="2026-10-31T00:10:00Z", status="failed")
    run_folder.change_run(folder, lambda run: replace(run, attempts=(first, *run.attempts)))
    end(folder, "failed")
    (row,) = rows_without_cache(root)
    assert row["seconds"] == 700.0, "of both attempts"
    known = [row_cache.FORMAT, sorted(get_type_hints(RowJson)), row]
    shape = hashlib.sha256(orjson.dumps(known, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    assert shape == row_cache.SHAPE, (
        f"what a list shows of a run is another: raise FORMAT, then SHAPE is as told here\n{row}"
    )

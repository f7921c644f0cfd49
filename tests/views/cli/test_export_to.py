"""`trainvitals export RUN --to ...`: a run for another tracker, and what is missing there."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import RowExport, Status
from trainvitals.views.data.row_exports import describe_export

ROWS = [{"step": step, "loss": 1.0 / (step + 1)} for step in range(5)]


def event_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("events.out.tfevents.*"))


def test_an_ended_run_is_sent_once(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("ended", rows=ROWS)
    done = machine.run("export", "ended", "--to", "tensorboard")
    assert done.returncode == 0 and "tensorboard accepted 5 rows" in done.stderr, done.stderr
    before = [path.read_bytes() for path in event_files(folder / "tensorboard")]
    again = machine.run("export", "ended", "--to", "tensorboard")
    assert again.returncode == 0, again.stderr
    sizes = [len(path.read_bytes()) for path in event_files(folder / "tensorboard")]
    assert len(sizes) == len(before) == 2 and sizes[0] < len(before[0]) + 200  # no scalar a second time


def test_the_folder_may_be_named(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("ended", rows=ROWS)
    done = machine.run("export", "ended", "--to", "tensorboard", "boards")
    assert done.returncode == 0, done.stderr
    assert event_files(machine.folder / "boards" / folder.name) and not (folder / "tensorboard").exists()


def test_what_the_agent_has_sent_is_not_sent_again(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("ended", rows=ROWS)
    (path,) = folder.glob("training_metrics_*.jsonl")
    size = len(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    known = RowExport(target="on", written=3, positions={path.name: [size, 3]})
    run_folder.write_status(folder, Status(host="node7", row_exports={"tensorboard": known}))
    done = machine.run("export", "ended", "--to", "tensorboard")
    assert done.returncode == 0 and "tensorboard accepted 2 rows" in done.stderr, done.stderr
    (kept,) = run_folder.read_statuses(folder)
    assert kept.row_exports["tensorboard"].complete and kept.row_exports["tensorboard"].written == 5
    shown = machine.run("runs", "show", "ended").stdout
    assert "mirrors" in shown and "tensorboard: 5 rows sent, complete" in shown


def test_a_mirror_that_another_process_writes_is_left_to_it(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("ended", rows=ROWS)
    assert machine.run("export", "ended", "--to", "tensorboard").returncode == 0
    (lock,) = (folder / "exports").glob("*.lock")
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = machine.run("export", "ended", "--to", "tensorboard")
    assert done.returncode == 1 and "another process sends this run to tensorboard now" in done.stderr


def test_mistakes_are_explained(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("ended", rows=ROWS)
    for words, text in (
        (("--to", "tensorbord"), "did you mean"),
        (("--to", "mlflow"), "mlflow needs a target"),
        (("--to", "mlflow", "databricks"), "Databricks"),
        (("--to", "mlflow", "http://joe:hunter2hunter2@host"), "env:NAME"),
        (("--to", "tensorboard", "--format", "csv"), "use either --format or --to"),
        ((), "use either --format or --to"),
    ):
        done = machine.run("export", "ended", *words, environ={"MLFLOW_TRACKING_URI": ""})
        assert done.returncode == 2 and text in done.stderr, done.stderr
        assert "hunter2" not in done.stderr


def test_the_state_of_a_mirror_is_one_line() -> None:
    assert describe_export(RowExport()) == "0 rows sent"
    whole = RowExport(written=12_345, refused=2, waiting=7, trouble="failed, retrying: OSError: away", link="http://x")
    assert describe_export(whole) == (
        "12,345 rows sent, 2 refused, 7 or more waiting; failed, retrying: OSError: away (http://x)"
    )

"""`trainvitals import` as people type it: once, again, live, with Ctrl-C and `kill -9`."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from trainvitals.journal.reader import RunReader


def _write_csv(path: Path, rows: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("step,loss\n" + "".join(f"{step},{1 / (step + 1)}\n" for step in range(rows)))
    return path


def _start_following(machine: Any, *arguments: str) -> subprocess.Popen[str]:
    process = machine.start("import", *arguments, "--follow")
    assert process.stderr is not None
    for line in process.stderr:
        if "following" in line:
            return process
    raise AssertionError("it ended")


def test_a_run_is_a_line_and_importing_again_adds_nothing(machine: Any) -> None:
    path = _write_csv(machine.folder / "exp/results.csv", 3)
    done = machine.run("import", "csv", str(path), "--project", "p", "--name", "n")
    folder, run = machine.only_run()
    assert (done.returncode, done.stdout) == (0, f"new  {folder.name}  3 rows  exp\n")
    assert (run["project"], run["name"], run["status"], folder.parent.name) == ("p", "n", "finished", "p")
    again = machine.run("import", "csv", str(path), "--project", "p", "--name", "n")
    assert (again.returncode, again.stdout) == (0, "")
    assert "nothing new in 1 run\n" in again.stderr
    _write_csv(path, 5)
    assert machine.run("import", "csv", str(path)).stdout == f"more {folder.name}  2 of 5 rows  exp\n"
    assert machine.only_run()[1]["name"] == "n"


def test_json_has_an_object_per_run_with_what_was_left_out(machine: Any) -> None:
    (machine.folder / "a.csv").write_text("run,step,loss,note\nx,1,0.5,hi\ny,1,0.25,\n")
    done = machine.run("import", "csv", "a.csv", "--json", "--name", "both")
    x, y = (json.loads(line) for line in done.stdout.splitlines())
    assert (x["name"], y["name"]) == ("both/x", "both/y")
    assert (x["new"], x["rows"], x["total_rows"], x["values"]) == (True, 1, 1, 1)
    assert x["not_imported"] == {"values of 'note' that are not numbers": 1}
    assert "not imported: 1 values of 'note' that are not numbers" in done.stderr


def test_a_metric_that_is_renamed_is_named(machine: Any) -> None:
    (machine.folder / "a.csv").write_text("step,timestamp,loss\n1,3.5,0.5\n")
    assert "metric 'timestamp' is called 'timestamp (2)'" in machine.run("import", "csv", "a.csv").stderr


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("tensorbord", "x"), "did you mean 'tensorboard'?"),
        (("tensorboard",), "trainvitals import tensorboard DIR"),
        (("csv", "missing.csv"), "missing.csv does not exist"),
        (("mlflow", "http://127.0.0.1:9"), "127.0.0.1:9"),
    ],
)
def test_what_cannot_be_imported_is_an_error_that_helps(machine: Any, arguments: tuple[str, ...], said: str) -> None:
    done = machine.run("import", *arguments)
    assert done.returncode in (1, 2) and said in done.stderr
    assert "Traceback" not in done.stderr


def test_an_empty_folder_is_named(machine: Any) -> None:
    (machine.folder / "empty").mkdir()
    done = machine.run("import", "tensorboard", "empty")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no runs in empty" in done.stderr


def test_a_source_that_grows_is_a_live_run_with_alerts(watched_machine: Any) -> None:
    path = _write_csv(watched_machine.folder / "exp/results.csv", 3)
    process = _start_following(watched_machine, "csv", str(path))
    folder, run = watched_machine.only_run()
    assert run["status"] == "finished"  # it has not been seen to grow
    with path.open("a") as file:
        file.write("3,0.25\n4,nan\n")
    reader = RunReader(folder)
    wait_until(lambda: any(row.state == "firing" for row in reader.alerts()), "an alert about the NaN")
    assert reader.info.status == "running"
    (timed,) = reader.series(["loss"], x="time")
    assert len(timed.y) == 2  # only those that were seen to come
    assert reader.info.file.origin.arrival_times
    assert reader.tables() == ["training"]  # nothing of this machine is measured
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 0
    wait_until(lambda: any(status.is_over for status in reader.statuses()), "the agent to have seen the end")
    assert reader.info.status == "finished"
    assert [row.event for row in reader.events() if row.event == "import_stopped"] == ["import_stopped"]


@pytest.mark.promise("an import is killed with kill -9", "the next one loses and doubles nothing")
def test_an_import_that_was_killed_is_continued_without_loss_or_doubles(watched_machine: Any) -> None:
    path = _write_csv(watched_machine.folder / "exp/results.csv", 1)
    rows = 1
    for _ in range(4):
        process = _start_following(watched_machine, "csv", str(path))
        with path.open("a") as file:
            for step in range(rows, rows + 50):
                file.write(f"{step},{1 / (step + 1)}\n")
                file.flush()
        rows += 50
        folder, _ = watched_machine.only_run()
        reader = RunReader(folder)
        wait_until(lambda reader=reader, rows=rows: len(list(reader.rows())) > rows - 50, "some of it")
        process.kill()
        process.communicate()
    assert watched_machine.run("import", "csv", str(path)).returncode == 0
    found = [(row["step"], row["loss"]) for row in RunReader(folder).rows()]
    assert found == [(step, 1 / (step + 1)) for step in range(rows)]


def test_a_new_run_in_a_followed_folder_is_taken_in(watched_machine: Any) -> None:
    from torch.utils.tensorboard import SummaryWriter

    (watched_machine.folder / "logs").mkdir()
    process = _start_following(watched_machine, "tensorboard", "logs")
    with SummaryWriter(str(watched_machine.folder / "logs/late")) as writer:
        for step in range(5):
            writer.add_scalar("loss", 0.5, step)
    wait_until(lambda: list(watched_machine.root.glob("*/*/run.json")), "the run")
    folder, _ = watched_machine.only_run()
    wait_until(lambda: len(list(RunReader(folder).rows())) == 5, "its rows")
    process.terminate()
    output, trouble = process.communicate()
    assert process.returncode == 0, trouble
    assert "late" in output

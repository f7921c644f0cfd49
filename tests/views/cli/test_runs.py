"""`trainvitals runs`: list, show, rm, clean, seal."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_runs import write

from trainvitals import runtime
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.patches import write_patch

PROGRAM = (sys.executable, "-m", "trainvitals")
HOUR = 3600


def a_process_of_now() -> dict[str, Any]:
    return {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}


def age(folder: Path, seconds: float) -> None:
    """Let the run have ended that long ago."""
    for path in folder.rglob("*"):
        status = path.stat()
        os.utime(path, (status.st_atime - seconds, status.st_mtime - seconds))


def test_no_runs_is_said_with_what_to_type(machine: Any) -> None:
    done = machine.run("runs")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no runs" in done.stderr
    assert "trainvitals run -- python train.py" in done.stderr
    assert json.loads(machine.run("runs", "--json").stdout) == []


def test_show_prints_the_patch_byte_by_byte(machine: Any, make_run: Callable[..., Path]) -> None:
    patch = b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\r\n+n\xe9w\n"
    folder = make_run("changed")
    write_patch(folder, PatchFile(untracked_cut=True), patch, ["new.py"])
    command = [*PROGRAM, "runs", "show", "changed", "--patch"]
    done = subprocess.run(command, env=machine.environ, capture_output=True, check=True)
    assert done.stdout == patch and b"not in the patch: new.py, and more" in done.stderr
    shown = machine.run("runs", "show", "changed").stdout
    assert "+1 -1 in 1 file; to print it: --patch" in shown and "untracked: new.py, and more" in shown
    assert json.loads(machine.run("runs", "show", "changed", "--json").stdout)["patch"]["kept"] is True
    write_patch(folder, PatchFile(), patch + b"+token = 'abcdef0123456789'\n")
    done = subprocess.run(command, env=machine.environ, capture_output=True, check=True)
    assert b"'[redacted]'" in done.stdout and b"redacted in 1 line: the patch may not apply" in done.stderr


def test_show_says_why_there_is_no_patch(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("large")
    write_patch(folder, PatchFile(missing="too_large", limit_kb=256))
    done = machine.run("runs", "show", "large", "--patch")
    assert (done.returncode, done.stdout) == (1, "") and "not kept: larger than 256 KB" in done.stderr
    assert "not kept: larger than 256 KB" in machine.run("runs", "show", "large").stdout
    make_run("clean", git={"commit": "c" * 40, "dirty": False})
    done = machine.run("runs", "show", "clean", "--patch")
    assert done.returncode == 1 and "from commit cccccccccccc without changes" in done.stderr


def test_runs_are_listed_oldest_first(machine: Any, make_run: Callable[..., Path]) -> None:
    first = make_run("first", last_step=99)
    second = make_run("second", status="failed", cause="ValueError: no", project="cifar")
    lines = machine.run("runs").stdout.splitlines()
    assert lines[0].split() == [
        "name",
        "run",
        "id",
        "status",
        "problems",
        "last",
        "step",
        "loss",
        "time",
        "started",
        "project",
    ]
    ordered = sorted([first.name, second.name])
    assert [line.split()[1] for line in lines[1:]] == ordered
    assert {line.split()[0] for line in lines[1:]} == {"first", "second"}
    text = "\n".join(lines)
    assert "1 min 40 s" in text
    assert "ValueError: no" in text


def test_the_list_shows_what_was_wrong_with_a_run_that_finished(machine: Any, make_run: Callable[..., Path]) -> None:
    fine = make_run("fine", rows=[{"step": n, "loss": 1.0} for n in range(10)])
    folder = make_run("nan", rows=[{"step": n, "loss": math.nan if 8 <= n < 190 else 1.0} for n in range(200)])
    line = {"rule": "loss_not_finite", "severity": "critical", "message": "Loss became NaN at step 8"}
    for second, more in enumerate([{"state": "firing"}, {"state": "resolved", "reason": "the run is finished"}]):
        write(folder, [{**line, **more}], "alerts_20260101_000000", at=time.time() + second)
    assert machine.run("diagnose", folder.name, "--keep").returncode == 0
    rows = {row["id"]: row for row in json.loads(machine.run("runs", "--json").stdout)}
    assert rows[fine.name]["health"]["severity"] == "ok" and rows[fine.name]["finding_counts"] is None
    found = rows[folder.name]
    assert found["health"]["severity"] == "critical" and found["alert_counts"]["critical"] == 1
    assert found["finding_counts"]["critical"] == 1, "the loss is not finite"
    text = machine.run("runs").stdout
    assert "1 critical alert, 1 critical finding" in next(line for line in text.splitlines() if folder.name in line)
    assert "1 critical alert, 1 critical finding" in machine.run("runs", "show", folder.name).stdout
    assert "ended with the run" in machine.run("alerts", "history", folder.name).stdout


def test_the_list_shows_the_last_value_that_says_most_also_where_no_agent_was(
    machine: Any, make_run: Callable[..., Path]
) -> None:
    rows = [{"step": n, "train/loss": 0.5 - n / 100, "val/acc": 0.9} for n in range(10)]
    make_run("good", rows=rows)
    make_run("bad", rows=[*rows, {"step": 10, "train/loss": math.nan}])
    text = machine.run("runs").stdout.splitlines()
    assert "train/loss" in text[0] and "val/acc" not in text[0]
    (good,), (bad,) = ([line for line in text[1:] if line.startswith(name)] for name in ("good", "bad"))
    assert "0.41" in good and "loss is NaN" in bad
    assert [row["name"] for row in json.loads(machine.run("runs", "train/loss<0.5", "--json").stdout)] == ["good"]


def test_runs_as_json_have_what_a_script_needs(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("first", last_step=99, tags=["a"], simulated=True)
    (row,) = json.loads(machine.run("runs", "--json").stdout)
    assert row["id"] == folder.name
    assert row["folder"] == str(folder)
    assert (row["status"], row["last_step"], row["project"], row["tags"]) == ("finished", 99, "mnist", ["a"])
    assert row["simulated"] is True
    assert row["seconds"] == pytest.approx(100, abs=0.01)


def test_runs_can_be_chosen(machine: Any, make_run: Callable[..., Path]) -> None:
    first = make_run("one")
    failed = make_run("two", status="failed")
    other = make_run("three", project="cifar")

    def listed(*flags: str) -> list[str]:
        return [row["id"] for row in json.loads(machine.run("runs", "--json", *flags).stdout)]

    assert listed("status:failed") == [failed.name]
    assert listed("-status:failed", "--limit", "1", "-tag:a", "project:mnist") == [first.name]
    assert listed("name~^t", "-host:x") == sorted([failed.name, other.name])
    assert listed("THREE") == [other.name]
    assert listed("--status", "failed") == [failed.name]
    assert listed("--project", "cifar") == [other.name]
    assert listed("--project", "nothing") == []
    assert len(listed("--limit", "2")) == 2


def test_a_search_that_is_wrong_or_finds_nothing_says_why(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("one", config={"lr": 0.1})
    done = machine.run("runs", "lr>much")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'much' in 'lr>much' is not a number\n  type a number, such as lr>0.01" in done.stderr
    done = machine.run("runs", "lrr>0.01")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no matching runs" in done.stderr and "no run has 'lrr', did you mean 'lr'?" in done.stderr


def test_a_run_is_named_by_any_part_that_no_other_has(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("lr0.001-bs32")
    make_run("lr0.01-bs32")
    for reference in ("lr0.001-bs32", "lr0-001-bs32", "R0.001"):
        assert folder.name in machine.run("runs", "show", reference).stdout
    done = machine.run("runs", "show", "bs32")
    assert done.returncode == 1 and "'bs32' matches 2 runs: " in done.stderr and folder.name in done.stderr
    assert "did you mean 'lr0.001-bs32'" in machine.run("runs", "show", "lr0.001-bs33").stderr


def test_a_run_whose_process_is_gone_is_crashed(machine: Any, make_run: Callable[..., Path]) -> None:
    process = {"pid": 2**22 + 1, "start": 1.0, "host": runtime.host_name()}
    make_run("dead", status="running", ended=None, process=process)
    (row,) = json.loads(machine.run("runs", "--json").stdout)
    assert row["status"] == "crashed"
    assert row["seconds"] is None


def test_the_step_of_a_live_run_is_what_the_agent_saw(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("live", status="running", ended=None, process=a_process_of_now())
    (folder / "status.json").write_text(json.dumps({"attempt": 1, "state": "running", "ranks": {"0": {"step": 41}}}))
    (row,) = json.loads(machine.run("runs", "--json").stdout)
    assert (row["status"], row["last_step"]) == ("running", 41)


def test_a_name_cannot_write_on_the_terminal(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("evil", id="evil\x1b]0;title\x07\nline")
    assert "\x1b" not in machine.run("runs").stdout
    assert "\x1b" not in machine.run("runs", "show", "latest").stdout


def test_a_narrow_terminal_keeps_the_run_ids_whole(make_run: Callable[..., Path], terminal: Callable[..., Any]) -> None:
    folder = make_run("x" * 30, status="failed", cause="a long story " * 10, project="a project with a long name")
    session = terminal([*PROGRAM, "runs"], columns=80)
    assert session.wait() == 0
    lines = [line for line in session.screen() if line]
    assert len(lines) == 2
    assert lines[1].startswith(folder.name)


def test_show_tells_what_the_run_came_to(machine: Any, make_run: Callable[..., Path]) -> None:
    gpus = [
        {"gpu_index": 0, "gpu_uuid": "GPU-a", "gpu_name": "H100", "utilization_percent": 80.0 + place % 3,
         "memory_used_mb": 1024.0 * 10, "memory_total_mb": 1024.0 * 80, "energy_joules": 1000.0 + 36_000 * place}
        for place in range(101)
    ]  # fmt: skip
    events = [{"event": "source_trouble", "severity": "warning", "message": "GPU 0 was late"}]
    config = {"lr": 0.1, "model": {"width": 64}}
    notes = "try\n\n- warmup"
    folder = make_run("shown", gpus=gpus, events=events, config=config, command="python train.py", notes=notes)
    (folder / "console.rank0.log").write_text("".join(f"epoch {number}\n" for number in range(9)) + " 10%\r 20%\n")
    text = machine.run("runs", "show", "shown").stdout
    assert "finished  last step 99  1 min 40 s" in text
    assert "best 0.1" in text
    assert "at step 99" in text
    assert "81 % (max 82 %)" in text
    assert "10.0 GB of 80.0 GB" in text
    assert "1 kWh" in text
    assert "1 warning; newest: GPU 0 was late" in text
    assert "python train.py" in text
    assert "lr = 0.1\n            model.width = 64\n" in text
    assert "notes     try\n            - warmup\n" in text
    assert "printed   epoch 5\n" in text
    assert text.endswith("epoch 8\n             20%\n")


def test_show_tells_what_is_wrong_and_what_to_do(machine: Any, make_run: Callable[..., Path]) -> None:
    rows = [{"step": step, "loss": 1.0 if step < 150 else float("nan")} for step in range(200)]
    make_run("broken", rows=rows)
    text = machine.run("runs", "show", "broken").stdout
    (finding, advice) = text[text.index("  findings") :].splitlines()[:2]
    assert finding.startswith("  findings  critical  ")
    assert "NaN" in finding
    assert advice.strip()
    shown = json.loads(machine.run("runs", "show", "broken", "--json").stdout)
    assert shown["diagnosis"]["findings"][0]["severity"] == "critical"


def test_show_as_json_spells_what_json_cannot(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("odd", rows=[{"step": 0, "loss": float("nan")}, {"step": 1, "loss": float("inf")}])
    text = machine.run("runs", "show", "latest", "--json").stdout
    found = json.loads(text, parse_constant=pytest.fail)
    assert found["summary"]["metrics"]["loss"]["last"] == "Infinity"
    assert found["summary"]["metrics"]["loss"]["nonfinite"] == 2
    assert found["summary"]["metrics"]["loss"]["low"] is None


def test_show_counts_lines_that_cannot_be_read(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("torn")
    (path,) = folder.glob("training_metrics_*.jsonl")
    path.write_bytes(path.read_bytes() + b'{"timestamp": "2026-\nnot json\n')
    assert "2 torn lines; everything else is intact" in machine.run("runs", "show", "torn").stdout


def test_rm_removes_what_is_over(machine: Any, make_run: Callable[..., Path]) -> None:
    gone, kept = make_run("gone"), make_run("kept")
    done = machine.run("runs", "rm", "gone", "--yes")
    assert done.returncode == 0
    assert done.stdout == f"removed {gone}\n"
    assert not gone.exists()
    assert kept.exists()


def test_rm_refuses_a_live_run_and_then_removes_nothing(machine: Any, make_run: Callable[..., Path]) -> None:
    ended = make_run("ended")
    live = make_run("live", status="running", ended=None, process=a_process_of_now())
    done = machine.run("runs", "rm", "ended", "live", "--yes")
    assert done.returncode == 1
    assert f"run {live.name} has not ended" in done.stderr
    assert ended.exists()
    assert live.exists()


@pytest.mark.parametrize("action", [("show", ""), ("rm", "--yes", "")])
def test_an_empty_name_means_no_run(machine: Any, make_run: Callable[..., Path], action: tuple[str, ...]) -> None:
    """As a shell gives it for a variable that is not set."""
    folder = make_run("only")
    done = machine.run("runs", *action)
    assert done.returncode == 1 and "no run ''" in done.stderr
    assert folder.is_dir()


def test_rm_asks_nobody_without_a_terminal(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("asked")
    done = machine.run("runs", "rm", "asked", input="y\n")
    assert done.returncode == 2
    assert "--yes" in done.stderr
    assert folder.exists()


@pytest.mark.parametrize(("answer", "left"), [("y", False), ("n", True), ("", True)])
def test_rm_asks_on_a_terminal(
    make_run: Callable[..., Path], terminal: Callable[..., Any], answer: str, left: bool
) -> None:
    folder = make_run("asked")
    session = terminal([*PROGRAM, "runs", "rm", "asked"])
    session.wait_for("remove 1 run? [y/N]")
    session.press(f"{answer}\n")
    assert session.wait() == (1 if left else 0)
    assert folder.exists() is left


def test_clean_says_what_it_would_remove_and_then_removes_it(machine: Any, make_run: Callable[..., Path]) -> None:
    old, new = make_run("old"), make_run("new")
    live = make_run("live", status="running", ended=None, process=a_process_of_now())
    for folder in (old, live):
        age(folder, 48 * HOUR)
    done = machine.run("runs", "clean", "--max-age", "1d", "--dry-run")
    assert done.stdout == f"would remove {old}\n"
    assert old.exists()
    assert machine.run("runs", "clean", "--max-age", "1d").stdout == f"removed {old}\n"
    assert not old.exists()
    assert new.exists()
    assert live.exists()


def test_clean_without_a_limit_is_a_usage_error(machine: Any) -> None:
    done = machine.run("runs", "clean")
    assert done.returncode == 2
    assert "--max-age 30d" in done.stderr


def test_clean_takes_its_limit_from_the_settings(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("old")
    age(folder, 48 * HOUR)
    machine.run("runs", "clean", environ={"TRAINVITALS_MAX_AGE": "1d"})
    assert not folder.exists()


def test_seal_keeps_every_value(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("sealed")
    before = machine.run("export", "sealed", "--format", "jsonl").stdout
    done = machine.run("runs", "seal", "sealed")
    assert "1 file, 100 lines sealed" in done.stdout
    assert not list(folder.glob("training_metrics_*.jsonl"))
    after = machine.run("export", "sealed", "--format", "jsonl").stdout
    assert [json.loads(line) for line in after.splitlines()] == [json.loads(line) for line in before.splitlines()]


def test_seal_refuses_a_live_run(machine: Any, make_run: Callable[..., Path]) -> None:
    make_run("live", status="running", ended=None, process=a_process_of_now())
    assert machine.run("runs", "seal", "live").returncode == 1


def test_check_reports_damage_and_repairs_what_it_can(machine: Any, make_run: Callable[..., Path]) -> None:
    folder = make_run("hurt", rows=[{"step": step, "loss": 1.0} for step in range(50)])
    make_run("fine")
    assert machine.run("runs", "seal", "hurt").returncode == 0
    (side,) = folder.glob("segments/*.minmax.parquet")
    side.unlink()
    done = machine.run("runs", "check")
    assert done.returncode == 1
    assert f"segments/{side.name} is missing (fix: --repair)" in done.stdout and "no damage" in done.stdout
    done = machine.run("runs", "check", "hurt", "--repair")
    assert done.returncode == 0 and f"segments/{side.name} is missing (repaired)" in done.stdout
    assert machine.run("runs", "check").stdout.count("no damage") == 2
    (segment,) = (path for path in folder.glob("segments/*.parquet") if path != side)
    segment.write_bytes(b"broken")
    assert machine.run("runs", "check", "hurt", "--repair").returncode == 1
    assert "1 unreadable Parquet file; everything else is intact" in machine.run("runs", "show", "hurt").stdout


def test_name_notes_and_tags_are_edited(machine: Any, make_run: Callable[..., Path]) -> None:
    first, second = make_run("first"), make_run("second")
    done = machine.run("runs", "edit", "first", "--name", "baseline", "--notes", "# why", "--tag", "a", "--tag", "b")
    assert done.returncode == 0 and done.stdout == f"{first.name}  baseline  tags: a, b\n"
    done = machine.run("runs", "edit", "baseline", second.name, "--tag", "c", "--untag", "a")
    assert done.returncode == 0, done.stderr
    written = [json.loads((folder / "run.json").read_text()) for folder in (first, second)]
    assert [(run["name"], run["tags"]) for run in written] == [("baseline", ["b", "c"]), ("second", ["c"])]
    assert written[0]["notes"] == "# why"
    assert machine.run("runs", "edit", "baseline").returncode == 2
    done = machine.run("runs", "edit", "baseline", "--name", "")
    assert done.returncode != 0 and "empty" in done.stderr
    machine.run("runs", "edit", "baseline", "--notes", "-", input="two\nlines\n")
    assert json.loads((first / "run.json").read_text())["notes"] == "two\nlines"

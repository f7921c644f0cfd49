"""`trainvitals diagnose`: a run or a table of another program, judged."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
from trainvitals import runtime


def make_table(path: Path, every: int = 1) -> Path:
    random = np.random.default_rng(0)
    steps = np.arange(4000)
    loss = 2 + 3 * np.exp(-steps / 400) + random.normal(0, 0.05, 4000)
    loss += np.clip((steps - 3000) / 200, 0, 1) * 0.8
    loss[1500] += 2
    took = 200 * np.exp(random.normal(0, 0.01, 4000))
    took[2200:] *= 1.08
    wall = np.cumsum(took) / 1000
    rows = (f"{step},{wall[step]:.3f},{loss[step]:.5f},,{took[step]:.2f}" for step in range(0, 4000, every))
    path.write_text("\n".join(["step,wall_s,train_loss,val_loss,step_ms", *rows]) + "\n")
    return path


def by_id(done: Any) -> dict[str, Any]:
    return {finding["id"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.mark.parametrize("every", [1, 10])
def test_a_table_is_judged_with_steps_that_only_look_back(machine: Any, tmp_path: Path, every: int) -> None:
    done = machine.run("diagnose", "--csv", str(make_table(tmp_path / "t.csv", every)), "--json")
    assert done.returncode == 0, done.stderr
    found = by_id(done)
    slow, rising, spike = found["step.fail_slow"], found["loss.divergence"], found["loss.spike"]
    assert abs(slow["since_step"] - 2200) <= every and slow["named_at_step"] <= 2350
    assert 2900 <= rising["since_step"] <= 3060 and rising["named_at_step"] <= 3200
    assert spike["since_step"] == spike["named_at_step"] == 1500
    for finding in found.values():
        assert {"id", "severity", "since_step", "named_at_step", "where", "evidence", "action", "cause"} <= set(finding)


def test_the_text_names_what_where_and_what_to_do(machine: Any, tmp_path: Path) -> None:
    table = str(make_table(tmp_path / "t.csv"))
    text = machine.run("diagnose", "--csv", table).stdout
    assert " ! Steps have been 8.3 % slower since about step 2,200" in text
    assert "     → " in text
    assert text.splitlines()[-1].endswith("skipped (trainvitals diagnose --all)")
    everything = machine.run("diagnose", "--csv", table, "--all").stdout
    assert "     passed   NaN or infinite loss" in everything
    assert "     skipped  exploding gradients: needs 'gradient_norm' (not logged)" in everything


@pytest.mark.parametrize(("severity", "code"), [("critical", 0), ("warning", 3), ("info", 3)])
def test_a_gate_fails_from_its_severity_on(machine: Any, tmp_path: Path, severity: str, code: int) -> None:
    done = machine.run("diagnose", "--csv", str(make_table(tmp_path / "t.csv")), "--fail-on", severity)
    assert done.returncode == code


def test_a_column_of_workers_finds_the_slow_one(machine: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    lines = ["step,worker,step_ms"]
    for step in range(44):
        lines += [f"{step},{rank},{200 * np.exp(random.normal(0, 0.01)) * (1 + (rank == 5))}" for rank in range(16)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = by_id(machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json"))
    assert found["straggler.rank"]["where"] == "rank 5"


@pytest.mark.parametrize(("label", "where"), [("worker-{}", "it ran on worker-2"), ("node{}", "it ran on nodec")])
def test_workers_with_names_and_missing_steps_are_compared(
    machine: Any, tmp_path: Path, label: str, where: str
) -> None:
    random = np.random.default_rng(0)
    lines = ["step,Worker,Step Time (ms)"]
    for step in range(200):
        for rank in range(8):
            if random.random() < 0.6:  # all eight have hardly a step in common
                name = label.format(rank if "-" in label else "abcdefgh"[rank])
                lines.append(f"{step},{name},{200 * np.exp(random.normal(0, 0.02)) * (1 + (rank == 2))}")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = by_id(machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json"))
    assert list(found) == ["straggler.rank"]
    assert found["straggler.rank"]["where"] == "rank 2" and where in found["straggler.rank"]["evidence"]
    assert found["straggler.rank"]["values"]["ratio"] == pytest.approx(2, abs=0.1)


def write_rising(separator: str = ",", comma: str = ".", header: str = "step,train_loss,step_ms") -> str:
    """A loss that falls, and jumps at step 300; steps are slower from step 200 on."""
    random = np.random.default_rng(0)
    rows = []
    for step in range(500):
        loss = 4.0 if step >= 300 else 0.3 + 2 * np.exp(-step / 200) + random.normal(0, 0.03)
        rows.append(separator.join((str(step), f"{loss:.3f}".replace(".", comma), "100" if step < 200 else "150")))
    return "\n".join([header.replace(",", separator), *rows]) + "\n"


@pytest.mark.parametrize(
    "content",
    [
        write_rising(";", ",").encode(),
        write_rising("\t").encode("utf-16"),
        b"\xef\xbb\xbf" + write_rising("|").replace("\n", "\r\n").encode(),
        ("# of another program\n\n" + write_rising(header="Iteration,Training Loss,Batch Time [ms]")).encode(),
        ("# " + write_rising(header="epoch,epoch_loss,iter_time_ms")).encode(),
    ],
    ids=["decimal comma", "utf-16", "byte order mark", "comment and other names", "header as a comment"],
)
def test_tables_as_other_programs_write_them(machine: Any, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    done = machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json")
    found = by_id(done)
    assert not done.stderr and found["loss.spike"]["cause"] == "loss.divergence"
    assert found["step.fail_slow"]["since_step"] == 200
    assert found["loss.divergence"]["since_step"] == pytest.approx(300, abs=10)
    assert found["loss.divergence"]["where"] is None


def test_a_time_that_does_not_rise_is_no_clock_and_dates_are_one(machine: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    took = [f"{step},1.0,{30 + random.normal(0, 1):.3f}" for step in range(300)]
    (tmp_path / "t.csv").write_text("\n".join(["epoch,loss,time", *took]))
    done = json.loads(machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json").stdout)
    assert "step.outlier" in {gap["id"] for gap in done["skipped"]}, "no step times"
    at = [1e9 + step + max(step - 150, 0) * 0.5 for step in range(300)]
    dates = [f"{step},1.0,{datetime.fromtimestamp(second, UTC).isoformat()}" for step, second in enumerate(at)]
    (tmp_path / "t.csv").write_text("\n".join(["epoch,loss,time", *dates]))
    found = by_id(machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json"))
    assert found["step.fail_slow"]["since_step"] == pytest.approx(150, abs=2)


def test_values_near_the_largest_number_are_judged_quietly(machine: Any, tmp_path: Path) -> None:
    rows = [f"{step},{1e308 if step % 2 else 1.0},1e300" for step in range(500)]
    (tmp_path / "t.csv").write_text("\n".join(["step,loss,step_ms", *rows]))
    done = machine.run("diagnose", "--csv", str(tmp_path / "t.csv"), "--json")
    assert done.returncode == 0 and not done.stderr


def test_a_table_from_standard_input_without_step_times_has_those_of_its_clock(machine: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    took = np.where(np.arange(2000) < 1000, 0.1, 0.13) * np.exp(random.normal(0, 0.01, 2000))
    rows = [f"{step},{second:.5f},1.0" for step, second in enumerate(np.cumsum(took))]
    done = machine.run("diagnose", "--csv", "-", "--json", input="\n".join(["step,wall_s,loss", *rows]))
    assert abs(by_id(done)["step.fail_slow"]["since_step"] - 1000) <= 2


def test_a_run_is_judged_as_its_page_judges_it(machine: Any) -> None:
    run = trainvitals.init(name="r", dir=machine.root, agent=False, capture_git=False)
    for step in range(300):
        run.log({"loss": float("nan") if step > 250 else 2.0 - step / 300}, step=step)
    run.finish()
    done = machine.run("diagnose", "latest", "--json")
    found = by_id(done)["loss.nonfinite"]
    assert (found["since_step"], found["named_at_step"], found["severity"]) == (251, 251, "critical")
    assert " ✗ The loss became NaN at step 251" in machine.run("diagnose").stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot read"),
        ("", "is empty"),
        ("step\n1\n", "has no column to judge"),
        ("1,2.5\n2,2.4\n", "has no header"),
        ("step loss\n1 2\n2 3\n", "separated by commas, semicolons, tabs or |"),
        ("a,b\n1,2\n2,3\n", "none for these columns: a, b"),
        ("step,loss\n1,2\n2,oops\n", "1 of 2 values of 'loss' are not numbers: skipped"),
        ("step,loss\n,\n\n3,nan\n1,2,3,4\n", "checks passed"),
    ],
    ids=["missing", "empty", "steps only", "no header", "blanks", "unknown columns", "texts", "ragged"],
)
def test_odd_tables_get_an_answer(machine: Any, tmp_path: Path, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / "t.csv").write_text(content)
    done = machine.run("diagnose", "--csv", str(tmp_path / "t.csv"))
    assert "Traceback" not in done.stderr
    assert text in done.stdout + done.stderr


def test_a_run_and_a_table_at_once_are_refused(machine: Any) -> None:
    assert machine.run("diagnose", "latest", "--csv", "x").returncode == 2


def test_findings_are_kept_for_an_ended_run_until_another_attempt(machine: Any, make_run: Any) -> None:
    folder = make_run("slow", rows=[{"step": n, "loss": 1.0, "batch_time": 0.1} for n in range(300)])
    path = folder / "findings.json"
    assert machine.run("diagnose", "slow").returncode == 0 and not path.exists(), "only if asked to"
    assert machine.run("diagnose", "slow", "--keep").returncode == 0
    kept = json.loads(path.read_text())
    kept["findings"] = [{"rule": "made.up", "severity": "warning", "title": "kept", "advice": "none"}]
    path.write_text(json.dumps(kept))
    assert "kept" in machine.run("runs", "show", "slow").stdout
    other = machine.run("runs", "show", "slow", environ={"TRAINVITALS_PRICE_KWH": "0.3"}).stdout
    assert "kept" not in other, "by other prices they are made again"
    path.write_text(json.dumps({**kept, "attempt": 0}))
    assert "kept" not in machine.run("runs", "show", "slow").stdout
    path.write_text("[broken")
    assert machine.run("runs", "show", "slow").returncode == 0


def test_findings_of_a_table_or_of_a_live_run_are_not_kept(machine: Any, make_run: Any, tmp_path: Path) -> None:
    refused = machine.run("diagnose", "--csv", str(make_table(tmp_path / "t.csv")), "--keep")
    assert refused.returncode == 2 and "not for tables" in refused.stderr
    me = {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}
    folder = make_run("live", rows=[{"step": 1, "loss": 1.0}], status="running", process=me)
    done = machine.run("diagnose", "live", "--keep")
    assert "the run has not ended" in done.stderr and not (folder / "findings.json").exists()


def test_slow_steps_between_the_lines_are_seen_by_the_clock(machine: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    times = 0.2 * np.exp(random.normal(0, 0.02, 3000))
    times[37::70] *= 5
    times[2000:] *= 1.06
    clock = times.cumsum()
    rows = [
        f"{step},{clock[step]:.4f},{2 + random.normal(0, 0.02):.4f},{1000 * times[step]:.2f}"
        for step in range(0, 3000, 10)
    ]
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["step,wall_s,train_loss,step_ms", *rows]), encoding="utf-8")
    found = by_id(machine.run("diagnose", "--csv", str(table), "--json"))
    assert "Every 70 steps" in found["step.periodic"]["title"]
    assert abs(found["step.fail_slow"]["since_step"] - 2000) <= 20
    assert found["step.fail_slow"]["named_at_step"] <= 2150


def test_an_empty_cell_is_no_loss_and_a_written_nan_is_one(machine: Any, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    rows = [f"{step},{'' if step % 50 == 49 else 2.0},{'2.1' if step % 50 == 49 else ''}" for step in range(300)]
    table.write_text("\n".join(["step,train_loss,val_loss", *rows]), encoding="utf-8")
    assert "loss.nonfinite" not in by_id(machine.run("diagnose", "--csv", str(table), "--json"))
    table.write_text("step,train_loss\n" + "\n".join(f"{step},nan" for step in range(300)), encoding="utf-8")
    found = by_id(machine.run("diagnose", "--csv", str(table), "--json"))["loss.nonfinite"]
    assert (found["severity"], found["since_step"], found["named_at_step"]) == ("critical", 0, 0)

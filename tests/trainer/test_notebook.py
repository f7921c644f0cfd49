"""A real Jupyter kernel: trainings in cells, with and without `trainvitals run`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import Kernel
from waiting import PATIENCE, read_whole_lines, wait_until

TRAIN = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps, after=lambda: None):
    for _ in range(steps):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        after()
"""


pytestmark = pytest.mark.usefixtures("kernel_places")


def rows(folder: Path, table: str = "training_metrics") -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(f"{table}*")) for line in read_whole_lines(path)]


def stalls(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder, "events") if row["event"] == "stalled"]


def recoveries(folder: Path, words: str = "") -> list[dict[str, Any]]:
    return [row for row in rows(folder, "events") if row["event"] == "recovered" and words in row["message"]]


def folders(place: Path) -> list[Path]:
    """In the order in which they were made."""
    descriptions = place.glob("runs/*/*/run.json")
    return [path.parent for path in sorted(descriptions, key=lambda path: json.loads(path.read_text())["created"])]


def cell_of(place: Path) -> str | None:
    (path,) = place.glob("runtime/runs/*.json")
    cell: str | None = json.loads(path.read_text())["cell"]
    return cell


def test_a_notebook_that_never_heard_of_us_is_watched_to_its_last_step(tmp_path: Path) -> None:
    cells = [nbformat.v4.new_code_cell(code) for code in (TRAIN, "train(5)", "train(2)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "train.ipynb")
    jupyter = [str(Path(sys.executable).parent / "jupyter"), "execute", "--kernel_name=python3", "train.ipynb"]
    jupyter.append(f"--startup_timeout={PATIENCE:.0f}")
    done = subprocess.run(
        [sys.executable, "-m", "trainvitals", "run", "--", *jupyter], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    steps = [row["step"] for row in rows(folder) if "loss" in row]
    assert steps == list(range(7))
    assert json.loads((folder / "run.json").read_text())["status"] == "finished"


def test_cells_end_steps_and_are_told_to_the_agent(tmp_path: Path, kernel: Kernel) -> None:
    assert kernel.run(TRAIN) is None
    assert kernel.run("import trainvitals\nrun = trainvitals.init()\nrun.watch(model, optimizer)") is None
    assert cell_of(tmp_path) == ""  # nothing is being run
    (folder,) = folders(tmp_path)
    assert kernel.run("train(3)") is None
    assert [row["step"] for row in rows(folder)] == [0, 1, 2]  # also the last one, though nothing comes after it

    # Ctrl-C in the middle of a forward
    inside = tmp_path / "inside"
    hook = f"lambda *_: (open({str(inside)!r}, 'w').close(), __import__('time').sleep(600))"
    cell = kernel.start(f"model[1].register_forward_hook({hook})\ntrain(1)")
    wait_until(inside.exists, "the forward")  # before the cell itself, IPython would swallow the interrupt
    assert cell_of(tmp_path)
    kernel.interrupt()
    assert kernel.finish(cell) == "KeyboardInterrupt"
    assert cell_of(tmp_path) == ""
    assert kernel.run("model[1]._forward_hooks.clear()\ntrain(3)") is None
    told = rows(folder)
    assert [row["step"] for row in told] == [0, 1, 2, 3, 4, 5]
    assert all(row["batch_time"] < 100 and row["forward_time"] > 0 for row in told)

    # init() once more in the same kernel
    assert kernel.run("run = trainvitals.init()\nrun.watch(model, optimizer)\ntrain(2)") is None
    first, second = folders(tmp_path)
    assert json.loads((first / "run.json").read_text())["status"] == "finished"
    assert json.loads((second / "run.json").read_text())["status"] == "running"
    assert len(rows(first)) == 6
    assert len(rows(second)) == 2
    assert rows(second, "events") == []
    assert kernel.run("assert len(get_ipython().events.callbacks['post_run_cell']) == 1") is None


def test_only_a_cell_that_trains_can_stall(tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by a real agent, beside a script that goes silent later than the notebook and is found to have stalled."""
    options = "agent=True, stall_after=1.0, stack_dumps=False, capture_git=False"
    log = "[(run.log({'loss': 1.0}), time.sleep(0.05)) for _ in range(4)]"
    start = f"import time, trainvitals\nrun = trainvitals.init({options})"
    assert kernel.run(f"{start}\n{log}") is None
    (notebook,) = folders(tmp_path)
    cell = kernel.start("time.sleep(600)")  # a cell that does something else: its user knows
    script = subprocess.Popen([sys.executable, "-c", f"{start}\n{log}\ntime.sleep(600)"])
    try:
        (other,) = wait_until(lambda: [folder for folder in folders(tmp_path) if folder != notebook])
        wait_until(lambda: stalls(other), "a stall of the script")
        # On a busy machine it may have been silent between two lines: that stall ended with the next line, or the cell.
        wait_until(lambda: len(stalls(notebook)) <= len(recoveries(notebook)), "a notebook that is not stalled")
        kernel.interrupt()
        kernel.finish(cell)
        cell = kernel.start(f"{log}\ntime.sleep(600)")
        wait_until(lambda: [row for row in stalls(notebook) if row["data"]["step"] == 7], "a stall after the last line")
        let_go = "until a notebook cell logs again"
        before = len(recoveries(notebook, let_go))
        kernel.interrupt()
        kernel.finish(cell)
        wait_until(lambda: len(recoveries(notebook, let_go)) > before, "the end of the stall")
    finally:
        script.kill()
        script.wait()
        kernel.run("run.finish()")
        subprocess.run([sys.executable, "-m", "trainvitals", "agent", "stop"], capture_output=True, check=False)

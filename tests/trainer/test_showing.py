"""A run that shows itself below a cell, in a real kernel; tests/views/test_jupyterlab.py has a real page around it."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from kernels import Kernel
from nbclient import NotebookClient
from waiting import PATIENCE, wait_until

import trainvitals

PATIENT = f"import trainvitals.trainer.showing as showing\nshowing.SETTLE_SECONDS = {PATIENCE}\n"
"""Without it a cell of a busy machine ends before its picture has come."""
START = f"import os, sys, time, trainvitals\n{PATIENT}run = trainvitals.init(project='p', name='shown')\n"

pytestmark = pytest.mark.usefixtures("kernel_places")


def make_run(name: str, steps: int = 5) -> Path:
    run = trainvitals.init(project="p", name=name)
    for step in range(steps):
        run.log({"loss": 1 / (step + 1)}, step=step)
    run.finish()
    return run.folder


def test_a_run_at_the_end_of_a_cell_is_redrawn_while_it_trains(tmp_path: Path, kernel: Kernel) -> None:
    kernel.run(START + "run")
    (first,) = kernel.pictures
    assert "shown" in first
    assert "running" in first
    assert "no data" in first
    enough = tmp_path / "enough"
    loop = f"step = 0\nwhile not os.path.exists({str(enough)!r}):\n"
    loop += "    run.log({'loss': 1 / (step + 1)}, step=step); step += 1; time.sleep(0.01)"
    cell = kernel.start(loop)
    early = kernel.wait_for_picture(r"last step [\d,]+")[0]
    kernel.wait_for_picture(rf"last step (?!{early.removeprefix('last step ')} )")  # again; the cell is still running
    assert "Loss" in kernel.pictures[-1]
    assert not enough.exists()
    enough.touch()
    kernel.finish(cell)

    kernel.run("run.finish(); print(run.step)")  # with the end of the cell the last picture is there
    (last,) = kernel.pictures
    assert f"finished, last step {int(kernel.text):,}" in last
    (shown,) = kernel.displays.values()
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")
    assert shown["text/plain"].endswith("(finished)")

    def list_threads() -> str:
        kernel.run("import threading; print([thread.name for thread in threading.enumerate()])")
        return kernel.text

    wait_until(lambda: "trainvitals-picture" not in list_threads(), "the end of the thread")
    kernel.run("print(get_ipython().events.callbacks['post_run_cell'])")
    assert kernel.text.strip() == "[]"
    assert kernel.painters() == []


def test_what_draws_is_not_imported_into_the_training(kernel: Kernel) -> None:
    kernel.run(START + "run")
    kernel.run("print(sorted({'numpy', 'duckdb', 'resvg_py', 'trainvitals.views'} & set(sys.modules)))")
    assert kernel.text.strip() == "[]"


def test_a_run_shown_in_several_cells_is_drawn_once(kernel: Kernel) -> None:
    kernel.run(START + "run")
    for _ in range(3):
        kernel.run("trainvitals.show(run)")
    assert len(kernel.displays) == 1
    assert len(kernel.painters()) == 1


def test_an_interrupted_cell_goes_on_being_shown_and_a_killed_kernel_leaves_nothing(kernel: Kernel) -> None:
    kernel.run(START + "run")
    (painter,) = kernel.painters()
    cell = kernel.start("print('begun', flush=True)\ntime.sleep(600)")
    kernel.wait_for_output("begun")
    kernel.interrupt()
    assert kernel.finish(cell) == "KeyboardInterrupt"
    kernel.run("run.log({'loss': 1.0}, step=7)")
    kernel.run("run.finish()")
    assert "last step 7" in kernel.pictures[-1]

    kernel.run(START + "run")
    (painter,) = kernel.painters()
    os.kill(kernel.pid, 9)
    wait_until(lambda: not painter.is_running(), "the end of what draws")


def test_an_alert_that_fires_is_in_the_picture(kernel: Kernel) -> None:
    kernel.run(START.replace("name='shown'", "name='shown', agent=True") + "run")
    try:
        kernel.start("run.log({'loss': float('nan')}, step=0); time.sleep(600)")
        kernel.wait_for_picture(r"Loss became NaN at step 0")
    finally:
        subprocess.run([sys.executable, "-m", "trainvitals", "agent", "stop"], capture_output=True, check=False)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "cannot draw runs in this notebook: [Errno 2]"),
        ("exit 3", "drawing the run failed with exit code 3; watch it with: trainvitals top"),
        ("while kill -0 $PPID; do sleep 0.1; done", "drawing the run takes long"),
    ],
    ids=["cannot start", "fails", "hangs"],
)
def test_a_run_that_cannot_be_drawn_trains_on(tmp_path: Path, kernel: Kernel, program: str | None, words: str) -> None:
    stand_in = tmp_path / "python"  # for the child: this kernel runs already
    if program is not None:
        stand_in.write_text(f"#!/bin/sh\n{program}\n")
        stand_in.chmod(0o755)
    kernel.run(f"{START}showing.SETTLE_SECONDS = {0.5 if 'long' in words else PATIENCE}")
    kernel.run(f"sys.executable = {str(stand_in)!r}")
    said = ""
    for step in range(3):
        assert kernel.run(f"run.log({{'loss': 1.0}}, step={step})\nrun") is None
        said += kernel.text
    assert kernel.run("run.finish()\nrun") is None
    said += kernel.text
    assert said.count(words) == 1
    assert said.count("trainvitals:") == 1
    (shown,) = {data["text/plain"] for data in kernel.displays.values()} or {""}
    assert ("trainvitals run" in shown) == (program is not None)  # as text, where a picture was hoped for
    (folder,) = tmp_path.glob("runs/p/*")
    (file,) = folder.glob("training_metrics*")
    assert len(file.read_text().splitlines()) == 3


def test_ended_runs_are_shown_by_name_part_folder_and_together(kernel: Kernel) -> None:
    folder = make_run("alpha-one")
    make_run("beta-two", steps=9)
    for code in ("'alpha-one'", "'pha-o'", repr(str(folder)), f"__import__('pathlib').Path({str(folder)!r})"):
        kernel.run(f"import trainvitals\n{PATIENT}trainvitals.show({code})")
        assert "finished, last step 4" in kernel.pictures[-1]
    kernel.run("trainvitals.show()")
    assert "finished, last step 8" in kernel.pictures[-1]
    kernel.run("trainvitals.show('alpha-one', 'beta-two', theme='dark')")
    assert "beta-two vs. alpha-one" in kernel.pictures[-1]
    assert kernel.run("trainvitals.show('gamma')") == "RunNotFound"
    assert kernel.run("trainvitals.show('alpha-one', theme='pink')") == "TrainvitalsError"


def test_a_notebook_that_nobody_watches_is_saved_with_the_last_picture() -> None:
    codes = (START + "run", "[run.log({'loss': 1.0}, step=step) for step in range(5)]", "run.finish()")
    cells = [nbformat.v4.new_code_cell(code) for code in codes]
    patience = {"timeout": int(PATIENCE), "startup_timeout": int(PATIENCE)}
    done = NotebookClient(nbformat.v4.new_notebook(cells=cells), kernel_name="python3", **patience).execute()
    (output,) = done.cells[0].outputs
    assert "finished, last step 4" in output["data"]["image/svg+xml"]


def test_outside_of_a_notebook_a_line_says_how_to_look(tmp_path: Path) -> None:
    code = START + "trainvitals.show(run)\nprint(repr(run))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"<trainvitals run \S+ in \S+>\n", done.stdout)
    assert re.search(r"run \S+-shown-\S+ in .*trainvitals top", done.stderr)


def test_ipython_in_a_terminal_prints_the_run_as_text(tmp_path: Path) -> None:
    shell = "from IPython.core.interactiveshell import InteractiveShell as Shell\nshell = Shell.instance()\n"
    code = f"{shell}shell.run_cell({START!r})\nshell.run_cell('run')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(r"Out\[\d\]: <trainvitals run \S+ in \S+>\n", done.stdout)

"""A run that shows itself below a cell, in a real kernel; tests/views/test_jupyterlab.py has a real page around it."""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel
from nbclient import NotebookClient
from waiting import PATIENCE, wait_until

import trainvitals

START = "import os, sys, time, trainvitals\nrun = trainvitals.init(project='p', name='shown')\n"


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.delenv("TRAINVITALS_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path)


class Kernel:
    """What a notebook's page does: runs cells, and keeps what they show by the id of its display."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self._client = client
        self.displays: dict[str, dict[str, Any]] = {}
        """The newest of each, in the order in which they first appeared."""
        self.text = ""
        self.pid: int = 0
        self.run("import os; print(os.getpid())")
        self.pid = int(self.text)

    def start(self, code: str) -> str:
        return str(self._client.execute(code, stop_on_error=False))

    def run(self, code: str) -> None:
        """To its end, also of what it shows."""
        self.finish(self.start(code))

    def finish(self, cell: str) -> None:
        self.text = ""
        self._hear(lambda message: self._is_end_of(cell, message))

    def wait_for_text(self, pattern: str) -> re.Match[str]:
        """Until a picture has it, while a cell is running."""
        self._hear(lambda _: bool(self.pictures and re.search(pattern, self.pictures[-1])))
        found = re.search(pattern, self.pictures[-1])
        assert found is not None
        return found

    def wait_for_output(self, text: str) -> None:
        self._hear(lambda _: text in self.text)

    @property
    def pictures(self) -> list[str]:
        """The texts of the pictures."""
        found = (data.get("image/svg+xml", "") for data in self.displays.values())
        return [" | ".join(re.findall(r"<text[^>]*>([^<]*)", svg)) for svg in found]

    def painters(self) -> list[psutil.Process]:
        """The processes that draw."""
        children = psutil.Process(self.pid).children(recursive=True)
        return [child for child in children if any("inline" in word for word in child.cmdline())]

    def _is_end_of(self, cell: str, message: dict[str, Any]) -> bool:
        is_its = message["parent_header"].get("msg_id") == cell
        return is_its and message["content"].get("execution_state") == "idle"

    def _hear(self, until: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            message = self._client.get_iopub_msg(timeout=PATIENCE)
            content = message["content"]
            if message["msg_type"] in ("display_data", "update_display_data"):
                self.displays[content["transient"]["display_id"]] = content["data"]
            self.text += content.get("text", "") + content.get("ename", "")
            if until(message):
                return


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(kernel_name="python3", startup_timeout=PATIENCE)
    try:
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


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
    early = kernel.wait_for_text(r"last step [\d,]+")[0]
    kernel.wait_for_text(rf"last step (?!{early.removeprefix('last step ')} )")  # again; the cell is still running
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

    kernel.run("import threading; print([thread.name for thread in threading.enumerate()])")
    assert "trainvitals-picture" not in kernel.text
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
    kernel.manager.interrupt_kernel()
    kernel.finish(cell)
    assert "KeyboardInterrupt" in kernel.text
    kernel.run("run.log({'loss': 1.0}, step=7)")
    kernel.run("run.finish()")
    assert "last step 7" in kernel.pictures[-1]

    kernel.run(START + "run")
    (painter,) = kernel.painters()
    os.kill(kernel.pid, 9)
    wait_until(lambda: not painter.is_running(), "the end of what draws")


def test_ended_runs_are_shown_by_name_part_folder_and_together(kernel: Kernel) -> None:
    folder = make_run("alpha-one")
    make_run("beta-two", steps=9)
    for code in ("'alpha-one'", "'pha-o'", repr(str(folder)), f"__import__('pathlib').Path({str(folder)!r})"):
        kernel.run(f"import trainvitals\ntrainvitals.show({code})")
        assert "finished, last step 4" in kernel.pictures[-1]
    kernel.run("trainvitals.show()")
    assert "finished, last step 8" in kernel.pictures[-1]
    kernel.run("trainvitals.show('alpha-one', 'beta-two', theme='dark')")
    assert "beta-two vs. alpha-one" in kernel.pictures[-1]
    kernel.run("trainvitals.show('gamma')")
    assert "RunNotFound" in kernel.text
    kernel.run("trainvitals.show('alpha-one', theme='pink')")
    assert "TrainvitalsError" in kernel.text


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

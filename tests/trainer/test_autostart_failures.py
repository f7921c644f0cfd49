"""Programs below `trainvitals run` that fail where no run of theirs can tell why."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from programs import rows_of


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_SUMMARY", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


def start(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)


def run_both(tmp_path: Path, program: str, *arguments: str) -> dict[str, Any]:
    """Run the program alone and watched, which must be the same for whoever looks at it. Returns run.json."""
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    command = [sys.executable, "train.py", *arguments]
    alone = start(tmp_path, *command)
    watched = start(tmp_path, sys.executable, "-m", "trainvitals", "run", "--", *command)
    assert (watched.returncode, watched.stdout, watched.stderr) == (alone.returncode, alone.stdout, alone.stderr)
    return read_run(tmp_path)


def read_run(tmp_path: Path) -> dict[str, Any]:
    (path,) = (tmp_path / "runs").glob("*/*/run.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def events_of(tmp_path: Path) -> list[dict[str, Any]]:
    (path,) = (tmp_path / "runs").glob("*/*/run.json")
    return [row for row in rows_of(path.parent, "events*") if row["event"] == "failed"]


ARGUMENTS = """
    import argparse
    parser = argparse.ArgumentParser(prog="train.py")
    parser.add_argument("--lr", type=float, required=True)
    parser.parse_args()
"""
HANDLED = """
    import sys
    try:
        {}["lr"]
    except KeyError as error:
        print("config:", error, file=sys.stderr)
        sys.exit(4)
"""


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("open('data/train.bin')", "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.bin'"),
        ("import torch\nimport no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys\nsys.exit('the config is wrong')", "exit code 1: the config is wrong"),
        ("import sys\nsys.exit(3)", "exit code 3"),
        ("from sys import exit\ndef main():\n    exit('no data')\nmain()", "exit code 1: no data"),
        (ARGUMENTS, "exit code 2: train.py: error: the following arguments are required: --lr"),
        (HANDLED, "exit code 4: after KeyError: 'lr'"),
        ("raise ValueError('\\x1b[1mbold\\x1b[0m\\n\\tnext line')", "ValueError: bold next line"),
    ],
    ids=["file", "import", "exit text", "exit code", "imported exit", "arguments", "handled", "escapes"],
)
def test_a_program_that_fails_before_its_first_step_keeps_type_and_text(
    tmp_path: Path, program: str, cause: str
) -> None:
    run = run_both(tmp_path, program)
    assert (run["status"], run["cause"]) == ("failed", cause)


def test_the_event_has_the_traceback_of_the_program(tmp_path: Path) -> None:
    run_both(tmp_path, "def load():\n    raise OSError('disk is gone')\nload()\n")
    (event,) = events_of(tmp_path)
    assert event["data"]["traceback"].startswith("Traceback (most recent call last):")
    assert "in load" in event["data"]["traceback"] and "trainvitals" not in event["data"]["traceback"]


def test_an_exit_that_the_program_catches_is_not_its_end(tmp_path: Path) -> None:
    program = """
        import sys, traceback
        try:
            sys.exit("caught")
        except SystemExit:
            traceback.print_exc()
    """
    run = run_both(tmp_path, program)
    assert (run["status"], run.get("cause")) == ("finished", None)


def test_an_exit_with_a_text_after_the_first_step_keeps_it(tmp_path: Path) -> None:
    program = """
        import sys, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        sys.exit("the loss is of no use")
    """
    run = run_both(tmp_path, program)
    assert (run["status"], run["cause"]) == ("failed", "exit code 1: the loss is of no use")


def test_an_exception_after_the_first_step_is_written_once(tmp_path: Path) -> None:
    program = """
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        raise RuntimeError("no more")
    """
    run = run_both(tmp_path, program)
    assert (run["status"], run["cause"]) == ("failed", "RuntimeError: no more")
    assert len(events_of(tmp_path)) == 1


FAILING = """
    import sys, torch
    where = sys.argv[1]

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x.clone()

        @staticmethod
        def backward(context, gradient):
            raise ValueError("backward")

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            if where == "data" and index == 6:
                raise ValueError("data")
            return torch.ones(2)

    class Model(torch.nn.Linear):
        def forward(self, x):
            if where == "forward" and step == 3:
                raise ValueError("forward")
            return super().forward(x)

    model = Model(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, batch in enumerate(torch.utils.data.DataLoader(Data(), batch_size=2)):
        loss = model(batch).sum()
        if where == "backward" and step == 3:
            loss = Broken.apply(loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("where", ["data", "backward"])
def test_an_error_inside_what_is_timed_shows_no_frame_of_ours(tmp_path: Path, where: str) -> None:
    assert run_both(tmp_path, FAILING, where)["cause"] == f"ValueError: {where}"


def test_an_error_in_a_watched_model_shows_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(FAILING))
    program = [sys.executable, "-m", "trainvitals", "run", "--", sys.executable, "train.py", "forward"]
    watched = start(tmp_path, *program)
    # Not word for word: torch calls the model in the next line of the same function.
    assert "in forward" in watched.stderr and "trainvitals" not in watched.stderr


def test_an_import_that_fails_shows_no_frame_of_ours(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13 is missing')\n")
    run = run_both(tmp_path, "import torch")
    assert run["cause"] == "ImportError: libcudart.so.13 is missing"


def test_of_a_script_the_program_that_failed_last_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text("raise ValueError('survived')\n")
    (tmp_path / "second.py").write_text("raise OSError('fatal')\n")
    script = f"{sys.executable} first.py; {sys.executable} second.py"
    done = start(tmp_path, sys.executable, "-m", "trainvitals", "run", "--", "sh", "-c", script)
    assert done.returncode == 1
    assert read_run(tmp_path)["cause"] == "OSError: fatal"


def test_of_a_launcher_the_rank_that_failed_first_is_the_cause(tmp_path: Path) -> None:
    program = """
        import os, time
        if os.environ["RANK"] == "1":
            raise FileNotFoundError("shard 1")
        while True:  # until the launcher ends it
            time.sleep(0.1)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = start(tmp_path, sys.executable, "-m", "trainvitals", "run", "--", *launcher)
    assert done.returncode == 1, done.stderr
    assert read_run(tmp_path)["cause"] == "rank 1: FileNotFoundError: shard 1"

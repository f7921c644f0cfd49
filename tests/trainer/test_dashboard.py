"""The dashboard beside a run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

from trainvitals import runtime

DEADLINE = 60.0
TRAINING = """
import sys, trainvitals
run = trainvitals.init(project="p", name="n", dir=sys.argv[1], agent=False, dashboard=True)
run.log({"loss": 1.0}, step=0)
sys.stdin.readline()
run.finish()
"""


def test_init_says_an_address_that_shows_the_run_and_ends_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt"), "TRAINVITALS_WEB_PORT": "18080"}
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path / "runs")],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert training.stderr is not None
    line = ""
    while not line.startswith("dashboard: "):
        line = training.stderr.readline()
        assert line, "no address was printed"
    address = line.removeprefix("dashboard: ").strip()
    key = next(tmp_path.glob("runs/*/*/run.json")).parent.name
    assert address.endswith(f"/#/run/{key}")
    server = next(
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and f"--until-pid\0{training.pid}".encode() in _command(path)
    )
    training.communicate("\n", timeout=DEADLINE)  # its output ends with it, though the dashboard may live on
    assert training.returncode == 0
    deadline = time.monotonic() + DEADLINE
    while runtime.process_start(server) is not None:
        assert time.monotonic() < deadline, "the dashboard outlived a run that nobody looked at"
        time.sleep(0.1)


def test_the_demo_prints_where_to_look(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt")}
    command = [sys.executable, "-m", "trainvitals", "demo", "--seconds", "4", "--steps", "40", "--dir", str(tmp_path)]
    demo = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    assert demo.stderr is not None
    line = ""
    while "the dashboard is " not in line:
        line = demo.stderr.readline()
        assert line, "no address was printed"
    base = line.partition("the dashboard is ")[2].partition("#")[0]
    with urlopen(f"{base}api/v1/runs/latest", timeout=DEADLINE) as answer:
        assert b'"project":"demo"' in answer.read()
    demo.communicate(timeout=DEADLINE)
    assert demo.returncode == 0


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""

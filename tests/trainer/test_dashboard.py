"""The dashboard beside a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

from waiting import PATIENCE, free_port, wait_until

from trainvitals import runtime

TRAINING = """
import json, sys, trainvitals
run = trainvitals.init(project="p", name="n", dir=sys.argv[1], agent=False, dashboard=True, **json.loads(sys.argv[2]))
run.log({"loss": 1.0}, step=0)
sys.stdin.readline()
run.finish()
"""


def test_init_says_an_address_that_shows_the_run_and_ends_with_it(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt")}
    port = free_port()
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path / "runs"), json.dumps({"web_port": port})],
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
    start, _, code = address.removesuffix(f"#/run/{key}").partition("?code=")
    assert start == f"http://127.0.0.1:{port}/" and code and address.endswith(f"#/run/{key}")
    server = next(
        int(path.name)
        for path in Path("/proc").iterdir()
        if path.name.isdecimal() and f"--until-pid\0{training.pid}".encode() in _command(path)
    )
    training.communicate("\n", timeout=PATIENCE)  # its output ends with it, though the dashboard may live on
    assert training.returncode == 0
    wait_until(lambda: runtime.process_start(server) is None, "the end of the dashboard that nobody looked at")


def test_a_dashboard_that_cannot_be_served_says_why(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING, str(tmp_path / "runs"), json.dumps({"web_host": "192.0.2.1"})],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt"), "TRAINVITALS_INTERVALL": "2"},
        check=True,
    )
    assert done.stderr.count("TRAINVITALS_INTERVALL") == 1
    assert "192.0.2.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_program_of_run_gets_a_dashboard_at_the_port_of_the_settings_file(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "other.yaml").write_text(f"web:\n  port: {port}\nagent: false\n")
    command = ["run", "--dashboard", "--config", "other.yaml", "--dir", "runs", "--", "sh", "-c", "read line"]
    program = subprocess.Popen(
        [sys.executable, "-m", "trainvitals", *command],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt")},
    )
    assert program.stderr is not None
    line = program.stderr.readline()
    assert line.startswith(f"dashboard: http://127.0.0.1:{port}/?code=") and "#/run/" in line
    program.communicate("\n", timeout=PATIENCE)
    assert program.returncode == 0


def test_the_demo_prints_where_to_look(tmp_path: Path) -> None:
    environment = {**os.environ, "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "rt")}
    command = [sys.executable, "-m", "trainvitals", "demo", "--mode", "dashboard", "--steps", "40"]
    command += ["--dir", str(tmp_path)]
    demo = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment)
    assert demo.stderr is not None
    line = ""
    while "dashboard: http" not in line:
        line = demo.stderr.readline()
        assert line, "no address was printed"
    base = line.partition("dashboard: ")[2].partition("?")[0]
    while "the dashboard stays" not in line:  # else it may end while we ask it
        line = demo.stderr.readline()
        assert line, "it ended"
    token = (tmp_path / "rt" / "serve.token").read_text().strip()
    request = Request(f"{base}api/v1/runs/latest", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=PATIENCE) as answer:
        assert b'"project":"demo"' in answer.read()
    demo.send_signal(signal.SIGINT)
    demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 0


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""

"""The address that MLflow's client prints at the end of a run opens the run, in Debian's Chromium."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from waiting import PATIENCE, wait_until

SCRIPT = """
import mlflow
with mlflow.start_run(run_name="baseline"):
    mlflow.log_metric("loss", 1.0)
"""


def test_the_printed_addresses_open_the_run_and_its_project(tmp_path: Path, browser: Any) -> None:
    log = tmp_path / "serve.log"
    command = [sys.executable, "-m", "trainvitals", "serve", "--dir", str(tmp_path / "runs"), "--port", "0"]
    with open(log, "wb") as file:
        server = subprocess.Popen([*command, "--no-token", "--accept", "mlflow"], stdout=file, stderr=file)
    try:
        wait_until(lambda: "dashboard: " in log.read_text(), "the server")
        base = log.read_text().partition("dashboard: ")[2].split()[0].rstrip("/")
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "MLFLOW_TRACKING_URI": base},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        run, experiment = [line.rpartition(" at: ")[2] for line in done.stdout.splitlines()[-2:]]
        page = browser.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        try:
            page.goto(run)
            wait_until(lambda: page.title() == "baseline · Overview · trainvitals", "the page of the run")
            page.evaluate(f"location.href = '{experiment}'")
            page.wait_for_url("**/#/runs?project=default")
            page.get_by_role("link", name="baseline").wait_for()
        finally:
            page.close()
    finally:
        server.terminate()
        server.wait()

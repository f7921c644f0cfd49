"""The example of a training pod, run as Kubernetes would: what its series say about who used the machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from servers import fetch
from waiting import PATIENCE, free_port, wait_until

POD = Path(__file__).parents[2] / "deploy" / "kubernetes" / "training-pod.yaml"
TRAINING = """
import time, trainvitals
run = trainvitals.init()
while True:
    run.log({"loss": 0.5})
    time.sleep(0.1)
"""
FIELDS = {
    "metadata.name": "training-example",
    "metadata.namespace": "vision",
    "spec.nodeName": "node-7",
    "status.podIP": "127.0.0.1",
}


def fetch_with_loss(url: str) -> str:
    """The page; empty before it has a loss."""
    page = fetch(url, {"Authorization": "Bearer s3cret"})[1]
    return page if "training_loss{" in page else ""


def test_the_series_of_a_training_pod_carry_its_name_and_namespace(tmp_path: Path) -> None:
    container = yaml.safe_load(POD.read_text())["spec"]["containers"][0]
    given: dict[str, str] = {}
    for item in container["env"]:
        value = item.get("value") or FIELDS[item["valueFrom"]["fieldRef"]["fieldPath"]]
        given[item["name"]] = re.sub(r"\$\((\w+)\)", lambda match: given[match[1]], value)
    port = free_port()
    (tmp_path / "token").write_text("s3cret\n")
    (tmp_path / "train.py").write_text(TRAINING)
    assert given["TRAINVITALS_PROMETHEUS_PORT"] == str(container["ports"][0]["containerPort"])
    given |= {"TRAINVITALS_PROMETHEUS_PORT": str(port), "TRAINVITALS_PROMETHEUS_TOKEN": f"file:{tmp_path / 'token'}"}
    command = [re.sub(r"\$\((\w+)\)", lambda match: given[match[1]], word) for word in container["command"]]
    assert command[0] == "trainvitals" and command[-2:] == ["python", "train.py"]
    environ = {
        **{name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")},
        **given,
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1",
    }
    program = [sys.executable, "-m", "trainvitals"]
    process = subprocess.Popen(
        [*program, *command[1:-2], sys.executable, "train.py"],
        env=environ,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        page = wait_until(lambda: fetch_with_loss(url), "the loss")
        assert fetch(url, {"Authorization": "Bearer wrong"})[0] == 401
    finally:
        process.terminate()
        process.wait(PATIENCE)
        subprocess.run([*program, "agent", "stop"], env=environ, check=False, capture_output=True)
    loss = next(line for line in page.splitlines() if line.startswith("training_loss{"))
    assert 'project="vision"' in loss and "training-example" in loss and loss.endswith(" 0.5")
    info = next(line for line in page.splitlines() if line.startswith("trainvitals_run_info{"))
    assert 'name="training-example"' in info and 'pod="training-example"' in info
    assert 'namespace="vision"' in info and 'node="node-7"' in info
    (about,) = (tmp_path / "runs").glob("vision/*/run.json")
    recorded = json.loads(about.read_text())["job"]
    assert recorded | {"pod": "training-example", "namespace": "vision", "node": "node-7"} == recorded

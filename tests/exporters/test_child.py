"""Children that run somebody else's client: they may hang, die or answer nonsense, and end with who started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import runtime
from trainvitals.exporters.child import Child, ChildFailed, child_environment

MODULE = """
import os, sys, time
from trainvitals.exporters.child import answer

def handle(question):
    if question["do"] == "die":
        os._exit(3)
    if question["do"] == "hang":
        time.sleep(3600)
    if question["do"] == "raise":
        raise RuntimeError("no such project")
    print("this is not an answer", flush=True)
    return {"got": question}

answer(handle)
"""


@pytest.fixture
def start(tmp_path: Path) -> Child:
    (tmp_path / "clientlike.py").write_text(MODULE)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return Child("clientlike", {**os.environ, "PYTHONPATH": path})


def test_questions_of_any_size_are_answered_and_what_it_prints_is_no_answer(start: Child) -> None:
    for size in (0, 10, 1 << 20):
        text = "ü" * size
        assert start.ask({"do": "echo", "text": text, "value": float("inf")}, PATIENCE) == {
            "got": {"do": "echo", "text": text, "value": float("inf")}
        }
    start.end(PATIENCE)


def test_what_it_raises_is_the_reason_and_it_goes_on(start: Child) -> None:
    with pytest.raises(ChildFailed, match="RuntimeError: no such project"):
        start.ask({"do": "raise"}, PATIENCE)
    assert start.ask({"do": "echo"}, PATIENCE)
    start.end(PATIENCE)


def test_one_that_dies_or_hangs_is_reported(start: Child) -> None:
    with pytest.raises(ChildFailed, match="did not answer within"):
        start.ask({"do": "hang"}, 0.2)
    os.kill(start.pid, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="its process ended with SIGKILL"):
        start.ask({"do": "echo"}, PATIENCE)
    start.kill()
    assert runtime.process_start(start.pid) is None


def test_one_that_exits_is_reported_with_its_code(start: Child) -> None:
    with pytest.raises(ChildFailed, match="its process ended with 3"):
        start.ask({"do": "die"}, PATIENCE)
    start.kill()


@pytest.mark.promise("the agent is killed while a tracker's client runs", "the client ends, too")
def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    (tmp_path / "clientlike.py").write_text(MODULE)
    script = """
import os, sys, time
from trainvitals.exporters.child import Child
child = Child("clientlike", dict(os.environ))
child.ask({"do": "echo"}, 600)
print(child.pid, flush=True)
time.sleep(3600)
"""
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: runtime.process_start(pid) is None, "the end of the child")


def test_of_the_trainings_environment_only_what_the_client_looks_at_counts() -> None:
    autostart = str(Path(runtime.__file__).parent / "trainer/autostart/site")
    theirs = {"WANDB_API_KEY": "k", "HTTPS_PROXY": "p", "CUDA_VISIBLE_DEVICES": "3", "PYTHONPATH": "/theirs"}
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([autostart, "/ours"])
    try:
        found = child_environment(theirs, "WANDB_")
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    assert (found["WANDB_API_KEY"], found["HTTPS_PROXY"], found["PYTHONPATH"]) == ("k", "p", "/ours")
    assert found.get("CUDA_VISIBLE_DEVICES") == os.environ.get("CUDA_VISIBLE_DEVICES")

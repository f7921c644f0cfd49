"""Children that die while their parent waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from waiting import PATIENCE

from trainvitals.agent.children import ChildDeath, Children
from trainvitals.agent.exit_causes import ExitStatus
from trainvitals.agent.pidfds import wait_for_end

PARENT = """
import subprocess, sys, time
children = [subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) for _ in range(2)]
print(*(child.pid for child in children), flush=True)
sys.stdin.readline()
for child, number in zip(children, (9, 0)):
    child.send_signal(number)
time.sleep(600)
"""


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_child_that_is_killed_is_named_with_its_signal_and_when(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None and parent.stdout is not None
    first, _ = map(int, parent.stdout.readline().split())
    children = Children(parent.pid)
    began = time.monotonic()
    children.look(began, frozenset())
    assert len(children.pidfds) == 2
    parent.stdin.write("go\n")
    parent.stdin.flush()
    ended = wait_for_end(children.pidfds, PATIENCE)
    children.look(time.monotonic(), ended)
    assert len(children.pidfds) == 1
    (death,) = children.deaths_since(began)
    assert (death.pid, death.status) == (first, ExitStatus(None, "SIGKILL"))
    assert children.deaths_since(death.when + 6) == []
    children.close()
    assert children.pidfds == []


def test_a_death_is_described_by_how_and_when() -> None:
    killed = ChildDeath(7, "python", ExitStatus(None, "SIGKILL"), 103.0)
    assert killed.describe(100.0) == "child process 7 (python) died (SIGKILL) 3 s after the last step"
    failed = ChildDeath(7, "python", ExitStatus(1, None), 98.0)
    assert failed.describe(100.0) == "child process 7 (python) exited with code 1 2 s before the last step"

"""A machine whose clock is a day off: its agent judges its runs, and others read them by a clock that is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from honest_gateway import HonestGateway
from run_copies import find_differences
from waiting import wait_until

from trainvitals.agent.shipping import list_unshipped
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.shapes import RowJson

SHIFTED = Path(__file__).parents[1] / "shifted_clock"
DAY = 86_400
STEPS = """
    for step in range(100_000):
        run.log({"loss": 1.0 / (step + 1)}, step=step)
        time.sleep(0.05)
"""


def row(root: Path) -> RowJson:
    runs = FolderRuns(root)
    (found,) = list_json(runs, runs.list_keys())
    return found


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["ahead", "behind"])
@pytest.mark.promise(
    "the clock of a machine is a day ahead of, or behind, that of its file system, its gateway and its viewer",
    "no false stall; a death is told; nothing is lost on the way; lists say that a clock is ahead",
)
def test_a_clock_a_day_off(machine: Any, tmp_path: Path, shift: int) -> None:
    clock = {"PYTHONPATH": str(SHIFTED), "CLOCK_SHIFT": str(shift)}
    gateway = HonestGateway(tmp_path / "gateway")
    settings = {"gateway": gateway.address, "gateway_interval": 0.1, "rotate_size_mb": 0.02, "capture_git": False}
    training = machine.train(STEPS, env=clock, **settings)
    wait_until(lambda: len(training.rows("training")) > 10, "lines from before the agent came")
    machine.start_agent(**clock)
    copy = gateway.copy("p", training.folder.name)
    wait_until(lambda: training.status.get("ranks", {}).get("0", {}).get("step", 0) > 50, "an agent that follows")
    wait_until(lambda: (copy.folder / "status.json").exists(), "a gateway that has some of it")
    assert training.events("stalled") == []
    for root in (machine.root, copy.folder.parents[1]):
        found = row(root)
        assert found["status"] == "running"
        assert ("ahead of this machine's" in found["problems"]) == (shift > 0)
        if shift > 0:
            assert found["seconds"] is not None and 0 < found["seconds"] < DAY / 2
    training.process.kill()
    training.process.wait()
    training.wait_for_end()
    wait_until(lambda: not list_unshipped(), "all of the run")
    assert find_differences(training.folder, copy) == []
    ended, steps = row(machine.root), [line["step"] for line in training.rows("training")]
    assert ended["status"] == "killed" and "ahead" not in ended["problems"]
    assert ended["seconds"] is not None and 0 < ended["seconds"] < DAY / 2
    assert steps == list(range(len(steps)))
    gateway.close()

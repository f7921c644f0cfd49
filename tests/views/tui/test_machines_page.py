"""The page of the terminal with a line for each machine, and a run of a machine that stops answering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from far_runs import log, make_run
from waiting import PATIENCE

from trainvitals.errors import MachineError
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.lab.channels import DirectChannel
from trainvitals.lab.far import FarSide
from trainvitals.lab.machines import Machine
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns
from trainvitals.views.tui import screen
from trainvitals.views.tui.actions import moving
from trainvitals.views.tui.actions.lists import show_run, show_runs_of_machine
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.save import as_json
from trainvitals.views.tui.snapshot import Request, Snapshot
from trainvitals.views.tui.view import View

SAMPLES = {
    f"nvidia:{index}": {
        "table": "gpu",
        "labels": {"gpu_index": index, "gpu_name": "H100"},
        "values": {
            "utilization_percent": 80,
            "memory_used_mb": 1024,
            "memory_total_mb": 81920,
            "power_draw_watts": 300,
        },
    }
    for index in range(2)
}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has not answered for some seconds is called slow: here it would only be this one that is busy."""
    monkeypatch.setattr("trainvitals.lab.machines.SLOW_SECONDS", PATIENCE)


class Desk:
    """What keys act on."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.view = View(with_machines=True, page=feed.options.first_page)
        self.snapshot = Snapshot(time=0.0)

    def look(self) -> str:
        self.feed.want(Request(page=self.view.page))
        self.feed._runs.expire()
        self.snapshot = self.feed.read()
        drawn = screen.draw(self.snapshot, self.view, 200, 30)
        return "\n".join("".join(segment.text for segment in line) for line in drawn.lines)


def make_desk(root: Path) -> tuple[Desk, Machine]:
    side = FarSide(FolderRuns(root), lambda: {"origin": "agent", "age": 1.0, "samples": SAMPLES})
    up = Machine(parse_place("gpu1"), lambda: DirectChannel(side), interval=0.05)
    down = Machine(parse_place("gpu2"), lambda: DirectChannel(side))
    down._fail(MachineError("no route to \x1bhost", hint="switch it on"))
    runs = MachineRuns([up, down])
    up.start()
    assert up.wait(600)
    return Desk(Feed(TopOptions(runs=runs, machines=runs, sources=()))), up


def test_a_line_for_each_machine(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    desk, up = make_desk(tmp_path)
    drawn = desk.look()
    assert "2 machines, 1 not up" in drawn and "9 Machines" in drawn
    (first,) = [line for line in drawn.splitlines() if "gpu1" in line]
    assert (
        first.split()[:7] == ["gpu1", "up", "2", "80%", "2.0G", "/", "160G"]
        and "600W" in first
        and "1 live, 1" in first
    )
    (second,) = [line for line in drawn.splitlines() if "gpu2" in line]
    assert second.split()[:3] == ["gpu2", "down", "-"] and "no route to ·host; switch it on" in second
    desk.view.details = True
    assert "H100" in desk.look()
    machines: Any = as_json(desk.snapshot)["machines"]
    assert [(machine["name"], machine["state"]) for machine in machines] == [("gpu1", "up"), ("gpu2", "down")]
    up.stop()
    desk.feed.stop()


def test_without_other_machines_there_is_no_such_page() -> None:
    desk = Desk(Feed(TopOptions(sources=())))
    desk.view.with_machines = False
    moving.show_machines(desk)  # type: ignore[arg-type]
    assert desk.view.page == "overview" and "Machines" not in desk.look()
    moving.previous_page(desk)  # type: ignore[arg-type]
    assert desk.view.page == "runs"
    desk.feed.stop()


def test_from_a_machine_to_its_runs_to_one_of_them_that_stops_answering(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "one")
    desk, up = make_desk(tmp_path)
    desk.look()
    show_runs_of_machine(desk)  # type: ignore[arg-type]
    assert (desk.view.page, desk.view.filter) == ("runs", "gpu1:")
    assert "gpu1" in desk.look()
    desk.view.selected["runs"] = 1
    show_run(desk)  # type: ignore[arg-type]
    desk.look()
    assert desk.snapshot.run is not None and desk.snapshot.run.step == 2
    log(folder, 3)
    desk.look()
    assert desk.snapshot.run is not None and desk.snapshot.run.step == 3
    up.stop()
    up._fail(MachineError("switched off"))
    drawn = desk.look()
    assert desk.snapshot.run is not None and desk.snapshot.run.step == 3, "what is known stays"
    assert "gpu1 is down: switched off" in desk.snapshot.notes and "one" in drawn
    desk.feed.stop()

"""What the fleet pages say, of a fleet that does not exist."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_fleet import GPUS, make_fleet, node_name
from made_runs import make_run, write

from trainvitals.analysis.gpu_days import DAY, date_of
from trainvitals.analysis.gpu_use import GpuUses
from trainvitals.conditions import Conditions
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.lab.channels import DirectChannel
from trainvitals.lab.far import FarSide
from trainvitals.lab.machines import Machine, MachineHardware
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns
from trainvitals.prices import Prices
from trainvitals.sources import World, create
from trainvitals.views.data import fleet_runs
from trainvitals.views.data.fleet import SILENT_SECONDS, describe_fleet
from trainvitals.views.data.fleet_faults import describe_faults, list_rules
from trainvitals.views.data.fleet_runs import FleetBook, FleetRun
from trainvitals.views.data.fleet_use import describe_use
from trainvitals.views.data.machines import read_machines
from trainvitals.views.data.shapes import FleetGpuJson, FleetNodeJson

NODES = 20
NOW = time.time() // DAY * DAY + DAY / 2
"""Noon: the minutes before are of the same day."""
BUSY = {"utilization_percent": 90.0, "memory_percent": 50.0, "temperature_celsius": 60.0, "power_draw_watts": 300.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fleet")
    make_fleet(place, NODES, NOW)
    return place


def read(root: Path) -> list[FleetRun]:
    runs = FolderRuns(root)
    return FleetBook().read(runs, runs.list_keys())


def put(
    root: Path,
    name: str,
    *gpus: dict[str, Any],
    held: tuple[int, ...] = (),
    host: str = "h1",
    ago: float = 1.0,
    **run: Any,
) -> Path:
    """A run whose agent read each of these GPUs every 30 s for 10 minutes until `ago`."""
    uses = GpuUses()
    for index, values in enumerate(gpus):
        labels = {"gpu_index": index, "gpu_uuid": f"GPU-{host}-{index}", "gpu_name": "L4"}
        for second in range(0, 601, 30):
            uses.add(labels, values, NOW - ago - 600 + second)
    folder = make_run(
        root / "p" / name, **{"status": "running", "started": format_time(NOW - 700), "user": "someone", **run}
    )
    status = {
        "host": host, "attempt": 1, "updated": format_time(NOW - ago), "gpu_summary": uses.as_json(), "rack": "r1",
        "held_gpus": [f"GPU-{host}-{index}" for index in held],
        "ranks": {who: {"pid": 77, "alive": True} for who in ("0", "command0")},
    }  # fmt: skip
    run_folder.write_status(folder, Status.parse(status))
    return folder


def rename(folder: Path, host: str) -> None:
    """As if its machine called itself so."""
    (status,) = run_folder.read_statuses(folder)
    run_folder.write_status(folder, Status.parse({**status.as_json(), "host": host}))


def only(root: Path, **more: Any) -> FleetNodeJson:
    (node,) = describe_fleet(read(root), now=NOW, **more)["nodes"]
    return node


def test_every_gpu_of_every_node_is_there_by_rack(root: Path) -> None:
    fleet = describe_fleet(read(root), now=NOW)
    assert [node["name"] for node in fleet["nodes"]] == [node_name(number) for number in range(NODES)]
    assert {node["rack"] for node in fleet["nodes"]} == {"rack 01", "rack 02"}
    assert all(len(node["gpus"]) == GPUS and node["simulated"] for node in fleet["nodes"]) and fleet["simulated"]
    capacity = fleet["capacity"]
    assert (
        capacity["gpus"]
        == NODES * GPUS
        == sum(capacity[name] for name in ("busy", "idle", "other", "free", "down", "unknown"))
    )  # type: ignore[literal-required]
    silent = sum(node["state"] == "silent" for node in fleet["nodes"])
    assert capacity["down"] == 1 + GPUS * silent and capacity["nodes_down"] == silent and capacity["free"] >= GPUS
    broken = fleet["nodes"][NODES // 3]["gpus"][3]
    assert (broken["problem"], broken["state"], broken["values"]) == ("lost", "down", [None] * 4)
    held = {(node["name"], gpu["index"]) for node in fleet["nodes"] for gpu in node["gpus"] if gpu["holders"]}
    assert held == {(holder["node"], index) for holder in fleet["holders"] for index in holder["gpus"]}
    assert {alert["rule"] for alert in fleet["alerts"]} >= {"gpu_xid", "gpu_throttled_heat"}
    assert fleet["alerts"][0]["severity"] == "critical" and fleet["alerts_total"] == len(fleet["alerts"])


def test_who_holds_a_gpu_and_whether_it_is_used(tmp_path: Path) -> None:
    idle = {**BUSY, "utilization_percent": 0.0}
    put(tmp_path, "a", BUSY, idle, BUSY, idle, {"memory_percent": 3.0}, held=(0, 1, 4), job={"slurm": "4711"})
    node = only(tmp_path)
    assert [gpu["state"] for gpu in node["gpus"]] == ["busy", "idle", "other", "free", "unknown"]
    assert node["gpus"][0]["values"] == [90.0, 50.0, 60.0, 300.0]
    assert node["gpus"][4]["values"] == [None, 3.0, None, None], "what is not measured is missing"
    (holder,) = describe_fleet(read(tmp_path), now=NOW)["holders"]
    assert holder["gpus"] == ["0", "1", "4"] and holder["pids"] == [77]
    assert (holder["user"], holder["name"], holder["job"]) == ("someone", "a", "Slurm job 4711")
    assert (node["rack"], node["state"], node["model"]) == ("r1", "up", "L4")


def test_a_node_whose_clock_is_a_day_ahead_says_so(tmp_path: Path) -> None:
    put(tmp_path, "one", BUSY, ago=-DAY)
    node = only(tmp_path)
    assert (node["state"], node["detail"]) == ("up", "its clock is 24 h 00 min ahead of this machine's")
    assert node["seen"] == NOW


def test_a_node_whose_agent_is_silent_is_down_and_one_without_runs_is_free(tmp_path: Path) -> None:
    put(tmp_path, "a", BUSY, held=(0,), ago=SILENT_SECONDS + 5)
    node = only(tmp_path)
    assert (node["state"], node["gpus"][0]["state"], node["gpus"][0]["values"][0]) == ("silent", "down", None)
    put(tmp_path, "a", BUSY, held=(0,), ago=DAY, status="finished", ended=format_time(NOW - DAY))
    node = only(tmp_path)
    assert (node["state"], node["gpus"][0]["state"], node["gpus"][0]["holders"]) == ("quiet", "free", [])
    put(tmp_path, "a", BUSY, held=(0,), ago=8 * DAY, status="finished", ended=format_time(NOW - 8 * DAY))
    fleet = describe_fleet(read(tmp_path), now=NOW)
    assert fleet["nodes"] == [] and fleet["capacity"]["gpus"] == 0, "it may be gone for good"
    idle = {"name": "h1", "rack": "r1", "model": "L4", "gpus": 1, "seen": NOW - 8 * DAY, "simulated": False}
    assert fleet["idle"] == [idle]
    put(tmp_path, "b", BUSY, host="h1")
    fleet = describe_fleet(read(tmp_path), now=NOW)
    assert fleet["idle"] == [] and [node["state"] for node in fleet["nodes"]] == ["up"]


def test_over_days_it_is_what_the_agents_counted(tmp_path: Path) -> None:
    put(tmp_path, "a", BUSY, held=(0,))
    put(tmp_path, "b", {**BUSY, "utilization_percent": 10.0, "temperature_celsius": 80.0}, host="h1")
    for window in ("day", "week", "month"):
        (gpu,) = only(tmp_path, window=window)["gpus"]
        assert gpu["values"][0] == pytest.approx(50.0, abs=3) and gpu["values"][2:] == [80.0, pytest.approx(300.0, 0.1)]


def test_machines_of_other_hosts_are_nodes_too(tmp_path: Path) -> None:
    put(tmp_path, "a", BUSY, held=(0,), host="far-name")

    def make(name: str, word: Any, host: str, **hardware: Any) -> Machine:
        machine = Machine(parse_place(name), lambda: pytest.fail("asked"))
        machine._hardware, machine._word, machine._heard = MachineHardware.parse(hardware), word, NOW
        machine._about = {"host": host}
        return machine

    sample = {"table": "gpu", "labels": {"gpu_index": 0}, "values": {"utilization_percent": 33.0}}
    near = make("gpu1", "up", "far-name", origin="agent", age=1.0, samples={"nvidia:0": sample})
    machines = read_machines(MachineRuns([near, make("gpu2", "down", "")]))
    first, second = describe_fleet(read(tmp_path), machines, now=NOW)["nodes"]
    if first["name"] != "gpu1":
        first, second = second, first
    assert first["gpus"][0]["values"][0] == 33.0 and first["gpus"][0]["holders"] == [0], (
        "by its name here, as it is now"
    )
    assert (second["name"], second["state"], second["gpus"]) == ("gpu2", "down", [])


def test_gpus_of_one_host_name_are_told_apart_by_their_uuid(tmp_path: Path) -> None:
    both = "several machines or containers report under this name"
    put(tmp_path, "a", BUSY, {**BUSY, "utilization_percent": 0.0}, held=(0,))
    assert (len(only(tmp_path)["gpus"]), only(tmp_path)["detail"]) == (2, "")
    rename(put(tmp_path, "b", {**BUSY, "utilization_percent": 70.0}, host="h2"), "h1")
    node = only(tmp_path)
    assert sorted((gpu["index"], gpu["values"][0], gpu["state"]) for gpu in node["gpus"]) == [
        ("0", 70.0, "other"),
        ("0", 90.0, "busy"),
        ("1", 0.0, "free"),
    ]
    assert (node["state"], node["detail"]) == ("up", both)
    assert describe_fleet(read(tmp_path), now=NOW)["capacity"]["gpus"] == 3


def test_the_same_gpu_under_another_index_is_one(tmp_path: Path) -> None:
    put(tmp_path, "a", BUSY, BUSY, held=(1,))
    labels = {"gpu_index": 0, "gpu_uuid": "GPU-h1-1", "gpu_name": "L4"}  # in a container that has only this one
    uses = GpuUses()
    uses.add(labels, BUSY, NOW - 1)
    folder = make_run(tmp_path / "p" / "b", status="running", started=format_time(NOW - 700))
    status = {"host": "h1", "attempt": 1, "updated": format_time(NOW - 2), "gpu_summary": uses.as_json()}
    run_folder.write_status(folder, Status.parse(status))
    node = only(tmp_path)
    assert ([gpu["index"] for gpu in node["gpus"]], node["detail"]) == (["0", "1"], "")


def test_a_gpu_that_was_exchanged_is_no_longer_there(tmp_path: Path) -> None:
    before = put(tmp_path, "a", BUSY, BUSY, ago=DAY, host="old", status="finished", ended=format_time(NOW - DAY))
    rename(before, "h1")
    put(tmp_path, "b", BUSY, held=(0,))
    for window in ("now", "week"):
        node = only(tmp_path, window=window)
        assert [(gpu["index"], gpu["state"]) for gpu in node["gpus"]] == [("0", "busy"), ("1", "unknown")]
        assert node["detail"] == ""


def test_gpus_of_a_simulation_are_marked_wherever_they_are(tmp_path: Path) -> None:
    uses = GpuUses()
    for unit in create("simulated", World(simulated_gpus=2)).discover():
        (sample,) = unit.read()
        uses.add(sample.labels, sample.values, NOW - 1)
    folder = make_run(tmp_path / "p" / "a", status="running", started=format_time(NOW - 700))
    status = {"host": "h1", "attempt": 1, "updated": format_time(NOW - 1), "gpu_summary": uses.as_json()}
    run_folder.write_status(folder, Status.parse(status))
    fleet = describe_fleet(read(tmp_path), now=NOW)
    assert fleet["simulated"] and fleet["nodes"][0]["simulated"]
    assert fleet["holders"][0]["gpus"] == ["0", "1"], "those that do not exist are nobody else's"


def test_machines_that_call_themselves_alike_are_nodes_of_their_own(tmp_path: Path) -> None:
    sides = {}
    for name in ("gpu1", "gpu2"):
        put(tmp_path / name, f"run-{name}", BUSY, held=(0,), host=name)
        rename(tmp_path / name / "p" / f"run-{name}", "localhost")
        sides[name] = FarSide(FolderRuns(tmp_path / name), lambda: {"origin": "agent", "age": 1.0, "samples": {}})
    machines = MachineRuns(
        [Machine(parse_place(name), lambda side=side: DirectChannel(side)) for name, side in sides.items()]  # type: ignore[misc]
    )
    machines.start()
    try:
        assert all(machine.wait(600) for machine in machines.machines)
        for machine in machines.machines:
            machine._about = {**machine._about, "host": "localhost"}
        now = read_machines(machines)
        runs = FleetBook().read(machines, machines.list_keys())
    finally:
        machines.stop()
    fleet = describe_fleet(runs, now, now=NOW)
    assert [(holder["node"], holder["name"]) for holder in fleet["holders"]] == [
        ("gpu1", "run-gpu1"),
        ("gpu2", "run-gpu2"),
    ]
    assert [(node["name"], len(node["gpus"]), node["detail"]) for node in fleet["nodes"]] == [
        ("gpu1", 1, ""),
        ("gpu2", 1, ""),
    ]
    rows = describe_use(runs, now, by="node", until=NOW)["rows"]
    assert sorted(row["title"] for row in rows) == ["gpu1", "gpu2"]


def test_use_and_waste_are_added_up_by_whoever_held_the_gpus(tmp_path: Path) -> None:
    idle = {**BUSY, "utilization_percent": 0.0, "power_draw_watts": 100.0}
    put(tmp_path, "a", BUSY, idle, BUSY, held=(0, 1))
    put(tmp_path, "b", BUSY, held=(0,), host="h2", user="other")
    runs = read(tmp_path)
    first, second = describe_use(
        runs, period="week", by="user", until=NOW, prices=Prices(gpu_hour=6.0, currency="EUR")
    )["rows"]
    assert (first["title"], first["gpus"], first["runs"]) == ("someone", 2, 1)
    assert first["gpu_seconds"] == pytest.approx(1200, abs=1) and first["idle_seconds"] == pytest.approx(600, abs=1)
    assert first["use_percent"] == pytest.approx(45.0) and first["joules"] == pytest.approx(600 * 400, rel=0.01)
    assert first["idle_joules"] == pytest.approx(600 * 100, rel=0.01)
    assert (first["cost"], first["idle_cost"], first["currency"]) == (
        pytest.approx(2.0, 0.01),
        pytest.approx(1.0, 0.01),
        "EUR",
    )
    assert second["title"] == "other"
    for by, titles in (("project", ["p"]), ("run", ["a", "b"]), ("node", ["h1", "h2"])):
        found = describe_use(runs, period="day" if by == "run" else "month", by=by, until=NOW)  # type: ignore[arg-type]
        assert [row["title"] for row in found["rows"]] == titles
        assert found["total"]["gpus"] == 3 and found["total"]["cost"] is None and found["total"]["co2_kg"] is None
    before = describe_use(runs, period="day", until=NOW - 3 * DAY)
    assert before["rows"] == [] and before["last"] == date_of(NOW - 3 * DAY)


def test_a_run_without_figures_by_day_is_said_and_not_guessed(tmp_path: Path) -> None:
    folder = put(tmp_path, "a", BUSY, held=(0,))
    (status,) = run_folder.read_statuses(folder)
    older = {
        key: {name: value for name, value in item.items() if name != "days"} for key, item in status.gpu_summary.items()
    }
    run_folder.write_status(folder, Status.parse({**status.as_json(), "gpu_summary": older}))
    found = describe_use(read(tmp_path), until=NOW)
    assert found["rows"] == [] and found["unmeasured"] == 1 and found["total"]["joules"] is None


def test_nodes_that_fail_or_slow_others_down_are_ranked(root: Path) -> None:
    runs, conditions = FolderRuns(root), Conditions()
    tallies = runs.tally_alerts(list_rules(conditions), NOW - 28 * DAY, NOW)
    found = describe_faults(read(root), tallies, conditions, days=28, now=NOW)
    worst, hot, slow = found["nodes"]
    assert worst["name"] == node_name(NODES // 3) and worst["deaths"] == 1 and worst["points"] == 15
    assert worst["died"][0]["cause"] == "Slurm job 70001 lost a node"
    (xid,) = worst["faults"]
    assert (xid["rule"], xid["days"], xid["times"], xid["gpus"]) == ("gpu_xid", 2, 2, ["3"])
    assert hot["faults"][0]["gpus"] == ["1", "4", "6"] and (hot["faults"][0]["days"], hot["faults"][0]["times"]) == (
        4,
        12,
    )
    assert slow["name"] == node_name(NODES // 2 + 3), "the node of the rank, not of who noticed"
    assert found["without"] == NODES - 3
    recent = runs.tally_alerts(list_rules(conditions), NOW - 2.2 * DAY, NOW)
    assert {tally.newest.rule for tally in recent} == {"gpu_throttled_heat", "straggler"}


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "exception", "detail": "ValueError"},
        {"kind": "cancelled", "detail": "job"},
        {"kind": "signal", "signal": "SIGINT"},
    ],
)
def test_what_a_program_or_a_person_did_is_no_fault_of_a_node(tmp_path: Path, reason: dict[str, str]) -> None:
    ended = format_time(NOW - 60)
    attempt = {"number": 1, "status": "failed", "ended": ended, "host": "h1", "reason": reason}
    put(tmp_path, "a", BUSY, status="failed", ended=ended, attempts=[attempt])
    assert describe_faults(read(tmp_path), [], Conditions(), now=NOW)["nodes"] == []


def test_an_ended_run_is_not_read_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_runs, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(fleet_runs, "REST", 0)
    put(tmp_path, "live", BUSY)
    put(tmp_path, "ended", BUSY, status="finished", ended=format_time(NOW), host="h2")
    runs, book, asked = FolderRuns(tmp_path), FleetBook(), list[str]()
    statuses: Callable[[str], list[Status]] = runs.statuses
    monkeypatch.setattr(runs, "statuses", lambda key: (asked.append(key), statuses(key))[1])
    for _ in range(3):
        assert {run.key for run in book.read(runs, runs.list_keys())} == {"live", "ended"}
    assert sorted(asked) == ["ended", "live", "live", "live"]


def test_odd_documents_do_no_harm(tmp_path: Path) -> None:
    folder = put(tmp_path, "a", BUSY, held=(0,))
    odd = {
        "GPU-1": {"gpu_index": "<b>\x1b", "days": {"x": 3}, "utilization_percent_last": "NaN", "state": 7},
        "GPU-2": {},
    }
    status = {
        "host": "h\x1b[31m",
        "updated": "?",
        "gpu_summary": odd,
        "alerts": [{"rule": "r", "severity": "odd", "since": 4}],
    }
    run_folder.write_status(folder, Status.parse(status))
    write(
        folder, [{"state": "firing", "rule": "gpu_xid", "labels": {"gpu_index": 0}}], "alerts_20260101_000000", NOW - 5
    )
    node = only(tmp_path)
    assert "\x1b" not in str(node) and [gpu["values"] for gpu in node["gpus"]] == [[None] * 4] * 2
    gpus: list[FleetGpuJson] = only(tmp_path, window="week")["gpus"]
    assert all(value is None for gpu in gpus for value in gpu["values"])
    assert describe_use(read(tmp_path), until=NOW)["rows"] == []
    tallies = FolderRuns(tmp_path).tally_alerts(["gpu_xid"], NOW - DAY, NOW)
    assert len(tallies) == 1
    assert describe_faults(read(tmp_path), tallies, Conditions(), now=NOW)["nodes"] == [], "nobody said where"

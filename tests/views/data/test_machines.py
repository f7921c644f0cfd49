"""Machines on one line each: what is known, never a number where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from far_runs import START

from trainvitals.journal.encoding import format_time
from trainvitals.lab.machines import Machine, MachineHardware
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns
from trainvitals.sources import World, create
from trainvitals.views.data.machines import describe_machines, read_machines


def gpu(index: int, **values: Any) -> Mapping[str, Any]:
    return {"table": "gpu", "labels": {"gpu_index": index, "gpu_name": "H100"}, "values": values}


def make_machine(name: str, *, heard: float | None = 1.0, **hardware: Any) -> Machine:
    def never() -> Any:
        raise AssertionError

    machine = Machine(parse_place(name), never)
    machine._hardware = MachineHardware.parse(hardware)
    machine._word, machine._heard = ("up" if heard is not None else "connecting"), heard
    return machine


def run(name: str, status: str, *alerts: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"key": name, "info": {"id": name, "status": status, "file": {"id": name}}, "alerts": list(alerts)}


def test_the_numbers_of_a_machine_are_those_of_its_gpus_together() -> None:
    machine = make_machine(
        "gpu1",
        origin="agent",
        age=1.0,
        samples={
            "nvidia:1": gpu(1, utilization_percent=20, memory_used_mb=100, memory_total_mb=1000, power_draw_watts=70.5),
            "nvidia:0": gpu(0, utilization_percent=90, memory_used_mb=300, memory_total_mb=1000, power_draw_watts=300),
            "nvidia:0#1": {
                "table": "gpu",
                "labels": {"gpu_index": 0, "mig_index": 1},
                "values": {"memory_used_mb": 300, "memory_total_mb": 500},
            },
            "system": {"table": "system", "values": {"cpu_usage_percent": 12.5, "other": 3}},
        },
    )
    (now,) = read_machines(MachineRuns([machine]))
    assert [one.index for one in now.gpus] == ["0", "0:1", "1"]
    assert (now.utilization, now.memory_used_mb, now.memory_total_mb, now.power) == (55.0, 400.0, 2000.0, 370.5)
    assert now.host == {"cpu_usage_percent": 12.5} and now.is_current and now.troubled == 0


def test_what_is_not_known_is_missing_and_never_zero() -> None:
    silent = make_machine("gpu1", heard=None)
    (described,) = describe_machines(MachineRuns([silent]))["machines"]
    assert described["state"] == "connecting" and described["heard"] is None
    for name in ("utilization_percent", "memory_used_mb", "power_draw_watts", "runs", "live", "firing"):
        assert described[name] is None, name  # type: ignore[literal-required]
    assert described["gpus"] == [] and described["values"] == {} and not described["current"]
    assert describe_machines(None)["machines"] == []


def test_a_gpu_that_does_not_answer_says_why() -> None:
    samples = {"nvidia:0": gpu(0, state="lost"), "nvidia:1": gpu(1, utilization_percent=5), "nvidia:2": gpu(2)}
    machine = make_machine("gpu1", samples=samples, reasons={"nvidia:2": "no response\x1b for 12 s"}, origin="agent")
    (now,) = read_machines(MachineRuns([machine]))
    assert [one.problem for one in now.gpus] == ["lost", "", "no response· for 12 s"] and now.troubled == 2


def test_a_gpu_that_does_not_exist_says_so() -> None:
    (sample,) = create("simulated", World(simulated_gpus=1)).discover()[0].read()
    samples = {"simulated:0": {"table": "gpu", "labels": {**sample.labels, "gpu_name": "H100"}, "values": {}}}
    machine = make_machine("gpu1", samples={**samples, "nvidia:1": gpu(1)}, origin="agent")
    (described,) = describe_machines(MachineRuns([machine]))["machines"]
    assert [(one["name"], one["simulated"]) for one in described["gpus"]] == [
        ("H100 (simulated)", True),
        ("H100", False),
    ]


def test_old_numbers_are_not_those_of_now() -> None:
    (now,) = read_machines(MachineRuns([make_machine("gpu1", age=60.0, origin="agent")]))
    assert not now.is_current


def test_active_runs_and_alerts_are_counted() -> None:
    machine = make_machine("gpu1")
    firing = {"timestamp": format_time(START), "rule": "loss_nan", "state": "firing", "severity": "critical"}
    rows = [run("one", "running", firing), run("two", "stalled"), run("three", "finished", firing)]
    machine._take_list({"order": ["one", "two", "three"], "changed": rows}, fresh=True)
    (now,) = read_machines(MachineRuns([machine]))
    assert (now.live, now.firing, now.state.runs) == (2, 1, 3)

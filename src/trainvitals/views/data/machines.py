"""Machines on one line each, as the terminal and the page show them: what is measured there now, what runs there, and
if one cannot be asked, why."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainvitals.alerts.records import current as current_alerts
from trainvitals.analysis.gpu_use import name_model
from trainvitals.journal.documents.fields import finite
from trainvitals.journal.documents.latest import LatestSample
from trainvitals.journal.identity import gpu_number
from trainvitals.lab.machines import Machine, MachineHardware, MachineState
from trainvitals.lab.runs import MachineRuns
from trainvitals.safe_text import one_line
from trainvitals.views.data.shapes import GpuNowJson, MachineNowJson, MachinesJson

GPU_VALUES = (
    *("utilization_percent", "memory_used_mb", "memory_total_mb", "memory_percent", "temperature_celsius"),
    *("power_draw_watts", "power_limit_watts"),
)
HOST_VALUES = ("cpu_usage_percent", "memory_used_mb", "memory_total_mb", "memory_usage_percent")
STALE_SECONDS = 15.0
"""Numbers that are older are not those of now."""
MOST_GPUS = 64
"""Of one machine that are shown."""


@dataclass(frozen=True, slots=True)
class GpuNow:
    """One GPU of a machine, as it was read last."""

    index: str
    uuid: str
    """Empty if it is not known."""
    name: str
    values: Mapping[str, float]
    problem: str
    """Why there is no new sample, or what state it is in; empty if it is well."""
    simulated: bool


@dataclass(frozen=True, slots=True)
class MachineNow:
    """One machine. What is not known is None."""

    state: MachineState
    gpus: tuple[GpuNow, ...]
    host: Mapping[str, float]
    """The values of the machine itself."""
    live: int
    """Runs that have not ended."""
    firing: int
    """Alerts of these, without those that are silenced."""

    @property
    def utilization(self) -> float | None:
        """Mean of its GPUs."""
        found = self._all("utilization_percent")
        return sum(found) / len(found) if found else None

    @property
    def power(self) -> float | None:
        return self._sum("power_draw_watts")

    @property
    def memory_used_mb(self) -> float | None:
        return self._sum("memory_used_mb")

    @property
    def memory_total_mb(self) -> float | None:
        return self._sum("memory_total_mb")

    @property
    def troubled(self) -> int:
        """GPUs with a problem."""
        return sum(bool(gpu.problem) for gpu in self.gpus)

    @property
    def is_current(self) -> bool:
        """Whether its numbers are those of now."""
        age = self.state.hardware.age
        return self.state.word == "up" and (age is None or age <= STALE_SECONDS)

    def _all(self, name: str) -> list[float]:
        # A slice of a GPU has a part of what the GPU has.
        return [gpu.values[name] for gpu in self.gpus if name in gpu.values and ":" not in gpu.index]

    def _sum(self, name: str) -> float | None:
        found = self._all(name)
        return sum(found) if found else None


def read_machines(runs: MachineRuns) -> list[MachineNow]:
    """All of them, in the order in which they were given. Waits for none."""
    return [_read(machine) for machine in runs.machines]


def _read(machine: Machine) -> MachineNow:
    state = machine.state
    now = time.time()
    live = [entry for entry in machine.entries.values() if entry.is_live]
    firing = [alert for entry in live for alert in current_alerts(entry.alerts()) if not alert.is_silenced(now)]
    hardware = state.hardware
    system = [sample for sample in hardware.samples.values() if sample.table == "system"]
    values = {name: value for sample in system for name, value in _numbers(sample, HOST_VALUES).items()}
    return MachineNow(state, _read_gpus(hardware), values, len(live), len(firing))


def _read_gpus(hardware: MachineHardware) -> tuple[GpuNow, ...]:
    found = []
    for unit, sample in hardware.samples.items():
        if sample.table != "gpu":
            continue
        word = sample.values.get("state")
        problem = word if isinstance(word, str) and word != "ok" else hardware.reasons.get(unit.partition("#")[0], "")
        found.append(
            GpuNow(
                index=one_line(gpu_number(sample.labels))[:20],
                uuid=str(sample.labels.get("gpu_uuid") or "")[:80],
                name=one_line(name_model(sample.labels) or sample.labels.get("vendor") or "")[:80],
                values=_numbers(sample, GPU_VALUES),
                problem=one_line(problem)[:200],
                simulated=bool(sample.labels.get("simulated")),
            )
        )
    return tuple(sorted(found, key=lambda gpu: _order(gpu.index))[:MOST_GPUS])


def _order(index: str) -> tuple[int, str]:
    first = index.partition(":")[0]
    return (int(first) if first.isascii() and first.isdigit() else 1 << 30, index)


def _numbers(sample: LatestSample, names: Sequence[str]) -> dict[str, float]:
    return {name: value for name in names if (value := finite(sample.values.get(name))) is not None}


def describe_machines(runs: MachineRuns | None) -> MachinesJson:
    """For the page; none where the runs are those of this machine."""
    machines = read_machines(runs) if runs is not None else []
    return {"machines": [describe_machine(machine) for machine in machines], "now": time.time()}


def describe_machine(machine: MachineNow) -> MachineNowJson:
    """One of them."""
    state = machine.state
    return {
        "name": state.name,
        "state": state.word,
        "detail": state.detail,
        "hint": state.hint,
        "version": state.version,
        "host": state.host,
        "place": state.place,
        "heard": state.heard,
        "origin": state.hardware.origin,
        "age": state.hardware.age,
        "current": machine.is_current,
        "gpus": [_describe_gpu(gpu) for gpu in machine.gpus],
        "values": dict(machine.host),
        "utilization_percent": machine.utilization,
        "memory_used_mb": machine.memory_used_mb,
        "memory_total_mb": machine.memory_total_mb,
        "power_draw_watts": machine.power,
        "runs": state.runs if state.heard is not None else None,
        "live": machine.live if state.heard is not None else None,
        "firing": machine.firing if state.heard is not None else None,
    }


def _describe_gpu(gpu: GpuNow) -> GpuNowJson:
    return {
        "index": gpu.index,
        "name": gpu.name,
        "values": dict(gpu.values),
        "problem": gpu.problem,
        "simulated": gpu.simulated,
    }

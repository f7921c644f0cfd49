"""Xid and ECC errors as the driver tells them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE, wait_until

from trainvitals.sources import Notice, Sample, World
from trainvitals.sources.nvidia.events import EventsUnit
from trainvitals.sources.nvidia.gpu import GpuUnit
from trainvitals.sources.nvidia.nvml import Driver
from trainvitals.sources.nvidia.source import NvidiaSource


class Machine:
    """The units of a machine, its GPUs read once so that they are listened to."""

    def __init__(self, source: NvidiaSource) -> None:
        units = source.discover()
        self.gpus = [unit for unit in units if isinstance(unit, GpuUnit)]
        (self.events,) = (unit for unit in units if isinstance(unit, EventsUnit))
        self.heard: list[Notice] = []
        for gpu in self.gpus:
            gpu.read()

    def hear(self, count: int) -> list[Notice]:
        """Everything heard so far, once it is `count` notices."""

        def listen() -> bool:
            self.heard += self.events.read()
            return len(self.heard) >= count

        wait_until(listen, lambda: f"{count} notices; there were {self.heard}")
        return self.heard

    def xids(self, gpu: int) -> tuple[object, object]:
        (sample,) = (found for found in self.gpus[gpu].read() if isinstance(found, Sample))
        return sample.values.get("xid_errors_total"), sample.values.get("xid_last")

    def xids_by_code(self, gpu: int) -> Mapping[str, float]:
        (sample,) = (found for found in self.gpus[gpu].read() if isinstance(found, Sample))
        return sample.counters["xid_errors_by_code_total"]

    def close(self) -> None:
        for unit in [*self.gpus, self.events]:
            unit.close()


@pytest.fixture
def start(fake_nvml: FakeNvml, tmp_path: Path) -> Iterator[Callable[[str], Machine]]:
    machines = []

    def start(script: str) -> Machine:
        fake_nvml.script(script)
        fake_nvml.load()
        machine = Machine(NvidiaSource(World(sysfs_root=str(tmp_path)), Driver(), patience=PATIENCE))
        machines.append(machine)
        return machine

    yield start
    for machine in machines:
        machine.close()


def test_the_same_xid_twice_counts_twice(start: Callable[[str], Machine]) -> None:
    machine = start("count = 2\ngpu.1.xid = 79@0,79@0,31@0")
    heard = machine.hear(3)
    assert [(notice.event, notice.data["xid"], notice.data["gpu_index"]) for notice in heard] == [
        ("xid", 79, 1),
        ("xid", 79, 1),
        ("xid", 31, 1),
    ]
    assert heard[0].severity == "critical"
    assert heard[0].message == "GPU 1: Xid 79: the GPU has fallen off the bus"
    assert heard[0].data["gpu_uuid"] == "GPU-fa4e0000-0000-4000-8000-000000000001"
    assert heard[2].severity == "warning"
    assert machine.xids(1) == (3, 31)
    assert machine.xids(0) == (0, None)
    assert machine.xids_by_code(1) == {"79": 2, "31": 1} and machine.xids_by_code(0) == {}


def test_an_xid_that_nobody_knows_is_still_told(start: Callable[[str], Machine]) -> None:
    (notice,) = start("count = 1\ngpu.0.xid = 4711@0").hear(1)
    assert notice.message == "GPU 0: Xid 4711: see NVIDIA's Xid catalog"


def test_a_double_bit_ecc_error_is_told_and_is_no_xid(start: Callable[[str], Machine]) -> None:
    machine = start("count = 1\ngpu.0.xid = ecc@0")
    (notice,) = machine.hear(1)
    assert (notice.event, notice.severity) == ("ecc_error", "critical")
    assert machine.xids(0) == (0, None)


def test_the_xid_of_a_hanging_gpu_is_heard_while_it_hangs(start: Callable[[str], Machine], fake_nvml: FakeNvml) -> None:
    machine = start("count = 2")
    fake_nvml.script("count = 2\ndelay_us.nvmlDeviceGetPowerUsage.1 = 600000000\ngpu.1.xid = 119@0")
    hanging = threading.Thread(target=machine.gpus[1].read)
    hanging.start()
    heard = machine.hear(1)
    assert hanging.is_alive()
    assert [notice.data["xid"] for notice in heard] == [119]
    fake_nvml.script("count = 2")
    hanging.join()


def test_events_go_on_after_the_driver_was_reloaded(start: Callable[[str], Machine], fake_nvml: FakeNvml) -> None:
    machine = start("count = 1\ngpu.0.xid = 31@0")
    machine.hear(1)
    fake_nvml.script("count = 1\nepoch = 2\ngpu.0.xid = 31@0")
    machine.gpus[0].read()
    fake_nvml.script("count = 1\nepoch = 2\ngpu.0.xid = 31@0,48@0")
    assert [notice.data["xid"] for notice in machine.hear(2)] == [31, 48]
    assert machine.xids(0) == (2, 48)


def test_a_driver_that_tells_no_events_is_said_once_and_counts_nothing(start: Callable[[str], Machine]) -> None:
    machine = start("count = 2\nerr.nvmlDeviceRegisterEvents = 3")
    (notice,) = machine.hear(1)
    assert (notice.event, notice.data["gpu_index"]) == ("xid_unavailable", [0, 1])
    assert machine.xids(0) == (None, None)
    assert machine.events.read() == []

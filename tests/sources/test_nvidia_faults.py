"""The NVIDIA source when things go wrong: a fault is said once, harms nobody else, and heals by itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE, wait_until

from trainvitals.sources import Notice, Sample, SourceUnavailable, UnitGone, World
from trainvitals.sources.nvidia.gpu import GpuUnit, MissingGpu
from trainvitals.sources.nvidia.nvml import Driver
from trainvitals.sources.nvidia.source import NvidiaSource


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return tmp_path / "sys"


@pytest.fixture
def source(fake_nvml: FakeNvml, sysfs: Path) -> NvidiaSource:
    fake_nvml.load()
    return NvidiaSource(World(sysfs_root=str(sysfs)), Driver(), patience=PATIENCE)


def gpus(source: NvidiaSource) -> list[GpuUnit]:
    return [unit for unit in source.discover() if isinstance(unit, GpuUnit)]


def notices(found: list[Sample | Notice]) -> list[Notice]:
    return [item for item in found if isinstance(item, Notice)]


def sample(found: list[Sample | Notice]) -> Sample:
    (only,) = (item for item in found if isinstance(item, Sample))
    return only


def put_gpu(sysfs: Path, address: str, status: str) -> None:
    device = sysfs / "bus/pci/devices" / address
    (device / "power").mkdir(parents=True, exist_ok=True)
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (device / "power/runtime_status").write_text(f"{status}\n")


@pytest.mark.parametrize(
    ("code", "reason", "advice"),
    [
        (9, "the driver is not loaded", "sudo modprobe nvidia"),
        (12, "no NVIDIA GPU or driver found", "install the NVIDIA driver"),
        (18, "driver and library versions differ", "reboot"),
        (4, "no permission", "ls -l /dev/nvidia*"),
        (999, "unknown error", "nvidia-smi"),
    ],
)
def test_no_driver_is_unavailable_with_the_reason_and_what_helps(
    source: NvidiaSource, fake_nvml: FakeNvml, code: int, reason: str, advice: str
) -> None:
    fake_nvml.script(f"init_error = {code}")
    with pytest.raises(SourceUnavailable) as unavailable:
        source.discover()
    assert reason in str(unavailable.value)
    assert advice in str(unavailable.value)
    assert source.describe() == {}


def test_a_driver_that_comes_later_is_found_without_a_restart(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("init_error = 9")
    with pytest.raises(SourceUnavailable):
        source.discover()
    fake_nvml.script("count = 2")
    assert len(gpus(source)) == 2


def test_a_missing_library_names_the_gpu_that_the_kernel_sees(
    source: NvidiaSource, fake_nvml: FakeNvml, sysfs: Path
) -> None:
    put_gpu(sysfs, "0000:01:00.0", "active")
    fake_nvml.script("init_error = 12")
    with pytest.raises(SourceUnavailable, match=r"the machine has an NVIDIA GPU at 0000:01:00\.0"):
        source.discover()


def test_a_driver_without_a_gpu_is_unavailable(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 0")
    with pytest.raises(SourceUnavailable, match="reports no GPU"):
        source.discover()


@pytest.mark.promise("a GPU falls off the bus", "no values are invented; it is detected when it is back")
def test_a_lost_gpu_is_said_once_has_no_values_and_comes_back(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fault = "count = 3\nerr.*.1 = 15@10-20\n"
    fake_nvml.script(fault + "t = 5")
    units = gpus(source)
    assert [sample(unit.read()).values["state"] for unit in units] == ["ok", "ok", "ok"]

    fake_nvml.script(fault + "t = 15")
    first, second = units[1].read(), units[1].read()
    (lost,) = notices(first)
    assert (lost.event, lost.severity, lost.data["gpu_index"]) == ("gpu_lost", "critical", 1)
    assert notices(second) == []
    assert sample(first).values == sample(second).values == {"state": "lost"}
    assert sample(units[0].read()).values["utilization_percent"] > 0
    assert sample(units[2].read()).values["utilization_percent"] > 0
    assert [unit.key for unit in gpus(source)] == [unit.key for unit in units]

    fake_nvml.script(fault + "t = 25")
    back = units[1].read()
    assert [notice.event for notice in notices(back)] == ["gpu_recovered"]
    assert sample(back).values["state"] == "ok"
    assert sample(back).values["utilization_percent"] > 0
    assert notices(units[1].read()) == []
    assert fake_nvml.calls()["nvmlDeviceRegisterEvents", 1] == 1


def test_a_gpu_lost_from_the_start_is_reported_and_found_when_it_is_back(
    source: NvidiaSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.script("count = 2\nerr.*.1 = 15")
    (missing,) = (unit for unit in source.discover() if isinstance(unit, MissingGpu))
    found = missing.read()
    assert [notice.event for notice in notices(found)] == ["gpu_lost"]
    assert sample(found).labels["gpu_index"] == 1
    assert sample(found).values == {"state": "lost"}
    assert notices(missing.read()) == []
    fake_nvml.script("count = 2")
    with pytest.raises(UnitGone):
        missing.read()
    assert len(gpus(source)) == 2


def test_a_gpu_that_needs_a_reset_says_so_beside_what_it_still_tells(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 1\nerr.nvmlDeviceGetUtilizationRates = 16")
    (unit,) = gpus(source)
    found = unit.read()
    assert [notice.event for notice in notices(found)] == ["gpu_reset_required"]
    assert sample(found).values["state"] == "reset required"
    assert sample(found).values["temperature_celsius"] > 0
    assert notices(unit.read()) == []

    fake_nvml.script("count = 1\nerr.*.0 = 16")
    assert sample(unit.read()).values["state"] == "reset required"
    another = NvidiaSource(World(sysfs_root=str(sysfs)), Driver(), patience=PATIENCE)
    (missing,) = (unit for unit in another.discover() if isinstance(unit, MissingGpu))
    assert sample(missing.read()).values == {"state": "reset required"}


@pytest.mark.promise("the driver is reloaded", "every GPU continues")
def test_a_reloaded_driver_is_said_once_and_every_gpu_goes_on(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 4")
    units = gpus(source)
    for unit in units:
        unit.read()
    fake_nvml.script("count = 4\nepoch = 2")
    found = [unit.read() for unit in units]
    assert [notice.event for each in found for notice in notices(each)] == ["driver_reloaded"]
    assert [sample(each).values["state"] for each in found] == ["ok"] * 4
    assert fake_nvml.calls()["nvmlInitWithFlags", None] == 2
    assert len(gpus(source)) == 4


def test_discover_survives_a_reload_that_no_gpu_has_noticed_yet(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 2")
    gpus(source)
    fake_nvml.script("count = 2\nepoch = 7")
    assert len(gpus(source)) == 2


def test_a_driver_that_stays_away_ends_the_units_with_the_reason(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 1")
    (unit,) = gpus(source)
    unit.read()
    fake_nvml.script("count = 1\nepoch = 2\ninit_error = 9")
    with pytest.raises(UnitGone, match="not loaded"):
        unit.read()
    unit.close()
    with pytest.raises(SourceUnavailable, match="not loaded"):
        source.discover()
    fake_nvml.script("count = 1\nepoch = 3")
    (unit,) = gpus(source)
    assert sample(unit.read()).values["state"] == "ok"


def test_a_gpu_that_fails_every_question_is_failing_not_lost(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 2")
    units = gpus(source)
    units[1].read()
    fake_nvml.script("count = 2\nerr.*.1 = 999")
    found = units[1].read()
    (notice,) = notices(found)
    assert (notice.event, "unknown error" in notice.message) == ("gpu_failing", True)
    assert sample(found).values == {"state": "failing"}
    assert sample(units[0].read()).values["state"] == "ok"
    assert fake_nvml.calls()["nvmlInitWithFlags", None] == 1


def test_unknown_errors_everywhere_are_cured_by_initialising_anew(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 1")
    (unit,) = gpus(source)
    unit.read()
    fake_nvml.calls()
    fake_nvml.script("count = 1\nerr.* = 999\nerr.nvmlSystemGetDriverVersion = 999")
    assert sample(unit.read()).values == {"state": "failing"}
    assert fake_nvml.calls()["nvmlInitWithFlags", None] == 1
    fake_nvml.script("count = 1")
    assert sample(unit.read()).values["state"] == "ok"


def test_a_removed_gpu_ends_its_unit_and_an_added_one_is_found(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 2")
    units = gpus(source)
    for unit in units:
        unit.read()
    fake_nvml.script("count = 1")
    with pytest.raises(UnitGone, match="was removed"):
        units[1].read()
    assert [unit.key for unit in gpus(source)] == [units[0].key]
    assert [gpu["index"] for gpu in source.describe()["gpus"]] == [0]
    fake_nvml.script("count = 3")
    assert len(gpus(source)) == 3


def test_another_gpu_at_the_same_address_is_not_taken_for_the_old_one(
    source: NvidiaSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.script("count = 1")
    (old,) = gpus(source)
    old.read()
    fake_nvml.script("count = 1\nepoch = 2\ngpu.0.uuid = GPU-11111111-0000-4000-8000-000000000000")
    with pytest.raises(UnitGone, match="a different GPU"):
        old.read()
    (new,) = gpus(source)
    assert new.key == "nvidia:GPU-11111111-0000-4000-8000-000000000000"


def test_a_gpu_that_appears_on_the_bus_makes_nvml_look_again(
    source: NvidiaSource, fake_nvml: FakeNvml, sysfs: Path
) -> None:
    put_gpu(sysfs, "0000:10:00.0", "active")
    fake_nvml.script("count = 1")
    gpus(source)
    put_gpu(sysfs, "0000:11:00.0", "active")
    fake_nvml.script("count = 2")
    assert len(gpus(source)) == 2
    assert fake_nvml.calls()["nvmlInitWithFlags", None] == 2


def test_a_hanging_gpu_delays_neither_the_others_nor_the_next_discovery(
    source: NvidiaSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.script("count = 4")
    units = gpus(source)
    for unit in units:
        unit.read()
    fake_nvml.script("count = 4\ndelay_us.nvmlDeviceGetPowerUsage.3 = 600000000")
    late: list[list[Sample | Notice]] = []
    hanging = threading.Thread(target=lambda: late.append(units[3].read()))
    hanging.start()
    for _time in range(20):
        assert [sample(unit.read()).values["state"] for unit in units[:3]] == ["ok"] * 3
    assert len(gpus(source)) == 4
    assert late == []  # all of that happened while the fourth was hanging
    fake_nvml.script("count = 4")
    hanging.join()
    assert sample(late[0]).values["state"] == "ok"


def test_a_gpu_that_hangs_when_first_asked_keeps_nobody_from_being_found(fake_nvml: FakeNvml, sysfs: Path) -> None:
    fake_nvml.load()
    # Not less: a busy machine takes its time to ask the others.
    source = NvidiaSource(World(sysfs_root=str(sysfs)), Driver(), patience=6.0)
    fake_nvml.script("count = 3\ndelay_us.nvmlDeviceGetUUID.1 = 600000000")
    found = source.discover()
    assert [unit.key[-2:] for unit in found if isinstance(unit, GpuUnit)] == ["00", "02"]
    (missing,) = (unit for unit in found if isinstance(unit, MissingGpu))
    assert missing.key == "nvidia:1"
    assert len(gpus(source)) == 2
    assert [thread.name for thread in threading.enumerate()].count("nvidia-find-1") == 1  # not asked twice
    fake_nvml.script("count = 3")
    with pytest.raises(UnitGone):
        missing.read()
    wait_until(lambda: len(gpus(source)) == 3, "all three GPUs")


def test_a_machine_whose_gpu_is_asleep_is_left_alone(source: NvidiaSource, fake_nvml: FakeNvml, sysfs: Path) -> None:
    put_gpu(sysfs, "0000:10:00.0", "suspended")
    fake_nvml.script("count = 1")
    with pytest.raises(SourceUnavailable, match="asleep"):
        source.discover()
    assert source.describe() == {}
    assert fake_nvml.calls() == {}
    put_gpu(sysfs, "0000:10:00.0", "active")
    assert len(gpus(source)) == 1


def test_a_sleeping_gpu_beside_an_awake_one_is_not_touched(
    source: NvidiaSource, fake_nvml: FakeNvml, sysfs: Path
) -> None:
    put_gpu(sysfs, "0000:10:00.0", "active")
    put_gpu(sysfs, "0000:11:00.0", "suspended")
    fake_nvml.script("count = 2")
    units = source.discover()
    for unit in units:
        unit.read()
    source.describe()
    assert {on for _function, on in fake_nvml.calls()} == {0, None}
    (missing,) = (unit for unit in units if isinstance(unit, MissingGpu))
    assert sample(missing.read()).values == {"state": "asleep"}

    put_gpu(sysfs, "0000:11:00.0", "active")
    with pytest.raises(UnitGone):
        missing.read()
    assert len(gpus(source)) == 2
    for unit in units:
        unit.close()


def test_a_gpu_that_falls_asleep_is_let_sleep_and_read_again_when_it_wakes(
    fake_nvml: FakeNvml, sysfs: Path, clock: Any
) -> None:
    fake_nvml.load()
    source = NvidiaSource(World(sysfs_root=str(sysfs)), Driver(), clock, patience=PATIENCE)
    put_gpu(sysfs, "0000:10:00.0", "active")
    fake_nvml.script("count = 1")
    (unit,) = gpus(source)
    unit.read()
    clock.advance(1)
    put_gpu(sysfs, "0000:10:00.0", "suspended")
    first = unit.read()
    assert [(notice.event, notice.severity) for notice in notices(first)] == [("gpu_asleep", "info")]
    assert fake_nvml.calls()["nvmlShutdown", None] == 1  # an open library would keep it awake
    second = unit.read()
    assert notices(second) == []
    assert sample(second).values == {"state": "asleep"}
    with pytest.raises(SourceUnavailable, match="asleep"):
        source.discover()
    assert fake_nvml.calls() == {}
    put_gpu(sysfs, "0000:10:00.0", "active")
    awake = unit.read()
    assert [notice.event for notice in notices(awake)] == ["gpu_recovered"]
    assert sample(awake).values["utilization_percent"] > 0
    unit.close()

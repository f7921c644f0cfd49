"""The NVIDIA source on healthy machines: what each kind of card says, and at what price."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE

from trainvitals import catalog
from trainvitals.sources import GpuProcess, Sample, World
from trainvitals.sources.nvidia.fields import Growing, parse_field
from trainvitals.sources.nvidia.gpu import GpuUnit
from trainvitals.sources.nvidia.nvml import REFUSAL_SECONDS, Driver
from trainvitals.sources.nvidia.pci import parse_address
from trainvitals.sources.nvidia.source import NvidiaSource
from trainvitals.sources.nvidia.values import held_fields, parse_recovery_action, parse_throttle_reasons

GEFORCE = "\n".join(
    [
        "count = 1",
        "gpu.0.name = NVIDIA GeForce RTX 4090",
        "gpu.0.gpm = 0",
        "gpu.0.nvlink_count = 0",
        *(f"gpu.0.field.{field} = err:3" for field in (3, 4, 82, 142, 143, 144, 145, 197, 198, 230)),
        *(
            f"err.nvmlDeviceGet{name} = 3"
            for name in ("EccMode", "TotalEccErrors", "MemoryErrorCounter", "RemappedRows", "MigMode")
        ),
    ]
)
H100 = "count = 1\nerr.nvmlDeviceGetFanSpeed = 3\nerr.nvmlDeviceGetFanSpeedRPM = 3"
GB10 = "count = 1\ngpu.0.name = NVIDIA GB10\n" + "\n".join(
    f"err.nvmlDeviceGet{name} = 3"
    for name in ("MemoryInfo", "MemoryInfo_v2", "FanSpeed", "FanSpeedRPM", "PowerManagementLimit")
)
WSL = "count = 1\ngpu.0.procs = C:79:na:0\nerr.nvmlDeviceGetProcessUtilization = 3"
MIG = "count = 1\ngpu.0.mig = 1\ngpu.0.mig_count = 2\n" + "\n".join(
    f"err.nvmlDeviceGet{name} = 3"
    for name in ("UtilizationRates", "EncoderUtilization", "DecoderUtilization", "RemappedRows")
)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(fake_nvml: FakeNvml, tmp_path: Path, clock: Clock) -> NvidiaSource:
    fake_nvml.load()
    return NvidiaSource(World(sysfs_root=str(tmp_path)), Driver(), clock, patience=PATIENCE)


@pytest.fixture
def read(source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock) -> Iterator[Callable[..., list[Sample]]]:
    """Script the machine and read its first GPU twice, two seconds apart: the samples of the second time."""
    opened: list[GpuUnit] = []

    def read_twice(script: str) -> list[Sample]:
        fake_nvml.script(f"{script}\nt = 10")
        unit = gpus(source)[0]
        opened.append(unit)
        unit.read()
        clock.now += 2
        fake_nvml.script(f"{script}\nt = 12")
        return [found for found in unit.read() if isinstance(found, Sample)]

    yield read_twice
    for unit in opened:
        unit.close()


def gpus(source: NvidiaSource) -> list[GpuUnit]:
    return [unit for unit in source.discover() if isinstance(unit, GpuUnit)]


def test_every_value_is_what_the_driver_said(read: Callable[..., list[Sample]]) -> None:
    script = """
        count = 2
        driver = 590.48.01
        gpu.0.util_gpu = 87
        gpu.0.util_mem = 41
        gpu.0.mem_total = 80Gi
        gpu.0.mem_used = 20Gi
        gpu.0.mem_reserved = 512Mi
        gpu.0.temp_gpu = 71
        gpu.0.temp_mem = 83
        gpu.0.temp_slowdown = 90
        gpu.0.power_mw = 512345
        gpu.0.power_limit_mw = 650000
        gpu.0.energy_mj = 123456789
        gpu.0.clk_graphics = 1701
        gpu.0.clk_sm = 1702
        gpu.0.clk_mem = 2603
        gpu.0.clkmax_graphics = 1980
        gpu.0.clkmax_mem = 2619
        gpu.0.fan_pct = 47
        gpu.0.fan_rpm = 1650
        gpu.0.pstate = 2
        gpu.0.event_reasons = 68
        gpu.0.viol_power_ns = 3500000000
        gpu.0.field.269 = 1000000000
        gpu.0.field.270 = 250000000
        gpu.0.field.271 = 125000000
        gpu.0.ecc_corr_vol = 12
        gpu.0.ecc_unc_vol = 1
        gpu.0.remap_corr = 3
        gpu.0.remap_unc = 2
        gpu.0.remap_pending = 1
        gpu.0.remap_failure = 0
        gpu.0.recovery_action = 1
        gpu.0.pcie_replay = 9
        gpu.0.pcie_gen = 4
        gpu.0.pcie_width = 8
        gpu.0.pcie_tx_bytes = ramp:0:1048576000
        gpu.0.pcie_rx_bytes = ramp:0:524288000
        gpu.0.nvlink_tx_kib = ramp:0:2048000
        gpu.0.nvlink_rx_kib = ramp:0:1024000
        gpu.0.enc_util = 5
        gpu.0.dec_util = 6
        gpu.0.gpm.2 = ramp:0:5
        gpu.0.gpm.3 = 33.25
        gpu.0.gpm.5 = 60
        gpu.0.gpm.10 = 44
        gpu.0.gpm.11 = 0
        gpu.0.gpm.12 = 7.5
        gpu.0.gpm.13 = 2.5
        gpu.0.procs = C:4242:4Gi:55;G:1:64Mi:1
    """
    (sample,) = read(script)
    assert sample.table == "gpu"
    assert sample.counters == {  # at 12 s
        "pcie_tx_bytes_total": {"": 12 * 1048576000},
        "pcie_rx_bytes_total": {"": 12 * 524288000},
        "nvlink_tx_bytes_total": {"": 12 * 2048000 * 1024},
        "nvlink_rx_bytes_total": {"": 12 * 1024000 * 1024},
        "xid_errors_by_code_total": {},
    }
    assert sample.labels == {
        "gpu_index": 0,
        "gpu_uuid": "GPU-fa4e0000-0000-4000-8000-000000000000",
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "vendor": "nvidia",
    }
    assert sample.values == {
        "utilization_percent": 87,
        "memory_utilization_percent": 41,
        "memory_used_mb": 20480,
        "memory_reserved_mb": 512,
        "memory_total_mb": 81920,
        "memory_percent": 25,
        "temperature_celsius": 71,
        "memory_temperature_celsius": 83,
        "temperature_limit_celsius": 90,
        "power_draw_watts": 512.345,
        "power_limit_watts": 650,
        "energy_joules": 123456.789,
        "graphics_clock_mhz": 1701,
        "sm_clock_mhz": 1702,
        "memory_clock_mhz": 2603,
        "graphics_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "fan_speed_percent": 47,
        "fan_speed_rpm": 1650,
        "performance_state": 2,
        "throttle_reasons": "power cap, hardware thermal slowdown",
        "throttle_power_seconds": 3.5,
        "throttle_thermal_seconds": 1.25,
        "throttle_hardware_seconds": 0.375,
        "ecc_corrected_total": 12,
        "ecc_uncorrected_total": 1,
        "remapped_rows_corrected_total": 3,
        "remapped_rows_uncorrected_total": 2,
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "recovery_action": "reset",
        "xid_errors_total": 0,
        "pcie_tx_mb_s": 1000,
        "pcie_rx_mb_s": 500,
        "pcie_replay_total": 9,
        "pcie_link_generation": 4,
        "pcie_link_width": 8,
        "pcie_link_generation_max": 5,
        "pcie_link_width_max": 16,
        "nvlink_tx_mb_s": 2000,
        "nvlink_rx_mb_s": 1000,
        "sm_active_percent": 55,  # between the two readings, at 10 s and 12 s
        "sm_occupancy_percent": 33.25,
        "tensor_active_percent": 60,
        "dram_active_percent": 44,
        "fp64_active_percent": 0,
        "fp32_active_percent": 7.5,
        "fp16_active_percent": 2.5,
        "process_count": 2,
        "state": "ok",
    }


def test_what_does_not_change_within_a_second_is_asked_once_a_second(
    source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock
) -> None:
    fake_nvml.script("count = 1")
    (unit,) = gpus(source)

    def read() -> Mapping[str, Any]:
        (found,) = (item for item in unit.read() if isinstance(item, Sample))
        return found.values

    first = read()
    clock.now += 0.1
    second = read()
    clock.now += 0.9
    third = read()
    unit.close()
    steady = {"power_limit_watts", "pcie_link_width", "performance_state", "ecc_uncorrected_total", "recovery_action"}
    always = {"utilization_percent", "memory_used_mb", "power_draw_watts", "temperature_celsius", "fan_speed_percent"}
    assert steady | always <= first.keys() and steady | always <= third.keys()
    assert steady.isdisjoint(second) and {*always, "energy_joules", "throttle_reasons"} <= second.keys()
    assert "pcie_rx_mb_s" in second  # the width of the link, which a rate needs, is remembered


def test_every_value_has_a_row_in_the_catalog(source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock) -> None:
    fake_nvml.script("count = 1")
    (unit,) = gpus(source)
    names = set()
    for _second in range(6):
        clock.now += 1
        names |= {name for found in unit.read() for name in found.values}
    unit.close()
    assert names <= {metric.name for metric in catalog.GPU}
    assert {"encoder_percent", "decoder_percent"} <= names


def test_a_geforce_has_a_fan_but_no_ecc_and_no_activity_counters(read: Callable[..., list[Sample]]) -> None:
    (sample,) = read(GEFORCE)
    absent = (
        "ecc_",
        "remap",
        "row_remap",
        "nvlink",
        "sm_active",
        "tensor",
        "memory_temp",
        "pcie_tx",
        "recovery",
    )
    assert [name for name in sample.values if name.startswith(absent)] == []
    assert sample.values["fan_speed_percent"] == 45
    assert sample.values["memory_used_mb"] == 40960


def test_an_h100_has_activity_counters_but_no_fan(read: Callable[..., list[Sample]]) -> None:
    (sample,) = read(H100)
    assert "fan_speed_percent" not in sample.values
    assert "fan_speed_rpm" not in sample.values
    assert sample.values["sm_active_percent"] > 0


def test_a_gb10_has_no_memory_of_its_own(read: Callable[..., list[Sample]]) -> None:
    (sample,) = read(GB10)
    assert [name for name in sample.values if name.startswith("memory_") and name.endswith(("_mb", "percent"))] == [
        "memory_utilization_percent"
    ]
    assert sample.values["power_limit_watts"] == 700


def test_under_wsl_a_process_has_no_memory_instead_of_17_billion_gigabytes(
    source: NvidiaSource, fake_nvml: FakeNvml
) -> None:
    fake_nvml.script(WSL)
    (unit,) = gpus(source)
    (sample,) = unit.read()
    unit.close()
    assert unit.processes == (GpuProcess(79, None, None),)
    assert sample.values["process_count"] == 1


def test_an_old_driver_is_asked_in_older_ways(old_fake_nvml: FakeNvml, tmp_path: Path, clock: Clock) -> None:
    old_fake_nvml.load()
    old_fake_nvml.script("count = 1\ndriver = 450.80.02\ngpu.0.temp_gpu = 66\ngpu.0.procs = C:4242:1Gi:30\nt = 1")
    (unit,) = gpus(NvidiaSource(World(sysfs_root=str(tmp_path)), Driver(), clock, patience=PATIENCE))
    unit.read()
    clock.now += 2
    (sample,) = unit.read()
    unit.close()
    assert sample.values["temperature_celsius"] == 66
    assert sample.values["memory_used_mb"] == 40960 + 512  # the first form counts what the driver reserves
    assert "memory_reserved_mb" not in sample.values
    assert sample.values["throttle_reasons"] == "power cap"
    assert "sm_active_percent" not in sample.values
    assert unit.processes == (GpuProcess(4242, 1024, 30),)


def test_mig_slices_are_samples_beside_their_gpu(read: Callable[..., list[Sample]]) -> None:
    parent, *slices = read(MIG + "\ngpu.0.gpm.1 = 64.5\ngpu.0.gpm.2 = 31.25")
    assert parent.values["utilization_percent"] == 64.5  # through GPM: the plain question is refused
    assert [part.labels for part in slices] == [
        {
            "gpu_index": 0,
            "gpu_uuid": f"MIG-fa4e0000-0000-5000-000{index}-000000000000",
            "gpu_name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            "vendor": "nvidia",
            "mig_parent": "GPU-fa4e0000-0000-4000-8000-000000000000",
            "mig_index": index,
        }
        for index in range(2)
    ]
    for part in slices:
        assert part.values["memory_total_mb"] == 10240
        assert part.values["memory_used_mb"] == 5120
        assert part.values["utilization_percent"] == 64.5
        assert part.values["sm_active_percent"] == 31.25


def test_mig_slices_come_and_go_without_a_restart(source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock) -> None:
    def slices(count: int) -> list[object]:
        fake_nvml.script(MIG.replace("mig_count = 2", f"mig_count = {count}"))
        clock.now += 5
        return [found.labels["mig_index"] for found in unit.read() if "mig_index" in found.labels]

    fake_nvml.script(MIG)
    (unit,) = gpus(source)
    assert slices(1) == [0]
    assert slices(3) == [0, 1, 2]
    assert slices(0) == []
    assert slices(2) == [0, 1]
    fake_nvml.script(MIG.replace("mig_count = 2", "mig_count = 1"))  # and no time passes
    assert len(unit.read()) == 2
    assert len(unit.read()) == 2
    unit.close()


def test_processes_are_there_for_the_agent_with_memory_and_sm_share(
    source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock
) -> None:
    rows = ";".join(f"C:{pid}:{pid}Mi:{pid % 100}" for pid in range(1001, 1061))
    fake_nvml.script(f"count = 1\ngpu.0.procs = {rows};G:1001:1001Mi:1")
    (unit,) = gpus(source)
    (sample,) = unit.read()
    assert sample.values["process_count"] == 60
    assert unit.processes[1] == GpuProcess(1002, 1002, 2)
    fake_nvml.script("count = 1")
    clock.now += 2
    unit.read()
    assert unit.processes == ()
    unit.close()


def test_a_sample_costs_at_most_25_calls_per_gpu_and_never_asks_for_pcie_throughput(
    source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock
) -> None:
    fake_nvml.script("count = 4\ngpu.*.procs = C:4242:4Gi:55")
    units = gpus(source)
    for unit in units:
        unit.read()  # the first time also asks for what never changes
    fake_nvml.calls()
    for _second in range(12):
        clock.now += 1
        for unit in units:
            unit.read()
        calls = fake_nvml.calls()
        for gpu in range(4):
            assert sum(count for (_function, on), count in calls.items() if on == gpu) + 1 <= 25
        assert {function for function, on in calls if on is None} <= {"nvmlGpmMetricsGet"}  # the one added above
        assert "nvmlDeviceGetPcieThroughput" not in {function for function, _on in calls}
    for unit in units:
        unit.close()


def test_the_library_is_initialised_once(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    for _time in range(3):
        for unit in gpus(source):
            unit.read()
    calls = fake_nvml.calls()
    assert calls["nvmlInitWithFlags", None] == 1
    assert calls["nvmlShutdown", None] == 0


def test_nvml_is_shut_down_when_the_last_gpu_is_closed(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    units = gpus(source)
    for unit in units:
        unit.read()
    for unit in units[1:]:
        unit.close()
    assert fake_nvml.calls()["nvmlShutdown", None] == 0
    units[0].close()
    assert fake_nvml.calls()["nvmlShutdown", None] == 1


def test_what_a_gpu_refused_is_not_asked_for_some_minutes(
    source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock
) -> None:
    def asked() -> int:
        unit.read()
        return fake_nvml.calls()["nvmlDeviceGetFanSpeed", 0]

    fake_nvml.script("count = 1\nerr.nvmlDeviceGetFanSpeed = 3")
    (unit,) = gpus(source)
    assert [asked() for _time in range(3)] == [1, 0, 0]
    clock.now += REFUSAL_SECONDS
    assert asked() == 1
    unit.close()


def test_describe_tells_the_driver_and_what_never_changes(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 2\ndriver = 590.48.01\ncuda = 13010\ngpu.1.name = NVIDIA H200\ngpu.1.mem_total = 141Gi")
    facts = source.describe()
    assert facts["driver_version"] == "590.48.01"
    assert facts["cuda_version"] == "13.1"
    assert [gpu["name"] for gpu in facts["gpus"]] == ["NVIDIA H100 80GB HBM3", "NVIDIA H200"]
    assert facts["gpus"][1] == {
        "index": 1,
        "uuid": "GPU-fa4e0000-0000-4000-8000-000000000001",
        "name": "NVIDIA H200",
        "pci": "0000:11:00.0",
        "memory_total_mb": 144384,
        "power_limit_watts": 700,
        "power_limit_default_watts": 700,
        "power_limit_min_watts": 200,
        "power_limit_max_watts": 700,
        "temperature_limit_celsius": 89,
        "graphics_clock_max_mhz": 1980,
        "memory_clock_max_mhz": 2619,
        "compute_capability": "9.0",
        "pcie_link_generation_max": 5,
        "pcie_link_width_max": 16,
        "serial": "1650523000001",
        "minor": 1,
        "vbios": "96.00.74.00.01",
    }


def test_importing_the_source_imports_no_vendor_library() -> None:
    code = "import sys, trainvitals.sources.nvidia; print('pynvml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_registry_creates_the_source_in_a_process_of_its_own(fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 3")
    code = """
from trainvitals.sources import World, create
for unit in create("nvidia", World()).discover():
    print(unit.key, len(unit.read()))
"""
    done = subprocess.run([sys.executable, "-c", code], env=fake_nvml.env(), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        *(f"nvidia:GPU-fa4e0000-0000-4000-8000-00000000000{index} 1" for index in range(3)),
        "nvidia:events 0",
    ]
    assert fake_nvml.calls()["nvmlInitWithFlags", None] == 1


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (0, "none"),
        (0x1, "idle"),
        (0x4 | 0x20, "power cap, thermal slowdown"),
        (0x8 | 0x80, "hardware slowdown, hardware power brake"),
        (1 << 40, "reason 0x10000000000"),
    ],
)
def test_throttle_reasons_in_words(mask: int, words: str) -> None:
    assert parse_throttle_reasons(mask) == words


def test_recovery_actions_in_words() -> None:
    assert [parse_recovery_action(number) for number in (0, 1, 2, 3, 99)] == [
        "none",
        "reset",
        "reboot",
        "drain",
        "action 99",
    ]


def test_the_ids_of_the_throttle_times_depend_on_the_driver() -> None:
    assert held_fields("570.133.20") is None
    assert held_fields("580.65.06") == (251, 252, 253)
    assert held_fields("590.48.01") == (269, 270, 271)
    assert held_fields("unknown") is None


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (0, 0x3FF8000000000000, (1.5, 64)),
        (1, 0xDEAD_0000_0007, (7, 32)),
        (1, 0xFFFF_FFFF, None),
        (3, 2**63, (2**63, 64)),
        (3, 2**64 - 1, None),
        (4, 2**64 - 5, (-5, 64)),
        (5, 2**32 - 5, (-5, 32)),
        (6, 0xAAAA_0009, (9, 16)),
        (77, 1, None),
    ],
)
def test_a_field_value_is_read_by_its_type(kind: int, raw: int, value: tuple[float, int] | None) -> None:
    assert parse_field(kind, raw) == value


def test_growth_needs_two_readings_and_survives_a_restart_of_its_counter() -> None:
    counters = Growing()
    assert counters.growth("x", 1.0, 100, 64, None) is None
    assert counters.growth("x", 3.0, 150, 64, None) == (50, 2)
    assert counters.growth("x", 4.0, 10, 64, None) is None
    assert counters.growth("x", 5.0, 30, 64, None) == (20, 1)
    assert counters.total("x", 64) == 30, "as the driver counts"


def test_a_32_bit_counter_is_followed_over_one_wrap_but_never_guessed() -> None:
    counters = Growing()
    assert counters.growth("x", 0.0, 2**32 - 100, 32, 1e9) is None
    assert counters.total("x", 32) is None
    assert counters.growth("x", 1.0, 100, 32, 1e9) == (200, 1)
    assert counters.growth("x", 2.0, 300, 32, 30e9) is None  # at this speed it may have wrapped seven times
    assert counters.growth("x", 3.0, 400, 32, None) is None
    assert counters.growth("x", 4.0, 450, 32, 1e9) == (50, 1)
    assert counters.total("x", 32) == 250, "what it was seen to grow, beyond its wrap"


def test_pci_addresses_are_written_as_sysfs_does() -> None:
    assert parse_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert parse_address("00010000:01:00.0") == "10000:01:00.0"
    assert parse_address("nonsense") is None


def test_after_the_clock_was_set_back_the_use_of_sms_is_known_again(
    source: NvidiaSource, fake_nvml: FakeNvml, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_nvml.script("count = 1\ngpu.0.procs = C:self:2Gi:10")
    (unit,) = gpus(source)
    real = time.time
    with monkeypatch.context() as ahead:
        ahead.setattr("time.time", lambda: real() + 3600)
        unit.read()
        assert unit.processes == (GpuProcess(os.getpid(), 2048, None),)
    clock.now += 2
    unit.read()
    unit.close()
    assert unit.processes == (GpuProcess(os.getpid(), 2048, 10),)


def test_the_pid_of_a_process_is_the_one_the_driver_gives(source: NvidiaSource, fake_nvml: FakeNvml) -> None:
    fake_nvml.script("count = 1\ngpu.0.procs = C:self:2Gi:10")
    (unit,) = gpus(source)
    unit.read()
    unit.close()
    assert unit.processes == (GpuProcess(os.getpid(), 2048, 10),)

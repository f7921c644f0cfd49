"""The same machine through nvitop and gpustat, two programs of others: the same numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from waiting import PATIENCE

from trainvitals.sources import Sample, World
from trainvitals.sources.nvidia.gpu import GpuUnit
from trainvitals.sources.nvidia.nvml import Driver
from trainvitals.sources.nvidia.source import NvidiaSource

SCRIPT = """
    count = 3
    t = 17.5
    gpu.0.enc_util = 12
    gpu.0.dec_util = 34
    gpu.1.temp_gpu = 91
    gpu.1.mem_used = 77003Mi
    gpu.1.procs = C:1:4Gi:55;G:2:96Mi:3
    gpu.2.name = NVIDIA GeForce RTX 4090
    gpu.2.fan_pct = 63
    gpu.2.power_mw = 333250
    gpu.2.ecc_unc_vol = 4
"""

NVITOP = """
import json
from nvitop import Device
print(json.dumps([
    {
        "gpu_index": gpu.index,
        "gpu_uuid": gpu.uuid(),
        "gpu_name": gpu.name(),
        "utilization_percent": gpu.gpu_utilization(),
        "memory_utilization_percent": gpu.memory_utilization(),
        "memory_used_mb": gpu.memory_used() / 2**20,
        "memory_total_mb": gpu.memory_total() / 2**20,
        "memory_percent": gpu.memory_percent(),
        "temperature_celsius": gpu.temperature(),
        "power_draw_watts": gpu.power_usage() / 1000,
        "power_limit_watts": gpu.power_limit() / 1000,
        "fan_speed_percent": gpu.fan_speed(),
        "graphics_clock_mhz": gpu.clock_infos().graphics,
        "sm_clock_mhz": gpu.clock_infos().sm,
        "memory_clock_mhz": gpu.clock_infos().memory,
        "performance_state": int(gpu.performance_state().removeprefix("P")),
        "encoder_percent": gpu.encoder_utilization(),
        "decoder_percent": gpu.decoder_utilization(),
        "ecc_uncorrected_total": gpu.total_volatile_uncorrected_ecc_errors(),
        "process_count": len(gpu.processes()),
        "processes": sorted((pid, one.gpu_memory() / 2**20) for pid, one in gpu.processes().items()),
    }
    for gpu in Device.all()
]))
"""


@pytest.fixture
def ours(fake_nvml: FakeNvml, tmp_path: Path) -> list[dict[str, Any]]:
    fake_nvml.script(SCRIPT)
    fake_nvml.load()
    source = NvidiaSource(World(sysfs_root=str(tmp_path)), Driver(), patience=PATIENCE)
    units = [unit for unit in source.discover() if isinstance(unit, GpuUnit)]
    found = []
    for unit in units:
        (sample,) = (item for item in unit.read() if isinstance(item, Sample))
        processes = [[process.pid, process.memory_mb] for process in unit.processes]
        found.append({**sample.labels, **sample.values, "processes": processes})
        unit.close()
    return found


def run(fake_nvml: FakeNvml, *command: str) -> Any:
    done = subprocess.run([sys.executable, *command], env=fake_nvml.env(), capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_same_numbers_as_nvitop(ours: list[dict[str, Any]], fake_nvml: FakeNvml) -> None:
    theirs = run(fake_nvml, "-c", NVITOP)
    assert len(theirs) == len(ours) == 3
    for our, their in zip(ours, theirs, strict=True):
        percent = their.pop("memory_percent")
        assert our["memory_percent"] == pytest.approx(percent, abs=0.05)  # nvitop rounds to one decimal
        assert {name: our[name] for name in their} == their


def test_the_same_numbers_as_gpustat(ours: list[dict[str, Any]], fake_nvml: FakeNvml) -> None:
    theirs = run(fake_nvml, "-m", "gpustat", "--json")["gpus"]
    assert len(theirs) == len(ours) == 3
    for our, their in zip(ours, theirs, strict=True):
        assert {
            "index": our["gpu_index"],
            "uuid": our["gpu_uuid"],
            "name": our["gpu_name"],
            "utilization.gpu": our["utilization_percent"],
            "utilization.enc": our["encoder_percent"],
            "utilization.dec": our["decoder_percent"],
            "temperature.gpu": our["temperature_celsius"],
            "fan.speed": our["fan_speed_percent"],
            "memory.used": our["memory_used_mb"],
            "memory.total": our["memory_total_mb"],
            "power.draw": round(our["power_draw_watts"]),
            "enforced.power.limit": our["power_limit_watts"],
        }.items() <= their.items()

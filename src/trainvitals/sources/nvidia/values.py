"""The values of one GPU under catalog names; what the card does not report is absent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainvitals.sources import Value
from trainvitals.sources.nvidia import gpm
from trainvitals.sources.nvidia.fields import ALL_LINKS, FieldBatch, Growing
from trainvitals.sources.nvidia.nvml import NvmlDevice, known
from trainvitals.sources.nvidia.processes import MB

# Field ids of nvmlDeviceGetFieldValues.
_ECC_CORRECTED, _ECC_UNCORRECTED = 3, 4
_HELD_BY_POWER, _HELD_BY_HEAT = 74, 75
_MEMORY_TEMPERATURE, _ENERGY, _PCIE_REPLAY = 82, 83, 94
_NVLINK_TX, _NVLINK_RX = 138, 139
_REMAPPED = (142, 143, 144, 145)
_PCIE_TX, _PCIE_RX = 197, 198
_RECOVERY = 230

_REMAP_NAMES = (
    "remapped_rows_corrected_total",
    "remapped_rows_uncorrected_total",
    "row_remap_pending",
    "row_remap_failed",
)

_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability voltage",
}

_RECOVERY_ACTIONS = {
    0: "none",
    1: "reset",
    2: "reboot",
    3: "drain",
    4: "drain and reset",
    5: "recover IMEX domain",
    6: "bus reset",
    7: "reboot",
}

# Bytes per second and lane, after line coding, by PCIe generation.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9, 7: 15.1e9}

STEADY_SECONDS = 0.7
"""Between readings of what does not change within a second: limits, link, errors. Less than a second, so that a sample
every second always has them, even if it comes a little early."""

_MEMORY_V2 = 0x02000028  # structure version: reserved apart from used
_GRAPHICS, _SM, _MEMORY = 0, 1, 2  # clocks
_NOT_AVAILABLE = 0xFFFFFFFF  # NVML's marker in an unsigned number


def parse_throttle_reasons(mask: int) -> str:
    """Why the clocks are throttled: `none`, `idle` (harmless), or the reasons, comma separated.

    >>> parse_throttle_reasons(0x44)
    'power cap, hardware thermal slowdown'
    """
    if not mask:
        return "none"
    bits = [1 << position for position in range(mask.bit_length()) if mask >> position & 1]
    return ", ".join(_REASONS.get(bit, f"reason 0x{bit:x}") for bit in bits)


def parse_recovery_action(number: int) -> str:
    """What the driver asks for: `none`, `reset`, `reboot`, `drain` ..."""
    return _RECOVERY_ACTIONS.get(number, f"action {number}")


def held_fields(driver_version: str) -> tuple[int, int, int] | None:
    """Ids of the time held by (software heat, hardware heat, power brake), or None for drivers without them.

    NVIDIA renumbered them: the ids of one driver series mean power smoothing in the other.
    """
    series = driver_version.split(".")[0]
    number = int(series) if series.isdigit() else 0
    if number >= 590:
        return (269, 270, 271)
    return (251, 252, 253) if number >= 575 else None


def read_memory(device: NvmlDevice) -> dict[str, Value]:
    """Memory in MB. From drivers older than 510 `memory_used_mb` includes what the driver reserves."""
    info = device.first(("nvmlDeviceGetMemoryInfo", _MEMORY_V2), ("nvmlDeviceGetMemoryInfo",))
    if info is None:
        return {}
    values: dict[str, Value] = {}
    sizes = {name: known(getattr(info, name), 64) for name in ("used", "reserved", "total") if hasattr(info, name)}
    for name, size in sizes.items():
        if size is not None:
            values[f"memory_{name}_mb"] = round(size / MB, 3)
    used, total = sizes["used"], sizes["total"]
    if used is not None and total:
        values["memory_percent"] = round(100 * used / total, 2)
    return values


def read_fixed(device: NvmlDevice) -> dict[str, Value]:
    """What does not change while the driver is loaded: the card's limits."""
    answers = {
        "temperature_limit_celsius": device.ask("nvmlDeviceGetTemperatureThreshold", 1),
        "graphics_clock_max_mhz": device.ask("nvmlDeviceGetMaxClockInfo", _GRAPHICS),
        "memory_clock_max_mhz": device.ask("nvmlDeviceGetMaxClockInfo", _MEMORY),
        "pcie_link_generation_max": device.ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        "pcie_link_width_max": device.ask("nvmlDeviceGetMaxPcieLinkWidth"),
    }
    return {name: value for name, value in answers.items() if value is not None}


def _collect() -> tuple[dict[str, Value], Callable[..., None]]:
    """Values, and a function that puts one there unless NVML does not know it."""
    values: dict[str, Value] = {}

    def put(name: str, value: Any, scale: float | None = None) -> None:
        if value is not None and value != _NOT_AVAILABLE:
            values[name] = value if scale is None else round(value * scale, 3)

    return values, put


class GpuValues:
    """The values of one GPU, in at most 18 calls once a second and 11 in between; counters are remembered for their
    rates."""

    def __init__(self, device: NvmlDevice, driver_version: str) -> None:
        self._device = device
        self._growing = Growing()
        self._held = held_fields(driver_version)
        self._next_steady = float("-inf")
        self._link_bytes: float | None = None
        self.counters: dict[str, dict[str, float]] = {}
        """Bytes over PCIe and NVLink: as the driver counts them, and where it counts with 32 bits, since the first
        reading."""
        self._batch = FieldBatch(
            device.driver.binding,
            [
                *((field, 0) for field in (_MEMORY_TEMPERATURE, _ENERGY, _PCIE_TX, _PCIE_RX)),
                *((field, ALL_LINKS) for field in (_NVLINK_TX, _NVLINK_RX)),
            ],
        )
        steady = (_ECC_CORRECTED, _ECC_UNCORRECTED, _HELD_BY_POWER, _HELD_BY_HEAT, _PCIE_REPLAY, *_REMAPPED, _RECOVERY)
        self._steady_batch = FieldBatch(device.driver.binding, [(field, 0) for field in (*steady, *(self._held or ()))])

    def read(self, now: float, activity: dict[int, float]) -> dict[str, Value]:
        """Everything cheap, with the GPM metrics in `activity` worked in."""
        ask = self._device.ask
        values, put = _collect()
        if now >= self._next_steady:
            self._next_steady = now + STEADY_SECONDS
            values.update(self._read_steady())
        utilization = ask("nvmlDeviceGetUtilizationRates")
        if utilization is not None:
            put("utilization_percent", utilization.gpu)
            put("memory_utilization_percent", utilization.memory)
        elif gpm.GRAPHICS_ACTIVE in activity:  # a GPU in MIG mode reports it only this way
            put("utilization_percent", activity[gpm.GRAPHICS_ACTIVE], 1)
        values.update(read_memory(self._device))
        put(
            "temperature_celsius",
            self._device.first(("nvmlDeviceGetTemperatureV", 0), ("nvmlDeviceGetTemperature", 0)),
        )
        put("power_draw_watts", ask("nvmlDeviceGetPowerUsage"), 0.001)
        put("graphics_clock_mhz", ask("nvmlDeviceGetClockInfo", _GRAPHICS))
        put("sm_clock_mhz", ask("nvmlDeviceGetClockInfo", _SM))
        put("memory_clock_mhz", ask("nvmlDeviceGetClockInfo", _MEMORY))
        put("fan_speed_percent", ask("nvmlDeviceGetFanSpeed"))
        reasons = self._device.first(
            ("nvmlDeviceGetCurrentClocksEventReasons",), ("nvmlDeviceGetCurrentClocksThrottleReasons",)
        )
        put("throttle_reasons", None if reasons is None else parse_throttle_reasons(reasons))
        fields = self._batch.read(self._device)
        if _MEMORY_TEMPERATURE in fields:
            put("memory_temperature_celsius", fields[_MEMORY_TEMPERATURE][0])
        energy = fields[_ENERGY][0] if _ENERGY in fields else ask("nvmlDeviceGetTotalEnergyConsumption")
        put("energy_joules", energy, 0.001)
        values.update(self._traffic(fields, now, activity))
        for metric, name in gpm.PERCENTAGES.items():
            put(name, activity.get(metric), 1)
        return values

    def _read_steady(self) -> dict[str, Value]:
        """What does not change within a second."""
        ask = self._device.ask
        values, put = _collect()
        put(
            "power_limit_watts",
            self._device.first(("nvmlDeviceGetEnforcedPowerLimit",), ("nvmlDeviceGetPowerManagementLimit",)),
            0.001,
        )
        put("fan_speed_rpm", ask("nvmlDeviceGetFanSpeedRPM"))
        state = ask("nvmlDeviceGetPerformanceState")
        put("performance_state", state if state != 32 else None)  # 32 is NVML's "unknown"
        put("pcie_link_generation", ask("nvmlDeviceGetCurrPcieLinkGeneration"))
        put("pcie_link_width", ask("nvmlDeviceGetCurrPcieLinkWidth"))
        lane, width = _LANE.get(int(values.get("pcie_link_generation", 0))), values.get("pcie_link_width")
        self._link_bytes = lane * int(width) if lane and width else None
        return values | self._read_health()

    def _read_health(self) -> dict[str, Value]:
        """Errors and throttled time; by single calls where fields are refused."""
        ask = self._device.ask
        fields = self._steady_batch.read(self._device)
        found: dict[str, Any] = {}

        def field(number: int) -> float | None:
            return fields[number][0] if number in fields else None

        def seconds(*numbers: int) -> float | None:
            parts = [part for part in map(field, numbers) if part is not None]
            return round(sum(parts) / 1e9, 6) if parts else None

        replay = field(_PCIE_REPLAY)
        found["pcie_replay_total"] = ask("nvmlDeviceGetPcieReplayCounter") if replay is None else replay
        for name, number, kind in (
            ("ecc_corrected_total", _ECC_CORRECTED, 0),
            ("ecc_uncorrected_total", _ECC_UNCORRECTED, 1),
        ):
            count = field(number)
            found[name] = ask("nvmlDeviceGetTotalEccErrors", kind, 0) if count is None else count
        rows = [field(number) for number in _REMAPPED]
        if None in rows:
            rows = ask("nvmlDeviceGetRemappedRows") or rows
        found.update(zip(_REMAP_NAMES, rows, strict=True))

        found["throttle_power_seconds"] = seconds(_HELD_BY_POWER)
        software, hardware, brake = self._held or (0, 0, 0)
        heat = seconds(software, hardware)
        found["throttle_thermal_seconds"] = seconds(_HELD_BY_HEAT) if heat is None else heat
        found["throttle_hardware_seconds"] = seconds(hardware, brake)
        action = field(_RECOVERY)
        found["recovery_action"] = None if action is None else parse_recovery_action(int(action))
        return {name: value for name, value in found.items() if value is not None}

    def _traffic(
        self,
        fields: dict[int, tuple[float, int]],
        now: float,
        activity: dict[int, float],
    ) -> dict[str, Value]:
        """PCIe and NVLink in MB/s: differences of counters, or GPM. nvmlDeviceGetPcieThroughput is not used:
        it blocks for 20 ms in each direction."""
        most = self._link_bytes
        found: dict[str, Value] = {}
        for name, number, unit, highest, metric in (
            ("pcie_tx_mb_s", _PCIE_TX, 1, most, gpm.PCIE_TX),
            ("pcie_rx_mb_s", _PCIE_RX, 1, most, gpm.PCIE_RX),
            ("nvlink_tx_mb_s", _NVLINK_TX, 1024, None, gpm.NVLINK_TX),
            ("nvlink_rx_mb_s", _NVLINK_RX, 1024, None, gpm.NVLINK_RX),
        ):
            rate = None
            if number in fields:
                count, bits = fields[number]
                growth = self._growing.growth(name, now, count, bits, highest)
                rate = None if growth is None else growth[0] / growth[1]
                total = self._growing.total(name, bits)
                if total is not None:
                    self.counters[name.replace("_mb_s", "_bytes_total")] = {"": total * unit}
            megabytes = activity.get(metric) if rate is None else rate * unit / MB
            if megabytes is not None:
                found[name] = round(megabytes, 3)
        return found

"""AMD GPUs from the files of the amdgpu driver: no library, no rights, nothing opened but sysfs.

`pcie_bw` is never read: the kernel sleeps a second in it. A card that sleeps is not woken (see drm.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainvitals.sources import SourceUnavailable, Unit, Value, World, pci_vendor
from trainvitals.sources.amd_metrics import FirmwareTable, grown, parse_gpu_metrics
from trainvitals.sources.drm import Card, CardUnit, hwmon_folder, parse_link_generation, present, read_cards
from trainvitals.sources.sysfs import (
    list_folder,
    read_bytes,
    read_int,
    read_pci_name,
    read_text,
    scaled,
    within,
)
from trainvitals.sources.visibility import pick_visible

VENDOR = pci_vendor("amd")
MIB = 1 << 20
SLOW_INTERVAL = 10.0
"""Seconds between readings of what hardly changes or is not free (error counters, limits, the PCIe link)."""
TABLE_INTERVAL = 1.0
"""Seconds between readings of the firmware's table, which the driver fetches from the card each time."""

_INSTINCT = ("738", "740", "741")
"""Device ids of MI100 and MI200, whose energy counter has the unit that later tables document."""


def create(world: World) -> AmdSource:
    return AmdSource(world)


def visible_devices(environment: Mapping[str, str], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """ROCr hides cards first, and HIP counts among those that are left. Cards are counted in PCI order."""
    left = pick_visible(environment.get("ROCR_VISIBLE_DEVICES"), [str(gpu["gpu_uuid"]) for gpu in gpus])
    return pick_visible(environment.get("HIP_VISIBLE_DEVICES"), left)


class AmdSource:
    """Every amdgpu card, keyed by its unique id (its PCI address where the chip has none)."""

    name = "amd"

    def __init__(self, world: World) -> None:
        self._root = world.sysfs_root

    def discover(self) -> Sequence[Unit]:
        cards = self._cards()
        if not cards:
            raise SourceUnavailable("no AMD GPU with the amdgpu driver in sysfs")
        units = []
        for index, (uuid, card) in enumerate(cards.items()):
            labels: dict[str, Value] = {
                "gpu_index": index,
                "gpu_uuid": uuid,
                "gpu_name": read_name(card),
                "vendor": "amd",
            }
            meter = AmdCardMeter(card)
            if meter.integrated:
                labels["memory_kind"] = "unified"
            units.append(CardUnit(f"amd:{uuid}", labels, card, meter.read))
        return units

    def describe(self) -> Mapping[str, object]:
        """Cards with their ids and firmware; empty without any."""
        gpus = [
            present(
                {
                    "gpu_uuid": uuid,
                    "gpu_name": read_name(card),
                    "pci_address": card.address,
                    "vbios_version": read_text(f"{card.device}/vbios_version"),
                    "numa_node": read_int(f"{card.device}/numa_node"),
                }
            )
            for uuid, card in self._cards().items()
        ]
        driver = read_text(f"{self._root}/module/amdgpu/version")
        return {"gpus": gpus, **({"driver_version": driver} if driver else {})} if gpus else {}

    def _cards(self) -> dict[str, Card]:
        found: dict[str, Card] = {}
        for card in read_cards(self._root, VENDOR):
            if card.driver not in ("amdgpu", ""):
                continue
            uuid = read_text(f"{card.device}/unique_id")
            # Partitions of one chip share its id; integrated GPUs have none, or zero.
            known = uuid is not None and uuid.strip("0") and uuid not in found
            found[uuid if known and uuid else card.address] = card
        return found


def read_name(card: Card) -> str:
    """`AMD Instinct MI210`; from the list of PCI names or the bare id if the card does not report it."""
    return (
        read_text(f"{card.device}/product_name")
        or read_pci_name(VENDOR.removeprefix("0x"), card.device_id)
        or f"AMD GPU {card.device_id}"
    )


class AmdCardMeter:
    """The numbers of one card. Whatever cannot be read or cannot be true is absent."""

    def __init__(self, card: Card, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = card.device
        self._instinct = card.device_id.startswith(_INSTINCT)
        self._hwmon = hwmon_folder(card) or f"{card.device}/hwmon/none"
        self._clock = clock
        self._next_slow = float("-inf")
        self._next_table = float("-inf")
        self._table = FirmwareTable()
        self._limits: dict[str, Value] = {}
        self._pwm_max = 255
        self._temperatures = read_sensor_names(self._hwmon)
        self._main_sensor = "edge" if "edge" in self._temperatures else "junction"
        # The kernel shows this voltage on APUs only.
        self.integrated = read_text(f"{self._hwmon}/in1_label") == "vddnb"

    def read(self) -> Mapping[str, Value]:
        now = self._clock()
        values = {**self._read_activity(), **self._read_memory(), **self._read_sensors()}
        if now >= self._next_table:
            self._next_table = now + TABLE_INTERVAL
            # A counter in a separate file wins over the same one in the table.
            values = {**self._read_table(), **present(values)}
        if now >= self._next_slow:
            self._next_slow = now + SLOW_INTERVAL
            self._limits = self._read_limits()
            values |= self._read_slow()
        measured = present(values)
        return {**self._limits, **measured} if measured else {}

    def _read_table(self) -> dict[str, Value | None]:
        before, self._table = self._table, parse_gpu_metrics(read_bytes(f"{self._device}/gpu_metrics") or b"")
        table = self._table
        reasons = table.throttle_reasons
        if reasons is None and table.residencies and before.residencies:
            reasons = grown(before.residencies, table.residencies)
        return {
            "energy_joules": table.energy_joules if self._instinct or table.version > (1, 3) else None,
            "throttle_reasons": ", ".join(reasons) or "none" if reasons is not None else None,
        }

    def _read_activity(self) -> dict[str, Value | None]:
        return {
            "utilization_percent": within(read_int(f"{self._device}/gpu_busy_percent"), 0, 100),
            "memory_utilization_percent": within(read_int(f"{self._device}/mem_busy_percent"), 0, 100),
        }

    def _read_memory(self) -> dict[str, Value | None]:
        total, used, shared = (
            scaled(read_int(f"{self._device}/mem_info_{name}"), MIB, 0, 1 << 24)
            for name in ("vram_total", "vram_used", "gtt_used")
        )
        if self.integrated and total is not None and used is not None:
            # An integrated GPU holds a model in system memory; its own carve-out is a few hundred MB.
            shared_total = scaled(read_int(f"{self._device}/mem_info_gtt_total"), MIB, 0, 1 << 24)
            if shared is not None and shared_total is not None:
                total, used = total + shared_total, used + shared
        percent = used / total * 100 if used is not None and total else None
        return {
            "memory_used_mb": used,
            "memory_total_mb": total,
            "memory_percent": within(percent, 0, 100),
            "shared_memory_used_mb": shared,
        }

    def _read_sensors(self) -> dict[str, Value | None]:
        hwmon = self._hwmon
        power = read_int(f"{hwmon}/power1_average")
        if power is None:
            power = read_int(f"{hwmon}/power1_input")
        pwm = read_int(f"{hwmon}/pwm1")
        return {
            "temperature_celsius": self._read_temperature(self._main_sensor),
            "hotspot_temperature_celsius": self._read_temperature("junction"),
            "memory_temperature_celsius": self._read_temperature("mem"),
            "power_draw_watts": scaled(power, 1e6, 0, 5000),
            "energy_joules": scaled(read_int(f"{hwmon}/energy1_input"), 1e6, 0, 1e15),
            "graphics_clock_mhz": self._read_clock("freq1_input", "pp_dpm_sclk"),
            "memory_clock_mhz": self._read_clock("freq2_input", "pp_dpm_mclk"),
            "fan_speed_rpm": within(read_int(f"{hwmon}/fan1_input"), 0, 50_000),
            "fan_speed_percent": within(pwm / self._pwm_max * 100, 0, 100) if pwm is not None else None,
        }

    def _read_temperature(self, label: str, kind: str = "input") -> float | None:
        sensor = self._temperatures.get(label)
        return read_temperature(f"{self._hwmon}/{sensor}_{kind}") if sensor else None

    def _read_clock(self, sensor: str, table: str) -> float | None:
        clock = scaled(read_int(f"{self._hwmon}/{sensor}"), 1e6, 0, 10_000)
        return clock if clock is not None else parse_clocks(read_text(f"{self._device}/{table}") or "")[0]

    def _read_limits(self) -> dict[str, Value]:
        """What stays the same for long and belongs on every line."""
        self._pwm_max = read_int(f"{self._hwmon}/pwm1_max") or 255
        return present(
            {
                "power_limit_watts": scaled(read_int(f"{self._hwmon}/power1_cap"), 1e6, 1, 5000),
                "temperature_limit_celsius": self._read_temperature(self._main_sensor, "crit"),
            }
        )

    def _read_slow(self) -> dict[str, Value]:
        device = self._device
        uncorrected, corrected = read_error_counts(f"{device}/ras")
        return present(
            {
                "graphics_clock_max_mhz": parse_clocks(read_text(f"{device}/pp_dpm_sclk") or "")[1],
                "memory_clock_max_mhz": parse_clocks(read_text(f"{device}/pp_dpm_mclk") or "")[1],
                "pcie_link_generation": parse_link_generation(read_text(f"{device}/current_link_speed") or ""),
                "pcie_link_width": within(read_int(f"{device}/current_link_width"), 1, 32),
                "pcie_replay_total": within(read_int(f"{device}/pcie_replay_count"), 0, 1 << 63),
                "ecc_corrected_total": corrected,
                "ecc_uncorrected_total": uncorrected,
            }
        )


def read_temperature(path: str) -> float | None:
    """Degrees Celsius; None for what no working chip has (exactly 0 is the firmware's "no sensor")."""
    degrees = scaled(read_int(path), 1000, -50, 150)
    return degrees or None


def read_sensor_names(hwmon: str) -> dict[str, str]:
    """Label to sensor, such as {"junction": "temp2"}. Old kernels have one unlabelled sensor: the edge."""
    names = {}
    for name in list_folder(hwmon):
        if match := re.fullmatch(r"(temp\d+)_input", name):
            label = read_text(f"{hwmon}/{match[1]}_label") or ("edge" if match[1] == "temp1" else match[1])
            names[label] = match[1]
    return names


def parse_clocks(text: str) -> tuple[float | None, float | None]:
    """(clock in use, highest clock) in MHz out of lines like `1: 1700Mhz *`."""
    levels = re.findall(r"^\S+:\s*(\d+)\s*mhz\s*(\*?)", text, re.IGNORECASE | re.MULTILINE)
    clocks = [within(float(clock), 0, 10_000) for clock, _ in levels]
    current = next((clock for clock, (_, star) in zip(clocks, levels, strict=True) if star), None)
    return current, max((clock for clock in clocks if clock is not None), default=None)


def read_error_counts(folder: str) -> tuple[int | None, int | None]:
    """(uncorrected, corrected) errors of all blocks since the driver was loaded; None without ECC."""
    totals: dict[str, int] = {}
    for name in list_folder(folder):
        if name.endswith("_err_count"):
            for kind, count in re.findall(r"^(ue|ce):\s*(\d+)$", read_text(f"{folder}/{name}") or "", re.MULTILINE):
                totals[kind] = totals.get(kind, 0) + int(count)
    return totals.get("ue"), totals.get("ce")

"""Intel GPUs from the files of the i915 and xe drivers: no library, no rights.

Neither driver reports engine utilization to an ordinary user. Both count the time the graphics unit slept,
so `utilization_percent` here is the share of time in which it was awake: an upper bound of computing time.
A card that sleeps is not woken (see drm.py).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals.sources import SourceUnavailable, Unit, Value, World, pci_vendor
from trainvitals.sources.drm import Card, CardUnit, hwmon_folder, present, read_cards
from trainvitals.sources.sysfs import list_folder, read_int, read_pci_name, read_text, scaled, within
from trainvitals.sources.visibility import pick_visible

VENDOR = pci_vendor("intel")
DRIVERS = ("i915", "xe")
MIB = 1 << 20

_REASONS = {
    "pl1": "power cap",
    "pl2": "power cap",
    "pl4": "current limit",
    "psys_pl1": "power cap",
    "psys_pl2": "power cap",
    "psys_crit": "power cap",
    "vr_tdc": "current limit",
    "iccmax": "current limit",
    "fastvmode": "current limit",
    "thermal": "thermal slowdown",
    "soc_thermal": "thermal slowdown",
    "soc_avg_thermal": "thermal slowdown",
    "ratl": "thermal slowdown",
    "mem_thermal": "memory thermal slowdown",
    "vr_thermal": "regulator thermal slowdown",
    "vr_thermalert": "regulator thermal slowdown",
    "prochot": "hardware slowdown",
}


def create(world: World) -> IntelSource:
    return IntelSource(world)


def visible_devices(environment: Mapping[str, str], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """`ZE_AFFINITY_MASK=0,1.0`: cards in PCI order, or one tile of a card, which is the card here."""
    mask = environment.get("ZE_AFFINITY_MASK")
    cards = None if mask is None else ",".join(entry.partition(".")[0] for entry in mask.split(","))
    return pick_visible(cards, [str(gpu["gpu_uuid"]) for gpu in gpus])


class IntelSource:
    """Every card of the i915 or xe driver, keyed by its PCI address."""

    name = "intel"

    def __init__(self, world: World) -> None:
        self._root = world.sysfs_root

    def discover(self) -> Sequence[Unit]:
        cards = self._cards()
        if not cards:
            raise SourceUnavailable("no Intel GPU with the i915 or xe driver in sysfs")
        units = []
        for index, card in enumerate(cards):
            labels: dict[str, Value] = {
                "gpu_index": index,
                "gpu_uuid": card.address,
                "gpu_name": read_name(card),
                "vendor": "intel",
            }
            units.append(CardUnit(f"intel:{card.address}", labels, card, IntelCardMeter(card).read))
        return units

    def describe(self) -> Mapping[str, object]:
        """Cards and their drivers; empty without any."""
        gpus = [
            {
                "gpu_uuid": card.address,
                "gpu_name": read_name(card),
                "pci_address": card.address,
                "driver": card.driver,
            }
            for card in self._cards()
        ]
        return {"gpus": gpus} if gpus else {}

    def _cards(self) -> list[Card]:
        return [card for card in read_cards(self._root, VENDOR) if card.driver in DRIVERS]


def read_name(card: Card) -> str:
    """`Arc A770`, from the machine's list of PCI names, else the bare id."""
    return read_pci_name(VENDOR.removeprefix("0x"), card.device_id) or f"Intel GPU {card.device_id}"


class IntelCardMeter:
    """The numbers of one card. Power and use come from counters, so the first reading has neither."""

    def __init__(self, card: Card, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hwmon = hwmon_folder(card) or f"{card.device}/hwmon/none"
        self._sensors = read_labels(self._hwmon)
        self._layout = xe_layout(card) if card.driver == "xe" else i915_layout(card)
        self._before: tuple[float, float | None, list[int]] | None = None

    def read(self) -> Mapping[str, Value]:
        now = self._clock()
        energy = scaled(self._read_sensor("energy_input", "card", "pkg", ""), 1e6, 0, 1e15)
        idle = read_idle(self._layout)
        use, power = self._difference(now, energy, idle)
        self._before = (now, energy, idle)
        total, used = read_memory(self._layout)
        measured = present(
            {
                "utilization_percent": use,
                "memory_used_mb": used,
                "memory_total_mb": total,
                "memory_percent": within(used / total * 100, 0, 100) if used is not None and total else None,
                "temperature_celsius": self._read_temperature("pkg", ""),
                "memory_temperature_celsius": self._read_temperature("vram"),
                "power_draw_watts": power,
                "energy_joules": energy,
                "fan_speed_rpm": within(read_int(f"{self._hwmon}/fan1_input"), 0, 50_000),
                "graphics_clock_mhz": within(read_first(self._layout.clock), 0, 10_000),
                "throttle_reasons": read_throttle_reasons(self._layout),
            }
        )
        limits = present(
            {
                # 0 means that the limit is switched off.
                "power_limit_watts": scaled(self._read_sensor("power_max", "card", "pkg", ""), 1e6, 1, 5000),
                "graphics_clock_max_mhz": within(read_first(self._layout.clock_max), 1, 10_000),
            }
        )
        return {**limits, **measured} if measured else {}

    def _difference(self, now: float, energy: float | None, idle: list[int]) -> tuple[float | None, float | None]:
        """(percent of time awake, watts) since the reading before."""
        if self._before is None or now <= self._before[0]:
            return None, None
        then, energy_then, idle_then = self._before
        elapsed = now - then
        power = within((energy - energy_then) / elapsed, 0, 5000) if energy is not None and energy_then else None
        use = None
        if idle and len(idle) == len(idle_then):
            slept = [after - before for before, after in zip(idle_then, idle, strict=True)]
            # The counter has whole milliseconds and is read a moment after the clock: allow a little over.
            shares = [within(part / (elapsed * 1000), 0, 1.25) for part in slept]
            awake = [1 - min(share, 1) for share in shares if share is not None]
            use = 100 * sum(awake) / len(awake) if len(awake) == len(shares) else None
        return use, power

    def _read_sensor(self, name: str, *labels: str) -> int | None:
        """The sensor of the first label that the card has; another one would measure something else."""
        for label in labels:
            if file := self._sensors.get((name, label)):
                return read_int(f"{self._hwmon}/{file}")
        return None

    def _read_temperature(self, *labels: str) -> float | None:
        degrees = scaled(self._read_sensor("temp_input", *labels), 1000, -50, 150)
        return degrees or None


def read_labels(hwmon: str) -> dict[tuple[str, str], str]:
    """(name, label) to file: {("energy_input", "card"): "energy1_input"}; without a label it is empty."""
    files: dict[tuple[str, str], str] = {}
    for file in list_folder(hwmon):
        if match := re.fullmatch(r"((energy|power|temp)\d+)_(input|max)", file):
            label = read_text(f"{hwmon}/{match[1]}_label") or ""
            files.setdefault((f"{match[2]}_{match[3]}", label), file)
    return files


class Layout(NamedTuple):
    """Where a driver keeps what is not in hwmon. Of several files for one value the first readable counts."""

    idle: tuple[str, ...]
    """Milliseconds slept, one file per graphics unit"""
    clock: tuple[str, ...]
    clock_max: tuple[str, ...]
    memory_total: tuple[str, ...]
    """Bytes, one file per tile"""
    memory_free: str
    throttle_folder: str
    throttle_status: str
    throttle_prefix: str


def i915_layout(card: Card) -> Layout:
    gt = f"{card.node}/gt/gt0"
    # Without its deep sleep state the counter does not move, which would read as always busy.
    sleeps = read_text(f"{gt}/rc6_enable") != "0"
    counters = (f"{gt}/rc6_residency_ms", f"{card.node}/power/rc6_residency_ms")
    return Layout(
        idle=tuple(path for path in counters if Path(path).exists())[:1] if sleeps else (),
        clock=(f"{gt}/rps_act_freq_mhz", f"{card.node}/gt_act_freq_mhz"),
        clock_max=(f"{gt}/rps_RP0_freq_mhz", f"{card.node}/gt_RP0_freq_mhz", f"{card.node}/gt_max_freq_mhz"),
        memory_total=(f"{card.node}/lmem_total_bytes",),
        memory_free=f"{card.node}/lmem_avail_bytes",
        throttle_folder=gt,
        throttle_status="throttle_reason_status",
        throttle_prefix="throttle_reason_",
    )


def xe_layout(card: Card) -> Layout:
    tiles = [f"{card.device}/{name}" for name in list_folder(card.device) if re.fullmatch(r"tile\d+", name)]
    # The first unit of a tile computes; a second one, where there is one, only decodes video.
    units = [f"{tile}/{min(found)}" for tile in tiles if (found := _units(tile))]
    frequency = f"{units[0]}/freq0" if units else f"{card.device}/tile0/gt0/freq0"
    return Layout(
        idle=tuple(f"{unit}/gtidle/idle_residency_ms" for unit in units),
        clock=(f"{frequency}/act_freq",),
        clock_max=(f"{frequency}/rp0_freq", f"{frequency}/max_freq"),
        memory_total=tuple(f"{tile}/physical_vram_size_bytes" for tile in tiles),
        memory_free="",
        throttle_folder=f"{frequency}/throttle",
        throttle_status="status",
        throttle_prefix="reason_",
    )


def _units(tile: str) -> list[str]:
    return [name for name in list_folder(tile) if re.fullmatch(r"gt\d+", name)]


def read_first(paths: tuple[str, ...]) -> int | None:
    """The first of several files that holds a number."""
    return next((value for path in paths if (value := read_int(path)) is not None), None)


def read_idle(layout: Layout) -> list[int]:
    """Sleep counters in milliseconds; empty unless every unit has one that ever moved."""
    counters = [read_int(path) for path in layout.idle]
    moved = [counter for counter in counters if counter]
    return moved if len(moved) == len(counters) else []


def read_memory(layout: Layout) -> tuple[float | None, float | None]:
    """(total, used) device memory in MB; xe does not report used memory to an ordinary user."""
    totals = [scaled(read_int(path), MIB, 1, 1 << 24) for path in layout.memory_total]
    known = [total for total in totals if total is not None]
    total = sum(known) if known and len(known) == len(totals) else None
    free = scaled(read_int(layout.memory_free), MIB, 0, 1 << 24) if layout.memory_free else None
    return total, within(total - free, 0, total) if total is not None and free is not None else None


def read_throttle_reasons(layout: Layout) -> str | None:
    """In words, `none` when not throttled; None where the driver does not report it."""
    folder, prefix = layout.throttle_folder, layout.throttle_prefix
    status = read_int(f"{folder}/{layout.throttle_status}")
    if not status:
        return None if status is None else "none"
    names = [name for name in list_folder(folder) if name.startswith(prefix) and name != layout.throttle_status]
    reasons = [name.removeprefix(prefix) for name in names if read_int(f"{folder}/{name}")]
    return ", ".join(dict.fromkeys(_REASONS.get(reason, reason.replace("_", " ")) for reason in reasons)) or "other"

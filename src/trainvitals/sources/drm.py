"""Graphics cards in sysfs: what the AMD and the Intel source share.

Finding the cards of a vendor, and reading one without keeping it awake: a card that is runtime-suspended is
not touched at all (almost every read of amdgpu, i915 or xe wakes the card), and one that could sleep is left
alone for a while when it is idle, because each read restarts its autosuspend timer.
Tested in tests/sources/test_amd.py.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainvitals.sources import Notice, Sample, UnitGone, Value
from trainvitals.sources.sysfs import list_folder, read_int, read_text

IDLE_READS = 3
"""Idle readings in a row after which a card that could sleep is left alone."""
SHORTEST_REST = 10.0
"""Seconds a resting card is left alone at least."""

_CARD = re.compile(r"card\d+")


class Card(NamedTuple):
    """One graphics card. `node` and `device` are folders."""

    node: str
    device: str
    address: str
    """PCI address such as 0000:43:00.0"""
    device_id: str
    """Four hex digits"""
    driver: str


def read_cards(root: str, vendor: str) -> list[Card]:
    """The cards of a PCI vendor (`0x1002`), in PCI order; empty when there are none."""
    cards = []
    for name in list_folder(f"{root}/class/drm"):
        node = f"{root}/class/drm/{name}"
        device = f"{node}/device"
        if not _CARD.fullmatch(name) or read_text(f"{device}/vendor") != vendor:
            continue
        uevent = parse_uevent(read_text(f"{device}/uevent") or "")
        address = uevent.get("PCI_SLOT_NAME") or Path(device).resolve().name
        device_id = (read_text(f"{device}/device") or "0x0000").removeprefix("0x")
        cards.append(Card(node, device, address, device_id, uevent.get("DRIVER", "")))
    return sorted(cards, key=lambda card: card.address)


def parse_uevent(text: str) -> dict[str, str]:
    """KEY=value lines."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def hwmon_folder(card: Card) -> str | None:
    """The card's sensor folder; None on cards without one (some MI cards)."""
    names = [name for name in list_folder(f"{card.device}/hwmon") if name.startswith("hwmon")]
    return f"{card.device}/hwmon/{names[0]}" if names else None


def parse_link_generation(text: str) -> int | None:
    """`16.0 GT/s PCIe` is generation 4; None for a speed that is not known."""
    speed = text.split(" ", 1)[0]
    return {"2.5": 1, "5.0": 2, "5": 2, "8.0": 3, "8": 3, "16.0": 4, "32.0": 5, "64.0": 6}.get(speed)


def present(values: Mapping[str, Value | None]) -> dict[str, Value]:
    """Without what could not be read."""
    return {name: value for name, value in values.items() if value is not None}


class CardUnit:
    """One card, read by `read_values`; sleep, loss and removal are handled here.

    Gives one sample per read with `state` ok, asleep (nothing else known: the card was not touched) or lost
    (it is there, but answers nothing). Gives no sample while an idle card is left alone to fall asleep.
    """

    def __init__(
        self,
        key: str,
        labels: Mapping[str, Value],
        card: Card,
        read_values: Callable[[], Mapping[str, Value]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.key = key
        self._labels = labels
        self._card = card
        self._read_values = read_values
        self._clock = clock
        self._noticed: set[str] = set()
        self._idle_reads = 0
        self._rest_until = float("-inf")

    def read(self) -> Sequence[Sample | Notice]:
        began = time.time()
        device = self._card.device
        status = read_text(f"{device}/power/runtime_status")
        if status is None and not Path(f"{device}/vendor").exists():
            raise UnitGone(f"{self._card.address} is no longer in sysfs")
        if status in ("suspended", "suspending"):
            self._idle_reads = 0
            notices = self._notice_once(
                "gpu_asleep",
                "info",
                "is asleep (runtime suspended); reading resumes when it wakes up",
            )
            return [*notices, Sample("gpu", self._labels, {"state": "asleep"}, began)]
        if self._clock() < self._rest_until:
            return []
        values = self._read_values()
        self._plan_rest(values)
        if not values:
            notices = self._notice_once("gpu_lost", "critical", "is not responding")
            return [*notices, Sample("gpu", self._labels, {"state": "lost"}, began)]
        notices = []
        if "gpu_lost" in self._noticed:
            notices = self._notice_once("gpu_recovered", "info", "is back (was lost)")
            self._noticed -= {"gpu_lost", "gpu_recovered"}  # the next loss is news again
        return [*notices, Sample("gpu", self._labels, {**values, "state": "ok"}, began)]

    def close(self) -> None:
        """Nothing is kept open."""

    def _notice_once(self, event: str, severity: str, what: str) -> list[Notice]:
        if event in self._noticed:
            return []
        self._noticed.add(event)
        message = f"GPU {self._labels['gpu_index']} ({self._labels['gpu_name']}, {self._card.address}) {what}"
        return [Notice(event, message, severity, dict(self._labels))]

    def _plan_rest(self, values: Mapping[str, Value]) -> None:
        busy = values.get("utilization_percent", values.get("graphics_clock_mhz"))
        idle = isinstance(busy, int | float) and busy < 1
        if not idle or read_text(f"{self._card.device}/power/control") != "auto":
            self._idle_reads = 0
            return
        self._idle_reads += 1
        if self._idle_reads >= IDLE_READS:
            delay = (read_int(f"{self._card.device}/power/autosuspend_delay_ms") or 0) / 1000
            self._rest_until = self._clock() + max(SHORTEST_REST, 2 * delay)

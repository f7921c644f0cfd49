"""Many values for one NVML call, and what counters did between two of them."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from trainvitals.sources.nvidia.nvml import NvmlDevice, known

ALL_LINKS = 0xFFFFFFFF
"""Scope of an NVLink field that means the sum over all links; 0 would be the first link alone."""

_FIELD = struct.Struct("=IIqqiIQ")  # id, scope, timestamp, latency, type, return code, value
_LONG_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)
_UNSIGNED_BITS = {1: 32, 2: _LONG_BITS, 3: 64, 6: 16}
_SIGNED_BITS = {4: 64, 5: 32}


def parse_field(kind: int, raw: int) -> tuple[float, int] | None:
    """(value, bits of its type) of the eight bytes `raw`, or None for NVML's marker of an unknown value."""
    if kind in _UNSIGNED_BITS:
        bits = _UNSIGNED_BITS[kind]
        value = known(raw & ((1 << bits) - 1), bits)
        return None if value is None else (value, bits)
    if kind in _SIGNED_BITS:
        bits = _SIGNED_BITS[kind]
        raw &= (1 << bits) - 1
        return raw - (1 << bits) if raw >> (bits - 1) else raw, bits
    if kind == 0:
        return struct.unpack("<d", raw.to_bytes(8, "little"))[0], 64
    return None


class FieldBatch:
    """A kept buffer of field values, unpacked at once: a tenth of the cost of reading it field by field."""

    def __init__(self, binding: Any, fields: Sequence[tuple[int, int]]) -> None:
        self._count = ctypes.c_int(len(fields))
        self._buffer = (binding.c_nvmlFieldValue_t * len(fields))()
        for slot, (field, scope) in zip(self._buffer, fields, strict=True):
            slot.fieldId, slot.scopeId = field, scope

    def read(self, device: NvmlDevice) -> dict[int, tuple[float, int]]:
        """Field id to (value, bits of its type), only of the fields this GPU gives."""
        if not device.fill(("fields",), "nvmlDeviceGetFieldValues", self._count, self._buffer):
            return {}
        found = {}
        for field, _scope, _time, _latency, kind, code, raw in _FIELD.iter_unpack(self._buffer):
            if code == 0:
                value = parse_field(kind, raw)
                if value is not None:
                    found[field] = value
        return found


class Growing:
    """Counters of the driver: how much each grew, and what it has counted."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._grown: dict[str, float] = {}

    def growth(self, name: str, now: float, count: float, bits: int, most: float | None) -> tuple[float, float] | None:
        """Growth of `count` since the last call and the seconds it took, or None at first and after the counter
        restarted.

        A counter of 32 bits wraps: it is followed only while `most`, the highest possible rate, cannot wrap
        it twice between two readings.
        """
        before = self._last.get(name)
        self._last[name] = (now, count)
        if before is None or now <= before[0]:
            return None
        seconds, grown = now - before[0], count - before[1]
        if bits == 32:
            if most is None or most * seconds >= 1 << 32:
                return None
            grown %= 1 << 32
        if grown < 0:
            return None
        self._grown[name] = self._grown.get(name, 0) + grown
        return grown, seconds

    def total(self, name: str, bits: int) -> float | None:
        """What the driver has counted; of a counter that wraps, how much it grew so far, None before it did."""
        return self._grown.get(name) if bits == 32 else self._last[name][1]

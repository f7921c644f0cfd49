"""The table that amdgpu's firmware keeps (`gpu_metrics`): energy and throttling, which no other file tells.

Layouts are versioned by the table's header and come from the kernel's kgd_pp_interface.h. Versions that are
not listed here give nothing, rather than numbers from the wrong place. Tested in tests/sources/test_amd.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

ENERGY_UNIT_JOULES = 2.0**-16

_HEADER = struct.Struct("<HBB")
_WORD = struct.Struct("<I")
_LONG = struct.Struct("<Q")

# (format, content) -> offset of the 64-bit energy counter. In 1.3 its unit depends on the chip.
_ENERGY = {(1, 3): 24, (1, 4): 24, (1, 6): 16, (1, 7): 24, (1, 8): 24}
_THROTTLE_BITS = {(1, 3): 112}
# (format, content) -> offset of five 32-bit counters, one for each of _RESIDENCIES.
_RESIDENCY = {(1, 6): 36, (1, 7): 44, (1, 8): 44}
_RESIDENCIES = (
    "hardware slowdown",
    "power cap",
    "thermal slowdown",
    "regulator thermal slowdown",
    "memory thermal slowdown",
)

# The status bits that do not depend on the chip: 16 each for power, current, temperature and the rest.
_BITS = {
    **dict.fromkeys(range(16), "power cap"),
    **dict.fromkeys(range(16, 32), "current limit"),
    **dict.fromkeys(range(32, 48), "thermal slowdown"),
    34: "memory thermal slowdown",
    **dict.fromkeys((38, 39, 40, 41, 44, 45), "regulator thermal slowdown"),
    **dict.fromkeys((46, 47), "hardware slowdown"),
    **dict.fromkeys(range(48, 64), "other"),
}


@dataclass(frozen=True, slots=True)
class FirmwareTable:
    """The values of one table; None or empty where its version has none."""

    version: tuple[int, int] = (0, 0)
    energy_joules: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    """Reasons in force now, in words."""
    residencies: dict[str, int] = field(default_factory=dict)
    """Counters that grow while their reason is in force."""


def parse_gpu_metrics(raw: bytes) -> FirmwareTable:
    """Read a table; an empty one for bytes that are cut short, of an unknown version, or no table at all."""
    if len(raw) < _HEADER.size:
        return FirmwareTable()
    size, layout, content = _HEADER.unpack_from(raw)
    version = (layout, content)
    if size > len(raw) or version not in _ENERGY:
        return FirmwareTable()
    energy = _at(_LONG, raw, _ENERGY[version])
    bits = _at(_LONG, raw, _THROTTLE_BITS[version]) if version in _THROTTLE_BITS else None
    residencies: dict[str, int] = {}
    for index, name in enumerate(_RESIDENCIES if version in _RESIDENCY else ()):
        counter = _at(_WORD, raw, _RESIDENCY[version] + 4 * index)
        if counter is not None:
            residencies[name] = counter
    return FirmwareTable(
        version=version,
        energy_joules=energy * ENERGY_UNIT_JOULES if energy is not None else None,
        throttle_reasons=parse_throttle_bits(bits) if bits is not None else None,
        residencies=residencies,
    )


def parse_throttle_bits(bits: int) -> tuple[str, ...]:
    """The reasons in words, each once, in the order of their bits."""
    return tuple(dict.fromkeys(_BITS[bit] for bit in range(64) if bits >> bit & 1))


def grown(before: dict[str, int], after: dict[str, int]) -> tuple[str, ...]:
    """Which reasons were in force between two tables. A counter that went back (driver reload) is ignored."""
    return tuple(name for name, count in after.items() if count > before.get(name, count))


def _at(kind: struct.Struct, raw: bytes, offset: int) -> int | None:
    """A value of the table; None past its end, and for all ones: the firmware's "not supported"."""
    if offset + kind.size > len(raw):
        return None
    value: int = kind.unpack_from(raw, offset)[0]
    return None if value == (1 << 8 * kind.size) - 1 else value

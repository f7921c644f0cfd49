"""Prometheus remote write on the wire: protobuf, written by hand, in snappy.

The message is four small structures (https://prometheus.io/docs/specs/remote_write_spec/), not worth a library.
Encoded labels are kept: they hardly ever change.
Tested in tests/exporters/test_remote_write.py.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

import cramjam

_STALE_BYTES = struct.pack("<Q", 0x7FF0000000000002)  # the NaN that marks the end of a series


def varint(value: int) -> bytes:
    """A number in seven-bit groups, the lowest first."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def encode_labels(labels: Mapping[str, str]) -> bytes:
    """The labels of a series, `__name__` among them, in the order the protocol asks for; empty ones are left out."""
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, labels[name].encode()))
        for name in sorted(labels)
        if labels[name]
    )


def encode_series(labels: bytes, value: float | None, milliseconds: int) -> bytes:
    """One series with one sample; None marks its end. `labels` as `encode_labels` makes them."""
    # Python may quieten a signalling NaN on its way, so that one is never a float here.
    number = _STALE_BYTES if value is None else struct.pack("<d", value)
    sample = b"\x09" + number + b"\x10" + varint(milliseconds & 0xFFFFFFFFFFFFFFFF)
    return _field(1, labels + _field(2, sample))


def encode_request(series: Iterable[bytes]) -> bytes:
    """The body of a request."""
    return bytes(cramjam.snappy.compress_raw(b"".join(series)))

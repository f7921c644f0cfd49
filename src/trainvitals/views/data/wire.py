"""Answers as bytes: JSON in which arrays are compact and every float survives.

In an array a value that is not finite is null, and its index and spelling are in `nonfinite` beside it; anywhere else
it is the string "NaN", "Infinity" or "-Infinity", as in the journal. In a band, `nonfinite` also has the places where
only some of the series are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trainvitals.journal.encoding import dump_json, spell, spell_all

Floats = NDArray[np.float64]
Answer = dict[str, Any]


def encode(answer: Any) -> bytes:
    """JSON. Arrays of numpy stay as they are."""
    return dump_json(_spell(answer), orjson.OPT_SERIALIZE_NUMPY)


def _spell(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _spell(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spell(item) for item in value]
    return value if isinstance(value, (np.ndarray, orjson.Fragment)) else spell_all(value)


def pack_values(values: Floats) -> dict[str, Any]:
    """`y`, and `nonfinite` only where there is something to say."""
    broken = np.flatnonzero(~np.isfinite(values))
    return {"y": np.ascontiguousarray(values), **pack_broken((int(at), float(values[at])) for at in broken)}


def pack_broken(places: Iterable[tuple[int, float]]) -> dict[str, Any]:
    """`nonfinite` of (index, value), only where there is something to say."""
    packed = [[at, spell(value)] for at, value in places]
    return {"nonfinite": packed} if packed else {}


def pack_axis(values: Floats, axis: str) -> Any:
    """Steps as whole numbers, times to the millisecond."""
    if axis == "step":
        return values.astype(np.int64)
    return np.round(values, 3) if axis in ("time", "relative") else np.ascontiguousarray(values)

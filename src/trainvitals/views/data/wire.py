"""Answers as bytes: JSON in which arrays are compact and every float survives.

In an array a value that is not finite is null, and its index and spelling are in `nonfinite` beside it; anywhere else
it is the string "NaN", "Infinity" or "-Infinity", as in the journal. In a band, `nonfinite` also has the places where
only some of the series are not finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from trainvitals.journal.encoding import dump_json, spell, spell_all
from trainvitals.views.data.shapes import Numbers, ValuesJson

Floats = NDArray[np.float64]


def encode(answer: Any) -> bytes:
    """JSON. Arrays of numpy stay as they are."""
    return dump_json(_spell(answer), orjson.OPT_SERIALIZE_NUMPY)


def _spell(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _spell(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_spell(item) for item in value]
    return value if isinstance(value, (np.ndarray, orjson.Fragment)) else spell_all(value)


def find_broken(values: Floats) -> Iterator[tuple[int, float]]:
    """Index and value of what is not finite."""
    return ((int(at), float(values[at])) for at in np.flatnonzero(~np.isfinite(values)))


def mark_broken(target: ValuesJson, places: Iterable[tuple[int, float]]) -> None:
    """Add `nonfinite` if there is anything: `places` are (index, value)."""
    if marks := [(at, str(spell(value))) for at, value in places]:
        target["nonfinite"] = marks


def pack_axis(values: Floats, axis: str) -> Numbers:
    """Steps as whole numbers, times to the millisecond."""
    if axis == "step":
        return values.astype(np.int64)
    return np.round(values, 3) if axis in ("time", "relative") else np.ascontiguousarray(values)

"""Where samples are missing: a line across would show what nobody measured. As in the page, logic/align.ts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MUCH_LONGER = 5
"""In usual distances between samples."""


def find_gaps(x: NDArray[np.float64]) -> NDArray[np.intp]:
    """The places in x (ascending) after which samples are missing for far longer than usual."""
    if len(x) < 3:
        return np.empty(0, dtype=np.intp)
    # Over two samples: each piece of a thinned curve has its lowest and its highest, which are often neighbours.
    pairs = x[2:] - x[:-2]
    middle = (len(pairs) - 1) // 2
    usual = float(np.partition(pairs, middle)[middle]) / 2  # np.median imports much and takes ten times as long
    return np.flatnonzero(np.diff(x) > MUCH_LONGER * usual + 1e-9)

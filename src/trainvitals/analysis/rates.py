"""A counter as its rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def rate_of(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Growth per unit of `x` between neighbours, at the later of the two. A counter that falls was reset: its rate is
    not known there, so the point is missing, and the next one counts from the new beginning."""
    span, rise = np.diff(x), np.diff(y)
    known = (span > 0) & (rise >= 0)
    return x[1:][known], rise[known] / span[known]

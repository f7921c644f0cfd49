"""Which of the metrics that runs logged a list shows first: the same in `trainvitals runs` and on the page, which gets
the patterns with the panels. Held together by tests/data/key_metrics.json."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping

_VALIDATED = "(^|[/_.])(val|valid|validation|eval|test)([/_.]|$)"
KEY_METRICS = (
    f"^(?!.*{_VALIDATED})(.*[/_.])?loss$",
    f"^(?=.*{_VALIDATED})(.*[/_.])?loss$",
    _VALIDATED,
    "(^|[/_.])acc(uracy)?$",
)
"""The loss of the training, then what was validated, then accuracy; for Python's and JavaScript's expressions."""
_COMPILED = tuple(re.compile(pattern, re.DOTALL) for pattern in KEY_METRICS)


@functools.lru_cache(maxsize=10_000)
def rank_metric(name: str) -> int:
    """The lower, the more one wants to see it."""
    return next((at for at, pattern in enumerate(_COMPILED) if pattern.search(name)), len(_COMPILED))


def order_metrics(summaries: Iterable[Mapping[str, object]]) -> list[str]:
    """The names that these runs logged: first what at least half of them have, by rank, then the others by count."""
    counts: Counter[str] = Counter()
    total = 0
    for summary in summaries:
        counts.update(summary.keys())
        total += 1

    def place(name: str) -> tuple[bool, int, int, str]:
        rank, count = rank_metric(name), counts[name]
        return (False, rank, -count, name) if count * 2 >= total else (True, -count, rank, name)

    return sorted(counts, key=place)

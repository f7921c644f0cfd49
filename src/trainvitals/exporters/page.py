"""The page that Prometheus reads: the text format, or OpenMetrics (units, exemplars, created times) on request."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Families(Collector):
    """What prometheus-client wants to be given: something that can be collected."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(families: Iterable[Metric], accept: str = "") -> tuple[bytes, str]:
    """(the page, its content type) for an Accept header."""
    if "application/openmetrics-text" in accept:
        return _OPENMETRICS(_Families(families)), OPENMETRICS
    kept = []
    for family in families:
        # Created times are OpenMetrics' own; in the text format they would be one more series each.
        if family.type in ("counter", "histogram", "summary"):
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        kept.append(family)
    return exposition.generate_latest(_Families(kept)), TEXT


_OPENMETRICS: Callable[[Collector], bytes] = openmetrics.generate_latest

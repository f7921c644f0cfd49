"""OpenTelemetry metrics over HTTP, sent by the official SDK's exporter. Needs the extra `otlp`.

The families are handed to the exporter as data points; counters and histograms are cumulative. A summary has no
counterpart in the SDK and is left out: the newest value is there as a gauge.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from prometheus_client.metrics_core import Metric

from trainvitals.errors import SettingError

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

TIMEOUT = 10.0


def convert(families: Iterable[Metric], host: str, started: float, now: float) -> MetricsData:
    """The families as OpenTelemetry's data."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as Exported
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    start, moment = int(started * 1e9), int(now * 1e9)
    cumulative = AggregationTemporality.CUMULATIVE
    metrics = []
    for family in families:
        if family.type == "histogram":
            metrics.append(Exported(family.name, family.documentation, "s", _histogram(family, start, moment)))
            continue
        if family.type == "summary":
            continue
        points = [
            NumberDataPoint(dict(sample.labels), start, moment, float(sample.value))
            for sample in family.samples
            if not sample.name.endswith("_created")
        ]
        data = Sum(points, cumulative, True) if family.type == "counter" else Gauge(points)
        metrics.append(Exported(family.name, family.documentation, family.unit, data))
    resource = Resource({"service.name": "trainvitals", "host.name": host})
    scope = InstrumentationScope("trainvitals", version("trainvitals"))
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, metrics, "")], "")])


def _histogram(family: Metric, start: int, moment: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint

    series: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        mine = series.setdefault(tuple(sorted(labels.items())), {})
        mine[sample.labels.get("le", sample.name.removeprefix(family.name))] = float(sample.value)
    points = []
    for key, values in series.items():
        ends = sorted((end for end in values if not end.startswith("_")), key=float)
        counts = [int(values[end]) for end in ends]
        points.append(
            HistogramDataPoint(
                attributes=dict(key),
                start_time_unix_nano=start,
                time_unix_nano=moment,
                count=counts[-1],
                sum=values.get("_sum", 0.0),
                bucket_counts=[count - before for count, before in zip(counts, [0, *counts], strict=False)],
                explicit_bounds=[float(end) for end in ends if end != "+Inf"],
                min=0.0,
                max=0.0,
            )
        )
    return Histogram(points, AggregationTemporality.CUMULATIVE)


class Otlp:
    """Exports every interval."""

    def __init__(
        self,
        url: str,
        collect: Callable[[], Iterable[Metric]],
        *,
        host: str,
        started: float,
        interval: float = 15.0,
        token: str | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError as error:
            raise SettingError("OTLP needs the OpenTelemetry SDK", hint="pip install 'trainvitals[otlp]'") from error
        headers = {"Authorization": f"Bearer {token}"} if token is not None else None
        self._exporter = OTLPMetricExporter(endpoint=url, headers=headers, timeout=TIMEOUT)
        self._collect = collect
        self._host = host
        self._started = started
        self._interval = interval
        self._tell = tell
        self._failing = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def export_now(self) -> bool:
        """Send everything there is; False if it was not taken, which is told once."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = convert(self._collect(), self._host, self._started, time.time())
        taken = self._exporter.export(data) is MetricExportResult.SUCCESS
        if not taken and not self._failing:
            self._tell("the OTLP endpoint does not take metrics; it is tried again")
        self._failing = not taken
        return taken

    def close(self) -> None:
        self._ending.set()
        self._exporter.shutdown()  # first: it ends the wait between two tries
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._ending.wait(self._interval):
            self.export_now()

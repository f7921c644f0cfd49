"""OpenTelemetry metrics over HTTP (OTLP). Needs the extra `otlp`: the official SDK and protocol buffers.

Who sends, and the headers of the user's OTEL_* variables, are the SDK's to say. The points are written straight into
the protocol buffers, because the SDK's own have no summary and cannot end a series; they go through a spool on disk.
Counters and histograms are cumulative; an info family is a gauge of 1. A series that has ended gets one more point
which says that there is no value, so that a server need not wait for it to grow old.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from types import MappingProxyType
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from trainvitals.errors import SettingError
from trainvitals.exporters.contracts import Order
from trainvitals.exporters.labels import format_labels
from trainvitals.exporters.push_queue import PushQueue, PushRequest
from trainvitals.http_client import Answer

_UNITS = {
    "seconds": "s", "celsius": "Cel", "watts": "W", "joules": "J", "percent": "%", "bytes": "By", "hertz": "Hz",
    "ratio": "1",
}  # fmt: skip
"""Only units that a receiver spells as our names do: it would add another one's name to the metric's."""
_CUMULATIVE = ("counter", "histogram", "summary")
_INSIDE = ("le", "quantile")
"""Labels that distinguish the parts of one point."""

_Point = Any  # a data point of one of the kinds; the package is not there without the extra
_Key = tuple[str, str]


def start(order: Order) -> PushQueue:
    settings = order.settings
    dialect = Otlp(settings.prometheus_host or order.host, order.instance, settings.prometheus_labels)
    return PushQueue.of(order, dialect)


class Otlp:
    """OTLP; raises SettingError without the extra."""

    title = "OTLP"

    def __init__(self, host: str, instance: str, labels: Mapping[str, str] = MappingProxyType({})) -> None:
        try:
            import opentelemetry.proto.collector.metrics.v1.metrics_service_pb2  # noqa: F401 - whether it is there
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        except ImportError as error:
            raise SettingError(
                "OTLP needs OpenTelemetry's SDK and protocol buffers", hint="pip install 'trainvitals[otlp]'"
            ) from error
        self._headers = {
            **_read_headers(os.environ),
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "gzip",
        }
        ours = Resource({"service.name": "trainvitals", "host.name": host, "service.instance.id": instance, **labels})
        self._resource = {
            name: str(value) for name, value in ours.merge(OTELResourceDetector().detect()).attributes.items()
        }
        self._families: dict[str, tuple[str, str, str]] = {}
        """Name -> help, unit, kind of every metric that was sent."""
        self._points: dict[_Key, _Point] = {}
        """The newest point of every series that has not ended."""

    def prepare(self, body: bytes) -> PushRequest:
        return PushRequest(body, self._headers)

    def is_misunderstood(self, _sent: PushRequest, _answer: Answer) -> bool:
        return False

    def begin_again(self) -> None:
        """There is one way to say it."""

    def is_passing(self, status: int) -> bool:
        return status in (429, 502, 503, 504)

    def find_complaint(self, _sent: PushRequest, answer: Answer) -> str | None:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse

        try:
            partial = ExportMetricsServiceResponse.FromString(answer.body).partial_success
        except DecodeError:
            return None  # some answer in words
        if not partial.rejected_data_points:
            return None
        return f"{partial.rejected_data_points} points: {partial.error_message}"

    def encode(self, families: Iterable[Metric], moment_ms: int) -> list[bytes]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        request = ExportMetricsServiceRequest()
        about = request.resource_metrics.add()
        about.resource.attributes.extend(_attributes(self._resource))
        scope = about.scope_metrics.add()
        scope.scope.name, scope.scope.version = "trainvitals", version("trainvitals")
        points: dict[_Key, _Point] = {}
        for family in families:
            name = f"{family.name}_info" if family.type == "info" else family.name
            unit = _UNITS.get(family.unit, "")
            self._families[name] = (family.documentation, unit, family.type)
            created = {
                format_labels(sample.labels): sample.value
                for sample in family.samples
                if sample.name.endswith("_created")
            }
            for text, labels, samples in _by_point(family):
                point = self._points.get((name, text))
                if point is None:
                    point = _make_point(family.type)
                    point.attributes.extend(_attributes(labels))
                    if family.type in _CUMULATIVE:
                        # Without a created time: from the first point on, as the specification has it.
                        began = created.get(text)
                        point.start_time_unix_nano = moment_ms * 1_000_000 if began is None else int(began * 1e9)
                point.time_unix_nano = moment_ms * 1_000_000
                _FILL.get(family.type, _fill_number)(point, family.name, samples)
                points[name, text] = point
        ended = {key: _end(point, moment_ms) for key, point in self._points.items() if key not in points}
        self._points = points
        metrics: dict[str, Any] = {}
        for (name, _), point in [*points.items(), *ended.items()]:
            if name not in metrics:
                metrics[name] = _open(scope.metrics.add(), name, *self._families[name])
            metrics[name].data_points.append(point)
        return [gzip.compress(request.SerializeToString(), 1)] if metrics else []


def _read_headers(environ: Mapping[str, str]) -> dict[str, str]:
    """The headers of OTEL_EXPORTER_OTLP_HEADERS, such as a vendor's API key."""
    from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_METRICS_HEADERS
    from opentelemetry.util.re import parse_env_headers

    text = environ.get(OTEL_EXPORTER_OTLP_METRICS_HEADERS) or environ.get(OTEL_EXPORTER_OTLP_HEADERS) or ""
    return dict(parse_env_headers(text, liberal=True))


def _attributes(labels: Mapping[str, str]) -> list[Any]:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

    return [KeyValue(key=name, value=AnyValue(string_value=text)) for name, text in sorted(labels.items())]


def _by_point(family: Metric) -> list[tuple[str, Mapping[str, str], list[Sample]]]:
    """(labels as text, labels, samples) of each point: a histogram's or summary's parts are one."""
    found: dict[str, tuple[Mapping[str, str], list[Sample]]] = {}
    for sample in family.samples:
        if not sample.name.endswith("_created"):
            labels = {name: text for name, text in sample.labels.items() if name not in _INSIDE}
            found.setdefault(format_labels(labels), (labels, []))[1].append(sample)
    return [(text, labels, samples) for text, (labels, samples) in found.items()]


def _make_point(kind: str) -> _Point:
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    if kind == "histogram":
        return metrics_pb2.HistogramDataPoint()
    return metrics_pb2.SummaryDataPoint() if kind == "summary" else metrics_pb2.NumberDataPoint()


def _open(metric: Any, name: str, help: str, unit: str, kind: str) -> Any:
    """What takes the points of this metric."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE

    metric.name, metric.description, metric.unit = name, help, unit
    if kind == "counter":
        metric.sum.is_monotonic = True
        metric.sum.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        return metric.sum
    if kind == "histogram":
        metric.histogram.aggregation_temporality = AGGREGATION_TEMPORALITY_CUMULATIVE
        return metric.histogram
    return metric.summary if kind == "summary" else metric.gauge


def _fill_number(point: _Point, _name: str, samples: list[Sample]) -> None:
    point.as_double = float(samples[-1].value)


def _fill_histogram(point: _Point, name: str, samples: list[Sample]) -> None:
    """Min and max are unknown and therefore omitted."""
    ends = sorted(
        (float(sample.labels["le"]), int(sample.value)) for sample in samples if sample.name == f"{name}_bucket"
    )
    counts = [count for _, count in ends]
    point.bucket_counts[:] = [count - before for count, before in zip(counts, [0, *counts], strict=False)]
    point.explicit_bounds[:] = [end for end, _ in ends[:-1]]
    point.count = counts[-1]
    for sample in samples:
        if sample.name == f"{name}_sum":
            point.sum = float(sample.value)


def _fill_summary(point: _Point, name: str, samples: list[Sample]) -> None:
    del point.quantile_values[:]
    for sample in samples:
        if sample.name == name:
            point.quantile_values.add(quantile=float(sample.labels["quantile"]), value=float(sample.value))
        elif sample.name == f"{name}_count":
            point.count = int(sample.value)
        elif sample.name == f"{name}_sum":
            point.sum = float(sample.value)


_FILL = {"histogram": _fill_histogram, "summary": _fill_summary}


def _end(point: _Point, moment_ms: int) -> _Point:
    """The point that marks the end of a value. A histogram keeps its bounds: they name its series."""
    from opentelemetry.proto.metrics.v1.metrics_pb2 import DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK

    point.time_unix_nano = moment_ms * 1_000_000
    point.flags = DATA_POINT_FLAGS_NO_RECORDED_VALUE_MASK
    for field in ("as_double", "count", "sum"):
        if field in point.DESCRIPTOR.fields_by_name:
            point.ClearField(field)
    if "bucket_counts" in point.DESCRIPTOR.fields_by_name:
        point.bucket_counts[:] = [0] * len(point.bucket_counts)
    return point

"""OTLP metrics over HTTP: a service is a run.

`service.name` is the project and `service.instance.id` the run; without one, all instances are one run. A point has no
step unless it has an attribute `step`. Attributes of a point are part of the metric's name: `queue{name=a}`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from trainvitals.errors import JournalError
from trainvitals.journal.encoding import NONFINITE, number
from trainvitals.plain_json import parse_json
from trainvitals.protobuf import Malformed, read_fields
from trainvitals.trackers.intake.answers import IntakeAnswer, OnceReporter, refuse_trouble
from trainvitals.trackers.intake.recent_points import RecentPoints
from trainvitals.trackers.intake.runs import IntakeRuns
from trainvitals.trackers.run_writing import About

TOOL = "otlp"
PROTOBUF = "application/x-protobuf"
MOST_BODY = 20 << 20
"""As OpenTelemetry's own collector takes by default: unpacked it is many times as large."""
MOST_PARTS = 500_000
"""Objects in a request, and numbers in its lists: two bytes of protobuf unpack to a hundred times as many."""
MOST_ATTRIBUTES = 1000
"""Of a resource or a point that are read."""
SILENT_SECONDS = 600.0
"""A service that has sent nothing for this long has ended, as far as can be known."""
_STEP = "step"
_WHOLE = re.compile(r"-?[0-9]{1,20}")


class _TooManyParts(ValueError):
    """More is in a request than there is memory for."""


class OtlpPoint(NamedTuple):
    """One number."""

    name: str
    value: float
    micros: int
    step: int | None


class OtlpIntake:
    """Answers requests of exporters. Called from several threads."""

    def __init__(self, runs: IntakeRuns, report_once: OnceReporter) -> None:
        self._runs = runs
        self._report_once = report_once
        self._lock = threading.Lock()

    def answer(self, kind: str, body: bytes) -> IntakeAnswer:
        """`kind` is the content type. One request at a time, for the memory of what is unpacked."""
        with self._lock:
            return self._answer(kind, body)

    def _answer(self, kind: str, body: bytes) -> IntakeAnswer:
        media_type = PROTOBUF if kind == PROTOBUF else "application/json"
        try:
            request = _decode(kind, body)
        except ImportError:
            text = "OTLP as protobuf needs a package: pip install 'trainvitals[otlp]'"
            self._report_once(text)
            return IntakeAnswer(415, {"message": text})
        except _TooManyParts:
            return IntakeAnswer(413, {"message": f"a request may have {MOST_PARTS:,} parts: send fewer points at once"})
        except ValueError as error:
            return IntakeAnswer(400, {"message": str(error)[:300]})
        try:
            for resource in _objects(request.get("resourceMetrics")):
                self._take(resource)
        except (JournalError, OSError) as error:
            return refuse_trouble(error)
        return IntakeAnswer(200, b"" if kind == PROTOBUF else {}, media_type)

    def _take(self, resource: Mapping[str, Any]) -> None:
        about = _read_attributes(_object(resource.get("resource")).get("attributes"))
        service = str(about.get("service.name") or "unknown_service")
        instance = str(about.get("service.instance.id") or "")
        points = [
            point
            for scope in _objects(resource.get("scopeMetrics"))
            for metric in _objects(scope.get("metrics"))
            for point in _read_metric(metric)
        ]
        if not points:
            return
        host = str(about.get("host.name") or "")
        described = About(name=instance or service, project=service, config=about, host=host, started=time.time())
        with self._runs.begin(TOOL, f"{service}/{instance}", described) as run:
            recent = run.tables.get("recent")
            if recent is None:
                recent = run.tables["recent"] = RecentPoints(run.folder)
            if run.file.is_over:
                run.writer.watch()
            rows: dict[tuple[int, int | None], dict[str, float]] = {}
            for point in points:
                if recent.add(run.writer.name_of(point.name), point.value, point.micros, point.step):
                    rows.setdefault((point.micros, point.step), {})[point.name] = point.value
            for (micros, step), values in sorted(rows.items(), key=lambda item: item[0][0]):
                run.writer.append(values, step=step, time=micros / 1e6)
            run.save()


def _decode(kind: str, body: bytes) -> dict[str, Any]:
    """The request as OTLP's JSON has it. Raises ValueError, or ImportError without the package for protobuf."""
    if kind != PROTOBUF:
        if body.count(b"{") + body.count(b"[") > MOST_PARTS:
            raise _TooManyParts
        found = parse_json(body)
        if not isinstance(found, dict):
            raise ValueError("the body is not an ExportMetricsServiceRequest")
        return found
    from google.protobuf.json_format import MessageToDict
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    try:
        if len(body) > 2 * MOST_PARTS:  # a part takes two bytes or more
            _count_parts(body, ExportMetricsServiceRequest.DESCRIPTOR, MOST_PARTS)
        made: dict[str, Any] = MessageToDict(ExportMetricsServiceRequest.FromString(body))
    except (DecodeError, Malformed):
        raise ValueError("the body is not an ExportMetricsServiceRequest") from None
    return made


def _count_parts(body: bytes, shape: Any, left: int, depth: int = 0) -> int:
    """`left` without the parts of a message, which its descriptor names. Raises _TooManyParts."""
    if depth > 100:  # as protobuf itself has it
        raise Malformed("nested too deep")
    for number_of_field, _, value, _ in read_fields(body):
        field = shape.fields_by_number.get(number_of_field)
        left -= field is not None
        if field is not None and isinstance(value, bytes):
            if field.message_type is not None:
                left = _count_parts(value, field.message_type, left, depth + 1)
            elif field.cpp_type != field.CPPTYPE_STRING:
                left -= len(value)  # a list of numbers
        if left < 0:
            raise _TooManyParts
    return left


def _read_metric(metric: Mapping[str, Any]) -> Iterator[OtlpPoint]:
    name = str(metric.get("name") or "")[:500]
    if not name:
        return
    for kind in ("gauge", "sum", "histogram", "exponentialHistogram", "summary"):
        for point in _objects(_object(metric.get(kind)).get("dataPoints")):
            nanos = number(_whole(point.get("timeUnixNano")))
            if not nanos or not 0 < nanos < 1e20:
                continue
            attributes = _read_attributes(point.get("attributes"))
            step = attributes.pop(_STEP, None)
            labels = ",".join(f"{key}={value}" for key, value in sorted(attributes.items()))[:500]
            suffix = f"{{{labels}}}" if labels else ""
            micros = int(_whole(point["timeUnixNano"]) or 0) // 1000
            for part, value in _read_values(kind, point):
                place = step if type(step) is int else None
                yield OtlpPoint(f"{name}{part}{suffix}", value, micros, place)


def _read_values(kind: str, point: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """A number as it is; of a histogram count, sum, min and max; of a summary also its quantiles."""
    if kind in ("gauge", "sum"):
        value = _number(point.get("asDouble", point.get("asInt")))
        if value is not None:
            yield "", value
        return
    for key in ("count", "sum", "min", "max"):
        value = _number(point.get(key))
        if value is not None:
            yield f"/{key}", value
    for quantile in _objects(point.get("quantileValues")):
        value = _number(quantile.get("value", 0.0))
        if value is not None:
            yield f"/p{(_number(quantile.get('quantile')) or 0.0) * 100:g}", value


def _read_attributes(value: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in _objects(value)[:MOST_ATTRIBUTES]:
        given = _object(item.get("value"))
        for kind, inner in given.items():
            if kind == "intValue":
                found[str(item.get("key"))] = _whole(inner)
            elif kind in ("stringValue", "boolValue", "doubleValue"):
                found[str(item.get("key"))] = inner
    return found


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: object) -> int | None:
    """64 bits, which are texts in JSON."""
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    return value if type(value) is int and -(2**63) <= value < 2**64 else None


def _number(value: object) -> float | None:
    if isinstance(value, str) and value not in NONFINITE:
        return _whole(value)
    return number(value)

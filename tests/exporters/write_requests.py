"""Requests of remote write as a strict receiver reads them: by Google's protobuf, with the specifications' fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import cramjam
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

SECOND = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "double": _FIELD.TYPE_DOUBLE,
    "int64": _FIELD.TYPE_INT64,
    "uint32": _FIELD.TYPE_UINT32,
    "uint64": _FIELD.TYPE_UINT64,
    "sint32": _FIELD.TYPE_SINT32,
    "sint64": _FIELD.TYPE_SINT64,
    "string": _FIELD.TYPE_STRING,
}
_HISTOGRAM = {
    "count_int": ("uint64", 1),
    "sum": ("double", 3),
    "schema": ("sint32", 4),
    "zero_threshold": ("double", 5),
    "zero_count_int": ("uint64", 6),
    "positive_spans": ("*BucketSpan", 11),
    "positive_deltas": ("*sint64", 12),
    "timestamp": ("int64", 15),
}
_SPAN = {"offset": ("sint32", 1), "length": ("uint32", 2)}
# https://prometheus.io/docs/specs/prw/remote_write_spec_2_0/#protobuf-message (2.0-rc.4); * is repeated.
_MESSAGES: Mapping[str, Mapping[str, Mapping[str, tuple[str, int]]]] = {
    "io.prometheus.write.v2": {
        "Request": {"symbols": ("*string", 4), "timeseries": ("*TimeSeries", 5)},
        "TimeSeries": {
            "labels_refs": ("*uint32", 1),
            "samples": ("*Sample", 2),
            "histograms": ("*Histogram", 3),
            "exemplars": ("*Exemplar", 4),
            "metadata": ("Metadata", 5),
        },
        "Exemplar": {"labels_refs": ("*uint32", 1), "value": ("double", 2), "timestamp": ("int64", 3)},
        "Sample": {"value": ("double", 1), "timestamp": ("int64", 2), "start_timestamp": ("int64", 3)},
        "Metadata": {"type": ("uint32", 1), "help_ref": ("uint32", 3), "unit_ref": ("uint32", 4)},
        "Histogram": {**_HISTOGRAM, "start_timestamp": ("int64", 17)},
        "BucketSpan": _SPAN,
    },
    "prometheus": {
        "WriteRequest": {"timeseries": ("*TimeSeries", 1)},
        "TimeSeries": {"labels": ("*Label", 1), "samples": ("*Sample", 2), "histograms": ("*Histogram", 4)},
        "Label": {"name": ("string", 1), "value": ("string", 2)},
        "Sample": {"value": ("double", 1), "timestamp": ("int64", 2)},
        "Histogram": _HISTOGRAM,
        "BucketSpan": _SPAN,
    },
}
_TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")


def _load() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    found = {}
    for package, messages in _MESSAGES.items():
        file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        for name, fields in messages.items():
            message = file.message_type.add(name=name)
            for field, (kind, number) in fields.items():
                label = _FIELD.LABEL_REPEATED if kind.startswith("*") else _FIELD.LABEL_OPTIONAL
                made = message.field.add(name=field, number=number, label=label)
                plain = kind.removeprefix("*")
                if plain in _KINDS:
                    made.type = _KINDS[plain]
                else:
                    made.type, made.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{plain}"
        pool.Add(file)
        for name in messages:
            full = f"{package}.{name}"
            found[full] = message_factory.GetMessageClass(pool.FindMessageTypeByName(full))
    return found


_CLASSES = _load()


class Read(NamedTuple):
    """One series of a request."""

    labels: dict[str, str]
    value: Any
    """Its number; a histogram as (count, sum, schema, (offset, length) of spans, differences)."""
    moment_ms: int
    kind: str = ""
    help: str = ""
    unit: str = ""
    began_ms: int = 0
    exemplar: tuple[dict[str, str], float, int] | None = None


def read_request(headers: Mapping[str, str], body: bytes) -> list[Read]:
    """All series. AssertionError for whatever the specification of its version does not allow."""
    assert headers["content-encoding"] == "snappy" and headers["user-agent"].startswith("trainvitals/")
    version = {"application/x-protobuf": "0.1.0", SECOND: "2.0.0"}[headers["content-type"]]
    assert headers["x-prometheus-remote-write-version"] == version
    message = bytes(cramjam.snappy.decompress_raw(body))
    found = _read_second(message) if version == "2.0.0" else _read_first(message)
    for series in found:
        names = list(series.labels)
        assert names == sorted(names) and "__name__" in names and all(series.labels.values())
    assert found, "a request without a series"
    return found


def _read_first(data: bytes) -> list[Read]:
    request = _parse("prometheus.WriteRequest", data)
    found = []
    for series in request.timeseries:
        value, sample = _read_value(series)
        found.append(Read({label.name: label.value for label in series.labels}, value, sample.timestamp))
        assert len(found[-1].labels) == len(series.labels)
    return found


def _read_second(data: bytes) -> list[Read]:
    request = _parse("io.prometheus.write.v2.Request", data)
    symbols = list(request.symbols)
    assert symbols[0] == "" and len(set(symbols)) == len(symbols)
    used = {0}

    def text(ref: int) -> str:
        used.add(ref)
        return symbols[ref]

    def pairs(refs: Any) -> dict[str, str]:
        texts = [text(ref) for ref in refs]
        made = dict(zip(texts[::2], texts[1::2], strict=True))
        assert 2 * len(made) == len(texts)
        return made

    found = []
    for series in request.timeseries:
        value, sample = _read_value(series)
        examples = [(pairs(item.labels_refs), item.value, item.timestamp) for item in series.exemplars]
        assert all(moment for *_, moment in examples)
        about = series.metadata
        found.append(
            Read(
                pairs(series.labels_refs),
                value,
                sample.timestamp,
                _TYPES[about.type],
                text(about.help_ref),
                text(about.unit_ref),
                sample.start_timestamp,
                examples[0] if examples else None,
            )
        )
    assert used == set(range(len(symbols))), "a string that nobody refers to"
    return found


def _read_value(series: Any) -> tuple[Any, Any]:
    """(the value, the only sample or histogram)."""
    (sample,) = [*series.samples, *series.histograms]
    if series.samples:
        return sample.value, sample
    spans = [(span.offset, span.length) for span in sample.positive_spans]
    return (sample.count_int, sample.sum, sample.schema, spans, list(sample.positive_deltas)), sample


def _parse(name: str, data: bytes) -> Any:
    message = _CLASSES[name].FromString(data)
    _refuse_unknown(message)
    return message


def _refuse_unknown(message: Message) -> None:
    assert len(UnknownFieldSet(message)) == 0, f"a field that {message.DESCRIPTOR.full_name} does not have"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else (value,):
                _refuse_unknown(inner)

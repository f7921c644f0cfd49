"""Prometheus' protobuf, written by hand: the page with native histograms.

The messages are a few small structures (io.prometheus.client of https://github.com/prometheus/client_model, and those
of `write_messages`), not worth a library: prometheus-client writes neither.
Tested in tests/exporters/test_remote_write.py and tests/exporters/test_page.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, NativeHistogram, Sample

from trainvitals.exporters.labels import text_of
from trainvitals.exporters.names import NAME_ENDINGS
from trainvitals.protobuf import double, field, number
from trainvitals.varints import varint

_TYPES = {"counter": 0, "gauge": 1, "info": 1, "stateset": 1, "summary": 2, "unknown": 3, "histogram": 4}
_VALUES = {0: 3, 1: 2, 3: 5}
"""Type -> the field of a metric that holds its one value."""
_PARTS = ("le", "quantile")
"""Labels that tell the parts of one histogram or summary apart."""


def encode_families(families: Iterable[Metric]) -> bytes:
    """Each family with its length before it, as io.prometheus.client.MetricFamily."""
    found = []
    for family in families:
        kind = _TYPES.get(family.type, 3)
        name = family.name + NAME_ENDINGS.get(family.type, "")
        head = field(1, name.encode()) + field(2, family.documentation.encode()) + number(3, kind)
        created = {
            text_of(sample.labels): sample.value for sample in family.samples if sample.name == f"{family.name}_created"
        }
        if kind in _VALUES:
            metrics = [
                _metric(sample.labels, _VALUES[kind], double(1, sample.value) + _created(3, kind, created, sample))
                for sample in family.samples
                if sample.name != f"{family.name}_created"
            ]
        else:
            make = _histogram if kind == 4 else _summary
            metrics = [
                _metric(labels, 7 if kind == 4 else 4, make(family.name, samples))
                for labels, samples in _by_metric(family)
            ]
        body = head + b"".join(metrics) + (field(5, family.unit.encode()) if family.unit else b"")
        found.append(varint(len(body)) + body)
    return b"".join(found)


def _signed(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _moment(place: int, seconds: float) -> bytes:
    whole, part = divmod(round(seconds * 1e9), 1_000_000_000)
    return field(place, number(1, whole) + number(2, part))


def _created(place: int, kind: int, created: Mapping[str, float], sample: Sample) -> bytes:
    began = created.get(text_of(sample.labels)) if kind == 0 else None
    return b"" if began is None else _moment(place, began)


def _pairs(labels: Mapping[str, str]) -> bytes:
    return b"".join(field(1, field(1, name.encode()) + field(2, text.encode())) for name, text in labels.items())


def _metric(labels: Mapping[str, str], place: int, value: bytes) -> bytes:
    return field(4, _pairs(labels) + field(place, value))


def _by_metric(family: Metric) -> list[tuple[Mapping[str, str], list[Sample]]]:
    """The parts of each histogram or summary, with the labels that they share."""
    found: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        shared = tuple((name, text) for name, text in sample.labels.items() if name not in _PARTS)
        found.setdefault(shared, []).append(sample)
    return [(dict(shared), samples) for shared, samples in found.items()]


def _summary(name: str, samples: list[Sample]) -> bytes:
    body = b""
    for sample in samples:
        if sample.name == name:
            body += field(3, double(1, float(sample.labels["quantile"])) + double(2, sample.value))
        elif sample.name == f"{name}_count":
            body += number(1, int(sample.value))
        elif sample.name == f"{name}_sum":
            body += double(2, sample.value)
    return body


def _histogram(name: str, samples: list[Sample]) -> bytes:
    body = b""
    for sample in samples:
        if sample.native_histogram is not None:
            body += native_histogram(sample.native_histogram, 5)  # count and sum are those of the classic one
        elif sample.name == f"{name}_bucket":
            bucket = number(1, int(sample.value)) + double(2, float(sample.labels["le"]))
            body += field(3, bucket + _exemplar(sample.exemplar))
        elif sample.name == f"{name}_count":
            body += number(1, int(sample.value))
        elif sample.name == f"{name}_sum":
            body += double(2, sample.value)
        elif sample.name == f"{name}_created":
            body += _moment(15, sample.value)
    return body


def native_histogram(found: NativeHistogram, place: int) -> bytes:
    """Schema, zero bucket, spans and differences, from this field on: the pages and remote write count differently."""
    schema = varint(place << 3) + _signed(found.schema)
    zero = double(place + 1, found.zero_threshold) + number(place + 2, int(found.zero_count))
    spans = b"".join(
        field(place + 7, varint(1 << 3) + _signed(span.offset) + number(2, span.length))
        for span in found.pos_spans or ()
    )
    return schema + zero + spans + field(place + 8, b"".join(map(_signed, found.pos_deltas or ())))


def _exemplar(example: Exemplar | None) -> bytes:
    if example is None:
        return b""
    moment = b"" if example.timestamp is None else _moment(3, float(example.timestamp))
    return field(3, _pairs(example.labels) + double(2, example.value) + moment)

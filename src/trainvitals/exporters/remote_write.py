"""Prometheus remote write: for where nothing can scrape. Prometheus, VictoriaMetrics, Mimir, Thanos take it.

Requests are of version 2.0 until the server shows that it knows only 1.0, as the specification has it: it answers 415
(or 400 or 500, as others do), or accepts without a word of what it has written. Then it gets the same request again in
1.0, and all that follow, until it was away: it may come back as a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from prometheus_client.metrics_core import Metric

from trainvitals.exporters.contracts import Order
from trainvitals.exporters.families import is_hardware
from trainvitals.exporters.labels import format_labels, text_of
from trainvitals.exporters.push_queue import PushQueue, PushRequest
from trainvitals.exporters.write_messages import (
    FamilyAbout,
    SentPoint,
    SentSeries,
    compress,
    convert_to_first,
    count_samples,
    decompress,
    encode_first,
    encode_second,
    is_second,
    order_labels,
)
from trainvitals.http_client import Answer

BATCH = 2000
"""Series in one request."""
_FIRST = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_SECOND = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
_PUZZLED = (400, 500, 501)
"""What servers answer that cannot read a request; one of 2.0 says even then that it has written nothing."""
_WRITTEN = tuple(f"X-Prometheus-Remote-Write-{what}-Written" for what in ("Samples", "Histograms", "Exemplars"))


def start(order: Order) -> PushQueue:
    labels = {"job": "trainvitals", "instance": order.instance}
    options = replace(order.options, native=order.settings.prometheus_push_native_histograms)
    return PushQueue.of(order, RemoteWrite(order.settings.prometheus_labels | labels), options)


class RemoteWrite:
    """With these labels on every series."""

    title = "remote write"

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self._labels = labels or {}
        self._known: dict[tuple[str, str], SentSeries] = {}
        self._speaks_second = True

    def prepare(self, body: bytes) -> PushRequest:
        message = decompress(body)
        if message is None or not is_second(message):
            return PushRequest(body, _FIRST)
        return (
            PushRequest(body, _SECOND)
            if self._speaks_second
            else PushRequest(compress(convert_to_first(message)), _FIRST)
        )

    def is_misunderstood(self, sent: PushRequest, answer: Answer) -> bool:
        if sent.headers is not _SECOND:
            return False
        silent = not any(name in answer.headers for name in _WRITTEN)
        if answer.status == 415 or (silent and (answer.is_good or answer.status in _PUZZLED)):
            self._speaks_second = False
            return True
        return False

    def begin_again(self) -> None:
        self._speaks_second = True

    def is_passing(self, status: int) -> bool:
        return status == 429 or status >= 500

    def find_complaint(self, sent: PushRequest, answer: Answer) -> str | None:
        message = decompress(sent.body)
        if message is None or not is_second(message):
            return None
        count = count_samples(message)
        try:
            written = sum(int(answer.headers.get(name) or 0) for name in _WRITTEN[:2])
        except ValueError:
            return f"it does not say how many of {count} samples it has written"
        return None if written >= count else f"{written} of {count} samples written"

    def encode(self, families: Iterable[Metric], moment_ms: int) -> list[bytes]:
        seen: dict[tuple[str, str], SentSeries] = {}
        # A server that refuses one sample refuses the request: a fault of the hardware's costs the runs nothing.
        runs: list[SentPoint] = []
        hardware: list[SentPoint] = []
        for family in families:
            about = FamilyAbout(family.type, family.documentation, family.unit)
            created = f"{family.name}_created"
            begun = {
                text_of(sample.labels): round(sample.value * 1000)
                for sample in family.samples
                if sample.name == created
            }
            is_native = bool(family.samples) and family.samples[0].native_histogram is not None  # then all are there
            for sample in family.samples:
                if sample.name == created or (is_native and sample.native_histogram is None):
                    continue
                key = (sample.name, text_of(sample.labels))
                series = self._known.get(key)
                if series is None:
                    labels = {"__name__": sample.name, **self._labels, **sample.labels}
                    whole = {name: value for name, value in sample.labels.items() if name != "le"}
                    series = SentSeries(order_labels(labels), about, format_labels(whole))
                seen[key] = series
                points = hardware if is_hardware(sample) else runs
                began = begun.get(series.whole)
                points.append(SentPoint(series, float(sample.value), began, sample.exemplar, sample.native_histogram))
        runs += [SentPoint(series, None) for key, series in self._known.items() if key not in seen]
        self._known = seen
        encode = encode_second if self._speaks_second else encode_first
        return [
            compress(encode(points[start : start + BATCH], moment_ms))
            for points in (runs, hardware)
            for start in range(0, len(points), BATCH)
        ]

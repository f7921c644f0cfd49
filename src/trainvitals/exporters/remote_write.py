"""Prometheus remote write: for where nothing can scrape. Prometheus, VictoriaMetrics, Mimir, Thanos take it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.metrics_core import Metric

from trainvitals.exporters import wire
from trainvitals.exporters.contracts import Order
from trainvitals.exporters.families import is_hardware
from trainvitals.exporters.labels import text_of
from trainvitals.exporters.push_queue import PushQueue

BATCH = 2000
"""Series in one request."""


def start(order: Order) -> PushQueue:
    labels = {"job": "trainvitals", "instance": order.instance}
    return PushQueue.of(order, RemoteWrite(order.settings.prometheus_labels | labels))


class RemoteWrite:
    """Remote write 0.1, with these labels on every series."""

    title = "remote write"

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        self._labels = labels or {}
        self._encoded: dict[tuple[str, str], bytes] = {}

    def is_passing(self, status: int) -> bool:
        return status == 429 or status >= 500

    def find_complaint(self, _answer: bytes) -> str | None:
        return None

    def encode(self, families: Iterable[Metric], moment_ms: int) -> list[bytes]:
        seen: dict[tuple[str, str], bytes] = {}
        # A server that refuses one sample refuses the request: a fault of the hardware's costs the runs nothing.
        runs: list[bytes] = []
        hardware: list[bytes] = []
        for family in families:
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                key = (sample.name, text_of(sample.labels))
                labels = self._encoded.get(key)
                if labels is None:
                    labels = wire.encode_labels({"__name__": sample.name, **self._labels, **sample.labels})
                seen[key] = labels
                series = hardware if is_hardware(sample) else runs
                series.append(wire.encode_series(labels, float(sample.value), moment_ms))
        ended = [labels for key, labels in self._encoded.items() if key not in seen]
        runs += [wire.encode_series(labels, None, moment_ms) for labels in ended]
        self._encoded = seen
        return [
            wire.encode_request(series[start : start + BATCH])
            for series in (runs, hardware)
            for start in range(0, len(series), BATCH)
        ]

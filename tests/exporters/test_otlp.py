"""OTLP over HTTP as the official protocol buffers read it."""

from __future__ import annotations

import gzip
import threading
import time

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from servers import Answering
from waiting import free_port

from trainvitals.exporters.otlp import Otlp


def families() -> list[Metric]:
    power = GaugeMetricFamily("gpu_power_draw_watts", "Power", labels=("gpu",), unit="watts")
    power.add_metric(("0",), 300.0)
    steps = CounterMetricFamily("training_steps", "Steps", labels=("run",))
    steps.add_metric(("r",), 10, created=1.0)
    duration = HistogramMetricFamily("training_step_duration_seconds", "Step", labels=("run",), unit="seconds")
    duration.add_metric(("r",), [("0.1", 3), ("1.0", 5), ("+Inf", 6)], 4.5)
    memory = SummaryMetricFamily("memory_allocation_mb", "Memory", labels=("run",))
    memory.add_metric(("r",), 1, 2.0)
    return [power, steps, duration, memory]


def export(url: str, told: list[str] | None = None) -> bool:
    otlp = Otlp(
        url, families, host="box", started=1_700_000_000.0, interval=3600.0, token="t0ken",
        tell=(told if told is not None else []).append,
    )  # fmt: skip
    try:
        return otlp.export_now()
    finally:
        otlp.close()


def test_what_arrives_is_what_was_measured(answering: Answering) -> None:
    answering.answers = [(200, b"", {"Content-Type": "application/x-protobuf"})]
    assert export(f"{answering.url}/v1/metrics")
    path, headers, body = answering.received[0]
    assert path == "/v1/metrics" and headers["authorization"] == "Bearer t0ken"
    request = ExportMetricsServiceRequest.FromString(
        gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
    )
    resource = {item.key: item.value.string_value for item in request.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "trainvitals" and resource["host.name"] == "box"
    metrics = {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}
    assert set(metrics) == {"gpu_power_draw_watts", "training_steps", "training_step_duration_seconds"}
    assert metrics["gpu_power_draw_watts"].gauge.data_points[0].as_double == 300.0
    assert metrics["training_steps"].sum.is_monotonic
    assert metrics["training_steps"].sum.data_points[0].as_double == 10.0
    point = metrics["training_step_duration_seconds"].histogram.data_points[0]
    assert list(point.bucket_counts) == [3, 2, 1] and list(point.explicit_bounds) == [0.1, 1.0]
    assert (point.count, point.sum) == (6, 4.5)


def test_an_endpoint_that_refuses_is_told(answering: Answering) -> None:
    told: list[str] = []
    answering.answers = [(400, b"no", {})]
    assert not export(f"{answering.url}/v1/metrics", told)
    assert len(told) == 1


def test_an_endpoint_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.otlp.TIMEOUT", 1.0)  # the SDK tries again and again for so long
    told: list[str] = []
    assert not export(f"http://127.0.0.1:{free_port()}/v1/metrics", told)
    assert len(told) == 1


def test_the_end_does_not_wait_for_an_endpoint_that_is_not_there() -> None:
    begun = threading.Event()

    def collect() -> list[Metric]:
        begun.set()
        return families()

    otlp = Otlp(f"http://127.0.0.1:{free_port()}/v1/metrics", collect, host="box", started=0.0, interval=0.01)
    assert begun.wait(60)
    time.sleep(0.5)  # it is on its way, or waits to try again
    otlp.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "otlp"]

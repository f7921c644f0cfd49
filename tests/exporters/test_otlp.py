"""OTLP over HTTP as the official protocol buffers read it."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.sdk.metrics import export
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from servers import Answering
from waiting import free_port, wait_until

from trainvitals.exporters.credentials import Credentials
from trainvitals.exporters.otlp import Otlp
from trainvitals.exporters.push_queue import Destination, PushQueue

NO_VALUE = 1
"""The flag of a point that says that there is none."""


BEGAN = 1_700_000_000.0


def families() -> list[Metric]:
    power = GaugeMetricFamily("gpu_power_draw_watts", "Power", labels=("gpu",), unit="watts")
    power.add_metric(("0",), 300.0)
    power.add_metric(("1",), 200.0)
    pcie = GaugeMetricFamily("gpu_pcie_tx_mb_s", "Sent", labels=("gpu",), unit="mb_s")
    pcie.add_metric(("0",), 5.0)
    steps = CounterMetricFamily("training_steps", "Steps", labels=("run",))
    steps.add_metric(("r",), 10, created=BEGAN)
    energy = CounterMetricFamily("gpu_energy_joules", "Energy", labels=("gpu",), unit="joules")
    energy.add_metric(("0",), 5e6)
    duration = HistogramMetricFamily("training_step_duration_seconds", "Step", labels=("run",), unit="seconds")
    duration.add_metric(("r",), [("0.1", 3), ("1.0", 5), ("+Inf", 6)], 4.5)
    memory = Metric("memory_allocation_mb", "Memory", "summary")
    memory.samples = [
        Sample("memory_allocation_mb", {"run": "r", "quantile": "0.5"}, 100.0),
        Sample("memory_allocation_mb", {"run": "r", "quantile": "0.99"}, 120.0),
        Sample("memory_allocation_mb_count", {"run": "r"}, 3),
        Sample("memory_allocation_mb_sum", {"run": "r"}, 310.0),
    ]
    info = InfoMetricFamily("gpu", "What it is", labels=("gpu",))
    info.add_metric(("0",), {"name": "H100"})
    return [power, pcie, steps, energy, duration, memory, info]


class Endpoint:
    """What was sent to it, as data."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.url = f"{answering.url}/v1/metrics"

    def read(self, number: int) -> dict[str, Any]:
        """The metrics of this request by name."""
        _, headers, body = self.answering.received[number]
        assert headers["content-encoding"] == "gzip"
        request = ExportMetricsServiceRequest.FromString(gzip.decompress(body))
        return {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}


@pytest.fixture
def endpoint(answering: Answering) -> Endpoint:
    answering.answers = [(200, b"", {"Content-Type": "application/x-protobuf"})]
    return Endpoint(answering)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., PushQueue]]:
    started: list[PushQueue] = []

    def make(url: str, collect: Callable[[], list[Metric]] = families, **options: Any) -> PushQueue:
        dialect = Otlp("box", "box:alice", {"cluster": "lab"})
        place = Destination(url, tmp_path / "spool", Credentials(options.pop("read_token", lambda: None)))
        started.append(PushQueue(dialect, place, collect, **{"interval": 3600.0, **options}))
        return started[-1]

    yield make
    for outbox in started:
        outbox.close()


def test_what_arrives_is_what_was_measured(endpoint: Endpoint, start: Callable[..., PushQueue]) -> None:
    outbox = start(endpoint.url, read_token=lambda: "t0ken")
    wait_until(lambda: outbox.counts.sent, "the first export")
    path, headers, body = endpoint.answering.received[0]
    assert path == "/v1/metrics" and headers["authorization"] == "Bearer t0ken"
    request = ExportMetricsServiceRequest.FromString(gzip.decompress(body))
    resource = {item.key: item.value.string_value for item in request.resource_metrics[0].resource.attributes}
    assert resource["service.name"] == "trainvitals" and resource["host.name"] == "box"
    assert resource["service.instance.id"] == "box:alice" and resource["cluster"] == "lab"
    metrics = endpoint.read(0)
    assert [point.as_double for point in metrics["gpu_power_draw_watts"].gauge.data_points] == [300.0, 200.0]
    assert metrics["training_steps"].sum.is_monotonic
    assert metrics["training_steps"].sum.data_points[0].as_double == 10.0
    assert metrics["training_steps"].sum.data_points[0].start_time_unix_nano == BEGAN * 10**9
    first = metrics["gpu_energy_joules"].sum.data_points[0]
    assert first.start_time_unix_nano == first.time_unix_nano, "it did not begin with the agent"


def test_headers_and_names_of_the_otel_variables_are_taken(
    endpoint: Endpoint, start: Callable[..., PushQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-vendor-key=s3cret,x-team=vision%20lab")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab,host.name=rack-7")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
    outbox = start(endpoint.url)
    wait_until(lambda: outbox.counts.sent, "the first export")
    _, headers, body = endpoint.answering.received[0]
    assert headers["x-vendor-key"] == "s3cret" and headers["x-team"] == "vision lab"
    request = ExportMetricsServiceRequest.FromString(gzip.decompress(body))
    resource = {item.key: item.value.string_value for item in request.resource_metrics[0].resource.attributes}
    expected = {"service.name": "training", "host.name": "rack-7", "deployment.environment": "lab"}
    assert resource.items() >= expected.items()


def test_what_the_sdk_can_say_too_is_said_in_its_words(endpoint: Endpoint, start: Callable[..., PushQueue]) -> None:
    outbox = start(endpoint.url)
    wait_until(lambda: outbox.counts.sent, "the first export")
    ours = endpoint.read(0)
    moment = ours["training_steps"].sum.data_points[0].time_unix_nano
    began, cumulative = int(BEGAN) * 10**9, export.AggregationTemporality.CUMULATIVE
    power = [export.NumberDataPoint({"gpu": gpu}, began, moment, watts) for gpu, watts in (("0", 300.0), ("1", 200.0))]
    steps = export.NumberDataPoint({"run": "r"}, began, moment, 10.0)
    duration = export.HistogramDataPoint({"run": "r"}, moment, moment, 6, 4.5, [3, 2, 1], [0.1, 1.0], 0.0, 0.0)
    theirs = [
        export.Metric("gpu_power_draw_watts", "Power", "W", export.Gauge(power)),
        export.Metric("training_steps", "Steps", "", export.Sum([steps], cumulative, True)),
        export.Metric("training_step_duration_seconds", "Step", "s", export.Histogram([duration], cumulative)),
    ]
    scope = export.ScopeMetrics(InstrumentationScope("trainvitals"), theirs, "")
    data = export.MetricsData([export.ResourceMetrics(Resource({}), [scope], "")])
    for metric in encode_metrics(data).resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.histogram.data_points:  # the SDK always has them; nobody knows them here
            point.ClearField("min")
            point.ClearField("max")
        assert ours[metric.name] == metric


def test_nothing_is_left_out_and_names_are_those_that_dashboards_ask_for(
    endpoint: Endpoint, start: Callable[..., PushQueue]
) -> None:
    outbox = start(endpoint.url)
    wait_until(lambda: outbox.counts.sent, "the first export")
    metrics = endpoint.read(0)
    assert set(metrics) == {
        "gpu_power_draw_watts", "gpu_pcie_tx_mb_s", "training_steps", "training_step_duration_seconds",
        "memory_allocation_mb", "gpu_info", "gpu_energy_joules", "trainvitals_next_push_timestamp_seconds",
    }  # fmt: skip
    labels = {item.key: item.value.string_value for item in metrics["gpu_info"].gauge.data_points[0].attributes}
    assert labels == {"gpu": "0", "name": "H100"} and metrics["gpu_info"].gauge.data_points[0].as_double == 1.0
    memory = metrics["memory_allocation_mb"].summary.data_points[0]
    assert [(part.quantile, part.value) for part in memory.quantile_values] == [(0.5, 100.0), (0.99, 120.0)]
    assert (memory.count, memory.sum) == (3, 310.0)
    # A receiver puts a unit behind a name that does not end in it.
    assert metrics["gpu_power_draw_watts"].unit == "W" and metrics["gpu_pcie_tx_mb_s"].unit == ""


def test_a_histogram_says_nothing_about_the_shortest_and_longest(
    endpoint: Endpoint, start: Callable[..., PushQueue]
) -> None:
    outbox = start(endpoint.url)
    wait_until(lambda: outbox.counts.sent, "the first export")
    point = endpoint.read(0)["training_step_duration_seconds"].histogram.data_points[0]
    assert list(point.bucket_counts) == [3, 2, 1] and list(point.explicit_bounds) == [0.1, 1.0]
    assert (point.count, point.sum) == (6, 4.5)
    assert not point.HasField("min") and not point.HasField("max")


@pytest.mark.usefixtures("patient_end")
def test_a_series_that_ends_and_the_end_of_all_are_said(endpoint: Endpoint, start: Callable[..., PushQueue]) -> None:
    there = families()
    outbox = start(endpoint.url, lambda: there)
    wait_until(lambda: outbox.counts.sent == 1, "the first export")
    there[0].samples[0] = there[0].samples[0]._replace(value=301.0)
    del there[0].samples[1], there[1:]
    outbox.close()
    assert len(endpoint.answering.received) == 3 and outbox.pending_bytes == 0
    last, end = endpoint.read(1), endpoint.read(2)
    first, second = last["gpu_power_draw_watts"].gauge.data_points
    assert (first.as_double, first.flags) == (301.0, 0)
    assert second.flags == NO_VALUE and second.WhichOneof("value") is None
    assert last["training_steps"].sum.data_points[0].flags == NO_VALUE
    duration = last["training_step_duration_seconds"].histogram.data_points[0]
    assert duration.flags == NO_VALUE and duration.count == 0 and len(duration.explicit_bounds) == 2
    assert last["memory_allocation_mb"].summary.data_points[0].flags == NO_VALUE
    assert [point.flags for point in end["gpu_power_draw_watts"].gauge.data_points] == [NO_VALUE]
    assert set(end) == {"gpu_power_draw_watts", "trainvitals_next_push_timestamp_seconds"}
    assert end["trainvitals_next_push_timestamp_seconds"].gauge.data_points[0].as_double == math.inf


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, b"bad data", {}), "rejected samples (400 Bad Request): bad data"),
        ((503, b"", {}), "returned 503 Service Unavailable; keeping the samples and retrying"),
        (None, "is unreachable: [Errno "),
    ],
    ids=["refused", "busy", "away"],
)
def test_trouble_names_the_endpoint_and_the_reason(
    answer: tuple[int, bytes, dict[str, str]] | None, reason: str, endpoint: Endpoint, start: Callable[..., PushQueue]
) -> None:
    told: list[str] = []
    address = endpoint.answering.url.removeprefix("http://") if answer else f"127.0.0.1:{free_port()}"
    endpoint.answering.answers = [answer] if answer else []
    start(f"http://{address}/v1/metrics", warn=told.append)
    wait_until(lambda: told, "the trouble")
    assert len(told) == 1 and told[0].startswith(f"OTLP: {address} {reason}")


def test_points_that_an_endpoint_refuses_in_a_good_answer_are_told(
    endpoint: Endpoint, start: Callable[..., PushQueue]
) -> None:
    told: list[str] = []
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 3
    answer.partial_success.error_message = "too old"
    endpoint.answering.answers = [(200, answer.SerializeToString(), {})]
    outbox = start(endpoint.url, warn=told.append)
    wait_until(lambda: outbox.counts.rejected, "the complaint")
    assert told[0].endswith("rejected samples (partially): 3 points: too old") and outbox.pending_bytes == 0

"""OpenTelemetry's own SDK sends metrics to a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .conftest import LocalServer, Server, run_client

SDK = """
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

exporter = OTLPMetricExporter(compression=Compression.Gzip, timeout=600)
reader = PeriodicExportingMetricReader(exporter, export_interval_millis=10**8, export_timeout_millis=600_000)
resource = Resource.create({"service.name": "trainer", "service.instance.id": "worker-1"})
provider = MeterProvider(metric_readers=[reader], resource=resource)
meter = provider.get_meter("test")
meter.create_gauge("loss").set(0.25)
meter.create_counter("batches").add(3, {"split": "train"})
meter.create_histogram("seconds").record(2.0)
provider.force_flush(600_000)
"""


def test_what_the_sdk_exports_is_a_run_of_its_service(server: Server, tmp_path: Path) -> None:
    run_client(tmp_path / "work", SDK, server.client_env)
    file, row = server.file(), next(server.run().rows())
    assert (file.project, file.name) == ("trainer", "worker-1")
    assert (row["loss"], row["batches{split=train}"]) == (0.25, 3)
    assert {name: row[f"seconds/{name}"] for name in ("count", "sum", "min", "max")} == {
        "count": 1, "sum": 2.0, "min": 2.0, "max": 2.0,
    }  # fmt: skip


def request(points: list[dict[str, Any]]) -> dict[str, Any]:
    metric = {"name": "loss", "gauge": {"dataPoints": points}}
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "s"}}]}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": [metric]}]}]}


def point(nanos: int, value: float | str, step: int | None = None) -> dict[str, Any]:
    attributes = [] if step is None else [{"key": "step", "value": {"intValue": str(step)}}]
    return {"timeUnixNano": str(nanos), "asDouble": value, "attributes": attributes}


def test_json_is_taken_and_what_is_sent_again_is_not_doubled(local: LocalServer) -> None:
    server = local
    sent = request([point(10**18, 1.5, step=7), point(10**18 + 10**9, "NaN", step=8)])
    assert server.post("/v1/metrics", sent).status_code == 200
    server.start()
    assert server.post("/v1/metrics", sent).status_code == 200
    assert [(row["step"], row["loss"]) for row in server.run().rows()] == [(7, 1.5), (8, "NaN")]


@pytest.mark.parametrize(
    ("kind", "body"), [("application/x-protobuf", b"\xff\xff"), ("application/json", b"[]"), ("", b"")]
)
def test_what_is_not_a_request_is_refused(kind: str, body: bytes, local: LocalServer) -> None:
    server = local
    headers = {"authorization": f"Bearer {server.token}", "content-type": kind}
    assert server.post("/v1/metrics", body, headers=headers).status_code == 400

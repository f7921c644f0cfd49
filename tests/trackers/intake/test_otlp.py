"""OpenTelemetry's own SDK sends metrics to a real server."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from trainvitals.trackers.intake.otlp import MOST_ATTRIBUTES, MOST_PARTS, PROTOBUF
from trainvitals.varints import varint

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


BAD = ("--5", "9" * 5000, "9" * 400, "٣" * 3, True, [], {"a": 1}, None, "x")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: repr(bad)[:20])
@pytest.mark.promise("OTLP points with times, values and steps that are none", "they are left out; the others are kept")
def test_a_point_that_is_none_costs_only_itself(bad: Any, local: LocalServer) -> None:
    good = point(10**18, 1.5, step=7)
    without_step = {**point(10**18 + 10**9, 2.5), "attributes": [{"key": "step", "value": {"intValue": bad}}]}
    untimed, unnumbered = {**good, "timeUnixNano": bad}, {"timeUnixNano": good["timeUnixNano"], "asInt": bad}
    sent = request([untimed, unnumbered, without_step, good])
    sent["resourceMetrics"] += [bad, {"resource": bad, "scopeMetrics": bad}]
    assert local.post("/v1/metrics", sent).status_code == 200
    rows = [(row.get("step"), row["loss"]) for row in local.run().rows() if row["loss"] in (1.5, 2.5)]
    assert rows == [(7, 1.5), (None, 2.5)]
    assert "Traceback" not in local.log


def resource_with(count: int) -> dict[str, Any]:
    attributes = [{"key": f"key{number}", "value": {"stringValue": "x"}} for number in range(count)]
    sent = request([point(10**18, 1.5)])
    sent["resourceMetrics"][0]["resource"]["attributes"] += attributes
    return sent


def test_of_very_many_attributes_the_first_are_kept(local: LocalServer) -> None:
    assert local.post("/v1/metrics", resource_with(5 * MOST_ATTRIBUTES)).status_code == 200
    assert len(local.file().config or {}) == MOST_ATTRIBUTES


def within(*fields: int, parts: bytes) -> bytes:
    """Protobuf: a message within messages, by the numbers of their fields from the outermost on."""
    for field in reversed(fields):
        parts = varint(field << 3 | 2) + varint(len(parts)) + parts
    return parts


BOMBS = {
    "resources": within(1, parts=b"") * (MOST_PARTS + 1),
    "points": within(1, 2, 2, 5, parts=within(1, parts=b"") * MOST_PARTS),
    "attributes": within(1, 2, 2, 5, 1, parts=within(7, parts=b"") * MOST_PARTS),
    "buckets": within(1, 2, 2, 10, 1, 8, parts=within(2, parts=b"\x01" * 2 * MOST_PARTS)),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.promise("a small OTLP request that unpacks to gigabytes", "refused before it is unpacked")
def test_a_request_of_very_many_parts_is_refused(name: str, local: LocalServer) -> None:
    headers = {"authorization": f"Bearer {local.token}", "content-type": PROTOBUF}
    answer = local.post("/v1/metrics", BOMBS[name], headers=headers)
    assert answer.status_code == 413 and "send fewer points" in answer.text
    packed = {**headers, "content-encoding": "gzip"}
    assert local.post("/v1/metrics", gzip.compress(BOMBS[name]), headers=packed).status_code == 413
    assert local.post("/v1/metrics", b'{"resourceMetrics":[' + b"{}," * MOST_PARTS + b"{}]}").status_code == 413
    assert local.runs() == []

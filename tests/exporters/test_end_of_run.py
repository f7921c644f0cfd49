"""A training that is over before the first interval is, watched by a real agent that pushes: nothing of it is lost."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from servers import Answering, Server
from waiting import PATIENCE, wait_until

TRAINING = """
import time, trainvitals
run = trainvitals.init()
for step in range(1, 41):
    run.log({"loss": 1.0 / step}, step=step)
    time.sleep(0.05)
"""


def test_a_short_run_arrives_whole_and_its_series_end(
    start_prometheus: Callable[..., Server], answering: Answering, tmp_path: Path
) -> None:
    server = start_prometheus()
    answering.answers = [(200, b"", {})]
    environ = {
        **{name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")},
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1",
        "TRAINVITALS_PROMETHEUS_KEEP_ENDED": "1",
        "TRAINVITALS_PROMETHEUS_REMOTE_WRITE": f"{server.url}/api/v1/write",
        "TRAINVITALS_PROMETHEUS_OTLP": f"{answering.url}/v1/metrics",
    }
    command = [sys.executable, "-m", "trainvitals", "run", "--", sys.executable, "-c", TRAINING]
    subprocess.run(command, env=environ, cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
    wait_until(lambda: server.value("last_over_time(training_steps_total[1h])") == 40, "the last step")
    wait_until(lambda: not server.query("training_loss") and not server.query("cpu_usage_percent"), "the end of it all")
    assert server.value("last_over_time(training_loss[1h])") == 1.0 / 40
    assert server.value('last_over_time(trainvitals_run_state{state="finished"}[1h])') == 1
    wait_until(lambda: any(is_end(body) for _, _, body in answering.received), "the same by OTLP")
    assert any(40.0 in steps(body) for _, _, body in answering.received)
    wait_until(lambda: not list((tmp_path / "runtime" / "spool").rglob("*.request")), "an empty spool")


def points(body: bytes, name: str) -> list[tuple[float, int]]:
    request = ExportMetricsServiceRequest.FromString(gzip.decompress(body))
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    found = [metric for metric in metrics if metric.name == name]
    return [(point.as_double, point.flags) for metric in found for point in metric.sum.data_points]


def steps(body: bytes) -> list[float]:
    return [value for value, flags in points(body, "training_steps") if not flags]


def is_end(body: bytes) -> bool:
    return any(flags for _, flags in points(body, "training_steps"))

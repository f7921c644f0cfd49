"""A live run on fake GPUs, scraped by Debian's Prometheus: every query of every dashboard and rule gets its answer."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from servers import Server, Watched, fetch, wait_until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPT = """
count = 2
gpu.*.util_gpu = 90
gpu.*.temp_gpu = 71
gpu.1.temp_gpu = 84
gpu.*.power_mw = 500000
gpu.*.mem_used = 40Gi
gpu.*.energy_mj = ramp:1000000:500000
gpu.*.event_reasons = 32
gpu.*.procs = C:self:4Gi:55
"""


@pytest.fixture(scope="module")
def machine(watched: Callable[..., Watched]) -> Watched:
    return watched(SCRIPT, "--compat", "dcgm,nvidia_smi")


@pytest.fixture(scope="module")
def prometheus(machine: Watched, start_prometheus: Callable[..., Server]) -> Server:
    """Scrapes the machine every second, judges the rules, and has seen it for a while."""
    scrape = {
        "job_name": "trainvitals",
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{machine.port}"]}],
    }
    config = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "scrape_configs": [scrape]}
    server = start_prometheus(config, DEPLOY / "prometheus" / "trainvitals.rules.yml")
    wait_until(lambda: (server.value("min(count_over_time(gpu_power_draw_watts[5m]))") or 0) >= 15, "15 scrapes")
    wait_until(lambda: server.query("host:gpu_energy_joules:increase1h"), "the recording rules")
    return server


# -- the page


def test_the_page_has_the_fixed_names_with_their_types(machine: Watched) -> None:
    page = machine.page()
    for name, kind in {
        "gpu_utilization_percent": "gauge",
        "gpu_memory_used_mb": "gauge",
        "gpu_memory_total_mb": "gauge",
        "gpu_temperature_celsius": "gauge",
        "gpu_power_draw_watts": "gauge",
        "gpu_fan_speed_percent": "gauge",
        "training_loss": "gauge",
        "training_steps_total": "counter",
        "training_epoch": "gauge",
        "learning_rate": "gauge",
        "gradient_norm": "gauge",
        "training_step_duration_seconds": "histogram",
        "memory_allocation_mb": "summary",
        "cpu_usage_percent": "gauge",
        "memory_usage_percent": "gauge",
        "disk_read_mb_s": "gauge",
    }.items():
        assert f"# TYPE {name} {kind}\n" in page, name


def test_values_are_those_of_the_driver_and_of_the_training(prometheus: Server) -> None:
    assert prometheus.value('gpu_temperature_celsius{gpu="0"}') == 71
    assert prometheus.value('gpu_temperature_celsius{gpu="1"}') == 84
    assert prometheus.value('gpu_power_draw_watts{gpu="0"}') == 500
    assert prometheus.value('gpu_memory_used_mb{gpu="0"}') == 40 * 1024
    assert prometheus.value('rate(gpu_energy_joules_total{gpu="0"}[10s])') == pytest.approx(500, rel=0.05)
    assert prometheus.value("training_loss") == 0.25
    assert prometheus.value("learning_rate") == 3e-4
    assert prometheus.value('training_phase_duration_seconds{phase="backward"}') == 0.02
    assert prometheus.value('training_metric{name="val/acc"}') == 0.5
    assert prometheus.value('training_metric{name="val.acc"}') == 0.625
    assert math.isnan(prometheus.value('training_metric{name="not a number"}') or 0)
    assert prometheus.value('memory_allocation_mb{quantile="0.5"}') == 1024
    steps = prometheus.value("training_steps_total")
    assert steps and steps == pytest.approx(prometheus.value("training_step_duration_seconds_count"), abs=2)


def test_labels_say_whose_value_it_is(prometheus: Server) -> None:
    gpu = prometheus.query('gpu_power_draw_watts{gpu="1"}')[0]["metric"]
    assert set(gpu) == {"__name__", "gpu", "uuid", "host", "job", "instance"}
    loss = prometheus.query("training_loss")[0]["metric"]
    assert (loss["project"] == "exported" and loss["rank"] == "0" and "live" in loss["run"]) or "train" in loss["run"]


def test_slow_values_are_there_between_the_samples_that_read_them(machine: Watched) -> None:
    wait_until(lambda: "gpu_encoder_percent{" in machine.page(), "the first look at the video engines")
    for _ in range(10):
        page = machine.page()
        assert 'gpu_encoder_percent{gpu="0"' in page and 'gpu_processes{gpu="0"' in page
        time.sleep(0.3)


def test_openmetrics_has_units_exemplars_and_created_times(machine: Watched, prometheus: Server) -> None:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    page = machine.page("application/openmetrics-text;version=1.0.0")
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["gpu_power_draw_watts"].unit == "watts"
    duration = families["training_step_duration_seconds"]
    assert any(sample.exemplar and sample.exemplar.labels["step"] for sample in duration.samples)
    assert any(sample.name.endswith("_created") for sample in families["training_steps"].samples)
    status, text, _ = fetch(
        f"{prometheus.url}/api/v1/query_exemplars?query=training_step_duration_seconds_bucket"
        f"&start={time.time() - 600}&end={time.time()}"
    )
    assert status == 200 and "step" in json.loads(text)["data"][0]["exemplars"][0]["labels"]


# -- dashboards and rules

EMPTY_HERE = {
    "no GPU is in a bad state": ('state!="ok"',),
    "no GPU is idle": ("avg_over_time(gpu_utilization_percent",),
    "no alert of this kind fires": ("trainvitals_alert_active",),
}


def expressions() -> list[tuple[str, str, str]]:
    """(dashboard, panel, query) of everything that Grafana would ask."""
    found = []
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json")):
        board = json.loads(path.read_text())
        panels = [inner for panel in board["panels"] for inner in (panel, *panel.get("panels", []))]
        found += [
            (path.stem, panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])
        ]
        found += [(path.stem, "annotation", item["expr"]) for item in board["annotations"]["list"] if "expr" in item]
    return found


def fill_in(expression: str) -> str:
    """As Grafana does with everything chosen."""
    for name, text in {
        "$__rate_interval": "30s",
        "$__range": "5m",
        "$gpu_hour": "2.0",
        "$kwh": "0.30",
        ":1m]": ":5s]",  # the whole minutes of a subquery: this server has not lived one yet
    }.items():
        expression = expression.replace(name, text)
    return re.sub(r"\$(project|run|host|gpu)\b", ".*", expression)


def test_every_query_of_every_dashboard_gets_data(prometheus: Server) -> None:
    asked = expressions()
    assert len(asked) > 100
    missing = []
    for board, panel, expression in asked:
        if not prometheus.query(fill_in(expression)):
            excused = any(part in expression for parts in EMPTY_HERE.values() for part in parts)
            if not excused:
                missing.append(f"{board} / {panel}: {expression}")
    known = {line for line in missing if any(word in line for word in HARDWARE_LACKS)}
    unexplained = [line for line in missing if line not in known]
    assert not unexplained, "\n".join(unexplained)


# What this machine and this fake driver have nothing of.
HARDWARE_LACKS = ("swap_", "gpu_throttle_hardware", "disk_busy", "pressure_", "gpu_nvlink", "gpu_pcie")


@pytest.mark.parametrize(
    ("panel", "query", "wanted"),
    [
        ("Power", 'sum(gpu_power_draw_watts{host=~".*"})', 1000.0),
        ("GPUs", 'count(gpu_utilization_percent{host=~".*"})', 2.0),
        ("Hottest", 'topk(1, gpu_temperature_celsius{host=~".*"})', 84.0),
        ("idle GPUs", 'sum by (host) (1 - gpu_utilization_percent{host=~".*"} / 100)', 0.2),
        (
            "step quantile",
            "histogram_quantile(0.5, sum by (le) (rate(training_step_duration_seconds_bucket[30s])))",
            0.0375,
        ),
    ],
)
def test_what_dashboards_compute_is_right(prometheus: Server, panel: str, query: str, wanted: float) -> None:
    assert prometheus.value(query) == pytest.approx(wanted, rel=0.01), panel


def test_every_rule_can_be_judged_and_the_right_ones_fire(prometheus: Server) -> None:
    status, text, _ = fetch(f"{prometheus.url}/api/v1/rules")
    assert status == 200
    rules = [rule for group in json.loads(text)["data"]["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    wait_until(lambda: "GpuTemperatureHigh" in firing(prometheus), "the hot GPU")
    assert firing(prometheus)["GpuTemperatureHigh"] == {"1"}
    assert firing(prometheus)["GpuThrottledHeat"] == {"0", "1"}
    assert "GpuLost" not in firing(prometheus)


def firing(prometheus: Server) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for series in prometheus.query('ALERTS{alertstate="firing"}'):
        found.setdefault(series["metric"]["alertname"], set()).add(series["metric"].get("gpu", ""))
    return found


def test_an_alert_of_our_own_is_a_series(machine: Watched) -> None:
    wait_until(
        lambda: 'rule="gpu_temperature_high"' in machine.page() and 'rule="gpu_throttled_heat"' in machine.page(),
        "the agent's own alerts on the page",
    )
    line = next(line for line in machine.page().splitlines() if 'rule="gpu_temperature_high"' in line)
    assert 'gpu="1"' in line and 'severity="warning"' in line and line.endswith(" 1.0")


# -- dashboards made for other exporters

DCGM_QUERIES = (
    'DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"}',
    'avg(DCGM_FI_DEV_GPU_TEMP{instance=~".*", gpu=~".*"})',
    'DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"}',
    'sum(DCGM_FI_DEV_POWER_USAGE{instance=~".*", gpu=~".*"})',
    'DCGM_FI_DEV_SM_CLOCK{instance=~".*", gpu=~".*"} * 1000000',
    'DCGM_FI_DEV_GPU_UTIL{instance=~".*", gpu=~".*"}',
    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".*", gpu=~".*"}',
    'DCGM_FI_DEV_FB_USED{instance=~".*", gpu=~".*"}',
    'DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)',
    'nvidia_smi_utilization_gpu_ratio * on (uuid) group_left (name) nvidia_smi_gpu_info',
    'nvidia_smi_memory_used_bytes / nvidia_smi_memory_total_bytes',
)  # fmt: skip


@pytest.mark.parametrize("query", DCGM_QUERIES)
def test_queries_of_other_exporters_dashboards_get_data(prometheus: Server, query: str) -> None:
    assert prometheus.query(query), query


def test_their_numbers_are_in_their_units(prometheus: Server) -> None:
    assert prometheus.value('DCGM_FI_DEV_FB_USED{gpu="0"}') == 40 * 1024
    assert prometheus.value('DCGM_FI_DEV_SM_CLOCK{gpu="0"}') == 1755
    assert prometheus.value("nvidia_smi_utilization_gpu_ratio") == 0.9
    series: dict[str, Any] = prometheus.query('DCGM_FI_DEV_GPU_TEMP{gpu="1"}')[0]["metric"]
    assert {"UUID", "modelName", "Hostname", "device"} <= set(series)


# -- trouble


def test_a_gpu_that_hangs_or_is_lost_holds_up_no_scrape_and_its_series_end(machine: Watched) -> None:
    machine.fake.script(SCRIPT + "\ndelay_us.nvmlDeviceGetPowerUsage.1 = 60000000\n")
    try:
        wait_until(
            lambda: re.search(r'trainvitals_source_up\{[^}]*unit="nvidia[^}]*\} 0', machine.page()),
            "the hang to be seen",
        )
        assert 'gpu_power_draw_watts{gpu="0"' in machine.page()
        wait_until(lambda: 'gpu_power_draw_watts{gpu="1"' not in machine.page(), "the series of the hung GPU to end")
        assert 'gpu_power_draw_watts{gpu="0"' in machine.page()
    finally:
        machine.fake.script(SCRIPT)

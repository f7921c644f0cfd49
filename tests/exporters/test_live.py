"""A live run on fake GPUs, scraped by Debian's Prometheus: every query of every dashboard and rule gets its answer."""

from __future__ import annotations

import getpass
import json
import math
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from answers import AHEAD, NOBODY, RULES, SCRIPT, STALLED, TRAINING, Answers, script_processes
from servers import Server, Watched, fetch
from waiting import free_port, pause, wait_until

from trainvitals.exporters import names
from trainvitals.exporters.names import SPELLINGS, Spelling
from trainvitals.views.deployment.files import folder_of, rules_file

DEPLOY = Path(__file__).parents[2] / "deploy"
HOST_RULES = {
    "CpuHigh": "how busy this machine is",
    "MemoryHigh": "how full its memory is",
    "SwapUsed": "whether it has swap, and swaps",
    "DiskSpaceLow": "how full its disk is",
    "DiskFullSoon": "how fast its disk fills",
}
"""Alerts that say something about whatever machine the tests run on. That they fire when they should is tested with
promtool, on made-up series."""
END_RULES = ("RunFailed", "RankLost", "TrainvitalsSilent", "TrainvitalsPushRejected")
"""Nothing ends here, and nothing is pushed; tests/exporters/test_alert_path.py has them."""


class Live:
    """The machine as Prometheus sees it, in one spelling, after a while."""

    def __init__(self, server: Server, spelling: Spelling, root: Path) -> None:
        self.server = server
        self.spelling: Spelling = spelling
        power = names.export_of("gpu", "power_draw_watts", spelling)
        assert power is not None
        wait_until(lambda: (server.value(f"min(count_over_time({power.series}[5m]))") or 0) >= 16, "16 scrapes")
        conditions = (
            "host:gpu_energy_joules:increase1h",
            'trainvitals_run_state{state="hung"} == 1',
            'ALERTS{alertname="TrainvitalsAlert"}',
            "process_fd_limit == 64",
            "process_cpu_percent or process_cpu_ratio",
            'process_gpu_memory_mb{rank="2"} or process_gpu_memory_bytes{rank="2"}',
            'process_gpu_waiting_percent{rank="1"} or process_gpu_waiting_ratio{rank="1"}',
            'process_gpu_waiting_percent{rank="2"} or process_gpu_waiting_ratio{rank="2"}',
            'count(trainvitals_gpu_holder_info{run!=""}) == 2',
            'ALERTS{alertname="FileDescriptorsHigh"}',
            'ALERTS{alertname="GpuOomSoon"}',
            # No GPU seemed to hang lately, which ends even the values that are read twice a minute.
            'max(changes(gpu_state{state="ok"}[30s])) == 0',
            # No scrape was missed lately, as on a busy machine some are; nobody ever answers at the other address.
            "count(min_over_time(up[10s]) == 1) == 1",
        )
        for what in conditions:
            wait_until(lambda what=what: server.query(what), what)

        def find_moment() -> float | None:
            """At which all of that was so, by samples and rules that came in later, too; its lines are written."""
            moment = time.time()
            pause(1.0)
            return moment if all(server.query(what, moment) for what in conditions) else None

        self.moment = wait_until(find_moment, "a moment at which all is there")
        self.first = float(server.query(f"min(min_over_time(timestamp({power.series})[5m:500ms]))")[0]["value"][1])
        self.answers = Answers(root, spelling, self.first, self.moment)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """As Grafana does with everything chosen."""
        for name, text in {"$__rate_interval": "6s", "$__range": "5m", "$gpu_hour": "2.0", "$kwh": "0.30"}.items():
            expression = expression.replace(name, text)
        # A subquery looks at whole minutes of the clock, and this server has seen less than one.
        moment = self.moment + (AHEAD if ":1m]" in expression else 0.0)
        return self.server.query(re.sub(r"\$(project|run|host|gpu)\b", ".*", expression), moment)

    def value(self, expression: str) -> float | None:
        """At the moment at which all was there: after a scrape that a busy machine missed there is nothing."""
        return self.server.value(expression, self.moment)


@pytest.fixture(scope="module")
def base_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def machine(watched: Callable[..., Watched], base_port: int) -> Watched:
    stalled = STALLED.format(port=base_port)
    return watched(SCRIPT, "--compat", "dcgm,nvidia_smi", training=TRAINING, beside=stalled, rules=RULES)


@pytest.fixture(scope="module")
def script(machine: Watched) -> str:
    """What the driver says from when the ranks run."""
    text = SCRIPT + wait_until(lambda: script_processes(machine.folder), "the ranks to say who they are")
    machine.fake.script(text)
    return text


@pytest.fixture(scope="module")
def servers_by_spelling(
    machine: Watched, script: str, base_port: int, start_prometheus: Callable[..., Server]
) -> dict[Spelling, Server]:
    """One Prometheus for each spelling: they scrape twice a second and judge the rules as often."""
    found: dict[Spelling, Server] = {}
    for spelling, port in zip(SPELLINGS, (machine.port, base_port), strict=True):
        scrape = {
            "job_name": "trainvitals",
            "honor_labels": True,
            "static_configs": [{"targets": [f"127.0.0.1:{port}", NOBODY]}],
        }
        config = {"global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"}, "scrape_configs": [scrape]}
        rules = machine.folder / f"{spelling}.yml"
        # Time is short here: rules are evaluated as often as everything is scraped, and a line may be a young one.
        text = (DEPLOY / rules_file(spelling)).read_text().replace("interval: 15s", "interval: 500ms")
        rules.write_text(text.replace("offset 1m", "offset 2s"))
        found[spelling] = start_prometheus(config, rules)
    return found


@pytest.fixture(scope="module")
def prometheus(servers_by_spelling: dict[Spelling, Server], live: Callable[[Spelling], Live]) -> Server:
    return live("mb").server


@pytest.fixture(scope="module")
def here(servers_by_spelling: dict[Spelling, Server], live: Callable[[Spelling], Live]) -> Live:
    return live("mb")


@pytest.fixture(scope="module")
def live(machine: Watched, servers_by_spelling: dict[Spelling, Server]) -> Callable[[Spelling], Live]:
    @cache
    def look(spelling: Spelling) -> Live:
        return Live(servers_by_spelling[spelling], spelling, machine.folder / "runs")

    return look


# -- the page


def test_the_page_has_the_fixed_names_with_their_types(machine: Watched) -> None:
    wanted = {
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
    }

    def missing() -> list[str]:
        page = machine.page()
        return [name for name, kind in wanted.items() if f"# TYPE {name} {kind}\n" not in page]

    # A loss is there with the first look at the machine, a rate with the second.
    wait_until(lambda: not missing(), lambda: f"all names; still missing: {missing()}")


def test_values_are_those_of_the_driver_and_of_the_training(here: Live) -> None:
    """What no dashboard asks for; the rest is asked below."""
    assert here.value('training_metric{name="val/acc",rank="0"}') == 0.5
    assert here.value('training_metric{name="val.acc",rank="0"}') == 0.625
    assert math.isnan(here.value('training_metric{name="not a number",rank="0"}') or 0)
    assert here.value('memory_allocation_mb{quantile="0.5",rank="0"}') == 1024
    assert here.value('gpu_sm_clock_mhz{gpu="0"}') == 1755
    steps = here.value('training_steps_total{rank="2"}')
    assert steps and steps == pytest.approx(here.value('training_step_duration_seconds_count{rank="2"}'), abs=20)


def test_labels_say_whose_value_it_is(here: Live) -> None:
    gpu = here.ask('gpu_power_draw_watts{gpu="1"}')[0]["metric"]
    assert set(gpu) == {"__name__", "gpu", "uuid", "host", "job", "instance"}
    loss = here.ask('training_loss{rank="2"}')[0]["metric"]
    assert set(loss) == {"__name__", "run", "project", "rank", "host", "job", "instance"}
    assert loss["project"] == "exported" and "train" in loss["run"]


def test_who_holds_a_gpu_is_known_by_run_rank_and_user(machine: Watched, here: Live) -> None:
    found = {item["metric"]["gpu"]: item["metric"] for item in here.ask("trainvitals_gpu_holder_info")}
    assert {gpu: labels["rank"] for gpu, labels in found.items()} == {"0": "1", "1": "2"}
    assert found["0"]["user"] == getpass.getuser() and found["0"]["command"].startswith("python")
    assert found["0"]["pid"] == (machine.folder / "rank1.pid").read_text().strip()
    by_run = (
        "sum by (run) (trainvitals_gpu_holder_memory_mb * on (uuid, pid) group_left (run) trainvitals_gpu_holder_info)"
    )
    assert here.value(by_run) == 6 * 1024
    about = here.ask('gpu_info{gpu="0"}')[0]["metric"]
    assert about["driver_version"] == "580.65.06" and about["pci_bus_id"] and about["serial"] and about["vbios_version"]


def test_slow_values_are_there_between_the_samples_that_read_them(machine: Watched) -> None:
    def there() -> bool:
        page = machine.page()
        return 'gpu_encoder_percent{gpu="0"' in page and 'gpu_processes{gpu="0"' in page

    def stay_there() -> bool:
        for _ in range(10):
            if not there():
                return False
            time.sleep(0.3)
        return True

    # On a busy machine a GPU may seem to hang for a moment, which ends all its values until they are read again.
    wait_until(stay_there, "the video engines and the processes in ten pages in a row")


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


def test_a_server_that_takes_native_histograms_gets_them_and_all_the_rest(
    machine: Watched, here: Live, start_prometheus: Callable[..., Server]
) -> None:
    """It asks for protobuf; our rules and dashboards answer there, too."""
    scrape = {
        "job_name": "trainvitals",
        "honor_labels": True,
        "static_configs": [{"targets": [f"127.0.0.1:{machine.port}"]}],
    }
    config = {"global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"}, "scrape_configs": [scrape]}
    rules = machine.folder / "native.yml"
    rules.write_text((DEPLOY / rules_file("mb")).read_text().replace("interval: 15s", "interval: 500ms"))
    server = start_prometheus(config, rules, "native-histograms")
    steps = 'histogram_count(training_step_duration_seconds{rank="0",run!~".*-stalled-.*"})'
    wait_until(lambda: server.value(steps), "a native histogram")
    assert server.query("training_step_duration_seconds_bucket") == []
    for recorded in ("rank:training_step_duration_seconds:mean5m", "run:training_step_duration_seconds:p50_5m"):
        answer = here.answers(recorded)
        wait_until(lambda asked=recorded, known=answer: known.differs(server.query(asked)) is None, recorded)
    # Every other series is there as it is in the text.
    every = 'count by (__name__) ({host!="",__name__!~".*_bucket|.*_created|training_step_duration.*|ALERTS.*|.*:.*"})'

    def shapes(of: Server) -> set[tuple[str, str]]:
        return {(series["metric"]["__name__"], series["value"][1]) for series in of.query(every)}

    wait_until(lambda: shapes(here.server) == shapes(server), lambda: str(shapes(here.server) ^ shapes(server)))
    exact = 'gpu_temperature_celsius{gpu="1"}'
    quantile = 'memory_allocation_mb{quantile="0.5",rank="0"}'
    # After a scrape that a busy machine missed there is nothing until the next one.
    wait_until(lambda: server.value(exact) == here.server.value(exact) == 89, exact)
    wait_until(lambda: server.value(quantile) == 1024.0, quantile)
    status, text, _ = fetch(f"{server.url}/api/v1/metadata?metric=training_steps_total")
    assert status == 200 and json.loads(text)["data"]["training_steps_total"][0]["type"] == "counter"


# -- dashboards and rules


def expressions(spelling: Spelling) -> dict[str, str]:
    """Query -> where it stands, of everything that Grafana would ask."""
    found: dict[str, str] = {}
    for path in sorted((DEPLOY / folder_of(spelling)).glob("*.json")):
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            assert not panel.get("panels"), "a folded row would hide its queries from this test"
            for target in panel.get("targets", []):
                found[target["expr"]] = f"{path.stem}: {panel['title']}"
        for item in board["annotations"]["list"]:
            if "expr" in item:
                found[item["expr"]] = f"{path.stem}: annotation"
    return found


def lacks(series: str) -> bool:
    """Whether this machine has nothing of what the series of the host measures."""
    return {
        "swap_usage": psutil.swap_memory().total == 0,
        "pressure": not Path("/proc/pressure").exists(),
        "disk_read": not psutil.disk_io_counters(perdisk=True),
        "disk_write": not psutil.disk_io_counters(perdisk=True),
    }[next(name for name in ("swap_usage", "pressure", "disk_read", "disk_write") if series.startswith(name))]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_query_of_every_dashboard_gets_the_right_answer(
    live: Callable[[Spelling], Live], spelling: Spelling
) -> None:
    here = live(spelling)
    asked = expressions(spelling)
    assert len(asked) > 90
    wrong = []
    for expression, place in asked.items():
        answer = here.answers(expression)
        if not answer.values:
            assert lacks(expression), f"{place}: {expression} has no data"
        difference = answer.differs(here.ask(expression))
        if difference is not None:
            wrong.append(f"{place}: {expression}: {difference}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_rule_finds_what_it_should_and_is_judged(live: Callable[[Spelling], Live], spelling: Spelling) -> None:
    here = live(spelling)
    rules = [rule for group in read_rules(here.server) for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    wrong = []
    for rule in rules:
        if rule["name"] in (*HOST_RULES, *END_RULES):
            continue
        recorded = rule["type"] == "recording"
        answer = here.answers(rule["name"]) if recorded else here.answers.fires(rule["name"])
        difference = answer.differs(here.ask(rule["name"] if recorded else rule["query"]))
        if difference is not None:
            wrong.append(f"{rule['name']}: {difference}")
        if not recorded and not here.server.query(f'ALERTS{{alertname="{rule["name"]}"}}', here.moment):
            wrong.append(f"{rule['name']} is not active")
    assert not wrong, "\n".join(wrong)
    assert set(HOST_RULES) <= {rule["name"] for rule in rules}


def read_rules(server: Server) -> list[dict[str, Any]]:
    status, text, _ = fetch(f"{server.url}/api/v1/rules")
    assert status == 200
    groups: list[dict[str, Any]] = json.loads(text)["data"]["groups"]
    return groups


# -- dashboards made for other exporters

# Queries of the public dashboards of the DCGM exporter and of nvidia_gpu_exporter, and their answers by GPU.
EVERYTHING = '{instance=~".*", gpu=~".*"}'
THEIR_QUERIES: tuple[tuple[str, dict[str, float]], ...] = (
    (f"DCGM_FI_DEV_GPU_TEMP{EVERYTHING}", {"0": 71, "1": 89, "3": 60}),
    (f"avg(DCGM_FI_DEV_GPU_TEMP{EVERYTHING})", {"": 220 / 3}),
    (f"DCGM_FI_DEV_POWER_USAGE{EVERYTHING}", {"0": 500, "1": 500, "3": 500}),
    (f"sum(DCGM_FI_DEV_POWER_USAGE{EVERYTHING})", {"": 1500}),
    (f"DCGM_FI_DEV_SM_CLOCK{EVERYTHING} * 1000000", {"0": 1.755e9, "1": 1.755e9, "3": 1.755e9}),
    (f"DCGM_FI_DEV_GPU_UTIL{EVERYTHING}", {"0": 90, "1": 90, "3": 0}),
    (f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{EVERYTHING}", {"0": 0.625, "1": 0.625, "3": 0.625}),
    ('DCGM_FI_DEV_FB_USED{instance=~".*", gpu=~"0|1"}', {"0": 40960, "1": 77824}),
    (
        'DCGM_FI_DEV_FB_USED{gpu="0"} / (DCGM_FI_DEV_FB_USED{gpu="0"} + DCGM_FI_DEV_FB_FREE{gpu="0"})',
        {"0": 40 / 79.5},  # half a gigabyte is reserved
    ),
    (
        "label_replace(nvidia_smi_utilization_gpu_ratio * on (uuid) group_left (name)"
        ' nvidia_smi_gpu_info{name=~".*H100.*"}, "gpu", "$1", "uuid", ".*(.)")',
        {"0": 0.9, "1": 0.9, "3": 0},
    ),
    ('label_replace(nvidia_smi_memory_used_bytes{uuid=~".*[01]"} / nvidia_smi_memory_total_bytes,'
     ' "gpu", "$1", "uuid", ".*(.)")', {"0": 0.5, "1": 0.95}),
    ('DCGM_FI_PROF_GR_ENGINE_ACTIVE{DCGM_FI_DRIVER_VERSION="580.65.06"}', {"0": 0.9, "1": 0.9, "3": 0}),
    (
        "label_replace(sum by (uuid) (nvidia_smi_clocks_event_reasons_sw_thermal_slowdown"
        ' or nvidia_smi_clocks_throttle_reasons_sw_thermal_slowdown), "gpu", "$1", "uuid", ".*(.)")',
        {"0": 1, "1": 0, "3": 0},
    ),
    (
        'label_replace(nvidia_smi_clocks_throttle_reasons_hw_power_brake_slowdown, "gpu", "$1", "uuid", ".*(.)")',
        {"0": 0, "1": 1, "3": 0},
    ),
    (
        "label_replace(nvidia_smi_index * on (uuid) group_left (index, name)"
        ' nvidia_smi_gpu_info{driver_version="580.65.06"}, "gpu", "$1", "index", "(.*)")',
        {"0": 0, "1": 1, "3": 3},
    ),
    ('label_replace({__name__=~"nvidia_smi_ecc_errors_uncorrected_.+"}, "gpu", "$1", "uuid", ".*(.)") == 0',
     {"0": 0, "3": 0}),
    ('label_replace(nvidia_smi_remapped_rows_failure, "gpu", "$1", "uuid", ".*(.)")', {"0": 0, "1": 1, "3": 0}),
)  # fmt: skip


@pytest.mark.parametrize(("query", "wanted"), THEIR_QUERIES)
def test_dashboards_of_other_exporters_get_their_answers(
    prometheus: Server, query: str, wanted: dict[str, float]
) -> None:
    def found() -> dict[str, float]:
        return {series["metric"].get("gpu", ""): float(series["value"][1]) for series in prometheus.query(query)}

    # After a scrape that a busy machine missed there is nothing until the next one.
    wait_until(lambda: found() == pytest.approx(wanted), lambda: f"{wanted}; there is {found()}")


def test_traffic_over_pcie_is_there_under_the_names_of_others(here: Live) -> None:
    for theirs, ours in (("rx", 500), ("tx", 800)):
        found = here.ask(f"nvidia_smi_pcie_throughput_{theirs}_bytes_per_second")
        assert [float(series["value"][1]) for series in found] == pytest.approx([ours * 1024**2] * 3, rel=0.1)


def test_series_of_other_exporters_have_their_labels(here: Live) -> None:
    series: dict[str, Any] = here.ask('DCGM_FI_DEV_GPU_TEMP{gpu="1"}')[0]["metric"]
    assert {"UUID", "modelName", "Hostname", "device"} <= set(series)


# -- trouble


def test_a_gpu_that_hangs_holds_up_no_scrape_and_keeps_only_its_state(
    watched: Callable[..., Watched],
) -> None:
    machine = watched("count = 2")  # of its own: it hangs on after this test
    wait_until(lambda: 'gpu_power_draw_watts{gpu="1"' in machine.page(), "both GPUs")
    machine.fake.script("count = 2\ndelay_us.nvmlDeviceGetPowerUsage.1 = 600000000")
    wait_until(
        lambda: re.search(r'trainvitals_source_up\{[^}]*unit="nvidia[^}]*1"\} 0', machine.page()),
        "the hang to be seen",
    )
    wait_until(lambda: 'gpu_power_draw_watts{gpu="1"' not in machine.page(), "the series of the hung GPU to end")
    wait_until(lambda: re.search(r'gpu_state\{gpu="1"[^}]*state="unresponsive"[^}]*\} 1', machine.page()), "its state")

    def is_known_and_the_other_goes_on() -> bool:
        text = machine.page()
        return bool(re.search(r'gpu_info\{[^}]*gpu="1"', text)) and 'gpu_power_draw_watts{gpu="0"' in text

    wait_until(is_known_and_the_other_goes_on, "what the hung GPU is, and the readings of the other")

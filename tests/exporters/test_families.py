"""The page as Prometheus' own linter and parser see it, whatever names and labels there are."""

from __future__ import annotations

import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from trainvitals import catalog
from trainvitals.exporters import names
from trainvitals.exporters.families import LONGEST_LABEL, FamilyOptions, MetricsSnapshot, build, clean
from trainvitals.exporters.names import SPELLINGS, Spelling
from trainvitals.exporters.page import render
from trainvitals.exporters.runs import ActiveAlert, RunView, ShippingCounts
from trainvitals.exporters.training import RankTraining
from trainvitals.journal.documents.job import Job
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.identity import Participant
from trainvitals.newest import Thing

RUN = RunView(
    "run-1",
    Path("/runs/run-1"),
    "project",
    "run",
    "running",
    (ActiveAlert("gpu_lost", "critical", {"gpu_index": 0}),),
)


def everything(**metrics: float) -> MetricsSnapshot:
    """A snapshot in which every metric of the catalog has a value."""
    labels = {
        "gpu": {"gpu_index": 0, "gpu_uuid": "GPU-1", "gpu_name": "H100", "vendor": "nvidia"},
        "system": {},
        "process": {"run_id": "run-1", "rank": 0},
    }
    things = []
    for table, about in labels.items():
        values = {row.name.replace("<N>", "3"): "ok" if row.kind == "text" else 2.0 for row in catalog.TABLES[table]}
        counters = {row.name: {"eth0" if row.label else "": 7.0} for row in catalog.COUNTERS[table]}
        things.append(Thing(table, about, values, counters))
    training = RankTraining()
    for step in range(3):
        row = {item.name: 0.5 for item in catalog.TRAINING} | metrics
        training.take({"timestamp": f"2026-01-01T00:00:0{step}Z", **row, "step": step})
    health = SourceHealth(source="nvidia", up=True, age=1.0, duration=1.0, errors=1, skipped=1)
    runs = ((RUN, {Participant(): training}),)
    return MetricsSnapshot("box", 1_700_000_000.0, tuple(things), runs, {"nvidia:GPU-1": health})


def page(snapshot: MetricsSnapshot, options: FamilyOptions | None = None, accept: str = "") -> str:
    return render(build(snapshot, options or FamilyOptions()), accept)[0].decode()


def lint(text: str) -> list[str]:
    """What promtool says; it must be able to read the page."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode in (0, 3), done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_the_linter_says_nothing_but_its_remark_on_mb() -> None:
    said = lint(page(everything(**{"val/acc": 0.5}), FamilyOptions(user_names="both")))
    assert said, "it does remark on _mb"
    for remark in said:
        name, _, text = remark.partition(" ")
        assert name.endswith(("_mb", "_mb_s")) and text == "metric names should not contain abbreviated units"


def test_in_base_units_the_linter_says_nothing() -> None:
    assert lint(page(everything(**{"val/acc": 0.5}), FamilyOptions(spelling="base", user_names="both"))) == []


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_number_of_the_catalog_is_on_the_page(spelling: Spelling) -> None:
    found = {
        sample.name
        for family in parse_text(page(everything(), FamilyOptions(spelling=spelling)))
        for sample in family.samples
    }
    for table, counters in catalog.COUNTERS.items():
        for counter in counters:
            export = names.export_of(table, counter.name, spelling)
            assert export is not None and export.kind == "counter" and export.series in found, counter.name
    for table, rows in catalog.TABLES.items():
        for row in rows:
            export = names.export_of(table, row.name, spelling)
            if export is not None:
                assert export.series in found, f"{table}.{row.name}"
            else:
                assert row.kind == "text" or (table, row.name) in names.APART
    assert {
        "gpu_state",
        "gpu_throttle_reason",
        "gpu_info",
        "trainvitals_build_info",
        "trainvitals_alert_active",
    } <= found


def test_both_spellings_are_the_same_metrics_in_other_units() -> None:
    mb, base = (
        {s.name: s.value for f in parse_text(page(everything(), FamilyOptions(spelling=spelling))) for s in f.samples}
        for spelling in SPELLINGS
    )
    assert len(mb) == len(base)
    assert base["gpu_memory_used_bytes"] == mb["gpu_memory_used_mb"] * 1024**2
    assert base["gpu_utilization_ratio"] == mb["gpu_utilization_percent"] / 100
    assert mb["disk_free_mb"] == 2.0 * 1024


def test_no_two_metrics_have_one_name() -> None:
    for spelling in SPELLINGS:
        series = [
            export.series
            for table, rows in (*catalog.TABLES.items(), *catalog.COUNTERS.items())
            for row in rows
            if (export := names.export_of(table, row.name, spelling)) is not None
        ]
        assert len(series) == len(set(series))


def test_a_counter_has_a_series_for_each_device() -> None:
    disks = {"disk_read_bytes_total": {"nvme0n1": 5.0, "nvme1n1": 6.0}}
    text = page(MetricsSnapshot("box", 1.0, (Thing("system", {}, {}, disks),)))
    assert 'disk_read_bytes_total{device="nvme0n1",host="box"} 5.0' in text
    assert 'disk_read_bytes_total{device="nvme1n1",host="box"} 6.0' in text
    xids = {"xid_errors_by_code_total": {"79": 1.0}, "pcie_rx_bytes_total": {"": 9.0}}
    about = {"gpu_index": 0, "gpu_uuid": "GPU-1", "vendor": "nvidia"}
    accept = "application/openmetrics-text"
    text = page(MetricsSnapshot("box", 1.0, (Thing("gpu", about, {}, xids),)), accept=accept)
    assert 'gpu_xid_errors_by_code_total{gpu="0",host="box",uuid="GPU-1",xid="79"} 1.0' in text
    assert "gpu_xid_errors_by_code_created" in text
    assert 'gpu_pcie_rx_bytes_total{gpu="0",host="box",uuid="GPU-1"} 9.0' in text
    assert "gpu_pcie_rx_bytes_created" not in text


def test_two_user_metrics_that_sanitise_to_one_name_are_kept_apart() -> None:
    text = page(everything(**{"val/acc": 0.5, "val.acc": 0.75}), FamilyOptions(user_names="name"))
    found = {
        s.labels["name"]: s.value for f in parse_text(text) if f.name == "training_metric_val_acc" for s in f.samples
    }
    assert found == {"val/acc": 0.5, "val.acc": 0.75}
    assert "training_metric{" not in text


def test_more_user_metrics_than_allowed_are_counted_not_served() -> None:
    text = page(everything(**{f"m{n}": 1.0 for n in range(50)}), FamilyOptions(max_user_series=20))
    assert text.count("training_metric{") == 20
    assert 'trainvitals_user_series_left_out{host="box"} 30.0' in text


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1, max_size=30), st.floats(allow_nan=False))
def test_any_name_and_value_comes_back_as_it_was(name: str, value: float) -> None:
    if name in {alias for row in catalog.TRAINING for alias in (row.name, *row.aliases)} | {"timestamp", "step"}:
        return
    for accept, parse in (("", parse_text), ("application/openmetrics-text", parse_openmetrics)):
        text = page(everything(**{name: value}), FamilyOptions(user_names="both"), accept)
        found = {s.labels["name"]: s.value for f in parse(text) if f.name == "training_metric" for s in f.samples}
        assert found == {clean(name): value}


def test_names_with_quotes_newlines_and_ten_kilobytes() -> None:
    wanted = {'say "hi"\n\\': 1.0, "a" * 10_000: 2.0, "a" * 9_999 + "b": 3.0, "é\udcff": 4.0}
    text = page(everything(**wanted))
    found = [s for f in parse_text(text) if f.name == "training_metric" for s in f.samples]
    assert {s.value for s in found} == {1.0, 2.0, 3.0, 4.0}
    assert len({s.labels["name"] for s in found}) == 4
    assert max(len(s.labels["name"]) for s in found) <= LONGEST_LABEL
    assert lint(text)


def test_every_character_can_be_in_a_name() -> None:
    names = {f"x{chr(number)}y": float(number) for number in (*range(0x600), 0x2028, 0xD800, 0xFFFF, 0x1F600, 0x10FFFF)}
    options = FamilyOptions(user_names="both", max_user_series=10_000)
    text = page(everything(**names), options)
    found = [s for f in parse_text(text) if f.name == "training_metric" for s in f.samples]
    assert {s.labels["name"]: s.value for s in found} == {clean(name): value for name, value in names.items()}
    assert len(found) == len(names), "no two became one"
    assert lint(text)
    assert page(everything(**names), options, "application/openmetrics-text").endswith("# EOF\n")


def test_a_slice_of_a_gpu_has_the_labels_of_the_dcgm_exporter() -> None:
    about = {"gpu_index": 1, "gpu_uuid": "MIG-1", "gpu_name": "H100 MIG 1g.10gb", "vendor": "nvidia", "mig_index": 3}
    slices = MetricsSnapshot("box", 1.0, (Thing("gpu", about, {"memory_used_mb": 100.0, "memory_total_mb": 1000.0}),))
    text = page(slices, FamilyOptions(compat=frozenset(("dcgm",))))
    labels = 'GPU_I_ID="3",Hostname="box",UUID="MIG-1",device="nvidia1:3",gpu="1",modelName="H100 MIG 1g.10gb"'
    assert f"DCGM_FI_DEV_FB_FREE{{{labels}}} 900.0\n" in text
    assert 'gpu_memory_used_mb{gpu="1:3",host="box",uuid="MIG-1"} 100.0\n' in text


def test_a_slice_of_a_gpu_has_the_driver_and_the_serial_number_of_its_gpu() -> None:
    labels = {"gpu_index": 1, "gpu_uuid": "MIG-1", "vendor": "nvidia", "mig_index": 3, "mig_parent": "GPU-1"}
    facts = {"GPU-1": {"driver_version": "580.1", "cuda_version": "13.0", "serial": "42"}}
    things = (Thing("gpu", labels, {"memory_used_mb": 100.0}),)
    snapshot = MetricsSnapshot("box", 1.0, things, gpu_facts=facts)
    text = page(snapshot, FamilyOptions(compat=frozenset(("dcgm", "nvidia_smi"))))
    own = next(row for row in text.splitlines() if row.startswith("gpu_info{"))
    assert 'serial="42"' in own and 'driver_version="580.1"' in own and 'cuda_version="13.0"' in own
    assert 'DCGM_FI_DRIVER_VERSION="580.1"' in text
    theirs = next(row for row in text.splitlines() if row.startswith("nvidia_smi_gpu_info{"))
    assert theirs.startswith('nvidia_smi_gpu_info{cuda_version="13.0",driver_version="580.1"'), theirs


@pytest.mark.parametrize(("words", "number"), [("none", 0.0), ("reset", 1.0), ("drain and reset", 4.0)])
def test_what_a_driver_asks_for_is_a_number_to_the_dashboards_of_others(words: str, number: float) -> None:
    about = {"gpu_index": 0, "gpu_uuid": "GPU-a", "vendor": "nvidia"}
    gpus = MetricsSnapshot("box", 1.0, (Thing("gpu", about, {"recovery_action": words}),))
    text = page(gpus, FamilyOptions(compat=frozenset(("nvidia_smi",))))
    assert f'nvidia_smi_gpu_recovery_action{{uuid="a"}} {number}\n' in text
    assert "nvidia_smi_clocks_event_reasons" not in text, "reasons that are not known are not 0"


def test_an_alert_is_said_once_with_its_gpu() -> None:
    line = next(line for line in page(everything()).splitlines() if line.startswith("trainvitals_alert_active{"))
    assert 'rule="gpu_lost"' in line and 'gpu="0"' in line and 'severity="critical"' in line


def test_what_is_shipped_and_what_waits() -> None:
    assert "ship" not in page(MetricsSnapshot("box", 1.0))
    counts = ShippingCounts(7, 2, 1000, 50, 1, 3.5)
    text = page(MetricsSnapshot("box", 1.0, shipping=counts))
    for line in (
        'trainvitals_agent_gateway_requests_total{host="box",outcome="taken"} 7.0',
        'trainvitals_agent_gateway_requests_total{host="box",outcome="failed"} 2.0',
        'trainvitals_agent_shipped_bytes_total{host="box"} 1000.0',
        'trainvitals_agent_unshipped_bytes{host="box"} 50.0',
        'trainvitals_agent_unshipped_runs{host="box"} 1.0',
        'trainvitals_agent_shipping_behind_seconds{host="box"} 3.5',
    ):
        assert line in text


def test_the_text_format_has_no_created_series_and_openmetrics_has() -> None:
    assert "_created" not in page(everything())
    text = page(everything(), accept="application/openmetrics-text")
    assert "training_steps_created" in text
    assert "gpu_energy_joules_total" in text and "gpu_energy_joules_created" not in text, "it began with the driver"


NATIVE = "application/openmetrics-text;version=2.0.0"


def test_a_native_histogram_is_there_for_who_asks_for_it_and_says_the_same() -> None:
    snapshot = everything()
    training = snapshot.runs[0][1][Participant()]
    for seconds, times in ((0.01, 5), (0.0101, 1), (0.5, 20), (1e-9, 2), (1e9, 1)):
        for _ in range(times):
            training.take({"timestamp": "2026-01-01T00:01:00Z", "batch_time": seconds})
    options = FamilyOptions(native=True)
    plain, openmetrics, native = (page(snapshot, options, accept) for accept in ("", NATIVE.partition(";")[0], NATIVE))
    assert "positive_spans" not in plain + openmetrics and native.count("positive_spans") == 1
    # The library's parser knows no spans that begin below one second, so the line is taken apart here.
    line = next(line for line in native.splitlines() if "positive_spans" in line)
    found = dict(re.findall(r"(\w+):(\[[^]]*\]|[^,}]+)", line.partition("} {")[2]))
    count = re.search(r"^training_step_duration_seconds_count\{.*\} (.*)$", native, re.MULTILINE)
    assert count is not None and float(found["count"]) == float(count[1]) == 3 + 29 and found["schema"] == "3"
    assert float(found["sum"]) == pytest.approx(training.duration_sum)
    counted, number, height = {}, 0, 0
    deltas = iter(json.loads(found["positive_deltas"]))
    for offset, length in re.findall(r"(-?\d+):(\d+)", found["positive_spans"]):
        number += int(offset)
        for _ in range(int(length)):
            height += next(deltas)
            counted[number] = height
            number += 1
    assert sum(counted.values()) == 32 and next(deltas, None) is None

    def holder(seconds: float) -> int:
        return next(number for number in sorted(counted) if 2 ** (number / 8) >= seconds)

    assert counted[holder(0.01)] == 6 and counted[holder(0.5)] == 23  # everything() logs three of half a second
    assert counted[min(counted)] == 2 and counted[max(counted)] == 1
    assert all(2 ** ((holder(s) - 1) / 8) < s for s in (0.01, 0.5)), "no bucket is wider than it says"


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text", NATIVE])
def test_the_page_is_byte_for_byte_what_the_library_writes(accept: str) -> None:
    from prometheus_client import exposition
    from prometheus_client.openmetrics import exposition as openmetrics

    class Families:
        def collect(self) -> list[Metric]:
            return found

    snapshot = everything(**{'say "hi"\n\\': 1e-9, "val/acc": 123456789.0, "nan": math.nan, "inf": -math.inf})
    options = FamilyOptions(user_names="both", compat=frozenset(("dcgm", "nvidia_smi")), native=accept == NATIVE)
    found = build(snapshot, options)
    ours = render(found, accept)[0]
    if not accept:
        for family in found:
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
        theirs = exposition.generate_latest(Families())
    else:
        theirs = openmetrics.generate_latest(Families(), version="2.0.0" if accept == NATIVE else "1.0.0")
    assert ours.decode().splitlines() == theirs.decode().splitlines()


def test_the_job_of_a_run_is_on_its_info_series_only() -> None:
    job = Job(slurm="4711", array="4700_3", partition="gpu", pod="p", namespace="n")
    snapshot = everything()
    snapshot = replace(snapshot, runs=((replace(RUN, job=job), snapshot.runs[0][1]),))
    found = [line for line in page(snapshot).splitlines() if "4711" in line]
    assert len(found) == 1 and found[0].startswith("trainvitals_run_info{")
    for label in ('slurm_array="4700_3"', 'slurm_partition="gpu"', 'pod="p"', 'namespace="n"', 'slurm_account=""'):
        assert label in found[0]

"""The catalogue of conditions: whatever judges refers to it, and one changed threshold is seen by all of them."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from made_runs import make_run, write

from trainvitals import catalog
from trainvitals.alerts.builtin import make_rules
from trainvitals.analysis.diagnosis import DETECTORS
from trainvitals.conditions import ROWS, Condition, Conditions, Threshold, rl
from trainvitals.conditions.reference import render_markdown
from trainvitals.conditions.xids import XIDS, find_xid
from trainvitals.errors import SettingError
from trainvitals.trainer.watch import health

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "trainvitals"
CONDITIONS = Conditions()
THRESHOLDS = {item.name: item for row in ROWS for item in row.thresholds}


# -- the catalogue is whole


def test_ids_titles_and_advice_are_there_and_ids_are_unique() -> None:
    assert len({row.id for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert re.fullmatch(r"[a-z][a-z_]*", row.id) and row.title and len(row.advice) > 25, row.id
        seen = (row.live, row.prometheus, row.findings, row.colours, row.noticed_by_watch)
        assert any(seen), f"nobody judges {row.id}"


def test_every_threshold_is_used_and_every_one_that_is_used_exists() -> None:
    code = "".join(path.read_text() for room in ("analysis", "trainer") for path in (SOURCES / room).rglob("*.py"))
    used = set(re.findall(r'"([a-z0-9_]+)"', code)) & THRESHOLDS.keys()
    for row in ROWS:
        texts = [*row.live[:6], *row.live.let.values()] if row.live is not None else []
        texts += [row.prometheus.expression] if row.prometheus is not None else []
        named = set(re.findall(r"\$([a-z]\w*)", " ".join(text for text in texts if isinstance(text, str))))
        named |= {name for colour in row.colours for name in colour[2:] if isinstance(name, str)}
        assert named <= THRESHOLDS.keys(), row.id
        used |= named
    assert used == THRESHOLDS.keys()


def test_every_detector_and_every_finding_is_of_a_condition() -> None:
    known = {finding for row in ROWS for finding in row.findings}
    assert {detector.rule for detector in DETECTORS} <= known
    code = "".join(path.read_text() for path in (SOURCES / "analysis").glob("*.py"))
    rooms = (
        "amp|batch|checkpoint|comm|cpu|data|disk|end|evaluation|gpu|grad|host|io|launch|logging|loss|lr|replica|step|"
        "straggler|transfer|units"
    )
    written = set(re.findall(rf'"((?:{rooms})\.[a-z_]+)"', code))
    assert known == written | {finding for row in rl.ROWS for finding in row.findings}
    page = (ROOT / "docs" / "diagnosis.md").read_text()
    assert [finding for finding in known if f"`{finding}`" not in page] == []


def test_every_event_about_a_layer_is_a_condition() -> None:
    assert set(health.EVENTS) == {row.id for row in ROWS if row.subject == "layer" and row.noticed_by_watch}


def test_every_colour_is_of_a_catalog_metric_in_its_unit_and_gets_worse() -> None:
    for row in ROWS:
        for colour in row.colours:
            metric = catalog.find(colour.table, colour.metric)
            assert metric is not None and metric.name == colour.metric, colour
            for name in (colour.warning, colour.critical):
                assert not isinstance(name, str) or THRESHOLDS[name].unit == metric.unit, name
    for key, levels in CONDITIONS.levels.items():
        values = [level.value for level in levels]
        assert values == sorted(values, reverse=levels[0].below), key


def test_the_page_of_rules_is_the_one_that_is_generated() -> None:
    page = ROOT / "docs" / "rules.md"
    assert page.read_text(encoding="utf-8") == render_markdown(), "python -m trainvitals.conditions > docs/rules.md"


def test_nobody_counts_the_rules_by_hand() -> None:
    count = len(make_rules(CONDITIONS))
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.search(rf"\b{count} (\w+ )?\[?rules\b", page.read_text()), page


# -- one object


@pytest.mark.parametrize(
    ("table", "name", "value", "expected"),
    [
        ("gpu", "temperature_celsius", 79.9, None),
        ("gpu", "temperature_celsius", 80.0, "warning"),
        ("gpu", "temperature_celsius", 93.0, "critical"),
        ("gpu", "temperature_celsius", math.nan, "critical"),
        ("system", "disk_free_gb", 100.0, None),
        ("system", "disk_free_gb", 1.5, "warning"),
        ("system", "disk_free_gb", 0.2, "critical"),
        ("training", "my/own", 1e9, None),
    ],
)
def test_a_value_past_a_threshold_has_its_severity(table: str, name: str, value: float, expected: str | None) -> None:
    assert CONDITIONS.severity_of(table, name, value) == expected


def test_a_warning_beyond_the_critical_value_takes_its_place() -> None:
    changed = Conditions({"gpu_temperature_celsius": 70, "cpu_usage_percent": 99})
    assert [level.value for level in changed.levels_of("gpu", "temperature_celsius")] == [70, 90]
    assert [level.severity for level in changed.levels_of("system", "cpu_usage_percent")] == ["warning"]


def test_a_misspelt_threshold_and_one_that_is_no_number_are_errors() -> None:
    with pytest.raises(
        SettingError, match="unknown threshold 'gpu_temp_celsius', did you mean 'gpu_temperature_celsius'"
    ):
        Conditions({"gpu_temp_celsius": 70})
    with pytest.raises(SettingError, match=r"'gpu_price_per_hour' was removed: set `price\.gpu_hour`"):
        Conditions({"gpu_price_per_hour": 3.0})
    with pytest.raises(SettingError, match="'gpu_temperature_celsius' cannot be nan"):
        Conditions({"gpu_temperature_celsius": math.nan})


def test_it_does_not_change_once_it_is_made() -> None:
    given = {"gpu_temperature_celsius": 70.0}
    made = Conditions(given)
    given["gpu_temperature_celsius"] = 10.0
    assert made.thresholds["gpu_temperature_celsius"] == 70
    with pytest.raises(TypeError):
        made.thresholds["gpu_temperature_celsius"] = 10  # type: ignore[index]
    with pytest.raises(AttributeError):
        made.rows = ()  # type: ignore[misc]


def test_rows_of_others_can_be_added_under_names_of_their_own() -> None:
    own = Condition("fan_slow", "gpu", "slow fans", "info", "Clean them.", (Threshold("fan_percent", 20, "%", "slow"),))
    made = Conditions({"fan_percent": 30}, (*ROWS, own))
    assert made["fan_slow"] is own and made.thresholds["fan_percent"] == 30
    with pytest.raises(ValueError, match="same name"):
        Conditions(rows=(*ROWS, own._replace(id="gpu_idle")))


# -- a changed threshold is seen by everybody

CHANGED = {"gpu_temperature_celsius": 55, "loss_divergence_percent": 5}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A run whose GPU is at 60 °C and whose loss rose by 7 %, a folder without settings, and one with."""
    root = tmp_path_factory.mktemp("runs")
    folder = make_run(root / "p" / "warm")
    write(folder, ({"step": step, "loss": (1.0 if step < 800 else 1.07) + 1e-3 * (step % 3)} for step in range(1600)))
    gpu = {"gpu_index": 0, "gpu_uuid": "GPU-0", "host": "box", "temperature_celsius": 60.0, "utilization_percent": 95.0}
    write(folder, (gpu for _ in range(1600)), "gpu_metrics_20260101_000000")
    usual, changed = tmp_path_factory.mktemp("usual"), tmp_path_factory.mktemp("changed")
    (usual / "trainvitals.yaml").write_text(f"dir: {root}\n")
    (changed / "trainvitals.yaml").write_text(yaml.safe_dump({"dir": str(root), "alerts": {"thresholds": CHANGED}}))
    return folder, usual, changed


def trainvitals(place: Path, *words: str, **environ: str) -> str:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
    done = subprocess.run(
        [sys.executable, "-m", "trainvitals", *words],
        capture_output=True, text=True, cwd=place, env={**kept, "COLUMNS": "200", **environ}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


Places = tuple[Path, Path, Path]


def test_the_rule_sees_it(places: Places) -> None:
    _, usual, changed = places
    assert "firing" not in trainvitals(usual, "alerts", "replay", "warm")
    fired = trainvitals(changed, "alerts", "replay", "warm")
    assert re.search(r"firing +gpu_temperature_high .*above 55", fired)
    assert re.search(r"firing +loss_diverging ", fired)


def test_the_finding_and_the_report_see_it(places: Places) -> None:
    _, usual, changed = places
    for command in (("runs", "show", "warm", "--json"), ("report", "warm", "-o", "-", "--format", "json")):
        before, after = (set(_findings(json.loads(trainvitals(place, *command)))) for place in (usual, changed))
        assert after - before == {"gpu.hot", "loss.divergence"}, command


def _findings(answer: Any) -> Iterator[str]:
    """The names of the findings, wherever they are in the answer."""
    if isinstance(answer, dict):
        yield from (finding["rule"] for finding in answer.get("findings", ()))
    for part in answer.values() if isinstance(answer, dict) else answer if isinstance(answer, list) else ():
        yield from _findings(part)


def test_the_colours_of_the_report_see_it(places: Places) -> None:
    _, usual, changed = places
    before, after = (trainvitals(place, "report", "warm", "-o", "-", "--format", "html") for place in (usual, changed))
    level = '"metric":"temperature_celsius","severity":"warning","value":{}'
    assert level.format("80.0") in _data(before) and level.format("55.0") in _data(after)


def _data(page: str) -> str:
    """What the page of a report has to draw."""
    found = re.search(r'data-encoding="gzip">([^<]+)<', page)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode()


def test_the_colours_of_the_terminal_see_it(places: Places) -> None:
    _, usual, changed = places
    words = ("top", "warm", "--once")
    before, after = (trainvitals(place, *words, FORCE_COLOR="1", COLUMNS="120") for place in (usual, changed))
    styles = [re.findall(r"\x1b\[([\d;]+)m *60°C", text) for text in (before, after)]
    assert styles[1] and styles[0] != styles[1]


def test_the_page_sees_it(places: Places) -> None:
    _, usual, changed = places
    for place, expected in ((usual, 80), (changed, 55)):
        server = subprocess.Popen(
            [sys.executable, "-m", "trainvitals", "serve", "--port", "0", "--no-token"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().removeprefix("dashboard: ").strip()
            panels = httpx.get(f"{address}api/v1/panels", timeout=None).json()
            found = httpx.get(f"{address}api/v1/runs/warm/diagnosis", timeout=None).json()
        finally:
            server.terminate()
            server.communicate()
        levels = [item for item in panels["thresholds"] if item["metric"] == "temperature_celsius"]
        assert levels[0]["value"] == expected
        drawn = next(panel for panel in panels["panels"] if panel["id"] == "gpu_temperature")
        assert drawn["thresholds"][0]["value"] == expected
        assert ("gpu.hot" in set(_findings(found))) == (expected == 55)


def test_the_prometheus_rule_sees_it_and_promtool_accepts_it(places: Places, tmp_path: Path) -> None:
    _, usual, changed = places
    path = tmp_path / "rules.yml"
    path.write_text(trainvitals(changed, "prometheus", "rules"))
    alerts = {rule.get("alert"): rule for rule in yaml.safe_load(path.read_text())["groups"][1]["rules"]}
    assert alerts["GpuTemperatureHigh"]["expr"] == "gpu_temperature_celsius > 55"
    assert alerts["GpuFanStopped"]["expr"].endswith("gpu_temperature_celsius > 55 - 10")
    assert subprocess.run(["promtool", "check", "rules", path], capture_output=True, check=False).returncode == 0
    committed = ROOT / "deploy" / "prometheus" / "trainvitals.rules.yml"
    assert trainvitals(usual, "prometheus", "rules") == committed.read_text()


def test_a_threshold_of_an_info_rule_makes_it_a_warning_for_prometheus_too(places: Places) -> None:
    environ = {"TRAINVITALS_ALERTS_THRESHOLDS": json.dumps({"cpu_usage_percent": 50})}
    rules = yaml.safe_load(trainvitals(places[1], "prometheus", "rules", **environ))["groups"][1]["rules"]
    alert = next(rule for rule in rules if rule["alert"] == "CpuHigh")
    assert alert["expr"].endswith("> 50") and alert["labels"]["severity"] == "warning"
    rule = next(rule for rule in make_rules(Conditions({"cpu_usage_percent": 50})) if rule.name == "cpu_high")
    assert rule.severity == "warning"


def test_every_xid_has_a_meaning_and_an_action_and_any_other_code_an_answer() -> None:
    assert all(xid.meaning and len(xid.action) > 20 for xid in XIDS.values())
    assert find_xid(79).severity == "critical" and "Restart the machine" in find_xid(79).advise(3)
    assert "--gpu-reset -i 3" in find_xid(95).advise(3)
    assert "catalog" in find_xid(4711).advise(3)

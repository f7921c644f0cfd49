"""docs/arriving.md: every older name has a row, and what the rows name exists and works. `UPDATE_DOCS=1 pytest
tests/test_arriving.py` rewrites the table of configuration keys."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import trainvitals
from trainvitals import catalog
from trainvitals.alerts.readings import OLDER_GPU_NAMES
from trainvitals.exporters.families import FamilyOptions
from trainvitals.exporters.runs import RunView
from trainvitals.exporters.service import Exports
from trainvitals.integrations.classic.monitors import GPU_KEYS
from trainvitals.journal.follower import Relay
from trainvitals.newest import Newest
from trainvitals.settings.older_names import KEYS, THRESHOLDS
from trainvitals.sources import Sample
from trainvitals.trainer import dashboard
from trainvitals.views.cli.arguments import actions_of, make_parser
from trainvitals.views.cli.main import COMMANDS

PAGE = Path(__file__).parents[1] / "docs" / "arriving.md"


def draw_keys() -> str:
    lines = ["| key | setting | meaning |", "|---|---|---|"]
    for key in KEYS:
        sets = ", ".join(f"`{name}`" for name in key.sets) or "none"
        lines.append(f"| `{key.name}` | {sets} | {key.meaning} |")
    return "\n".join(lines)


def draw_thresholds() -> str:
    lines = ["| threshold | today |", "|---|---|"]
    lines += [f"| `{row.name}: 0.5` | `{row.becomes}: 50` |" for row in THRESHOLDS]
    return "\n".join(lines)


def test_the_page_has_every_key_and_threshold_as_they_are() -> None:
    text = PAGE.read_text()
    for name, wanted in (("older keys", draw_keys()), ("older thresholds", draw_thresholds())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        found, _, after = rest.partition(end)
        if os.environ.get("UPDATE_DOCS"):
            text = f"{before}{begin}{wanted}\n{end}{after}"
            PAGE.write_text(text)
        else:
            assert found == f"{wanted}\n"


def rows_of(heading: str, place: int = 0) -> list[list[str]]:
    """The cells of a table below a heading, without its head; `place` counts the tables there."""
    section = PAGE.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    tables = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    lines = tables[place].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def code_in(cell: str) -> list[str]:
    return re.findall(r"`(.+?)`(?=$|[ ,:;.)])", cell)


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, value in {"AGENT": "0", "SIMULATE_GPUS": "1", "RUNTIME_DIR": str(tmp_path / "runtime")}.items():
        monkeypatch.setenv(f"TRAINVITALS_{name}", value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.yaml").write_text("dashboard: {refresh_interval: 5}\nmonitoring: {interval: 30}\n")
    yield tmp_path
    trainvitals.finish()


def test_every_class_and_method_works_as_the_page_has_it(
    own_places: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dashboard, "start", lambda *_, **__: None)  # a server for each row would outlive the test
    names: dict[str, Any] = {
        "trainvitals": trainvitals,
        "gpu": trainvitals.GPUMonitor(sample_interval=0.05),
        "resources": trainvitals.GPUResourceMonitor(monitor_interval=0.05),
        "monitor": trainvitals.TrainingMonitor(),
        "history": [{"timestamp": float(step), "loss": 1.0} for step in range(100)],
    }
    names["callback"] = trainvitals.TrainingMonitorCallback(names["gpu"])
    names["board"] = trainvitals.TensorBoardMonitor(own_places / "logs")
    names["model"], names["example_input"] = torch.nn.Linear(4, 1), torch.zeros(1, 4)
    names["analyzer"] = trainvitals.PerformanceAnalyzer(names["history"])
    names["alerting"] = trainvitals.PerformanceAlerting()
    walked = 0
    for older, today in rows_of("Classes and methods"):
        assert today.startswith(("`", "none: ")), older
        for code in code_in(today):
            names["run"] = names["monitor"].run
            if "run.log" in code:
                names["run"] = trainvitals.init()
            eval(code, names)
            walked += 1
    assert walked >= 40
    assert "failed" not in capfd.readouterr().err
    menu = {name for name in trainvitals.__all__ if re.search("Monitor|Metrics|Performance", name)}
    page = PAGE.read_text()
    assert all(f"trainvitals.{name}" in page for name in menu)


def test_every_command_can_be_typed_as_the_page_has_it() -> None:
    for older, today in rows_of("Scripts and flags"):
        if today.startswith("the same"):
            assert older.startswith("`+trainer."), "flags of verl, which test_verl.py gives"
            continue
        (code,) = code_in(today)
        program, command, *words = shlex.split(code)
        assert program == "trainvitals", older
        name, module_name, help = next(row for row in COMMANDS if row[0] == command)
        module = import_module(module_name)
        actions = {action.name: action for action in actions_of(module)}
        action = actions.get(words[0]) if actions and words else None
        if actions:
            words = words[1:] if action is not None else words
            action = action or next(iter(actions.values()))
        make_parser(f"trainvitals {name}", module, help, action).parse(words)


def test_every_metric_of_the_page_is_one_of_the_catalog_and_its_older_names_are_all_there() -> None:
    found = rows_of("Metrics")
    for _, table, today in found:
        (name,) = code_in(today)
        metric = catalog.find(table, name)
        assert metric is not None and metric.name == name
    older = " ".join(row[0] for row in found)
    assert all(f"gpu_N_{key}" in older for key in GPU_KEYS if key not in ("memory_allocated_gb", "memory_reserved_gb"))
    assert all(f"gpu_{name}" in older for name in OLDER_GPU_NAMES)


def test_what_a_condition_in_python_may_call_a_gpu_s_reading_is_in_the_catalog() -> None:
    assert all(catalog.find("gpu", name) is not None for name in OLDER_GPU_NAMES.values())


def test_every_name_for_prometheus_is_served(own_places: Path) -> None:
    with trainvitals.init(project="p") as run:
        for step in range(3):
            run.log({"loss": 1.0, "batch_time": 0.1, "memory_allocated_mb": 5.0}, step=step)
    exports = Exports("box", own_places, newest := Newest(), pytest.fail)
    relay = Relay(run.folder)
    relay.add(exports.listen_to(run.folder))
    relay.poll()
    samples = [
        Sample("gpu", {"gpu_index": 0, "gpu_uuid": "GPU-0"}, {"memory_used_mb": 1.0}, 0.0),
        Sample("system", {}, {"cpu_usage_percent": 1.0}, 0.0),
    ]
    for sample in samples:
        newest.take("made", sample.table, [sample], time.monotonic(), 60.0)
    exports.update([RunView(run.id, run.folder, "p", "run", "running")], {})
    served = {sample.name for family in exports.collect(FamilyOptions()) for sample in family.samples}
    for _, today in rows_of("Metrics", 1):
        (name,) = code_in(today)
        assert name in served or f"{name}_count" in served, sorted(served)
    exports.close()


def test_every_file_of_the_page_is_in_a_run_folder(own_places: Path) -> None:
    from trainvitals.journal import layout

    folder = trainvitals.init().folder
    known = {f"{table}_metrics_*.jsonl" for table in layout.METRIC_TABLES} | {"events_*.jsonl", "alerts_*.jsonl"}
    for _, today in rows_of("Files"):
        (name,) = code_in(today)
        assert name in known or name == f"{layout.SEGMENTS}/" or (folder / name).is_file(), name

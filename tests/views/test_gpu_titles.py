"""Two slices of one GPU: every view calls each of them by the same name of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import START, make_run, write

from trainvitals.alerts.builtin import make_rules
from trainvitals.alerts.replay import replay
from trainvitals.analysis.diagnosis import diagnose
from trainvitals.conditions import Conditions
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time
from trainvitals.journal.reader import RunReader
from trainvitals.views.cli.main import main
from trainvitals.views.data.diagnosis import read_measurements
from trainvitals.views.report.charts import make_charts
from trainvitals.views.tui.pages.lists import place_of
from trainvitals.views.tui.tracks import owner_of

SECONDS = 2700
SLICES = tuple(
    {"gpu_index": 0, "gpu_uuid": f"MIG-{part}", "gpu_name": "H100 MIG", "mig_parent": "GPU-1", "mig_index": part}
    for part in (1, 2)
)


@pytest.fixture
def run(tmp_path: Path) -> RunReader:
    folder = make_run(tmp_path / "p" / "r", host={"name": "node7"}, ended=format_time(START + SECONDS))
    values = {"utilization_percent": 10.0, "memory_percent": 80.0, "memory_used_mb": 8000.0}
    for part in SLICES:
        write(folder, [{**part, "host": "node7", **values}] * SECONDS, "gpu_metrics_20260101_000000.host-node7")
    summary = {
        str(part["gpu_uuid"]): {**part, "utilization_percent_mean": 10.0, "utilization_percent_count": SECONDS}
        for part in SLICES
    }
    run_folder.write_status(folder, Status.parse({"host": "node7", "attempt": 1, "gpu_summary": summary}), "node7")
    return RunReader(folder)


def test_findings_name_each_slice(run: RunReader) -> None:
    findings = diagnose(read_measurements(run), Conditions()).findings
    (found,) = [item for item in findings if item.rule == "gpu.low_use"]
    assert found.subject == "GPU 0:1, GPU 0:2"


def test_runs_show_has_a_row_for_each_slice(run: RunReader, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(run.folder)]) == 0
    shown = capsys.readouterr().out
    assert "GPU 0:1" in shown and "GPU 0:2" in shown


def test_the_lines_of_a_chart_are_told_apart(run: RunReader) -> None:
    (chart,) = make_charts(run, ["gpu_utilization"])
    assert [line.title for line in chart.lines] == ["GPU 0:1", "GPU 0:2"]


def test_an_alert_names_the_slice_in_its_text_and_its_labels(run: RunReader) -> None:
    changes = replay(make_rules(Conditions()), run.rows, [], {}, held_gpus=["MIG-1", "MIG-2"])
    found = [change for change in changes if change.rule.name == "gpu_low_use"]
    assert [change.message[:7] for change in found] == ["GPU 0:1", "GPU 0:2"]
    rows = [AlertRow.parse({"rule": "mine", "message": "full", "labels": dict(change.labels)}) for change in found]
    assert [place_of(row) for row in rows] == ["GPU 0:1", "GPU 0:2"]


def test_the_terminal_draws_two_curves() -> None:
    owners = [owner_of("gpu", {**part, "host": "node7"}) for part in SLICES]
    assert [owner.label for owner in owners] == ["GPU 0:1", "GPU 0:2"] and len({owner.key for owner in owners}) == 2

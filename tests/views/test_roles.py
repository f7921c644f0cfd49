"""A run of trainers and rollouts on two hosts: every reader and view tells two processes of the same rank apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_runs import HOSTS, ROLES, make_run_of_roles
from memory_runs import MemoryRun, MemoryRuns
from starlette.testclient import TestClient

from trainvitals.alerts import builtin
from trainvitals.alerts.replay import replay
from trainvitals.alerts.rules import parse_rule
from trainvitals.conditions import Conditions
from trainvitals.exporters.families import FamilyOptions, MetricsSnapshot, build
from trainvitals.exporters.page import render
from trainvitals.exporters.runs import RunView
from trainvitals.exporters.training import RunTraining
from trainvitals.journal.contracts import Reader
from trainvitals.journal.folder_runs import FolderRuns, refer_to
from trainvitals.journal.follower import Relay
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.journal.segment_writer import seal
from trainvitals.settings import resolve
from trainvitals.views.cli.main import main
from trainvitals.views.data.comparison import describe_comparison
from trainvitals.views.data.diagnosis import read_measurements
from trainvitals.views.data.participants import choose_participants
from trainvitals.views.data.series import describe_series
from trainvitals.views.report.charts import make_charts
from trainvitals.views.report.document import draw_report
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Request
from trainvitals.views.tui.view import View
from trainvitals.views.web.app import make_app

TITLES = ["rank 0", "rank 1", "rollout 0", "rollout 1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_run_of_roles(tmp_path / "rl" / "run-1")


@pytest.fixture(params=["folder", "sealed", "memory"])
def reader(request: pytest.FixtureRequest, folder: Path) -> Reader:
    if request.param == "memory":
        return MemoryRuns(one=MemoryRun.of_folder(folder)).open("one")
    if request.param == "sealed":
        for path in sorted(folder.glob("training_metrics_*.jsonl")):
            seal(path)
    return RunReader(folder)


def test_every_participant_has_series_and_a_summary_of_its_own(reader: Reader) -> None:
    assert reader.participants() == reader.participants(1) == list(ROLES)
    assert reader.participants(2) == []
    found = {series.participant: set(series.y.tolist()) for series in reader.series(["loss"])}
    assert found == {participant: {place + 1.0} for place, participant in enumerate(ROLES)}
    assert [series.labels for series in reader.series(["loss"])] == [{}, {}, {"role": "rollout"}, {"role": "rollout"}]
    rollout = Participant("rollout", 1)
    (only,) = reader.series(["loss"], participants=[rollout])
    assert only.participant == rollout and set(only.y.tolist()) == {4.0}
    assert reader.summary(participant=rollout)["loss"].last == 4.0
    assert reader.summary()["loss"].last == 1.0
    processes = reader.series(["cpu_percent"], table="process", x="time")
    assert {series.participant: series.y[-1] for series in processes} == dict(
        zip(ROLES, (10.0, 20.0, 30.0, 40.0), strict=True)
    )


def test_rows_carry_the_role_of_all_but_trainers(reader: Reader) -> None:
    found = {(row.get("role"), row["rank"], row["loss"]) for row in reader.rows()}
    assert found == {(None, 0, 1.0), (None, 1, 2.0), ("rollout", 0, 3.0), ("rollout", 1, 4.0)}
    followed = {(file.participant, row["loss"]) for file, row in reader.follow().poll()}
    assert followed == {(participant, place + 1.0) for place, participant in enumerate(ROLES)} or not followed
    assert {event.participant for event in reader.events()} == set(ROLES)


def test_a_rank_without_a_role_is_that_of_the_trainers(reader: Reader) -> None:
    assert choose_participants(reader, None, None) is None
    assert choose_participants(reader, None, 1) == [Participant(rank=1)]
    assert choose_participants(reader, "rollout", None) == list(ROLES[2:])
    assert choose_participants(reader, "rollout", 1) == [ROLES[3]]
    assert choose_participants(reader, "critic", 0) == []


def test_the_lowest_participant_of_a_run_without_trainers_is_that_of_the_first_role(folder: Path) -> None:
    for path in folder.glob("training_metrics_*.rank?.jsonl"):
        if "role-" not in path.name:
            path.unlink()
    reader = RunReader(folder)
    assert reader.summary()["loss"].last == 3.0
    assert choose_participants(reader, None, 1) == [Participant("rollout", 1)]
    (series,) = describe_comparison([("run-1", reader)], ["loss"])["series"]
    assert set(series["y"]) == {3.0}


def test_bands_and_stragglers_are_of_one_role(reader: Reader) -> None:
    bands = describe_series(reader, ["loss"], band=True)["series"]
    assert [(band["labels"], band["members"], band["low"][0], band["high"][0]) for band in bands] == [
        ({}, 2, 1.0, 2.0),
        ({"role": "rollout"}, 2, 3.0, 4.0),
    ]
    measured = read_measurements(reader)
    assert list(measured.rank_steps) == list(ROLES)
    assert [device.title for device in measured.processes] == TITLES


def test_a_rule_judges_every_participant_by_itself(reader: Reader) -> None:
    rules = [
        parse_rule({"name": "high", "when": "rank[*].loss > 3.5", "message": "{Participant}: {participant}"}, {}),
        parse_rule({"name": "odd", "when": "rank[*].batch_time > 1.5 * median(rank[*].batch_time)"}, {}),
        parse_rule({"name": "first", "when": "rank[0].loss > 0", "message": "{participant}"}, {}),
        parse_rule({"name": "role", "when": "rank[rollout].loss > 0", "message": "{participant}"}, {}),
    ]
    changes = list(replay(rules, reader.rows, reader.events(), {}))
    fired = {(change.rule.name, change.message) for change in changes if change.state == "firing"}
    assert fired == {
        ("high", "Rollout 1: rollout 1"),
        ("first", "rank 0"),
        ("role", "rollout 0"),
        ("role", "rollout 1"),
    }
    assert not list(replay(builtin.make_rules(Conditions()), reader.rows, reader.events(), {}))


def test_prometheus_has_a_role_where_it_is_not_a_trainer(folder: Path) -> None:
    training = RunTraining()
    relay = Relay(folder)
    relay.add(training)
    relay.poll()
    assert RunTraining(json.loads(json.dumps(training.as_json()))).ranks.keys() == set(ROLES)
    run = RunView(run_id="run-1", folder=folder, project="rl", name="run-1", state="running", alerts=())
    page, _ = render(build(MetricsSnapshot(host="node7", started=0.0, runs=((run, training.ranks),)), FamilyOptions()))
    lines = [line for line in page.decode().splitlines() if line.startswith("training_loss{")]
    assert lines == [
        'training_loss{host="node7",project="rl",rank="0",run="run-1"} 1.0',
        'training_loss{host="node7",project="rl",rank="1",run="run-1"} 2.0',
        'training_loss{host="node7",project="rl",rank="0",role="rollout",run="run-1"} 3.0',
        'training_loss{host="node7",project="rl",rank="1",role="rollout",run="run-1"} 4.0',
    ]


def test_the_terminal_lists_and_draws_all_of_them(folder: Path) -> None:
    feed = Feed(TopOptions(runs=FolderRuns(folder.parent.parent), run=refer_to(folder), sources=("simulated",)))
    feed.want(Request(page="ranks"))
    snapshot = feed.read()
    feed.stop()
    assert snapshot.run is not None
    assert [rank.participant for rank in snapshot.run.ranks] == list(ROLES)
    assert all(ratio == pytest.approx(1.0) for rank in snapshot.run.ranks for ratio in rank.ratios if ratio)
    drawn = _draw(snapshot, View(page="ranks"))
    assert "rollout 0" in drawn and "rollout 1" in drawn
    view = View(page="ranks")
    view.filters["ranks"] = "rollout 1"
    assert "rollout 0" not in _draw(snapshot, view) and "rollout 1" in _draw(snapshot, view)


def _draw(snapshot: Any, view: View) -> str:
    lines = screen.draw(snapshot, view, 160, 30).lines
    return "\n".join("".join(segment.text for segment in line) for line in lines)


def test_the_api_gives_and_selects_roles(folder: Path) -> None:
    app = make_app(FolderRuns(folder.parent.parent), lambda *_: b"")
    with TestClient(app, base_url="http://localhost") as client:
        run = client.get("/api/v1/runs/latest").json()
        ranks = [(rank.get("role"), rank["rank"], rank["host"]) for rank in run["ranks"]]
        assert ranks == [(item.labels.get("role"), str(item.rank), HOSTS[item.rank]) for item in ROLES]
        path = "/api/v1/runs/latest/series?name=loss"
        for query, expected in (("", [1, 2, 3, 4]), ("&rank=0", [1]), ("&role=rollout", [3, 4])):
            found = client.get(path + query).json()["series"]
            assert [series["y"][0] for series in found] == expected
        (only,) = client.get(f"{path}&role=rollout&rank=1").json()["series"]
        assert (only["labels"], only["rank"], only["y"][0]) == ({"role": "rollout"}, 1, 4.0)


def test_the_report_names_all_of_them(folder: Path) -> None:
    (chart,) = [chart for chart in make_charts(RunReader(folder), ["loss"]) if chart.lines]
    assert [line.title for line in chart.lines] == TITLES
    (run,) = json.loads(draw_report([("run-1", RunReader(folder))], "json", resolve({})))["runs"]
    assert [rank.get("role") for rank in run["ranks"]] == [None, None, "rollout", "rollout"]


def test_commands_show_and_export_them(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "show", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "2, all at step 59; rollout: 2, all at step 59" in " ".join(shown.split())
    assert main(["runs", "show", str(folder), "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["summary"]["ranks"]
    assert ranks[3] == {"role": "rollout", "rank": 1, "last_step": 59, "state": "finished"}
    written = tmp_path / "rows.csv"
    assert main(["export", str(folder), "--format", "csv", "-o", str(written)]) == 0
    header, *rows = written.read_text().splitlines()
    place = header.split(",").index("role")
    assert {row.split(",")[place] for row in rows} == {"", "rollout"}

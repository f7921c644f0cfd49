"""One run, asked for in every view: no two of them disagree."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from made_runs import START, make_run, write
from starlette.testclient import TestClient

from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time, number
from trainvitals.journal.folder_runs import FolderRuns, name_runs
from trainvitals.settings import resolve
from trainvitals.views.cli.main import main
from trainvitals.views.data.quantities import format_duration, format_short
from trainvitals.views.report.document import draw_report
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Request
from trainvitals.views.tui.view import View
from trainvitals.views.web.app import make_app

NOW = START + 7384.0
STEPS = 48


class Answer(NamedTuple):
    """What a view has to say about the run; None where it does not know."""

    status: str
    seconds: float | None
    last_step: int | None
    host: str
    loss: float | None
    energy: float | None = None

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)  # NaN is the same answer as NaN

    __hash__ = None  # type: ignore[assignment]


def losses(last: float = 0.25) -> list[dict[str, Any]]:
    return [{"step": step, "train/loss": 1.0} for step in range(STEPS - 1)] + [{"step": STEPS - 1, "train/loss": last}]


def status_of(last: float | str = 0.25, attempt: int = 1, **ranks: int) -> dict[str, Any]:
    steps = ranks or {"0": STEPS - 1}
    return {
        "host": "node7",
        "attempt": attempt,
        "ranks": {name.strip("_"): {"step": step} for name, step in steps.items()},
        "summary": {"train/loss": {"last": last, "last_step": STEPS - 1, "count": STEPS}},
        "held_gpus": ["GPU-1"],
        "gpu_summary": {
            "GPU-1": {"gpu_index": 0, "energy_used_joules": 7200.0},
            "GPU-2": {"gpu_index": 1, "energy_used_joules": 1e6},  # somebody else's
        },
    }


def finished(folder: Path) -> Answer:
    ended = {"status": "finished", "ended": format_time(START + 3725.5), "last_step": STEPS - 1}
    make_run(folder, host={"name": "node7"}, **ended)
    write(folder, losses())
    run_folder.write_status(folder, Status.parse(status_of()))
    return Answer("finished", 3725.5, STEPS - 1, "node7", 0.25, 7200.0)


def running(folder: Path) -> Answer:
    make_run(folder, status="running", process={"host": "elsewhere", "pid": 1})
    write(folder, losses())
    run_folder.write_status(folder, Status.parse(status_of()))
    return Answer("running", NOW - START, STEPS - 1, "elsewhere", 0.25, 7200.0)


def stalled(folder: Path) -> Answer:
    running(folder)
    run_folder.write_status(folder, Status.parse({**status_of(), "state": "stalled", "cause": "rank 0 waits for data"}))
    return Answer("stalled", NOW - START, STEPS - 1, "elsewhere", 0.25, 7200.0)


def dead_without_a_word(folder: Path) -> Answer:
    make_run(folder, status="crashed", host={"name": "node7"})
    write(folder, losses())
    run_folder.write_status(folder, Status.parse(status_of()))
    return Answer("crashed", None, STEPS - 1, "node7", 0.25, 7200.0)


def ended_with_nan(folder: Path) -> Answer:
    answer = finished(folder)
    for path in folder.glob("training_metrics_*.jsonl"):
        path.unlink()
    write(folder, losses(math.nan))
    run_folder.write_status(folder, Status.parse(status_of("NaN")))
    return answer._replace(loss=math.nan)


def gone_back_to_an_earlier_step(folder: Path) -> Answer:
    """The furthest step is not the last one."""
    make_run(folder, status="failed", ended=format_time(START + 60), last_step=12, host={"name": "node7"})
    write(folder, [*losses(1.0), {"step": 12, "train/loss": 0.5}])
    run_folder.write_status(folder, Status.parse(status_of(0.5)))
    return Answer("failed", 60.0, 12, "node7", 0.5, 7200.0)


def on_two_hosts(folder: Path) -> Answer:
    """Loss and step are those of the lowest rank, whichever host it is on."""
    running(folder)
    (folder / "status.json").unlink()
    run_folder.write_status(folder, Status.parse(status_of(9.0, _1=STEPS + 5)), host="node8")
    run_folder.write_status(folder, Status.parse(status_of(0.25, _0=STEPS - 1, command0=500)), host="node7")
    return Answer("running", NOW - START, STEPS - 1, "elsewhere", 0.25, 14_400.0)


def resumed(folder: Path) -> Answer:
    """What an agent reported of the attempt before is not the newest."""
    make_run(folder, status="running", attempt=2, process={"host": "elsewhere", "pid": 1})
    write(folder, losses())
    run_folder.write_status(folder, Status.parse(status_of(attempt=2, _0=STEPS - 1)), host="node7")
    run_folder.write_status(folder, Status.parse(status_of(5.0, attempt=1, _0=900)), host="node8")
    return Answer("running", NOW - START, STEPS - 1, "elsewhere", 0.25, 14_400.0)


def ask_command(root: Path, capsys: pytest.CaptureFixture[str]) -> Answer:
    assert main(["runs", "--dir", str(root), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    loss = number(row["summary"].get("train/loss"))
    return Answer(row["status"], row["seconds"], row["last_step"], row["host"], loss, row["energy_joules"])


def ask_api(root: Path) -> tuple[Answer, Answer]:
    with TestClient(make_app(FolderRuns(root), lambda *_: b""), base_url="http://localhost") as client:
        (row,) = client.get("/api/v1/runs").json()["runs"]
        run = client.get(f"/api/v1/runs/{row['key']}").json()

    def answer(found: dict[str, Any]) -> Answer:
        loss = number(found["summary"].get("train/loss"))
        numbers = found["seconds"], found["step"], found["host"], loss, found["energy_joules"]
        return Answer(found["status"], *numbers)

    return answer(row), answer(run)


def ask_report(folder: Path) -> Answer:
    (run,) = json.loads(draw_report(name_runs([folder]), "json", resolve({})))["runs"]
    (loss,) = [number(metric["last"]) for metric in run["metrics"] if metric["name"] == "train/loss"]
    return Answer(run["status"], run["seconds"], run["step"], run["host"], loss, run["energy_joules"])


def ask_terminal(root: Path) -> tuple[Answer, str]:
    feed = Feed(TopOptions(runs=FolderRuns(root), sources=("simulated",)), clock=lambda: NOW)
    feed.want(Request(page="runs"))
    snapshot = feed.read()
    feed.stop()
    (row,) = snapshot.runs
    view = View(page="runs")
    lines = screen.draw(snapshot, view, 200, 12).lines
    drawn = "\n".join("".join(segment.text for segment in line) for line in lines)
    answer = row.info.status, row.seconds(NOW), row.last_step, row.host, row.last_value("loss"), row.energy_joules
    return Answer(*answer), drawn


@pytest.mark.parametrize(
    "make",
    [
        finished,
        running,
        stalled,
        dead_without_a_word,
        ended_with_nan,
        gone_back_to_an_earlier_step,
        on_two_hosts,
        resumed,
    ],
    ids=lambda make: make.__name__,
)
def test_every_view_gives_the_same_answers(
    make: Callable[[Path], Answer],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "p" / "20260101-000000-made-aaaa"
    expected = make(folder)
    monkeypatch.setattr(time, "time", lambda: NOW)
    row, run = ask_api(tmp_path)
    in_terminal, drawn = ask_terminal(tmp_path)
    answers = {
        "runs --json": ask_command(tmp_path, capsys),
        "the page's table": row,
        "the page": run,
        "the report": ask_report(folder),
        "the terminal": in_terminal,
    }
    assert answers == dict.fromkeys(answers, expected)
    shown = (expected.status, f"{expected.last_step:,}", expected.host, format_short(expected.loss))
    assert [text for text in shown if text not in drawn] == []
    assert expected.seconds is None or format_duration(expected.seconds) in drawn


def test_what_no_agent_saw_is_read_from_the_files_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_run(tmp_path / "p" / "20260101-000000-made-aaaa", host={"name": "node7"})
    write(folder, losses())
    row, run = ask_api(tmp_path)
    assert row == ask_command(tmp_path, capsys) == ask_terminal(tmp_path)[0]
    assert run == ask_report(folder) == row
    assert row == Answer("finished", None, STEPS - 1, "node7", 0.25)

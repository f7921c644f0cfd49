"""The findings of the run that is shown: those of every other view, judged beside the drawing and not too often."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import story
from waiting import wait_until

from trainvitals import runtime
from trainvitals.analysis.wording import SEVERITY_SIGNS
from trainvitals.errors import MachineError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import Reader, RunRef
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import refer_to
from trainvitals.journal.reader import RunReader
from trainvitals.settings import Settings, resolve
from trainvitals.views.data.diagnosis import describe_judges, read_findings
from trainvitals.views.data.run_rows import read_row_of
from trainvitals.views.tui import once, run_findings, screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.run_findings import RunFindings
from trainvitals.views.tui.save import as_json
from trainvitals.views.tui.snapshot import Judged, Snapshot
from trainvitals.views.tui.view import View


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_findings, "FIRST_SECONDS", 0.0)


@pytest.fixture(scope="module")
def settings() -> Settings:
    return resolve()


def make_live(root: Path) -> Path:
    process = {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}
    return story.make_run(root / "runs", status="running", gpus=0, process=process)


def end(folder: Path) -> None:
    ended = {"status": "finished", "ended": format_time(story.START + 120)}
    run_folder.write_run(folder, RunFile.parse({**run_folder.read_run(folder).as_json(), **ended}))


def keep(folder: Path, settings: Settings, **more: object) -> None:
    row = {"rule": "loss.spike", "severity": "warning", "title": "As it was kept", "evidence": ["of then"], **more}
    file = {"attempt": 1, "judged_by": describe_judges(settings), "findings": [row], "fine": ["x"]}
    run_folder.write_findings(folder, FindingsFile.parse(file), run_folder.file_rights(folder))


def look(folder: Path, settings: Settings) -> Snapshot:
    """The first look with findings."""
    feed = Feed(TopOptions(run=refer_to(folder), sources=(), settings=settings))
    try:
        return wait_until(lambda: [found] if (found := feed.read()).judged else [], "no findings")[0]
    finally:
        feed.stop()


def draw(snapshot: Snapshot, view: View, width: int = 100, height: int = 30) -> str:
    lines = screen.draw(snapshot, view, width, height).lines
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


def test_a_live_run_has_the_findings_of_every_other_view(tmp_path: Path, settings: Settings) -> None:
    folder = make_live(tmp_path)
    snapshot = look(folder, settings)
    judged, found = snapshot.judged, read_findings(RunReader(folder), settings)
    assert judged is not None and len(judged.problems) > 1
    assert [row._asdict() for row in judged.findings] == [
        {**row, "evidence": tuple(row["evidence"]), "about": tuple(row["about"])} for row in found["findings"]
    ]
    assert (judged.passed, judged.skipped) == (len(found["fine"]), len(found["not_judged"]))
    assert [row["rule"] for row in as_json(snapshot)["findings"]] == [row["rule"] for row in found["findings"]]
    worst = judged.problems[0]
    overview = draw(snapshot, View(), 120)
    assert (
        f"{SEVERITY_SIGNS[worst.severity]} {worst.headline}" in overview
        and f"{len(judged.problems) - 1} more: press 6" in overview
    )
    assert f"6 Findings {len(judged.problems)}" in overview
    page = draw(snapshot, View(page="findings"), 120, 40)
    assert worst.evidence[0] in page and worst.advice[:60] in page and f"step {worst.step:,}" in page
    other = View(page="findings", filters={"findings": judged.findings[-1].rule})
    assert judged.findings[-1].title in draw(snapshot, other, 120, 40)
    assert "no findings match 'xyz'" in draw(snapshot, View(page="findings", filters={"findings": "xyz"}))
    assert worst.advice[:30] in draw(snapshot, View(page="findings", details=True))


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (40, 12), (80, 24), (200, 60)], ids=str)
def test_with_findings_any_size_is_filled(tmp_path: Path, settings: Settings, size: tuple[int, int]) -> None:
    folder = make_live(tmp_path)
    keep(folder, settings, severity="critical", step=7, title="Long " * 90, advice="Do " * 900)
    end(folder)
    snapshot = look(folder, settings)
    for page in ("overview", "findings"):
        lines = screen.draw(snapshot, View(page=page, ascii=True), *size).lines
        assert [sum(segment.cell_length for segment in line) for line in lines] == [size[0]] * size[1]


def test_of_an_ended_run_what_was_kept_is_shown_and_counted(tmp_path: Path, settings: Settings) -> None:
    folder = make_live(tmp_path)
    (folder / "alerts_20260115_100000.jsonl").unlink()
    keep(folder, settings)
    live = look(folder, settings)
    assert live.judged is not None and "As it was kept" not in [row.title for row in live.judged.findings]
    row = read_row_of(RunReader(folder), "run")
    assert row.findings is None and row.health[:2] == live.health[:2], (
        "of an earlier end: no list counts it while it is live"
    )
    end(folder)
    ended = look(folder, settings)
    assert ended.judged is not None and [row.headline for row in ended.judged.findings] == ["As it was kept"]
    row = read_row_of(RunReader(folder), "run")
    assert row.health == ended.health and "1 finding" in ended.health.reason
    assert "6 Findings 1" in draw(ended, View(), 120) and "! As it was kept" in draw(ended, View())


def test_one_frame_has_findings_too(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_findings, "FIRST_SECONDS", 1e9)
    folder = make_live(tmp_path)
    keep(folder, settings)
    end(folder)
    snapshot = once.read_whole(Feed(TopOptions(run=refer_to(folder), sources=(), settings=settings)))
    assert snapshot.judged is not None and snapshot.judged.findings[0].title == "As it was kept"


def watch_opens(folder: Path) -> tuple[RunRef, list[float]]:
    opened: list[float] = []

    def open_counted() -> Reader:
        opened.append(0.0)
        return RunReader(folder)

    return RunRef(str(folder), open_counted), opened


def read_until(findings: RunFindings, folder: Path, ready: Callable[[], object]) -> Judged | None:
    def look_again() -> object:
        findings.read(RunReader(folder).info)
        return ready()

    wait_until(look_again, "not judged")
    wait_until(lambda: findings._thread is None or not findings._thread.is_alive(), "still judging")
    return findings.read(RunReader(folder).info)


def test_a_run_is_judged_again_when_it_ends_and_else_seldom(tmp_path: Path, settings: Settings) -> None:
    folder = make_live(tmp_path)
    run, opened = watch_opens(folder)
    findings = RunFindings(run, settings)
    first = read_until(findings, folder, lambda: opened)
    for _ in range(20):
        assert findings.read(RunReader(folder).info) is first
    assert len(opened) == 1
    findings._due = 0.0
    assert read_until(findings, folder, lambda: len(opened) == 2) is first, "nothing was written: not judged anew"
    keep(folder, settings)
    end(folder)
    last = read_until(findings, folder, lambda: len(opened) == 3)
    assert last is not None and last.findings[0].title == "As it was kept"


def test_a_long_judgement_is_made_more_rarely(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_live(tmp_path)
    now = [1000.0]
    monkeypatch.setattr(run_findings.time, "monotonic", lambda: now[0])

    def open_slowly() -> Reader:
        now[0] += 12.0
        return RunReader(folder)

    findings = RunFindings(RunRef(str(folder), open_slowly), settings)
    findings._judge((1, True))
    assert findings._due == now[0] + 12.0 / run_findings.MOST_SHARE


def test_a_machine_that_does_not_answer_leaves_the_rest_of_the_screen(tmp_path: Path, settings: Settings) -> None:
    folder = make_live(tmp_path)
    feed = Feed(TopOptions(run=refer_to(folder), sources=(), settings=settings))
    feed.read()

    def refuse() -> Reader:
        raise MachineError("gpu1 does not answer")

    feed.findings = RunFindings(RunRef(str(folder), refuse), settings)
    said = "findings could not be read: gpu1 does not answer"
    snapshot = wait_until(lambda: [found] if said in (found := feed.read()).notes else [], "nothing was said")[0]
    feed.stop()
    assert snapshot.run is not None and snapshot.run.step == 299
    assert said in draw(snapshot, View(page="findings"))
    assert "no run selected" in draw(replace(snapshot, run=None), View(page="findings"))

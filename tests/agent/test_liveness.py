"""Is a rank still there, and is it still stepping?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from waiting import PATIENCE

from trainvitals import runtime
from trainvitals.agent.exit_causes import OomCounts
from trainvitals.agent.liveness import RankProgress, WatchedRank
from trainvitals.agent.pidfds import wait_for_end
from trainvitals.agent.rank_watch import RankWatch
from trainvitals.agent.training_log import LogGrowth
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import PhaseNote, Registration
from trainvitals.journal.documents.status import RankStatus, Status
from trainvitals.journal.identity import Participant


def stepping(seconds: float, steps: int = 20, start: float = 100.0) -> tuple[RankProgress, float]:
    """A rank that has logged `steps` times, and when it did so last."""
    progress = RankProgress(start)
    for _ in range(steps):
        start += seconds
        progress.grow(1, 0.5, start)
    return progress, start


def test_a_rank_is_stalled_after_the_longer_of_the_two_limits_and_hung_after_five_times_that() -> None:
    progress, now = stepping(1.0)
    assert progress.step_seconds == pytest.approx(1.0)
    assert progress.judge(now + 59, 60) == "running"
    assert progress.judge(now + 61, 60) == "stalled"
    assert progress.judge(now + 299, 60) == "stalled"
    assert progress.judge(now + 301, 60) == "hung"
    slow, now = stepping(30.0)
    assert slow.judge(now + 299, 60) == "running"
    assert slow.judge(now + 301, 60) == "stalled"


def test_a_rank_that_has_not_logged_twice_may_take_any_time() -> None:
    progress = RankProgress(0.0)
    assert progress.judge(1e6, 60) == "running"
    progress.grow(1, 0.5, 10.0)
    assert progress.judge(1e6, 60) == "running"
    progress.grow(1, 0.5, 11.0)
    assert progress.judge(1e6, 60) == "hung"


def test_a_rank_that_does_nothing_at_all_is_stalled_sooner_but_not_sooner_than_ten_usual_pauses() -> None:
    fast, now = stepping(0.1)
    assert fast.judge(now + 19, 60, idle=19.0) == "running"
    assert fast.judge(now + 21, 60, idle=9.0) == "running"
    assert fast.judge(now + 21, 60, idle=11.0) == "stalled"
    assert fast.judge(now + 99, 60, idle=90.0) == "stalled"
    assert fast.judge(now + 101, 60, idle=90.0) == "hung"
    slow, now = stepping(3.0)
    assert slow.judge(now + 29, 60, idle=25.0) == "running"
    assert slow.judge(now + 31, 60, idle=25.0) == "stalled"
    patient, now = stepping(0.1)
    assert patient.judge(now + 99, 300, idle=90.0) == "running"
    assert patient.judge(now + 101, 300, idle=90.0) == "stalled"


def test_regular_evaluations_are_usual_pauses() -> None:
    progress, now = stepping(0.1)
    for _ in range(12):
        for gap in (0.1, 0.1, 0.1, 4.0):
            now += gap
            progress.grow(1, 0.5, now)
    assert progress.step_seconds == pytest.approx(0.1) and progress.usual_pause == pytest.approx(4.0)
    assert progress.judge(now + 39, 60, idle=30.0) == "running"
    assert progress.judge(now + 41, 60, idle=30.0) == "stalled"


def test_before_the_second_line_only_a_rank_that_does_nothing_for_half_an_hour_is_stalled() -> None:
    progress = RankProgress(0.0)
    progress.grow(1, 0.5, 10.0)
    assert progress.judge(1e6, 60, idle=1700.0) == "running"
    assert progress.judge(10.0 + 1801, 60, idle=1801.0) == "stalled"


def test_many_steps_between_two_looks_share_the_time() -> None:
    progress = RankProgress(0.0)
    for look in range(1, 10):
        progress.grow(250, 0.5, look * 0.5)
    assert progress.step_seconds == pytest.approx(0.002)


def test_a_look_that_comes_late_is_not_a_pause_of_the_training(tmp_path: Path) -> None:
    """The agent was kept from looking for 100 seconds while the training logged ten times a second."""

    def look(lines: int, now: float) -> None:
        grown[Participant()] = LogGrowth(lines=lines)
        watch.follow(now, 0.5)

    grown: dict[Participant, LogGrowth] = {}
    progress = RankProgress(0.0)
    rank = SimpleNamespace(progress=progress, grow=progress.grow)
    parts = SimpleNamespace(
        lines=None,
        before=Status(),
        relay=SimpleNamespace(poll=lambda size: None),
        training_log=SimpleNamespace(take_growth=lambda: grown),
        silence=lambda participant: 0.0,
    )
    context = SimpleNamespace(folder=tmp_path, host="h")
    watch = RankWatch(cast("Any", context), cast("Any", None), cast("Any", {Participant(): rank}), cast("Any", parts))
    for number in range(3):
        look(5, number * 0.5)
    look(1000, 101.0)
    assert progress.usual_pause == pytest.approx(0.1) and progress.longest_pause == pytest.approx(0.1)
    assert progress.judge(101.0 + 61, 60) == "stalled"
    grown.clear()
    for number in range(1, 100):
        watch.follow(101.0 + number * 0.5, 0.5)
    look(10, 151.0)  # a silence that it did see
    assert progress.longest_pause == pytest.approx(50.0)


def test_lines_that_come_in_bursts_are_measured_by_the_silence_between_them() -> None:
    progress = RankProgress(0.0)
    for burst in range(1, 10):
        progress.grow(100, 0.5, burst * 300.0)
    assert progress.judge(2700.0 + 400, 60) == "running"


def test_one_long_evaluation_does_not_change_what_is_usual() -> None:
    progress, now = stepping(1.0)
    progress.grow(1, 0.5, now + 500)
    assert progress.step_seconds == pytest.approx(1.0)


def test_a_pause_that_ended_by_itself_makes_the_limit_twice_as_long_as_it_was() -> None:
    progress, now = stepping(0.1, steps=100)
    assert progress.judge(now + 61, 60) == "stalled"
    progress.grow(1, 0.5, now + 85)  # an evaluation
    now += 85
    for _ in range(100):
        now += 0.1
        progress.grow(1, 0.5, now)
    assert progress.judge(now + 169, 60) == "running"
    assert progress.judge(now + 171, 60) == "stalled"
    assert progress.judge(now + 339, 60) == "stalled"
    assert progress.judge(now + 341, 60) == "hung"


@pytest.mark.parametrize(
    ("longest", "fine", "stalled", "hung"),
    [(200.0, 599, 601, 1201), (900.0, 1799, 1801, 3601), (None, 1799, 1801, 3601)],
)
def test_a_phase_is_measured_by_how_long_it_took_before(
    longest: float | None, fine: float, stalled: float, hung: float
) -> None:
    progress, now = stepping(400.0)  # judged by its pace, a hang would be found after more than an hour
    phase = PhaseNote(name="gen", since=now, longest=longest)
    assert progress.judge(now + fine, 600, fine, phase) == "running"
    assert progress.judge(now + stalled, 600, stalled, phase) == "stalled"
    assert progress.judge(now + hung, 600, hung, phase) == "hung"
    assert RankProgress(0.0).judge(now + stalled, 600, stalled, phase) == "stalled"  # in the first step, too
    assert progress.judge(now + stalled, 600, stalled, replace(phase, since=now + 100)) == "running"


def test_between_phases_the_pace_counts_from_the_last_of_them() -> None:
    progress, now = stepping(400.0)
    between = PhaseNote(since=now + 300)
    assert progress.judge(now + 4200, 600, 4000, between) == "running"
    assert progress.judge(now + 4301, 600, 4000, between) == "stalled"


def test_also_a_pause_shorter_than_the_limit_is_learned_from() -> None:
    progress, now = stepping(0.1)
    progress.grow(1, 0.5, now + 50)
    assert progress.judge(now + 50 + 99, 60) == "running"
    assert progress.judge(now + 50 + 101, 60) == "stalled"


def test_a_rank_whose_evaluations_are_known_is_stalled_as_soon_while_it_computes() -> None:
    """As in a collective that hangs: its GPU is busy."""
    progress, now = stepping(0.1, steps=100)
    for evaluations in range(3):
        assert progress.judge(now + 59, 60) == "running"  # the first evaluation may take longer than anything before
        assert progress.long_pauses == evaluations
        progress.grow(1, 0.5, now + 6)
        now += 6
        for _ in range(100):
            now += 0.1
            progress.grow(1, 0.5, now)
    assert progress.judge(now + 19, 60) == "running"
    assert progress.judge(now + 21, 60) == "stalled"
    assert progress.judge(now + 99, 60) == "stalled"
    assert progress.judge(now + 101, 60) == "hung"
    progress.grow(1, 0.5, now + 15)
    assert progress.judge(now + 15 + 29, 60) == "running"
    assert progress.judge(now + 15 + 31, 60) == "stalled"


def test_no_pause_makes_a_silence_of_more_than_an_hour_usual() -> None:
    progress, now = stepping(0.1)
    progress.grow(1, 0.5, now + 20_000)
    assert progress.judge(now + 20_000 + 3599, 60) == "running"
    assert progress.judge(now + 20_000 + 3601, 60) == "stalled"


def test_neither_start_up_nor_a_pause_that_somebody_made_is_learned_from() -> None:
    progress = RankProgress(0.0)
    progress.grow(1, 0.5, 600.0)
    progress.grow(1, 0.5, 1200.0)  # the first step, compiled
    for second in range(20):
        progress.grow(1, 0.5, 1201.0 + second)
    assert progress.judge(1220.0 + 61, 60) == "stalled"
    progress.ignore_pause()
    progress.grow(1, 0.5, 5000.0)
    assert progress.judge(5000.0 + 61, 60) == "stalled"
    progress.grow(1, 0.5, 5050.0)
    assert progress.judge(5050.0 + 99, 60) == "running"


def test_what_was_logged_before_the_agent_came_was_not_logged_just_now() -> None:
    progress = RankProgress(1000.0)
    progress.grow(500, 0.5, 1000.0, silent=200.0)
    assert progress.silence(1000.0) == pytest.approx(200.0)
    assert progress.judge(1000.0, 60) == "stalled"


def test_the_next_agent_goes_on_with_what_the_last_one_knew() -> None:
    progress = RankProgress(5.0)
    progress.restore(
        RankStatus.parse({"lines": 100, "step": 99, "step_seconds": 30.0, "last_log": "2026-01-01T00:00:00Z"}),
        50.0,
        5.0,
    )
    assert progress.step == 99 and progress.silence(5.0) == 50.0
    assert progress.judge(5.0 + 200, 60) == "running"
    assert progress.judge(5.0 + 251, 60) == "stalled"
    progress.restore(RankStatus.parse({"lines": 100, "step_seconds": 0.1, "longest_pause": 85.0}), 0.0, 5.0)
    assert progress.judge(5.0 + 169, 60) == "running"
    assert progress.judge(5.0 + 171, 60) == "stalled"
    empty = RankProgress(0.0)
    empty.restore(RankStatus.parse({"lines": "many", "step": None}), 0.0, 0.0)
    assert empty.lines == 0 and empty.step is None


# -- real processes


def register(process: subprocess.Popen[bytes], start: float | None = None) -> Registration:
    return Registration(
        run_id="r",
        folder="/nowhere",
        rank=0,
        pid=process.pid,
        pid_start=start if start is not None else runtime.process_start(process.pid),
        host="here",
    )


@pytest.fixture
def sleeper() -> subprocess.Popen[bytes]:  # type: ignore[misc]
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def test_the_end_of_a_process_wakes_the_watcher_and_is_judged(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rank = WatchedRank(register(sleeper), tmp_path / "r.json", time.monotonic(), None)
    assert rank.is_alive and rank.pidfd is not None
    assert wait_for_end([rank.pidfd], 0.01) == frozenset()
    rank.look(time.monotonic(), frozenset())
    assert not rank.is_over
    sleeper.terminate()
    ended = wait_for_end([rank.pidfd], PATIENCE)
    assert ended == {rank.pidfd}
    rank.look(time.monotonic(), ended)
    assert rank.verdict is not None and rank.verdict.signal == "SIGTERM"
    assert rank.state == "killed" and rank.describe().alive is False
    rank.close()


def test_a_process_that_only_has_the_number_is_not_the_rank(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rank = WatchedRank(register(sleeper, start=1.0), tmp_path / "r.json", time.monotonic(), None)
    assert not rank.is_alive and rank.pidfd is None
    rank.look(time.monotonic(), frozenset())
    assert rank.verdict is not None and str(rank.verdict.cause) == "the process ended while no agent was watching"
    assert sleeper.poll() is None


def test_a_kill_for_memory_that_took_the_agent_too_is_suspected_by_the_next_one(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    registration = register(gone)
    gone.wait()
    known = RankStatus(oom_kills=OomCounts(-1, {}).as_json())  # as it stood before the last kill
    rank = WatchedRank(registration, tmp_path / "r.json", time.monotonic(), known)
    rank.look(time.monotonic(), frozenset())
    assert rank.verdict is not None and "out of memory" in str(rank.verdict.cause or "")
    quiet = WatchedRank(registration, tmp_path / "r.json", time.monotonic(), RankStatus.parse({"oom_kills": [0, 0]}))
    quiet.look(time.monotonic(), frozenset())
    assert quiet.verdict is not None and "memory" not in str(quiet.verdict.cause or "")


def test_a_registration_is_taken_away_only_while_it_is_still_ours(
    sleeper: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    mine = register(sleeper)
    path = registrations.register(mine)
    rank = WatchedRank(mine, path, time.monotonic(), None)
    newer = Registration(**{**{f: getattr(mine, f) for f in mine.__dataclass_fields__}, "attempt": 2})
    registrations.register(newer)
    rank.unregister()
    assert [item.attempt for _, item in registrations.read_all()] == [2]
    WatchedRank(newer, path, time.monotonic(), None).unregister()
    assert registrations.read_all() == [] and list((tmp_path / "runs").iterdir()) == []
    rank.unregister()  # there is nothing left to take away
    rank.close()


def test_a_rank_that_said_goodbye_is_believed_where_its_exit_status_cannot_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr("trainvitals.agent.exit_causes.read_exit_status", lambda *arguments: None)  # Linux before 6.15
    verdicts = {}
    for rank, goodbye in ((1, "finished"), (2, "")):
        process = subprocess.Popen(["sleep", "600"])
        registration = Registration(
            run_id="r",
            folder=str(tmp_path),
            rank=rank,
            pid=process.pid,
            pid_start=runtime.process_start(process.pid),
            host=runtime.host_name(),
        )
        path = registrations.register(registration)
        watched = WatchedRank(registration, path, 100.0, None)
        if goodbye:
            registrations.note_end(path, registration, goodbye)
        process.kill()
        process.wait()
        fds = frozenset({watched.pidfd}) if watched.pidfd is not None else frozenset()
        for now in (101.0, 110.0):
            watched.look(now, fds)
        assert watched.verdict is not None
        verdicts[rank] = watched.verdict.status
        watched.close()
    assert verdicts == {1: "finished", 2: "crashed"}


def test_the_longest_pause_is_told_to_the_next_agent(tmp_path: Path) -> None:
    registration = Registration(
        run_id="r",
        folder=str(tmp_path),
        rank=0,
        pid=os.getpid(),
        pid_start=runtime.process_start(os.getpid()),
        host="h",
    )
    rank = WatchedRank(registration, tmp_path / "r.json", 0.0, None)
    assert rank.describe().longest_pause is None
    for when in (1.0, 2.0, 3.0, 88.0):
        rank.progress.grow(1, 0.5, when)
    assert rank.describe().longest_pause == 85.0
    rank.close()


@pytest.mark.parametrize(
    ("cell", "waits"),
    [
        (None, False),  # no notebook
        ("", True),  # no cell is being run
        ("2026-11-16T10:00:05.000000Z", True),  # one that has logged nothing yet
        ("2026-11-16T09:59:59.999999Z", False),  # one that has logged
    ],
)
def test_in_a_notebook_only_a_cell_that_has_logged_is_judged(tmp_path: Path, cell: str | None, waits: bool) -> None:
    registration = Registration(
        run_id="r",
        folder=str(tmp_path),
        rank=0,
        pid=os.getpid(),
        pid_start=runtime.process_start(os.getpid()),
        host="h",
        cell=cell,
    )
    path = tmp_path / "registration.json"
    path.write_text(json.dumps(asdict(registration)))
    rank = WatchedRank(registration, path, 0.0, None)
    rank.progress.last_log = "2026-11-16T10:00:00.000Z"
    assert rank.waits_for_its_user() is waits
    rank.close()


def test_how_long_a_user_thinks_between_two_cells_is_not_the_pace_of_the_training(tmp_path: Path) -> None:
    def begin_cell(began: str) -> None:
        path.write_text(json.dumps(asdict(replace(registration, cell=began))))

    registration = Registration(
        run_id="r",
        folder=str(tmp_path),
        rank=0,
        pid=os.getpid(),
        pid_start=runtime.process_start(os.getpid()),
        host="h",
        cell="",
    )
    path = tmp_path / "registration.json"
    begin_cell("2026-11-16T10:00:00.000000Z")
    rank = WatchedRank(registration, path, 0.0, None)
    rank.grow(4, 0.5, 1.0)
    rank.progress.last_log = "2026-11-16T10:00:01.000Z"
    begin_cell("2026-11-16T10:00:51.000000Z")
    rank.grow(4, 0.5, 51.0)  # sooner than what makes a stall: nobody has asked yet whether it waits
    rank.progress.last_log = "2026-11-16T10:00:51.200Z"
    assert rank.progress.judge(51.0 + 61, 60) == "stalled"
    rank.grow(4, 0.5, 101.0)  # within the cell: a pause like any other
    assert rank.progress.judge(101.0 + 61, 60) == "running"
    rank.close()

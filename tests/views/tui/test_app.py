from __future__ import annotations

import asyncio
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import story
from textual.events import Key
from textual.pilot import Pilot
from waiting import PATIENCE

from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import new_registration
from trainvitals.views.tui.app import TopApp
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.keys import KEYS
from trainvitals.views.tui.palette import BY_NAME

MakeFeed = Callable[..., Feed]


def show(
    feed: Feed,
    act: Callable[[TopApp, Pilot[int]], Awaitable[None]],
    size: tuple[int, int] = (100, 30),
    **more: object,
) -> TopApp:
    """Run the program without a terminal, wait for its first snapshot, and act."""
    app = TopApp(feed, palette=BY_NAME["dark"], **more)  # type: ignore[arg-type]

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: not app.snapshot.waiting)
            await act(app, pilot)

    asyncio.run(run())
    return app


async def until(pilot: Pilot[int], ready: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not ready():
        assert time.monotonic() < deadline, "it did not come"
        await pilot.pause(0.02)


def test_every_key_can_be_pressed_on_every_page(make_feed: MakeFeed, folder: Path, tmp_path: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        for page in "12345678":
            for key in KEYS:
                if key.shown == "q" or key.keys[0].isdigit():
                    continue
                for name in (page, key.keys[0], "escape", "escape"):
                    app.on_key(Key(name, name if len(name) == 1 else None))
            await pilot.pause()
        assert app.is_running

    show(make_feed(run=folder, readonly=True), act, size=(60, 16))


def test_keys_choose_the_page_and_q_leaves(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        for key, name in (("2", "charts"), ("8", "runs"), ("1", "overview"), ("tab", "charts")):
            await pilot.press(key)
            assert app.view.page == name
        await pilot.press("3", "shift+tab", "shift+tab")
        assert app.view.page == "charts"
        await pilot.press("q")

    assert show(make_feed(run=folder), act).return_value == 0


def test_help_opens_scrolls_and_closes(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("question_mark")
        assert "Keys" in app.board.text()
        before = app.board.text()
        await pilot.press("down", "down")
        assert app.board.text() != before
        await pilot.press("escape")
        assert "Keys" not in app.board.text()

    show(make_feed(run=folder), act, size=(80, 16))


def test_pause_holds_the_picture(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("p")
        held = app.snapshot
        await pilot.pause(0.3)
        assert app.snapshot is held and "paused" in app.board.text()
        await pilot.press("p")
        await until(pilot, lambda: app.snapshot is not held)

    show(make_feed(run=folder, interval=0.1), act)


def test_typing_chooses_charts_and_escape_shows_all_again(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"gradq", "backspace")
        await until(pilot, lambda: [panel.id for panel in app.snapshot.panels] == ["gradient_norm"])
        assert "/ grad" in app.board.text()
        await pilot.press("enter", "escape")
        await until(pilot, lambda: len(app.snapshot.panels) > 5)

    show(make_feed(run=folder), act)


def test_a_chart_that_was_not_chosen_after_all_leads_back_to_the_overview(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("slash", *"gra", "escape")
        assert app.view.page == "overview" and app.view.filters["charts"] == ""
        await pilot.press("slash", *"gra", "enter")
        assert app.view.page == "charts" and app.view.filter == "gra"
        await pilot.press("slash", "escape")
        assert app.view.page == "charts", "it did not come from anywhere"
        await pilot.press("4", "slash", *"2", "enter")
        assert app.view.page == "ranks" and app.view.filter == "2"

    show(make_feed(run=folder), act)


def test_arrows_and_the_wheel_go_through_many_gpus(make_feed: MakeFeed, tmp_path: Path) -> None:
    folder = story.make_run(tmp_path / "many", gpus=64, steps=20)

    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: app.view.rows == 64)
        across = app.view.gpu_columns
        assert across > 1
        await pilot.press("down", "down", "right")
        assert app.view.row == 2 * across + 1
        await pilot.press("up")
        assert app.view.row == across + 1
        app.on_mouse_scroll_down(None)  # type: ignore[arg-type]
        assert app.view.row == 2 * across + 1
        assert "more: ↑ 0" in app.board.text()
        await pilot.press("end")
        assert "↓ 0" in app.board.text() and app.view.row == 63
        await pilot.press("space", "down")
        assert app.view.row == 63, "details scroll by themselves"

    show(make_feed(run=folder), act, size=(40, 14))


def test_left_and_right_do_what_help_says(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("right")
        assert app.view.page == "overview" and app.view.row == 1
        await pilot.press("3", "right")
        assert app.view.page == "ranks"
        await pilot.press("left", "left")
        assert app.view.page == "charts"
        await pilot.press("left")
        assert app.view.page == "charts" and app.view.cross is not None

    show(make_feed(run=folder), act)


def test_zoom_pan_and_cross_hair(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("2", "enter")
        await until(pilot, lambda: len(app.snapshot.charts) == 1)
        await pilot.press("up", "up")
        start, end = app.view.windows["step"]
        assert end == 299 and 0 < start < 299
        await pilot.press("comma")
        assert app.view.windows["step"][1] < 299
        await pilot.press("right")
        assert app.view.cross is not None and "step" in app.board.text().splitlines()[-3]
        await pilot.press(*["down"] * 12)
        assert "step" not in app.view.windows, "zoomed out, it is all of it again"
        await pilot.press("up", "escape")
        assert app.view.windows == {} and app.view.cross is None

    show(make_feed(run=folder), act)


def test_log_scale_raw_values_and_the_time_axis(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await until(pilot, lambda: app.snapshot.charts)
        await pilot.press("l")
        assert "Loss log" in app.board.text()
        smooth = app.board.text()
        await pilot.press("m")
        assert app.board.text() != smooth
        await pilot.press("x")
        await until(pilot, lambda: app.snapshot.charts[0].axis == "time")
        assert "10:00:00" in app.board.text()

    show(make_feed(run=folder), act)


def test_save_writes_three_files_and_says_where(make_feed: MakeFeed, folder: Path, tmp_path: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("2")
        await until(pilot, lambda: app.snapshot.charts)
        await pilot.press("s")
        assert "saved" in app.board.text().splitlines()[-1]

    show(make_feed(run=folder), act, size=(160, 30))
    (data,) = tmp_path.glob("trainvitals-top-*.json")
    content = json.loads(data.read_text())
    assert content["run"]["name"] == "baseline" and len(content["gpus"]) == 8
    with open(data.with_suffix(".csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert "NaN" in {row["value"] for row in rows if row["metric"] == "loss"}
    assert len([row for row in rows if row["metric"] == "loss"]) == 1200
    assert data.with_suffix(".svg").read_text().startswith("<svg")


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_save(
    make_feed: MakeFeed, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("s")
        assert "saved" in app.board.text() or "cannot save" in app.board.text()

    show(make_feed(run=folder), act, size=(160, 20))


def test_the_interval_changes_in_steps(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("plus")
        assert app.feed.interval == 0.5
        await pilot.press("minus", "minus")
        assert app.feed.interval == 2.0
        await pilot.press(*["minus"] * 20)
        assert app.feed.interval == 60.0

    show(make_feed(run=folder), act)


def test_every_theme_draws_the_same_words(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("p", "4", "escape")
        words = app.board.text()
        seen = {app.view.palette.name}
        for _ in range(4):
            await pilot.press("t", "escape")
            seen.add(app.view.palette.name)
            assert app.board.text().split("\n")[:-1] == words.split("\n")[:-1]
        assert seen == set(BY_NAME)

    show(make_feed(run=folder), act)


def test_another_run_is_picked_from_the_list(make_feed: MakeFeed, folder: Path, tmp_path: Path) -> None:
    story.make_run(tmp_path / "runs", "other", steps=20)

    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        await pilot.press("8")
        await until(pilot, lambda: len(app.snapshot.runs) == 2)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.snapshot.run is not None and app.snapshot.run.name == "other")
        assert app.view.page == "overview"

    show(make_feed(run=folder), act)


def test_a_run_folder_that_vanishes_while_open_is_said(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        shutil.rmtree(folder)
        await until(pilot, lambda: app.snapshot.run is not None and app.snapshot.run.status == "gone")
        assert "GONE" in app.board.text()

    show(make_feed(run=folder, interval=0.1), act)


def test_the_mouse_chooses_pages_rows_and_places(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        column = app.board.text().splitlines()[0].index("Ranks")
        await pilot.click(offset=(column, 0))
        assert app.view.page == "ranks"
        await pilot.click(offset=(5, 5))
        assert app.view.row == 2
        await pilot.press("2")
        await until(pilot, lambda: app.snapshot.charts)
        await pilot.click(offset=(25, 5))
        assert app.view.cross is not None and 0 < app.view.cross < 1

    show(make_feed(run=folder), act)


def test_resizing_is_answered_with_the_right_size(make_feed: MakeFeed, folder: Path) -> None:
    async def act(app: TopApp, pilot: Pilot[int]) -> None:
        for width, height in ((20, 5), (200, 60), (1, 1), (80, 24)):
            await pilot.resize_terminal(width, height)
            await until(pilot, lambda height=height: len(app.board.text().splitlines()) <= height)  # type: ignore[misc]
        await until(pilot, lambda: "UTIL" in app.board.text())

    show(make_feed(run=folder), act)


def start_sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


async def select_process(app: TopApp, pilot: Pilot[int], pid: int) -> None:
    await pilot.press("3", "slash", *str(pid), "enter")
    await until(pilot, lambda: any(process.pid == pid for process in app.snapshot.processes))
    app.draw()
    assert str(pid) in app.board.text()


def register(pid: int) -> None:
    registrations.register(new_registration(Path("/nowhere"), pid, run_id="20260115-sleeper", kind="monitor"))


def test_a_signal_is_sent_only_after_the_question(make_feed: MakeFeed, folder: Path) -> None:
    with start_sleeper() as sleeper:
        register(sleeper.pid)

        async def act(app: TopApp, pilot: Pilot[int]) -> None:
            await select_process(app, pilot, sleeper.pid)
            await pilot.press("k")
            assert "Send a signal?" in app.board.text()
            await pilot.press("escape")
            assert sleeper.poll() is None and "no signal sent" in app.board.text()
            await pilot.press("k", "t")
            assert f"sent SIGTERM to {sleeper.pid}" in app.board.text()

        show(make_feed(run=folder, interval=0.1), act)
        assert sleeper.wait(PATIENCE) == -signal.SIGTERM


def test_readonly_sends_nothing(make_feed: MakeFeed, folder: Path) -> None:
    with start_sleeper() as sleeper:
        register(sleeper.pid)

        async def act(app: TopApp, pilot: Pilot[int]) -> None:
            await select_process(app, pilot, sleeper.pid)
            await pilot.press("k", "t")
            assert app.view.asking is None

        show(make_feed(run=folder, readonly=True, interval=0.1), act)
        assert sleeper.poll() is None
        sleeper.kill()


def test_a_process_that_is_another_one_now_is_left_alone() -> None:
    from trainvitals.errors import TrainvitalsError
    from trainvitals.views.tui.processes import send
    from trainvitals.views.tui.snapshot import ProcessRow

    with pytest.raises(TrainvitalsError, match="already exited"):
        send(ProcessRow(os.getppid() + 1_000_000, "x", start=1.0), "SIGTERM")
    with pytest.raises(TrainvitalsError, match="not sent"):
        send(ProcessRow(1, "init"), "SIGTERM")

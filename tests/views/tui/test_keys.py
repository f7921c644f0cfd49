"""Keys and what they do, without a terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from textual.geometry import Size

from trainvitals.alerts import records
from trainvitals.journal.documents.rows import new_alert_row
from trainvitals.views.panels import BY_ID
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.keys import BOX, KEYS, find_action, press
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Chart, Line, ProcessRow, RunState, Snapshot
from trainvitals.views.tui.view import MACHINES, PAGES, View

SIZE = Size(100, 30)
LOSS = Chart(BY_ID["loss"], "step", (Line("loss", "", np.arange(101.0), np.ones(101)),), 1)
ONE_CHART = Snapshot(time=0.0, panels=(LOSS.panel,), charts=(LOSS,))


@dataclass
class Paper:
    """A desk without a program."""

    view: View = field(default_factory=View)
    snapshot: Snapshot = ONE_CHART
    feed: Feed = field(default_factory=lambda: Feed(TopOptions()))
    size: Size = SIZE
    left: bool = False
    painted: int = 0

    def leave(self) -> None:
        self.left = True

    def repaint(self) -> None:
        self.painted += 1

    def export_screenshot(self) -> str:
        return "<svg></svg>"


def press_all(desk: Paper, *keys: str) -> None:
    for key in keys:
        press(desk, key, key if len(key) == 1 else None)


def test_a_key_means_one_thing_on_a_page() -> None:
    bound = Counter((key.on, name) for key in KEYS for name in key.keys)
    assert [key for key, count in bound.items() if count > 1] == []
    assert {key.on for key in KEYS} <= {"", BOX, *(name for name, _ in (*PAGES, MACHINES))}


def test_what_a_key_does_on_one_page_only_is_explained() -> None:
    explained = {name for key in KEYS if key.shown for name in key.keys} | {"down", "right", "pagedown", "end"}
    assert {name for key in KEYS if key.on for name in key.keys} <= explained


def test_zoom_keeps_what_is_under_the_cross_hair() -> None:
    desk = Paper(View(page="charts", cross=0.25))
    press_all(desk, "up")
    start, end = desk.view.windows["step"]
    assert end - start == pytest.approx(60.0)
    assert start + 0.25 * (end - start) == pytest.approx(25.0)


def test_panning_stops_at_either_end() -> None:
    desk = Paper(View(page="charts"))
    press_all(desk, "comma")
    assert desk.view.windows == {}, "there is nothing to move before it is zoomed"
    press_all(desk, "up", *["comma"] * 9)
    assert desk.view.windows["step"] == pytest.approx((0.0, 60.0))
    press_all(desk, *["full_stop"] * 9)
    assert desk.view.windows["step"] == pytest.approx((40.0, 100.0))


def test_help_takes_the_keys_that_scroll_and_close_it_and_leaves_the_rest() -> None:
    desk = Paper(View(page="charts"))
    press_all(desk, "question_mark", "down", "down", "up")
    assert desk.view.help_offset == 1 and desk.view.windows == {}, "the chart below is not zoomed"
    press_all(desk, "l")
    assert desk.view.other_scale
    press_all(desk, "enter")
    assert not desk.view.help and not desk.view.full


def test_while_a_filter_is_typed_every_letter_belongs_to_it() -> None:
    desk = Paper(View(page="runs"))
    press_all(desk, "slash", *"q2")
    assert desk.view.filter == "q2" and not desk.left and desk.view.page == "runs"
    press_all(desk, "ctrl+u", "a", "enter", "q")
    assert desk.view.filter == "a" and desk.left


def test_the_wheel_does_not_answer_a_question() -> None:
    desk = Paper(View(page="processes", asking=ProcessRow(1, "init"), rows=3))
    scroll = find_action(desk.view, "down")
    assert scroll is not None
    scroll(desk)
    assert desk.view.asking is not None and desk.view.row == 1


@pytest.mark.parametrize(("key", "control", "said"), [("a", "ack", "acknowledged"), ("z", "silence", "silenced")])
def test_an_alert_is_acknowledged_or_silenced_in_the_run_folder(
    key: str, control: str, said: str, tmp_path: Path
) -> None:
    alert = new_alert_row(state="firing", rule="gpu_lost", severity="critical", message="GPU 3 is lost")
    over = new_alert_row(state="resolved", rule="loss_nan", message="over")
    run = RunState("a", "a", "p", str(tmp_path), "running", "", True, 0.0, None, 1, simulated=False)
    shown = Snapshot(time=1.0, run=run, alerts=(over, alert), active=(alert,), firing=(alert,))
    desk = Paper(view=View(page="alerts", readonly=True), snapshot=shown)
    press_all(desk, key)
    assert "--readonly" in desk.view.message and records.read_rows(tmp_path) == []
    desk = Paper(view=View(page="alerts"), snapshot=shown)
    press_all(desk, key)
    (row,) = records.read_rows(tmp_path)
    assert (row.control, row.rule, row.until is not None) == (control, "gpu_lost", control == "silence")
    assert said in desk.view.message
    desk.view.selected["alerts"] = 1
    press_all(desk, key)
    assert "no longer active" in desk.view.message and len(records.read_rows(tmp_path)) == 1
    without = Paper(view=View(page="alerts"), snapshot=replace(shown, run=None))
    press_all(without, key)
    assert "no active run" in without.view.message


def test_every_key_can_be_pressed_before_there_is_anything_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where a screen is saved
    for page, _ in PAGES:
        for key in KEYS:
            desk = Paper(View(page=page), Snapshot(time=0.0))
            for name in key.keys:
                press_all(desk, name)

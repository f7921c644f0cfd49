from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import story

from trainvitals.analysis.health import Health
from trainvitals.analysis.progress import Progress
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.folder_runs import refer_to
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.views.data.run_rows import ListedRun
from trainvitals.views.panels import BY_ID, Panel
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.pages import boxes
from trainvitals.views.tui.paint import width_of
from trainvitals.views.tui.palette import BY_NAME
from trainvitals.views.tui.snapshot import EMPTY, WELL, Chart, Gpu, Line, ProcessRow, Snapshot
from trainvitals.views.tui.view import PAGES, View

SIZES = [(1, 1), (5, 2), (20, 5), (40, 12), (80, 24), (200, 60)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    feed = Feed(
        TopOptions(run=refer_to(story.make_run(tmp_path_factory.mktemp("runs")))), clock=lambda: story.START + 180.0
    )
    return feed.read()


def run_row(
    id: str, name: str, project: str, status: str, ended: float | None = None, simulated: bool = False
) -> ListedRun:
    info = RunInfo("/r", Path("/r"), id, project, name, status, None, None, None, 1, simulated, RunFile())
    return ListedRun(id, info, 1.0, ended, 47, "node1", {"train/loss": 0.25}, None)


@pytest.fixture
def told(recorded: Snapshot) -> Snapshot:
    return replace(
        recorded,
        processes=(
            ProcessRow(
                11,
                "python train.py",
                "ada",
                ("0",),
                "run",
                Participant(),
                120.0,
                900.0,
                4000.0,
                55.0,
                8,
                "running",
                60.0,
            ),
            ProcessRow(12, "bash", "ada"),
        ),
        runs=(run_row("id", "baseline", "mnist", "finished", ended=61.0, simulated=True),),
    )


def text(snapshot: Snapshot, view: View, width: int = 100, height: int = 30) -> str:
    frame = screen.draw(snapshot, view, width, height)
    assert [width_of(line) for line in frame.lines] == [width] * height
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in frame.lines)


@pytest.mark.parametrize("page", [name for name, _ in PAGES])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_every_page_fills_any_size_exactly(told: Snapshot, page: str, size: tuple[int, int]) -> None:
    for snapshot in (EMPTY, told):
        for view in (View(page=page), View(page=page, help=True), View(page=page, details=True, ascii=True)):
            text(snapshot, view, *size)


def test_the_overview_tells_run_gpus_host_alerts_and_charts(told: Snapshot) -> None:
    page = text(told, View(), 160, 45)
    for word in (
        "baseline",
        "FINISHED",
        "299 of 1,000",
        "loss",
        "data 6%",
        "8 x NVIDIA H100 80GB HBM3",
        "4.9 kW",
        "/700W",
        "DISK",
        "2 alerts",
        "The loss is NaN since step 240",
        "Learning rate",
    ):
        assert word in page, word


def test_at_eighty_by_twenty_four_nothing_important_is_missing(told: Snapshot) -> None:
    page = text(told, View(), 80, 24)
    for word in (
        "baseline",
        "loss",
        "lr",
        "grad",
        "samples/s",
        "bwd",
        "83°C",
        "/700W",
        "CPU",
        "MEM",
        "? help",
    ):
        assert word in page, word


def test_a_narrow_window_drops_columns_by_importance(told: Snapshot) -> None:
    assert "UTIL" in text(told, View(), 40, 24)
    assert "POWER" not in text(told, View(), 40, 24)
    assert "HISTORY" in text(told, View(), 160, 24)


def test_sixty_four_gpus_fit_side_by_side(told: Snapshot) -> None:
    gpus = tuple(replace(told.gpus[0], index=str(index), key=str(index)) for index in range(64))
    page = text(replace(told, gpus=gpus), View(), 120, 40)
    assert all(f" {index} " in page for index in range(64))
    for size in ((80, 24), (60, 20)):
        small = text(replace(told, gpus=gpus), View(), *size)
        assert all(f" {index} " in small for index in range(64)), "in fewer words"
        assert "more" not in small


def test_gpus_out_of_sight_are_counted_and_come_into_it_with_the_chosen_one(told: Snapshot) -> None:
    gpus = tuple(replace(told.gpus[0], index=str(index), key=str(index)) for index in range(64))
    many = replace(told, gpus=gpus, output=("a line",))
    view = View()
    page = text(many, view, 60, 20)
    assert f" {64 - view.visible} more: ↑ 0  ↓ {64 - view.visible}" in page and 1 < view.visible < 64
    assert view.gpu_columns == 7, "down goes to the next row"
    end = text(many, View(selected={"overview": 63}), 60, 20)
    assert " 63 " in end and "↓ 0" in end
    table = text(replace(told, gpus=gpus[:20]), View(), 14, 24)
    assert "more: ↑ 0" in table, "where they cannot stand side by side"


def test_in_few_words_the_colour_of_the_use_tells_of_heat_and_trouble(told: Snapshot) -> None:
    palette = BY_NAME["dark"]
    hot = {**told.gpus[0].values, "utilization_percent": 97.0, "temperature_celsius": 95}
    gpus = [replace(told.gpus[0], index=str(index), key=str(index)) for index in range(64)]
    gpus[5] = replace(gpus[5], values=hot)
    gpus[6] = replace(gpus[6], problem="no response for 12 s", values={})
    frame = screen.draw(replace(told, gpus=tuple(gpus)), View(), 60, 20)
    styles = {segment.text.strip(): segment.style for line in frame.lines for segment in line}
    assert styles["97%"] == palette.critical and styles["✕"] == palette.critical


def test_what_a_program_prints_has_a_pane_on_any_usual_size(told: Snapshot) -> None:
    around = replace(told, output=tuple(f"line {number}" for number in range(100)))
    for gpus in (told.gpus, told.gpus[:1], ()):
        for size in ((60, 20), (80, 24), (160, 45)):
            page = text(replace(around, gpus=gpus), View(), *size)
            shown = page.splitlines()
            place = next(row for row, line in enumerate(shown) if line.startswith("─ Output"))
            assert shown[place + 1 : -1][-3:] == [" line 97", " line 98", " line 99"]
            assert all(f"{gpu.index} " in page for gpu in gpus) and "CPU" in page and "MEM" in page
    low = text(around, View(), 60, 12)
    assert "Output" not in low and "7 output" in low.splitlines()[-1], "where it is not, the way to it is told"
    assert "line 99" in text(around, View(page="events"), 60, 12)


def test_alerts_that_say_the_same_are_one_line_that_names_the_ranks(told: Snapshot) -> None:
    def alert(message: str, **labels: object) -> AlertRow:
        return AlertRow(rule="rule", severity="critical", state="firing", message=message, labels=labels)

    rows = (
        *(alert("Loss is nan at step 201", rank=rank) for rank in (3, 1, 0, 2)),
        *(alert("Loss is nan at step 202", rank=rank) for rank in (4, 7)),
        alert("Rank 5 is slower than the others", rank=5),
    )
    many = replace(told, firing=rows, active=rows, gpus=())
    page = text(many, View(), 80, 30)
    assert "─ 7 alerts" in page
    assert "rule: Loss is nan at step 201 (ranks 0 to 3)" in page
    assert "rule: Loss is nan at step 202 (ranks 4, 7)" in page
    assert "rule: Rank 5 is slower than the others\n" in page, "what is said already is not said again"
    listed = text(many, View(page="alerts"), 80, 24)
    assert all(f"rank {rank}: Loss is nan" in listed for rank in (0, 1, 2, 3, 4, 7))
    others = tuple(alert(f"GPU {index} is hot", gpu_index=index) for index in range(6))
    assert "3 more: press 5" in text(replace(many, firing=others), View(), 80, 30)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_boxes_break_lines_between_words(told: Snapshot, width: int) -> None:
    def words(view: View) -> set[str]:
        page = text(replace(told, active=(row,), alerts=(row,)), view, width, 80)
        return {word for line in page.splitlines() if line.count("│") == 2 for word in line.split("│")[1].split()}

    advice = "Resume from a checkpoint before this step with half the learning rate, or clip gradients to 1.0"
    row = AlertRow(state="firing", advice=advice)
    assert words(View(help=True)) == {word for pair in boxes.help_rows() for word in " ".join(pair).split()}
    assert words(View(page="alerts", details=True)) == {"state", "firing", "advice", *advice.split()}


def test_one_of_something_is_not_many(told: Snapshot) -> None:
    single = replace(told, processes=told.processes[:1], events=told.events[:1])
    assert "─ 1 process ─" in text(single, View(page="processes"))
    assert "─ 2 processes ─" in text(told, View(page="processes"))
    assert "─ 1 event ─" in text(single, View(page="events"))


def test_a_throttle_reason_is_told_in_words_that_fit(told: Snapshot) -> None:
    def page(reasons: str, width: int) -> str:
        more = {"throttle_reasons": reasons, "fan_speed_percent": 50, "graphics_clock_mhz": 1900}
        gpus = tuple(replace(gpu, values={**gpu.values, **more}) for gpu in told.gpus)
        return text(replace(told, gpus=gpus), View(), width, 24)

    assert " heat" in page("thermal slowdown", 80) and "…" not in page("thermal slowdown", 80)
    assert " power cap" in page("power cap", 80)
    assert " power, hw heat" in page("power cap, hardware thermal slowdown", 80)
    assert "thermal slowdown" in page("thermal slowdown", 160), "where there is room, in full"


def test_the_bar_of_phases_has_its_words_in_a_narrow_window(told: Snapshot) -> None:
    assert told.run is not None
    run = replace(told.run, values={**told.run.values, "transfer_time": 0.02, "other_time": 0.01})
    page = text(replace(told, run=run), View(), 60, 20)
    assert all(word in page for word in ("▄▄▄▄▄▄▄▄", "data 6%", "fwd 30%", "bwd 46%")) and "other" not in page
    assert "other 3%" in text(replace(told, run=run), View(), 80, 24)


def test_a_run_without_hardware_has_charts_in_a_small_window(told: Snapshot) -> None:
    wanted = screen.request(told, View(), 60, 20).charts
    page = text(replace(told, gpus=(), system={}, firing=(), charts=told.charts[:wanted]), View(), 60, 20)
    assert "Loss" in page
    assert sum(not line.strip() for line in page.splitlines()) < 5, "little of it is blank"


def test_a_large_chart_has_the_name_of_its_metric_below_it(told: Snapshot) -> None:
    panel = next(panel for panel in told.panels if panel.title == "val/accuracy")
    chart = Chart(panel, "step", (Line("val/accuracy", "", np.arange(3.0), np.arange(3.0)),))
    page = text(replace(told, charts=(chart,)), View(page="charts", full=True), 80, 24)
    assert page.splitlines()[-2].startswith("  val/accuracy   x: step") and "own:" not in page


def test_ranks_are_filtered_by_number_and_host(told: Snapshot) -> None:
    def rows(filter: str) -> list[str]:
        page = text(told, View(page="ranks", filters={"ranks": filter}))
        return [line.split()[0] for line in page.splitlines()[3:-1] if line.strip()]

    assert rows("") == ["0", "1", "2", "3"] and rows("2") == ["2"]
    assert "no ranks match 'zzz'" in text(told, View(page="ranks", filters={"ranks": "zzz"}))


def test_a_gpu_that_is_lost_is_one_sentence(told: Snapshot) -> None:
    lost = replace(told.gpus[3], problem="lost", values={})
    page = text(replace(told, gpus=(*told.gpus[:3], lost)), View(), 80, 24)
    assert "NVIDIA H100 80GB HBM3: lost" in page


def test_trouble_of_a_gpu_is_told_in_words(told: Snapshot) -> None:
    values = {
        **told.gpus[0].values,
        "throttle_reasons": "power cap, hardware thermal slowdown",
        "xid_errors_total": 2,
        "xid_last": 79,
        "ecc_uncorrected_total": 1,
    }
    page = text(replace(told, gpus=(replace(told.gpus[0], values=values),)), View(), 200, 40)
    assert "Xid 79, ECC 1, power cap" in page


def test_simulated_is_said(told: Snapshot) -> None:
    gpus = tuple(replace(gpu, simulated=True) for gpu in told.gpus)
    assert "SIMULATED" in text(replace(told, gpus=gpus), View(), 80, 24)
    assert told.run is not None
    assert "SIMULATED" in text(replace(told, gpus=(), run=replace(told.run, simulated=True)), View(), 80, 24)


@pytest.mark.parametrize("width", [40, 48, 60, 80])
@pytest.mark.parametrize("name", ["run", "a-name-of-many-words-and-numbers-that-goes-on-and-on-0001", "名前" * 40])
def test_the_words_about_a_run_stand_apart(told: Snapshot, width: int, name: str) -> None:
    assert told.run is not None
    run = replace(told.run, name=name, simulated=True, status="finished", project="audit")
    health = Health("critical", "critical", "loss is NaN")
    first = text(replace(told, run=run, health=health), View(), width, 20).splitlines()[1]
    words = first.split("  ")
    assert "SIMULATED" in words and first.endswith("   CRITICAL")
    assert [word.strip() for word in words if "audit" in word] in ([], ["audit"])
    assert [word.strip() for word in words if "finished" in word] in ([], ["finished"])


def test_colours_are_those_of_the_thresholds(told: Snapshot) -> None:
    palette = BY_NAME["dark"]
    frame = screen.draw(told, View(), 100, 30)
    styles = {segment.text.strip(): segment.style for line in frame.lines for segment in line}
    assert styles["83°C"] == palette.warning
    assert styles["62°C"] == palette.text


def test_without_a_run_the_machine_is_shown(told: Snapshot) -> None:
    page = text(replace(told, run=None, alerts=(), charts=()), View(), 80, 24)
    assert "baseline" not in page and "UTIL" in page


def test_no_gpu_and_no_driver_is_said_in_a_sentence() -> None:
    snapshot = Snapshot(
        time=1.0, system={"cpu_usage_percent": 3.0}, notes=("nvidia: the driver library was not found",)
    )
    page = text(snapshot, View(), 80, 24)
    assert "the driver library was not found" in page and "CPU" in page


def test_an_eta_needs_a_total_and_a_living_run(told: Snapshot) -> None:
    assert told.run is not None
    live = replace(told.run, live=True, status="running", last_step_time=told.time)
    timed = replace(live, progress=Progress(299, 1000, 0.3, 280.0))
    assert "step 299 of 1,000  30.0%  4 min 40 s left" in text(replace(told, run=timed), View())
    assert "left" not in text(told, View())
    by_epochs = replace(live, progress=Progress(299, None, 0.25, 65.0))
    assert "step 299  25.0%  1 min 05 s left" in text(replace(told, run=by_epochs), View())
    assert "step 299  2.5 steps/s" in text(replace(told, run=replace(live, progress=Progress(299))), View())


@pytest.mark.parametrize("word", ["stalled", "crashed", "critical"])
def test_health_is_one_word_with_the_reason_below_it(told: Snapshot, word: str) -> None:
    told = replace(told, health=Health(word, "critical", "rank 0 waits for data"))
    first, second = text(told, View()).splitlines()[1:3]
    assert first.endswith(f"  {word.upper()}")
    assert "rank 0 waits for data" in text(told, View()) and "rank 0" not in second, "progress stands before it"
    assert word in text(told, View(page="ranks")).splitlines()[-1], "other pages say the word"


def test_a_healthy_run_takes_no_line_to_say_why(told: Snapshot) -> None:
    assert told.run is not None
    live = replace(told.run, live=True, status="running", last_step_time=told.time)
    healthy = replace(told, run=live, health=Health("healthy", "ok", "nothing fires"))
    assert "HEALTHY" in text(healthy, View()) and "nothing fires" not in text(healthy, View())


def test_what_fires_stands_before_what_once_did(told: Snapshot) -> None:
    silenced = replace(told.active[1], silenced=True)
    page = text(replace(told, active=(told.active[0], silenced), firing=told.active[:1]), View(page="alerts"))
    states = [line.split()[1] for line in page.splitlines()[3:] if "2026" not in line and line[:3].strip().isdigit()]
    assert "1 active, 4 changes in total" in page
    assert states[:2] == ["firing", "silenced"] and "resolved" in states[2:]


def test_a_single_gpu_has_its_columns_named_and_many_share_their_names(told: Snapshot) -> None:
    alone = text(replace(told, run=None, health=WELL, firing=(), charts=(), gpus=told.gpus[:1]), View(), 80, 24)
    assert "UTIL" in alone and "MEMORY" in alone
    many = tuple(replace(told.gpus[0], key=str(n), index=str(n)) for n in range(64))
    page = text(replace(told, run=None, health=WELL, firing=(), charts=(), gpus=many), View(), 160, 45)
    assert "util, memory, °C" in page.splitlines()[1]


def test_a_gpu_that_never_answered_does_not_count_as_another_kind(told: Snapshot) -> None:
    silent = Gpu("nvidia:GPU-9", "?", "", "GPU-9", {}, 0.0, problem="no response for 10 s")
    lines = text(replace(told, gpus=(*told.gpus[:3], silent)), View(), 130, 40).splitlines()
    assert any("3 x NVIDIA H100 80GB HBM3, 1 not responding" in line for line in lines)
    assert any("GPU-9: no response for 10 s" in line for line in lines)
    assert not any("NAME" in line for line in lines)


def test_a_long_note_is_told_to_its_end(told: Snapshot) -> None:
    note = " ".join(f"word{number}" for number in range(20))
    page = text(Snapshot(time=1.0, system={"cpu_usage_percent": 3.0}, notes=(note,)), View(), 80, 24)
    assert "word0" in page and "word19" in page


def test_hints_are_whole_or_absent(told: Snapshot) -> None:
    assert text(told, View(), 20, 5).splitlines()[-1] == " ? help  / charts"


def test_an_event_of_another_day_says_the_day(told: Snapshot) -> None:
    page = text(told, View(page="events"))
    assert "10:01:36" in page
    later = text(replace(told, time=told.time + 86_400), View(page="events"))
    assert "15 Jan 10:01" in later and "10:01:36" not in later


def test_details_of_an_alert_are_words(told: Snapshot) -> None:
    row = replace(told.active[0], labels={"gpu": "7", "host": "node7"}, values={"step": 240})
    page = text(replace(told, active=(row,)), View(page="alerts", details=True))
    assert "gpu 7, host node7" in page and "{" not in page


def test_silence_is_said(told: Snapshot) -> None:
    assert told.run is not None
    quiet = replace(told.run, live=True, status="running", last_step_time=told.time - 95)
    assert "no step for 1 min 35 s" in text(replace(told, run=quiet), View())


def test_the_straggler_stands_out_among_the_ranks(told: Snapshot) -> None:
    frame = screen.draw(told, View(page="ranks"), 100, 30)
    rows = ["".join(segment.text for segment in line) for line in frame.lines]
    slow = next(row for row in rows if row.startswith("    2"))
    assert "5" in slow.split()[3][:1] and "ms" in slow
    styles = [segment.style for line in frame.lines for segment in line if "5" in segment.text and "ms" in segment.text]
    assert BY_NAME["dark"].warning in styles or BY_NAME["dark"].critical in styles


def test_alerts_come_worst_first_and_then_their_history(told: Snapshot) -> None:
    rows = [row for row in text(told, View(page="alerts")).splitlines() if "loss" in row or "gpu" in row]
    assert "loss_not_finite" in rows[0] and "gpu_temperature_high" in rows[1] and "resolved" in rows[2]


def test_the_selected_row_has_details(told: Snapshot) -> None:
    assert "temperature_celsius" in text(told, View(details=True), 100, 40)
    assert "python train.py" in text(told, View(page="processes", details=True))
    page = text(told, View(page="alerts", details=True))
    assert "loss_not_finite" in page and "values" in page


def test_processes_are_sorted_and_filtered(told: Snapshot) -> None:
    page = text(told, View(page="processes"))
    assert page.index("python train.py") < page.index("bash")
    assert "bash" not in text(told, View(page="processes", filters={"processes": "TRAIN"}))
    assert "no processes match 'zzz'" in text(told, View(page="processes", filters={"processes": "zzz"}))


def test_hostile_names_stay_in_their_place(told: Snapshot) -> None:
    assert told.run is not None
    name = "\x1b[2J\u202eevil\n" + "x" * 500
    x = np.arange(3.0)
    panel = Panel("own:x", "שלום" * 100 + name, "training", "training", ("m",), low=None)
    strange = AlertRow(rule=name, state="firing", message=name, severity=name)
    snapshot = replace(
        told,
        run=replace(told.run, name=name, project=name),
        gpus=(Gpu("k", "0", name, name, {"throttle_reasons": name}, 0.0),),
        events=(EventRow(timestamp="bad", event=name, message=name),),
        alerts=(strange,),
        active=(strange,),
        firing=(strange,),
        panels=(panel,),
        charts=(Chart(panel, "step", (Line("m", name, x, x),)),),
        runs=(run_row(name, name, name, name),),
    )
    for page, _ in PAGES:
        drawn = text(snapshot, View(page=page, details=page == "events"), 80, 24)
        assert "\x1b" not in drawn and "\u202e" not in drawn


def test_the_help_names_every_key(told: Snapshot) -> None:
    page = text(told, View(help=True), 120, 60)
    for key in ("q", "?", "tab", "space", "/", "s", "r", "p", "+ -", "t", "l", "m", "x", "o", "k", "esc"):
        assert f"│ {key} " in page, key


def test_the_feed_is_asked_for_no_more_than_fits(told: Snapshot) -> None:
    assert screen.request(told, View(page="processes"), 80, 24).charts == 0
    assert screen.request(told, View(page="charts"), 80, 24).charts == 2
    assert screen.request(told, View(page="charts"), 200, 60).charts == 28
    full = screen.request(told, View(page="charts", full=True, selected={"charts": 5}), 80, 24)
    assert (full.offset, full.charts) == (5, 1)


def test_charts_of_a_panel_that_grew_old_are_drawn_all_the_same(told: Snapshot) -> None:
    chart = Chart(BY_ID["loss"], "step", ())
    assert "no values yet" in text(replace(told, charts=(chart,)), View(page="charts"))


def test_paper_has_no_colour_and_a_plain_terminal_plain_characters(told: Snapshot) -> None:
    assert text(told, View(ascii=True), 100, 40).isascii()

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import story
from waiting import wait_until

from trainvitals import runtime
from trainvitals.conditions import Conditions
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import refer_to
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.run_details import describe_run
from trainvitals.views.report.data import make_data
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed, judge_machine
from trainvitals.views.tui.machine_alerts import find_machine_alerts
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Gpu, ProcessRow, Request, Snapshot
from trainvitals.views.tui.view import View

MakeFeed = Callable[..., Feed]


def until(feed: Feed, ready: Callable[[Snapshot], object]) -> Snapshot:
    """Look until it is so."""
    found = wait_until(lambda: [snapshot] if ready(snapshot := feed.read()) else [], lambda: f"not {feed.read()}")
    return found[0]


def as_text(snapshot: Snapshot, view: View, width: int, height: int) -> str:
    lines = screen.draw(snapshot, view, width, height).lines
    return "\n".join("".join(segment.text for segment in line) for line in lines)


NOW = time.time()
"""The time for the agent and for whoever reads what it wrote: for a feed with the real clock, it would grow old."""


def write_latest(samples: dict[str, object], *, age: float = 0.0, **more: object) -> None:
    content = {"written": format_time(NOW - age), "samples": samples, **more}
    (runtime.runtime_dir() / "latest.json").write_text(json.dumps(content))


def gpu_sample(index: int, *, age: float = 0.0, **values: object) -> dict[str, object]:
    labels = {"gpu_index": index, "gpu_uuid": f"GPU-{index}", "gpu_name": "H100"}
    return {"table": "gpu", "labels": labels, "values": values, "time": format_time(NOW - age)}


def test_a_finished_run_is_shown_from_its_folder_alone(make_feed: MakeFeed, folder: Path) -> None:
    snapshot = make_feed(run=folder).read()
    assert snapshot.origin == "run folder"
    assert snapshot.host == "node7"
    assert [gpu.index for gpu in snapshot.gpus] == [str(index) for index in range(8)]
    assert snapshot.gpus[7].values["temperature_celsius"] == 83
    assert snapshot.system["cpu_count"] == 64
    assert [chart.panel.id for chart in snapshot.charts][:2] == ["loss", "accuracy"]
    assert len(snapshot.alerts) == 4 and len(snapshot.events) == 3


def tell_end(folder: Path, **more: object) -> None:
    run_folder.write_run(folder, RunFile.parse({**run_folder.read_run(folder).as_json(), **more}))


def tell_stall(folder: Path) -> None:
    run_folder.write_status(folder, Status.parse({"attempt": 1, "state": "stalled", "cause": "rank 0 waits for data"}))


def tell_alerts(folder: Path) -> None:
    later = {"timestamp": format_time(time.time()), "severity": "warning"}
    rows: list[dict[str, object]] = [
        {**later, "rule": "loss_not_finite", "state": "resolved", "message": "it is back"},
        {**later, "rule": "hot", "state": "firing", "message": "GPU 0 is hot", "labels": {"gpu": "0"}},
        {**later, "rule": "hot", "state": "firing", "message": "GPU 1 is hot", "labels": {"gpu": "1"}},
        {**later, "rule": "full", "state": "firing", "message": "the disk is full", "severity": "critical"},
        {**later, "rule": "full", "state": "silenced", "until": format_time(time.time() + 600)},
        {**later, "outgoing": "x", "kind": "firing", "channels": ["mail"]},
    ]
    story.write_lines(folder / "alerts_20260115_100100.jsonl", rows)


def tell_nan(folder: Path) -> None:
    (folder / "alerts_20260115_100000.jsonl").unlink()
    row = {"timestamp": format_time(story.START + 121), "step": 300, "val/loss": "NaN"}
    story.write_lines(folder / "training_metrics_20260115_100000.rank0.jsonl", [row])


def tell_well(folder: Path) -> None:
    (folder / "alerts_20260115_100000.jsonl").unlink()


@pytest.mark.parametrize(
    ("tell", "config", "word", "left"),
    [
        (tell_well, {"total_steps": 1000}, "healthy", 280.0),
        (tell_well, {"trainer": {"max_epochs": 3}}, "healthy", 120.4),
        (tell_alerts, {"max_steps": 400}, "warning", 40.0),
        (tell_nan, {}, "critical", None),
        (tell_stall, {}, "stalled", None),
        (
            lambda folder: tell_end(folder, status="finished", ended=format_time(story.START + 120)),
            {},
            "finished",
            None,
        ),
        (lambda folder: tell_end(folder, status="failed", cause="ValueError: x"), {}, "failed", None),
        (lambda folder: tell_end(folder, process={"pid": 2**22, "host": runtime.host_name()}), {}, "crashed", None),
    ],
)
def test_the_page_the_report_and_the_terminal_say_the_same_of_a_run(
    tmp_path: Path, tell: Callable[[Path], None], config: dict[str, object], word: str, left: float | None
) -> None:
    process = {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}
    folder = story.make_run(tmp_path / "runs", status="running", ranks=2, config=config, process=process)
    tell(folder)
    feed = Feed(TopOptions(run=refer_to(folder), sources=()))
    snapshot = feed.read()
    feed.stop()
    page = describe_run(RunReader(folder), "run")
    report = make_data([("run", RunReader(folder))], Conditions())["runs"]["run"]["run"]
    assert snapshot.run is not None
    assert snapshot.health.word == word
    assert snapshot.health._asdict() == page["health"] == report["health"]
    assert snapshot.run.progress._asdict() == page["progress"] == report["progress"]
    assert snapshot.run.progress.seconds_left == (None if left is None else pytest.approx(left, rel=0.01))
    assert [row.message for row in snapshot.firing] == [row["message"] for row in page["firing"]]


def test_a_lost_gpu_is_a_warning_of_the_machine_and_a_sleeping_one_is_not() -> None:
    lost, asleep = (Gpu(word, "3", "H100", "u", {}, 0.0, problem=word) for word in ("lost", "asleep"))
    assert judge_machine([asleep, lost]) == ("warning", "warning", "GPU 3: lost", "")
    assert judge_machine([asleep]).word == "healthy"


def test_only_the_wanted_gpus_are_shown(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder, gpus=("1", "GPU-3"))
    assert [gpu.index for gpu in feed.read().gpus] == ["1", "3"]
    missing = make_feed(run=folder, gpus=("12",)).read()
    assert missing.gpus == () and "no GPU 12 on this machine, only 0, 1, 2" in missing.notes[0]


def test_the_page_of_events_has_what_the_program_printed(make_feed: MakeFeed, folder: Path) -> None:
    (folder / "console.rank0.log").write_text("epoch 1\n")
    feed = make_feed(run=folder)
    assert feed.read().output == ()
    feed.want(Request(page="events"))
    assert feed.read().output == ("epoch 1",)


def test_typing_finds_any_metric(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder)
    feed.want(Request(page="charts", filter="accur"))
    snapshot = feed.read()
    assert [panel.title for panel in snapshot.panels] == ["val/accuracy"]
    assert len(snapshot.charts[0].lines) == 4
    feed.want(Request(page="charts", filter="GPU temp"))
    assert [panel.id for panel in feed.read().panels] == ["gpu_temperature"]


def test_a_zoomed_chart_is_read_in_full_resolution(make_feed: MakeFeed, tmp_path: Path) -> None:
    folder = story.make_run(tmp_path / "runs", steps=6000, ranks=1, gpus=0)
    feed = make_feed(run=folder)
    coarse = feed.read().charts[0].lines[0]
    feed.want(Request(page="charts", axis="step", window=(1000.0, 1400.0)))
    fine = feed.read().charts[0].lines[0]
    assert len(fine.x) == 401
    assert ((coarse.x >= 1000) & (coarse.x <= 1400)).sum() < 401


def test_without_an_agent_the_hardware_is_sampled_here(make_feed: MakeFeed) -> None:
    feed = Feed(TopOptions(simulate_gpus=2, interval=0.1))
    snapshot = until(feed, lambda s: len(s.gpus) == 2 and s.system)
    feed.stop()
    assert snapshot.origin == "own sampling"
    assert all(gpu.simulated for gpu in snapshot.gpus)
    assert "gpu_utilization" in {panel.id for panel in snapshot.panels}


def test_the_agents_newest_samples_are_used_where_there_is_one() -> None:
    write_latest({"a": gpu_sample(1, utilization_percent=50.0), "b": gpu_sample(0, utilization_percent=10.0)})
    feed = Feed(TopOptions(), clock=lambda: NOW)
    snapshot = feed.read()
    assert snapshot.origin == "agent"
    assert [(gpu.index, gpu.values["utilization_percent"]) for gpu in snapshot.gpus] == [
        ("0", 10.0),
        ("1", 50.0),
    ]
    write_latest({"a": gpu_sample(1, age=-1.0, utilization_percent=60.0)})
    assert feed.read().gpus[0].history == (50.0, 60.0)


def test_a_gpu_that_does_not_answer_is_said_with_the_reason() -> None:
    write_latest(
        {
            "nvidia:GPU-0": gpu_sample(0, age=12.0, utilization_percent=50.0),
            "nvidia:GPU-1": gpu_sample(1, state="lost"),
            "nvidia:GPU-2": gpu_sample(2, age=12.0, utilization_percent=1.0),
        },
        sources={
            "nvidia:GPU-2": {"up": False, "reason": "no response for 12 s"},
            "nvidia:GPU-9": {"up": False, "reason": "no response for 40 s"},
        },
    )
    problems = {gpu.uuid: gpu.problem for gpu in Feed(TopOptions(), clock=lambda: NOW).read().gpus}
    assert problems["GPU-0"] == "no response for 12 s"
    assert problems["GPU-1"] == "lost"
    assert problems["GPU-2"] == "no response for 12 s"
    assert problems["GPU-9"] == "no response for 40 s", "one that never answered is there all the same"


def test_an_agent_that_fell_silent_is_not_believed() -> None:
    write_latest({"a": gpu_sample(0, utilization_percent=50.0)}, age=60.0)
    feed = Feed(TopOptions(sources=("system",)))
    snapshot = feed.read()
    feed.stop()
    assert snapshot.origin == "own sampling" and snapshot.gpus == ()


@pytest.mark.parametrize("content", ["", "[]", '{"written": 5}', '{"samples": 3}', "\xff"])
def test_a_broken_snapshot_of_the_agent_is_no_snapshot(content: str) -> None:
    (runtime.runtime_dir() / "latest.json").write_text(content)
    feed = Feed(TopOptions(sources=("system",)))
    assert feed.read().origin == "own sampling"
    feed.stop()


def test_fake_gpus_with_a_lost_one_and_slices(fake_nvml) -> None:  # type: ignore[no-untyped-def]
    fake_nvml.script("count = 4\nerr.*.1 = 15\ngpu.2.mig = 1\ngpu.2.mig_count = 2\ngpu.3.xid = 79@0\n")
    fake_nvml.load()
    feed = Feed(TopOptions(sources=("nvidia",), interval=0.1))
    snapshot = until(feed, lambda s: {"0", "2", "2:0", "2:1", "3"} <= {gpu.index for gpu in s.gpus})
    lost = until(feed, lambda s: any(gpu.problem == "lost" for gpu in s.gpus))
    feed.stop()
    assert [gpu.index for gpu in snapshot.gpus if gpu.is_slice] == ["2:0", "2:1"]
    # On a busy machine the others may not have had their turn for a while.
    assert [gpu.index for gpu in lost.gpus if gpu.problem and not gpu.problem.startswith("no response")] == ["1"]


def test_a_process_on_a_gpu_is_listed_with_what_it_uses(fake_nvml) -> None:  # type: ignore[no-untyped-def]
    fake_nvml.script("count = 2\ngpu.1.procs = C:self:4294967296:55\n")
    fake_nvml.load()
    feed = Feed(TopOptions(sources=("system",)))
    feed.want(Request(page="processes"))
    snapshot = until(feed, lambda s: any(process.gpus for process in s.processes))
    feed.stop()
    (mine,) = [process for process in snapshot.processes if process.gpus]
    assert (mine.pid, mine.gpus, mine.gpu_memory_mb) == (os.getpid(), ("1",), 4096.0)


def test_the_overview_shows_who_is_on_which_gpu_and_the_driver(fake_nvml) -> None:  # type: ignore[no-untyped-def]
    """By GPU and then by memory; a process on several GPUs is one row."""
    parent = os.getppid()
    fake_nvml.script(
        "count = 3\n"
        f"gpu.1.procs = C:self:4294967296:55;C:{parent}:8589934592:20\n"
        "gpu.2.procs = C:self:1073741824:5\n"
        "gpu.0.procs = C:4999999:2147483648:1\n"
    )
    fake_nvml.load()
    feed = Feed(TopOptions(sources=("nvidia",), interval=0.1))
    snapshot = until(
        feed, lambda s: len(s.gpus) == 3 and len(s.on_gpus) == 3 and s.on_gpus[2].gpus == ("1", "2") and s.driver
    )
    feed.stop()
    rows = [(row.pid, row.gpus, row.gpu_memory_mb) for row in snapshot.on_gpus]
    assert rows == [(4999999, ("0",), 2048.0), (parent, ("1",), 8192.0), (os.getpid(), ("1", "2"), 5120.0)]
    assert snapshot.driver.startswith("driver ") and ", CUDA " in snapshot.driver
    for width, height in ((80, 24), (120, 40), (200, 60)):
        text = as_text(snapshot, View(), width, height)
        assert snapshot.driver in text and "3 processes on the GPUs" in text
    assert f"{os.getpid()}" in as_text(snapshot, View(), 120, 40)


def test_the_job_of_a_process_on_a_gpu_is_shown_whoever_started_it(fake_nvml) -> None:  # type: ignore[no-untyped-def]
    process = subprocess.Popen(["sleep", "600"], env={"SLURM_JOB_ID": "4711", "PATH": os.environ["PATH"]})
    try:
        fake_nvml.script(f"count = 1\ngpu.0.procs = C:{process.pid}:4Gi:55\n")
        fake_nvml.load()
        feed = Feed(TopOptions(sources=("nvidia",), interval=0.1))
        overview = until(feed, lambda s: s.on_gpus)
        feed.want(Request(page="processes"))
        listed = until(feed, lambda s: any(row.gpus for row in s.processes))
        feed.stop()
    finally:
        process.kill()
        process.wait()
    assert "Slurm job 4711" in as_text(overview, View(), 120, 40)
    assert "Slurm job 4711" in as_text(listed, View(page="processes"), 160, 40)


def test_processes_on_gpus_fold_into_one_line_where_there_is_no_room() -> None:
    gpus = tuple(Gpu(f"{i}", f"{i}", "H100", f"{i}", {"utilization_percent": 50}, 0.0) for i in range(64))
    rows = tuple(
        ProcessRow(1000 + i, f"train.py --rank {i}", "alice" if i else "bob", (f"{i}",), gpu_memory_mb=1024.0)
        for i in range(64)
    )
    system = {"cpu_usage_percent": 50.0, "memory_usage_percent": 40.0}
    snapshot = Snapshot(time=1.0, gpus=gpus, on_gpus=rows, system=system)
    small = as_text(snapshot, View(), 80, 20)
    assert "64 processes on the GPUs: alice 63.0 GB, bob 1.0 GB" in small and " 63 " in small
    large = as_text(snapshot, View(), 200, 60)
    assert "train.py --rank 5" in large and "more: alice" in large and "press 3" in large


def test_a_hot_gpu_is_an_alert_without_a_run() -> None:
    def gpu(index: str, **values: float) -> Gpu:
        return Gpu(index, index, "H100", index, values, 100.0)

    gpus = (
        gpu("0", temperature_celsius=60.0, memory_percent=99.9),
        gpu("1", temperature_celsius=83.0),
        gpu("2", temperature_celsius=91.0, memory_temperature_celsius=99.0),
    )
    alerts = find_machine_alerts(gpus, Conditions())
    assert [(row.rule, row.severity, row.labels["gpu_index"]) for row in alerts] == [
        ("gpu_temperature_high", "critical", "2"),
        ("gpu_temperature_high", "warning", "1"),
        ("gpu_memory_temperature_high", "warning", "2"),
    ]
    assert alerts[0].message == "GPU 2 is at 91 °C (warning above 90 °C)"
    assert "99°C" in alerts[2].message
    assert judge_machine(gpus, alerts)[:3] == ("critical", "critical", alerts[0].message)
    # One threshold for colors, rules and this.
    assert find_machine_alerts(gpus[1:2], Conditions({"gpu_temperature_celsius": 85})) == ()
    snapshot = Snapshot(time=101.0, gpus=gpus, active=alerts, firing=alerts, health=judge_machine(gpus, alerts))
    assert "critical: GPU 2 is at 91 °C" in as_text(snapshot, View(), 80, 24)
    page = as_text(snapshot, View(page="alerts"), 120, 24)
    assert "3 active on this machine" in page and "gpu_memory_temperature_high" in page


def test_a_validation_loss_is_charted_beside_the_loss(make_feed, folder: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"timestamp": format_time(story.START + i), "step": i, "val/loss": 1.0 / (i + 1)} for i in range(9)]
    story.write_lines(next(folder.glob("training_metrics_*.rank0.jsonl")), rows)
    snapshot = make_feed(run=folder).read()
    chart = next(chart for chart in snapshot.charts if chart.panel.id == "loss")
    assert [line.metric for line in chart.lines] == ["loss"] * 4 + ["val/loss"]
    assert "own:val/loss" not in [panel.id for panel in snapshot.panels]


def test_without_gpus_and_runs_the_busiest_processes_are_listed() -> None:
    feed = Feed(TopOptions(sources=("system",)))
    feed.want(Request(page="processes"))
    snapshot = feed.read()
    feed.stop()
    use = [process.cpu_percent or 0.0 for process in snapshot.processes]
    assert use and use == sorted(use, reverse=True)


def test_the_run_that_lives_on_this_machine_is_found(tmp_path: Path) -> None:
    here = {"pid": os.getpid(), "start": runtime.process_start(os.getpid()), "host": runtime.host_name()}
    folder = story.make_run(
        tmp_path / "runs", status="running", start=time.time() - 120, steps=20, gpus=0, process=here
    )
    registrations.register(
        Registration(
            run_id=folder.name,
            folder=str(folder),
            rank=0,
            pid=os.getpid(),
            pid_start=here["start"],  # type: ignore[arg-type]
            host=runtime.host_name(),
        )
    )
    feed = Feed(TopOptions(sources=("system",)))
    snapshot = feed.read()
    feed.stop()
    assert snapshot.run is not None and snapshot.run.name == "baseline" and snapshot.run.live
    assert snapshot.run.ranks[0].pid == os.getpid()


def register_run(root: Path, name: str, pid: int) -> Path:
    """A run that lives here in that process."""
    start = runtime.process_start(pid)
    folder = story.make_run(
        root,
        name,
        status="running",
        steps=5,
        gpus=0,
        ranks=1,
        process={"pid": pid, "start": start, "host": runtime.host_name()},
    )
    registrations.register(
        Registration(run_id=folder.name, folder=str(folder), rank=0, pid=pid, pid_start=start, host=runtime.host_name())
    )
    return folder


def name_shown(feed: Feed) -> str:
    feed.registered.expire()
    run = feed.read().run
    return run.name if run is not None else ""


def test_around_a_program_only_its_own_runs_are_followed(make_feed: MakeFeed, tmp_path: Path) -> None:
    mine = os.getpid()
    feed = make_feed(sources=("system",), holds=lambda pid: pid == mine)
    register_run(tmp_path, "a-stranger", os.getppid())
    assert name_shown(feed) == "", "its own run has not begun"
    register_run(tmp_path, "first", mine)
    assert name_shown(feed) == "first"
    register_run(tmp_path, "second", os.getppid())
    assert name_shown(feed) == "first"
    assert name_shown(make_feed(sources=("system",))) == "second", "elsewhere the newest one is shown"
    register_run(tmp_path, "third", mine)
    assert name_shown(feed) == "third", "a program may begin several runs"
    for path, entry in registrations.read_all():
        if "third" in entry.run_id:
            path.unlink()
    assert name_shown(feed) == "third", "and the last one stays when it has ended"


def test_from_a_chosen_run_there_is_a_way_back_to_the_machine(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder, sources=("system",))
    assert name_shown(feed) == "baseline"
    feed.choose(None)
    assert name_shown(feed) == ""


def test_when_the_folder_of_the_run_goes_away_the_next_live_one_is_shown(make_feed: MakeFeed, tmp_path: Path) -> None:
    register_run(tmp_path, "first", os.getppid())
    gone = register_run(tmp_path, "second", os.getpid())
    feed, chosen = make_feed(sources=("system",)), make_feed(sources=("system",), run=gone)
    assert name_shown(feed) == name_shown(chosen) == "second"
    shutil.rmtree(gone)
    assert name_shown(feed) == "first"
    assert chosen.shown is not None
    chosen.shown.info.expire()
    assert "the run was deleted or moved" in chosen.read().notes[0], "a run that was asked for stays"


def test_reset_starts_the_history_again(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder)
    assert len(feed.read().charts[0].lines) == 4
    feed.reset()
    assert feed.read().charts[0].lines == ()


def test_a_request_is_answered_at_once_and_not_after_the_interval(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder, interval=3600.0)
    seen: list[Snapshot] = []
    feed.start(seen.append)
    wait_until(lambda: seen, "the first snapshot")
    feed.want(Request(page="runs"))
    wait_until(lambda: seen[-1].runs, "the runs")
    assert seen[-1].runs[0].info.name == "baseline"


def test_a_feed_that_fails_says_so_and_goes_on(make_feed: MakeFeed, folder: Path) -> None:
    feed = make_feed(run=folder, interval=0.05)
    good = feed.read
    broken = iter([True, False, False])

    def read() -> Snapshot:
        if next(broken, False):
            raise OSError("the file system hangs")
        return good()

    feed.read = read  # type: ignore[method-assign]
    seen: list[Snapshot] = []
    feed.start(seen.append)
    wait_until(lambda: len(seen) >= 2, "two snapshots")
    assert "the file system hangs" in seen[0].notes[0]
    assert seen[1].run is not None

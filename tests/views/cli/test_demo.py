"""`trainvitals demo`: really trains, ends by itself, and says what is simulated."""

from __future__ import annotations

import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_nvml import FakeNvml
from waiting import PATIENCE

import trainvitals
from trainvitals.analysis.gpu_use import total_energy
from trainvitals.journal.reader import RunReader
from trainvitals.views.cli.demo import draw_bar, draw_chart
from trainvitals.views.cli.demo_training import DemoConfig, Step, train, train_steps
from trainvitals.views.data import quantities
from trainvitals.views.data.gpus import read_gpus

PROGRAM = (sys.executable, "-m", "trainvitals")


def test_the_network_really_learns() -> None:
    steps = list(train_steps(DemoConfig()))
    first, last = steps[:20], steps[-20:]
    assert sum(step.accuracy for step in first) / 20 < 0.5
    assert sum(step.accuracy for step in last) / 20 > 0.9
    assert sum(step.loss for step in last) < sum(step.loss for step in first) / 2


def test_steps_after_a_late_one_keep_the_pace(tmp_path: Path) -> None:
    """Quick ones that make up for it would be reported as a training that then slows down."""
    moments = []

    def watch(step: Step) -> None:
        if step.step == 0:
            time.sleep(0.5)
        moments.append(time.monotonic())

    run = trainvitals.init(dir=tmp_path, agent=False)
    train(run, DemoConfig(steps=20, seconds=0.4), watch)
    run.finish()
    assert moments[-1] - moments[1] >= 17 * 0.4 / 20


def test_the_learning_rate_warms_up_and_falls() -> None:
    rates = [step.learning_rate for step in train_steps(DemoConfig(steps=100))]
    top = rates.index(max(rates))
    assert 0 < top < 20
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)


def test_it_ends_by_itself_with_a_summary(watched_machine: Any) -> None:
    done = watched_machine.run("demo", "--seconds", "3", "--steps", "60", "--interval", "0.2", "--simulate-gpus", "2")
    assert done.returncode == 0, done.stderr
    assert "step 60 of 60" in done.stdout
    folder, run = watched_machine.only_run()
    assert (run["status"], run["project"], run["simulated"], run["last_step"]) == (
        "finished",
        "demo",
        True,
        59,
    )
    assert "with 2 simulated GPUs" in done.stderr
    assert "simulated GPUs" in done.stderr
    assert f"trainvitals runs show {folder.name}" in done.stderr
    rows = list(RunReader(folder).rows("training"))
    assert len(rows) == 60
    assert {"loss", "accuracy", "learning_rate", "gradient_norm", "throughput_samples_per_sec"} <= set(rows[0])


def test_the_energy_of_the_summary_is_that_of_the_samples_up_to_the_end(watched_machine: Any) -> None:
    watched_machine.run("agent", "start")  # one that is only starting might miss so short a training
    done = watched_machine.run("demo", "--seconds", "2", "--interval", "0.2", "--simulate-gpus", "2")
    folder, run = watched_machine.only_run()
    reader = RunReader(folder)
    used = quantities.format_energy(total_energy(read_gpus(reader, [])))
    assert re.search(rf"energy +{re.escape(used)} ", done.stderr), (used, done.stderr)
    assert max(str(row["timestamp"]) for row in reader.rows("gpu")) <= run["ended"]


def test_on_a_terminal_it_is_drawn_in_one_place(machine: Any, terminal: Callable[..., Any]) -> None:
    session = terminal([*PROGRAM, "demo", "--seconds", "1", "--steps", "40"], rows=50, columns=100)
    assert session.wait() == 0
    screen = session.screen()
    assert sum("step 40 of 40" in line for line in screen) == 1
    assert not any("step 20 of 40" in line for line in screen)
    assert any("loss" in line and "accuracy" in line for line in screen)
    assert any("│" in line for line in screen)


def test_a_terminal_without_room_gets_plain_lines(machine: Any, terminal: Callable[..., Any]) -> None:
    session = terminal([*PROGRAM, "demo", "--seconds", "0", "--steps", "5"], rows=10, columns=80)
    assert session.wait() == 0
    assert "step 5 of 5  loss" in session.text and "\x1b[2K" not in session.text


def test_ctrl_c_ends_it_with_a_summary_of_what_there_was(watched_machine: Any) -> None:
    done = watched_machine.interrupt_when(lambda output: "step 2" in output, "demo", "--seconds", "600")
    assert done.returncode == 130
    assert "killed" in done.stderr and "runs show" in done.stderr and "Traceback" not in done.stderr
    _, run = watched_machine.only_run()
    assert run["status"] == "killed"


def test_gpus_are_at_work_from_the_first_line_that_shows_them(watched_machine: Any) -> None:
    use = re.compile(r"GPU 0 \(simulated\) (\d+) %")
    done = watched_machine.interrupt_when(
        use.search, *("demo", "--seconds", "600", "--interval", "0.2", "--simulate-gpus", "1")
    )
    # A fifth is the least of what is simulated in the first minute, now and then; at rest it would be nothing.
    assert all(int(text) > 10 for text in use.findall(done.stdout))


def test_the_hardware_alone_can_be_shown(watched_machine: Any) -> None:
    done = watched_machine.interrupt_when(
        lambda output: "GPU Monitor (simulated) - GPU0:" in output,
        *("demo", "--mode", "monitor", "--seconds", "600", "--interval", "0.2"),
    )
    assert done.returncode == 0


def test_simulated_gpus_are_never_among_real_ones(watched_machine: Any, fake_nvml: FakeNvml) -> None:
    fake_nvml.load()
    done = watched_machine.interrupt_when(
        lambda output: "GPU Monitor (simulated) - GPU0:" in output,
        *("demo", "--mode", "monitor", "--seconds", "600", "--interval", "0.2"),
    )
    assert done.returncode == 0
    folder, _ = watched_machine.only_run()
    assert {row["vendor"] for row in RunReader(folder).rows("gpu")} == {"simulated"}


def test_the_dashboard_of_a_demo_stays_until_it_is_interrupted(watched_machine: Any) -> None:
    process = watched_machine.start("demo", "--mode", "dashboard", "--steps", "20")
    port = 0
    for line in process.stderr:
        if found := re.search(r"dashboard: http://127\.0\.0\.1:(\d+)", line):
            port = int(found[1])
        if "the dashboard stays" in line:
            break
    socket.create_connection(("127.0.0.1", port)).close()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert watched_machine.only_run()[1]["status"] == "finished"


def test_the_dashboard_of_a_demo_of_a_given_length_ends_by_itself(watched_machine: Any) -> None:
    done = watched_machine.run("demo", "--mode", "dashboard", "--steps", "20", "--seconds", "1")
    assert done.returncode == 0 and "dashboard: http://" in done.stderr


def test_an_unknown_mode_suggests_the_nearest(machine: Any) -> None:
    done = machine.run("demo", "--mode", "trian")
    assert done.returncode == 2
    assert "did you mean 'train'?" in done.stderr


def test_a_bar_is_as_full_as_its_share() -> None:
    assert draw_bar(0.5, 4) == "██░░"
    assert draw_bar(7.0, 3) == "███"


def test_a_chart_has_its_extremes_at_the_left() -> None:
    lines = draw_chart("loss", [3.0, 2.0, 1.0], 20, 4)
    assert lines[0] == "loss"
    assert lines[1].startswith("3 │")
    assert lines[-1].startswith("1 │")
    assert len(lines) == 5


def test_a_chart_survives_values_that_are_no_numbers() -> None:
    assert len(draw_chart("loss", [float("nan"), float("inf"), 1.0], 20, 4)) == 5
    assert len(draw_chart("loss", [float("nan")], 20, 4)) == 5


def test_a_full_disk_is_told_at_once_with_the_flag_for_another_place(machine: Any, full_disk: Path) -> None:
    done = machine.run("demo", "--dir", str(full_disk))
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot write to {full_disk}/demo: No space left on device\n" in done.stderr
    assert done.stderr.endswith("  choose another folder: --dir or TRAINVITALS_DIR\n")
    assert "trainvitals[web]" not in done.stderr

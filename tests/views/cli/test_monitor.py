"""`trainvitals monitor`, with the real agent and simulated or fake GPUs."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, free_port, wait_until

from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.views.cli.monitor import Console

LINE = re.compile(r"GPU Monitor \(simulated\) - GPU0: \d+\.\d%/\d+\.\d% \| GPU1: \d+\.\d%/\d+\.\d%")
FAST = ("--interval", "0.2")


def rows_of(folder: Path, table: str) -> list[dict[str, Any]]:
    files = sorted(folder.glob(f"{table}_*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def lines_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if LINE.fullmatch(line)]


def test_a_line_per_sample_a_table_and_every_number_in_files(watched_machine: Any) -> None:
    log = watched_machine.folder / "logs" / "gpu"
    done = watched_machine.interrupt_when(
        lambda output: len(lines_in(output)) >= 4,
        "monitor",
        "--simulate-gpus",
        "2",
        *FAST,
        "--log-dir",
        str(log),
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout.partition("min / mean / max")[2]
    assert re.search(r"GPU 0 +\d+ / \d+ / \d+ +\d+ / \d+ / \d+ +\d+ / \d+ / \d+ +\d+ / \d+ / \d+ +\S+ Wh", table)
    assert "GPU 1" in table
    assert "imulated" in table
    run = json.loads((log / "run.json").read_text())
    assert (run["kind"], run["status"], run["simulated"], run["attempt"]) == ("monitor", "finished", True, 1)
    rows = rows_of(log, "gpu_metrics")
    assert len(rows) >= 8
    assert {row["gpu_index"] for row in rows} == {0, 1}
    assert str(log) in done.stderr


def test_started_again_in_the_same_folder_it_is_a_new_attempt(watched_machine: Any) -> None:
    log = watched_machine.folder / "again"
    command = ("monitor", "--simulate-gpus", "2", *FAST, "--log-dir", str(log))
    watched_machine.interrupt_when(lines_in, *command)
    before = list(RunReader(log).rows("gpu"))
    assert before
    watched_machine.interrupt_when(lines_in, *command)
    run = json.loads((log / "run.json").read_text())
    assert [(item["number"], item["status"]) for item in run["attempts"]] == [
        (1, "finished"),
        (2, "finished"),
    ]
    # By the reader: what the first attempt wrote may have been sealed meanwhile.
    assert list(RunReader(log).rows("gpu"))[: len(before)] == before
    assert list(log.glob("gpu_metrics_*.attempt2.jsonl"))


def test_only_the_gpu_that_was_asked_for(watched_machine: Any) -> None:
    done = watched_machine.interrupt_when(
        lambda output: output.count("GPU1: ") >= 3, "monitor", "--simulate-gpus", "3", "--gpu", "1", *FAST
    )
    assert not re.search(r"GPU ?[02]", done.stdout)


def test_no_console_prints_nothing_and_every_number_is_in_files(watched_machine: Any) -> None:
    flags = ("--simulate-gpus", "1", *FAST, "--summary-interval", "0.5", "--no-console", "--duration", "2")
    done = watched_machine.run("monitor", *flags)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder, _ = watched_machine.only_run()
    assert list(RunReader(folder).rows("gpu"))


def test_a_gpu_that_was_asked_for_is_the_only_one_that_is_served(watched_machine: Any) -> None:
    port = free_port()
    flags = ("--simulate-gpus", "3", "--gpu", "1", *FAST, "--prometheus-port", str(port))
    process = watched_machine.start("monitor", *flags)

    def served() -> list[str]:
        try:
            page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        except OSError:
            return []
        return re.findall(r'^gpu_temperature_celsius{gpu="(\d+)"', page, re.MULTILINE)

    assert wait_until(served) == ["1"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)


def test_it_ends_by_itself_after_its_duration(watched_machine: Any) -> None:
    done = watched_machine.run("monitor", "--simulate-gpus", "1", *FAST, "--duration", "0.5s")
    assert done.returncode == 0, done.stderr
    assert watched_machine.only_run()[1]["status"] == "finished"


def test_a_service_manager_ends_it_with_the_table_and_success(watched_machine: Any) -> None:
    process = watched_machine.start("monitor", "--simulate-gpus", "2", *FAST)
    assert process.stdout.readline().startswith("GPU Monitor (simulated) - ")
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    assert "min / mean / max" in output
    assert watched_machine.only_run()[1]["status"] == "finished"


def test_without_a_gpu_it_says_why_and_shows_the_host(watched_machine: Any) -> None:
    empty = watched_machine.folder / "sys"
    empty.mkdir()
    line = re.compile(r"^System Monitor - CPU: \d+\.\d% \| memory: \d+\.\d% \(.*\) \| load: \d", re.MULTILINE)
    done = watched_machine.interrupt_when(
        lambda output: len(line.findall(output)) >= 2,
        *("monitor", *FAST),
        environ={"TRAINVITALS_SYSFS_ROOT": str(empty)},
    )
    assert done.returncode == 0
    assert done.stderr.count("no GPUs:") == 1
    assert "trainvitals doctor" in done.stderr
    assert re.search(r"CPU % +\d+ / \d+ / \d+", done.stdout)


def test_a_gpu_that_is_not_there_is_named(watched_machine: Any) -> None:
    empty = watched_machine.folder / "sys"
    empty.mkdir()
    done = watched_machine.interrupt_when(
        lambda output: "System Monitor" in output,
        *("monitor", "--simulate-gpus", "2", "--gpu", "99", *FAST),
        environ={"TRAINVITALS_SYSFS_ROOT": str(empty)},
    )
    assert "no GPUs: no GPU 99; available: 0, 1\n" in done.stderr


def test_of_several_gpus_those_that_are_not_there_are_said_once(watched_machine: Any) -> None:
    line = re.compile(r"^GPU Monitor \(simulated\) - GPU1: ", re.MULTILINE)
    done = watched_machine.interrupt_when(
        lambda output: len(line.findall(output)) >= 3, "monitor", "--simulate-gpus", "2", "--gpus", "1,8,SIM-x", *FAST
    )
    assert done.stderr.count("no GPUs 8, SIM-x; available: 0, 1\n") == 1


@pytest.mark.parametrize("text", ["abc", "0,1", ""])
def test_what_is_no_gpu_is_refused_by_the_flag_that_was_typed(machine: Any, text: str) -> None:
    done = machine.run("monitor", "--gpu", text)
    assert done.returncode == 2
    assert f"--gpu: '{text}' is not the index or UUID of a GPU, such as 0 or GPU-6f1c" in done.stderr
    assert "--gpus" not in done.stderr


def test_a_full_disk_is_told_with_the_file_and_the_flag_for_another_place(machine: Any, full_disk: Path) -> None:
    for flag, file in (("--log-dir", full_disk / "log" / "run.json"), ("--dir", full_disk / "log" / "monitor")):
        done = machine.run("monitor", flag, str(full_disk / "log"))
        assert done.returncode == 1
        assert f"cannot write {file}" in done.stderr and "No space left on device\n" in done.stderr
        assert f"choose another folder: {flag}" in done.stderr


def test_a_folder_that_cannot_be_made_is_told_with_the_flag_that_named_it(machine: Any) -> None:
    done = machine.run("monitor", "--log-dir", "/proc/x")
    assert done.returncode == 1
    assert "cannot create the run folder /proc/x: No such file or directory\n" in done.stderr
    assert done.stderr.endswith("\n  choose another folder: --log-dir\n")


@pytest.mark.parametrize("place", ["full", "/proc/nope"])
@pytest.mark.parametrize("command", [("monitor",), ("agent",), ("agent", "start", "--foreground")])
def test_a_runtime_folder_that_cannot_be_written_names_its_variable_and_leaves_no_run(
    machine: Any, full_disk: Path, command: tuple[str, ...], place: str
) -> None:
    folder = full_disk if place == "full" else place
    done = machine.run(*command, environ={"TRAINVITALS_RUNTIME_DIR": str(folder)})
    assert done.returncode == 1
    assert f"the runtime folder {folder}" in done.stderr and "set TRAINVITALS_RUNTIME_DIR" in done.stderr
    assert not machine.root.exists()


def test_a_look_too_short_to_be_sure_still_shows_the_host(watched_machine: Any) -> None:
    empty = watched_machine.folder / "sys"
    empty.mkdir()
    watched_machine.run("agent", "start")
    done = watched_machine.run(*("monitor", *FAST, "--duration", "2"), environ={"TRAINVITALS_SYSFS_ROOT": str(empty)})
    assert "no GPUs:" in done.stderr and "System Monitor - CPU" in done.stdout


def test_an_agent_that_was_slow_to_start_has_its_time_to_find_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    console = Console(resolve(environ={}, folder=tmp_path), quiet=False, table_seconds=0)
    console._began -= 60.0  # so long did its start take
    console.take("system", {"cpu_usage_percent": 5.0, "memory_usage_percent": 5.0})
    console.tick()
    assert capsys.readouterr() == ("", "")
    console.take("gpu", {"gpu_index": 0, "gpu_uuid": "GPU-0", "utilization_percent": 85.0, "memory_percent": 5.0})
    console.finish()
    shown = capsys.readouterr()
    assert "GPU Monitor - GPU0: 85.0%/5.0%" in shown.out and "no GPUs:" not in shown.err


def test_however_short_the_look_the_first_sample_is_waited_for(watched_machine: Any) -> None:
    done = watched_machine.run("monitor", *FAST, "--simulate-gpus", "1", "--duration", "0.001s")
    assert done.returncode == 0, done.stderr
    assert "min / mean / max" in done.stdout


def test_a_folder_that_another_monitor_writes_is_refused(watched_machine: Any) -> None:
    log = watched_machine.folder / "taken"
    process = watched_machine.start("monitor", "--simulate-gpus", "1", *FAST, "--log-dir", str(log))
    assert process.stdout.readline()
    done = watched_machine.run("monitor", "--simulate-gpus", "1", "--log-dir", str(log))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert done.returncode == 1
    assert "belongs to an active run" in done.stderr


def test_both_ways_to_name_gpus_at_once_are_a_usage_error(machine: Any) -> None:
    assert machine.run("monitor", "--gpu", "0", "--gpus", "0,1").returncode == 2


def test_numbers_of_a_driver_reach_the_console(watched_machine: Any, fake_nvml: Any) -> None:
    fake_nvml.script("count = 2\ngpu.*.util_gpu = 85\n")
    line = re.compile(r"^GPU Monitor - GPU0: 85\.0%/\d+\.\d% \| GPU1: 85\.0%/\d+\.\d%$", re.MULTILINE)
    # Only what leads to the driver: in the runtime folder of this process its agent would watch runs of later tests.
    environ = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    done = watched_machine.interrupt_when(line.search, "monitor", *FAST, environ=environ)
    assert done.returncode == 0
    assert "simulated" not in done.stdout.lower()


# -- the lines, without an agent


def lines_for(capsys: Any, *rows: dict[str, Any]) -> list[str]:
    console = Console(resolve(environ={}, folder=Path("/")), quiet=False, table_seconds=0)
    for row in rows:
        console.take("gpu", row)
    console.finish()
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("GPU Monitor - GPU")]


def test_the_line_is_utilisation_and_memory_of_each_gpu(capsys: Any) -> None:
    first = {"gpu_index": 0, "utilization_percent": 85.2, "memory_percent": 76.3}
    second = {"gpu_index": 1, "utilization_percent": 82.1, "memory_percent": 74.8}
    assert lines_for(capsys, second, first) == ["GPU Monitor - GPU0: 85.2%/76.3% | GPU1: 82.1%/74.8%"]


def test_a_missing_value_is_a_dash(capsys: Any) -> None:
    assert lines_for(capsys, {"gpu_index": 0, "memory_percent": 50.0}) == ["GPU Monitor - GPU0: -/50.0%"]


def test_a_lost_gpu_is_said_to_be_lost(capsys: Any) -> None:
    rows = ({"gpu_index": 0, "utilization_percent": 1.0}, {"gpu_index": 1, "state": "lost"})
    assert lines_for(capsys, *rows) == ["GPU Monitor - GPU0: 1.0%/- | GPU1: lost"]

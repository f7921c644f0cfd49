"""The agent as it runs: real agents, real trainings, real deaths."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from memory_groups import memory_group
from stopping_programs import stop_until_stalled
from waiting import PATIENCE, wait_until

from trainvitals import runtime
from trainvitals.agent import control
from trainvitals.agent.sealing import LEAST_SHARE
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout, registrations
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.journal.writer import MIB

LOG_SOME = "for step in range(5): run.log({'loss': 1 / (step + 1)}, step=step)\n"
READY = "print('ready', flush=True)\n"
WAIT = READY + "sys.stdin.readline()\n"
FOREVER = "while True: time.sleep(0.05); run.log({'loss': 1.0})\n"


# -- one agent


@pytest.mark.promise("ten agents start at once", "one stays")
def test_of_ten_agents_started_at_once_one_stays_and_nine_leave_without_a_word(machine: Any) -> None:
    agents = [machine.spawn([sys.executable, "-P", "-m", "trainvitals.agent"]) for _ in range(10)]
    wait_until(lambda: sum(agent.poll() is not None for agent in agents) == 9, "nine agents to leave")
    left = [agent for agent in agents if agent.poll() is not None]
    assert [agent.returncode for agent in left] == [0] * 9
    assert [agent.stdout.read() + agent.stderr.read() for agent in left] == [""] * 9
    (alive,) = (agent for agent in agents if agent.poll() is None)
    wait_until(lambda: (runtime.read_agent_file() or {}).get("pid") == alive.pid, "the one that stays to say so")
    wait_until(lambda: machine.log_lines(), "its log")
    assert sum(line["message"] == "agent started" for line in machine.log_lines()) == 1


def test_an_agent_without_runs_ends_when_its_time_is_up(machine: Any) -> None:
    # Not `start_agent`: on a busy machine it has come and gone before anybody sees it hold the lock.
    agent = machine.spawn([sys.executable, "-P", "-m", "trainvitals.agent"], TRAINVITALS_AGENT_IDLE_TIMEOUT="0.2")
    assert agent.wait(PATIENCE) == 0
    assert runtime.read_agent_file() is None
    messages = [line["message"] for line in machine.log_lines()]
    assert messages[0] == "agent started" and messages[-1] == "agent stopped"


def test_the_agent_stays_while_a_run_lives_and_for_its_idle_time_after_it(machine: Any) -> None:
    training = machine.train(LOG_SOME + WAIT, agent_idle_timeout=0.3)
    agent = machine.start_agent(TRAINVITALS_AGENT_IDLE_TIMEOUT="0")
    training.wait_until_ready()
    training.wait_for_event("rank_started")
    assert agent.poll() is None
    training.process.kill()
    training.wait_for_end()
    assert agent.wait(PATIENCE) == 0
    assert registrations.read_all() == []


def test_a_kept_agent_samples_without_any_run(machine: Any) -> None:
    machine.start_agent("--keep", TRAINVITALS_SIMULATE_GPUS="2", TRAINVITALS_INTERVAL="0.1")
    latest = wait_until(
        lambda: (
            (found := runtime.read_json(runtime.runtime_dir() / "latest.json") or {}).get("samples", {}).keys()
            >= {"system:host"}
            and sum(item["table"] == "gpu" for item in found["samples"].values()) == 2
            and found["sources"]["system:host"]["up"]
            and found
        ),
        "samples of two GPUs and the host",
    )
    gpu = next(item for item in latest["samples"].values() if item["table"] == "gpu")
    assert gpu["labels"]["simulated"] == 1 and "utilization_percent" in gpu["values"] and gpu["age"] >= 0
    assert latest["states"]["system"] == "ok"


def test_stop_ends_it_with_its_runs_told_and_left_running(machine: Any) -> None:
    training = machine.train(FOREVER)
    agent = machine.start_agent()
    training.wait_for_event("rank_started")
    found = control.status()
    assert found is not None and found[0].pid == agent.pid
    assert control.stop(PATIENCE) is True
    assert agent.wait(PATIENCE) == 0
    assert training.events("agent_detached") and training.process.poll() is None
    assert control.status() is None and control.stop() is False
    assert [item.run_id for _, item in registrations.read_all()] == [training.folder.name]


@pytest.mark.promise("a driver hangs when the agent ends", "the agent ends")
def test_a_hung_source_does_not_keep_it_from_ending(machine: Any, fake_nvml: Any) -> None:
    fake_nvml.script("count = 2\ndelay_us.nvmlDeviceGetUtilizationRates.1 = 600000000")
    env = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    agent = machine.start_agent("--keep", TRAINVITALS_INTERVAL="0.1", **env)
    wait_until(lambda: "gpu" in _tables(), "samples of the GPU that answers")
    hung = wait_until(
        lambda: [unit for unit in _sources().values() if "no response for" in unit.get("reason", "")],
        "a source that is known to hang",
    )
    assert hung[0]["up"] is False
    assert control.stop(PATIENCE) is True
    assert agent.wait(PATIENCE) == 0


def _sources() -> dict[str, Any]:
    return dict((runtime.read_json(runtime.runtime_dir() / "latest.json") or {}).get("sources", {}))


def _tables() -> set[str]:
    return {
        item["table"]
        for item in (runtime.read_json(runtime.runtime_dir() / "latest.json") or {}).get("samples", {}).values()
    }


def test_it_stays_small_for_nothing_large_is_ever_loaded(machine: Any) -> None:
    agent = machine.start_agent()
    training = machine.train(LOG_SOME + WAIT, simulate_gpus=2, interval=0.1, rotate_size_mb=0.001)
    wait_until(lambda: training.rows("gpu") and training.rows("process"), "samples")
    training.process.kill()
    training.wait_for_event("sealed")
    loaded = Path(f"/proc/{agent.pid}/maps").read_text()
    assert "orjson" in loaded  # so that what is not there would have been seen
    assert "numpy" not in loaded and "duckdb" not in loaded


# -- how runs end


ENDINGS: list[tuple[str, str, str, str | None]] = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed", "killed by SIGKILL (kill -9", "SIGKILL"),
    ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(600)", "killed", "killed by SIGTERM", "SIGTERM"),
    ("os.kill(os.getpid(), signal.SIGHUP); time.sleep(600)", "killed", "killed by SIGHUP", "SIGHUP"),
    ("os.kill(os.getpid(), signal.SIGSEGV); time.sleep(600)", "crashed", "killed by SIGSEGV", "SIGSEGV"),
    ("os.abort()", "crashed", "killed by SIGABRT", "SIGABRT"),
    ("sys.exit(3)", "failed", "exit code 3", None),
    ("os._exit(7)", "failed", "exit code 7", None),
    ("os._exit(0)", "finished", "", None),
    ("pass", "finished", "", None),
    ("run.finish()", "finished", "", None),
    ("raise ValueError('bad batch')", "failed", "ValueError: bad batch", None),
    ("raise KeyboardInterrupt", "killed", "interrupted (SIGINT, Ctrl-C)", None),
]


@pytest.mark.promise("any way a training ends", "the run's status and reason are right")
def test_every_end_of_a_training_is_told_as_it_was(machine: Any) -> None:
    machine.start_agent()
    trainings = [machine.train(LOG_SOME + WAIT + ending[0]) for ending in ENDINGS]
    for training in trainings:
        training.wait_until_ready()
        training.wait_for_event("rank_started")  # seen alive by the agent
    for training in trainings:
        training.go()
    for training, (ending, status, cause, signal_name) in zip(trainings, ENDINGS, strict=True):
        run = training.wait_for_end()
        assert (run["status"], ending) == (status, ending)
        assert run.get("cause") is None if not cause else cause in run["cause"], ending
        assert run.get("signal") == signal_name, ending
        assert "tentative" not in run and run["attempts"][-1]["status"] == status
        assert training.status["state"] == status
        assert training.status["ranks"]["0"]["alive"] is False and training.status["ranks"]["0"]["step"] == 4
        lost = training.events("rank_lost")
        assert bool(lost) == (status in ("killed", "crashed", "failed") and bool(signal_name or "exit code" in cause))
    wait_until(lambda: not registrations.read_all(), "the registrations to go")


def test_an_end_is_known_although_the_parent_has_buried_the_process_at_once(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER)
    training.wait_for_event("rank_started")
    training.process.kill()
    training.process.wait()  # no zombie is left to ask: the pidfd has to tell (Linux 6.15)
    run = training.wait_for_end()
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15):
        assert (run["status"], run["signal"]) == ("killed", "SIGKILL")
    else:
        assert run["status"] in ("killed", "crashed")


def test_a_run_finished_in_a_process_that_lives_on_is_let_go(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(LOG_SOME + "run.finish()\n" + READY + "time.sleep(600)")
    training.wait_until_ready()
    assert training.wait_for_end()["status"] == "finished"
    wait_until(lambda: not registrations.read_all(), "the registration to go")
    assert training.process.poll() is None


@pytest.mark.promise("the kernel kills a training for memory", "the reason is `out_of_memory`")
def test_a_process_killed_at_its_memory_limit_is_out_of_memory(machine: Any) -> None:
    machine.start_agent()
    with memory_group(96 << 20) as group:
        join = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
        hoarding = "hoard = []\nwhile True: hoard.append(bytearray(8 << 20))"
        training = machine.train(LOG_SOME + WAIT + hoarding, before=join)
        training.wait_until_ready()
        training.wait_for_event("rank_started")
        training.go()
        run = training.wait_for_end()
    assert run["status"] == "killed" and run["cause"].startswith("out of memory: killed by the kernel (OOM)")
    assert training.events("rank_lost")[0]["message"].startswith("rank 0 died: out of memory")


def test_ranks_of_one_run_share_a_watch_and_the_first_to_die_tells_why(machine: Any) -> None:
    machine.start_agent()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [machine.train(FOREVER, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    first = ranks[0]
    assert first.folder == ranks[1].folder
    first.wait_for_event("rank_started", count=2)
    ranks[1].process.send_signal(signal.SIGSEGV)
    lost = first.wait_for_event("rank_lost")
    assert lost["rank"] == 1 and lost["severity"] == "critical" and lost["data"]["signal"] == "SIGSEGV"
    assert first.run["status"] == "running"
    ranks[0].process.terminate()
    run = first.wait_for_end()
    assert run["status"] == "crashed" and run["cause"].startswith("rank 1: killed by SIGSEGV")
    assert {key: item["state"] for key, item in first.status["ranks"].items()} == {
        "0": "killed",
        "1": "crashed",
    }


@pytest.mark.parametrize("last_ends", [lambda rank: rank.process.terminate(), lambda rank: rank.go()])
def test_the_first_rank_that_raises_tells_why_however_the_others_end(machine: Any, last_ends: Any) -> None:
    machine.start_agent()
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    script = "input()\nraise RuntimeError(f'{run.rank} is bad')"
    ranks = [machine.train(script, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
    ranks[0].wait_for_event("rank_started", count=2)
    ranks[1].go()
    lost = ranks[0].wait_for_event("rank_lost")
    assert (lost["rank"], lost["message"]) == (1, "rank 1 died: RuntimeError: 1 is bad")
    last_ends(ranks[0])
    run = ranks[0].wait_for_end()
    assert (run["status"], run["cause"]) == ("failed", "rank 1: RuntimeError: 1 is bad")
    assert run["attempts"][-1]["cause"] == run["cause"] == ranks[0].status["cause"]
    assert ranks[0].events("run_ended")[0]["message"] == f"the run is failed: {run['cause']}"


def test_a_monitor_that_is_killed_ends_its_run(machine: Any) -> None:
    machine.start_agent()
    folder = machine.root / "p" / "watch"
    process = machine.spawn([sys.executable, "-c", REGISTER, str(folder)])
    assert process.stdout.readline().strip() == "ready"
    run = machine.open(process, folder)
    assert run.wait_for_event("rank_started")["message"].startswith("the monitor is process")
    wait_until(lambda: run.rows("system"), "a line about the machine")
    process.terminate()
    assert run.wait_for_end()["status"] == "killed"
    assert set(run.status["ranks"]) == {"monitor0"} and not run.events("stalled")


REGISTER = """
import os, sys, time
from pathlib import Path
from trainvitals import runtime
from trainvitals.journal import folder, registrations
from trainvitals.journal.documents.registration import new_registration
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.identity import Participant
place = Path(sys.argv[1])
place.mkdir(parents=True)
folder.write_run(place, RunFile.parse({"id": place.name, "status": "running", "attempt": 1}))
registrations.register(new_registration(place, os.getpid(), kind="monitor", settings={"stall_after": 1}))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_rank_whose_run_is_led_elsewhere_writes_files_of_its_host_and_leaves_run_json_alone(machine: Any) -> None:
    machine.start_agent()
    elsewhere = {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "1",
    }
    training = machine.train(FOREVER, env={**elsewhere, "RANK": "1", "LOCAL_RANK": "0"}, interval=0.2)
    token = layout.host_token(runtime.host_name())
    status = training.folder / f"status.host-{token}.json"
    wait_until(lambda: (runtime.read_json(status) or {}).get("summary", {}).get("loss"), "its status")
    wait_until(lambda: list(training.folder.glob(f"system_metrics_*.host-{token}.jsonl")), "its files")
    training.process.kill()
    training.wait_for_event("run_ended")
    assert training.events("rank_lost")[0]["rank"] == 1
    assert not (training.folder / "run.json").exists() and not (training.folder / "status.json").exists()


def test_workers_of_one_run_that_nobody_numbered_are_watched_one_by_one(machine: Any) -> None:
    machine.start_agent()
    first = machine.train(FOREVER, role="worker", interval=0.2)
    second = machine.train(LOG_SOME + WAIT, role="worker", env={"TRAINVITALS_RUN_DIR": str(first.folder)})
    assert second.folder == first.folder
    second.wait_until_ready()
    both = {Participant("worker", 0), Participant("worker", 1)}

    def watched() -> bool:
        (status,) = RunReader(first.folder).statuses() or [Status()]
        return status.participants().keys() == both and all(rank.lines for rank in status.participants().values())

    wait_until(watched, "the lines of both")
    wait_until(lambda: {row.get("rank") for row in first.rows("process") if row.get("role")} == {0, 1}, "processes")
    second.process.kill()
    first.wait_for_event("rank_lost")
    assert first.run["status"] == "running" and not first.events("rank_replaced")
    first.process.send_signal(signal.SIGTERM)
    end = first.wait_for_end()
    assert end["status"] == "killed" and end["cause"].startswith("worker 1: killed by SIGKILL")
    assert {(row["role"], row["rank"]) for row in first.events("rank_started")} == {("worker", 0), ("worker", 1)}


def test_a_registration_that_a_cleaner_took_is_restored_while_the_training_lives(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER)
    training.wait_for_event("rank_started")
    for path in (machine.runtime / "runs").iterdir():
        path.unlink(missing_ok=True)  # it may be written anew just now
    wait_until(registrations.read_all, "the registration to be there again")
    assert len(training.events("rank_started")) == 1 and training.run["status"] == "running"
    training.process.kill()
    assert training.wait_for_end()["status"] == "killed"


@pytest.mark.promise("a run ends while the disk is full", "its end is written when space is available")
def test_an_end_that_finds_no_room_is_written_when_there_is_some(machine: Any, small_disk: Path) -> None:
    agent = machine.start_agent()
    training = machine.train(LOG_SOME + WAIT, env={"TRAINVITALS_DIR": str(small_disk)})
    training.wait_until_ready()
    training.wait_for_event("rank_started")
    ballast = small_disk / "ballast"

    def stop_between_two_files() -> bool:
        """One that takes the place of another would leave room for the end."""
        agent.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(agent.pid).status() == psutil.STATUS_STOPPED, "the agent to stop")
        if not list(training.folder.rglob("*.tmp")):
            return True
        agent.send_signal(signal.SIGCONT)
        return False

    wait_until(stop_between_two_files, "an agent that writes no file")
    with pytest.raises(OSError, match="No space left"), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
    training.process.kill()
    agent.send_signal(signal.SIGCONT)
    complaint = "cannot write the end of the run"
    wait_until(lambda: complaint in [line["message"] for line in machine.log_lines()], "a complaint")
    ballast.unlink()
    run = training.wait_for_end()
    assert run["status"] == "killed" and training.status["summary"]["loss"]["count"] == 5
    assert [line["message"] for line in machine.log_lines()].count(complaint) == 1


@pytest.mark.promise("one run is on a read-only disk", "other runs continue; the log is not flooded")
def test_a_run_on_a_read_only_disk_harms_no_other_and_floods_no_log(machine: Any, small_disk: Path) -> None:
    folder = small_disk / "archived"
    folder.mkdir()
    run_folder.write_run(folder, RunFile.parse({"id": "archived", "status": "running", "attempt": 1}))
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    process = machine.spawn([sys.executable, "-c", "import sys; sys.stdin.read()"])
    registrations.register(
        Registration(
            run_id="archived",
            folder=str(folder),
            rank=0,
            pid=process.pid,
            pid_start=runtime.process_start(process.pid),
            host=runtime.host_name(),
            settings={"interval": 0.05, "simulate_gpus": 1},
        )
    )
    machine.start_agent()
    other = machine.train(FOREVER, simulate_gpus=1, interval=0.05)
    wait_until(lambda: len(other.rows("gpu")) > 20, "lines of the other run")
    process.kill()
    process.wait()
    count = len(other.rows("gpu"))
    wait_until(lambda: len(other.rows("gpu")) > count + 20, "more of them")
    of_run = [line for line in machine.log_lines() if line.get("run_id") == "archived"]
    assert 0 < len(of_run) < 12 and not any("traceback" in line for line in of_run)
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    wait_until(
        lambda: (runtime.read_json(folder / "run.json") or {}).get("status") != "running", "the end, written at last"
    )


@pytest.mark.promise("no room for the agent's files", "runs are still watched")
def test_an_agent_without_room_for_its_own_files_watches_all_the_same(machine: Any, small_disk: Path) -> None:
    machine.runtime = small_disk
    training = machine.train(FOREVER, simulate_gpus=1, interval=0.1)
    try:
        (small_disk / "filler").write_bytes(b"0" * (1 << 20))
    except OSError as error:
        assert error.errno == errno.ENOSPC
    agent = machine.spawn([sys.executable, "-P", "-m", "trainvitals.agent"])
    wait_until(lambda: len(training.rows("gpu")) > 3, "lines of the GPU")
    assert agent.poll() is None and not (small_disk / "latest.json").exists()
    (small_disk / "filler").unlink()
    wait_until(lambda: (small_disk / "latest.json").exists(), "the newest samples, when there is room")


@pytest.fixture
def small_disk(tmp_path: Path, machine: Any) -> Any:
    """A file system of its own with little room."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True).returncode:
        message = "no right to mount a file system here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    yield place
    machine.end()
    subprocess.run(["umount", "-l", place], check=True)


# -- stalls


@pytest.mark.promise("the training is stopped and continued", "stalled, hung, recovered")
def test_a_stopped_training_is_stalled_then_hung_and_recovers(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER, stall_after=1)
    training.wait_for_event("rank_started")
    _wait_for_steps(training)
    stalled = stop_until_stalled(training.process, training.folder)
    assert stalled["rank"] == 0 and stalled["severity"] == "warning"
    assert "is stopped" in stalled["message"]
    assert "stacks" not in stalled["data"]
    # On a busy machine it may have been silent before: that was another one, and over.
    (hung,) = wait_until(
        lambda: [row for row in training.events("hung") if row["data"]["process_state"] == "stopped"], "the hang"
    )
    assert hung["severity"] == "critical"
    wait_until(lambda: training.status["state"] == "hung", "the status to say so")
    training.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "hung" in [row["data"]["was"] for row in training.events("recovered")], "the recovery")
    training.process.kill()
    assert training.wait_for_end()["status"] == "killed"


def test_a_stuck_training_shows_the_stack_of_every_thread_and_goes_on(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(
        """
        def wait_for_a_batch_that_never_comes(event):
            event.wait()
        stuck = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.readline(), stuck.set()), daemon=True).start()
        for step in range(20): run.log({'loss': 1.0}); time.sleep(0.02)
        wait_for_a_batch_that_never_comes(stuck)
        while True: run.log({'loss': 1.0}); time.sleep(0.02)
        """,
        stall_after=1,
    )
    # On a busy machine it may have been silent for a second before it got stuck.
    stuck = "wait_for_a_batch_that_never_comes"
    (stalled,) = wait_until(
        lambda: [row for row in training.events("stalled") if stuck in str(row["data"].get("main_thread"))], "the stall"
    )
    stacks = (training.folder / stalled["data"]["stacks"]).read_text()
    assert stuck in stacks and stacks.count("Thread") + stacks.count("thread") >= 2
    assert stalled["data"]["process_state"] == "sleeping"
    before = len(training.events("recovered"))
    training.go()
    training.wait_for_event("recovered", before + 1)
    assert training.process.poll() is None


def test_a_dead_training_that_had_stalled_says_so(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER, stall_after=1)
    training.wait_for_event("rank_started")
    _wait_for_steps(training)
    stop_until_stalled(training.process, training.folder)
    training.process.kill()
    # A test that is delayed kills one that hangs by now.
    assert re.search("was (stalled|hung) before", training.wait_for_end()["cause"])


def _wait_for_steps(training: Any, steps: int = 5) -> None:
    wait_until(lambda: (training.status.get("ranks", {}).get("0", {}).get("step") or 0) >= steps, f"{steps} steps")


# -- an agent that dies


@pytest.mark.promise("`kill -9` of the agent, twenty times", "no row is lost or repeated")
def test_an_agent_killed_twenty_times_loses_and_repeats_nothing(machine: Any) -> None:
    training = machine.train(
        """
        step = 0
        while not os.path.exists(os.environ["TRAINVITALS_DIR"] + "/enough"):
            run.log({"loss": float("nan") if step % 7 == 0 else 1 / (step + 1), "up": step}, step=step)
            step += 1
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        rotate_size_mb=0.03,
    )
    chance = random.Random(20)
    for number in range(20):
        attached = len(training.events("agent_attached"))
        agent = machine.start_agent()
        if number % 5 == 0:  # on a busy machine each of them might be killed before it has seen the run
            wait_until(lambda attached=attached: len(training.events("agent_attached")) > attached, "its attachment")
        time.sleep(chance.uniform(0, 0.8))
        agent.kill()
        agent.wait()
    attached = len(training.events("agent_attached"))
    machine.start_agent()
    wait_until(lambda: len(training.events("agent_attached")) > attached, "an agent that sees it die")
    (machine.root / "enough").touch()
    run = training.wait_for_end()
    assert run["status"] == "killed"
    assert len(training.events("rank_started")) == 1 and len(training.events("run_ended")) == 1
    assert 1 < len(training.events("agent_attached")) <= 21
    steps = [row["step"] for row in training.rows("training")]
    assert steps == list(range(len(steps))) and len(steps) > 100
    truth = RunReader(training.folder).summary()
    found = training.status["summary"]
    for name in ("loss", "up"):
        item = truth[name]
        assert found[name]["count"] == item.count == len(steps)
        assert (found[name]["low"], found[name]["low_step"]) == (item.low, item.low_step)
        assert (found[name]["high"], found[name]["high_step"]) == (item.high, item.high_step)
        assert found[name]["nonfinite"] == item.nonfinite and found[name]["last_step"] == item.last_step
    assert training.status["damage"] == {"torn": 0, "foreign": 0}


def _list_unsealed(training: Any, rotate_size_mb: float = 0.05) -> list[Path]:
    """Files with lines that are large enough to be sealed."""
    least = LEAST_SHARE * rotate_size_mb * MIB
    return [path for path in training.folder.glob("*_metrics_*.jsonl") if path.stat().st_size >= least]


@pytest.mark.promise("the sealing process is killed", "it is retried; one log line")
def test_a_killed_sealer_is_tried_again_and_told_once(machine: Any) -> None:
    agent = machine.start_agent()
    training = machine.train(
        """
        step = 0
        while not os.path.exists(os.environ["TRAINVITALS_DIR"] + "/enough"):
            run.log({"loss": 1.0, "up": step}, step=step)
            step += 1
            time.sleep(0.001)  # a file is closed once a second at most
        """,
        rotate_size_mb=0.05,
    )
    kills = 0

    def kill_sealers() -> bool:
        nonlocal kills
        for process in psutil.Process(agent.pid).children():
            with contextlib.suppress(psutil.Error):
                if "trainvitals.agent.sealing" in process.cmdline():
                    process.kill()
                    kills += 1
        return kills >= 2 and bool(training.events("sealing_failed"))  # else they were done when they were killed

    wait_until(kill_sealers, "two sealers to kill")
    (machine.root / "enough").touch()
    training.wait_for_end()
    wait_until(lambda: not _list_unsealed(training), "everything to be sealed")
    steps = [row["step"] for row in training.rows("training")]
    assert steps == list(range(len(steps))) and len(steps) == training.status["summary"]["loss"]["count"]
    failed = [event["data"]["file"] for event in training.events("sealing_failed")]
    assert len(failed) == len(set(failed))


@pytest.mark.promise("a cleaner removes the files in the temp folder", "the agent stays the only one")
def test_an_agent_whose_files_a_cleaner_removed_stays_the_only_one(machine: Any) -> None:
    first = machine.start_agent()
    training = machine.train(FOREVER)
    training.wait_for_event("rank_started")
    for name in ("agent.lock", "agent.json", "runs"):
        # At once: a folder into which the agent writes meanwhile cannot be removed file by file.
        (machine.runtime / name).rename(machine.runtime.parent / f"removed-{name}")
    wait_until(lambda: (runtime.read_agent_file() or {}).get("pid") == first.pid, "the lock to be taken again")
    wait_until(lambda: list((machine.runtime / "runs").glob("*.json")), "the registration to be written again")
    second = machine.spawn([sys.executable, "-P", "-m", "trainvitals.agent"])
    assert second.wait() == 0 and first.poll() is None
    assert len(training.events("agent_attached")) == 1


@pytest.mark.promise("two agents after a cleaner", "only one stays")
def test_of_two_agents_after_a_cleaner_only_one_stays(machine: Any) -> None:
    first = machine.start_agent()
    training = machine.train(FOREVER)
    training.wait_for_event("rank_started")
    first.send_signal(signal.SIGSTOP)
    (machine.runtime / "agent.lock").unlink()
    second = machine.start_agent()
    wait_until(lambda: len(training.events("agent_attached")) == 2, "the second agent to watch the run")
    first.send_signal(signal.SIGCONT)
    assert first.wait() == 0 and second.poll() is None
    assert (runtime.read_agent_file() or {}).get("pid") == second.pid
    training.process.kill()
    training.wait_for_end()
    assert len(training.events("run_ended")) == 1
    assert machine.log_lines()[-1]["pid"] == second.pid or any(
        line.get("reason") == "replaced by another agent" for line in machine.log_lines()
    )


def test_systemds_cleaner_passes_over_the_runtime_folder(machine: Any) -> None:
    """It removes what is old, unless it finds the folder locked."""
    machine.start_agent()
    unguarded = machine.runtime.parent / "unguarded"
    unguarded.mkdir()
    for place in (machine.runtime, unguarded):
        (place / "old").touch()
        os.utime(place / "old", (0, 0))
    rule = machine.runtime.parent / "clean.conf"
    rule.write_text(f"d {machine.runtime.parent} - - - 1s\n")

    def clean() -> bool:
        subprocess.run(["systemd-tmpfiles", "--clean", str(rule)], check=True)
        return not (unguarded / "old").exists()

    wait_until(clean, "the cleaner to find something old enough")
    assert (machine.runtime / "old").exists()


@pytest.mark.promise("training and agent die together", "the next agent reports that the run was unwatched")
def test_a_death_that_no_agent_saw_is_told_as_such(machine: Any) -> None:
    training = machine.train(LOG_SOME + READY + "time.sleep(600)")
    training.wait_until_ready()
    training.process.kill()
    training.process.wait()
    machine.start_agent()
    run = training.wait_for_end()
    assert run["status"] == "crashed" and run["cause"] == "the process ended while no agent was watching"
    assert training.status["summary"]["loss"]["count"] == 5


def test_a_tentative_end_that_no_agent_saw_stands(machine: Any) -> None:
    training = machine.train(LOG_SOME)
    assert training.process.wait() == 0 and training.run["tentative"] is True
    machine.start_agent()
    run = training.wait_for_end()
    assert run["status"] == "finished" and "tentative" not in run and "cause" not in run


# -- what it writes


def test_samples_come_without_drift_and_none_twice(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER, simulate_gpus=2, gpu_interval=0.05, sources=["simulated", "system"])
    wait_until(lambda: len(training.rows("gpu")) > 120, "120 lines")
    training.process.kill()
    training.wait_for_end()
    for index in (0, 1):
        times = [_seconds(row["timestamp"]) for row in training.rows("gpu") if row["gpu_index"] == index]
        assert times == sorted(set(times))
        # Each reading has a slot of its own on a fixed grid, so none drifts into the next one's: over the whole
        # stretch there can be no more lines than slots, and the slots left out were skipped, not shifted.
        slots = (times[-1] - times[1]) / 0.05
        assert len(times) - 2 <= slots + 1
    assert {row["host"] for row in training.rows("gpu")} == {runtime.host_name()}
    assert not training.rows("process")


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


def test_two_runs_get_what_each_asked_for(machine: Any) -> None:
    machine.start_agent()
    fast = machine.train(FOREVER, simulate_gpus=3, interval=0.1)
    slow = machine.train(FOREVER, simulate_gpus=2, interval=0.5, gpus=[1])
    plain = machine.train(FOREVER, sources=["system"])
    wait_until(lambda: len(slow.rows("gpu")) >= 4 and plain.rows("system"), "lines in both runs")
    wait_until(lambda: {row["gpu_index"] for row in fast.rows("gpu")} == {0, 1, 2}, "lines of all its GPUs")
    assert {row["gpu_index"] for row in slow.rows("gpu")} == {1}
    assert not plain.rows("gpu") and not plain.rows("process")
    wait_until(
        lambda: len([row for row in fast.rows("gpu") if row["gpu_index"] == 1]) > len(slow.rows("gpu")),
        "more lines in the run that asked for more",
    )
    wait_until(lambda: fast.rows("process"), "lines about the process")
    assert {row["pid"] for row in fast.rows("process")} == {fast.process.pid}


def test_a_gpu_line_has_the_fixed_names_and_the_status_its_use(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER, simulate_gpus=1, interval=0.1)
    wait_until(lambda: len(training.rows("gpu")) > 5, "lines")
    training.process.kill()
    training.wait_for_end()
    row = training.rows("gpu")[-1]
    assert set(row) >= {
        *(
            "timestamp",
            "gpu_index",
            "gpu_uuid",
            "host",
            "utilization_percent",
            "memory_used_mb",
            "memory_total_mb",
        ),
        *("memory_percent", "temperature_celsius", "power_draw_watts", "fan_speed_percent", "energy_joules"),
    }
    (use,) = training.status["gpu_summary"].values()
    readings = [row["utilization_percent"] for row in training.rows("gpu")]
    assert use["utilization_percent_mean"] == pytest.approx(sum(readings) / len(readings))
    assert use["utilization_percent_max"] == max(readings)
    energy = [row["energy_joules"] for row in training.rows("gpu")]
    assert use["energy_used_joules"] == pytest.approx(energy[-1] - energy[0])
    assert training.status["hardware"]["simulated"] == {"simulated_gpus": 1}


def test_the_gpus_a_training_may_use_are_named_by_uuid(machine: Any, fake_nvml: Any) -> None:
    fake_nvml.script("count = 4")
    env = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    machine.start_agent(**env)
    training = machine.train(FOREVER, env={"CUDA_VISIBLE_DEVICES": "2,0"}, interval=0.2)
    wait_until(lambda: len({row["gpu_index"] for row in training.rows("gpu")}) == 4, "lines of four GPUs")
    uuids = {row["gpu_index"]: row["gpu_uuid"] for row in training.rows("gpu")}
    visible = wait_until(lambda: training.status.get("visible_gpus"), "the GPUs in status.json")
    assert visible == [uuids[2], uuids[0]]


def test_what_is_read_seldom_stays_in_the_latest_sample_and_is_never_repeated_in_the_journal(
    machine: Any, fake_nvml: Any
) -> None:
    fake_nvml.script("count = 1\ngpu.0.procs = C:1:1Gi:40")
    env = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    machine.start_agent(**env)
    training = machine.train(FOREVER, gpu_interval=0.1)

    def latest() -> dict[str, Any]:
        samples = (runtime.read_json(runtime.runtime_dir() / "latest.json") or {}).get("samples", {}).values()
        return next((item for item in samples if item["table"] == "gpu"), {"values": {}, "time": None})

    wait_until(lambda: "process_count" in latest()["values"], "a count of processes")
    wait_until(lambda: any("process_count" in row for row in training.rows("gpu")), "a line with the count")

    def is_kept() -> bool:
        """Whether the latest sample has a count that was not read with it: the driver is asked every two seconds."""
        sample = latest()
        lines = {row["timestamp"]: row for row in training.rows("gpu")}
        return sample["values"].get("process_count") == 1 and "process_count" not in lines.get(
            sample["time"], {"process_count": 1}
        )

    wait_until(is_kept, "a sample with the count whose line is without it")


def test_gpu_memory_is_told_of_the_rank_whose_tree_holds_it(machine: Any, fake_nvml: Any) -> None:
    env = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    machine.start_agent(**env)
    worker = "import subprocess; worker = subprocess.Popen(['sleep', '600']); print(worker.pid, flush=True)\n"
    training = machine.train(worker + FOREVER, interval=0.2)
    child = int(training.process.stdout.readline())
    other = machine.train(FOREVER, interval=0.2)

    mine, stranger = training.process.pid, os.getpid()
    fake_nvml.script(
        f"count = 2\ngpu.0.procs = C:{mine}:2Gi:40;C:{stranger}:8Gi:10\ngpu.1.procs = C:{mine}:1Gi:25;C:{child}:512Mi:5"
    )
    # The script may change between two questions of one reading.
    wait_until(
        lambda: (
            (3584, 70) in [(row.get("gpu_memory_mb"), row.get("gpu_sm_percent")) for row in training.rows("process")]
        ),
        "the sums",
    )
    wait_until(lambda: len(other.rows("process")) > 3, "lines of the other run")
    assert not any("gpu_memory_mb" in row for row in other.rows("process"))
    wait_until(lambda: len(training.status.get("held_gpus", ())) == 2, "both GPUs to be the run's")
    assert "held_gpus" not in other.status
    wait_until(lambda: len(training.status["ranks"]["0"].get("gpus", ())) == 2, "the GPUs of the rank")
    assert "gpus" not in other.status["ranks"]["0"]

    fake_nvml.script(f"count = 2\ngpu.0.procs = C:{mine}:na:41")  # as on Windows
    wait_until(
        lambda: [
            row for row in training.rows("process") if row.get("gpu_sm_percent") == 41 and "gpu_memory_mb" not in row
        ],
        "a share without memory",
    )


@pytest.mark.promise("one GPU hangs", "the others are sampled; an event is written")
def test_a_hung_gpu_leaves_the_others_going_and_is_an_event(machine: Any, fake_nvml: Any) -> None:
    fake_nvml.script("count = 3")
    env = {key: value for key, value in fake_nvml.env().items() if key.startswith(("LD_", "FAKE_"))}
    machine.start_agent(**env)
    training = machine.train(FOREVER, gpu_interval=0.1)
    wait_until(lambda: len({row["gpu_index"] for row in training.rows("gpu")}) == 3, "lines of three GPUs")
    fake_nvml.script("count = 3\ndelay_us.nvmlDeviceGetUtilizationRates.1 = 4000000")
    (hung,) = {row["gpu_uuid"] for row in training.rows("gpu") if row["gpu_index"] == 1}
    # On a busy machine others may have been slow, too, before or after.
    wait_until(
        lambda: [
            row
            for row in training.events("source_trouble")
            if row["data"]["unit"] == f"nvidia:{hung}" and "has not responded" in row["message"]
        ],
        "the GPU that hangs",
    )
    count = len(training.rows("gpu"))
    wait_until(
        lambda: {0, 2} <= {row["gpu_index"] for row in training.rows("gpu")[count + 20 :]}, "lines of the others"
    )
    wait_until(
        lambda: [row for row in training.rows("gpu") if row["gpu_index"] == 1 and row.get("late_seconds", 0) > 3],
        "a late line",
    )
    fake_nvml.script("count = 3")
    training.wait_for_event("source_recovered")


def test_the_health_of_each_source_is_in_the_run(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(FOREVER, simulate_gpus=1, interval=0.2)
    rows = wait_until(
        lambda: [row for row in training.rows("source") if row["source"] == "simulated" and row["source_up"] == 1],
        "a line about a source",
    )
    assert rows[0]["source_errors_total"] == 0
    assert rows[0]["source_duration_seconds"] >= 0 and rows[0]["source_age_seconds"] >= 0


def test_rotated_files_are_sealed_while_the_run_lives_and_the_last_ones_after(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(
        """
        for step in range(3000): run.log({"loss": 1 / (step + 1)}, step=step); time.sleep(0.001)
        print("ready", flush=True)
        sys.stdin.readline()
        """,
        simulate_gpus=1,
        interval=0.2,
        rotate_size_mb=0.05,
    )
    training.wait_until_ready()
    segments = training.folder / layout.SEGMENTS
    wait_until(lambda: list(segments.glob("training_*[0-9].parquet")), "a segment of the living run")
    assert training.process.poll() is None
    sealed = training.wait_for_event("sealed")
    assert sealed["data"]["lines"] > 0 and not (training.folder / sealed["data"]["file"]).exists()
    training.process.kill()
    training.wait_for_end()
    wait_until(lambda: not _list_unsealed(training), "all files to be sealed")
    assert [row["step"] for row in training.rows("training")] == list(range(3000))
    assert training.status["summary"]["loss"]["count"] == 3000
    assert training.rows("gpu") and training.events("run_ended")


def test_sealed_files_are_kept_where_the_setting_says_so(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(
        "for step in range(100): run.log({'loss': 1.0}, step=step)\nrun.finish()",
        rotate_size_mb=0.02,  # a quarter of it is logged
        keep_jsonl=True,
    )
    training.wait_for_end()
    wait_until(lambda: list((training.folder / layout.SEGMENTS).glob("training_*.parquet")), "a segment")
    assert len(list(training.folder.glob("training_*.jsonl"))) == 1
    assert len(training.rows("training")) == 100


def test_a_small_ended_run_stays_as_it_is(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(LOG_SOME)
    training.wait_for_end()
    wait_until(lambda: not registrations.read_all(), "the registration to go")
    assert list(training.folder.glob("training_*.jsonl")) and not (training.folder / layout.SEGMENTS).exists()


def test_every_event_and_log_line_has_the_correlation_id(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(LOG_SOME, env={"TRAINVITALS_CORRELATION_ID": "0af7651916cd43dd8448eb211c80319c"})
    training.wait_for_end()
    assert {row["correlation_id"] for row in training.events()} == {"0af7651916cd43dd8448eb211c80319c"}
    lines = machine.log_lines()
    assert all(line["correlation_id"] and line["timestamp"] and line["level"] for line in lines)
    of_run = [line for line in lines if line.get("run_id") == training.folder.name]
    assert of_run and {line["correlation_id"] for line in of_run} == {"0af7651916cd43dd8448eb211c80319c"}


def test_a_folder_that_vanishes_ends_the_watch_with_one_word(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(LOG_SOME + READY + "time.sleep(600)")
    training.wait_for_event("rank_started")
    # All at once: what the agent writes meanwhile would keep a folder from being removed file by file.
    training.folder.rename(machine.root / "moved")
    shutil.rmtree(machine.root / "moved")
    wait_until(lambda: not registrations.read_all(), "the registration to go")
    told = [line for line in machine.log_lines() if "folder was removed" in line["message"]]
    assert len(told) == 1 and told[0]["run_id"] == training.folder.name
    assert training.process.poll() is None and not training.folder.exists()


def test_torn_and_foreign_lines_are_counted_and_told(machine: Any) -> None:
    machine.start_agent()
    training = machine.train(LOG_SOME + READY + "time.sleep(600)")
    training.wait_until_ready()
    (journal,) = training.folder.glob("training_*.jsonl")
    with open(journal, "ab") as file:
        file.write(b'{"timestamp":"2026-01-01T00:00:00Z","loss"\n[1, 2]\n')
    training.process.kill()
    training.wait_for_end()
    assert training.status["damage"] == {"torn": 1, "foreign": 1}
    assert training.events("damage")[0]["data"] == {"torn": 1, "foreign": 1}


def test_a_resumed_run_is_watched_as_another_attempt(machine: Any) -> None:
    machine.start_agent()
    first = machine.train(FOREVER)
    first.wait_for_event("rank_started")
    _wait_for_steps(first)
    first.process.kill()
    first.wait_for_end()
    count = first.status["summary"]["loss"]["count"]
    second = machine.train(LOG_SOME + "sys.exit(4)", resume=first.folder.name)
    assert second.folder == first.folder
    second.wait_for_event("run_ended", count=2)
    assert [attempt["status"] for attempt in second.run["attempts"]] == ["killed", "failed"]
    # The event comes first.
    wait_until(lambda: (second.status.get("attempt"), second.status.get("state")) == (2, "failed"), "its status")
    assert second.status["summary"]["loss"]["count"] == count + 5


def test_a_command_is_watched_and_joined_by_the_training_in_it(machine: Any) -> None:
    machine.start_agent()
    script = "import trainvitals\nrun = trainvitals.init()\nfor _ in range(5): run.log({'loss': 1.0})\nexit(5)"
    wrapper = machine.spawn(
        [sys.executable, "-m", "trainvitals", "run", "--project", "p", "--", sys.executable, "-c", script],
        TRAINVITALS_AGENT="1",
    )
    wrapper.communicate(timeout=PATIENCE)
    assert wrapper.returncode == 5
    (folder,) = (machine.root / "p").iterdir()
    training = machine.open(wrapper, folder)
    run = training.wait_for_end()
    assert run["status"] == "failed" and run["exit_code"] == 5
    assert {row["data"]["kind"] for row in training.events("rank_started")} == {"command", "training"}
    assert training.status["summary"]["loss"]["count"] == 5

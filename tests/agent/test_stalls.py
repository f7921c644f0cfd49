"""Runs that stop stepping: who is named, how soon, and that a healthy program is never touched."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import free_port, wait_until

import trainvitals
from trainvitals.conditions import Conditions
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.diagnosis import describe_diagnosis

STEPS = "for step in range(20): run.log({'loss': 1.0}); time.sleep(0.02)\n"
LIBC = "import ctypes; libc = ctypes.CDLL(None, use_errno=True)"
POLL_AND_SLEEP = """
def poll(): answers.append(libc.poll(None, 0, 1000 * seconds))
def log_steps():
    for step in range(20): run.log({'loss': 1.0}); time.sleep(0.02)
while not os.path.exists(GO): log_steps()
seconds = 7
while True:
    log_steps()
    answers = []
    beside = threading.Thread(target=poll)
    beside.start()
    print("sleep", libc.sleep(seconds))
    beside.join()
    print("poll", *answers, flush=True)
    seconds *= 3  # steps that came slowly, or this pause, may have made a longer one usual
"""
STUCK = STEPS + "libc.poll(None, 0, 600_000)\ntime.sleep(600)\n"


def hide_py_spy(folder: Path) -> tuple[list[str], dict[str, str]]:
    """An interpreter without py-spy beside it, and the environment in which it finds everything else."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(Path(sys.executable).resolve())
    # An environment may be laid over another one, whose packages are further places; an editable installation is found
    # by a file in them, which is not read there.
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    installed = str(Path(trainvitals.__file__).parents[1])
    places = [*filter(None, [os.environ.get("PYTHONPATH")]), installed, *packages]
    return [str(python)], {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(places)}


def start_agent_without_py_spy(machine: Any, folder: Path) -> None:
    command, env = hide_py_spy(folder)
    machine.spawn([*command, "-P", "-m", "trainvitals.agent"], own_session=True, **env)


def find_stall(training: Any, text: str, name: str = "stalled") -> dict[str, Any]:
    """On a busy machine it may have been silent before: that was another stall."""
    return wait_until(
        lambda: next((row for row in training.events(name) if text in str(row["data"])), None), f"{name}: {text}"
    )


@pytest.mark.promise("a stall while native code sleeps or polls", "the program is neither stopped nor signalled")
@pytest.mark.parametrize("py_spy", [True, False])
def test_native_sleeps_and_polls_are_not_interrupted_by_a_stall(machine: Any, tmp_path: Path, py_spy: bool) -> None:
    if py_spy:
        machine.start_agent()
    else:
        start_agent_without_py_spy(machine, tmp_path)
    go = tmp_path / "go"
    training = machine.train(POLL_AND_SLEEP, before=f"{LIBC}; GO = {str(go)!r}", stall_after=3)
    # To an agent that comes after the first pause, the next one is a hang, of which the signal is part.
    wait_until(lambda: training.status.get("ranks", {}).get("0", {}).get("step", 0) >= 19, "an agent that follows it")
    go.touch()
    stalled = wait_until(
        lambda: next((row for row in training.events("stalled") if row["data"]["step"] % 20 == 19), None),
        "a stall while it sleeps",
    )
    if not py_spy:
        assert "main_thread" not in stalled["data"] and "py-spy" in stalled["data"]["note"]
    wait_until(
        lambda: [row for row in training.events("recovered") if row["timestamp"] > stalled["timestamp"]], "the recovery"
    )
    training.process.kill()
    told = training.process.stdout.read().splitlines()
    assert told == ["sleep 0", "poll 0"] * (len(told) // 2) and told
    assert not any(path.stat().st_size for path in training.folder.glob("stacks/rank*.txt"))


def test_without_py_spy_a_hung_rank_is_sent_the_signal_unless_that_is_switched_off(
    machine: Any, tmp_path: Path
) -> None:
    start_agent_without_py_spy(machine, tmp_path)
    asked = machine.train(STUCK, before=LIBC, stall_after=1)
    left_alone = machine.train(STUCK, before=LIBC, stall_after=1, hang_signal=False)
    hung = find_stall(asked, "<string>", "hung")
    assert any("<string>" in frame for frame in hung["data"]["main_thread"])
    assert "main_thread" not in asked.wait_for_event("stalled")["data"]
    assert "main_thread" not in left_alone.wait_for_event("hung")["data"]
    assert left_alone.process.poll() is None and asked.process.poll() is None


def has_pidfd(pid: int, child: int) -> bool:
    """Whether the process `pid` would be told of the end of `child`."""
    for path in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed this moment
            if f"\nPid:\t{child}\n" in path.read_text():
                return True
    return False


def test_a_killed_child_for_which_the_training_waits_is_named(machine: Any) -> None:
    agent = machine.start_agent()
    training = machine.train(
        """
        import multiprocessing
        def load(queue):
            while True: queue.put(1.0)
        context = multiprocessing.get_context("fork")
        queue = context.Queue(2)
        child = context.Process(target=load, args=(queue,), daemon=True)
        child.start()
        print(child.pid, flush=True)
        def next_batch():
            return queue.get()
        while True: run.log({'loss': next_batch()}); time.sleep(0.02)
        """,
        stall_after=4,
    )
    child = int(training.process.stdout.readline())
    training.wait_for_event("rank_started")
    wait_until(lambda: (training.status.get("ranks", {}).get("0", {}).get("step") or 0) >= 19, "some steps")
    wait_until(lambda: has_pidfd(agent.pid, child), "the agent to know the child")
    os.kill(child, signal.SIGKILL)
    stalled = find_stall(training, f"child process {child}")
    assert f"child process {child} (" in stalled["message"] and ") died (SIGKILL)" in stalled["message"]
    assert "next_batch" in stalled["message"]


GLOO = """
import torch
import torch.distributed as distributed
distributed.init_process_group("gloo")
def load(): time.sleep(600)
for step in range(20):
    distributed.all_reduce(torch.ones(1))
    if run.rank != 1: run.log({'loss': 1.0})
    time.sleep(0.02)
if run.rank == 1: load()
distributed.all_reduce(torch.ones(1))
"""


def test_of_three_ranks_the_one_that_is_not_in_the_collective_is_named_although_it_logs_nothing(machine: Any) -> None:
    machine.start_agent()
    world = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    ranks = [
        machine.train(GLOO, env={**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stall_after=1)
        for rank in range(3)
    ]
    told = ("rank 1 has not logged", "in load", "rank 0, rank 2 waiting for it")
    wait_until(
        lambda: all(text in str(ranks[0].status.get("cause")) for text in told),
        lambda: f"the cause to name the rank that is odd; it is {ranks[0].status.get('cause')}",
    )
    waiting = find_stall(ranks[0], "it waits in all_reduce for rank 1")
    assert waiting["rank"] in (0, 2) and set(waiting["data"]["main_threads"]) == {"0", "1", "2"}
    ranks[0].wait_for_event("hung")
    wait_until(lambda: ranks[0].status["state"] == "hung", "the run to be hung")
    found = [
        item
        for item in describe_diagnosis(RunReader(ranks[0].folder), Conditions())["findings"]
        if item["rule"].startswith("end.")
    ]
    assert [item["rule"] for item in found] == ["end.hang"] and found[0]["subject"] == "rank 1"
    assert any(line.startswith("rank 1 was at File") and "in load" in line for line in found[0]["evidence"])


def test_a_hang_that_is_found_late_is_reported_as_a_stall_first(machine: Any) -> None:
    training = machine.train(STEPS + "print('ready', flush=True)\ntime.sleep(600)\n", stall_after=1)
    training.wait_until_ready()
    silent = time.monotonic()
    wait_until(lambda: time.monotonic() - silent > 6, "more silence than makes a hang")
    machine.start_agent()
    training.wait_for_event("hung")
    assert [row.event for row in RunReader(training.folder).events() if row.event in ("stalled", "hung")] == [
        "stalled",
        "hung",
    ]


def test_an_idle_rank_is_found_sooner_than_one_that_computes(machine: Any) -> None:
    machine.start_agent()
    idle = machine.train(STEPS + "time.sleep(600)\n", stall_after=30)
    busy = machine.train(STEPS + "while True: pass\n", stall_after=30)
    found = idle.wait_for_event("stalled")
    assert 5 <= found["data"]["silent_seconds"] < 30
    # The event has the time at which it was found, and is written when the stacks have been read: that may take long.
    assert not [row for row in busy.events("stalled") if row["timestamp"] <= found["timestamp"]]


PHASE = """
from trainvitals.journal.documents.registration import PhaseNote
for step in range(20): run.log({{'loss': 1.0}}); time.sleep(0.02)
run.note_phase(PhaseNote(name="gen", since=time.monotonic(), longest={longest}))
sys.stdin.readline()
run.note_phase(PhaseNote(name="update_actor", since=time.monotonic(), longest=1e6))
time.sleep(600)
"""


def test_a_hang_within_a_phase_is_seen_while_it_happens_and_a_long_phase_is_no_hang(machine: Any) -> None:
    machine.start_agent()
    hangs = machine.train(PHASE.format(longest=0.5), before="import sys", stall_after=2)
    generates = machine.train(PHASE.format(longest=1e6), before="import sys", stall_after=2)
    found = find_stall(hangs, "'phase': 'gen'")
    assert "; in gen for " in found["message"] and "(at most 0.5 s before)" in found["message"]
    assert found["data"]["phase_seconds"] >= 2
    wait_until(lambda: hangs.status["ranks"]["0"].get("phase") == "gen", "the phase in status.json")
    hangs.process.stdin.write("\n")
    hangs.process.stdin.flush()
    later = wait_until(
        lambda: [row for row in hangs.events("recovered") if row["timestamp"] > found["timestamp"]], "the recovery"
    )
    assert later[0]["message"] == "rank 0 goes on: it is in update_actor now"
    # Of what it had before its phase, an idle second may have been a stall.
    assert not [row for row in generates.events("stalled") if "phase" in row["data"]]


def test_a_rank_that_logs_is_not_signalled_because_another_one_hangs(machine: Any, tmp_path: Path) -> None:
    start_agent_without_py_spy(machine, tmp_path)
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    hung = machine.train(STUCK, env={**world, "RANK": "0", "LOCAL_RANK": "0"}, before=LIBC, stall_after=2)
    well = machine.train(
        "while True: run.log({'loss': 1.0}); assert libc.poll(None, 0, 50) == 0\n",
        env={**world, "RANK": "1", "LOCAL_RANK": "1"},
        before=LIBC,
        stall_after=2,
    )
    assert well.folder == hung.folder
    find_stall(hung, "<string>", "hung")
    dumps = [path for path in hung.folder.glob("stacks/rank*.txt") if path.stat().st_size]
    assert [path.name for path in dumps] == ["rank0.txt"] and well.process.poll() is None

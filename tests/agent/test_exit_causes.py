"""Why a process ended."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from waiting import wait_until

from trainvitals import runtime
from trainvitals.agent.exit_causes import (
    ExitStatus,
    GroupCounts,
    OomCounts,
    Suspects,
    judge,
    parse_oom_counts,
    parse_wait_status,
    read_cpu_limit,
    read_exit_status,
)

PYTHON = [sys.executable, "-c"]


def test_a_wait_status_is_an_exit_code_or_a_signal() -> None:
    assert parse_wait_status(0) == ExitStatus(0, None)
    assert parse_wait_status(3 << 8) == ExitStatus(3, None)
    assert parse_wait_status(9) == ExitStatus(None, "SIGKILL")
    assert parse_wait_status(11 | 0x80) == ExitStatus(None, "SIGSEGV")  # with a core file
    assert parse_wait_status(50) == ExitStatus(None, "signal 50")


def test_a_zombie_tells_its_exit_status() -> None:
    child = subprocess.Popen([*PYTHON, "import sys; sys.stdin.read(); sys.exit(3)"], stdin=subprocess.PIPE)
    start = runtime.process_start(child.pid)
    assert read_exit_status(child.pid, start, None) is None
    assert child.stdin is not None
    child.stdin.close()
    assert wait_until(lambda: read_exit_status(child.pid, start, None), "an exit status") == ExitStatus(3, None)
    assert read_exit_status(child.pid, (start or 0) + 1, None) is None  # another process with the same number
    child.wait()
    assert read_exit_status(child.pid, start, None) is None


def test_a_pidfd_tells_the_exit_status_after_the_burial_where_the_kernel_can() -> None:
    child = subprocess.Popen([*PYTHON, "import time; time.sleep(600)"])
    pidfd = os.pidfd_open(child.pid)
    child.kill()
    child.wait()
    found = read_exit_status(child.pid, None, pidfd)
    os.close(pidfd)
    version = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert found == (ExitStatus(None, "SIGKILL") if version >= (6, 15) else None)


@pytest.mark.parametrize(
    ("exit_status", "status", "words"),
    [
        (ExitStatus(0, None), "finished", None),
        (ExitStatus(3, None), "failed", "exit code 3"),
        (ExitStatus(None, "SIGKILL"), "killed", "killed by SIGKILL (kill -9"),
        (ExitStatus(None, "SIGTERM"), "killed", "killed by SIGTERM"),
        (ExitStatus(None, "SIGINT"), "killed", "killed by SIGINT (Ctrl-C)"),
        (ExitStatus(None, "SIGHUP"), "killed", "killed by SIGHUP"),
        (ExitStatus(None, "SIGXCPU"), "killed", "CPU time"),
        (ExitStatus(None, "SIGSEGV"), "crashed", "killed by SIGSEGV"),
        (ExitStatus(None, "SIGABRT"), "crashed", "killed by SIGABRT"),
        (ExitStatus(None, "SIGBUS"), "crashed", "/dev/shm"),
        (ExitStatus(None, "signal 50"), "crashed", "killed by signal 50"),
        (None, "crashed", "the process died; cause unknown"),
    ],
)
def test_an_exit_status_is_judged(exit_status: ExitStatus | None, status: str, words: str | None) -> None:
    verdict = judge(exit_status)
    assert verdict.status == status
    assert verdict.cause is None if words is None else words in str(verdict.cause or "")


def test_memory_explains_a_kill_and_nothing_else() -> None:
    killed, left = ExitStatus(None, "SIGKILL"), ExitStatus(1, None)
    assert str(judge(killed, out_of_memory="machine").cause) == "out of memory: killed by the kernel (OOM)"
    assert "cgroup memory limit" in str(judge(killed, out_of_memory="group").cause or "")
    assert str(judge(left, out_of_memory="group").cause) == "exit code 1"
    guess = judge(None, out_of_memory="group")
    assert guess.status == "killed" and str(guess.cause or "").startswith("probably out of memory")
    assert "CPU time limit" in str(judge(killed, out_of_cpu_time=True).cause or "")


def test_what_nobody_watched_and_what_stalled_before_is_said() -> None:
    assert str(judge(None, watched=False).cause) == "the process ended while no agent was watching"
    assert str(judge(ExitStatus(1, None), watched=False).cause) == "exit code 1"
    assert str(judge(ExitStatus(None, "SIGKILL"), stalled="hung").cause or "").endswith("was hung before")
    assert judge(ExitStatus(0, None), stalled="stalled").cause is None


def test_the_counter_of_the_process_s_own_group_is_believed_first() -> None:
    before = OomCounts(5, {"/own": GroupCounts(0, 0), "/": GroupCounts(0, 0)})
    assert OomCounts(9, before.groups).grown_since(before) is None  # other people's containers
    hit = OomCounts(6, {"/own": GroupCounts(1, 7), "/": GroupCounts(1, 0)})
    assert hit.grown_since(before) == "group"
    # Killed although its own limit was not reached: the machine had no memory left.
    assert OomCounts(6, {"/own": GroupCounts(1, 0)}).grown_since(before) == "machine"
    # The group went with its process: the machine's counter is all there is.
    assert OomCounts(6, {"/": GroupCounts(0, 0)}).grown_since(before) == "machine"
    assert OomCounts(5, {"/": GroupCounts(0, 0)}).grown_since(before) is None
    assert OomCounts(None, {}).grown_since(before) is None


def test_counters_survive_the_status_file() -> None:
    counts = OomCounts(5, {"/own": GroupCounts(1, 2)})
    assert parse_oom_counts(counts.as_json()) == counts
    assert parse_oom_counts(OomCounts(None, {}).as_json()) == OomCounts(None, {})
    assert parse_oom_counts("nonsense") is None and parse_oom_counts(None) is None


def test_a_process_at_its_limit_of_cpu_time_is_recognised() -> None:
    import resource

    limit = "import resource; resource.setrlimit(resource.RLIMIT_CPU, (1, 1)); print('ready', flush=True); input()\n"
    child = subprocess.Popen([*PYTHON, limit + "while True: pass"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None and child.stdout.readline()
    suspects = Suspects(child.pid)
    child.stdin.write(b"go\n")
    child.stdin.close()
    status = wait_until(lambda: read_exit_status(child.pid, None, None), "its end")
    child.wait()
    child.stdout.close()
    verdict = judge(status, out_of_cpu_time=suspects.out_of_cpu_time())
    assert verdict.status == "killed" and "CPU time limit" in str(verdict.cause or "")
    assert resource.getrlimit(resource.RLIMIT_CPU)[1] == resource.RLIM_INFINITY
    assert not Suspects(os.getpid()).out_of_cpu_time()


def test_a_process_without_a_limit_has_none() -> None:
    assert read_cpu_limit(os.getpid()) is None
    assert read_cpu_limit(2**22 + 1) is None

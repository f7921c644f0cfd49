"""What an alert may do besides telling, to real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE, wait_until

sys.path.insert(0, str(Path(__file__).parent))


from trainvitals.alerts.actions import Means, Target, act
from trainvitals.journal.documents.rows import AlertRow

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
OBEDIENT = "import time; print(1, flush=True); time.sleep(600)"
ROW = AlertRow(rule="mine", state="firing", severity="critical", message="loss $(touch here); `id` {x}")


class Bench:
    """A process to act on, and what was recorded."""

    def __init__(self) -> None:
        self.rows: list[AlertRow] = []
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, script: str) -> Target:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        return Target(process.pid, None)

    def act(self, action: str, *targets: Target, command: str = "", means: Means | None = None) -> None:
        act(action, ROW, command, list(targets), means or Means(), self.rows.append)

    def results(self) -> list[str]:
        return [row.result for row in self.rows]


@pytest.fixture
def bench() -> Iterator[Bench]:
    found = Bench()
    yield found
    for process in found.processes:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_training_that_does_not_stop_is_killed_if_that_is_configured(bench: Bench) -> None:
    target = bench.start(STUBBORN)
    bench.act("stop", target, means=Means(kill_after=0.5))
    assert bench.processes[0].wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: len(bench.rows) == 2, "both records")
    assert bench.results() == ["SIGTERM sent", "SIGKILL sent: did not stop in time"]
    assert bench.rows[1].pids == [target.pid]


def test_a_training_that_stops_in_time_is_not_killed(bench: Bench) -> None:
    bench.act("stop", bench.start(OBEDIENT), means=Means(kill_after=PATIENCE))
    assert bench.processes[0].wait(PATIENCE) == -signal.SIGTERM
    wait_until(lambda: bench.results() == ["SIGTERM sent", "stopped"], "both records")


def test_it_is_asked_to_stop_and_no_more_unless_configured(bench: Bench) -> None:
    bench.act("stop", bench.start(STUBBORN))
    assert bench.results() == ["SIGTERM sent"]
    assert bench.processes[0].poll() is None


def test_a_command_is_run_without_a_shell_and_gets_the_alert(bench: Bench, tmp_path: Path) -> None:
    script = tmp_path / "note.py"
    script.write_text("import os, sys; open(sys.argv[1], 'w').write(os.environ['TRAINVITALS_ALERT_MESSAGE'])")
    bench.act("exec", command=f"{sys.executable} {script} {tmp_path / 'out'}")
    wait_until(lambda: bench.results() == ["started", "exited with 0"], "the end of the command")
    assert (tmp_path / "out").read_text() == ROW.message
    assert [row.action for row in bench.rows] == ["exec", "exec"]


def test_a_command_that_cannot_be_run_is_recorded(bench: Bench) -> None:
    bench.act("exec", command="/there/is/no/such/program")
    wait_until(lambda: bench.results() == ["started", "failed: FileNotFoundError"], "the failure")


def test_another_process_that_got_the_number_of_a_dead_one_is_left_alone(bench: Bench) -> None:
    target = bench.start(OBEDIENT)
    earlier = psutil.Process(target.pid).create_time() - 100
    bench.act("stop", Target(target.pid, earlier))
    assert bench.results() == ["nothing to do: no process of the run is alive on this host"]
    assert bench.processes[0].poll() is None

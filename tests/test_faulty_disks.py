"""Disks over their quota, broken, slow and stalling, and the stale file handles of NFS: no row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk, build
from made_runs import make_run, write
from waiting import PATIENCE, read_whole_lines, wait_until

from trainvitals.journal.reader import RunReader, open_run

TRAINING = """
import sys, time
import trainvitals
run = trainvitals.init(dir=sys.argv[1], project="p", agent=False, capture_git=False)
print("ready", flush=True)
for line in sys.stdin:
    first, last = map(int, line.split())
    slowest = 0.0
    for step in range(first, last):
        began = time.monotonic()
        run.log({"loss": float(step)}, step=step)
        slowest = max(slowest, time.monotonic() - began)
    print(slowest, flush=True)
run.finish()
"""


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("faulty_disk"))


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> FaultyDisk:
    return FaultyDisk(library, tmp_path / "faulty")


class Training:
    """A training on the faulty disk that logs as many steps as it is told."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.disk = disk
        self.step = 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", TRAINING, str(disk.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=disk.env(),
        )  # fmt: skip
        assert self._read() == "ready"

    def log(self, steps: int) -> float:
        """The seconds that the slowest call of log() took."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{self.step} {self.step + steps}\n")
        self.process.stdin.flush()
        self.step += steps
        return float(self._read())

    def finish(self) -> str:
        """What it said on standard error."""
        _, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, said
        return said

    def steps(self) -> list[int]:
        return [row["step"] for row in open_run("latest", self.disk.folder).rows()]

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def training(disk: FaultyDisk) -> Iterator[Training]:
    made = Training(disk)
    yield made
    made.process.kill()
    made.process.wait()


@pytest.mark.parametrize("error", ["EDQUOT", "EIO", "ENOSPC", "EROFS", "ESTALE", "ETIMEDOUT"])
@pytest.mark.promise("writes fail for a while: quota, I/O error, stale file handle", "no line is lost or duplicated")
def test_a_disk_that_refuses_for_a_while_costs_no_line(disk: FaultyDisk, training: Training, error: str) -> None:
    training.log(10)
    disk.refuse("write", error)
    training.log(200)
    disk.heal()
    training.log(10)
    said = training.finish()
    assert training.steps() == list(range(220))
    assert said.count("cannot write") == 1 and "is writable again" in said
    assert disk.count("write") < 50, "it is tried now and then, not with every line"


@pytest.mark.parametrize("call", ["write", "open"])
@pytest.mark.promise("a slow disk", "`log()` waits for one write, and rows are complete")
def test_on_a_slow_disk_a_line_waits_for_one_write(disk: FaultyDisk, training: Training, call: str) -> None:
    training.log(10)
    disk.delay(0.05, call)
    before = disk.count(call)
    training.log(20)
    assert disk.count(call) - before <= (20 if call == "write" else 0), "one write for each line, and nothing else"
    disk.heal()
    training.finish()
    assert training.steps() == list(range(30))


@pytest.mark.promise(
    "a disk that stalls for seconds", "`log()` blocks only as long as the kernel does; no line is lost"
)
def test_a_stall_of_the_disk_is_waited_for_once(disk: FaultyDisk, training: Training) -> None:
    training.log(10)
    disk.delay(2.0, "write")
    assert training.log(1) >= 2.0
    assert disk.count("write") == 1
    disk.heal()
    training.log(1000)
    training.finish()
    assert training.steps() == list(range(1011))


@pytest.mark.promise("a stall of fsync or rename", "`log()` does neither")
def test_a_disk_that_cannot_flush_holds_up_no_line(disk: FaultyDisk, training: Training) -> None:
    disk.delay(1.0, "fsync", "rename")
    training.log(1000)
    assert disk.count("fsync") == disk.count("rename") == 0
    disk.heal()
    training.finish()
    assert training.steps() == list(range(1000))


SEAL = (
    "import sys; from pathlib import Path; from trainvitals.journal.segment_writer import seal; seal(Path(sys.argv[1]))"
)


@pytest.mark.parametrize("call", ["write", "fsync", "rename", "open"])
@pytest.mark.parametrize("error", ["EIO", "EDQUOT", "ESTALE"])
@pytest.mark.promise("the disk fails anywhere while a file is sealed", "the JSONL file stays; every row is read")
def test_a_file_is_not_removed_unless_its_segment_is_on_the_disk(disk: FaultyDisk, call: str, error: str) -> None:
    folder = make_run(disk.folder / "p" / "run")
    path = write(folder, ({"step": step, "loss": 1.0} for step in range(100)))
    disk.refuse(call, error)
    done = subprocess.run([sys.executable, "-c", SEAL, path], env=disk.env(), capture_output=True, check=False)
    assert done.returncode != 0 and path.exists()
    assert [row["step"] for row in RunReader(folder).rows()] == list(range(100))
    disk.heal()
    subprocess.run([sys.executable, "-c", SEAL, path], env=disk.env(), check=True)
    assert not path.exists()
    assert [row["step"] for row in RunReader(folder).rows()] == list(range(100))


@pytest.mark.parametrize("call", ["open", "read"])
@pytest.mark.parametrize("error", ["ESTALE", "EIO"])
@pytest.mark.promise("a file of a run cannot be read: I/O error, stale file handle", "commands say so; no traceback")
def test_a_run_that_cannot_be_read_now_is_said_to_be(disk: FaultyDisk, call: str, error: str) -> None:
    folder = make_run(disk.folder / "p" / "run")
    write(folder, ({"step": step, "loss": 1.0} for step in range(100)))
    disk.refuse(call, error)

    def run(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "trainvitals", *words]
        done = subprocess.run(command, env=disk.env(), capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, words
        return done.returncode, done.stdout

    listed = run("runs", "--dir", str(disk.folder))
    assert listed[0] == 0 and "unreadable" in listed[1]
    assert run("runs", "show", str(folder)) == (1, "")
    assert run("export", str(folder), "--format", "csv") == (1, ""), "not a file without rows"
    assert run("top", str(folder), "--once")[0] in (0, 1)
    disk.heal()
    assert len(list(RunReader(folder).rows())) == 100


AGENT = [sys.executable, "-P", "-m", "trainvitals.agent", "--keep"]
LIVE = """
import os, sys, time
import trainvitals
run = trainvitals.init(dir=sys.argv[1], project="p", capture_git=False, simulate_gpus=1, interval=0.1)
print(run.folder, flush=True)
step, asked = 0, set()
while "end" not in asked:
    asked = set(os.listdir(sys.argv[2]))
    run.log({"loss": float("nan") if "nan" in asked else 1.0}, step=step)
    step += 1
    time.sleep(0.05)
run.finish()
print(step, flush=True)
"""


class LiveRun:
    """A training that the agent watches, and that itself meets no fault."""

    def __init__(self, machine: AgentPlace, root: Path, orders: Path) -> None:
        self._orders = orders
        orders.mkdir()
        self.process = subprocess.Popen(
            [sys.executable, "-c", LIVE, root, orders],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=machine.healthy,
        )  # fmt: skip
        machine.processes.append(self.process)
        self.folder = Path(self._read())

    def order(self, what: str) -> None:
        (self._orders / what).touch()

    def finish(self) -> int:
        """Steps for which log() returned."""
        self.order("end")
        steps = int(self._read())
        assert self.process.wait(PATIENCE) == 0
        return steps

    def gpu_times(self) -> list[str]:
        """Of every sample of its GPU."""
        files = sorted(self.folder.glob("gpu_metrics_*.jsonl"))
        return [json.loads(line)["timestamp"] for path in files for line in read_whole_lines(path)]

    def is_ended(self) -> bool:
        status = json.loads((self.folder / "status.json").read_bytes())
        return bool(status.get("state") == "finished")

    def _read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


class AgentPlace:
    """An agent for which the disk is faulty, and trainings for which it is not."""

    def __init__(self, disk: FaultyDisk, place: Path) -> None:
        self.told = place / "told"
        tell = place / "tell"
        tell.write_text(f"#!/bin/sh\necho $TRAINVITALS_ALERT_RULE >>'{self.told}'\n")
        tell.chmod(0o700)
        self.processes: list[subprocess.Popen[str]] = []
        environment = {
            **disk.env(),
            "TRAINVITALS_RUNTIME_DIR": str(place / "runtime"),
            "TRAINVITALS_ALERTS_NOTIFY": f"command:{tell}",
        }
        self.healthy = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
        self.agent = subprocess.Popen(
            AGENT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True
        )
        self.processes.append(self.agent)
        wait_until(lambda: (place / "runtime" / "agent.json").exists(), "the agent")

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def machine(disk: FaultyDisk, tmp_path: Path) -> Iterator[AgentPlace]:
    made = AgentPlace(disk, tmp_path)
    yield made
    disk.heal()
    made.close()


@pytest.mark.parametrize("error", ["EDQUOT", "ESTALE"])
@pytest.mark.promise("the agent's writes fail for a while", "the agent survives and continues when the disk recovers")
def test_the_agent_survives_a_disk_that_refuses(
    disk: FaultyDisk, machine: AgentPlace, tmp_path: Path, error: str
) -> None:
    run = LiveRun(machine, disk.folder, tmp_path / "orders")
    wait_until(lambda: len(run.gpu_times()) > 3, "samples")
    disk.refuse("write", error)
    tries = disk.count("write")
    wait_until(lambda: disk.count("write") > tries + 3, "the agent to meet the fault")
    seen = len(run.gpu_times())
    disk.heal()
    wait_until(lambda: len(run.gpu_times()) > seen + 3, "more samples")
    assert machine.agent.poll() is None


@pytest.mark.promise(
    "the disk of one run stalls under the agent",
    "its training is not blocked; other runs are sampled, checked and ended; its samples are complete afterwards",
)
def test_a_disk_that_stalls_under_the_agent_holds_up_no_other_run(
    disk: FaultyDisk, machine: AgentPlace, tmp_path: Path
) -> None:
    stuck = LiveRun(machine, disk.folder, tmp_path / "orders of stuck")
    other = LiveRun(machine, tmp_path / "healthy", tmp_path / "orders of other")
    for run in (stuck, other):
        wait_until(lambda run=run: len(run.gpu_times()) > 3, "samples")  # type: ignore[misc]
    disk.hold("write", "open", "read", "fsync", "rename")
    wait_until(lambda: disk.count("write") + disk.count("open") + disk.count("read") > 0, "the agent to be held up")
    seen = len(other.gpu_times())
    wait_until(lambda: len(other.gpu_times()) > seen + 10, "samples of the other run")
    other.order("nan")
    wait_until(lambda: machine.told.exists() and "loss_not_finite" in machine.told.read_text(), "its alert")
    other_steps = other.finish()
    wait_until(other.is_ended, "the end of the other run")
    steps = stuck.finish()  # of its own processes none waits for the agent
    last = stuck.gpu_times()[-1]
    disk.heal()
    wait_until(stuck.is_ended, "the end of the run that was held up")
    for run, count in ((stuck, steps), (other, other_steps)):
        assert [row["step"] for row in RunReader(run.folder).rows()] == list(range(count))
    # What was sampled meanwhile waited in the agent: the one run has the samples of the other from that time.
    missed = {time for time in other.gpu_times() if time > last}
    assert len(missed) > 10 and missed <= set(stuck.gpu_times())
    assert machine.agent.poll() is None

"""Disks over their quota, broken, slow and stalling, and the stale file handles of NFS: no row is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_disk import FaultyDisk, build
from made_runs import make_run, write
from waiting import PATIENCE, wait_until

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
@pytest.mark.promise("writes fail for a while: quota, I/O error, stale file handle", "no line is lost or doubled")
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
@pytest.mark.promise("a slow disk", "`log()` waits for one write, and the rows are whole")
def test_on_a_slow_disk_a_line_waits_for_one_write(disk: FaultyDisk, training: Training, call: str) -> None:
    training.log(10)
    disk.delay(0.05, call)
    before = disk.count(call)
    training.log(20)
    assert disk.count(call) - before <= (20 if call == "write" else 0), "one write for each line, and nothing else"
    disk.heal()
    training.finish()
    assert training.steps() == list(range(30))


@pytest.mark.promise("a disk that stalls for seconds", "`log()` waits no longer than the kernel; no line is lost")
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
import sys, time
import trainvitals
run = trainvitals.init(dir=sys.argv[1], project="p", capture_git=False, simulate_gpus=1, interval=0.1)
while True:
    run.log({"loss": 1.0})
    time.sleep(0.05)
"""


@pytest.mark.parametrize("error", ["EDQUOT", "ESTALE"])
@pytest.mark.promise("the agent's writes fail for a while", "the agent lives; it goes on when the disk does")
def test_the_agent_survives_a_disk_that_refuses(disk: FaultyDisk, tmp_path: Path, error: str) -> None:
    environment = {**disk.env(), "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime")}
    healthy = {key: value for key, value in environment.items() if key != "LD_PRELOAD"}
    agent = subprocess.Popen(AGENT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    training = None
    try:
        wait_until(lambda: (tmp_path / "runtime" / "agent.json").exists(), "the agent")
        training = subprocess.Popen([sys.executable, "-c", LIVE, disk.folder], env=healthy, stderr=subprocess.DEVNULL)
        wait_until(lambda: count_gpu_rows(disk.folder) > 3, "samples")
        disk.refuse("write", error)
        tries = disk.count("write")
        wait_until(lambda: disk.count("write") > tries + 3, "the agent to meet the fault")
        seen = count_gpu_rows(disk.folder)
        disk.heal()
        wait_until(lambda: count_gpu_rows(disk.folder) > seen + 3, "more samples")
        assert agent.poll() is None
    finally:
        for process in (training, agent):
            if process is not None:
                process.kill()
                process.wait()


def count_gpu_rows(folder: Path) -> int:
    rows: list[Any] = []
    for path in folder.glob("p/*/gpu_metrics_*.jsonl"):
        rows += [json.loads(line) for line in path.read_bytes().splitlines() if line.endswith(b"}")]
    return len(rows)

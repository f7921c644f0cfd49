"""Storms of faults: kills of trainer, agent and sealer, sealing under readers, full and stalling disks.

    python benchmarks/faults.py [--quick] [STORM ...]

For each: the rows for which log() returned, and how many of them are missing or there twice when it is over. Ends with
1 if there is one. Needs to be root for the full disk, and a C compiler for the one that stalls.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import apart  # noqa: F401
import kill_loss
from table import Table

from trainvitals import runtime
from trainvitals.journal import layout
from trainvitals.journal.reader import RunReader, open_run

sys.path.append(str(Path(__file__).parent.parent / "tests"))  # the disk that stalls is a part of the tests

TRAINER = """
import select, sys, time
import trainvitals
run = trainvitals.init(
    dir=sys.argv[1], project="p", agent=sys.argv[2] == "agent", capture_git=False, rotate_size_mb=0.05
)
print(run.folder, flush=True)
step = 0
while step % 100 or not select.select([sys.stdin], [], [], 0)[0]:
    run.log({"loss": step / 7, "lr": 0.1}, step=step)
    step += 1
    if step % 20 == 0:
        time.sleep(0.002)
run.finish()
print(step, flush=True)
"""
SEALER = (
    "import sys; from pathlib import Path; from trainvitals.journal.segment_writer import seal; seal(Path(sys.argv[1]))"
)


ROUNDS_OF_A_RUN = 10
"""Each round reads all that the run has by then."""


class Trainer:
    """A training that logs until it is asked to end."""

    def __init__(self, place: Path, environment: dict[str, str] | None = None, *, agent: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRAINER, place, "agent" if agent else "alone"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.folder = Path(self._process.stdout.readline().strip())

    def finish(self) -> int:
        """Steps for which log() returned."""
        said, _ = self._process.communicate()
        return int(said)


def compare(folder: Path, acknowledged: int) -> tuple[int, int, int]:
    """(acknowledged, lost, doubled) rows of a run."""
    steps = Counter(row["step"] for row in RunReader(folder).rows())
    lost = sum(step not in steps for step in range(acknowledged))
    return acknowledged, lost, sum(steps.values()) - len(steps)


def list_closed(folder: Path) -> list[Path]:
    files = [path for _, suffix, path in layout.list_files(folder) if suffix == ".jsonl"]
    return sorted(path for path in files if path.name.startswith("training"))[:-1]


def kill_trainers(place: Path, count: int) -> tuple[int, int, int]:
    """Each is killed within a second of its first step."""
    sums = (0, 0, 0)
    for number in range(count):
        folder = place / str(number)
        folder.mkdir()
        acknowledged = kill_loss.log_until_killed("trainvitals", folder, random.random())
        found = compare(open_run("latest", folder).folder, acknowledged)
        sums = tuple(map(sum, zip(sums, found, strict=True)))  # type: ignore[assignment]
    return sums


def kill_agents(place: Path, count: int) -> tuple[int, int, int]:
    """The agent follows and seals a run in the making, and is killed again and again."""
    trainer = Trainer(place, agent=True)
    for _ in range(count):
        runtime.ensure_agent(runtime.START_SECONDS)
        time.sleep(random.random() * 2)
        kill_agent()
    runtime.ensure_agent(runtime.START_SECONDS)
    acknowledged = trainer.finish()
    kill_agent()
    return compare(trainer.folder, acknowledged)


def kill_agent() -> None:
    agent = runtime.read_agent_file()
    if agent is not None:
        os.kill(agent["pid"], signal.SIGKILL)


def kill_sealers(place: Path, count: int) -> tuple[int, int, int]:
    """Each is killed at some moment of its work."""
    trainer = Trainer(place)
    killed = 0
    while killed < count:
        for path in list_closed(trainer.folder)[:1]:
            sealer = subprocess.Popen([sys.executable, "-c", SEALER, path], stderr=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                sealer.wait(0.2 + random.random() * 0.6)
            sealer.kill()
            killed += sealer.wait() != 0
    return compare(trainer.folder, trainer.finish())


def seal_under_readers(place: Path, count: int) -> tuple[int, int, int]:
    """Runs are read over and over while their files are sealed: each read has every row from the first to its last."""
    sums = (0, 0, 0)
    for first in range(0, count, ROUNDS_OF_A_RUN):
        found = seal_one_run_under_readers(place, min(ROUNDS_OF_A_RUN, count - first))
        sums = tuple(map(sum, zip(sums, found, strict=True)))  # type: ignore[assignment]
    return sums


def seal_one_run_under_readers(place: Path, count: int) -> tuple[int, int, int]:
    from trainvitals.journal.segment_writer import seal

    trainer = Trainer(place)
    lost = doubled = 0
    for _ in range(count):
        while len(list_closed(trainer.folder)) < 3:
            time.sleep(0.02)
        rows = RunReader(trainer.folder).rows()
        steps = [row["step"] for row in itertools.islice(rows, 100)]
        for path in list_closed(trainer.folder)[:3]:
            seal(path)  # under a reader that has begun
        steps += [row["step"] for row in rows]
        distinct = len(set(steps))
        lost += max(steps, default=-1) + 1 - distinct
        doubled += len(steps) - distinct
    acknowledged, more_lost, more_doubled = compare(trainer.folder, trainer.finish())
    return acknowledged, lost + more_lost, doubled + more_doubled


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    disk = place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", disk], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def fill_disks(place: Path, count: int) -> tuple[int, int, int]:
    """The disk is filled to the last byte and emptied again under the training."""
    with small_disk(place) as disk:
        trainer = Trainer(disk)
        ballast = disk / "ballast"
        for _ in range(count):
            with open(ballast, "wb", buffering=0) as file:
                for size in (1 << 20, 4096):
                    with contextlib.suppress(OSError):
                        while file.write(bytes(size)) == size:
                            pass
            time.sleep(0.5 + random.random())
            ballast.unlink()
            time.sleep(0.2 + random.random())
        time.sleep(2)  # lines that wait are tried again every second
        return compare(trainer.folder, trainer.finish())


def break_disks(place: Path, count: int) -> tuple[int, int, int]:
    """The disk stalls, is over its quota, fails and goes stale in turn."""
    from faulty_disk import FaultyDisk, build

    disk = FaultyDisk(build(place), place / "faulty")
    trainer = Trainer(disk.folder, disk.env())
    for number in range(count):
        if number % 4 == 0:
            disk.delay(random.random(), "write", "open")
        else:
            disk.refuse("write", ("EDQUOT", "EIO", "ESTALE")[number % 4 - 1])
        time.sleep(0.5 + random.random())
        disk.heal()
        time.sleep(0.2 + random.random())
    time.sleep(2)
    return compare(trainer.folder, trainer.finish())


STORMS: tuple[tuple[str, Callable[[Path, int], tuple[int, int, int]], int, int], ...] = (
    ("`kill -9` of the training", kill_trainers, 100, 5),
    ("`kill -9` of the agent", kill_agents, 50, 5),
    ("`kill -9` of the sealer", kill_sealers, 100, 5),
    ("sealing under a reader", seal_under_readers, 200, 10),
    ("full disk", fill_disks, 50, 3),
    ("disk that stalls, fails, is over quota, goes stale", break_disks, 60, 4),
)
"""What is done to a run, how often, and how often for a first look."""


def bench(quick: bool = False, wanted: Sequence[str] = ()) -> Table:
    rows, skipped = [], []
    for title, storm, often, few in STORMS:
        if wanted and not any(word in title for word in wanted):
            continue
        count = few if quick else often
        with tempfile.TemporaryDirectory(prefix="trainvitals-storm-") as place:
            try:
                found = storm(Path(place), count)
            except (OSError, subprocess.CalledProcessError) as error:
                skipped.append(f"{title} ({error})")
                continue
        rows.append([title, count, *(f"{number:,}" for number in found)])
        print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    return Table(
        "Rows in storms of faults",
        ["fault", "times", "rows acknowledged", "lost", "doubled"],
        rows,
        goal="none lost, none doubled",
        note="; ".join(f"skipped: {what}" for what in skipped),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few of each, for a first look")
    parser.add_argument("storms", nargs="*", metavar="STORM", help="only those with this in their title")
    arguments = parser.parse_args()
    table = bench(arguments.quick, arguments.storms)
    print(table.markdown())
    sys.exit(any(row[-2:] != ["0", "0"] for row in table.rows))

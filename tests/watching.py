"""A run to watch with, and its lines read back. Imported by the tests of `watch`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trainvitals
from trainvitals.trainer.run import Run
from trainvitals.trainer.watch.loop import Watch


class VirtualClock:
    """Time that passes only when told to, in place of `time.perf_counter_ns`."""

    def __init__(self) -> None:
        self.nanoseconds = time.perf_counter_ns()

    def now(self) -> int:
        return self.nanoseconds

    def sleep(self, seconds: float) -> None:
        self.nanoseconds += round(seconds * 1e9)

    def govern(self, watch: Watch) -> None:
        watch.clock.now = self.now


@contextmanager
def running(folder: Path, **options: Any) -> Iterator[Run]:
    run = trainvitals.init(dir=folder / "runs", agent=False, stack_dumps=False, **options)
    try:
        yield run
    finally:
        run.finish()


def lines(run: Run) -> list[dict[str, Any]]:
    """Every training line of a run, in order."""
    found = []
    for path in sorted(run.folder.glob("training_metrics_*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


def steps(run: Run) -> list[dict[str, Any]]:
    """The lines that `watch` wrote."""
    return [line for line in lines(run) if "watch_time" in line]


def events(run: Run) -> list[dict[str, Any]]:
    found = []
    for path in sorted(run.folder.glob("events_*.jsonl")):
        found += [json.loads(line) for line in path.read_text().splitlines()]
    return found


def messages(run: Run) -> str:
    return "\n".join(event["message"] for event in events(run))


PHASES = ("data_time", "transfer_time", "forward_time", "backward_time", "optimizer_time", "other_time")

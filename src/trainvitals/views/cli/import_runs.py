"""`trainvitals import`: the runs of another tracker as runs of ours, once or as they grow."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.analysis.wording import count_of
from trainvitals.errors import nearest
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line
from trainvitals.trackers.registry import REGISTRY
from trainvitals.views.cli.arguments import Parser, UsageError, resolve_settings
from trainvitals.views.cli.start_run import FLAG, check_place, check_runtime
from trainvitals.views.cli.terminal import is_terminal

if TYPE_CHECKING:
    from trainvitals.trackers.importing import Import, Imported

DESCRIPTION = (
    "Import the runs of another tracker: values, steps, times, names, configurations, tags and status as they are "
    "there. What was imported before is not imported again: only what is new is added. With --follow the source is "
    "read as it grows, and its runs are live: on every dashboard, with alerts and findings. Sources:"
)

EXAMPLES = """
trainvitals import tensorboard runs/
trainvitals import tensorboard runs/ --follow
trainvitals import wandb wandb/ --project mnist
trainvitals import mlflow sqlite:///mlflow.db
trainvitals import csv results.csv --name baseline
"""

TEND_SECONDS = 15.0
PROGRESS_SECONDS = 0.2


def add_arguments(parser: Parser) -> None:
    kinds = "; ".join(f"{row.name} {row.target}: {row.help}" for row in REGISTRY.own)
    parser.description = f"{parser.description} {kinds}."
    parser.add_argument("tool", metavar="TOOL", help=f"one of {', '.join(row.name for row in REGISTRY.own)}")
    parser.add_argument(
        "source", metavar="SOURCE", nargs="?", default="", help="folder, file or address to import from"
    )
    parser.add_argument("--project", metavar="NAME", help="project of the runs (default: from the source)")
    parser.add_argument("--name", metavar="NAME", help="name of the run, or name prefix for several")
    parser.add_argument(
        "--follow", action="store_true", help="keep importing as the source grows, until it ends or Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per run")
    parser.add_settings("dir", "sources")
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    from trainvitals.trackers.importing import Import
    from trainvitals.trackers.run_writing import TrackedRuns

    row = REGISTRY.get(arguments.tool)
    if row is None:
        why = REGISTRY.error(arguments.tool) or f"cannot import from '{one_line(arguments.tool)}'"
        names = [item.name for item in REGISTRY]
        raise UsageError(f"{why}{nearest(arguments.tool, names)}", hint=f"one of: {', '.join(names)}")
    if not arguments.source and not row.target.startswith("["):
        raise UsageError(f"what to import is missing: {row.target}", hint=f"trainvitals import {row.name} {row.target}")
    settings = resolve_settings(arguments)
    root = Path(settings.dir).absolute()
    source = row.open(arguments.source)
    check_place(root, settings, FLAG)
    runs = TrackedRuns(root, settings)
    work = Import(row.name, source, runs, project=arguments.project, name=arguments.name)
    printer = Printer(as_json=arguments.json)
    if not arguments.follow:
        for item in work.take():
            printer.take(item)
        work.settle()
        return printer.finish(arguments.source)
    check_runtime()
    for item in work.take():
        printer.take(item)
    work.settle()
    print_line("following; press Ctrl-C to stop")
    follow(work, printer, _stop_on_signal())
    if not work.goes_on:
        print_line("every run of the source has ended")
    work.settle(stopped=True)
    return printer.finish(arguments.source)


def follow(work: Import, printer: Printer, stop: threading.Event) -> None:
    """Until every run has an end in its tracker, or somebody stops it."""
    next_tend = time.monotonic() + TEND_SECONDS
    while work.goes_on and not stop.wait(work.look_seconds):
        for item in work.take(live=True):
            if item.is_new or item.rows or item.left_out or item.error:
                printer.take(item)
        if time.monotonic() > next_tend:
            next_tend = time.monotonic() + TEND_SECONDS
            work.tend()


def _stop_on_signal() -> threading.Event:
    """Set by Ctrl-C or a service manager, between two looks: what was read is written and printed. Twice is at once."""
    stop = threading.Event()

    def handle(number: int, frame: object) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.default_int_handler)
        stop.set()

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, handle)
    return stop


class Printer:
    """A line per run that was new or had something new, and what was left out."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._seen = 0
        self._unchanged = 0
        self._failed = False
        self._left_out: Counter[str] = Counter()
        self._renamed: set[str] = set()
        self._next_progress = time.monotonic() + PROGRESS_SECONDS
        self._shows_progress = is_terminal(sys.stderr) and not as_json

    def take(self, item: Imported) -> None:
        self._seen += 1
        self._left_out += item.left_out
        self._failed |= item.error is not None
        self._clear_progress()
        if self._as_json:
            print(json.dumps(describe(item)), flush=True)
        elif item.is_new or item.rows or item.error:
            self._print(item)
        else:
            self._unchanged += 1
        for theirs, ours in item.run.origin.renamed.items():
            if theirs not in self._renamed and not self._as_json:
                self._renamed.add(theirs)
                print_line(f"metric '{one_line(theirs)}' is called '{one_line(ours)}': its name is reserved or taken")
        if self._shows_progress and time.monotonic() > self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_SECONDS
            print(f"\r{self._seen} runs", end="", file=sys.stderr, flush=True)

    def _print(self, item: Imported) -> None:
        word = "new" if item.is_new else "more"
        total = f" of {item.run.total:,}" if item.run.total != item.rows else ""
        rows = "row" if item.rows == 1 and not total else "rows"
        print(f"{word:<5}{item.run.id}  {item.rows:,}{total} {rows}  {one_line(item.title)}", flush=True)
        if item.error:
            print_line(f"{one_line(item.title)}: {one_line(item.error)}")

    def _clear_progress(self) -> None:
        if self._shows_progress:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def finish(self, target: str) -> int:
        """The exit code."""
        self._clear_progress()
        if not self._seen:
            print_line(f"no runs in {one_line(target) or 'the default place'}")
            return 1
        if self._unchanged:
            print_line(f"nothing new in {count_of(self._unchanged, 'run')}")
        if self._left_out:
            print_line(f"not imported: {format_counts(self._left_out)}")
        return 1 if self._failed else 0


def format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {one_line(kind)}" for kind, count in sorted(counts.items()))


def describe(item: Imported) -> dict[str, object]:
    """For --json."""
    return {
        "run_id": item.run.id,
        "folder": str(item.run.folder),
        "name": item.run.file.name,
        "project": item.run.file.project,
        "source": item.title,
        "new": item.is_new,
        "rows": item.rows,
        "total_rows": item.run.total,
        "values": item.values,
        "not_imported": dict(item.left_out),
        "renamed": dict(item.run.origin.renamed),
        "error": item.error,
    }

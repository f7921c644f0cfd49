"""`trainvitals top`: the terminal dashboard. Tested in tests/views/tui/test_terminal.py."""

from __future__ import annotations

import argparse
import functools
import gc
import sys
from pathlib import Path

from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import RunRef, Runs
from trainvitals.journal.folder_runs import FolderRuns, refer_to
from trainvitals.settings import Settings
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, resolve_settings
from trainvitals.views.cli.hosts import add_hosts, find_machines, find_store, print_trouble

DESCRIPTION = (
    "Hardware and training on one screen. Without RUN: this machine and its active runs; with RUN: that run, live "
    "or finished; with --host: other machines and their runs; with --store: the runs of a fleet. Reads the run folder "
    "and the agent's latest samples, or samples by itself if no agent is running."
)
EXAMPLES = """
trainvitals top                            # this machine
trainvitals top latest                     # the newest run
trainvitals top --gpu 0 --interval 0.5
trainvitals top --host gpu1 --host gpu2    # other machines, over ssh
trainvitals top --once                     # one frame as text
trainvitals top --json | jq .gpus          # one frame as JSON
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help=RUN_HELP)
    parser.add_argument("--gpu", metavar="INDEX", action="append", default=[], help="only this GPU; may be repeated")
    parser.add_settings("interval", "gpus", "simulate_gpus", "dir")
    parser.add_argument("--once", action="store_true", help="print one frame as text and exit")
    parser.add_argument("--json", action="store_true", help="print one frame as JSON and exit")
    parser.add_argument("--readonly", action="store_true", help="do not allow signals to processes")
    parser.add_argument("--theme", metavar="NAME", help="dark, light, contrast, terminal or mono")
    add_hosts(parser)
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    run = None
    machines = find_machines(arguments, settings)
    runs: Runs = machines or find_store(arguments, settings) or FolderRuns(Path(settings.dir))
    if arguments.run is not None and not isinstance(runs, FolderRuns):
        if machines is not None:
            machines.wait()
        key = runs.find(arguments.run)
        run = RunRef(runs.describe(key).place, functools.partial(runs.open, key))
    elif arguments.run is not None:
        run = refer_to(run_folder.find(arguments.run, Path(settings.dir)).absolute())
    from trainvitals.conditions import Conditions
    from trainvitals.views import tui

    tui.check_extra()
    from trainvitals.views.tui import palette as palettes
    from trainvitals.views.tui.feed import Feed
    from trainvitals.views.tui.options import TopOptions

    chosen = None
    if arguments.theme is not None:
        chosen = palettes.BY_NAME.get(arguments.theme)
        if chosen is None:
            raise UsageError(f"unknown theme '{arguments.theme}'", hint=f"one of: {', '.join(palettes.BY_NAME)}")
    feed = Feed(
        TopOptions(
            run=run,
            runs=runs,
            machines=machines,
            interval=settings.interval,
            gpus=wanted_gpus(arguments.gpu, settings),
            simulate_gpus=settings.simulate_gpus,
            readonly=arguments.readonly,
            conditions=Conditions(settings.alerts_thresholds),
            settings=settings,
        )
    )
    if arguments.once or arguments.json:
        if machines is not None:
            machines.wait_for_hardware()
            print_trouble(machines)
        from trainvitals.views.tui import once

        return once.print_json(feed) if arguments.json else once.print_frame(feed)
    # Textual draws through stderr, so that stdout may be a file.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError("not a terminal", hint="print one frame instead: trainvitals top --once")
    gc.disable()  # until the first picture is there: imports make much, and nothing of it is garbage
    from trainvitals.views.tui import app

    return app.run(feed, palette=chosen)


def wanted_gpus(flags: list[str], settings: Settings) -> tuple[str, ...]:
    """Indices and UUIDs to show; empty for all."""
    words = [word.strip() for flag in flags for word in flag.split(",") if word.strip()]
    return tuple(words) or tuple(str(gpu) for gpu in settings.gpus or ())

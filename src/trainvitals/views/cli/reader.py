"""`trainvitals reader`: answers another machine, on standard input and output. Tested in tests/lab/test_far.py."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from trainvitals.views.cli.arguments import Parser, resolve_settings

DESCRIPTION = (
    "Answer the questions of another machine about the runs and the hardware of this one, on standard input and "
    "output. Reads only. `trainvitals top --host`, `serve --host` and `runs --host` start it over ssh; there is no "
    "reason to start it by hand."
)
EXAMPLES = """
ssh gpu1 trainvitals reader < /dev/null    # whether it is found there: it greets
"""


def add_arguments(parser: Parser) -> None:
    parser.add_settings("dir")
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    from trainvitals.lab.far import FarSide, FoldersHere, serve_stdio, take_standard_streams
    from trainvitals.views.cli.hosts import HardwareHere

    questions, answers = take_standard_streams()
    settings = resolve_settings(arguments)
    hardware = HardwareHere()
    try:
        with contextlib.suppress(BrokenPipeError):
            serve_stdio(FarSide(FoldersHere(Path(settings.dir)), hardware.read), questions, answers)
    finally:
        hardware.end()
    return 0

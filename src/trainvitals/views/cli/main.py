"""`trainvitals`: one line per command, its module imported when it is called."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from trainvitals import __version__
from trainvitals.errors import SettingError, TrainvitalsError, nearest
from trainvitals.plugins import Registry, declared


class CommandRow(NamedTuple):
    """A command, before its module is imported: one that has `EXAMPLES`, `add_arguments(parser)` and
    `execute(arguments)`, which returns the exit code."""

    name: str
    module: str
    help: str


# Adding a command is one file and one row here.
_OWN = (
    CommandRow("run", "trainvitals.views.cli.run", "watch any program, with no change to it"),
    CommandRow("monitor", "trainvitals.views.cli.monitor", "watch the hardware, on the console and to files"),
    CommandRow("top", "trainvitals.views.cli.top", "the terminal dashboard: hardware and training on one screen"),
    CommandRow("demo", "trainvitals.views.cli.demo", "see it work: a small real training, on any machine"),
    CommandRow("serve", "trainvitals.views.cli.serve", "the dashboard in the browser"),
    CommandRow("runs", "trainvitals.views.cli.runs", "list, show, remove and tidy up runs"),
    CommandRow("report", "trainvitals.views.cli.report", "write a report to send around: HTML, Markdown, JSON, PNG"),
    CommandRow("compare", "trainvitals.views.cli.compare", "runs beside each other: what differs, which is better"),
    CommandRow("export", "trainvitals.views.cli.export", "write a run as JSON, JSONL, CSV, Parquet, HTML, PNG or SVG"),
    CommandRow("alerts", "trainvitals.views.cli.alerts", "what fires and fired; test, silence, acknowledge, replay"),
    CommandRow("doctor", "trainvitals.views.cli.doctor", "what was found, what is missing, and how to fix it"),
    CommandRow("agent", "trainvitals.views.cli.agent", "start, look at and stop the agent of this machine"),
    CommandRow("prometheus", "trainvitals.views.cli.prometheus", "rules and scrape configuration for Prometheus"),
    CommandRow("grafana", "trainvitals.views.cli.grafana", "dashboards for Grafana"),
    CommandRow("stack", "trainvitals.views.cli.stack", "set up Prometheus, Grafana and Alertmanager with Docker"),
    CommandRow("config", "trainvitals.views.cli.config", "the settings in force and where each came from"),
    CommandRow("version", "trainvitals.views.cli.version", "the versions of trainvitals and what it uses"),
)
COMMANDS: Registry[CommandRow] = Registry("commands", _OWN, CommandRow)
"""Our commands, and those of other packages (docs/plugins.md)."""

EXAMPLES = (
    ("trainvitals run -- python train.py", "watch any program, no code change"),
    ("trainvitals monitor --gpu 0 --interval 1.0", "just the hardware"),
    ("trainvitals demo", "see it work, no GPU needed"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C; `run` gives its program's own."""
    _print_anywhere()
    try:
        code = dispatch(list(sys.argv[1:] if arguments is None else arguments))
        if sys.stdout is not None:  # closed by whoever started us
            sys.stdout.flush()
    except TrainvitalsError as error:
        _complain(error.message, error.hint)
        return 2 if isinstance(error, SettingError) or type(error).__name__ == "UsageError" else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has gone (`| head`): say nothing, also not when the interpreter flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{where}", "what works here and what does not: trainvitals doctor")
        return 1
    return code


def _print_anywhere() -> None:
    """Where standard output is not UTF-8, a `?` for what it has no letter for: names are no reason to fail."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        if not is_utf8 or sys.stdout.errors == "strict":
            sys.stdout.reconfigure(errors="replace")


def dispatch(arguments: list[str]) -> int:
    """Find the command and run it."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(draw_help())
        return 0
    word, rest = arguments[0], arguments[1:]
    if word in ("-V", "--version"):
        print(f"trainvitals {__version__}")
        return 0
    row = COMMANDS.get(word)
    if row is not None:
        from trainvitals.views.cli.arguments import run_command

        return run_command(f"trainvitals {row.name}", import_module(row.module), row.help, rest)
    broken = COMMANDS.error(word)
    if broken is not None:
        _complain(f"the plugin of the command '{word}' cannot be used: {broken}", "see: trainvitals doctor")
        return 1
    kind = "flag" if word.startswith("-") else "command"
    known = ["--help", "--version"] if kind == "flag" else [known.name for known in COMMANDS]
    shown = word if word.isprintable() else ascii(word)[1:-1]
    _complain(f"unknown {kind} '{shown}'{nearest(word, known)}", "see: trainvitals --help")
    return 2


def draw_help() -> str:
    """What there is."""
    lines = [
        f"trainvitals {__version__}: watches the hardware and the training together, live, and keeps every number.",
        "",
        *(f"  {command:<44}{what}" for command, what in EXAMPLES),
        "",
        "commands:",
        *(f"  {row.name:<12}{row.help}" for row in COMMANDS.own),
        *(f"  {entry.name:<12}from {entry.dist.name if entry.dist else '?'}" for entry in declared("commands")),
        "",
        "The flags of a command: trainvitals COMMAND --help",
    ]
    return "\n".join(lines)


def _complain(message: str, hint: str | None) -> None:
    from trainvitals.views.cli.terminal import print_error

    print_error(f"trainvitals: {message}")
    if hint:
        print_error(f"  {hint}")


if __name__ == "__main__":
    sys.exit(main())

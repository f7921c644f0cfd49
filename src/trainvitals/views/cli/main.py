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
from trainvitals.stderr import print_below, print_line


class CommandRow(NamedTuple):
    """A command, before its module is imported: one that has `EXAMPLES`, `add_arguments(parser)` and
    `execute(arguments)`, which returns the exit code."""

    name: str
    module: str
    help: str


# Adding a command is one file and one row here.
_OWN = (
    CommandRow("run", "trainvitals.views.cli.run", "run and monitor any program, without code changes"),
    CommandRow("monitor", "trainvitals.views.cli.monitor", "monitor the hardware, to the console and to files"),
    CommandRow("top", "trainvitals.views.cli.top", "terminal dashboard: hardware and training on one screen"),
    CommandRow("demo", "trainvitals.views.cli.demo", "try it: a small real training run, on any machine"),
    CommandRow("serve", "trainvitals.views.cli.serve", "web dashboard"),
    CommandRow("runs", "trainvitals.views.cli.runs", "list, show, check, compress and remove runs"),
    CommandRow("diagnose", "trainvitals.views.cli.diagnose", "what is wrong with a run, since when, why, what to do"),
    CommandRow("report", "trainvitals.views.cli.report", "write a shareable report: HTML, Markdown, JSON, PNG, SVG"),
    CommandRow("compare", "trainvitals.views.cli.compare", "compare runs: what differs, which is better"),
    CommandRow("bench", "trainvitals.views.cli.bench", "measure a model: latency, memory, size, variants, exactness"),
    CommandRow("analyze", "trainvitals.views.cli.analyze", "statistics of a run: trends, changes, forecast, resources"),
    CommandRow("detect", "trainvitals.views.cli.detect", "find anomalies in a column of a CSV file or stream"),
    CommandRow("export", "trainvitals.views.cli.export", "export a run as JSON, JSONL, CSV, Parquet, HTML, PNG or SVG"),
    CommandRow(
        "import", "trainvitals.views.cli.import_runs", "import runs from TensorBoard, W&B, MLflow, CSV and others"
    ),
    CommandRow("alerts", "trainvitals.views.cli.alerts", "list, test, silence, acknowledge and replay alerts"),
    CommandRow("doctor", "trainvitals.views.cli.doctor", "check your setup and show how to fix it"),
    CommandRow("agent", "trainvitals.views.cli.agent", "start, inspect and stop the agent of this machine"),
    CommandRow("slurm", "trainvitals.views.cli.slurm", "record how a Slurm job ended in its runs"),
    CommandRow("prometheus", "trainvitals.views.cli.prometheus", "print Prometheus rules and scrape configuration"),
    CommandRow("grafana", "trainvitals.views.cli.grafana", "print Grafana dashboards"),
    CommandRow("stack", "trainvitals.views.cli.stack", "set up Prometheus, Grafana and Alertmanager with Docker"),
    CommandRow("reader", "trainvitals.views.cli.reader", "serve runs to --host of another machine (over ssh)"),
    CommandRow("gateway", "trainvitals.views.cli.gateway", "store runs shipped by agents of a fleet in ClickHouse"),
    CommandRow("config", "trainvitals.views.cli.config", "show all settings and where each comes from"),
    CommandRow("version", "trainvitals.views.cli.version", "versions of trainvitals and its dependencies"),
)
COMMANDS: Registry[CommandRow] = Registry("commands", _OWN, CommandRow)
"""Our commands, and those of other packages (docs/plugins.md)."""

EXAMPLES = (
    ("trainvitals run -- python train.py", "monitor any program, no code changes"),
    ("trainvitals monitor --gpu 0 --interval 1.0", "hardware only"),
    ("trainvitals demo", "try it, no GPU needed"),
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
        # The reader has gone (`| head`): print nothing, also not when the interpreter flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _complain(f"{error.strerror or error}{where}", 'run "trainvitals doctor" to check your setup')
        return 1
    return code


def _print_anywhere() -> None:
    """Where standard output is not UTF-8, a `?` for what it has no letter for: names must not cause a failure."""
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
        _complain(f"the plugin of the command '{word}' failed to load: {broken}", "see: trainvitals doctor")
        return 1
    kind = "flag" if word.startswith("-") else "command"
    known = ["--help", "--version"] if kind == "flag" else [known.name for known in COMMANDS]
    shown = word if word.isprintable() else ascii(word)[1:-1]
    _complain(f"unknown {kind} '{shown}'{nearest(word, known)}", "see: trainvitals --help")
    return 2


def draw_help() -> str:
    """What there is."""
    lines = [
        f"trainvitals {__version__}: live monitoring of training and hardware, with alerts and diagnosis.",
        "",
        *(f"  {command:<44}{what}" for command, what in EXAMPLES),
        "",
        "commands:",
        *(f"  {row.name:<12}{row.help}" for row in COMMANDS.own),
        *(f"  {entry.name:<12}from {entry.dist.name if entry.dist else '?'}" for entry in declared("commands")),
        "",
        "Flags of a command: trainvitals COMMAND --help",
    ]
    return "\n".join(lines)


def _complain(message: str, hint: str | None) -> None:
    print_line(message)
    if hint:
        print_below(hint)


if __name__ == "__main__":
    sys.exit(main())

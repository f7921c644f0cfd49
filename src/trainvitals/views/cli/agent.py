"""`trainvitals agent`: the one process of this machine and user that samples and watches."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.errors import AgentError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.latest import Latest, LatestRun, read_agent
from trainvitals.journal.documents.run import COMMAND
from trainvitals.journal.encoding import parse_time
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser, number, resolve_settings
from trainvitals.views.cli.exporter_flags import add_exporter_flags, check_exporter, exporter_environment
from trainvitals.views.cli.start_run import check_runtime
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, is_terminal, width
from trainvitals.views.data import quantities

# -- start


def _add_start(parser: Parser) -> None:
    parser.add_argument("--keep", action="store_true", help="keep running and sampling without a run")
    parser.add_argument("--foreground", action="store_true", help="stay in the foreground and print the log")
    add_exporter_flags(parser)
    parser.add_settings("simulate_gpus")
    parser.add_config()


def _start(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    if exporter_environment(settings):
        arguments.keep = True  # whoever scrapes does so also when there is no run
        check_exporter(settings)
        os.environ.update(exporter_environment(settings))
    if settings.simulate_gpus:
        os.environ["TRAINVITALS_SIMULATE_GPUS"] = str(settings.simulate_gpus)
    check_runtime()
    if arguments.foreground or arguments.keep:
        known = read_agent()
        if known is not None:
            raise AgentError(
                f"an agent is already running (process {known.pid})",
                hint="stop it first: trainvitals agent stop",
            )
    if arguments.foreground:
        from trainvitals.agent.__main__ import main

        return main(["--foreground", *(["--keep"] if arguments.keep else [])])
    if not runtime.ensure_agent(wait=runtime.START_SECONDS, keep=arguments.keep):
        raise AgentError("the agent did not start", hint="to see why: trainvitals agent start --foreground")
    about = read_agent()
    if about is None or about.pid is None:
        raise AgentError("the agent exited immediately", hint="to see why: trainvitals agent log")
    print(f"agent running as process {about.pid}")
    return 0


# -- status


def _add_status(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON; null if no agent is running")


def _status(arguments: argparse.Namespace) -> int:
    from trainvitals.agent.control import status

    found = status()
    if arguments.json:
        print(json.dumps(None if found is None else {**found[1].as_json(), **found[0].as_json()}, indent=2))
        return 0
    if found is None:
        print("no agent is running; the next run starts it, or: trainvitals agent start")
        return 0
    about, latest = found
    if about.pid is None:
        print("an agent is starting or stopping")
        return 0
    started = parse_time(about.started)
    since = f" for {quantities.format_duration(time.time() - started)}" if started is not None else ""
    kept = ", as a service" if about.keep else ""
    print(f"agent running as process {about.pid}{since}, version {about.version}{kept}")
    print(f"  log  {about.log}")
    paint, columns = Paint(sys.stdout), width(sys.stdout) if is_terminal(sys.stdout) else None
    runs = [_run_row(run) for run in latest.runs]
    if runs:
        header: tuple[str, ...] = ("run", "state", "ranks", "last step", "folder")
        print("\n" + draw_table(header, runs, paint=paint, columns=columns, right=(2, 3), indent="  "))
    rows = _source_rows(latest)
    if rows:
        header = ("source", "state", "age", "takes", "")
        print("\n" + draw_table(header, rows, paint=paint, columns=columns, right=(2, 3), indent="  "))
    return 0


def _run_row(run: LatestRun) -> tuple[str, ...]:
    ranks = [rank for rank in run.ranks.values() if rank.kind != COMMAND]
    steps = [rank.step for rank in ranks if rank.step is not None]
    step = f"{max(steps):,}" if steps else quantities.NONE
    known = run_folder.find_run(Path(run.folder))
    state = known.status if known is not None and known.is_over else run.state  # the agent looks once in a while
    return one_line(run.run_id), one_line(state), str(len(ranks)), step, one_line(run.folder)


def _source_rows(latest: Latest) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, state in latest.states.items():
        mine = {key: unit for key, unit in latest.sources.items() if unit.source == name}
        if not mine:
            rows.append((one_line(name), Cell("none", "dim"), "", "", Cell(one_line(state), "dim")))
        for key, unit in mine.items():
            rows.append(
                (
                    one_line(key),
                    Cell("ok" if unit.up else "down", "green" if unit.up else "red"),
                    f"{unit.age:.1f} s" if unit.age is not None else quantities.NONE,
                    f"{unit.duration * 1000:.1f} ms" if unit.duration is not None else quantities.NONE,
                    Cell(one_line(unit.reason or ""), "dim"),
                )
            )
    return rows


# -- stop


def _add_stop(parser: Parser) -> None:
    parser.add_argument(
        "--timeout",
        type=number(0, above=True),
        metavar="SECONDS",
        help="how long to wait (default: 30)",
    )


def _stop(arguments: argparse.Namespace) -> int:
    from trainvitals.agent.control import STOP_SECONDS, stop

    watched = [item for _, item in registrations.read_all() if runtime.is_same_process(item.pid, item.pid_start)]
    print("agent stopped" if stop(arguments.timeout or STOP_SECONDS) else "no agent was running")
    if watched:
        print_line("a run is still active and will restart the agent")
    return 0


# -- log


def _add_log(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new lines until Ctrl-C")
    parser.add_argument(
        "-n",
        "--lines",
        type=number(0, whole=True),
        default=20,
        metavar="N",
        help="number of lines (default: 20)",
    )
    parser.add_argument("--json", action="store_true", help="print the raw JSON lines")


def _log(arguments: argparse.Namespace) -> int:
    from trainvitals.agent.control import log_path
    from trainvitals.journal.cursor import Cursor
    from trainvitals.journal.encoding import encode_line

    path = log_path()
    if not path.exists() and not arguments.follow:
        raise AgentError(f"no log yet: {path}", hint="start the agent: trainvitals agent start")
    cursor, paint = Cursor(path), Paint(sys.stdout)
    rows = cursor.read()
    rows = rows[-arguments.lines :] if arguments.lines else []
    while True:
        for row in rows:
            print(encode_line(row).decode().rstrip("\n") if arguments.json else _log_line(row, paint))
        sys.stdout.flush()
        if not arguments.follow:
            return 0
        time.sleep(0.2)
        rows = cursor.read()


_PLAIN = ("timestamp", "level", "message", "pid", "correlation_id")
_LEVELS = {"warning": "yellow", "error": "red"}


def _log_line(row: dict[str, Any], paint: Paint) -> str:
    moment = parse_time(row.get("timestamp"))
    clock = time.strftime("%H:%M:%S", time.localtime(moment)) if moment is not None else ""
    level = str(row.get("level", ""))
    rest = " ".join(f"{one_line(key)}={one_line(value)}" for key, value in row.items() if key not in _PLAIN)
    message = paint(_LEVELS.get(level, "bold"), one_line(row.get("message", "")))
    return f"{paint('dim', clock)} {one_line(level):<7} {message}  {paint('dim', rest)}".rstrip()


# -- systemd-unit


def _add_systemd_unit(parser: Parser) -> None:
    parser.add_argument("--system", action="store_true", help="for the whole machine instead of systemctl --user")


def _systemd_unit(arguments: argparse.Namespace) -> int:
    from trainvitals.agent.service import systemd_unit

    print(systemd_unit(sys.executable, user=not arguments.system), end="")
    return 0


ACTIONS = (
    Action(
        "start",
        "start the agent if it is not running",
        "trainvitals agent\ntrainvitals agent start --foreground\ntrainvitals agent --prometheus-port 9090",
        _add_start,
        _start,
    ),
    Action("status", "show what the agent is doing", "trainvitals agent status", _add_status, _status),
    Action(
        "stop",
        "stop the agent; runs continue and keep logging",
        "trainvitals agent stop",
        _add_stop,
        _stop,
    ),
    Action("log", "print the agent's log", "trainvitals agent log -f", _add_log, _log),
    Action(
        "systemd-unit",
        "print a systemd unit that keeps the agent running",
        "trainvitals agent systemd-unit > ~/.config/systemd/user/trainvitals.service",
        _add_systemd_unit,
        _systemd_unit,
    ),
)

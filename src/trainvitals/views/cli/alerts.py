"""`trainvitals alerts`: what fires, what fired, test the channels, silence, acknowledge, replay a recorded run.
Tested in tests/alerts/test_command.py."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.alerts import builtin, messages, outbox, records
from trainvitals.alerts.language import RuleError
from trainvitals.errors import TrainvitalsError, nearest
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.run import ENDED
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.settings.addresses import read_address
from trainvitals.settings.channels import find_chat
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser, UsageError, duration, one_of, resolve_settings
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_elsewhere
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, print_json, width

_STYLES = {"critical": "red", "warning": "yellow", "info": "dim", "resolved": "green", "firing": "red"}


def _add_place(parser: Parser) -> None:
    parser.add_settings("dir")
    parser.add_config()


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print(draw_table(titles, rows, paint=Paint(sys.stdout), columns=width(sys.stdout)))


def _clock(text: object) -> str:
    """`2026-11-15T22:36:01.123456Z` as people read it."""
    return str(text)[:19].replace("T", " ")


# -- list


def _add_list(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("run", nargs="?", metavar="RUN", help="only this run (default: all active runs)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_hosts(parser)


def _list(arguments: argparse.Namespace) -> int:
    found = [{**row.as_json(), "run": run} for run, rows in _read_rows(arguments) for row in records.current(rows)]
    if arguments.json:
        print_json(found)
        return 0
    if not found:
        print_line("no active alerts")
        return 0
    rows = [
        (
            Cell(str(row.get("severity")), _STYLES.get(str(row.get("severity")), "")),
            one_line(row.get("rule")),
            one_line(row.get("message", "")),
            _clock(row.get("since")),
            one_line(row["run"]),
            ", ".join(word for word in ("silenced", "acknowledged") if row.get(word)),
        )
        for row in found
    ]
    _table(("severity", "rule", "message", "since (UTC)", "run", ""), rows)
    return 0


def _read_rows(arguments: argparse.Namespace) -> list[tuple[str, list[AlertRow]]]:
    """The alerts of the run that was named, else of every run that is alive, or of the newest if none is."""
    settings = resolve_settings(arguments)
    if not is_elsewhere(arguments, settings):
        folders = _folders(arguments) or run_folder.list_folders(_root(arguments))[-1:]
        return [(folder.name, records.read_rows(folder)) for folder in folders]
    runs = open_elsewhere(arguments, settings)
    if arguments.run:
        keys = [runs.find(arguments.run)]
    else:
        listed = runs.list_keys()
        keys = [key for key in listed if runs.describe(key).is_live] or listed[-1:]
    return [(key, runs.open(key).alerts()) for key in keys]


def _root(arguments: argparse.Namespace) -> Path:
    return Path(resolve_settings(arguments).dir)


def _folders(arguments: argparse.Namespace) -> list[Path]:
    """The run that was named, else every run that is alive."""
    root = _root(arguments)
    if arguments.run:
        return [run_folder.find(arguments.run, root)]
    folders = run_folder.list_folders(root)
    return [folder for folder in folders if run_folder.read_state(folder)[0] not in ENDED]


# -- history


def _add_history(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help="run to show (default: latest)")
    parser.add_argument("--rule", metavar="RULE", help="only this rule")
    parser.add_argument("--all", action="store_true", help="include messages, deliveries and actions")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_hosts(parser)


def _history(arguments: argparse.Namespace) -> int:
    ((run, rows),) = _read_rows(arguments)
    if not arguments.all:
        rows = [row for row in records.changes(rows) if row.state != "pending"]
    if arguments.rule:
        rows = [row for row in rows if row.rule == arguments.rule]
    if arguments.json:
        print_json([row.as_json() for row in rows])
        return 0
    if not rows:
        print_line(f"no alerts in {run}")
        return 0
    _table(("time (UTC)", "state", "rule", "step", ""), [_history_row(row) for row in rows])
    return 0


def _history_row(row: AlertRow) -> tuple[Any, ...]:
    reason = row.reason
    if row.state is not None:
        is_over = row.state == "resolved" and not row.ended_with_run
        what = Cell(row.state_text, _STYLES.get("resolved" if is_over else row.severity or "", ""))
        text = (row.message or row.until or "") + (f" ({reason})" if reason else "")
    elif row.outgoing is not None:
        what, text = Cell("message", ""), f"{row.kind} to {', '.join(row.channels) or 'nobody'}"
    elif row.delivery is not None:
        late = f", {row.late_seconds:.0f} s late" if row.late_seconds else ""
        what, text = Cell(row.result or "", ""), f"{row.channel}{late}{f': {reason}' if reason else ''}"
    elif row.action is not None:
        what, text = Cell("action", ""), f"{row.action} {row.result or ''}"
    else:
        what, text = Cell("asked", ""), row.control or ""
    step = "" if row.step is None else f"{row.step:,}"
    return _clock(row.timestamp), what, one_line(row.rule), step, one_line(text)


# -- test


def _add_test(parser: Parser) -> None:
    parser.add_settings("alerts.notify")
    parser.add_config()
    parser.add_argument("channel", nargs="*", metavar="CHANNEL", help="channel names (default: all)")


def _test(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    addresses = settings.alerts_notify
    if not addresses:
        raise TrainvitalsError(
            "no channels configured",
            hint="set alerts.notify in trainvitals.yaml, or TRAINVITALS_ALERTS_NOTIFY=ntfy://my-topic",
        )
    builtin.rules_of(settings)  # a rule with an unknown channel would notify nobody
    names = [address.name for address in addresses]
    for name in arguments.channel:
        if name not in names:
            raise UsageError(f"unknown channel '{name}'{nearest(name, names)}", hint=f"known: {', '.join(names)}")
    body = _test_body()
    failed = 0
    for address in addresses:
        if arguments.channel and address.name not in arguments.channel:
            continue
        began = time.monotonic()
        name = one_line(address.name)
        try:
            url = read_address(address.url)
            chat = find_chat(url)
            name += f" ({chat.name})" if chat is not None else ""
            result = outbox.carry(url, body, terminals=_own_terminals())
        except TrainvitalsError as error:
            result = outbox.Result(False, "; ".join(filter(None, (error.message, error.hint))))
        took = f"{time.monotonic() - began:.1f} s"
        if result.sent:
            print(f"{name}: sent ({took})")
        else:
            failed += 1
            print(f"{name}: NOT sent: {one_line(result.reason)} ({took})")
    return 1 if failed else 0


def _test_body() -> dict[str, Any]:
    now = format_time()
    alert = AlertRow(
        timestamp=now,
        since=now,
        severity="info",
        message="Test message: trainvitals alerts arrive here",
        advice="Nothing. If you can read this, it works.",
    )
    about = {"run": "test", "name": "test", "host": runtime.host_name()}
    return messages.build("test", "test", [alert], about, os.urandom(12).hex(), now)


def _own_terminals() -> tuple[str, ...]:
    from trainvitals.alerts.channels.bell import find_terminals

    return find_terminals([os.getpid()])


# -- silence and ack


def _add_silence(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("rule", metavar="RULE", help="rule name, or all")
    parser.add_argument(
        "--for", dest="seconds", type=duration, default=3600.0, metavar="TIME", help="for how long (default: 1h)"
    )
    parser.add_argument("--run", metavar="RUN", help="only this run (default: all active runs)")


def _silence(arguments: argparse.Namespace) -> int:
    until = time.time() + arguments.seconds
    return _control(arguments, "silence", f"silenced until {_clock(format_time(until))} UTC", until)


def _add_ack(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("rule", metavar="RULE", help="rule name, or all")
    parser.add_argument("--run", metavar="RUN", help="only this run (default: all active runs)")


def _ack(arguments: argparse.Namespace) -> int:
    return _control(arguments, "ack", "acknowledged: no reminders, no escalation")


def _control(arguments: argparse.Namespace, control: str, done: str, until: float | None = None) -> int:
    folders = _folders(arguments)
    if not folders:
        root = _root(arguments)
        ended = run_folder.list_folders(root)
        hint = f"to choose one anyway: --run {ended[-1].name}; " if ended else ""
        raise TrainvitalsError(f"no active runs in {root}", hint=f"{hint}list them: trainvitals runs")
    for folder in folders:
        known = _known_rules(arguments, folder)
        if arguments.rule != "all" and arguments.rule not in known:
            raise UsageError(
                f"unknown rule '{one_line(arguments.rule)}'{nearest(arguments.rule, known)}", hint="see docs/rules.md"
            )
        records.ask(folder, control, arguments.rule, getpass.getuser(), until)
        print(f"{one_line(arguments.rule)} in {folder.name}: {done}")
    return 0


def _known_rules(arguments: argparse.Namespace, folder: Path) -> set[str]:
    settings = resolve_settings(arguments)
    names = {rule.name for rule in builtin.rules_of(settings)}
    return names | {row.rule for row in records.read_rows(folder)}


# -- replay


def _add_replay(parser: Parser) -> None:
    _add_place(parser)
    parser.add_argument("run", nargs="?", default="latest", metavar="RUN", help="run to show (default: latest)")
    parser.add_argument("--rule", metavar="RULE", help="only this rule")
    parser.add_argument(
        "--severity", type=one_of("info", "warning", "critical"), default="info", help="minimum severity"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def _replay(arguments: argparse.Namespace) -> int:
    from trainvitals.alerts.baseline import Baseline
    from trainvitals.alerts.replay import replay
    from trainvitals.journal.documents.rows import SEVERITIES
    from trainvitals.journal.reader import open_run
    from trainvitals.prices import Prices

    settings = resolve_settings(arguments)
    rules = _chosen_rules(settings, arguments)
    reader = open_run(arguments.run, settings.dir)
    context = {"run": reader.folder.name, "host": runtime.host_name()}
    baseline = Baseline.read(settings.alerts_baseline, reader.folder, print_line)
    held = _held_gpus(reader.statuses())
    lowest = SEVERITIES.index(arguments.severity)
    began = time.monotonic()
    found = [
        records.from_change(change)
        for change in replay(
            rules,
            reader.rows,
            reader.events(),
            context,
            baseline=baseline.value,
            world_size=reader.info.file.world_size or 1,
            held_gpus=held,
            prices=Prices.of(settings),
        )
        if SEVERITIES.index(change.rule.severity) >= lowest
    ]
    if arguments.json:
        print_json([row.as_json() for row in found])
        return 0
    fired = sum(row.state == "firing" for row in found)
    if found:
        _table(("time (UTC)", "state", "rule", "step", ""), [_history_row(row) for row in found])
    print_line(
        f"replayed {len(rules)} rules on {reader.folder.name}: {fired} alerts ({time.monotonic() - began:.1f} s)"
    )
    return 0


def _held_gpus(statuses: Sequence[Status]) -> frozenset[str] | None:
    """The GPUs that the run held; None if its agents did not report them."""
    known = [status.own_gpus for status in statuses if status.own_gpus is not None]
    return frozenset(uuid for uuids in known for uuid in uuids) if known else None


def _chosen_rules(settings: Settings, arguments: argparse.Namespace) -> list[Any]:
    rules = builtin.rules_of(settings)
    if not arguments.rule:
        return rules
    chosen = [rule for rule in rules if rule.name == arguments.rule]
    if not chosen:
        raise RuleError(f"unknown rule '{arguments.rule}'{nearest(arguments.rule, [rule.name for rule in rules])}")
    return chosen


ACTIONS = (
    Action("list", "list active alerts", "trainvitals alerts\ntrainvitals alerts list --json", _add_list, _list),
    Action(
        "history",
        "alert history of a run",
        "trainvitals alerts history latest --all",
        _add_history,
        _history,
    ),
    Action("test", "send a test message to each channel", "trainvitals alerts test", _add_test, _test),
    Action(
        "silence",
        "mute a rule for a while",
        "trainvitals alerts silence gpu_temperature_high --for 2h",
        _add_silence,
        _silence,
    ),
    Action(
        "ack",
        "acknowledge an alert: no reminders, no escalation",
        "trainvitals alerts ack gpu_lost",
        _add_ack,
        _ack,
    ),
    Action(
        "replay",
        "run the current rules on a recorded run to see what would have fired",
        "trainvitals alerts replay latest --severity warning",
        _add_replay,
        _replay,
    ),
)

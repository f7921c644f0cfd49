"""`trainvitals runs`: list, show, remove and tidy up. Listing reads run.json alone and imports nothing heavy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.views.cli.arguments import (
    Action,
    Parser,
    UsageError,
    duration,
    number,
    one_of,
    resolve_settings,
)
from trainvitals.views.cli.terminal import (
    STATUS_STYLES,
    Cell,
    Paint,
    clean,
    confirm,
    draw_table,
    is_terminal,
    print_error,
    say,
    width,
)
from trainvitals.views.data import quantities

STATUSES = (run_folder.RUNNING, "stalled", "hung", *run_folder.ENDED)


# -- list


def _add_list(parser: Parser) -> None:
    parser.add_settings("dir")
    parser.add_argument("--project", metavar="NAME", help="only runs of this project")
    parser.add_argument(
        "--status", type=one_of(*STATUSES), metavar="STATUS", help=f"only runs that are {', '.join(STATUSES)}"
    )
    parser.add_argument(
        "--limit",
        type=number(1, whole=True),
        metavar="N",
        help="the newest N (default: all; 50 on a terminal)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, oldest first")


def _list(arguments: argparse.Namespace) -> int:
    root = Path(resolve_settings(arguments).dir)
    limit = arguments.limit or (50 if is_terminal(sys.stdout) and not arguments.json else None)
    found: list[dict[str, Any]] = []
    left_out = 0
    for folder in reversed(run_folder.list_folders(root)):
        if limit is not None and len(found) == limit:
            left_out += 1
            continue
        try:
            row = read_row(folder)
        except TrainvitalsError:
            continue  # removed or half-copied between listing and reading
        if arguments.project in (None, row["project"]) and arguments.status in (None, row["status"]):
            found.append(row)
    found.reverse()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        said = "no run fits" if arguments.project or arguments.status else "there are no runs yet"
        say(f"{said} in {root}")
        print_error("  start one: trainvitals run -- python train.py")
        return 0
    print(_draw_list(found))
    if left_out:
        say(f"{left_out:,} older runs were not looked at: --limit N looks at more")
    return 0


def read_row(folder: Path) -> dict[str, Any]:
    """A run on one line: run.json and what the agents said, nothing else."""
    run = run_folder.read_run(folder)
    status, cause = run_folder.read_state(folder, run)
    return {
        "id": str(run.get("id", folder.name)),
        "project": str(run.get("project", folder.parent.name)),
        "name": str(run.get("name") or run.get("id") or folder.name),
        "kind": run.get("kind"),
        "status": status,
        "cause": cause,
        "started": run.get("started"),
        "ended": run.get("ended"),
        "seconds": _seconds(run, status),
        "last_step": _last_step(folder, run),
        "attempt": int(run.get("attempt") or 1),
        "simulated": bool(run.get("simulated")),
        "tags": run.get("tags") or [],
        "folder": str(folder),
    }


def _seconds(run: Mapping[str, Any], status: str) -> float | None:
    import time

    started, ended = quantities.parse_time(run.get("started")), quantities.parse_time(run.get("ended"))
    if started is None or (ended is None and status in run_folder.ENDED):
        return None
    return max((ended if ended is not None else time.time()) - started, 0.0)


def _last_step(folder: Path, run: Mapping[str, Any]) -> int | None:
    """From run.json if it is over, else what the agent saw last; None if nobody knows."""
    steps = [run.get("last_step")]
    if not isinstance(steps[0], int):
        for said in run_folder.read_statuses(folder):
            ranks = said.get("ranks")
            if isinstance(ranks, dict):
                steps += [rank.get("step") for rank in ranks.values() if isinstance(rank, dict)]
    return max((step for step in steps if isinstance(step, int) and step >= 0), default=None)


def _draw_list(found: list[dict[str, Any]]) -> str:
    rows = [
        (
            Cell(clean(row["id"]), "bold"),
            Cell(row["status"], STATUS_STYLES.get(row["status"], "")),
            f"{row['last_step']:,}" if row["last_step"] is not None else quantities.NONE,
            quantities.format_span(row["seconds"]),
            quantities.format_clock(quantities.parse_time(row["started"])),
            clean(row["project"]),
            Cell(_remark(row), "dim"),
        )
        for row in found
    ]
    header = ("run", "status", "last step", "time", "started", "project", "")
    columns = width(sys.stdout) if is_terminal(sys.stdout) else None
    return draw_table(header, rows, paint=Paint(sys.stdout), columns=columns, right=(2, 3), optional=(6, 5, 4))


def _remark(row: Mapping[str, Any]) -> str:
    parts = ["simulated GPUs"] if row["simulated"] else []
    if row["attempt"] > 1:
        parts.append(f"attempt {row['attempt']}")
    if row["cause"]:
        parts.append(clean(row["cause"])[:60])
    return ", ".join(parts)


# -- show


def _add_show(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help="run id or its beginning, name, folder, or 'latest'")
    parser.add_settings("dir")
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def _show(arguments: argparse.Namespace) -> int:
    from trainvitals.views.cli.details import draw_details, make_json, read_diagnosis
    from trainvitals.views.cli.summary import draw_summary, read_summary

    settings = resolve_settings(arguments)
    folder = run_folder.find(arguments.run, Path(settings.dir))
    summary = read_summary(folder, Path(settings.dir))
    diagnosis = read_diagnosis(folder, settings)
    if arguments.json:
        print(json.dumps(make_json(summary, diagnosis), indent=2))
        return 0
    paint = Paint(sys.stdout)
    columns = width(sys.stdout) if is_terminal(sys.stdout) else None
    print(draw_summary(summary, paint, columns, next_steps=False))
    details = draw_details(summary, diagnosis, paint, columns)
    if details:
        print()
        print(details)
    return 0


# -- rm


def _add_rm(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help="run id or its beginning, name, folder, or 'latest'")
    parser.add_settings("dir")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _rm(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import is_ended, measure, remove

    root = Path(resolve_settings(arguments).dir)
    folders = list(dict.fromkeys(run_folder.find(reference, root) for reference in arguments.run))
    for folder in folders:
        if not is_ended(folder):
            raise TrainvitalsError(
                f"run {folder.name} is not over, so nothing is removed",
                hint="stop it first, or wait until it ends",
            )
    if not arguments.yes:
        if not is_terminal(sys.stdin):
            raise UsageError("there is nobody to ask whether to remove", hint="say it with --yes")
        for folder in folders:
            print_error(f"  {clean(folder)}  {quantities.format_bytes(measure(folder)[1])}")
        if not confirm(f"remove {_count(len(folders))}?"):
            say("nothing was removed")
            return 1
    for folder in folders:
        remove(folder)
        print(f"removed {clean(folder)}")
    return 0


def _count(number: int) -> str:
    return "1 run" if number == 1 else f"{number:,} runs"


# -- clean


def _add_clean(parser: Parser) -> None:
    parser.add_settings("dir")
    parser.add_argument("--max-age", type=duration, metavar="AGE", help="remove runs older than this, such as 30d")
    parser.add_argument(
        "--max-size-gb",
        type=number(0, above=True),
        metavar="GB",
        help="then remove the oldest until all runs together are at most this large",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_config()


def _clean(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import clean as clean_root
    from trainvitals.journal.retention import measure

    settings = resolve_settings(arguments)
    max_age = arguments.max_age if arguments.max_age is not None else settings.max_age
    max_size = arguments.max_size_gb if arguments.max_size_gb is not None else settings.max_size_gb
    if max_age is None and max_size is None:
        raise UsageError("neither an age nor a size was given", hint="such as: trainvitals runs clean --max-age 30d")
    root = Path(settings.dir)
    doomed = clean_root(root, max_age=max_age, max_size_gb=max_size, dry_run=True)
    sizes = {folder: measure(folder)[1] for folder in doomed}
    if not arguments.dry_run and doomed:
        doomed = clean_root(root, max_age=max_age, max_size_gb=max_size)
    word = "would remove" if arguments.dry_run else "removed"
    for folder in doomed:
        print(f"{word} {clean(folder)}")
    total = quantities.format_bytes(sum(sizes.get(folder, 0) for folder in doomed))
    say(f"{word} {_count(len(doomed))}, {total}" if doomed else "there is nothing to remove")
    return 0


# -- seal


def _add_seal(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help="run id or its beginning, name, folder, or 'latest'")
    parser.add_settings("dir", "keep_jsonl")


def _seal(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import is_ended, measure
    from trainvitals.journal.segments import seal

    settings = resolve_settings(arguments)
    for folder in [run_folder.find(reference, Path(settings.dir)) for reference in arguments.run]:
        if not is_ended(folder):
            raise TrainvitalsError(
                f"run {folder.name} is not over: its agent seals what is closed", hint="wait until it ends"
            )
        before = measure(folder)[1]
        files = [
            path
            for name, suffix, path in layout.list_files(folder)
            if suffix == ".jsonl" and name.table in layout.METRIC_TABLES
        ]
        lines = 0
        for place, path in enumerate(files, 1):
            if is_terminal(sys.stderr):
                print(
                    f"\r\x1b[Ksealing {place} of {len(files)}: {path.name}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
            lines += seal(path, keep=settings.keep_jsonl).lines
        if files and is_terminal(sys.stderr):
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        sizes = f"{quantities.format_bytes(before)} before, {quantities.format_bytes(measure(folder)[1])} now"
        print(f"{clean(folder.name)}: {len(files)} files, {lines:,} lines sealed; {sizes}")
    return 0


# -- check


def _add_check(parser: Parser) -> None:
    parser.add_argument(
        "run", metavar="RUN", nargs="*", help="run id or its beginning, name, folder, or 'latest' (default: all runs)"
    )
    parser.add_argument("--repair", action="store_true", help="mend what can be mended")
    parser.add_settings("dir")


def _check(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.checkup import find_faults, mend

    root = Path(resolve_settings(arguments).dir)
    folders = [run_folder.find(reference, root) for reference in arguments.run] or run_folder.list_folders(root)
    paint = Paint(sys.stdout)
    left = 0
    for folder in folders:
        faults = 0
        for fault in find_faults(folder):
            if faults == 0:
                print(clean(folder.name))
            faults += 1
            mended = arguments.repair and mend(fault)
            left += not mended
            hint = "repaired" if mended else "--repair mends it" if fault.mend and not arguments.repair else ""
            color = "green" if mended else "yellow"
            print(f"  {clean(fault.file)} {paint(color, fault.text)}{f' ({hint})' if hint else ''}")
        if faults == 0:
            print(f"{clean(folder.name)}  {paint('green', 'no damage')}")
    if not folders:
        say(f"no runs in {root}")
    return 1 if left else 0


ACTIONS = (
    Action("list", "list the runs", "trainvitals runs\ntrainvitals runs --status failed --json", _add_list, _list),
    Action("show", "show one run", "trainvitals runs show latest", _add_show, _show),
    Action("rm", "remove runs that are over", "trainvitals runs rm 20261115-2236 --yes", _add_rm, _rm),
    Action(
        "clean",
        "remove old runs, or the oldest while there are too many bytes; never one that is alive",
        "trainvitals runs clean --max-age 30d --max-size-gb 10 --dry-run",
        _add_clean,
        _clean,
    ),
    Action(
        "seal",
        "compress the files of a run that is over, to Parquet",
        "trainvitals runs seal latest",
        _add_seal,
        _seal,
    ),
    Action(
        "check",
        "read every file of a run and report damage; --repair mends what can be mended",
        "trainvitals runs check latest\ntrainvitals runs check --repair",
        _add_check,
        _check,
    ),
)

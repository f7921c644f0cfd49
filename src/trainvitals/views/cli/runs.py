"""`trainvitals runs`: list, show, edit, remove and tidy up. Listing reads small files and imports nothing heavy."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.analysis.wording import count_of
from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_below, print_line
from trainvitals.views.cli.arguments import (
    RUN_HELP,
    Action,
    Parser,
    UsageError,
    duration,
    number,
    one_of,
    resolve_settings,
)
from trainvitals.views.cli.hosts import (
    add_hosts,
    find_machines,
    find_store,
    is_elsewhere,
    open_elsewhere,
    print_trouble,
    wait_for,
)
from trainvitals.views.cli.terminal import (
    SEVERITY_STYLES,
    Cell,
    Paint,
    confirm,
    draw_table,
    is_terminal,
    shorten,
    style_status,
    width,
)
from trainvitals.views.data import quantities
from trainvitals.views.data.key_metrics import order_metrics
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.run_search import STATUSES, SearchError, find_unknown, parse_search, search_rows

if TYPE_CHECKING:  # with all that the API answers, which a list of runs does not wait for
    from trainvitals.journal.contracts import Reader, Runs
    from trainvitals.views.data.shapes import RowJson

# -- list


def _add_list(parser: Parser) -> None:
    parser.add_search("query", "QUERY", "only runs that match, such as 'lr>0.01 tag:a -status:failed' (in quotes)")
    parser.add_settings("dir")
    parser.add_argument("--project", metavar="NAME", help="only runs of this project")
    parser.add_argument(
        "--status", type=one_of(*STATUSES), metavar="STATUS", help=f"only runs with this status: {', '.join(STATUSES)}"
    )
    parser.add_argument(
        "--limit",
        type=number(1, whole=True),
        metavar="N",
        help="show the newest N (default: all; 50 on a terminal)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, oldest first")
    add_hosts(parser)


def _list(arguments: argparse.Namespace) -> int:
    gc.disable()  # ten thousand rows are no garbage, and the process ends with them
    code = _print_list(arguments)
    gc.freeze()  # also not when it ends, which looks for some
    return code


def _print_list(arguments: argparse.Namespace) -> int:
    settings = resolve_settings(arguments)
    machines = find_machines(arguments, settings, patient=True)
    runs: Runs = machines or find_store(arguments, settings) or FolderRuns(Path(settings.dir))
    try:
        parts = parse_search(" ".join(arguments.query))
    except SearchError as error:
        raise UsageError(error.message, hint=error.hint) from error
    limit = arguments.limit or (50 if is_terminal(sys.stdout) and not arguments.json else None)
    if machines is not None:
        wait_for(machines)
        print_trouble(machines)
        if not machines.answering:
            return 1  # of their runs nothing is known
    keys = runs.list_keys()
    keys.reverse()
    is_filtered = bool(parts or arguments.project or arguments.status)
    # The newest are known without a look at the others, of which there may be very many.
    found = list_json(runs, keys if is_filtered else keys[:limit])
    left_out = len(keys[limit:]) if limit is not None else 0
    unknown = ""
    if is_filtered:
        kept = [
            row
            for row in found
            if arguments.project in (None, row["project"]) and arguments.status in (None, row["status"])
        ]
        found = search_rows(kept, parts)
        unknown = find_unknown(kept, parts) if not found else ""
        left_out = len(found[limit:]) if limit is not None else 0
        found = found[:limit]
    found.reverse()
    if arguments.json:
        print(json.dumps([_as_json(row, runs) for row in found], indent=2))
        return 0
    if not found:
        if is_filtered:
            print_line(f"no matching runs in {runs.place}{f': {unknown}' if unknown else ''}")
            print_below("list all of them: trainvitals runs")
            return 0
        print_line(f"no runs in {runs.place if machines is None else ', '.join(machines.answering)}")
        print_below("start one: trainvitals run -- python train.py")
        return 0
    print(_draw_list(found, [machine.name for machine in machines.machines] if machines is not None else []))
    if left_out:
        print_line(f"{left_out:,} older runs not shown: use --limit N")
    return 0


_JSON_KEYS = (
    *("id", "project", "name", "kind", "status", "cause", "started", "ended", "seconds", "last_step", "attempt"),
    *("simulated", "tags", "host", "summary", "energy_joules", "health", "alert_counts", "finding_counts", "folder"),
)


def _as_json(row: RowJson, runs: Runs) -> dict[str, Any]:
    # A folder's name needs no look into it.
    place = str(runs.folder(row["key"])) if isinstance(runs, FolderRuns) else runs.describe(row["key"]).place
    plain = {**row, "kind": row["kind"] or None, "last_step": row["step"], "folder": place}
    return {key: plain[key] for key in _JSON_KEYS}


def _draw_list(found: list[RowJson], machines: Sequence[str] = ()) -> str:
    """`machines` are those of `--host`."""
    if machines:
        from trainvitals.lab.places import machine_of
    # The one that most of them logged: a list has room for one.
    metric = next(iter(order_metrics(row["summary"] for row in found)), None)
    rows = [
        (
            Cell(shorten(_name(row), 40), "bold"),
            one_line(row["id"]),
            Cell(row["status"], style_status(row["status"], row["health"]["severity"])),
            Cell(one_line(row["problems"])[:60], SEVERITY_STYLES.get(row["health"]["severity"], "dim")),
            quantities.format_step(row["step"]),
            *((_last_value(row, metric),) if metric is not None else ()),
            quantities.format_duration(row["seconds"]),
            quantities.format_clock(parse_time(row["started"])),
            one_line(row["project"]),
            *((one_line(machine_of(row["key"], machines)),) if machines else ()),
            Cell(_remark(row), "dim"),
        )
        for row in found
    ]
    titles = (shorten(one_line(metric), 20),) if metric is not None else ()
    hosts = ("machine",) if machines else ()
    header = ("name", "run id", "status", "problems", "last step", *titles, "time", "started", "project", *hosts, "")
    end = len(header) - 1
    return draw_table(
        header,
        rows,
        paint=Paint(sys.stdout),
        columns=width(sys.stdout) if is_terminal(sys.stdout) else None,
        right=range(4, end - 2 - len(hosts)),
        optional=(end, *(end - place - len(hosts) for place in (1, 2, 3)), 4, 0, *((5,) if metric is not None else ())),
    )


def _last_value(row: RowJson, metric: str) -> str:
    value = row["summary"].get(metric)
    return quantities.format_value(float(value) if value is not None else None)


def _name(row: RowJson) -> str:
    """As its user called it; of a run without a name the id says everything."""
    return one_line(row["name"]) if row["name"] != row["id"] else ""


def _remark(row: RowJson) -> str:
    parts = ["simulated GPUs"] if row["simulated"] else []
    if row["attempt"] > 1:
        parts.append(f"attempt {row['attempt']}")
    if row["cause"]:
        parts.append(one_line(row["cause"])[:60])
    return ", ".join(parts)


# -- show


def _add_show(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", default="latest", help=f"{RUN_HELP} (default: latest)")
    parser.add_settings("dir")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--patch", action="store_true", help="print uncommitted changes as a patch, for git apply")
    add_hosts(parser)


def _show(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.reader import open_run
    from trainvitals.views.cli.details import draw_details, make_json, read_price
    from trainvitals.views.cli.summary import draw_summary, read_summary
    from trainvitals.views.data.diagnosis import read_findings

    settings = resolve_settings(arguments)
    reader: Reader
    runs: Runs = FolderRuns(Path(settings.dir))
    if is_elsewhere(arguments, settings) and arguments.host != ["local"]:
        runs = open_elsewhere(arguments, settings)
        reader = runs.open(runs.find(arguments.run))
    else:
        reader = open_run(arguments.run, settings.dir)
    if arguments.patch:
        return _print_patch(reader)
    summary = read_summary(reader, runs)
    diagnosis = read_findings(reader, settings)
    price = read_price(reader, summary, settings)
    if arguments.json:
        print(json.dumps(make_json(summary, diagnosis, price, reader), indent=2))
        return 0
    paint = Paint(sys.stdout)
    columns = width(sys.stdout) if is_terminal(sys.stdout) else None
    print(draw_summary(summary, paint, columns, next_steps=False))
    details = draw_details(summary, diagnosis, price, reader, paint, columns)
    if details:
        print()
        print(details)
    return 0


def _print_patch(reader: Reader) -> int:
    from trainvitals.views.data.patches import describe_patch, explain_missing, find_patch, format_untracked

    found, about = find_patch(reader), describe_patch(reader)
    if found is None or about is None or not about["kept"]:
        raise TrainvitalsError(explain_missing(reader))
    untracked = format_untracked(about)
    for text in (about["warning"], untracked and f"untracked, not in the patch: {untracked}"):
        if text:
            print_line(one_line(text))
    sys.stdout.buffer.write(found.read())
    sys.stdout.buffer.flush()
    return 0


# -- edit


def _add_edit(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_argument("--name", metavar="NAME", help="new name; the run id stays")
    parser.add_argument("--notes", metavar="TEXT", help="new notes, in Markdown; - reads them from standard input")
    parser.add_argument("--tag", metavar="TAG", action="append", default=[], help="add a tag; may be repeated")
    parser.add_argument("--untag", metavar="TAG", action="append", default=[], help="remove a tag; may be repeated")
    parser.add_settings("dir")


def _edit(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.edits import Edit, edit_run

    if arguments.name is None and arguments.notes is None and not arguments.tag and not arguments.untag:
        raise UsageError("nothing to change", hint="such as: trainvitals runs edit latest --tag paper")
    root = Path(resolve_settings(arguments).dir)
    edit = Edit(
        name=arguments.name,
        notes=sys.stdin.read().rstrip("\n") if arguments.notes == "-" else arguments.notes,
        add_tags=tuple(arguments.tag),
        remove_tags=tuple(arguments.untag),
    )
    # All are found before the first is changed: a name may be that of another run afterwards.
    for folder in list(dict.fromkeys(run_folder.find(reference, root) for reference in arguments.run)):
        run = edit_run(folder, edit)
        tags = f"  tags: {', '.join(map(one_line, run.tags))}" if run.tags else ""
        print(f"{one_line(folder.name)}  {one_line(run.name)}{tags}")
    return 0


# -- rm


def _add_rm(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_settings("dir", "store")
    parser.add_argument(
        "--gateway", metavar="URL", help="remove PROJECT/ID from the store of this gateway, with the token of an admin"
    )
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")


def _rm(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import is_ended, measure, remove

    settings = resolve_settings(arguments)
    if arguments.gateway is not None:
        return _rm_at_gateway(arguments, settings)
    if settings.store is not None:
        return _rm_stored(arguments, settings)
    root = Path(settings.dir)
    folders = list(dict.fromkeys(run_folder.find(reference, root) for reference in arguments.run))
    for folder in folders:
        if not is_ended(folder):
            raise TrainvitalsError(
                f"run {folder.name} has not ended, nothing was removed",
                hint="stop it first, or wait for it to end",
            )
    sizes = (f"{folder}  {quantities.format_bytes(measure(folder)[1])}" for folder in folders)
    if not _may_remove(arguments, len(folders), sizes):
        return 1
    for folder in folders:
        remove(folder)
        print(f"removed {one_line(folder)}")
    return 0


def _rm_stored(arguments: argparse.Namespace, settings: Settings) -> int:
    """From ClickHouse itself."""
    import getpass

    from trainvitals import runtime
    from trainvitals.fleet.removal import remove_runs
    from trainvitals.views.cli.hosts import open_settings_store

    runs = open_settings_store(settings)
    found = [runs.describe(key) for key in dict.fromkeys(runs.find(reference) for reference in arguments.run)]
    if not _may_remove(arguments, len(found), (f"{one_line(info.place)}  {one_line(info.name)}" for info in found)):
        return 1
    remove_runs(runs.store, [(info.project, info.id) for info in found], f"{getpass.getuser()}@{runtime.host_name()}")
    for info in found:
        print(f"removed {one_line(info.place)}")
    return 0


def _rm_at_gateway(arguments: argparse.Namespace, settings: Settings) -> int:
    from trainvitals.fleet.gateway_client import FarGateway, GatewayError
    from trainvitals.views.cli.ship import find_access

    keys = [reference.partition("/") for reference in dict.fromkeys(arguments.run)]
    for project, _, run in keys:
        if not project or not run:
            raise UsageError(
                f"'{one_line(project or run)}' is not PROJECT/ID",
                hint="such as: trainvitals runs rm vision/20261118-060000-baseline-k3f9 --gateway https://gw.example",
            )
    access = find_access([arguments.gateway], settings)
    if not _may_remove(arguments, len(keys), (f"{one_line(access.shown)}  {'/'.join(key[::2])}" for key in keys)):
        return 1
    gateway = FarGateway(access)
    for project, _, run in keys:
        try:
            gateway.remove(project, run)
        except GatewayError as error:
            raise TrainvitalsError(f"{project}/{run} was not removed: {one_line(str(error))}") from None
        print(f"removed {one_line(f'{project}/{run}')}")
    return 0


def _may_remove(arguments: argparse.Namespace, count: int, listed: Iterable[str]) -> bool:
    """Ask, unless that was answered before."""
    if arguments.yes:
        return True
    if not is_terminal(sys.stdin):
        raise UsageError("not a terminal, cannot ask for confirmation", hint="to remove without asking: --yes")
    for line in listed:
        print_below(line)
    if confirm(f"remove {count_of(count, 'run')}?"):
        return True
    print_line("nothing was removed")
    return False


# -- clean


def _add_clean(parser: Parser) -> None:
    parser.add_settings("dir")
    parser.add_argument("--max-age", type=duration, metavar="AGE", help="remove runs older than this, such as 30d")
    parser.add_argument(
        "--max-size-gb",
        type=number(0, above=True),
        metavar="GB",
        help="then remove the oldest runs until the total size is below this",
    )
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    parser.add_config()


def _clean(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import clean as clean_root
    from trainvitals.journal.retention import measure

    settings = resolve_settings(arguments)
    max_age = arguments.max_age if arguments.max_age is not None else settings.max_age
    max_size = arguments.max_size_gb if arguments.max_size_gb is not None else settings.max_size_gb
    if max_age is None and max_size is None:
        raise UsageError("no age or size given", hint="such as: trainvitals runs clean --max-age 30d")
    root = Path(settings.dir)
    doomed = clean_root(root, max_age=max_age, max_size_gb=max_size, dry_run=True, warn=lambda text: print_line(text))
    sizes = {folder: measure(folder)[1] for folder in doomed}
    if not arguments.dry_run and doomed:
        doomed = clean_root(root, max_age=max_age, max_size_gb=max_size)
    word = "would remove" if arguments.dry_run else "removed"
    for folder in doomed:
        print(f"{word} {one_line(folder)}")
    total = quantities.format_bytes(sum(sizes.get(folder, 0) for folder in doomed))
    print_line(f"{word} {count_of(len(doomed), 'run')}, {total}" if doomed else "nothing to remove")
    return 0


# -- seal


def _add_seal(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="+", help=RUN_HELP)
    parser.add_settings("dir", "keep_jsonl")


def _seal(arguments: argparse.Namespace) -> int:
    from trainvitals.journal.retention import is_ended, measure
    from trainvitals.journal.segment_writer import seal

    settings = resolve_settings(arguments)
    for folder in [run_folder.find(reference, Path(settings.dir)) for reference in arguments.run]:
        if not is_ended(folder):
            raise TrainvitalsError(
                f"run {folder.name} has not ended: its agent seals closed files", hint="wait for it to end"
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
        print(f"{one_line(folder.name)}: {count_of(len(files), 'file')}, {count_of(lines, 'line')} sealed; {sizes}")
    return 0


# -- check


def _add_check(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="*",
        help=f"{RUN_HELP} (default: all runs)",
    )
    parser.add_argument("--repair", action="store_true", help="repair what can be repaired")
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
                print(one_line(folder.name))
            faults += 1
            mended = arguments.repair and mend(fault)
            left += not mended
            hint = "repaired" if mended else "fix: --repair" if fault.mend and not arguments.repair else ""
            color = "green" if mended else "yellow"
            print(f"  {one_line(fault.file)} {paint(color, fault.text)}{f' ({hint})' if hint else ''}")
        if faults == 0:
            print(f"{one_line(folder.name)}  {paint('green', 'no damage')}")
    if not folders:
        print_line(f"no runs in {root}")
    return 1 if left else 0


_LIST_EXAMPLES = """
trainvitals runs
trainvitals runs --status failed --json
trainvitals runs 'lr>0.01 val/acc>=0.9' '-tag:old'
trainvitals runs 'name~^resnet(18|50)' project:cifar
"""
ACTIONS = (
    Action("list", "list the runs", _LIST_EXAMPLES, _add_list, _list),
    Action("show", "show one run", "trainvitals runs show latest", _add_show, _show),
    Action(
        "edit",
        "change the name, notes and tags of runs, including live ones",
        "trainvitals runs edit latest --name baseline --tag paper --untag draft\n"
        "trainvitals runs edit latest --notes - < notes.md",
        _add_edit,
        _edit,
    ),
    Action(
        "rm",
        "remove ended runs, from their folder or the store of a fleet",
        "trainvitals runs rm 20261115-2236 --yes\n"
        "trainvitals runs rm baseline --store clickhouse://ch.example:8123/trainvitals\n"
        "trainvitals runs rm vision/20261118-060000-baseline-k3f9 --gateway https://gw.example",
        _add_rm,
        _rm,
    ),
    Action(
        "clean",
        "remove old runs by age or total size; never active ones",
        "trainvitals runs clean --max-age 30d --max-size-gb 10 --dry-run",
        _add_clean,
        _clean,
    ),
    Action(
        "seal",
        "compress the files of an ended run to Parquet",
        "trainvitals runs seal latest",
        _add_seal,
        _seal,
    ),
    Action(
        "check",
        "check every file of a run for damage; --repair repairs it where possible",
        "trainvitals runs check latest\ntrainvitals runs check --repair",
        _add_check,
        _check,
    ),
)

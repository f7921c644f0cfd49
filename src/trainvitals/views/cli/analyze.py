"""`trainvitals analyze`: the statistics of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.reader import open_run
from trainvitals.safe_text import one_line
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, number, resolve_settings
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_elsewhere
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, is_terminal, print_json, width
from trainvitals.views.cli.verdicts import draw_verdicts
from trainvitals.views.data import quantities
from trainvitals.views.data.run_listing import list_json

DESCRIPTION = (
    "The statistics of a run: the trend of each metric with its significance, anomalies, changes of the level, a "
    "forecast with its interval, resources, memory that keeps growing, and, with --baseline or --earlier, regressions."
)

EXAMPLES = """
trainvitals analyze
trainvitals analyze latest --metric loss --metric val_loss --json
trainvitals analyze candidate --baseline stable
trainvitals analyze latest --earlier 5
"""
_SHOWN_PLACES = 3


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help=f"{RUN_HELP} (default: latest)",
    )
    parser.add_argument(
        "--metric", metavar="NAME", action="append", help="only this metric; may be repeated (default: the main ones)"
    )
    parser.add_argument("--baseline", metavar="RUN", action="append", help="compare with this run; may be repeated")
    parser.add_argument(
        "--earlier",
        type=number(1, whole=True),
        metavar="N",
        help="compare with the last N finished runs of the same project before it",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_settings("dir")
    add_hosts(parser)


def execute(arguments: argparse.Namespace) -> int:
    from trainvitals.views.data.analysis import describe_analysis

    if arguments.baseline and arguments.earlier:
        raise UsageError("give --baseline or --earlier, not both")
    settings = resolve_settings(arguments)
    references = [arguments.run or "latest", *(arguments.baseline or ())]
    runs: Runs
    opened: list[Reader]
    if is_elsewhere(arguments, settings):
        runs = open_elsewhere(arguments, settings)
        opened = [runs.open(runs.find(reference)) for reference in references]
    else:
        root = Path(settings.dir)
        runs = FolderRuns(root)
        opened = [open_run(reference, root) for reference in references]
    reader, *baselines = opened
    if arguments.earlier:
        baselines = _find_earlier(runs, reader, arguments.earlier)
    names = list(arguments.metric or ())
    missing = [name for name in names if name not in reader.names()]
    if missing:
        raise UsageError(f"the run has no metric '{missing[0]}'", hint=f"it has: {', '.join(reader.names()[:20])}")
    found = describe_analysis(reader, names, baselines)
    if arguments.json:
        print_json(dict(found))
    else:
        columns = width(sys.stdout) if is_terminal(sys.stdout) else None
        print(draw_analysis(found, Paint(sys.stdout), columns))
    return 0


def _find_earlier(runs: Runs, reader: Reader, count: int) -> list[Reader]:
    """The newest finished runs of the project that began before this one."""
    info = reader.info
    started = parse_time(info.started) or 0.0
    times = [(parse_time(row["started"]), row) for row in list_json(runs, runs.list_keys())]
    before = [(begun, row) for begun, row in times if begun is not None and begun < started]
    before.sort(key=lambda item: item[0])
    found = [row for _, row in before if row["project"] == info.project and row["status"] == "finished"][-count:]
    if not found:
        raise UsageError(f"there is no finished run of the project '{info.project}' before {info.id}")
    return [runs.open(row["key"]) for row in found]


def draw_analysis(found: Mapping[str, Any], paint: Paint, columns: int | None) -> str:
    """The statistics as tables; what there is none of is left out."""
    blocks = [paint("bold", one_line(found["run"]))]
    if found["from_step"] is not None:
        blocks[0] += paint("dim", f"  from step {found['from_step']:,} on")
    for draw, rows in (
        (_draw_trends, found["metrics"]),
        (_draw_places, [row for row in found["metrics"] if row["anomalies"] or row["changes"]]),
        (draw_verdicts, found["regressions"]),
        (_draw_resources, found["resources"]),
        (_draw_growth, [row for row in found["growth"] if row["grows"]]),
    ):
        if rows:
            blocks.append(draw(rows, paint, columns))
    if not found["metrics"] and not found["resources"]:
        blocks.append("no values were logged")
    return "\n\n".join(blocks)


def _draw_trends(metrics: Sequence[Mapping[str, Any]], paint: Paint, columns: int | None) -> str:
    rows = []
    for row in metrics:
        trend, ahead = row["trend"], row["forecast"]
        cells = (
            (
                Cell(trend["direction"], "dim" if trend["direction"] == "flat" else ""),
                quantities.format_value(trend["slope"] * 1000, 3),
                quantities.format_value(trend["robust_slope"] * 1000, 3),
                f"{trend['r_squared']:.2f}",
                "< 0.0001" if trend["p_value"] < 1e-4 else f"{trend['p_value']:.2g}",
            )
            if trend is not None
            else (Cell("too few values", "dim"), "", "", "", "")
        )
        interval = (
            f"{quantities.format_value(ahead['value'], 3)} ({quantities.format_value(ahead['low'], 3)} to "
            f"{quantities.format_value(ahead['high'], 3)}) at {ahead['x']:,.0f}"
            if ahead is not None
            else quantities.NONE
        )
        rows.append((one_line(row["metric"]), quantities.format_value(row["last"]), *cells, interval))
    header = ("metric", "last", "trend", "per 1,000 steps", "Theil-Sen", "r²", "p", "forecast (95 %)")
    return draw_table(header, rows, paint=paint, columns=columns, right=(1, 3, 4, 5, 6))


def _draw_places(metrics: Sequence[Mapping[str, Any]], paint: Paint, columns: int | None) -> str:
    rows = []
    for row in metrics:
        for kind, items in (("change", row["changes"]), ("anomaly", row["anomalies"])):
            for item in items[-_SHOWN_PLACES:]:
                text = (
                    f"{quantities.format_value(item['before'])} to {quantities.format_value(item['after'])} "
                    f"({quantities.format_change(item['change'])})"
                    if kind == "change"
                    else f"{item['kind']}: {quantities.format_value(item['value'])}"
                )
                step = item["x"] if kind == "change" else item["step"]
                rows.append((one_line(row["metric"]), kind, f"{step:,.0f}", text))
            if len(items) > _SHOWN_PLACES:
                rows.append((one_line(row["metric"]), kind, "", f"and {len(items) - _SHOWN_PLACES:,} before"))
    return draw_table(("metric", "kind", "step", ""), rows, paint=paint, columns=columns, right=(2,))


def _draw_resources(resources: Sequence[Mapping[str, Any]], paint: Paint, columns: int | None) -> str:
    rows = [
        (
            one_line(row["subject"]),
            row["metric"],
            *(quantities.format_measure(row[name], row["unit"]) for name in ("low", "mean", "median", "p95", "high")),
        )
        for row in resources
    ]
    header = ("device", "metric", "min", "mean", "median", "p95", "max")
    return draw_table(header, rows, paint=paint, columns=columns, right=(2, 3, 4, 5, 6))


def _draw_growth(growth: Sequence[Mapping[str, Any]], paint: Paint, columns: int | None) -> str:
    rows = [
        (
            Cell("keeps growing", "yellow"),
            one_line(row["subject"]),
            row["metric"],
            f"{quantities.format_value(row['per_hour'], 3)} per hour",
            quantities.format_change(row["share"]),
        )
        for row in growth
    ]
    return draw_table(("", "device", "metric", "growth", "so far"), rows, paint=paint, columns=columns)

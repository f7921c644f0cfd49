"""`trainvitals compare`: what differs between runs, which came out better, and how sure that is."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals.errors import RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, resolve_settings
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_elsewhere, open_keys, print_trouble
from trainvitals.views.cli.report import find_runs
from trainvitals.views.cli.terminal import Cell, Paint, draw_blocks, draw_table, is_terminal, print_json, shorten, width
from trainvitals.views.cli.verdicts import STYLES, draw_verdicts
from trainvitals.views.data import quantities
from trainvitals.views.data.comparison_matrix import (
    FROM_RUNS,
    MatrixCell,
    explain_matrix,
    make_matrix,
    name_seeds,
)
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.run_search import SearchError, find_compared, is_search

DESCRIPTION = (
    "Compare runs: what differs in their configuration, the last and best value of each metric, and a verdict with its "
    "confidence. The first run is the baseline. A verdict compares the last fifth of the steps that both runs have, "
    "and weighs the difference against the noise of each curve around its own trend, or between seeds if there are "
    "several."
)

EXAMPLES = """
trainvitals compare baseline candidate
trainvitals compare 20261115-2236 latest --fail-on-regression 5
trainvitals compare a b c --json | jq .verdicts
trainvitals compare baseline latest --config
trainvitals compare baseline 'tag:sweep config.lr>0.01'
"""
MAX_METRICS = 24
MAX_CONFIG = 40
SHOWN_ALIKE = 5
FEW_RUNS = 4
"""Up to which what differs between runs has a column for each."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="*",
        help=f"two or more runs: {RUN_HELP}; or a search in quotes, such as 'tag:a config.lr>0.01'",
    )
    parser.add_argument(
        "--config",
        action="store_true",
        dest="differences",
        help="show only differences in configuration, code, command, packages and machine",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--fail-on-regression",
        nargs="?",
        const=0.0,
        type=_percent_or_run,
        metavar="PERCENT",
        help="exit with code 3 if any metric is significantly worse than the baseline, by PERCENT or more (default: 0)",
    )
    parser.add_settings("dir")
    add_hosts(parser)


def _percent_or_run(text: str) -> float | str:
    """A percentage; any other word is a run that was typed after the flag without one."""
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        return text


def execute(arguments: argparse.Namespace) -> int:
    from trainvitals.views.data.comparison import describe_comparison

    runs, limit = list(arguments.run), arguments.fail_on_regression
    if isinstance(limit, str):
        runs, limit = _in_order(arguments.words, [*runs, limit]), 0.0
    if limit is not None and not limit >= 0:
        raise UsageError("--fail-on-regression takes a percentage of 0 or more")
    settings = resolve_settings(arguments)
    elsewhere = is_elsewhere(arguments, settings)
    opened = _open_far(runs, arguments, settings) if elsewhere else _open_here(runs, Path(settings.dir))
    found = describe_comparison(opened, [], points=4)
    if arguments.json:
        _print_json(found)
    else:
        columns = width(sys.stdout) if is_terminal(sys.stdout) else None
        draw = draw_differences if arguments.differences else draw_comparison
        print(draw(found, Paint(sys.stdout), columns))
    regressions = [] if limit is None else [item for item in found["verdicts"] if _is_regression(item, limit / 100)]
    titles = name_titles(found["runs"])
    for item in regressions:
        change = quantities.format_change(item["change"]) if item["change"] is not None else item["reason"]
        print_line(f"regression: {one_line(item['metric'])} of {titles[item['run']]}: {change}")
    return 3 if regressions else 0


def _open_here(references: Sequence[str], root: Path) -> Sequence[tuple[str, Reader]]:
    runs = FolderRuns(root)

    def search(text: str) -> list[str]:
        return [str(runs.folder(key)) for key in _search(runs, text)]

    found = _expand(references, lambda reference: str(run_folder.find(reference, root)), search, os.path.realpath)
    return find_runs(_require_two(found, references, runs), root)


def _open_far(
    references: Sequence[str], arguments: argparse.Namespace, settings: Settings
) -> Sequence[tuple[str, Reader]]:
    from trainvitals.lab.places import machine_of
    from trainvitals.lab.runs import MachineRuns

    runs = open_elsewhere(arguments, settings)

    def search(text: str) -> list[str]:
        if isinstance(runs, MachineRuns):
            if machine_of(text, (machine.name for machine in runs.machines)):
                return []  # a run of that machine
            print_trouble(runs)  # of these no run is found
        return _search(runs, text)

    return open_keys(runs, _require_two(_expand(references, runs.find, search), references, runs))


def _expand(
    references: Sequence[str],
    find: Callable[[str], str],
    search: Callable[[str], Sequence[str]],
    identify: Callable[[str], str] = str,
) -> list[str]:
    """With the runs that a search finds in its place, oldest first, unless a run is called like that."""
    found: list[str] = []
    for reference in references:
        try:
            found.append(find(reference))
        except RunNotFound:
            try:
                searched = search(reference) if is_search(reference) else []
            except SearchError as error:
                raise UsageError(error.message, hint=error.hint) from error
            if not searched:
                raise
            known = {identify(run) for run in found}
            found += [run for run in searched if identify(run) not in known]
    return found


def _search(runs: Runs, text: str) -> list[str]:
    return [row["key"] for row in find_compared(list_json(runs, runs.list_keys()), text)]


def _require_two(found: list[str], references: Sequence[str], runs: Runs) -> list[str]:
    if len(found) > 1:
        return found
    hint = "such as: trainvitals compare baseline latest"
    if not references:
        raise UsageError("need at least two runs to compare", hint=hint)
    (name,) = references
    rows = list_json(runs, runs.list_keys())
    # A name means the newest run that has it.
    if len(alike := [one_line(row["id"]) for row in rows if row["name"] == name]) > 1:
        search = shlex.quote(f'name:"{one_line(name)}"')
        more = ", ..." if len(alike) > SHOWN_ALIKE else ""
        named = ", ".join(alike[:SHOWN_ALIKE]) + more
        hint = f"{len(alike)} runs are called '{one_line(name)}': {named}; all of them: trainvitals compare {search}"
    raise UsageError("need at least two runs to compare", hint=hint)


def _in_order(words: Sequence[str], runs: Sequence[str]) -> list[str]:
    """The runs as they were typed: the first is the baseline."""
    return sorted(runs, key=list(words).index)


def _is_regression(verdict: Mapping[str, Any], share: float) -> bool:
    """Worse for certain, and by that much; what became NaN, or was 0 before, has no share."""
    return verdict["word"] == "worse" and (verdict["change"] is None or abs(verdict["change"]) >= share)


def _print_json(found: Mapping[str, Any]) -> None:
    print_json({key: found[key] for key in ("runs", "config", "others", "seeds", "metrics", "verdicts")})


def draw_comparison(found: Mapping[str, Any], paint: Paint, columns: int | None) -> str:
    """The comparison as text: runs, verdicts, metrics, configuration."""
    titles = name_titles(found["runs"])
    is_matrix = len(titles) >= FROM_RUNS and bool(found["verdicts"])
    blocks = [_draw_runs(found, titles, paint, columns)]
    blocks.append((_draw_matrix if is_matrix else _draw_verdicts)(found, titles, paint, columns))
    shown = {item["metric"] for item in found["verdicts"]} if is_matrix else set()
    metrics = [row for row in found["metrics"] if row["name"] not in shown]
    blocks += [_draw_metrics(metrics, titles, paint, columns)] if metrics else []
    blocks.append(_draw_config(found["config"], titles, paint, columns))
    if found["others"]:
        kinds = ", ".join(group["title"] for group in found["others"])
        blocks.append(paint("dim", f"also different: {kinds} (show with --config)"))
    return "\n\n".join(blocks)


def draw_differences(found: Mapping[str, Any], paint: Paint, columns: int | None) -> str:
    """Everything that differs before the first step."""
    titles = name_titles(found["runs"])
    blocks = (
        _draw_rows(f"{group['title']} differences", group["rows"], titles, paint, columns, limit=200)
        for group in found["others"]
    )
    return "\n\n".join([_draw_config(found["config"], titles, paint, columns, most=None), *blocks])


def name_titles(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the runs, or their ids where two share one."""
    names = [str(row["name"]) for row in runs]
    return [one_line(name if names.count(name) == 1 else row["id"]) for name, row in zip(names, runs, strict=True)]


def _draw_runs(found: Mapping[str, Any], titles: Sequence[str], paint: Paint, columns: int | None) -> str:
    seeds = name_seeds(found, titles)
    rows = []
    for place, (row, title) in enumerate(zip(found["runs"], titles, strict=True)):
        notes = ["baseline"] if place == 0 else []
        notes += [seeds[place]] if place in seeds else []
        notes += ["simulated GPUs"] if row["simulated"] else []
        rows.append(
            (
                Cell(title, "bold"),
                one_line(row["status"]),
                f"{row['step']:,}" if row["step"] is not None else quantities.NONE,
                quantities.format_duration(row["seconds"]),
                Cell(", ".join(notes), "yellow" if row["simulated"] else "dim"),
            )
        )
    return draw_table(("run", "status", "last step", "took", ""), rows, paint=paint, columns=columns, right=(2, 3))


def _draw_verdicts(found: Mapping[str, Any], titles: Sequence[str], paint: Paint, columns: int | None) -> str:
    if not found["verdicts"]:
        return paint("dim", "no verdict: the runs share no metric with a known better direction")
    return draw_verdicts(found["verdicts"], paint, columns)


def _draw_matrix(found: Mapping[str, Any], titles: Sequence[str], paint: Paint, columns: int | None) -> str:
    matrix = make_matrix(found)
    drawn = [_draw_cells([row[at] for row in matrix.rows]) for at in range(len(matrix.metrics))]
    rows = [(Cell(title, "bold"), *cells) for title, *cells in zip(titles, *drawn, strict=True)]
    text = draw_blocks(("run", *map(one_line, matrix.metrics)), rows, paint=paint, columns=columns)
    return "\n".join([text, *(paint("dim", one_line(line)) for line in explain_matrix(found, titles))])


def _draw_cells(cells: Sequence[MatrixCell]) -> list[Cell]:
    """Of one metric, with values below values and changes below changes."""
    parts = [
        (
            quantities.format_value(None if cell.value is None else float(cell.value)),
            cell.change,
            cell.mark,
        )
        for cell in cells
    ]
    widths = [max(map(len, column)) for column in zip(*parts, strict=True)]
    found = []
    for cell, (value, change, mark) in zip(cells, parts, strict=True):
        text = f"{value:>{widths[0]}} {change:>{widths[1]}} {mark}".rstrip()
        text = " ".join(filter(None, (text, cell.note, "*" if cell.is_best else "")))
        found.append(Cell(text, STYLES.get(cell.word, "")))
    return found


def _draw_metrics(
    metrics: Sequence[Mapping[str, Any]], titles: Sequence[str], paint: Paint, columns: int | None
) -> str:
    order = sorted(metrics, key=lambda row: row["better"] is None)
    rows = []
    for row in order[:MAX_METRICS]:
        cells: list[str] = []
        for place, value in enumerate(row["values"]):
            if value is None:
                cells.append(Cell(quantities.NONE, "dim"))
                continue
            extreme = {"lower": "low", "higher": "high"}.get(row["better"] or "")
            best = f" (best {quantities.format_value(value[extreme])})" if extreme else ""
            text = f"{quantities.format_value(value['last'])}{best}"
            cells.append(Cell(f"{text} *", "green") if row["best"] == place else Cell(text))
        rows.append((one_line(row["name"]), *cells))
    text = _draw_sides(("metric, last", *titles), rows, paint, columns)
    left = len(metrics) - len(rows)
    more = f"\nand {left:,} more metrics" if left > 0 else ""
    return f"{text}\n{paint('dim', f'* best value{more}')}"


def _draw_config(
    config: Sequence[Mapping[str, Any]],
    titles: Sequence[str],
    paint: Paint,
    columns: int | None,
    most: int | None = MAX_CONFIG,
) -> str:
    if not config:
        return paint("dim", "the configurations are identical")
    text = _draw_rows("configuration differences", config[:most], titles, paint, columns)
    left_out = len(config) - len(config[:most])
    return text + (f"\nand {left_out:,} more" if left_out else "")


def _draw_rows(
    title: str,
    differing: Sequence[Mapping[str, Any]],
    titles: Sequence[str],
    paint: Paint,
    columns: int | None,
    limit: int = 40,
) -> str:
    rows = [
        (
            one_line(row["key"]),
            *(quantities.NONE if item is None else shorten(one_line(item), limit) for item in row["values"]),
        )
        for row in differing
    ]
    return _draw_sides((title, *titles), rows, paint, columns)


def _draw_sides(header: Sequence[str], rows: Sequence[Sequence[str]], paint: Paint, columns: int | None) -> str:
    """A table with a column per run; of many runs, with a row for each: the longer side goes down."""
    if len(header) - 1 > max(len(rows), FEW_RUNS):
        header, *rows = zip(header, *rows, strict=True)
    return draw_blocks(header, rows, paint=paint, columns=columns)

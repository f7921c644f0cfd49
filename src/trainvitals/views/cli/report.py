"""`trainvitals report`: a run, or several compared, as a document to share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, number, one_of, resolve_settings
from trainvitals.views.cli.files import check_target, write_file
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_far_runs
from trainvitals.views.data import quantities
from trainvitals.views.data.run_search import MAX_COMPARED

if TYPE_CHECKING:  # numpy, which no `--help` waits for
    from trainvitals.journal.contracts import Reader
    from trainvitals.journal.reader import RunReader

DESCRIPTION = (
    "Write a report: summary, findings with evidence and advice, charts, resource usage, alerts, configuration and "
    "environment. HTML is one self-contained file with interactive charts that works offline. Markdown writes an "
    "image of the charts next to it. Several runs are compared, with the first as the baseline."
)
EXAMPLES = """
trainvitals report
trainvitals report latest -o report.md
trainvitals report baseline candidate -o comparison.html
trainvitals report latest -o - --format json | jq .runs[0].diagnosis.findings
"""


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="*",
        help=f"{RUN_HELP}; several for a comparison (default: latest)",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="output file; - for standard output (default: report.html, or the suffix of --format)",
    )
    parser.add_argument(
        "--format",
        type=one_of("html", "md", "json", "png", "svg"),
        metavar="FORMAT",
        help="one of html, md, json, png, svg (default: from the file name)",
    )
    parser.add_argument(
        "--theme", type=one_of("light", "dark"), default="light", metavar="THEME",
        help="light or dark, for images; HTML follows the browser (default: light)",
    )  # fmt: skip
    parser.add_argument(
        "--width", type=number(300, whole=True), default=1200, metavar="N", help="image width (default: 1200)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_settings("dir", "price_gpu_hour", "price_kwh", "price_currency")
    add_hosts(parser)
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
    from trainvitals.views.report import document

    settings = resolve_settings(arguments)
    references = arguments.run or ["latest"]
    runs: Sequence[tuple[str, Reader]]
    if is_elsewhere(arguments, settings):
        runs = open_far_runs(references, arguments, settings)
    else:
        runs = find_runs(references, Path(settings.dir))
    output = arguments.output or f"report.{arguments.format or 'html'}"
    target = Path(output)
    format = arguments.format or document.SUFFIXES.get(target.suffix.lower())
    if output == "-" and not format:
        raise UsageError("standard output needs --format", hint="such as: --format md")
    if format is None:
        print_it = "; a PDF is printed from the HTML in a browser" if target.suffix.lower() == ".pdf" else ""
        raise UsageError(
            f"'{target.suffix or target.name}' is not a report format",
            hint=f"one of .html, .md, .json, .png, .svg, or use --format{print_it}",
        )
    check_target(output, arguments.force)
    if format == "md" and output != "-":
        files = _draw_markdown(runs, target, settings, arguments.theme)
        for path, content in files.items():
            write_file(str(path), content, force=arguments.force)
        sizes = (f"{path} ({quantities.format_bytes(len(content))})" for path, content in files.items())
        print_line(f"wrote {' and '.join(sizes)}")
        return 0
    content = document.draw_report(runs, format, settings, theme=arguments.theme, width=min(arguments.width, 10_000))
    write_file(output, content, force=arguments.force)
    if output != "-":
        print_line(f"wrote {target} ({quantities.format_bytes(len(content))})")
    return 0


def find_runs(references: list[str], root: Path) -> list[tuple[str, RunReader]]:
    """Each run once, under a unique name."""
    folders = [run_folder.find(reference, root) for reference in references]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UsageError("the same run is given twice")
    if len(folders) > MAX_COMPARED:
        raise UsageError(f"cannot compare more than {MAX_COMPARED} runs, got {len(folders)}")
    return name_runs(folders)


def _draw_markdown(
    runs: Sequence[tuple[str, Reader]], target: Path, settings: Settings, theme: str
) -> dict[Path, bytes]:
    from trainvitals.views.report import document

    try:
        return document.draw_markdown_with_pictures(runs, target, settings, theme)
    except TrainvitalsError as error:
        print_line(f"no images: {error.message}")
        return {target: document.draw_report(runs, "md", settings)}

"""`trainvitals export`: a run for other programs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from trainvitals.analysis.wording import count_of
from trainvitals.journal.contracts import Reader
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, one_of, resolve_settings
from trainvitals.views.cli.files import check_target, write_file, write_whole
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_far_runs
from trainvitals.views.cli.terminal import is_terminal
from trainvitals.views.data import quantities
from trainvitals.views.data.export import FORMATS, TABLES, Rows, write_rows
from trainvitals.views.data.media import count_media, format_media, write_zip

DESCRIPTION = (
    "Export the rows of a run as JSON, JSONL, CSV or Parquet, live or ended; or the run as a page (html), or its "
    "charts as an image (png, svg), drawn without a browser; or its media as an archive (zip). NaN and infinity are "
    "kept: the strings NaN, Infinity and -Infinity in JSON, nan and inf in CSV, native values in Parquet. A step is "
    "one row; CSV and Parquet have one column per name, and a missing value is an empty cell or null. Or send to "
    "TensorBoard, MLflow, W&B or a gateway what is missing there."
)

EXAMPLES = """
trainvitals export latest --format csv -o loss.csv
trainvitals export latest --format png --panel loss -o loss.png
trainvitals export latest --format jsonl --table gpu | jq .utilization_percent
trainvitals export 20261115-2236 --format parquet --table all -o run.parquet
trainvitals export latest --format zip -o media.zip
trainvitals export latest --to mlflow http://127.0.0.1:5000
trainvitals export latest --to gateway https://gw.example
"""

DRAWN = ("html", "png", "svg")
ARCHIVE = "zip"


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "--format",
        type=one_of(*FORMATS, *DRAWN, ARCHIVE),
        metavar="FORMAT",
        help=f"one of {', '.join((*FORMATS, *DRAWN, ARCHIVE))}",
    )
    parser.add_argument(
        "--to",
        nargs="+",
        metavar="TRACKER",
        help="send to tensorboard [DIR], mlflow [URI], wandb [PROJECT], gateway [ADDRESS] or an exporter of a plugin "
        "what it has not got",
    )
    parser.add_argument(
        "--table",
        type=one_of(*TABLES, "all"),
        default="training",
        metavar="TABLE",
        help=f"one of {', '.join(TABLES)}, or all, with the table in each row (default: training)",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="output file; - for standard output (default)"
    )
    parser.add_argument(
        "--panel",
        action="append",
        metavar="NAME",
        help="for png and svg: a panel such as loss or gpu_power, or a metric; may be repeated (default: all)",
    )
    parser.add_argument(
        "--theme",
        type=one_of("light", "dark"),
        default="light",
        metavar="THEME",
        help="for png and svg: light or dark (default: light)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    parser.add_settings("wandb_run_name", "wandb_offline", "dir")
    add_hosts(parser)


def execute(arguments: argparse.Namespace) -> int:
    if (arguments.format is None) == (arguments.to is None):
        raise UsageError("use either --format or --to", hint="such as: --format csv -o loss.csv")
    if arguments.to is not None:
        from trainvitals.views.cli.export_to import send

        return send(arguments.run, arguments.to, resolve_settings(arguments))
    from trainvitals.journal.reader import open_run  # numpy, which no `--help` waits for

    settings = resolve_settings(arguments)
    reader: Reader
    if is_elsewhere(arguments, settings):
        if arguments.format == ARCHIVE:
            raise UsageError("an archive requires a run folder on this machine", hint="other formats: --format parquet")
        ((_, reader),) = open_far_runs([arguments.run], arguments, settings)
    else:
        reader = open_run(arguments.run, settings.dir)
    to_stdout = arguments.output == "-"
    if to_stdout and arguments.format in ("parquet", ARCHIVE) and is_terminal(sys.stdout):
        word = {"parquet": "Parquet", ARCHIVE: "an archive"}[arguments.format]
        raise UsageError(f"not writing {word} to a terminal", hint=f"choose a file: -o run.{arguments.format}")
    target = Path(arguments.output)
    check_target(arguments.output, arguments.force)
    if arguments.format in DRAWN:
        return _draw(arguments, reader)
    if arguments.format == ARCHIVE:
        return _pack(reader, target, to_stdout)
    progress = ProgressLine(to_stdout)
    rows = Rows(reader, TABLES if arguments.table == "all" else (arguments.table,), progress.step)

    def write(file: BinaryIO) -> None:
        for name, column in write_rows(rows, arguments.format, file).items():
            clash = f"'{one_line(name)}' differs from another name only in case"
            print_line(f"{clash}: its column is '{one_line(column)}'")

    try:
        if to_stdout and is_terminal(sys.stdout):
            with tempfile.TemporaryFile() as exact:
                write(exact)
                exact.seek(0)
                for line in exact:  # a file gets every byte, a terminal nothing that it would obey
                    print(one_line(line.decode("utf-8", "replace").rstrip("\n")))
        elif to_stdout:
            write(sys.stdout.buffer)
            sys.stdout.buffer.flush()
        else:
            write_whole(target, write)
    finally:
        progress.clear()
    if progress.count == 0:
        print_line(f"run {one_line(reader.info.id)} has no rows in table '{arguments.table}'")
    elif not to_stdout:
        print_line(
            f"wrote {target} ({count_of(progress.count, 'row')}, {quantities.format_bytes(target.stat().st_size)})"
        )
    return 0


def _pack(reader: Reader, target: Path, to_stdout: bool) -> int:
    """The media of the run as files in an archive."""
    counts = count_media(reader.media())
    if not counts:
        print_line(f"run {one_line(reader.info.id)} has no media")
        return 0
    if to_stdout:
        write_zip(reader, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        write_whole(target, lambda file: write_zip(reader, file))
        print_line(f"wrote {target} ({format_media(counts)}, {quantities.format_bytes(target.stat().st_size)})")
    return 0


def _draw(arguments: argparse.Namespace, reader: Reader) -> int:
    """A page or a picture instead of lines."""
    from trainvitals.views.report import document

    runs = [(reader.info.id, reader)]
    if arguments.format == "html":
        content = document.draw_report(runs, "html", resolve_settings(arguments))
    else:
        content = document.draw_picture(runs, arguments.format, names=arguments.panel or (), theme=arguments.theme)
    write_file(arguments.output, content, force=arguments.force)
    if arguments.output != "-":
        print_line(f"wrote {arguments.output} ({quantities.format_bytes(len(content))})")
    return 0


class ProgressLine:
    """A counter on the terminal, for exports that take a while."""

    def __init__(self, quiet: bool) -> None:
        self.count = 0
        self._shown = is_terminal(sys.stderr) and not (quiet and is_terminal(sys.stdout))

    def step(self) -> None:
        self.count += 1
        if self._shown and self.count % 50_000 == 0:
            print(f"\r\x1b[K{self.count:,} rows", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown and self.count >= 50_000:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

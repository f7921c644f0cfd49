"""`trainvitals config`: the settings in force, and files of older monitors in our names."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trainvitals.settings import TABLE, resolve
from trainvitals.settings.files import Entry, read_text
from trainvitals.settings.kinds import NUMBERS
from trainvitals.settings.resolution import complaints
from trainvitals.settings.table import explain_removed, find
from trainvitals.settings.translation import read_entries
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser
from trainvitals.views.cli.files import check_target, write_file
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, is_terminal, width

_WIDE = 180
"""Columns from which the table with the meanings fits."""


def _add_show(parser: Parser) -> None:
    parser.add_argument("--describe", action="store_true", help="describe each setting, its variable and default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_config()


def _show(arguments: argparse.Namespace) -> int:
    paint = Paint(sys.stdout)
    columns = width(sys.stdout) if is_terminal(sys.stdout) else None
    if arguments.describe:
        _describe(arguments.json, paint, columns)
        return 0
    settings = resolve(config=arguments.config)
    if arguments.json:
        print(json.dumps({row.name: {"value": row.text, "origin": row.origin} for row in settings}, indent=2))
    else:
        rows = [
            (
                row.name,
                Cell(_brief(row.text), "" if row.origin == "default" else "bold"),
                Cell(row.origin, "dim" if row.origin == "default" else "cyan"),
            )
            for row in settings
        ]
        print(draw_table(("setting", "value", "from"), rows, paint=paint))
    for text in complaints(settings):
        print_line(text)
    return 0


def _brief(text: str) -> str:
    """A long list by its length; --json has it all."""
    items = text.split(",")
    return text if len(text) <= 40 else f"{items[0]}, … ({len(items)} total)" if len(items) > 1 else text


def _describe(as_json: bool, paint: Paint, columns: int | None) -> None:
    if as_json:
        table = {
            row.name: {
                "variable": row.variable,
                "type": row.kind.word,
                "default": row.kind.format(row.default),
                "help": row.help,
            }
            for row in TABLE
        }
        print(json.dumps(table, indent=2))
        return
    header = ("setting", "default", "variable", "meaning")
    rows = [
        (Cell(row.name, "bold"), _brief(row.kind.format(row.default)), Cell(row.variable, "dim"), row.help)
        for row in TABLE
    ]
    if columns is None or columns >= _WIDE:
        print(draw_table(header, rows, paint=paint))
        return
    import textwrap

    for name, default, _, help in rows:
        print(f"{paint('bold', name)}  {paint('dim', default)}")
        print(textwrap.fill(help, columns - 2, initial_indent="    ", subsequent_indent="    "))


def _add_convert(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="configuration file of an older monitor")
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="-", help="output file; - for standard output (default)"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def _convert(arguments: argparse.Namespace) -> int:
    check_target(arguments.output, arguments.force)
    path: Path = arguments.file
    resolve(config=path, environ={})  # every value fits, or is reported with its line
    entries, notes = read_entries(path, read_text(path, str(path)), str(path))
    notes += [f"{origin}: {removed}" for name, _, origin in entries if (removed := explain_removed(name))]
    write_file(arguments.output, _render(entries).encode(), force=arguments.force)
    for note in notes:
        print_line(note)
    if arguments.output != "-":
        Path(arguments.output).chmod(path.stat().st_mode & 0o777)  # what may hold a secret is not read by more people
        print_line(f"wrote {arguments.output}")
    return 0


def _render(entries: Iterable[Entry]) -> str:
    """The settings as trainvitals.yaml."""
    import yaml

    document: dict[str, Any] = {}
    for name, value, origin in entries:
        if explain_removed(name) or value is None:
            continue
        row = find(name, origin)
        section, _, key = row.name.rpartition(".")
        parsed = row.kind.parse(value)
        if row.kind.word == "duration":
            value = row.kind.format(parsed)
        elif isinstance(parsed, (bool, int, float)) or row.kind is NUMBERS:
            value = parsed  # text until now; what else there is stays as it was written
        (document.setdefault(section, {}) if section else document)[key] = value
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True) if document else "{}\n"


ACTIONS = (
    Action(
        "show",
        "show every setting with its current value and where it comes from: a flag, a TRAINVITALS_* variable, "
        "trainvitals.yaml or pyproject.toml, or the default",
        "trainvitals config\n"
        "trainvitals config --describe            # what each setting means\n"
        "TRAINVITALS_INTERVAL=0.5 trainvitals config --json",
        _add_show,
        _show,
    ),
    Action(
        "convert",
        "write the configuration file of an older monitor in the names of trainvitals",
        "trainvitals config convert monitoring.yaml -o trainvitals.yaml",
        _add_convert,
        _convert,
    ),
)

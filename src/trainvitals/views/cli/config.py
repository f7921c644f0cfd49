"""`trainvitals config`: the settings in force."""

from __future__ import annotations

import argparse
import json
import sys

from trainvitals.settings import TABLE, resolve
from trainvitals.settings.resolution import complaints
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Parser
from trainvitals.views.cli.terminal import Cell, Paint, draw_table, is_terminal, width

DESCRIPTION = (
    "Every setting with its current value and where it comes from: a flag, a TRAINVITALS_* variable, "
    "trainvitals.yaml or pyproject.toml, or the default."
)
EXAMPLES = """
trainvitals config
trainvitals config --describe            # what each setting means
TRAINVITALS_INTERVAL=0.5 trainvitals config --json
"""


_WIDE = 180
"""Columns from which the table with the meanings fits."""


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--describe", action="store_true", help="describe each setting, its variable and default")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_config()


def execute(arguments: argparse.Namespace) -> int:
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

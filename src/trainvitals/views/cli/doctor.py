"""`trainvitals doctor`: what was found, what is missing, and what to type."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from trainvitals import __version__
from trainvitals.safe_text import one_line
from trainvitals.views.cli import checks
from trainvitals.views.cli.arguments import Parser
from trainvitals.views.cli.checks import Checked
from trainvitals.views.cli.terminal import Paint, is_terminal, width

DESCRIPTION = (
    "Check everything trainvitals uses and report what is missing, with the command that fixes it. Changes nothing. "
    "Exits with code 1 if a check fails."
)

EXAMPLES = """
trainvitals doctor
trainvitals doctor --json
"""

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "yellow"),
    "none": ("-", "dim"),
    "fail": ("FAIL", "bold red"),
}


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(arguments: argparse.Namespace) -> int:
    settings, found = checks.read_settings()
    for check in checks.CHECKS:
        found += check(settings)
    failed = [item for item in found if item.state == "fail"]
    if arguments.json:
        print(json.dumps({"ok": not failed, "findings": [item._asdict() for item in found]}, indent=2))
        return 1 if failed else 0
    paint, columns = Paint(sys.stdout), width(sys.stdout) if is_terminal(sys.stdout) else 100
    print(f"trainvitals {__version__}\n")
    for item in found:
        print(draw_finding(item, paint, columns))
    print()
    if failed:
        print(paint("bold red", f"{len(failed)} of {len(found)} checks failed, see FAIL above"))
    else:
        print("all checks passed")
    return 1 if failed else 0


def draw_finding(item: Checked, paint: Paint, columns: int) -> str:
    """A mark, the subject, the text wrapped, and what to type."""
    mark, style = _MARKS[item.state]
    lines = textwrap.wrap(one_line(item.text), max(columns - 21, 30), break_on_hyphens=False, break_long_words=False)
    first, *rest = lines or [""]
    drawn = [f"  {paint(style, f'{mark:<4}')}  {item.subject:<12} {first}"]
    drawn += [f"{'':<21}{line}" for line in rest]
    if item.fix:
        drawn.append(f"{'':<21}{paint('cyan', one_line(item.fix))}")
    return "\n".join(drawn)

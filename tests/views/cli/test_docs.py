"""Every command and every flag is documented as it is. `UPDATE_DOCS=1 pytest tests/views/cli/test_docs.py` rewrites
the tables of flags."""

from __future__ import annotations

import os
import re
from importlib import import_module
from pathlib import Path

import pytest

from trainvitals.views.cli.arguments import Parser, actions_of, make_parser
from trainvitals.views.cli.main import COMMANDS

DOCS = Path(__file__).parents[3] / "docs"
COMMAND_NAMES = [name for name, _, _ in COMMANDS]


def parsers_of(command: str) -> dict[str, Parser]:
    """The parsers of a command by what is typed, such as `runs list`."""
    name, module_name, help = next(row for row in COMMANDS if row[0] == command)
    module = import_module(module_name)
    actions = actions_of(module)
    if not actions:
        return {name: make_parser(f"trainvitals {name}", module, help)}
    return {f"{name} {action.name}": make_parser(f"trainvitals {name}", module, help, action) for action in actions}


def draw_flags(parser: Parser) -> str:
    lines = ["| argument | meaning |", "|---|---|"]
    for action in parser._actions:
        if action.dest == "help":
            continue
        metavar = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
        words = ", ".join(action.option_strings) or metavar
        if action.option_strings and action.nargs != 0:
            words += f" {metavar}"
        lines.append(f"| `{words}` | {(action.help or '').replace('%%', '%').replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_the_page_of_a_command_has_its_flags_as_they_are(command: str) -> None:
    page = DOCS / "commands" / f"{command}.md"
    text = page.read_text()
    for typed, parser in parsers_of(command).items():
        begin, end = f"<!-- flags of {typed} -->\n", "<!-- end of flags -->"
        assert begin in text, f"{page} has no table for `trainvitals {typed}`"
        before, _, rest = text.partition(begin)
        found, _, after = rest.partition(end)
        wanted = draw_flags(parser) + "\n"
        if os.environ.get("UPDATE_DOCS"):
            text = before + begin + wanted + end + after
            page.write_text(text)
        else:
            assert found == wanted


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_flags_named_in_the_prose_of_a_page_exist(command: str) -> None:
    text = (DOCS / "commands" / f"{command}.md").read_text()
    known = {flag for parser in parsers_of(command).values() for flag in parser.flags()}
    lines = [
        line for line in text.splitlines() if f"trainvitals {command}" in line and not line.lstrip().startswith("#")
    ]
    for line in lines:
        own = line.partition(f"trainvitals {command}")[2].partition(" -- ")[0].partition("|")[0].partition("`")[0]
        for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", own):
            assert flag in known, f"{flag} in: {line}"


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_every_command_is_in_the_overview(command: str) -> None:
    assert f"(commands/{command}.md)" in (DOCS / "commands.md").read_text()


@pytest.mark.parametrize("command", COMMAND_NAMES)
def test_help_is_complete_and_has_an_example(command: str) -> None:
    for typed, parser in parsers_of(command).items():
        text = parser.format_help()
        assert "examples:" in text, typed
        assert f"trainvitals {command}" in text.partition("examples:")[2], typed
        for action in parser._actions:
            assert action.help, f"{typed}: {action.option_strings or action.dest} has no help"

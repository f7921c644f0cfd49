"""Flags of the commands: what argparse lacks is here.

An unknown flag or word is an error that names it and suggests the nearest; settings get their flag, type and help
from the settings table, so that a setting is described once. Tested in tests/views/cli/test_main.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from trainvitals.errors import TrainvitalsError, nearest
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings, complaints, resolve
from trainvitals.settings.resolution import mark_warned
from trainvitals.settings.table import find
from trainvitals.stderr import print_line
from trainvitals.views.cli import terminal

RUN_HELP = "name, run id or a unique part of either, folder, or 'latest'"
"""How a run is named on a command line: as `journal.folder.find` understands it."""


class UsageError(TrainvitalsError):
    """A command line that cannot be understood; exit code 2."""


class Action(NamedTuple):
    """One of several things a command does: `trainvitals runs rm`."""

    name: str
    help: str
    examples: str
    add_arguments: Callable[[Parser], None]
    execute: Callable[[argparse.Namespace], int]


class Parser(argparse.ArgumentParser):
    """argparse with our errors and help."""

    def __init__(self, prog: str, description: str = "", examples: str = "") -> None:
        epilog = "examples:\n" + "\n".join(f"  {line}".rstrip() for line in examples.strip().splitlines())
        super().__init__(
            prog=prog,
            description=description,
            epilog=epilog if examples.strip() else None,
            formatter_class=_Formatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.add_argument("-h", "--help", action="help", help="show this help and exit")
        self.setting_names: list[str] = []
        self.search = ""
        """The argument that takes the words of a search, if the command searches."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message.removeprefix("argument "), hint=f"see: {self.prog} --help")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments; raises UsageError for what is not known."""
        left_out: list[str] = []
        if self.search:
            # Our flags have one letter or two dashes: `-tag:a` is a part of a search, what must not be.
            left_out = [word for word in arguments if len(word) > 2 and word[0] == "-" and word[1] != "-"]
            arguments = [word for word in arguments if word not in left_out]
        known, unknown = self.parse_known_args(list(arguments))
        if self.search:
            words = [word for word in unknown if not word.startswith("-")]  # those after a flag
            setattr(known, self.search, [*getattr(known, self.search), *words, *left_out])
            unknown = [word for word in unknown if word not in words]
        if unknown:
            word = unknown[0].partition("=")[0]
            if word.startswith("-") and word != "-":
                self.error(f"unknown flag '{word}'{nearest(word, self.flags())}")
            self.error(f"unexpected argument '{one_line(word)}'")
        known.setting_names = self.setting_names
        known.words = list(arguments)  # as typed, for a command that starts itself again
        return known

    def flags(self) -> list[str]:
        """Every flag of this command."""
        return sorted(flag for action in self._actions for flag in action.option_strings)

    def add_search(self, name: str, metavar: str, help: str) -> None:
        """Words of a search, some of which may begin with a dash."""
        self.add_argument(name, metavar=metavar, nargs="*", help=help)
        self.search = name

    def add_settings(self, *names: str) -> None:
        """A flag for each of these settings."""
        for name in names:
            row = find(name, "flag")
            self.setting_names.append(row.attribute)
            if isinstance(row.default, bool):
                word = "--no-" + row.flag[2:] if row.default else row.flag
                help = f"do not {_lower_first(row.help)}" if row.default else _lower_first(row.help)
                self.add_argument(
                    word,
                    dest=row.attribute,
                    action="store_const",
                    const=not row.default,
                    help=help,
                    default=None,
                )
                continue
            default = row.kind.format(row.default)
            self.add_argument(
                row.flag,
                dest=row.attribute,
                metavar=_METAVARS.get(row.kind.word, "VALUE"),
                help=f"{_lower_first(row.help)} (default: {default})".replace("%", "%%").replace("`", ""),
            )

    def add_config(self) -> None:
        """`--config FILE`."""
        self.add_argument(
            "--config",
            type=Path,
            metavar="FILE",
            help="settings file (default: trainvitals.yaml or pyproject.toml in this folder or above)",
        )


_METAVARS = {
    "address or folder": "URI",
    "duration": "SECONDS",
    "path": "DIR",
    "name": "NAME",
    "integer": "N",
    "list of GPUs": "LIST",
    "list of URLs": "URLS",
}


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps the description and leaves the examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=min(terminal.width(sys.stdout), 100))

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


def resolve_settings(arguments: argparse.Namespace) -> Settings:
    """The effective settings under the given flags; warns about unknown variables."""
    flags: dict[str, Any] = {name: getattr(arguments, name) for name in arguments.setting_names}
    settings = resolve(flags=flags, config=getattr(arguments, "config", None))
    for text in complaints(settings):
        print_line(text)
    mark_warned(settings)
    return settings


def one_of(*words: str) -> Callable[[str], str]:
    """A type for argparse: one of these words, or an error that suggests the nearest."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"'{text}' is not one of {', '.join(words)}{nearest(text, words)}")
        return text

    return parse


def number(low: float, *, above: bool = False, whole: bool = False) -> Callable[[str], Any]:
    """A type for argparse: a finite number of at least `low`, or above it."""

    def parse(text: str) -> float | int:
        kind = "an integer" if whole else "a number"
        expected = f"'{text}' is not {kind} {'above' if above else 'of at least'} {low:g}"
        try:
            value: float | int = int(text) if whole else float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(expected) from None
        if not low <= value < float("inf") or (above and value == low):
            raise argparse.ArgumentTypeError(expected)
        return value

    return parse


def duration(text: str) -> float:
    """A type for argparse: seconds, or text such as `10s`, `5m`, `30d`."""
    from trainvitals.settings.kinds import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"'{text}' is not {error}") from None
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a non-negative duration")
    return seconds


def actions_of(module: ModuleType) -> tuple[Action, ...]:
    """What a command can do, the usual thing first; a command that does one thing has none."""
    found: tuple[Action, ...] = getattr(module, "ACTIONS", ())
    return found


def make_parser(prog: str, module: ModuleType, help: str, action: Action | None = None) -> Parser:
    """The parser of a command, or of one action of it."""
    if action is not None:
        parser = Parser(f"{prog} {action.name}", _sentence(action.help), action.examples)
        action.add_arguments(parser)
        return parser
    parser = Parser(prog, getattr(module, "DESCRIPTION", _sentence(help)), getattr(module, "EXAMPLES", ""))
    module.add_arguments(parser)
    return parser


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def draw_actions(prog: str, help: str, actions: Sequence[Action]) -> str:
    """The help of a command with several actions."""
    lines = [
        f"usage: {prog} [{' | '.join(action.name for action in actions)}] ...",
        "",
        _sentence(help),
        "",
        "actions:",
    ]
    size = max(len(action.name) for action in actions)
    for place, action in enumerate(actions):
        usual = " (default)" if place == 0 else ""
        lines.append(f"  {action.name:<{size}}  {action.help}{usual}")
    lines += ["", f"Flags of an action: {prog} ACTION --help", "", "examples:"]
    lines += [f"  {line}" for action in actions for line in action.examples.strip().splitlines()]
    return "\n".join(lines)


def run_command(prog: str, module: ModuleType, help: str, arguments: Sequence[str]) -> int:
    """Parse and execute one command."""
    actions = actions_of(module)
    if not actions:
        parsed = make_parser(prog, module, help).parse(arguments)
        return int(module.execute(parsed))
    if arguments and arguments[0] in ("-h", "--help"):
        print(draw_actions(prog, help, actions))
        return 0
    names = [action.name for action in actions]
    chosen = actions[0]
    parser = make_parser(prog, module, help, chosen)
    if arguments and not arguments[0].startswith("-"):
        word = arguments[0]
        if word in names:
            chosen, arguments = actions[names.index(word)], arguments[1:]
            parser = make_parser(prog, module, help, chosen)
        elif not parser.search or nearest(word, names):
            search = f"; to search for it: {parser.prog} {one_line(word)}" if parser.search else ""
            known = nearest(word, names) or f", one of {', '.join(names)}"
            raise UsageError(
                f"unknown action '{one_line(word)}'{known}",
                hint=f"see: {prog} --help{search}",
            )
    return chosen.execute(parser.parse(arguments))

"""What a run says of itself on a terminal: a line when it begins, two or three when it ends."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from trainvitals import catalog
from trainvitals.journal.run_info import default_root, shorten_path
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_error, print_line
from trainvitals.trainer import join, notebook

_TAIL_ROWS = 1000
"""Newest lines in which a loss is looked for."""


def are_wanted(settings: Settings, environ: Mapping[str, str]) -> bool:
    """On a terminal only; below `trainvitals run`, that command has the word."""
    return settings.summary and not environ.get("TRAINVITALS_RUN_DIR") and _is_terminal()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError, OSError):
        return False  # none, or closed


def announce(run_id: str, folder: Path, settings: Settings) -> None:
    """Say which run this is."""
    if are_wanted(settings, os.environ):
        print_line(describe(run_id, folder))


def describe(run_id: str, folder: Path) -> str:
    """One line: which run, where it is, how to look at it."""
    return f"run {one_line(run_id)} in {one_line(shorten_path(folder))}; {how_to_look(folder)}"


def how_to_look(folder: Path) -> str:
    """What to type to see a run while it trains."""
    root = folder.parent.parent
    if default_root().absolute() == root:
        return "watch it with: trainvitals top, trainvitals serve"
    of_run, of_all = (shlex.quote(one_line(shorten_path(path))) for path in (folder, root))
    return f"watch it with: trainvitals top {of_run}, trainvitals serve --dir {of_all}"


def sum_up(run_id: str, folder: Path, settings: Settings, status: str, last_step: int, file: Path | None) -> None:
    """How the run ended, how far it came, its last loss, which alerts fired, where it is. `file` has the newest
    lines of this process. A notebook has more to show than text: there the first line was enough."""
    if not are_wanted(settings, os.environ) or notebook.find_shell() is not None:
        return
    parts = [f"run {one_line(run_id)} {status}"]
    parts += [f"last step {last_step:,}"] if last_step >= 0 else []
    parts += [loss] if file is not None and (loss := find_last_loss(file)) else []
    lines = [f"trainvitals: {', '.join(parts)}"]
    lines += [f"  {problems}: trainvitals diagnose {_refer(folder)}"] if (problems := _count_alerts(folder)) else []
    lines.append(f"  folder {one_line(shorten_path(folder))}, details: trainvitals runs show {_refer(folder)}")
    print_error("\n".join(lines))


def _refer(folder: Path) -> str:
    """The run, as a command finds it from here."""
    is_found = default_root().absolute() == folder.parent.parent
    return shlex.quote(one_line(folder.name if is_found else shorten_path(folder)))


def find_last_loss(file: Path) -> str:
    """`train/loss 0.1234`; empty if there is none among the newest lines."""
    for place, row in enumerate(join.read_backwards(file)):
        name = catalog.find_spelling("training", "loss", row)
        if name is not None:
            value = row[name]  # NaN and infinity are words
            return f"{one_line(name)} {value if isinstance(value, str) else format(value, '.4g')}"
        if place >= _TAIL_ROWS:
            break
    return ""


def _count_alerts(folder: Path) -> str:
    from trainvitals.alerts.records import count_fired
    from trainvitals.analysis.health import format_problems
    from trainvitals.journal.documents.findings import Counts
    from trainvitals.journal.reader import RunReader

    return format_problems(count_fired(RunReader(folder).alerts(), None).ever, Counts())

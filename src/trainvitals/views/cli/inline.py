"""Draws runs for a notebook: a line of JSON on standard output for each picture, until they have ended.

Not a command: `trainvitals.trainer.showing` starts it, and goes on when it fails. Tested in
tests/trainer/test_showing.py.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import layout
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import Settings, resolve

WIDTH = 800
"""Fits the cell of a JupyterLab with its side bar, in a window that is 1280 wide."""
PAUSE_SECONDS = 2.0
SHARE = 0.05
"""Of one core, at most, for drawing again and again: the training needs them."""
LOOK_SECONDS = 0.2


def main() -> int:
    """Draw at once, then whenever the runs have changed. Ends with them, or with the kernel."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--theme", required=True)
    parser.add_argument("--until-pid", type=int, required=True)
    parser.add_argument("folders", type=Path, nargs="+")
    given = parser.parse_args()
    if hasattr(os, "nice"):
        os.nice(10)
    settings = resolve()
    for number in count():
        before = _stamp(given.folders), _stamp_descriptions(given.folders)
        used = time.process_time()
        if not _draw(given.folders, settings, given.theme):
            break
        cost = time.process_time() - used if number else 0.0  # the first one imports what draws
        earliest = time.monotonic() + max(PAUSE_SECONDS, cost / SHARE)
        if not _wait_for_change(given.folders, before, earliest, given.until_pid):
            break
    return 0


def _draw(folders: Sequence[Path], settings: Settings, theme: str) -> bool:
    """Whether any of the runs goes on."""
    from trainvitals.views.report.document import draw_inline

    runs = name_runs(folders)  # anew each time: a reader keeps what it has read
    is_live = any(reader.info.is_live for _, reader in runs)
    try:
        svg = draw_inline(runs, settings, theme=theme, width=WIDTH)
    except TrainvitalsError:
        return is_live  # such as nothing to compare yet
    words = ", ".join(f"{key} ({reader.info.status})" for key, reader in runs)
    data = {"image/svg+xml": svg, "text/plain": f"trainvitals run {words}"}
    metadata: dict[str, Any] = {}
    png = _draw_png(svg)
    if png is not None:
        data["image/png"] = base64.b64encode(png).decode()
        metadata["image/png"] = {"width": WIDTH}
    sys.stdout.buffer.write(orjson.dumps({"data": data, "metadata": metadata}) + b"\n")
    sys.stdout.buffer.flush()
    return is_live


def _draw_png(svg: str) -> bytes | None:
    """For where SVG is not shown: notebooks of somebody else, which are not trusted. None without the extra for it."""
    from trainvitals.views.report.png import draw_png

    try:
        return draw_png(svg)
    except TrainvitalsError:
        return None


def _wait_for_change(folders: Sequence[Path], before: tuple[Any, Any], earliest: float, parent: int) -> bool:
    """Until lines were written and the pause is over, or a run has ended. False if the kernel has ended."""
    lines, descriptions = before
    while os.getppid() == parent:
        if _stamp_descriptions(folders) != descriptions:
            return True
        if time.monotonic() >= earliest and _stamp(folders) != lines:
            return True
        time.sleep(LOOK_SECONDS)
    return False


def _stamp_descriptions(folders: Sequence[Path]) -> list[tuple[int, int] | None]:
    return [_stamp_file(folder / layout.RUN_FILE) for folder in folders]


def _stamp(folders: Sequence[Path]) -> list[tuple[str, tuple[int, int] | None]]:
    return [(path.name, _stamp_file(path)) for folder in folders for path in sorted(folder.glob("*.json*"))]


def _stamp_file(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


if __name__ == "__main__":
    sys.exit(main())

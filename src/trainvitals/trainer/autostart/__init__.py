"""Watching a program without changes to it: what `trainvitals run` adds to the programs it starts.

Every Python under `trainvitals run` finds `site/sitecustomize.py` first on its path. It waits for torch and the
frameworks to be imported; when something is trained for the first time, the run begins (`beginning.py`). A Python that
imports none of them is left alone. A hook that cannot be placed is an event of the run, never an error.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

SITE = Path(__file__).parent / "site"


def python_path(existing: str | None) -> str:
    """PYTHONPATH for the program: ours first, what was there after it."""
    return os.pathsep.join([str(SITE), *([existing] if existing else [])])


def place(hook: str, module: str) -> None:
    """Install one hook, now that `module` is imported. Whatever goes wrong, the program's import has succeeded."""
    try:
        import_module(hook).autostart()
    except Exception as error:  # noqa: BLE001 - the boundary around the user's program
        if isinstance(error, ImportError) and error.name and hook.startswith(error.name):
            return  # no such integration in this version of trainvitals
        from trainvitals.trainer.autostart.trouble import note_trouble

        note_trouble(f"cannot hook into {module}: {error!r:.300}")

"""Watching a training that does not know of us: what `trainvitals run` gives to the programs it starts.

Every Python below `trainvitals run` finds `site/sitecustomize.py` first on its path. It waits for torch and the
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
    """Place one hook, now that `module` is there. Whatever goes wrong, the program's import has succeeded."""
    try:
        import_module(hook).autostart()
    except Exception as error:  # noqa: BLE001 - the boundary around the user's program
        if isinstance(error, ImportError) and error.name and hook.startswith(error.name):
            return  # no such integration in this version of trainvitals
        from trainvitals.trainer.autostart.trouble import note_trouble

        note_trouble(f"{module} was imported, but nothing could be hooked into it: {error!r:.300}")

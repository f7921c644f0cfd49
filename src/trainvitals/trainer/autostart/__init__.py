"""Watching a training that does not know of us: what `trainvitals run` gives to the programs it starts.

Every Python below `trainvitals run` finds `site/sitecustomize.py` first on its path. It waits for torch and the
frameworks to be imported (`imports.py`); when an optimizer makes its first step, the run begins (`beginning.py`).
A Python that imports none of them is left alone.
"""

from __future__ import annotations

import os
from pathlib import Path

SITE = Path(__file__).parent / "site"


def python_path(existing: str | None) -> str:
    """PYTHONPATH for the program: ours first, what was there after it."""
    return os.pathsep.join([str(SITE), *([existing] if existing else [])])

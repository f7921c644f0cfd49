"""verl's own `tracking.py` out of the published wheel: verl itself needs an older Transformers than other tests."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "0.9.1"
ROOT = Path(__file__).parents[1]
TIMER = """
from contextlib import contextmanager
@contextmanager
def marked_timer(name, timing_raw, color=None, domain=None, category=None):
    yield
    timing_raw[name] = timing_raw.get(name, 0) + 1.5
"""


def find_wheel() -> Path:
    folder = ROOT / "build" / "clients" / f"verl-{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not list(folder.glob("*.whl")):
            download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
            subprocess.run([*download, f"verl=={VERSION}"], check=True)
    return next(folder.glob("*.whl"))


def make_site(place: Path) -> Path:
    """A folder with verl's tracking.py, the part of its `__init__` that loads plugins, and our entry point."""
    with zipfile.ZipFile(find_wheel()) as archive:
        init = archive.read("verl/__init__.py").decode()
        tracking = archive.read("verl/utils/tracking.py")
    loading = init[init.index("# Auto-discover plugins") : init.index('if os.getenv("VERL_USE_MODELSCOPE"')]
    (place / "verl" / "utils").mkdir(parents=True)
    (place / "verl" / "__init__.py").write_text(f"import logging\nimport os\n{loading}")
    (place / "verl" / "utils" / "__init__.py").write_text("")
    (place / "verl" / "utils" / "tracking.py").write_bytes(tracking)
    (place / "verl" / "utils" / "debug.py").write_text(TIMER)
    about = place / "acme-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[verl.plugins]\ntrainvitals = trainvitals.integrations.verl_plugin\n")
    return place

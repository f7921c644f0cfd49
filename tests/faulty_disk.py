"""A folder on a disk that refuses, is slow or stalls: builds `faulty_disk.c`, which child processes preload."""

from __future__ import annotations

import errno
import os
import subprocess
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parent / "faulty_disk.c"


def build(folder: Path) -> Path:
    """Compile it into `folder`; needs gcc or another C compiler named by $CC."""
    library = folder / "faulty_disk.so"
    options = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run([os.environ.get("CC", "gcc"), *options, "-o", library, SOURCE, "-ldl"], check=True)
    return library


class FaultyDisk:
    """One folder. It is healthy until it is told otherwise."""

    def __init__(self, library: Path, place: Path) -> None:
        self.folder = place / "disk"
        self.folder.mkdir(parents=True)
        self._library = library
        self._script = place / "script"
        self._trace = place / "trace"
        self.heal()

    def env(self) -> dict[str, str]:
        """The environment for a child process for which the disk is faulty."""
        return {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "FAULTY_DISK_FOLDER": str(self.folder),
            "FAULTY_DISK_SCRIPT": str(self._script),
            "FAULTY_DISK_TRACE": str(self._trace),
        }

    def refuse(self, call: str, name: str) -> None:
        """From now on the call fails with this error, such as EDQUOT."""
        self._write(f"{call} error {getattr(errno, name)}")

    def delay(self, seconds: float, *calls: str) -> None:
        """From now on each of these calls takes so long."""
        self._write("\n".join(f"{call} sleep {seconds}" for call in calls))

    def hold(self, *calls: str) -> None:
        """From now on none of these calls returns before the disk is healed."""
        self._write("\n".join(f"{call} hold 0" for call in calls))

    def heal(self) -> None:
        self._write("")

    def count(self, call: str) -> int:
        """How often the call was refused or delayed."""
        return Counter(self._trace.read_text().split())[call] if self._trace.exists() else 0

    def _write(self, text: str) -> None:
        new = self._script.with_suffix(".new")
        new.write_text(text + "\n")
        new.replace(self._script)

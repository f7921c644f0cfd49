"""Files that a run keeps: `save` and artifacts, as plain files in the run folder.
Tested in tests/wandb_drop_in/test_scripts.py."""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trainvitals.trackers.intake.uploads import MOST_BYTES, BadName, Upload, make_place
from trainvitals.trackers.wandb_conventions import ARTIFACTS, FILES
from trainvitals.wandb.missing import Missing, report_missing, report_once


class Artifact:
    """Files under one name."""

    def __init__(
        self, name: str, type: str, description: str | None = None, metadata: dict[str, Any] | None = None, **more: Any
    ) -> None:
        self.name = name
        self.type = type
        self.description = description
        self.metadata = dict(metadata or {})
        self.version = "v0"
        self.aliases: list[str] = []
        self._files: dict[str, Path] = {}
        self._drafts: tempfile.TemporaryDirectory[str] | None = None

    def add_file(self, local_path: str | os.PathLike[str], name: str | None = None, **more: Any) -> None:
        path = Path(local_path)
        if not path.is_file():
            raise ValueError(f"Path is not a file: {str(local_path)!r}")
        self._files[name or path.name] = path

    def add_dir(self, local_path: str | os.PathLike[str], name: str | None = None, **more: Any) -> None:
        root = Path(local_path)
        if not root.is_dir():
            raise ValueError(f"Path is not a directory: {str(local_path)!r}")
        for path in sorted(root.rglob("*")):
            if path.is_file():
                self._files["/".join((*([name] if name else []), path.relative_to(root).as_posix()))] = path

    @contextmanager
    def new_file(self, name: str, mode: str = "x", encoding: str | None = None) -> Iterator[IO[Any]]:
        if self._drafts is None:
            self._drafts = tempfile.TemporaryDirectory(prefix="trainvitals-artifact-")
        path = Path(self._drafts.name) / f"{len(self._files)}"
        with open(path, mode, encoding=encoding) as file:
            yield file
        self._files[name] = path

    def wait(self, timeout: float | None = None) -> Artifact:
        return self

    @property
    def digest(self) -> str:
        """Of the names and contents of the files."""
        found = hashlib.sha256()
        for name, path in sorted(self._files.items()):
            found.update(f"{name}\0{path.stat().st_size}\0".encode())
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    found.update(piece)
        return found.hexdigest()[:16]

    def keep(self, folder: Path) -> None:
        """Copy the files into the run folder. Raises OSError."""
        place = f"{self.name.replace('/', '-')}/{self.digest}"
        for name, path in self._files.items():
            keep_file(path, folder, ARTIFACTS, f"{place}/{name}")

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("_"):
            raise AttributeError(name)
        return Missing(f"Artifact.{name}")


def save_files(folder: Path, pattern: str, base: str | os.PathLike[str] | None) -> list[tuple[Path, str]]:
    """Copy what matches into `files/` of the run folder, with its path below `base`; what was copied, and under which
    name. Raises OSError."""
    if "://" in pattern:
        report_missing("save() of addresses")
        return []
    found = []
    for text in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - a pattern may be absolute
        path = Path(text)
        if not path.is_file():
            continue
        root = Path(base) if base is not None else path.parent
        name = os.path.relpath(path, root)
        if keep_file(path, folder, FILES, name):
            found.append((path, name))
    return found


def keep_file(path: Path, folder: Path, top: str, name: str) -> bool:
    """Copy a file below `top` of the run folder; whether it could be. Raises OSError."""
    try:
        target = make_place(folder, top, name)
    except BadName as error:
        report_once(f"not kept: {error}")
        return False
    if path.stat().st_size > MOST_BYTES:
        report_once(f"not kept: {name} is larger than {MOST_BYTES >> 30} GB")
        return False
    if path.resolve() == target.resolve():
        return True
    upload = Upload(target)
    try:
        with open(path, "rb") as file:
            while piece := file.read(1 << 20):
                upload.write(piece)
        upload.keep()
    except OSError:
        upload.drop()
        raise
    return True

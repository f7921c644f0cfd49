"""Files that clients upload, as plain files below the run folder.

A name comes from somebody else's program: only one that stays below its place is taken. The address of an upload is
signed, because clients send no key with it.
Tested in tests/trackers/intake/test_wandb.py.
"""

from __future__ import annotations

import base64
import hmac
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from trainvitals.guessing import can_be_guessed
from trainvitals.journal import folder as run_folder
from trainvitals.runtime import NO_LINK

MOST_BYTES = 50 << 30
LONGEST_PART = 200
MOST_PARTS = 20


class BadName(ValueError):
    """The name of a file does not stay below its folder."""


def clean_path(name: str) -> PurePosixPath:
    """`name` as a relative path. Raises BadName."""
    path = PurePosixPath(name)
    parts = path.parts
    wrong = (
        not parts
        or path.is_absolute()
        or len(parts) > MOST_PARTS
        or any(part in (".", "..") or len(part.encode()) > LONGEST_PART for part in parts)
        or any(part.startswith(".") and part.endswith(".part") for part in parts)
        or "\\" in name
        or any(ord(letter) < 32 or ord(letter) == 127 for letter in name)
    )
    if wrong or not name.isprintable():
        raise BadName(f"'{name[:100]!r}' cannot be the name of a file of a run")
    return path


def make_place(run: Path, top: str, name: str) -> Path:
    """Where the file goes: below `top` of the run folder, whose folders are made. Raises BadName or OSError."""
    relative = clean_path(name)
    place = run_folder.make_within(run, top)
    for part in relative.parts[:-1]:
        place = run_folder.make_within(place, part)
    target = place / relative.name
    if target.is_symlink() or target.is_dir():
        raise BadName(f"'{name[:100]!r}' is a folder or a link already")
    return target


def find_below(run: Path, top: str, name: str) -> Path | None:
    """What is there, by the same name; None if there is nothing, or a link that leads elsewhere."""
    try:
        path = run / top / clean_path(name) if name else run / top
        return path if path.exists() and path.resolve() == run.resolve() / path.relative_to(run) else None
    except (BadName, OSError):
        return None


class Upload:
    """A file that is being received: it has its name once it is whole."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._draft = target.with_name(f".{target.name[: LONGEST_PART - 30]}.{os.urandom(4).hex()}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK
        self._file = os.fdopen(os.open(self._draft, flags, run_folder.file_rights(target.parent)), "wb")
        self.size = 0

    def write(self, piece: bytes) -> None:
        """Raises OSError."""
        self.size += len(piece)
        self._file.write(piece)

    def keep(self) -> None:
        """It is whole. Raises OSError."""
        self._file.close()
        self._draft.replace(self._target)

    def drop(self) -> None:
        """It did not arrive."""
        self._file.close()
        self._draft.unlink(missing_ok=True)


def list_files(folder: Path) -> Iterator[tuple[Path, bool, int]]:
    """(path, whether it is a folder, bytes) of what is in a folder, by name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if not entry.is_symlink() and not entry.name.startswith("."):
            is_folder = entry.is_dir()
            yield Path(entry.path), is_folder, 0 if is_folder else entry.stat().st_size


class Signer:
    """Signs addresses that are used without a key."""

    def __init__(self, token: str | None) -> None:
        # Whoever could try signatures made with a short token would try tokens. Without one, addresses that were given
        # out end with the server.
        self._secret = token.encode() if token and not can_be_guessed(token) else os.urandom(16)

    def sign(self, path: str) -> str:
        """The path with its signature, ready for an address."""
        return f"{quote(path)}?signature={self._digest(path)}"

    def is_signed(self, path: str, signature: str) -> bool:
        return hmac.compare_digest(self._digest(path).encode(), signature.encode())

    def _digest(self, path: str) -> str:
        digest = hmac.digest(self._secret, b"upload\n" + path.encode("utf-8", "surrogatepass"), "sha256")
        return base64.urlsafe_b64encode(digest[:18]).decode()

"""Texts in a run folder: stack dumps, and what the program printed."""

from __future__ import annotations

from pathlib import Path

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.console import show
from trainvitals.journal.contracts import TextFile, TextKind, TextPart

_PATTERNS: dict[TextKind, str] = {"console": "console.*.log", "stack": f"{layout.STACKS}/*.txt"}


def list_texts(folder: Path, kind: TextKind) -> list[TextFile]:
    """In order of time for each writer, empty ones left out."""
    found = []
    for path in _list_paths(folder, kind):
        try:
            status = path.stat()
        except OSError:
            continue  # rotated or removed just now
        if status.st_size:
            found.append(TextFile(path.name, status.st_size, status.st_mtime))
    return sorted(found, key=lambda file: _order(file.name))


def read_text(folder: Path, kind: TextKind, name: str, limit: int, after: int | None = None) -> TextPart:
    """The end of the text called `name`, at most `limit` bytes and not before byte `after`."""
    # Looked up, so that no text of a request becomes part of a path.
    path = next((path for path in _list_paths(folder, kind) if path.name == name), None)
    if path is None:
        raise JournalError(f"no file '{name}' in this run")
    try:
        with open(path, "rb") as file:
            size = file.seek(0, 2)
            begin = after if after is not None and after <= size else 0
            start = file.seek(max(size - limit, begin))
            data = file.read(limit)
    except OSError as error:
        raise JournalError(f"cannot read {name}: {error.strerror}") from error
    return TextPart(
        name=name,
        size=size,
        start=start,
        next=start + data.rfind(b"\n") + 1,
        cut=start > begin,
        text=show(data.decode("utf-8", "replace")),
    )


def _list_paths(folder: Path, kind: TextKind) -> list[Path]:
    """Links are left out: one may point anywhere."""
    try:
        return [path for path in folder.glob(_PATTERNS[kind]) if path.is_file() and not path.is_symlink()]
    except OSError:
        return []


def _order(name: str) -> tuple[int, str, bool]:
    """Rank 2 before rank 10, and what was put aside before what is written now."""
    if not name.endswith(".log"):
        return 0, name, False
    stem = name.removesuffix(".log").removesuffix(".older")
    return len(stem), stem, not name.endswith(".older.log")

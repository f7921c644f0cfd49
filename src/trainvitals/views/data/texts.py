"""Files of text in a run folder: stack dumps, and what the program printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainvitals.errors import JournalError
from trainvitals.journal import layout
from trainvitals.journal.console import show
from trainvitals.views.data.wire import Answer


def stack_files(folder: Path) -> list[Path]:
    """The stack dumps of the run, empty ones and links left out: a link may point anywhere."""
    try:
        found = [path for path in (folder / layout.STACKS).glob("*.txt") if path.is_file() and not path.is_symlink()]
        return sorted(path for path in found if path.stat().st_size)
    except OSError:
        return []


def read_text(files: Sequence[Path], name: str, limit: int, after: int | None = None) -> Answer:
    """The end of the file called `name` among `files`, at most `limit` bytes of it, as a terminal would show it.

    `next` is where its last line begins that is not finished: whoever asks again with `after` gets that line and what
    follows. `start` is where `text` begins; it is before `after` if the file was begun anew.
    """
    for path in files:
        if path.name == name:
            try:
                with open(path, "rb") as file:
                    size = file.seek(0, 2)
                    begin = after if after is not None and after <= size else 0
                    start = file.seek(max(size - limit, begin))
                    data = file.read(limit)
            except OSError as error:
                raise JournalError(f"{name} cannot be read: {error.strerror}") from error
            return {
                "name": name,
                "size": size,
                "start": start,
                "next": start + data.rfind(b"\n") + 1,
                "cut": start > begin,
                "text": show(data.decode("utf-8", "replace")),
            }
    raise JournalError(f"there is no file '{name}' in this run")

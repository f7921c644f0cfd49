"""What was changed in the repository of a run, kept when it starts: the commit alone does not say what was trained."""

from __future__ import annotations

import os
import re
import threading
import time
import zlib
from base64 import b85decode
from dataclasses import replace
from pathlib import Path

from trainvitals.agent.run_context import RunContext
from trainvitals.journal import patches
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time, parse_time
from trainvitals.redaction import redact_text
from trainvitals.trainer.git import NoPatch, read_patch, read_untracked

LATE_SECONDS = 120.0
"""After the start of a run its files may be those of the next one."""
MOST_UNTRACKED = 100
MOST_UNPACKED = 4 << 20
"""Of one binary file."""

_BINARY = re.compile(rb"^(?:literal|delta) \d+\n((?:[A-Za-z][^\n]+\n)+)", re.MULTILINE)


class Patches:
    """Of one run on this machine. Asking git, and looking for secrets, happens in a thread of its own, which may hang
    on a file server that is gone without harm to anything else."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._attempt = 0
        """The last one that was looked at."""
        self._task: threading.Thread | None = None

    def look(self, run: RunFile, attempt: int) -> None:
        """Begin to keep the patch of this attempt, once, if run.json is of it and says that there is one."""
        if attempt == self._attempt or run.attempt != attempt:
            return
        self._attempt = attempt
        git, limit_kb = run.git, self._context.settings.git_patch_kb
        if not limit_kb or git.dirty is not True or run.process.host != self._context.host:
            return
        if git.root is None or git.commit is None:
            return
        if patches.has_patch(self._context.folder, attempt):
            return
        about = PatchFile(attempt=attempt, captured=format_time(), commit=git.commit, limit_kb=limit_kb)
        is_late = time.time() - (parse_time(run.started) or 0.0) > LATE_SECONDS
        self._task = threading.Thread(
            target=self._keep, args=(about, Path(git.root), is_late), name=f"patch {self._context.run_id}", daemon=True
        )
        self._task.start()

    def wait(self, seconds: float) -> None:
        """Until what was begun is kept, at most so long."""
        if self._task is not None:
            self._task.join(seconds)

    def _keep(self, about: PatchFile, root: Path, is_late: bool) -> None:
        try:
            keep_patch(self._context.folder, about, root, is_late)
        except OSError as error:
            self._context.log.warn_once("cannot keep the git patch", error=str(error))
        except Exception as error:  # noqa: BLE001 - nothing that git prints may end the agent
            self._context.log.exception_once("keeping the git patch failed", error)


def keep_patch(folder: Path, about: PatchFile, root: Path, is_late: bool = False) -> None:
    """Write what was changed in `root` since the commit, or why that is not kept. Raises OSError."""
    patch, untracked = b"", list[str]()
    try:
        if is_late:
            raise NoPatch("late")
        untracked, cut = read_untracked(root, os.environ, MOST_UNTRACKED)
        about = replace(about, untracked_cut=cut)
        found = read_patch(root, about.commit, os.environ, about.limit_kb << 10)
        if has_packed_secret(found):
            raise NoPatch("secret")
        patch = found
    except NoPatch as reason:
        about = replace(about, missing=str(reason))
    patches.write_patch(folder, about, patch, untracked)


def has_packed_secret(patch: bytes) -> bool:
    """Whether a binary file in it has a secret, or may have: what git has compressed cannot be redacted."""
    for block in _BINARY.finditer(patch):
        try:
            lines = block[1].splitlines()
            packed = b"".join(b85decode(line[1:])[: _length_of(line[:1])] for line in lines)
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(packed, MOST_UNPACKED)
        except (ValueError, zlib.error):
            return True
        text = data.replace(b"\0", b"").decode("latin-1")  # UTF-16 becomes readable, too
        if not unpacking.eof or redact_text(text) != text:
            return True
    return False


def _length_of(letter: bytes) -> int:
    """How many bytes a line of a binary patch has: A is 1, Z is 26, a is 27."""
    return letter[0] - ord("A") + 1 if letter.isupper() else letter[0] - ord("a") + 27

"""The files that a rank writes into the folder of its run. Tested in tests/trainer/test_run.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import MIB, LineWriter
from trainvitals.settings import Settings
from trainvitals.stderr import print_line
from trainvitals.trainer.ranks import Rank


class RankFiles:
    """One for each table, opened when it is needed."""

    def __init__(self, folder: Path, settings: Settings, rank: Rank, attempt: int) -> None:
        self.is_homeless = False
        """There is no folder yet, which was reported when the run began: lines wait in memory, without a warning."""
        self._folder = folder
        self._settings = settings
        self._rank = rank
        self._attempt = attempt
        self._writers: list[LineWriter] = []
        self._last_trouble = ""

    def __bool__(self) -> bool:
        return bool(self._writers)

    def open(self, table: str, on_fd: Callable[[int], None] = lambda fd: None) -> LineWriter:
        """A writer of such files; `on_fd` is given the descriptor whenever it changes."""
        is_only = self._rank.world_size == 1 and not self._rank.has_other_roles
        number = None if is_only and table == "training" else self._rank.rank
        name = FileName(table, self._attempt, "", rank=number, role=self._rank.role)
        writer = LineWriter(
            self._folder,
            name,
            rotate_bytes=int(self._settings.rotate_size_mb * MIB),
            mode=self._settings.file_mode,
            on_trouble=self._warn,
            on_fd=on_fd,
        )
        self._writers.append(writer)
        return writer

    @property
    def dropped(self) -> int:
        """Lines that could not be written and are lost."""
        return sum(writer.dropped for writer in self._writers)

    def check(self) -> None:
        """Notice files that were closed or moved under us."""
        for writer in self._writers:
            writer.check()

    def _warn(self, trouble: str) -> None:
        # If the folder is gone, one writer warns for all.
        if not self.is_homeless and trouble != self._last_trouble:
            self._last_trouble = trouble
            print_line(trouble)

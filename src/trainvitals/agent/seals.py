"""The closed journal files of one run: having them sealed, and telling what came of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from trainvitals.agent.lines import RunLines
from trainvitals.agent.log import BoundLog
from trainvitals.agent.sealing import Job, Result, Sealer, find_closed
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import MIB
from trainvitals.settings import Settings

IsOurs = Callable[[FileName], bool]
FIRST_WAIT, LONGEST_WAIT = 5.0, 3600.0
LAST_TRIES = 3
"""How often the files of an ended run are tried. They are read as well when they are not sealed."""


class Seals:
    """Asks the sealer for work, one job of this run at a time. What failed is tried again, ever more rarely."""

    def __init__(self, folder: Path, settings: Settings, lines: RunLines, sealer: Sealer, log: BoundLog) -> None:
        self._folder = folder
        self._settings = settings
        self._lines = lines
        self._sealer = sealer
        self._log = log
        self._waits: dict[str, tuple[float, float]] = {}  # file: (not before, how long it waits after the next failure)
        self._told: set[tuple[str, str]] = set()
        self._results: deque[Result] = deque()
        self._under_way = 0
        self._last: tuple[IsOurs, int] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job is under way, or another try at the last files of the run is due."""
        return self._under_way > 0 or self._last is not None

    def request(self, is_ours: IsOurs, is_read: Callable[[str], bool]) -> None:
        """Seal the closed files of a living run, once what they say is safely counted (`is_read`)."""
        if not self.busy:
            now = time.monotonic()
            names = self._find(is_ours, ended=False)
            self._submit([name for name in names if is_read(name) and self._waits.get(name, (0.0, 0.0))[0] <= now])

    def request_last(self, is_ours: IsOurs) -> None:
        """Seal what an ended run leaves, and remove runs that are too old or too many."""
        self._last = (is_ours, LAST_TRIES)
        self._try_last()

    def tend(self) -> None:
        """Try the files of an ended run again that failed, and write the events of what has been done meanwhile."""
        if self._last is not None and not self._under_way:
            self._try_last()
        while self._results:
            result = self._results.popleft()
            if "error" in result:
                message = f"{result['file']} could not be sealed and is kept as it is: {result['error']}"
                if (result["file"], result["error"]) not in self._told:  # once, not with every try
                    self._told.add((result["file"], result["error"]))
                    self._lines.write_event("sealing_failed", message, severity="warning", data=result)
            else:
                message = f"{result['file']} was sealed: {result['lines']} lines"
                self._lines.write_event("sealed", message, data=result)

    def _try_last(self) -> None:
        assert self._last is not None
        is_ours, tries = self._last
        files = self._find(is_ours, ended=True)
        first = tries == LAST_TRIES
        self._last = (is_ours, tries - 1) if files and tries > 1 else None
        if first or files:
            self._submit(files, last=first)

    def _find(self, is_ours: IsOurs, *, ended: bool) -> list[str]:
        settings = self._settings
        min_bytes = settings.seal_min_size_mb * MIB
        return find_closed(self._folder, is_ours=is_ours, ended=ended, min_bytes=min_bytes, keep=settings.keep_jsonl)

    def _submit(self, files: list[str], *, last: bool = False) -> None:
        settings = self._settings
        cleans = last and (settings.max_age is not None or settings.max_size_gb is not None)
        if not files and not cleans:
            return
        job = Job(
            folder=str(self._folder),
            files=tuple(files),
            keep=settings.keep_jsonl,
            mode=settings.file_mode,
            root=str(self._folder.parent.parent) if cleans else None,
            max_age=settings.max_age,
            max_size_gb=settings.max_size_gb,
        )
        self._under_way += 1
        self._sealer.submit(job, self._take)

    def _take(self, results: list[Result]) -> None:
        """Called from the sealer's thread."""
        for result in results:
            if "removed" in result:
                self._log.info("old runs were removed", folders=result["removed"])
                continue
            if "error" in result:
                wait = self._waits.get(result["file"], (0.0, FIRST_WAIT))[1]
                self._waits[result["file"]] = (time.monotonic() + wait, min(2 * wait, LONGEST_WAIT))
                self._log.warning("sealing failed", **result)
            else:
                self._waits.pop(result["file"], None)
                self._log.info("sealed", **result)
            self._results.append(result)
        self._under_way -= 1

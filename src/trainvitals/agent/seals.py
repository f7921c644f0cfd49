"""The closed journal files of one run: having them sealed, and telling what came of it."""

from __future__ import annotations

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


class Seals:
    """Asks the sealer for work, one job of this run at a time."""

    def __init__(self, folder: Path, settings: Settings, lines: RunLines, sealer: Sealer, log: BoundLog) -> None:
        self._folder = folder
        self._settings = settings
        self._lines = lines
        self._sealer = sealer
        self._log = log
        self._failed: set[str] = set()
        self._results: deque[Result] = deque()
        self._under_way = 0

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def request(self, is_ours: IsOurs, is_read: Callable[[str], bool]) -> None:
        """Seal the closed files of a living run, once what they say is safely counted (`is_read`)."""
        if not self.busy:
            files = [name for name in self._find(is_ours, ended=False) if is_read(name)]
            self._submit(files)

    def request_last(self, is_ours: IsOurs) -> None:
        """Seal what an ended run leaves, and remove runs that are too old or too many."""
        self._submit(self._find(is_ours, ended=True), last=True)

    def tell(self) -> None:
        """Write the events of what has been done meanwhile."""
        while self._results:
            result = self._results.popleft()
            if "error" in result:
                message = f"{result['file']} could not be sealed and is kept as it is: {result['error']}"
                self._lines.write_event("sealing_failed", message, severity="warning", data=result)
            else:
                message = f"{result['file']} was sealed: {result['lines']} lines"
                self._lines.write_event("sealed", message, data=result)

    def _find(self, is_ours: IsOurs, *, ended: bool) -> list[str]:
        min_bytes = self._settings.seal_min_size_mb * MIB
        names = find_closed(self._folder, is_ours=is_ours, ended=ended, min_bytes=min_bytes)
        return [name for name in names if name not in self._failed]

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
            elif "error" in result:
                self._failed.add(result["file"])
                self._log.warning("sealing failed", **result)
                self._results.append(result)
            else:
                self._log.info("sealed", **result)
                self._results.append(result)
        self._under_way -= 1

"""The agent's own log: one JSON object per line, a few files at most.

Every line has a `correlation_id`: that of the run it speaks of, else that of the agent itself.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.line_log import LineLog

FILE_NAME = "agent.log"
MAX_BYTES = 2 << 20
KEPT_FILES = 2
MAX_ONCE = 1000
"""Different things about one subject that are written once each; an error with a number in it may never end."""


class Log:
    """Appends to `path`, which stays within a bound."""

    def __init__(self, path: Path, *, max_bytes: int = MAX_BYTES, echo: bool = False) -> None:
        self.path = path
        self._lines = LineLog(path, max_bytes=max_bytes, kept_files=KEPT_FILES)
        self._echo = echo

    def bind(self, **fields: Any) -> BoundLog:
        """This log with fields for every line."""
        return BoundLog(self, fields)

    def write(self, row: dict[str, Any]) -> None:
        """Append one line. A log that cannot be written is not worth an agent: nothing is raised."""
        line = encode_line(row)
        try:
            self._lines.write(line)
        except OSError:
            pass  # full or read-only: the runs' events still have what happened
        if self._echo:
            sys.stderr.write(line.decode("utf-8", "replace"))
            sys.stderr.flush()


class BoundLog:
    """The log with the fields of one subject: a run, the sampler, the agent."""

    def __init__(self, log: Log, fields: dict[str, Any]) -> None:
        self._log = log
        self._fields = fields
        self._written: set[tuple[str, str]] = set()

    def bind(self, **fields: Any) -> BoundLog:
        return BoundLog(self._log, {**self._fields, **fields})

    def info(self, message: str, **data: Any) -> None:
        self._write("info", message, data)

    def warning(self, message: str, **data: Any) -> None:
        self._write("warning", message, data)

    def error(self, message: str, **data: Any) -> None:
        self._write("error", message, data)

    def warn_once(self, message: str, **data: Any) -> None:
        """Write the same warning about the same thing once, however often it comes."""
        if self._is_new(message, str(data)):
            self.warning(message, **data)

    def exception_once(self, message: str, error: Exception, **data: Any) -> None:
        """The same with an error that is being handled, and where it was raised."""
        text = f"{type(error).__name__}: {error}"
        if self._is_new(message, text):
            import traceback

            self.error(message, error=text, **data, traceback=traceback.format_exc())

    def _is_new(self, message: str, text: str) -> bool:
        if (message, text) in self._written or len(self._written) >= MAX_ONCE:
            return False
        self._written.add((message, text))
        return True

    def _write(self, level: str, message: str, data: dict[str, Any]) -> None:
        row = {"timestamp": format_time(), "level": level, "message": message, **self._fields, **data}
        self._log.write(row)

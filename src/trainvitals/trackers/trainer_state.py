"""`trainer_state.json` of Transformers: what its Trainer logged, with steps and without times."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.journal.segment_writer import Lines
from trainvitals.plain_json import parse_json
from trainvitals.trackers.importing import ImportFailed, Piece, SourceEnd
from trainvitals.trackers.run_writing import NO_TIME, About

NAME = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
MOST_BYTES = 512 << 20
_RUNNING = ("log_history", "epoch", "global_step", "stateful_callbacks", "trial_params", "trial_name")
"""Fields that are not configuration."""


def open_source(target: str) -> TrainerStateSource:
    path = Path(target)
    if not path.exists():
        raise ImportFailed(f"{target} does not exist", hint=f"name a {NAME}, or the output folder of the training")
    return TrainerStateSource(path.resolve())


class TrainerStateSource:
    """One run: a file, or an output folder with its checkpoints, of which the newest holds the whole history."""

    unended = SourceEnd("finished")

    def __init__(self, path: Path) -> None:
        self._run = TrainerStateRun(path)

    def runs(self) -> list[TrainerStateRun]:
        return [self._run] if self._run.find_file() is not None else []


class TrainerStateRun:
    key = ""

    def __init__(self, path: Path) -> None:
        self._path = path
        folder = path if path.is_dir() else path.parent
        self._output = folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder
        self._seen: tuple[Path, int, int] | None = None

    @property
    def place(self) -> str:
        return str(self._output)

    @property
    def title(self) -> str:
        return self._output.name

    def find_file(self) -> Path | None:
        """The newest."""
        if not self._path.is_dir():
            return self._path if self._path.is_file() else None
        numbered = [
            (int(match[1]), path)
            for path in self._path.glob(f"checkpoint-*/{NAME}")
            if (match := _CHECKPOINT.fullmatch(path.parent.name)) and path.is_file()
        ]
        own = self._path / NAME  # written at the end
        return own if own.is_file() else max(numbered, default=(0, None))[1]

    def about(self) -> About:
        return About(name=self.title, config=self._config(self._load(self.find_file())), has_times=False)

    def end(self) -> SourceEnd | None:
        return None

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        path = self.find_file()
        if path is None:
            return  # removed while it is followed
        status = path.stat()
        stamp = (path, status.st_mtime_ns, status.st_size)
        if stamp == self._seen:
            return
        state = self._load(path)
        history = state.get("log_history")
        entries = [item for item in history if isinstance(item, dict)] if isinstance(history, list) else []
        known = int(position.get("entries", 0))
        # Fewer than were read: the training began again in the same folder, or an earlier checkpoint is read.
        again = len(entries) < known and position.get("first") != _mark(entries)
        first = 0 if again else known
        lines, left_out = Lines("training"), Counter[str]()
        for entry in entries[first:]:
            row = {name: value for name, value in entry.items() if isinstance(value, (int, float)) and name != "step"}
            left_out["texts and lists"] += len(entry) - len(row) - ("step" in entry)
            if row:
                lines.add_row(NO_TIME, entry.get("step"), row)
        self._seen = stamp
        if len(entries) > first or again:
            yield Piece(
                position={"entries": len(entries), "first": _mark(entries)},
                about=About(config=self._config(state)),
                begins_attempt=again,
                lines=lines,
                left_out=+left_out,
            )

    @staticmethod
    def _config(state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in state.items() if name not in _RUNNING and value is not None}

    @staticmethod
    def _load(path: Path | None) -> Mapping[str, Any]:
        try:
            state = parse_json(runtime.read_regular(path, MOST_BYTES)) if path is not None else {}
        except OSError as error:
            raise ImportFailed(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise ImportFailed(f"{path} is not JSON, or is still being written: {error}") from None
        if not isinstance(state, dict):
            raise ImportFailed(f"{path} is not a {NAME}")
        return state


def _mark(entries: list[dict[str, Any]]) -> str:
    """The same for histories that begin alike."""
    return json.dumps(entries[:1])

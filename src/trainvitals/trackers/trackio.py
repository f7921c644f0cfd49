"""Projects of trackio: one SQLite database each, in its folder."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainvitals.journal.encoding import NONFINITE, parse_time
from trainvitals.journal.segment_writer import Lines
from trainvitals.plain_json import parse_json
from trainvitals.trackers.foreign import open_database, to_micros
from trainvitals.trackers.importing import ImportFailed, Piece, SourceEnd, SourceEvent
from trainvitals.trackers.run_writing import About

PIECE_ROWS = 200_000
SYSTEM = "trackio/system/"
_SEVERITIES = {"info": "info", "warn": "warning", "warning": "warning", "error": "critical"}


def default_folder() -> Path:
    """Where trackio keeps its projects unless it is told otherwise."""
    given = os.environ.get("TRACKIO_DIR")
    if given:
        return Path(given)
    cache = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "huggingface")
    return Path(cache, "trackio")


def open_source(target: str) -> TrackioSource:
    path = Path(target) if target else default_folder()
    if not path.exists():
        raise ImportFailed(f"{path} does not exist", hint="name the folder of trackio: trainvitals import trackio DIR")
    return TrackioSource(path.resolve())


class TrackioSource:
    """All runs of all projects in a folder, or of one database."""

    unended = SourceEnd("finished")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[Path, str], TrackioRun] = {}
        self._projects: dict[Path, Project] = {}

    def runs(self) -> list[TrackioRun]:
        for path in sorted(self._path.glob("*.db")) if self._path.is_dir() else [self._path]:
            if path not in self._projects:
                self._projects[path] = Project(path)
            for key, name in self._projects[path].list_runs():
                if (path, key) not in self._known:
                    self._known[(path, key)] = TrackioRun(self._projects[path], key, name)
        return list(self._known.values())


class Project:
    """One database. Older ones lack columns that newer ones have."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._connection, self._tables = open_database(path)
        except (OSError, sqlite3.Error) as error:
            raise ImportFailed(f"cannot read {path.name}: {error}") from None

    def columns(self, table: str) -> set[str]:
        """Empty if there is no such table."""
        return {row[1] for row in self.ask(f"PRAGMA table_info({table})")} if table in self._tables else set()

    def ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise ImportFailed(f"cannot read {self.path.name}: {error}") from None

    def key_column(self, table: str) -> str:
        return "run_id" if "run_id" in self.columns(table) else "run_name"

    def list_runs(self) -> Iterator[tuple[str, str]]:
        """(key, name), in the order of their first rows."""
        if not self.columns("metrics"):
            raise ImportFailed(f"{self.path.name} is not a database of trackio")
        key = self.key_column("metrics")
        query = f"SELECT coalesce({key}, run_name), run_name, min(id) FROM metrics GROUP BY 1 ORDER BY 3"
        for identity, name, _ in self.ask(query):
            yield str(identity), str(name)


class TrackioRun:
    """One run."""

    def __init__(self, project: Project, key: str, name: str) -> None:
        self.key = key
        self.title = name
        self._project = project

    @property
    def place(self) -> str:
        return str(self._project.path)

    def _rows(self, table: str, columns: str, after: int, limit: int = -1) -> list[tuple[Any, ...]]:
        """Rows of this run; the first column is `id`."""
        if not self._project.columns(table):
            return []
        key = self._project.key_column(table)
        query = f"SELECT id, {columns} FROM {table} WHERE coalesce({key}, run_name) = ? AND id > ? ORDER BY id LIMIT ?"
        return self._project.ask(query, self.key, after, limit)

    def about(self) -> About:
        config: dict[str, Any] = {}
        for _, text in self._rows("configs", "config", 0):
            found = _load(text)
            config |= {name: value for name, value in found.items() if not name.startswith("_")}
        first = next(iter(self._rows("metrics", "timestamp", 0, 1)), None)
        return About(
            name=self.title,
            project=self._project.path.stem,
            config=config or None,
            started=parse_time(first[1]) if first is not None else None,
        )

    def end(self) -> SourceEnd | None:
        return None

    def read(self, position: Mapping[str, Any]) -> Iterator[Piece]:
        after = {name: int(position.get(name, 0)) for name in ("metrics", "system_metrics", "alerts")}
        while rows := self._rows("metrics", "timestamp, step, metrics", after["metrics"], PIECE_ROWS):
            lines, left_out = Lines("training"), Counter[str]()
            for number, moment, step, text in rows:
                _add(lines, left_out, moment, step, _load(text), "")
                after["metrics"] = number
            yield Piece(position={**after}, lines=lines, left_out=left_out)
        while rows := self._rows("system_metrics", "timestamp, metrics", after["system_metrics"], PIECE_ROWS):
            lines, left_out = Lines("training"), Counter[str]()
            for number, moment, text in rows:
                _add(lines, left_out, moment, None, _load(text), SYSTEM)
                after["system_metrics"] = number
            yield Piece(position={**after}, lines=lines, left_out=left_out)
        if alerts := self._rows("alerts", "timestamp, title, text, level, step", after["alerts"]):
            after["alerts"] = alerts[-1][0]
            yield Piece(position={**after}, events=[_read_alert(*row[1:]) for row in alerts])


def _read_alert(moment: object, title: object, text: object, level: object, step: object) -> SourceEvent:
    message = f"{title}: {text}" if text else str(title)
    severity = _SEVERITIES.get(str(level).lower(), "info")
    return SourceEvent("alert", message, parse_time(moment), severity, step if type(step) is int else None)


def _load(text: object) -> dict[str, Any]:
    try:
        found = parse_json(text) if isinstance(text, (str, bytes)) else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _add(
    lines: Lines, left_out: Counter[str], moment: object, step: object, values: Mapping[str, Any], prefix: str
) -> None:
    row: dict[str, Any] = {}
    for name, item in values.items():
        value = NONFINITE.get(item, item) if isinstance(item, str) else item
        if isinstance(value, (int, float)):
            row[f"{prefix}{name}"] = value
        elif isinstance(value, dict) and "_type" in value:
            left_out[str(value["_type"])] += 1
        elif value is not None:
            left_out["texts and lists"] += 1
    if row:
        lines.add_row(to_micros(parse_time(moment)), step, row)

"""A run in Weights & Biases, through W&B's own client in a child process (`wandb_client`): it may hang or die.

One line of the run folder is one row of W&B's history. Its number is W&B's step, and the training's step is the metric
`step`, which the charts use. The client loses what it has not written or sent when it is killed. So the newest
rows are kept in a file with their numbers, and a client that is started again gets those that W&B does not have.
Tested in tests/exporters/test_wandb.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from trainvitals import runtime
from trainvitals.exporters.child import Child, child_environment
from trainvitals.exporters.mirrored_media import MEDIUM, MediaNews
from trainvitals.exporters.mirroring import (
    MirrorState,
    RunNews,
    read_numbers,
    read_step,
    read_subject,
    read_time,
)
from trainvitals.exporters.rows import BATCH, RunDescription, RunEnd, RunRow
from trainvitals.journal.encoding import encode_line, parse_time, spell_all
from trainvitals.settings import Settings

OPEN_SECONDS = 150.0
"""W&B's own patience with its server is 90."""
LOG_SECONDS = 60.0
FINISH_SECONDS = 600.0
LEAVE_SECONDS = 2.0
MOST_SENT = 20_000
"""Rows that are kept at most, and half as many at least; W&B's own files have more."""
_GB = 1.0 / 1024
_RESERVED = ("_step", "_timestamp", "_runtime", "_wandb")
_CLIENT = "trainvitals.exporters.wandb_client"

SYSTEM_NAMES: Mapping[tuple[str, str], tuple[str, float]] = {
    ("gpu", "utilization_percent"): ("gpu_utilization_pct", 1.0),
    ("gpu", "memory_utilization_percent"): ("memory_utilization_pct", 1.0),
    ("gpu", "memory_used_mb"): ("memory_allocated_gb", _GB),
    ("gpu", "memory_reserved_mb"): ("memory_reserved_gb", _GB),
    ("gpu", "memory_total_mb"): ("memory_total_gb", _GB),
    ("gpu", "temperature_celsius"): ("temperature_c", 1.0),
    ("gpu", "power_draw_watts"): ("power_usage_w", 1.0),
    ("gpu", "graphics_clock_mhz"): ("graphics_clock_mhz", 1.0),
    ("gpu", "memory_clock_mhz"): ("memory_clock_mhz", 1.0),
    ("system", "cpu_usage_percent"): ("cpu_utilization_pct", 1.0),
    ("system", "memory_used_mb"): ("system_memory_used_gb", _GB),
    ("system", "memory_usage_percent"): ("system_memory_utilization_pct", 1.0),
}
"""What is sent of the hardware; those of a GPU after `gpu_<index>_`."""


def create(target: str, settings: Settings) -> WandbMirror:
    return WandbMirror(target, settings.wandb_run_name, settings.wandb_offline)


class WandbMirror:
    """One run."""

    def __init__(self, project: str, name: str | None, offline: bool) -> None:
        self._project = project
        self._name = name
        self._offline = offline
        self._state: MirrorState | None = None
        self._child: Child | None = None
        self.link: str | None = None

    def open(self, run: RunDescription) -> None:
        self._run = run
        self._news = RunNews(run)
        self._let_go()
        self._state = MirrorState(run.folder, "wandb", self._project)
        self._media = MediaNews(run, self._state)
        self._sent = SentRows(self._state.spool, self._state.mode, self._state.values.get("next", 0))
        try:
            self._connect()
        except BaseException:
            self._let_go()
            raise

    def write(self, rows: Sequence[RunRow]) -> None:
        self._connect()
        self._describe()
        state = self._opened
        lines = [line for row in state.select_new(rows) if (line := _make_line(row))]
        state.mark_written(rows)
        self._send([*lines, *self._make_media_lines()])

    def _send(self, lines: Sequence[Mapping[str, Any]]) -> None:
        state = self._opened
        first: int = state.values.get("next", 0)
        self._sent.add(first, lines)
        state.values["next"] = first + len(lines)
        state.save()  # from now on they are taken from that file
        for start in range(0, len(lines), BATCH):
            piece = spell_all(lines[start : start + BATCH])
            self._ask({"do": "log", "first": first + start, "lines": piece}, LOG_SECONDS)

    def _make_media_lines(self, *, last: bool = False) -> Iterator[dict[str, Any]]:
        """A line for each; the client reads the files, for a line is kept until W&B has it."""
        for found in self._media.take_histograms(last=last):
            content = {MEDIUM: "histogram", **found.histogram._asdict()}
            yield {found.name: content, "step": found.step, "_timestamp": found.time}
        for medium in self._media.take(last=last):
            content = {MEDIUM: medium.kind, "file": medium.file, "caption": medium.caption}
            yield {medium.name: content, "step": medium.step, "_timestamp": medium.time}

    def close(self, end: RunEnd | None) -> None:
        if end is None:
            if self._child is not None:
                self._child.end(LEAVE_SECONDS)
                self._child = None
        else:
            self._connect()
            self._describe()
            self._send(list(self._make_media_lines(last=True)))
            summary = {"trainvitals/status": end.status}
            summary |= {"trainvitals/cause": str(end.cause)} if end.cause is not None else {}
            code = 0 if end.status == "finished" else 1
            self._ask({"do": "finish", "summary": summary, "exit_code": code}, FINISH_SECONDS)
            self._sent.clear()
        self._let_go()

    # -- the child

    @property
    def _opened(self) -> MirrorState:
        assert self._state is not None
        return self._state

    def _connect(self) -> None:
        """Start the client, if there is none, and send what W&B did not get from the one before it."""
        if self._child is None:
            state, about = self._opened, self._run.read_about()
            name = self._name or self._run.environment.get("WANDB_NAME") or about.name or self._run.run_id
            state.values.setdefault("id", re.sub(r"[^A-Za-z0-9_.-]", "-", self._run.run_id)[:64])
            environment = child_environment(self._run.environment, "WANDB_")
            # The training's own W&B process: a client that is killed would leave its run open in there.
            environment.pop("WANDB_SERVICE", None)
            self._child = Child(_CLIENT, environment, state.lock)
            question = {
                "do": "open",
                "run": str(self._run.folder),
                "project": self._project,
                "id": state.values["id"],
                "name": name,
                "folder": environment.get("WANDB_DIR") or str(self._run.folder),
                "offline": self._offline,
                "started": parse_time(about.created),
            }
            answer = self._ask(question, OPEN_SECONDS)
            self.link = answer.get("url")
            state.save()
            self._news = RunNews(self._run)
            for first, lines in self._sent.read(answer["step"]):
                self._ask({"do": "log", "first": first, "lines": lines}, LOG_SECONDS)

    def _describe(self) -> None:
        """Config, tags and notes, when they are new."""
        about = self._news.look()
        if about is not None:
            facts = {"config": spell_all(about.config or {}), "tags": list(about.tags), "notes": about.notes}
            try:
                self._ask({"do": "describe", **facts}, LOG_SECONDS)
            except OSError:
                self._news = RunNews(self._run)
                raise

    def _ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        assert self._child is not None
        try:
            return self._child.ask(question, seconds)
        except OSError:
            self._child.kill()
            self._child = None
            raise

    def _let_go(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None
        if self._state is not None:
            self._state.close()
            self._state = None


class SentRows:
    """The newest rows that were given to the client, in a file."""

    def __init__(self, path: Path, mode: int, count: int) -> None:
        """`count` is how many are known to have been given: more were not."""
        self._path = path
        self._mode = mode
        self._size = 0
        kept = [row for row in self._load() if row["number"] < count]
        self._replace(kept)

    def add(self, first: int, lines: Sequence[Mapping[str, Any]]) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | runtime.NO_LINK, self._mode)
        with os.fdopen(descriptor, "ab") as file:
            for number, line in enumerate(lines, first):
                file.write(encode_line({"number": number, "line": spell_all(line)}))
        self._size += len(lines)
        if self._size > MOST_SENT:
            self._replace(self._load()[-MOST_SENT // 2 :])

    def read(self, first: int) -> Iterator[tuple[int, list[Any]]]:
        """Those from this number on, in pieces: the number of the first one, and the rows."""
        rows = [row for row in self._load() if row["number"] >= first]
        for start in range(0, len(rows), BATCH):
            piece = rows[start : start + BATCH]
            yield piece[0]["number"], [row["line"] for row in piece]

    def clear(self) -> None:
        self._replace([])

    def _load(self) -> list[dict[str, Any]]:
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found: list[dict[str, Any]] = []
        for line in lines:
            try:
                row = orjson.loads(line)
            except ValueError:
                continue
            found.append(row)
        return found

    def _replace(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._size = len(rows)
        if rows or self._path.exists():
            runtime.write_atomically(self._path, b"".join(encode_line(row) for row in rows), self._mode)


def _make_line(row: RunRow) -> dict[str, float] | None:
    """A row of W&B's history; None for what is not sent."""
    values = {}
    for key, value in read_numbers(row).items():
        if row.table == "training":
            subject = read_subject(row)
            name = f"{subject}/{key}" if subject else f"user{key}" if key in _RESERVED else key
            values[name] = value
        elif (known := SYSTEM_NAMES.get((row.table, key))) is not None:
            prefix = f"{read_subject(row, '_')}_" if row.table == "gpu" else ""
            values[f"{prefix}{known[0]}"] = value * known[1]
    if not values:
        return None
    step = read_step(row)
    if row.table == "training" and step is not None:
        values["step"] = step
    return {**values, "_timestamp": read_time(row)}

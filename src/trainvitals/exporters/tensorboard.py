"""A run as event files of TensorBoard, written as it goes: `tensorboard/` in the run folder, or below another folder.

What was logged is one TensorBoard run, under `training/...`, by step. What was measured is another one in `resources/`
beside it, by seconds since the beginning of the run: a training that is resumed from a checkpoint makes TensorBoard
drop later steps of that run, and keeps what the machine did meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.exporters.mirrored_media import MediaNews, MirroredMedium
from trainvitals.exporters.mirroring import (
    MirrorState,
    RunNews,
    read_numbers,
    read_step,
    read_subject,
    read_time,
)
from trainvitals.exporters.rows import RunDescription, RunEnd, RunRow
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import parse_time
from trainvitals.journal.flat_config import flatten
from trainvitals.settings import Settings
from trainvitals.settings.kinds import IN_PLACE
from trainvitals.trackers.tensorboard import writing

MOST_TABLE_ROWS = 100
"""Of a table that is shown as text."""
_ENDS = {"finished": writing.SUCCESS}


def create(target: str, settings: Settings) -> TensorBoardMirror:
    return TensorBoardMirror(target)


class TensorBoardMirror:
    """One run."""

    def __init__(self, target: str) -> None:
        self._target = target
        self.link: str | None = None

    def open(self, run: RunDescription) -> None:
        self._run = run
        self._began = parse_time(run.about.created) or parse_time(run.about.started) or 0.0
        if self._target == IN_PLACE:
            folder = run_folder.make_within(run.folder, "tensorboard")
        else:
            folder = Path(self._target) / run.run_id
            runtime.make_folders(folder, 0o777)
        self.link = str(folder)
        self._state = MirrorState(run.folder, "tensorboard", self._target)
        self._training = _EventFile(folder, "training", run, self._state)
        self._resources = _EventFile(folder / "resources", "resources", run, self._state)
        self._state.save()
        self._news = RunNews(run)
        self._media = MediaNews(run, self._state)

    def write(self, rows: Sequence[RunRow]) -> None:
        with self._whole_or_not_at_all():
            self._describe()
            for row in self._state.select_new(rows):
                if row.table == "training":
                    self._write_training(row)
                elif row.table == "alerts":
                    self._write_alert(row)
                else:
                    self._write_resources(row)
            self._write_media()
            self._state.mark_written(rows)

    def close(self, end: RunEnd | None) -> None:
        if end is not None:
            with self._whole_or_not_at_all():
                self._describe()
                self._write_media(last=True)
                ended = parse_time(self._run.read_about().ended) or self._began
                session = writing.encode_session_end(_ENDS.get(end.status, writing.FAILURE), ended)
                self._training.add(ended, 0, [session])
        self._state.close()

    @contextlib.contextmanager
    def _whole_or_not_at_all(self) -> Iterator[None]:
        """What is written to the files counts once the state is saved; until then the next writer cuts it off."""
        files = (self._training, self._resources)
        try:
            yield
            for file in files:
                file.flush()
            self._state.save()
        except Exception:
            self._state.revert()
            self._news = RunNews(self._run)
            raise
        finally:
            for file in files:
                file.forget()

    def _write_training(self, row: RunRow) -> None:
        values = read_numbers(row)
        if values:
            step, moment = read_step(row) or 0, read_time(row)
            self._training.restart_once(moment, step)
            subject = read_subject(row)
            prefix = f"training/{subject}/" if subject else "training/"
            scalars = [writing.encode_scalar(prefix + key, item) for key, item in values.items()]
            self._training.add(moment, step, scalars)

    def _write_resources(self, row: RunRow) -> None:
        values = read_numbers(row)
        if values:
            moment = read_time(row)
            where = read_subject(row) if row.table == "gpu" else "/".join(filter(None, (row.table, read_subject(row))))
            scalars = [writing.encode_scalar(f"resources/{where}/{key}", item) for key, item in values.items()]
            self._resources.add(moment, self._seconds(moment), scalars)

    def _write_alert(self, row: RunRow) -> None:
        if row.values.get("state") == "firing":
            moment = read_time(row)
            text = f"**{row.values.get('severity', '')}** {row.values.get('message') or row.values.get('rule', '')}"
            self._resources.add(moment, self._seconds(moment), [writing.encode_text("alerts", text)])

    def _seconds(self, moment: float) -> int:
        return max(int(moment - self._began), 0)

    def _describe(self) -> None:
        """Config and notes, when they are new: a program that is started first gives them when it begins to train."""
        about = self._news.look()
        if about is None:
            return
        described = {"config": dict(about.config or {}), "notes": about.notes, "name": about.name}
        if self._state.values.get("described") == described:
            return
        self._state.values["described"] = described
        config = {key: item for key, item in flatten(about.config or {}).items() if _is_plain(item)}
        values = [writing.encode_text("run", _draw_run(about, self._run.run_id))]
        if config:
            values.append(writing.encode_session_start(config, about.name or self._run.run_id, self._began))
            values.append(writing.encode_text("config", _draw_table(flatten(about.config or {}))))
        if about.notes:
            values.append(writing.encode_text("notes", about.notes))
        self._training.add(self._began, 0, values)

    def _write_media(self, last: bool = False) -> None:
        """Those that are not rows of the journal: logged ones, and histograms of `watch`. Tables are texts here."""
        for found in self._media.take_histograms(last=last):
            encoded = writing.encode_histogram(f"training/{found.name}", found.histogram)
            self._training.add(found.time, found.step, [encoded])
        for medium in self._media.take(last=last):
            self._training.add(medium.time, medium.step, [_encode_medium(medium)])


def _encode_medium(medium: MirroredMedium) -> bytes:
    tag = f"training/{medium.name}"
    if medium.kind == "image":
        return writing.encode_image(tag, medium.data)
    if medium.kind == "table":
        columns, rows = medium.as_table()
        return writing.encode_text(tag, _draw_rows(columns, rows[:MOST_TABLE_ROWS]))
    return writing.encode_text(tag, medium.data.decode("utf-8", "replace"))


class _EventFile:
    """The event file of this attempt in one folder. How much of it counts is part of the state of the mirror."""

    def __init__(self, folder: Path, key: str, run: RunDescription, state: MirrorState) -> None:
        self._key = key
        self._state = state
        self._records: list[bytes] = []
        self._has_restarted = False
        before = state.values.get(key)
        if before is None or before["attempt"] != run.attempt or not (folder / before["file"]).is_file():
            runtime.make_folders(folder, folder.parent.stat().st_mode & 0o777)
            self._path = writing.new_event_file(folder, layout.host_token(run.host))
            size = self._path.stat().st_size
            note = {"file": self._path.name, "bytes": size, "attempt": run.attempt, "restarts": before is not None}
            state.values[key] = note
        else:
            self._path = folder / before["file"]

    def restart_once(self, moment: float, step: int) -> None:
        """In the first file of another attempt: TensorBoard drops what it has from this step on."""
        if self._state.values[self._key]["restarts"] and not self._has_restarted:
            self._has_restarted = True
            self._records.append(writing.encode_restart(moment, step))

    def add(self, moment: float, step: int, values: Sequence[bytes]) -> None:
        self._records.append(writing.encode_event(moment, step, values))

    def flush(self) -> None:
        """Write what was added, in the place of what an earlier try left."""
        if self._records:
            note = self._state.values[self._key]
            os.truncate(self._path, note["bytes"])
            with open(self._path, "ab") as file:
                file.write(b"".join(self._records))
            note["bytes"] = self._path.stat().st_size
            note["restarts"] = note["restarts"] and not self._has_restarted

    def forget(self) -> None:
        """What was added is written, or will come again."""
        self._records.clear()
        self._has_restarted = False


def _is_plain(value: object) -> bool:
    return isinstance(value, (bool, int, float, str))


def _draw_run(about: RunFile, run_id: str) -> str:
    facts = {
        "run": run_id,
        "name": about.name,
        "project": about.project,
        "tags": ", ".join(about.tags),
        "command": about.command or "",
        "host": about.host_name,
        "git commit": about.git.commit or "",
    }
    return _draw_table({key: item for key, item in facts.items() if item})


def _draw_table(values: Mapping[str, Any]) -> str:
    return _draw_rows(["", ""], list(values.items()))


def _draw_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """As Markdown."""
    drawn = [_draw_cells(columns), "|---" * len(columns) + "|", *map(_draw_cells, rows)]
    return "\n".join(drawn)


def _draw_cells(cells: Sequence[object]) -> str:
    texts = (" ".join(str(cell).split()).replace("|", "\\|") for cell in cells)
    return "".join(f"| {text} " for text in texts) + "|"

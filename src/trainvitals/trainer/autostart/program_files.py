"""Writers of TensorBoard and CSV files in a program below `trainvitals run`: each file that one opens is noted, and the
agent follows it. Nothing is done in the loop.
Tested in tests/trainer/test_program_files.py.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainvitals.trackers.program_files.notes import EVENT_FOLDER, EVENTS, TABLE, write_note


def _note_event_file(writer: Any, *_: Any, **__: Any) -> None:
    note_file(EVENTS, writer._file_name)


def _note_metrics_table(writer: Any, *_: Any, **__: Any) -> None:
    note_file(TABLE, writer.metrics_file_path)


def _note_logged_table(logger: Any, *_: Any, **__: Any) -> None:
    path = Path(logger.filename)
    note_file(TABLE, str(path), path.stat().st_size if logger.append and path.exists() else 0)


def _note_event_folder(logdir: Any, *_: Any, **__: Any) -> None:
    note_file(EVENT_FOLDER, logdir.decode() if isinstance(logdir, bytes) else os.fspath(logdir))


_OPENINGS: tuple[tuple[str, str, str, Callable[..., None]], ...] = (
    ("tensorboard.summary.writer.event_file_writer", "EventFileWriter", "__init__", _note_event_file),
    ("tensorboardX.event_file_writer", "EventsWriter", "__init__", _note_event_file),
    ("tensorflow.python.ops.summary_ops_v2", "", "create_file_writer_v2", _note_event_folder),
    ("lightning.fabric.loggers.csv_logs", "_ExperimentWriter", "__init__", _note_metrics_table),
    ("lightning_fabric.loggers.csv_logs", "_ExperimentWriter", "__init__", _note_metrics_table),
    ("keras.src.callbacks.csv_logger", "CSVLogger", "on_train_begin", _note_logged_table),
)
"""Module, class and function that opens a file, and what notes it."""


def autostart() -> None:
    """A module that writes such files was imported: note what it opens from now on."""
    for module, owner, function, note in _OPENINGS:
        place = sys.modules.get(module)
        place = getattr(place, owner, None) if owner else place
        original = getattr(place, function, None) if place is not None else None
        if original is not None and not hasattr(original, "__trainvitals__"):
            setattr(place, function, _noting(original, note))


def _noting(original: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            note(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program
            from trainvitals.trainer.autostart.trouble import note_trouble

            note_trouble(f"a file that the program logs to is not followed: {error!r:.300}")
        return result

    call.__trainvitals__ = True  # type: ignore[attr-defined]
    return call


def note_file(kind: str, path: str, offset: int = 0, run: str = "") -> None:
    """Have the agent follow a file of this process."""
    folder = os.environ.get("TRAINVITALS_RUN_DIR")
    if not folder or "://" in str(path):
        return
    from trainvitals.settings import resolve
    from trainvitals.trainer import ranks

    if resolve().capture_trackers:
        rank = ranks.find_rank(os.environ).rank
        write_note(Path(folder), kind, str(path), rank=rank, opened=time.time(), offset=offset, of=run)

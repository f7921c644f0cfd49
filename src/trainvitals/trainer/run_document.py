"""run.json, as the training writes it: at the beginning, when the configuration grows, and at the end.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainvitals import runtime
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.run import COMMAND, RunFile
from trainvitals.redaction import redact
from trainvitals.settings import Settings
from trainvitals.trainer import facts
from trainvitals.trainer.ranks import Rank


class RunDocument:
    """Written by rank 0, or in a run without trainers by the first to join; all know its contents."""

    def __init__(self, folder: Path, file: RunFile, rank: Rank, settings: Settings) -> None:
        self.file = file
        self._folder = folder
        self._rank = rank
        self._settings = settings

    def create(self) -> None:
        """Create the folder and write run.json. Raises JournalError or OSError."""
        run_folder.create(self._folder, self._settings.shared)
        self._write(self.file)

    def add_config(self, values: Mapping[str, Any]) -> None:
        """Add what is known only now; existing values are kept."""
        known = self.file.config or {}
        self.revise(config={name: value for name, value in values.items() if name not in known})

    def revise(self, *, config: Mapping[str, Any] | None = None, **fields: str | tuple[str, ...]) -> None:
        """Other fields, such as `name`, `notes` and `tags`; values of `config` replace those of the same name, and the
        others stay. Raises OSError."""
        clean = redact({"config": facts.make_jsonable(config or {}), **fields}, extra=self._settings.redact)
        more = clean.pop("config")

        def revised(run: RunFile) -> RunFile:
            merged = {"tags": run_folder.merge_tags(run.tags, known, clean["tags"])} if "tags" in clean else {}
            return replace(run, config={**(run.config or {}), **more}, **{**clean, **merged})

        known = self.file.tags
        self.file = revised(self.file)
        self._change(revised)  # what a client of another tracker or a user has changed meanwhile stays, too

    def leave_to_command(self) -> None:
        """Hand the run back to `trainvitals run`, until the program starts its own."""
        self._change(lambda run: replace(run, kind=COMMAND))

    def write_end(self, status: str, cause: Cause | None, last_step: int | None, tentative: bool) -> None:
        """How the run ended, as this process knows it: without trainers the agent decides, for others may continue."""
        run = self._read()
        if not self._may_end(run, tentative):
            return
        if status == "failed" and (self._rank.world_size > 1 or self._rank.has_other_roles):
            # The follower behind it is heavy and rarely needed. Not so late on any other way out: whatever makes a
            # dataclass as the interpreter ends makes CPython forget that an interrupt ended it, and exit with 1.
            from trainvitals.journal.failures import read_failures

            first = next(iter(read_failures(self._folder, run.attempt)), None)
            if first is not None and first.participant != self._rank.participant:  # often the cause of this one
                cause = first.cause.about(first.participant)
        found = {item.host: item.hardware for item in run_folder.read_statuses(self._folder) if item.hardware}

        def end(run: RunFile) -> RunFile | None:
            if not self._may_end(run, tentative):
                return None
            return replace(
                run.end(status, cause),
                last_step=last_step if last_step is not None else run.last_step,
                hardware=found or run.hardware,
                tentative=tentative or not (self._rank.participant.is_trainer or self._rank.supervises),
            )

        changed = run_folder.change_run(self._folder, end, self._settings.file_mode)
        if changed is None and run_folder.find_run(self._folder) is None:
            self._write(end(run) or run)  # it was removed, or could not be written until now

    def _may_end(self, run: RunFile, tentative: bool) -> bool:
        """Not if it is somebody else's to write, if a newer attempt of the run is active elsewhere, or if somebody has
        written for certain what is tentative here, or only heard of."""
        if run.has_ended(run.attempt) and (tentative or self._rank.supervises):
            return False
        return self._rank.supervises or (self._is_ours(run) and run.attempt == self.file.attempt)

    def _change(self, change: Callable[[RunFile], RunFile | None]) -> RunFile | None:
        """If it is ours to change."""
        mode = self._settings.file_mode
        return run_folder.change_run(self._folder, lambda run: change(run) if self._is_ours(run) else None, mode)

    def _is_ours(self, run: RunFile) -> bool:
        if self._rank.participant.is_trainer:
            return self._rank.rank == 0
        return (run.process.pid, run.process.host) == (os.getpid(), runtime.host_name())

    def _read(self) -> RunFile:
        return run_folder.find_run(self._folder) or self.file

    def _write(self, file: RunFile) -> None:
        run_folder.write_run(self._folder, file, self._settings.file_mode)

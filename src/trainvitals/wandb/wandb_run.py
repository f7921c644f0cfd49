"""A run as W&B's scripts use it, kept as one of ours. Tested in tests/wandb_drop_in/test_scripts.py."""

from __future__ import annotations

import atexit
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from trainvitals.handlers import is_from_handler
from trainvitals.redaction import free_key
from trainvitals.trackers.intake.wandb_lines import StepMetrics
from trainvitals.trackers.wandb_conventions import (
    FILES,
    SEVERITIES,
    SUMMARY_EVENT,
    describe_own_values,
    find_own_values,
    write_summary,
)
from trainvitals.trainer.run import Run as TrainvitalsRun
from trainvitals.wandb.artifacts import Artifact, save_files
from trainvitals.wandb.data_types import find_medium
from trainvitals.wandb.missing import Missing, report_missing, report_once
from trainvitals.wandb.wandb_config import Config
from trainvitals.wandb.wandb_summary import Summary

SUMMARY_SECONDS = 15.0
"""How often the summary is written while nothing but logged values changes it."""
_TAKEN = dict.fromkeys(("self", "event", "message", "severity"))
"""What an event of a run is made with, besides its values."""


class Run:
    """Made by `init`; also a context manager. Without `kept`, as `mode="disabled"` wants it, nothing is written."""

    def __init__(
        self,
        kept: TrainvitalsRun | None,
        config: Mapping[str, Any],
        *,
        id: str | None = None,
        project: str = "",
        entity: str = "",
        group: str = "",
        job_type: str = "",
        resumed: bool = False,
    ) -> None:
        self.kept = kept
        """The run in which everything is; None if it is disabled."""
        self.id = id or (kept.id if kept is not None else secrets.token_hex(4))
        self.entity, self.group, self.job_type = entity, group, job_type
        self.resumed = resumed
        self.start_time = time.time()
        self.config = Config(config, self._change_config)
        self.summary = Summary(self._write_summary)
        self._project = kept.project if kept is not None else project
        self._is_over = False
        self.starting_step = self._step = kept.step + 1 if kept is not None else 0
        self._defined: list[dict[str, str]] = []
        self._steps = StepMetrics([])
        self._watched: list[tuple[str, str | os.PathLike[str] | None]] = []
        self._next_summary = 0.0
        if kept is not None:
            atexit.register(self._settle)  # for a script that does not call finish()

    # -- what it is

    @property
    def project(self) -> str:
        return self._project

    @property
    def name(self) -> str:
        return self.kept.name if self.kept is not None else f"dummy-{self.id}"

    @name.setter
    def name(self, name: str) -> None:
        self._change(name=str(name))

    @property
    def notes(self) -> str:
        return self.kept.notes if self.kept is not None else ""

    @notes.setter
    def notes(self, notes: str) -> None:
        self._change(notes=str(notes))

    @property
    def tags(self) -> tuple[str, ...]:
        return self.kept.tags if self.kept is not None else ()

    @tags.setter
    def tags(self, tags: Sequence[str]) -> None:
        self._change(tags=tuple(map(str, tags)))

    @property
    def step(self) -> int:
        """The step of the next row."""
        return self._step

    @property
    def dir(self) -> str:
        """A folder for files of the run, which is there."""
        if self.kept is None:
            return os.devnull
        place = Path(self.kept.folder) / FILES
        place.mkdir(mode=0o700, exist_ok=True)
        return str(place)

    @property
    def path(self) -> str:
        return "/".join(part for part in (self.entity, self.project, self.id) if part)

    @property
    def url(self) -> str | None:
        """None: it is on this machine, for `trainvitals serve`."""
        return None

    @property
    def disabled(self) -> bool:
        return self.kept is None

    @property
    def offline(self) -> bool:
        return True

    @property
    def sweep_id(self) -> str | None:
        return None

    def _change(self, *, config: Mapping[str, Any] | None = None, **fields: str | tuple[str, ...]) -> None:
        if self.kept is not None and not self._is_over:
            self.kept.change(config=config, **fields)

    def _change_config(self, values: Mapping[str, Any]) -> None:
        self._change(config=values)

    # -- logging

    def log(self, data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **more: Any) -> None:
        """Log values of one step. Rows are written at once; whether the step ends with this call, `commit` decides as
        in W&B: without a `step` it does, with one it does not."""
        if not isinstance(data, Mapping):
            raise ValueError("wandb.log must be passed a dictionary")
        if self._is_over:
            report_once(f"run {self.id} has ended: what is logged now is not kept")
            return
        if step is not None:
            if step < self._step:
                text = f"step {step} is before the current step {self._step}: not logged"
                report_once(f"{text}, as in W&B (shown once)")
                return
            self._step = int(step)
        if self.kept is not None:
            try:
                self._keep(dict(_flatten(data)))
                self.summary.note(_only_numbers(data))
                if time.monotonic() >= self._next_summary:
                    self._write_summary()
            except Exception as error:
                if is_from_handler(error):
                    raise
                report_once(f"log() failed, training continues: {error!r:.300}")
        if commit or (commit is None and step is None):
            self._step += 1

    def _keep(self, data: Mapping[str, Any]) -> None:
        assert self.kept is not None
        numbers = {name: value for name, value in data.items() if _is_number(value)}
        step = self._steps.find_step(numbers) if self._defined else None
        step = self._step if step is None else step
        for name, value in data.items():
            if name in numbers or value is None:
                continue
            if isinstance(value, Missing):
                report_missing(f"log() of {value!r}")
            elif isinstance(value, str):
                self.kept.log_text(name, value, step)
            elif (medium := find_medium(value)) is not None:
                medium.keep(self.kept, name, step)
            else:
                report_once(f"trainvitals.wandb logs no {type(value).__name__} ('{name:.100}'): ignored (shown once)")
        if numbers:
            self.kept.log(numbers, step)

    def define_metric(
        self,
        name: str,
        step_metric: Any = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> DefinedMetric:
        """Which metric counts the steps of another, and what the summary keeps of it."""
        if summary is not None:
            best = {"minimize": "min", "maximize": "max"}.get(goal or "", "last")
            self.summary.define(name, summary.replace("best", best))
        row = {"2" if "*" in name else "1": name}
        if step_metric is not None:
            row["4"] = str(step_metric)
        self._defined.append(row)
        self._steps = StepMetrics(self._defined)
        return DefinedMetric(name)

    def _write_summary(self) -> None:
        if self.kept is None:
            return
        self._next_summary = time.monotonic() + SUMMARY_SECONDS
        try:
            write_summary(Path(self.kept.folder), self.summary.as_dict(), self.kept.settings.redact)
        except OSError as error:
            report_once(f"the summary cannot be written: {error.strerror or error}")

    def watch(
        self,
        models: Any,
        criterion: Any = None,
        log: str | None = "gradients",
        log_freq: int = 1000,
        idx: int | None = None,
        log_graph: bool = False,
    ) -> None:
        """Measure the training of a model; histograms of its layers every `log_freq` steps."""
        if self.kept is None:
            return
        model, *others = models if isinstance(models, (list, tuple)) else [models]
        if others:
            report_once("trainvitals.wandb watches one model: the first")
        try:
            self.kept.watch(model, histograms_every=log_freq if log else 0)
        except Exception as error:  # noqa: BLE001 - what cannot be watched must not end the training
            report_once(f"the model is not watched: {error}")

    def unwatch(self, models: Any = None, idx: int | None = None) -> None:
        if self.kept is not None and self.kept.watching is not None:
            self.kept.watching.close()

    # -- other things that are kept

    def alert(self, title: str, text: str = "", level: Any = None, wait_duration: Any = None) -> None:
        """An event, with the severity of the level."""
        word = str(getattr(level, "value", level) or "INFO").upper()
        if self.kept is not None:
            severity = SEVERITIES.get(word, "info")
            self.kept.event("alert", f"{title}: {text}" if text else title, severity=severity)

    def save(
        self,
        glob_str: str | os.PathLike[str] | None = None,
        base_path: str | os.PathLike[str] | None = None,
        policy: str = "live",
        **more: Any,
    ) -> list[str]:
        """Copy files into the run folder: now, and unless `policy` is `now` once more at the end."""
        if self.kept is None or glob_str is None:
            return []
        pattern = os.fspath(glob_str)
        if policy != "now":
            self._watched.append((pattern, base_path))
        return self._save(pattern, base_path)

    def _save(self, pattern: str, base: str | os.PathLike[str] | None) -> list[str]:
        assert self.kept is not None
        try:
            return [str(path) for path, _ in save_files(Path(self.kept.folder), pattern, base)]
        except OSError as error:
            report_once(f"{pattern} cannot be saved: {error.strerror or error}")
            return []

    def log_artifact(
        self,
        artifact_or_path: Any,
        name: str | None = None,
        type: str | None = None,
        aliases: Sequence[str] | None = None,
        **more: Any,
    ) -> Artifact:
        """Copy the files of an artifact, or a path, into the run folder."""
        artifact = artifact_or_path
        if not isinstance(artifact, Artifact):
            path = Path(artifact_or_path)
            artifact = Artifact(name or f"run-{self.id}-{path.name}", type or "unspecified")
            (artifact.add_dir if path.is_dir() else artifact.add_file)(path)
        artifact.aliases = list(aliases or ["latest"])
        if self.kept is not None:
            try:
                artifact.keep(Path(self.kept.folder))
                self.kept.event("artifact", f"{artifact.type} {artifact.name}")
            except OSError as error:
                report_once(f"artifact {artifact.name} cannot be kept: {error.strerror or error}")
        return artifact

    def log_model(self, path: Any, name: str | None = None, aliases: Sequence[str] | None = None) -> None:
        self.log_artifact(path, name, "model", aliases)

    def log_code(self, *args: Any, **more: Any) -> None:
        """Nothing: run.json has the commit, and what was changed since."""

    # -- the end

    def finish(self, exit_code: int | None = None, quiet: bool | None = None) -> None:
        self._finish("failed" if exit_code else "finished")

    def _finish(self, status: str) -> None:
        if self._is_over:
            return
        if self.kept is not None:
            self._settle()
            self.kept.finish(status)
        self._is_over = True

    def _settle(self) -> None:
        """Write what only the end decides: the files that were saved live, and the summary."""
        atexit.unregister(self._settle)
        for pattern, base in self._watched:
            self._save(pattern, base)
        if self.summary:
            self._write_summary()
        if self.kept is not None and (own := find_own_values(self.summary.own_values(), {})):
            values = {free_key(name, _TAKEN): value for name, value in own.items()}
            self.kept.event(SUMMARY_EVENT, describe_own_values(own), **values)

    @property
    def is_over(self) -> bool:
        return self._is_over

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or self.kept is None:
            self._finish("finished")
        else:
            self._settle()
            self.kept.__exit__(kind, error, trace)
            self._is_over = True

    def __getattr__(self, name: str) -> Missing:
        if name.startswith("_"):
            raise AttributeError(name)
        return Missing(f"Run.{name}")

    def __repr__(self) -> str:
        return f"<trainvitals.wandb run {self.id}>"


class DefinedMetric:
    """What `define_metric` gives: the name, for the `step_metric` of others."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def _flatten(data: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """With dots between the keys, as W&B does."""
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_number(value: Any) -> bool:
    """One number, perhaps of an array or a tensor: what its own library has to compute is not waited for."""
    if isinstance(value, (int, float)):
        return True
    is_array = hasattr(value, "shape") and not isinstance(value, Missing) and not hasattr(value, "itertuples")
    return is_array and all(int(size) == 1 for size in value.shape)


def _only_numbers(data: Mapping[Any, Any]) -> dict[str, Any]:
    """What a summary keeps of the values of a row."""
    found: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            found |= {str(name): inner} if (inner := _only_numbers(value)) else {}
        elif _is_number(value):
            found[str(name)] = value
    return found

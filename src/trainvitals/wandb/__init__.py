"""W&B's functions for hand-written scripts, kept as runs of trainvitals: no account, no server, no other process.

    import trainvitals.wandb as wandb

    wandb.init(project="mnist", config={"lr": 1e-3})
    wandb.log({"loss": loss})
    wandb.finish()

What W&B has and this does not is reported once by name, and ignored (docs/trackers.md). Frameworks import the real
`wandb`; for them there is `trainvitals run`, which needs no change at all.
Tested in tests/wandb_drop_in/test_scripts.py and tests/wandb_drop_in/test_surface.py.
"""

from __future__ import annotations

import enum
import os
import secrets
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import trainvitals
from trainvitals.journal import folder as run_folder
from trainvitals.settings import resolve
from trainvitals.wandb import errors as errors
from trainvitals.wandb.artifacts import Artifact as Artifact
from trainvitals.wandb.data_types import Audio as Audio
from trainvitals.wandb.data_types import Histogram as Histogram
from trainvitals.wandb.data_types import Html as Html
from trainvitals.wandb.data_types import Image as Image
from trainvitals.wandb.data_types import Table as Table
from trainvitals.wandb.data_types import Video as Video
from trainvitals.wandb.errors import CommError as CommError
from trainvitals.wandb.errors import Error as Error
from trainvitals.wandb.errors import UsageError as UsageError
from trainvitals.wandb.missing import Missing, report_once
from trainvitals.wandb.wandb_config import Config as Config
from trainvitals.wandb.wandb_config import read_config
from trainvitals.wandb.wandb_run import DefinedMetric
from trainvitals.wandb.wandb_run import Run as Run

__version__ = "0.31.0"
"""Of the client whose functions these are, for programs that ask."""

ID = "_wandb"
"""In the configuration: the id that the program chose for the run."""

run: Run | None = None
"""The run that is active."""
config: MutableMapping[str, Any]
summary: MutableMapping[str, Any]
util = SimpleNamespace(generate_id=lambda length=8: secrets.token_hex(length)[:length])


class AlertLevel(enum.Enum):
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"


class Settings(SimpleNamespace):
    """Any names; `mode`, `project`, `run_name` and `run_id` count."""


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    id: str | None = None,
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: Any = None,
    config_exclude_keys: Sequence[str] | None = None,
    config_include_keys: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    reinit: bool | str | None = None,
    resume: bool | str | None = None,
    settings: Any = None,
    **ignored: Any,
) -> Run:
    """Begin a run, or go on with the one that `id` and `resume` name. Variables of W&B count where an argument is
    missing: WANDB_PROJECT, WANDB_NAME, WANDB_MODE and so on."""
    global run
    if run is not None and not run.is_over:
        if reinit not in (True, "finish_previous"):
            report_once(f"run {run.id} is active: init() gives it again, as in W&B (reinit=True ends it)")
            return run
        run.finish()
    for option in ("resume_from", "fork_from", "sync_tensorboard"):
        if ignored.get(option):
            report_once(f"trainvitals.wandb has no init({option}=...): ignored")
    given = dict(settings) if isinstance(settings, Mapping) else dict(vars(settings)) if settings is not None else {}
    mode = mode or given.get("mode") or _variable("MODE")
    project = project or given.get("project") or _variable("PROJECT")
    id = id or given.get("run_id") or _variable("RUN_ID")
    name = name or given.get("run_name") or _variable("NAME")
    values = read_config(config)
    if config_include_keys is not None:
        values = {key: value for key, value in values.items() if key in config_include_keys}
    values = {key: value for key, value in values.items() if key not in (config_exclude_keys or ())}
    about: dict[str, Any] = {
        "id": id,
        "entity": entity or _variable("ENTITY") or "",
        "group": group or _variable("RUN_GROUP") or "",
        "job_type": job_type or _variable("JOB_TYPE") or "",
    }
    if mode == "disabled" or os.environ.get("WANDB_DISABLED", "").lower() in ("true", "1"):
        return _make_current(Run(None, values, project=project or "", **about))
    root = None if dir is None else Path(dir) / Path(resolve().dir).name
    resumed = _find_resumed(root, project, id, resume if resume is not None else _variable("RESUME"))
    tagged = [about[word] for word in ("group", "job_type") if about[word]]
    kept = trainvitals.init(
        project=project,
        name=name,
        config={**values, **({ID: {"id": id}} if id else {})} if resumed is None else None,
        dir=root,
        tags=[tag for tag in (*(tags or (_variable("TAGS") or "").split(",")), *tagged) if tag],
        notes=notes or _variable("NOTES") or "",
        resume=resumed if resumed is not None else False,
    )
    if resumed is not None:
        kept.change(config=values)
        values = dict(kept.config)
    values.pop(ID, None)
    return _make_current(Run(kept, values, resumed=resumed is not None, **about))


def _variable(name: str) -> str | None:
    return os.environ.get(f"WANDB_{name}") or None


def _find_resumed(root: Path | None, project: str | None, id: str | None, resume: bool | str | None) -> Path | None:
    """The folder of the run to go on with; None to begin one. Raises UsageError where `must` or `never` ask for it."""
    effective = resolve({"project": project, "dir": None if root is None else str(root)})
    place = Path(effective.dir) / run_folder.project_folder(effective.project)
    runs = [(folder, found) for folder in run_folder.list_folders(place) if (found := run_folder.find_run(folder))]
    if id is not None:
        same = [folder for folder, found in runs if id in (found.id, (_as_mapping(found.config)).get("id"))]
        if resume == "must" and not same:
            raise errors.UsageError(f"resume='must', but there is no run '{id}' in {place}")
        if resume == "never" and same:
            raise errors.UsageError(f"resume='never', but run '{id}' is in {place}")
        return same[-1] if same and resume in (True, "allow", "must", "auto") else None
    if resume in (True, "auto") and runs and runs[-1][1].status != "finished":  # W&B goes on with what was cut off
        return runs[-1][0]
    return None


def _as_mapping(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    found = (config or {}).get(ID)
    return found if isinstance(found, Mapping) else {}


def _make_current(made: Run) -> Run:
    global run
    run = made
    return made


def _active(what: str) -> Run:
    if run is None:
        raise errors.Error(f"You must call wandb.init() before wandb.{what}")
    return run


def log(data: Mapping[str, Any], step: int | None = None, commit: bool | None = None, **more: Any) -> None:
    _active("log()").log(data, step, commit)


def finish(exit_code: int | None = None, quiet: bool | None = None) -> None:
    global run
    if run is not None:
        run.finish(exit_code)
        run = None


def define_metric(name: str, *args: Any, **more: Any) -> DefinedMetric:
    return _active("define_metric()").define_metric(name, *args, **more)


def watch(models: Any, *args: Any, **more: Any) -> None:
    _active("watch()").watch(models, *args, **more)


def unwatch(*args: Any) -> None:
    _active("unwatch()").unwatch(*args)


def save(*args: Any, **more: Any) -> list[str]:
    return _active("save()").save(*args, **more)


def alert(title: str, text: str = "", *args: Any, **more: Any) -> None:
    _active("alert()").alert(title, text, *args, **more)


def log_artifact(*args: Any, **more: Any) -> Artifact:
    return _active("log_artifact()").log_artifact(*args, **more)


def log_model(*args: Any, **more: Any) -> None:
    _active("log_model()").log_model(*args, **more)


def login(*args: Any, **more: Any) -> bool:
    """Always works: there is no account."""
    return True


def setup(*args: Any, **more: Any) -> None:
    """Nothing to set up."""


teardown = setup


class _OfTheRun(MutableMapping[str, Any]):
    """`wandb.config` and `wandb.summary`: of whichever run is active, also where they were imported before it began."""

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def _target(self) -> Any:
        return getattr(_active(object.__getattribute__(self, "_what")), object.__getattribute__(self, "_what"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._target(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._target(), name, value)

    def update(self, *args: Any, **more: Any) -> None:
        self._target().update(*args, **more)

    def __getitem__(self, name: str) -> Any:
        return self._target()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._target()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._target()[name]

    def __iter__(self) -> Any:
        return iter(self._target())

    def __len__(self) -> int:
        return len(self._target())

    def __repr__(self) -> str:
        return repr(self._target()) if run is not None else f"<wandb.{object.__getattribute__(self, '_what')}>"


config = _OfTheRun("config")
summary = _OfTheRun("summary")


def __getattr__(name: str) -> Missing:
    if name.startswith("_"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    found = Missing(name)
    setattr(sys.modules[__name__], name, found)
    return found

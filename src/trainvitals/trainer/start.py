"""`init`: start a run, or join the one that `trainvitals run` or another rank started.
Tested in tests/trainer/test_run.py."""

from __future__ import annotations

import os
from typing import Any

from trainvitals import settings
from trainvitals.errors import JournalError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.documents.registration import RAY
from trainvitals.journal.identity import WORKER
from trainvitals.redaction import redact_text
from trainvitals.stderr import print_line
from trainvitals.trainer import current, description, join, joining, ranks, ray_job
from trainvitals.trainer.run import Run


def init(
    project: str | None = None,
    name: str | None = None,
    config: Any = None,
    *,
    dir: str | os.PathLike[str] | None = None,
    tags: tuple[str, ...] | list[str] = (),
    notes: str = "",
    resume: bool | str | os.PathLike[str] = False,
    role: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> Run:
    """Start a run, or join the one that `trainvitals run` or another rank started.

    `resume=True` continues the newest run of this project (and name, if given), `resume="RUN"` a certain one: a new
    attempt in the same folder, nothing overwritten. `rank` and `world_size` are found from the environment under
    torchrun, Slurm and MPI. `role` is what this process does in a run of several kinds of processes, such as `trainer`
    and `rollout`; `rank` is then its number within the role. In a process of Ray all three are found, and the run is
    that of its training, trial or job (docs/ray.md). `options` are settings by name (docs/settings.md).
    """
    before = current.current_run()
    if before is not None and before.is_of_this_process:
        if before.automatic:
            before.hand_over()
        else:
            print_line(f"run {before.id} was still active and is now finished, because init() was called again")
            before.finish()
    given = {"project": project, "dir": os.fspath(dir) if dir is not None else None, **options}
    own = ranks.find_own(os.environ, role, rank, world_size)
    run = begin(own, name, config, tags=tags, notes=notes, resume=resume, **given)
    current.make_current(run)
    if own.launcher == RAY and not own.has_other_roles:
        ray_job.note_logging(own.launch)
        ray_job.at_loop_end(run.end_loop)
    return run


def begin(
    own: ranks.Rank,
    name: str | None = None,
    config: Any = None,
    *,
    tags: tuple[str, ...] | list[str] = (),
    notes: str = "",
    resume: bool | str | os.PathLike[str] = False,
    **given: Any,
) -> Run:
    """A run of this process, or its part in one, which does not become the current run: a process may have several.
    `given` are settings by name."""
    name = None if name is None else redact_text(str(name))  # it is in the name of the folder, too
    effective = settings.resolve_for_training(given, _check_rules, folder=ray_job.home() if own.launch else None)
    leads, homeless = own.rank == 0, False
    try:
        place = join.find_place(effective, name, resume, own)
        run_folder.create(place.folder, effective.shared)
        if not own.participant.is_trainer and not own.is_known:
            own = own._replace(rank=joining.take_number(place.folder, own.role, place.attempt))
        leads = join.takes_lead(place, own)
    except (JournalError, OSError) as error:
        if effective.strict or isinstance(error.__cause__, (NotADirectoryError, FileExistsError)):
            raise  # the place itself is wrong, which disk space would not fix
        place, homeless = join.find_place_alone(effective, name), True
        print_line(f"{error}\n  Training continues; what it logs is kept in memory until the folder can be created.")
    before = run_folder.find_run(place.folder)
    file = description.describe(place, effective, name, config, tags, notes, own)
    if leads:
        for text in settings.complaints(effective):
            print_line(text)
        try:
            if not homeless:
                run_folder.replace_run(place.folder, file, before, effective.file_mode)
        except OSError as error:  # a full or read-only disk: the training comes first
            print_line(f"cannot write {place.folder / layout.RUN_FILE}: {error.strerror}. Training continues.")
    first_step = 0
    if place.attempt > 1:
        first_step = join.find_last_step(place.folder, own) + 1
    run = Run(place.folder, own, effective, file, first_step=first_step)
    run.start(homeless=homeless, leads=leads)
    if effective.dashboard and leads:
        from trainvitals.trainer import dashboard

        dashboard.start(effective, run.id)
    return run


def begin_automatically() -> Run:
    """The run of a program that did not call `init()` (`trainvitals run`); a later `init()` takes it over."""
    run = init(role=WORKER if ranks.is_spawned(os.environ) else None)
    run.automatic = True
    return run


def _check_rules(effective: settings.Settings) -> None:
    """An invalid rule or threshold is an error now, not a missing alert later."""
    if effective.alerts_thresholds:
        from trainvitals.conditions import Conditions

        Conditions(effective.alerts_thresholds)
    given = (effective.alerts_rules, effective.alerts_thresholds, effective.alerts_disable, effective.alerts_actions)
    if effective.alerts_enabled and any((*given, effective.alerts_escalate_notify)):
        from trainvitals.alerts.builtin import check_rules

        check_rules(effective)

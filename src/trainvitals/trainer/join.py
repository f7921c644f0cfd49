"""Which run does this process belong to? Alone, under `trainvitals run`, or one rank of many. Jobs of Slurm: tested in
tests/trainer/test_slurm_jobs.py.

Ranks of one launch must find the same run without communicating. The first to arrive writes a small file
next to the runs, named after what all ranks of the launch share; the others read it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from trainvitals import runtime, settings
from trainvitals.journal import folder, layout, registrations
from trainvitals.journal.documents.job import find_job
from trainvitals.journal.documents.run import COMMAND, ENDED, TRAINING, RunFile
from trainvitals.journal.identity import Participant
from trainvitals.stderr import print_line
from trainvitals.trainer import joining, ranks, ray_job
from trainvitals.trainer.facts import format_command

WAIT_SECONDS = 30.0
LEAD_SECONDS = 10.0
FRESH_SECONDS = 600.0
JUST_NOW_SECONDS = 10.0
OLD_SECONDS = 86_400.0
"""After this long no rank joins a launch whose run is over, on any machine."""

LAUNCH_VARIABLE = "TRAINVITALS_LAUNCH"
"""From `trainvitals run` of each rank to its program: their common parent cannot be seen from there."""

_ended: list[Path] = []
"""The runs that have ended in this process: the next one must not join them again."""


class WritingPlace(NamedTuple):
    """Where this process writes."""

    folder: Path
    attempt: int
    identity: str | None
    """The launch id that the ranks of this run share; None if there is only one."""


def find_place(
    effective: settings.Settings, name: str | None, resume: bool | str | os.PathLike[str], rank: ranks.Rank
) -> WritingPlace:
    """Where this process writes: the run it resumes, joins, or starts."""
    if rank.launch and not resume:
        return _find_place_in_job(effective, name, rank)
    root = Path(effective.dir).absolute()
    restarts = restart_count(os.environ)
    identity = launch_identity(rank, os.environ)
    wrapped = os.environ.get("TRAINVITALS_RUN_DIR")
    if wrapped and not resume and Path(wrapped) not in _ended:
        known = folder.find_run(Path(wrapped)) or RunFile()
        if rank.has_other_roles and known.kind != COMMAND and not known.is_over:
            return WritingPlace(Path(wrapped), known.attempt, identity)
        if _may_begin(Path(wrapped), known, identity):
            return WritingPlace(Path(wrapped), known.attempt + restarts, identity)
    if rank.has_other_roles and not resume and (place := _find_parents_run(identity)) is not None:
        return place
    project = root / folder.project_folder(effective.project)
    earlier = sum(run.parent == project for run in _ended)
    if identity is not None and earlier:  # every rank counts alike, for they run the same program
        identity = f"{identity}|{earlier}"
    if resume:
        found = _find_resumable(root, project, name, resume)
    else:
        found = find_requeued(effective, project, name, sys.orig_argv, identity)
    if found is not None:
        known = folder.read_run(found)
        is_begun = identity is not None and (known.launch, known.restarts or 0) == (identity, restarts)
        if is_begun and not rank.supervises:
            return WritingPlace(found, known.attempt, identity)  # rank 0 of this launch was faster
        return WritingPlace(found, known.attempt + 1, identity)
    if identity is not None:
        return WritingPlace(join_launch(project, name, identity, rank, effective.shared), 1 + restarts, identity)
    if name is None and wrapped:  # a further run of the same command
        name = (folder.find_run(Path(wrapped)) or RunFile()).name or None
    return find_place_alone(effective, name)


def _find_place_in_job(effective: settings.Settings, name: str | None, rank: ranks.Rank) -> WritingPlace:
    """Where a process of Ray writes: into the run of its launch, which the first of its processes begins."""
    project = ray_job.home() / effective.dir / folder.project_folder(effective.project)
    offer = project / folder.new_run_id(name)
    is_job = ray_job.is_job(rank.launch)
    if is_job:
        offer = _find_run_of_job(rank) or offer
    # A training or trial of Ray continues after a failure, so its run is never over while the job lives.
    found = ray_job.meet(rank.launch, offer, lambda run: not is_job or _is_open(run))
    known = folder.find_run(found) or RunFile()
    attempt = ray_job.find_attempt(rank.launch, found, rank.group) if rank.group else known.attempt
    return WritingPlace(found, attempt, rank.launch)


def _is_open(run: Path) -> bool:
    return run not in _ended and not (folder.find_run(run) or RunFile()).is_over


def _find_run_of_job(rank: ranks.Rank) -> Path | None:
    """The run that `trainvitals run` or the driver began before there was a cluster to note it in."""
    wrapped = os.environ.get("TRAINVITALS_RUN_DIR")
    if wrapped and _is_open(Path(wrapped)):
        known = folder.find_run(Path(wrapped)) or RunFile()
        if _may_begin(Path(wrapped), known, rank.launch):
            return Path(wrapped)
    driver = ray_job.find_driver()
    place = _find_run_of(driver, rank.launch) if driver is not None else None
    return place.folder if place is not None else None


def _may_begin(run: Path, known: RunFile, identity: str | None) -> bool:
    """Whether this process is the training of the run that `trainvitals run` started, or one of its ranks. Of several
    independent ones at once, the first is."""
    if identity is not None:
        return known.kind == COMMAND or known.launch == identity
    return known.kind == COMMAND and joining.take_lead(run, known.attempt)


def _find_parents_run(identity: str | None) -> WritingPlace | None:
    """The run of the process that started this one, such as a driver that spawned its rollout workers."""
    multiprocessing = sys.modules.get("multiprocessing")
    parent = multiprocessing.parent_process() if multiprocessing is not None else None
    return _find_run_of((parent.pid if parent is not None else None) or os.getppid(), identity)


def _find_run_of(pid: int, identity: str | None) -> WritingPlace | None:
    """The run that this process of the machine trains."""
    for _, item in registrations.read_all():
        if item.pid == pid and item.kind == TRAINING and runtime.is_same_process(pid, item.pid_start):
            known = folder.find_run(Path(item.folder)) or RunFile()
            if not known.is_over:
                return WritingPlace(Path(item.folder), item.attempt, identity)
    return None


def find_place_alone(effective: settings.Settings, name: str | None) -> WritingPlace:
    """A folder that no other process uses."""
    project = Path(effective.dir).absolute() / folder.project_folder(effective.project)
    return WritingPlace(project / folder.new_run_id(name), 1, None)


def takes_lead(place: WritingPlace, rank: ranks.Rank) -> bool:
    """Whether this process writes run.json: rank 0, or in a run without trainers the first to join."""
    if rank.participant.is_trainer:
        return rank.rank == 0
    known = folder.find_run(place.folder)
    is_begun = known is not None and known.kind != COMMAND and known.attempt == place.attempt
    return not is_begun and joining.take_lead(place.folder, place.attempt)


def note_end(run: Path) -> None:
    """The run in this folder has ended in this process."""
    _ended.append(run)


def _find_resumable(root: Path, project: Path, name: str | None, resume: bool | str | os.PathLike[str]) -> Path | None:
    if resume is not True:
        # Not by a part of its name: a training must not continue a run that only resembles the one meant.
        return folder.find(os.fspath(resume), root, by_part=False)  # type: ignore[arg-type]
    for candidate in reversed(folder.list_folders(project.parent)):
        run = folder.find_run(candidate) or RunFile()
        if candidate.parent == project and name in (None, run.name):
            return candidate
    print_line(f"resume=True, but no earlier run{f' named {name!r}' if name else ''} in {project}: starting a new one")
    return None


def find_requeued(
    effective: settings.Settings, project: Path, name: str | None, argv: Sequence[str], identity: str | None
) -> Path | None:
    """The run that this program began before Slurm requeued its job: the same job, step and command. Of several such
    runs, each is gone on with once, in their order."""
    job = find_job(os.environ)
    if not job.slurm or not job.restarts:
        return None
    command = format_command(effective, argv)
    for candidate in folder.list_folders(project.parent):
        run = folder.find_run(candidate) if candidate.parent == project else None
        if run is None or (run.job.slurm, run.job.step, run.command) != (job.slurm, job.step, command):
            continue
        if name is not None and name != run.name and "name" not in run.edited:
            continue
        if identity is not None and is_part_of(run, identity):
            return candidate  # rank 0 was faster
        if run.job.restarts < job.restarts and (
            identity is not None or joining.take_requeued(candidate, run.attempt + 1)
        ):
            return candidate
    return None


def find_last_step(run: Path, rank: ranks.Rank) -> int:
    """The step this participant logged last in the newest attempt that logged any, -1 if none is known."""
    found: dict[int, int] = {}
    for status in folder.read_statuses(run):
        known = status.participants().get(rank.participant)
        if known is not None and known.step is not None:
            found[status.attempt or 1] = known.step
    for name, suffix, path in layout.list_files(run):  # in order: a later file of an attempt wins
        if suffix == ".jsonl" and name.table == "training" and name.participant == rank.participant:
            step = _last_step_in(path)
            if step is not None:
                found[name.attempt] = step
    return found[max(found)] if found else -1


def _last_step_in(path: Path) -> int | None:
    return next((row["step"] for row in read_backwards(path) if isinstance(row.get("step"), int)), None)


def read_backwards(path: Path) -> Iterator[dict[str, Any]]:
    """The newest lines of a file, the last one first: those in its last megabyte."""
    with open(path, "rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - (1 << 20), 0))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(row, dict):
            yield row


def restart_count(environ: Mapping[str, str]) -> int:
    """How often an elastic launcher has restarted the ranks."""
    text = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(text) if text.isdigit() else 0


def launch_identity(rank: ranks.Rank, environ: Mapping[str, str]) -> str | None:
    """The same text in every rank of one launch and in no other launch, as far as can be known; None if alone."""
    if rank.launch:
        return rank.launch
    if rank.launcher in ranks.SEPARATE and environ.get(LAUNCH_VARIABLE):
        import hashlib  # only where a launcher started several ranks

        # The command of `trainvitals run` may be a script with several trainings, one after the other.
        program = hashlib.sha256(repr(sys.orig_argv).encode()).hexdigest()[:16]
        return f"{environ[LAUNCH_VARIABLE]}|{program}"
    if rank.world_size <= 1 and not rank.has_other_roles:
        return None
    key = ranks.launch_key(environ) or ""
    parts = [key]
    # Their common parent distinguishes launches; also that of a script under `trainvitals run` which sets only ranks.
    if rank.is_on_one_machine or (not key and environ.get("TRAINVITALS_RUN_DIR")):
        launcher = _find_launcher(rank, environ)
        parts += [runtime.host_name(), str(launcher), str(runtime.process_start(launcher))]
    return "|".join(parts) if any(parts) else None


def find_wrapped_launch(effective: settings.Settings, command: Sequence[str], rank: ranks.Rank) -> str | None:
    """The same text in every `trainvitals run` that a launcher starts for its ranks; None if it starts one."""
    identity = launch_identity(rank, os.environ) if rank.launcher in ranks.SEPARATE else None
    # One rank may run several programs, one after the other.
    return f"{identity}|{format_command(effective, command)}" if identity is not None else None


def is_part_of(run: RunFile, launch: str) -> bool:
    """Whether the run was begun by this launch, or by a program in it."""
    return f"{run.launch}|".startswith(f"{launch}|")


def wait_for_lead(run: Path, launch: str) -> None:
    """Until rank 0 has written down the run of this launch, if it does so soon."""
    deadline = time.monotonic() + LEAD_SECONDS
    while time.monotonic() < deadline and not is_part_of(folder.find_run(run) or RunFile(), launch):
        time.sleep(0.05)


def _find_launcher(rank: ranks.Rank, environ: Mapping[str, str]) -> int:
    """The process that started the ranks of this machine."""
    # Lightning's first rank starts the others itself, and sets no RANK.
    started_others = "RANK" not in environ and "NODE_RANK" in environ and rank.local_rank == 0
    return os.getpid() if started_others else os.getppid()


def join_launch(project: Path, name: str | None, identity: str, rank: ranks.Rank, shared: bool) -> Path:
    """The run folder all ranks of this launch use."""
    folder.create(project, shared)
    import hashlib  # only where a launcher started several ranks

    meeting = project / f".launch-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json"
    is_first = rank.participant == Participant()
    deadline = time.monotonic() + (0.0 if is_first or rank.has_other_roles else WAIT_SECONDS)
    while True:
        known = runtime.read_json(meeting)
        # On one machine the identity contains the launcher's process, so no other launch can have left the file; but
        # processes with roles may be started by hand, again and again from one shell.
        is_own = rank.is_on_one_machine and not rank.has_other_roles
        if known is not None and (is_own or _is_fresh(meeting, project / str(known.get("run_id")))):
            return project / Path(str(known["run_id"])).name  # a folder of this project, whoever wrote the file
        if known is None or is_first or time.monotonic() > deadline:
            run_id = folder.new_run_id(name)
            if known is not None and runtime.read_json(meeting) == known:
                meeting.unlink(missing_ok=True)  # left by an earlier launch with the same address
            if _claim(meeting, run_id, _find_launcher(rank, os.environ) if rank.is_on_one_machine else None):
                remove_old_meetings(project)
                return project / run_id
        time.sleep(0.05)


def _claim(meeting: Path, run_id: str, launcher: int | None) -> bool:
    # Written aside and linked into place, so that no rank ever reads half of it.
    draft = meeting.with_name(f"{meeting.name}.{runtime.host_name()}.{os.getpid()}")
    content: dict[str, Any] = {"run_id": run_id}
    if launcher is not None:
        content |= {"host": runtime.host_name(), "launcher": launcher, "start": runtime.process_start(launcher)}
    # In a folder that others may write to, no link of theirs is followed.
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | runtime.NO_LINK, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(json.dumps(content))
    try:
        os.link(draft, meeting)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        draft.replace(meeting)
        return True
    finally:
        draft.unlink(missing_ok=True)
    return True


def remove_old_meetings(project: Path) -> None:
    """Remove the files of launches that are over."""
    for path in project.glob(".launch-*"):
        try:
            if _is_over(path, project):
                path.unlink()
        except OSError:  # gone meanwhile, or another user's: harmless
            continue


def _is_over(meeting: Path, project: Path) -> bool:
    """Whether no rank can join this launch any more. A launcher may restart its ranks after a failure, so the end of
    the run is not enough: the launcher must be gone or, where that is unknown, a day must have passed."""
    known = runtime.read_json(meeting) or {}
    run = project / str(known.get("run_id"))
    changed = meeting.stat().st_mtime
    if meeting.suffix == ".json" and (run / layout.RUN_FILE).is_file():
        if not (folder.find_run(run) or RunFile()).is_over:
            return False
        changed = max(changed, (run / layout.RUN_FILE).stat().st_mtime)
    launcher = known.get("launcher")
    patience = OLD_SECONDS
    if isinstance(launcher, int) and known.get("host") == runtime.host_name():
        if runtime.is_same_process(launcher, known.get("start")):
            return False
        patience = FRESH_SECONDS
    return time.time() - changed > patience


def _is_fresh(meeting: Path, run: Path) -> bool:
    try:
        age = time.time() - meeting.stat().st_mtime
    except FileNotFoundError:
        return False
    if not (run / layout.RUN_FILE).is_file():
        return age < FRESH_SECONDS  # rank 0 has not written it yet
    # A very short run may be over before its last rank joins.
    return age < JUST_NOW_SECONDS or folder.read_state(run)[0] not in ENDED

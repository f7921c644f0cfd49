"""`trainvitals slurm epilog`: what Slurm did to a job, told to its runs when the job is over."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainvitals.errors import TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.cause import (
    CANCELLED,
    NODE_FAILED,
    OUT_OF_MEMORY,
    PREEMPTED,
    REQUEUED,
    TIME_LIMIT,
    Cause,
)
from trainvitals.journal.documents.job import Job
from trainvitals.journal.job_ends import find_runs_of, note_job_end
from trainvitals.journal.job_variables import count_requeues
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser, UsageError, resolve_settings

ASK_SECONDS = 20.0
KINDS = {
    "TIMEOUT": TIME_LIMIT,
    "DEADLINE": TIME_LIMIT,
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
    "PREEMPTED": PREEMPTED,
    "NODE_FAIL": NODE_FAILED,
    "BOOT_FAIL": NODE_FAILED,
    "CANCELLED": CANCELLED,
    "REQUEUED": REQUEUED,
    "REQUEUE_HOLD": REQUEUED,
}
"""States in which Slurm, not the program, ended the job."""
_REASONS = {"TimeLimit": "TIMEOUT", "OutOfMemory": "OUT_OF_MEMORY", "NodeDown": "NODE_FAIL", "DeadLine": "DEADLINE"}
"""While an epilog runs, the state alone may be COMPLETING."""


def _add_epilog(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="id of the job (default: SLURM_JOB_ID)")
    parser.add_argument("--state", metavar="STATE", help="how it ended, such as TIMEOUT (default: asked of Slurm)")
    parser.add_settings("dir")
    parser.add_config()


def _epilog(arguments: argparse.Namespace) -> int:
    if "epilog" not in os.environ.get("SLURM_SCRIPT_CONTEXT", ""):
        return _tell(arguments)
    try:
        return _tell(arguments)
    except Exception as error:  # noqa: BLE001 - Slurm takes a node whose epilog fails out of service
        print_line(f"the runs of the job were not told: {error}")
        return 0


def _tell(arguments: argparse.Namespace) -> int:
    job = arguments.job or os.environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"[0-9]{1,20}", job):
        raise UsageError("which job? name its id, or run this as an epilog of Slurm, which sets SLURM_JOB_ID")
    if not is_first_node(os.environ):
        return 0  # Slurm asks for few requests in epilogs, and one is enough
    state = (arguments.state or ask_state(job) or "").upper()
    kind = KINDS.get(state)
    if kind is None:
        print(f"Slurm job {job}: {state or 'state unknown'}, nothing to tell its runs")
        return 0
    become_user(os.environ)
    cause = Cause(kind=kind, detail=str(Job(slurm=job)))
    of_job = "SLURM_JOB_RESTART_COUNT" in os.environ and not arguments.job
    restarts = count_requeues(os.environ) if of_job else None
    runs = find_runs_of(job, [*_registered(), *run_folder.list_folders(Path(resolve_settings(arguments).dir))])
    for folder in runs:
        told = note_job_end(folder, cause, restarts)
        print(f"{folder.name}: {cause if told else 'its end is known already'}")
    if not runs:
        print(f"Slurm job {job}: {state}, no run found")
    return 0


def _registered() -> list[Path]:
    """The agent dies with the job, so what was registered with it is still there."""
    try:
        return [Path(item.folder) for _, item in registrations.read_all()]
    except (OSError, TrainvitalsError):
        return []


def is_first_node(environ: Mapping[str, str]) -> bool:
    """Whether this is the first node of the job, or not an epilog of a node at all."""
    node, nodes = environ.get("SLURMD_NODENAME"), environ.get("SLURM_JOB_NODELIST")
    if not node or not nodes or environ.get("SLURM_SCRIPT_CONTEXT") != "epilog_slurmd":
        return True
    first = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return first is not None and node == "".join(part or "" for part in first.groups())


def ask_state(job: str) -> str | None:
    """How Slurm says the job ended; None if nobody knows."""
    return next((state for state in _list_states(job) if state in KINDS), None)


def _list_states(job: str) -> Iterator[str]:
    described = _ask("scontrol", "show", "job", job, "--json")
    try:
        known = json.loads(described)["jobs"][0]
        states = known["job_state"]
        yield from [states] if isinstance(states, str) else map(str, states)
        yield _REASONS.get(str(known.get("state_reason")), "")
    except (ValueError, LookupError, TypeError):
        pass  # an old Slurm, or one that was built without JSON
    line = _ask("scontrol", "show", "job", "-o", job)
    found = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
    yield from (found.get("JobState", ""), _REASONS.get(found.get("Reason", ""), ""))
    # "CANCELLED by 1000"
    yield (_ask("sacct", "-j", job, "-X", "-n", "-P", "-o", "State").split() or [""])[0]


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def become_user(environ: Mapping[str, str]) -> None:
    """Whose job it was: what lies in a folder of theirs is not to be written as root. For good."""
    user, group = environ.get("SLURM_JOB_UID", ""), environ.get("SLURM_JOB_GID", "")
    if os.geteuid() == 0 and user.isdigit() and int(user) != 0:
        import pwd

        try:
            entry = pwd.getpwuid(int(user))
            os.initgroups(entry.pw_name, entry.pw_gid)
            os.setgid(entry.pw_gid)
            os.environ["HOME"] = entry.pw_dir
        except KeyError:
            os.setgroups([])
            os.setgid(int(group) if group.isdigit() else int(user))
        os.setuid(int(user))
        for name in ("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
    folder = environ.get("SLURM_JOB_WORK_DIR")
    if folder and Path(folder).is_dir():
        os.chdir(folder)


ACTIONS = (
    Action(
        "epilog",
        "tell the runs of a job how Slurm ended it",
        "trainvitals slurm epilog 4711\ntrainvitals slurm epilog 4711 --state TIMEOUT",
        _add_epilog,
        _epilog,
    ),
)

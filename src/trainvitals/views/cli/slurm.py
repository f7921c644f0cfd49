"""`trainvitals slurm epilog`: what Slurm did to a job, told to its runs when the job is over."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import time
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
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import Action, Parser, UsageError, resolve_settings

ASK_SECONDS = 20.0
WAIT_SECONDS = 90.0
WAIT_INTERVAL = 2.0
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
    "PENDING": REQUEUED,
}
"""States after which Slurm, not the program, has ended the job."""
COMPLETING = "COMPLETING"
_REASONS = {"TimeLimit": "TIMEOUT", "OutOfMemory": "OUT_OF_MEMORY", "NodeDown": "NODE_FAIL", "DeadLine": "DEADLINE"}
"""Known before the state is."""


def _add_epilog(parser: Parser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help="job id (default: SLURM_JOB_ID)")
    parser.add_argument("--state", metavar="STATE", help="end state, such as TIMEOUT (default: ask Slurm)")
    parser.add_settings("dir")
    parser.add_config()


def _epilog(arguments: argparse.Namespace) -> int:
    if not _is_epilog():
        return _tell(arguments)
    try:
        return _tell(arguments)
    except Exception as error:  # noqa: BLE001 - Slurm takes a node whose epilog fails out of service
        print_line(f"the job's runs were not updated: {error}")
        return 0


def _is_epilog() -> bool:
    return os.environ.get("SLURM_SCRIPT_CONTEXT", "").startswith("epilog")


def _tell(arguments: argparse.Namespace) -> int:
    now = time.time()
    job = arguments.job or os.environ.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"[0-9]{1,20}", job):
        raise UsageError("no job given: pass its id, or run this as a Slurm epilog, which sets SLURM_JOB_ID")
    if not is_first_node(os.environ):
        return 0  # Slurm asks for few requests in epilogs, and one is enough
    state = arguments.state or ask_state(job)
    if state == COMPLETING and _is_epilog():
        if not detach():
            return 0
        state = wait_for_state(job)
    kind = KINDS.get((state or "").upper())
    if kind is None:
        print(f"Slurm job {job}: {state or 'state unknown'}, nothing to record in its runs")
        return 0
    become_user(os.environ)
    cause = Cause(kind=kind, detail=str(Job(slurm=job)))
    runs = find_runs_of(job, [*_registered(), *run_folder.list_folders(Path(resolve_settings(arguments).dir))])
    for folder in runs:
        told = note_job_end(folder, cause, now if _is_epilog() else None)
        print(f"{one_line(folder.name)}: {cause if told else 'its end is known already'}")
    if not runs:
        print(f"Slurm job {job}: {state}, no run found")
    return 0


def detach() -> bool:
    """Whether this is the process that goes on: until its epilog is over, Slurm itself does not say how a job ended."""
    if os.fork():
        return False
    os.setsid()  # Slurm kills what an epilog leaves in its process group
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    return True


def wait_for_state(job: str) -> str | None:
    """How the job ended, once its epilogs are over; None if that takes too long."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        time.sleep(WAIT_INTERVAL)
        state = ask_state(job)
        if state not in (COMPLETING, None):
            return state
    return None


def _registered() -> list[Path]:
    """The agent dies with the job, so what was registered with it is still there."""
    try:
        return [Path(item.folder) for _, item in registrations.read_all()]
    except (OSError, TrainvitalsError):
        return []


def is_first_node(environ: Mapping[str, str]) -> bool:
    """Whether this is the first node of the job, or not an epilog of a node at all."""
    node, nodes = environ.get("SLURMD_NODENAME"), environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    if not node or not nodes or environ.get("SLURM_SCRIPT_CONTEXT") != "epilog_slurmd":
        return True
    first = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return first is not None and node == "".join(part or "" for part in first.groups())


def ask_state(job: str) -> str | None:
    """How Slurm says the job ended: one of KINDS, or COMPLETING, or another state; None if nobody knows."""
    states = [*_ask_controller(job)]
    found = next((state for state in states if state in KINDS), None)
    if found is not None and KINDS[found] != REQUEUED:
        return found
    # The accounting also knows why a job was requeued, and older jobs: "CANCELLED by 1000".
    lines = _ask("sacct", "-j", job, "-X", "-D", "-n", "-P", "-o", "State").splitlines()
    known = [word for line in lines for word in line.split()[:1] if word in KINDS and KINDS[word] != REQUEUED]
    return next(reversed(known), found or next(iter(states), None))


def _ask_controller(job: str) -> Iterator[str]:
    described = _ask("scontrol", "--json", "show", "job", job)
    try:
        found = json.loads(described)["jobs"][0]
        states, reason = found["job_state"], str(found.get("state_reason"))
        states = [states] if isinstance(states, str) else list(map(str, states))
    except (ValueError, LookupError, TypeError):  # an older Slurm, or one that was built without JSON
        line = _ask("scontrol", "show", "job", "-o", job)
        pairs = dict(pair.split("=", 1) for pair in line.split() if "=" in pair)
        states, reason = [pairs[name] for name in ("JobState",) if name in pairs], pairs.get("Reason", "")
    if reason in _REASONS:
        yield _REASONS[reason]
    yield from states


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
        "record in a job's runs how Slurm ended it",
        "trainvitals slurm epilog 4711\ntrainvitals slurm epilog 4711 --state TIMEOUT",
        _add_epilog,
        _epilog,
    ),
)

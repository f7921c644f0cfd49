"""Whose process it is: the user, the job of a scheduler, the container and pod. Read once for each process."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from trainvitals.journal.documents.job import Job, find_job
from trainvitals.ownership import user_name
from trainvitals.sources.cgroup import parse_cgroups
from trainvitals.sources.sysfs import read_bytes, read_text

_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_SLURM_JOB = re.compile(r"slurm.*?/job_(\d+)")
_LONGEST_ENVIRONMENT = 1 << 18


class ProcessOwner(NamedTuple):
    """Empty where it does not apply or may not be read."""

    user: str = ""
    command: str = ""
    """The name of the program, without its arguments: these may hold secrets."""
    job: Job = Job()


def read_owner(root: str, pid: int) -> ProcessOwner:
    """Of a process in this procfs. The control group says most and may be read by everybody; the environment, which has
    the names of pods, only by the user of the process and by root."""
    group = max(parse_cgroups(read_text(f"{root}/{pid}/cgroup") or "").values(), key=len, default="")
    container, slurm = _CONTAINER.search(group), _SLURM_JOB.search(group)
    job = find_job(environment_of(root, pid), in_pod="kubepods" in group)
    return ProcessOwner(
        user=_read_user(root, pid),
        command=(read_text(f"{root}/{pid}/comm") or "").strip(),
        job=replace(
            job,
            slurm=slurm[1] if slurm is not None else job.slurm,
            container=job.container or (container[1][:12] if container is not None else ""),
        ),
    )


def _read_user(root: str, pid: int) -> str:
    try:
        return user_name(Path(root, str(pid)).stat().st_uid)
    except OSError:
        return ""


def environment_of(root: str, pid: int) -> dict[str, str]:
    """With which the process was started; empty where it may not be read."""
    raw = read_bytes(f"{root}/{pid}/environ", limit=_LONGEST_ENVIRONMENT) or b""
    pairs = (item.partition(b"=") for item in raw.split(b"\0"))
    return {name.decode("utf-8", "replace"): value.decode("utf-8", "replace") for name, _, value in pairs if name}

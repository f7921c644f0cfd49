"""The rank and world size of this process, from its launcher: its environment variables, or what Ray knows of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import NamedTuple

from trainvitals.journal.documents.registration import RAY
from trainvitals.journal.identity import TRAINER, Participant, clean_role
from trainvitals.trainer import ray_job

ROLE_VARIABLE = "TRAINVITALS_ROLE"
SINGLE = "single"
"""No launcher."""
SEPARATE = ("slurm", "openmpi", "mvapich", "mpich")
"""Launchers that may start a `trainvitals run` for each rank."""


class Rank(NamedTuple):
    """One process of a launch. A process launched alone is rank 0 of 1."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    """Ranks on this machine; if the launcher does not set it, as many as this rank implies."""
    launcher: str = SINGLE
    local_size_is_known: bool = True
    """Whether the launcher set how many ranks are on this machine; a guess may differ from rank to rank."""
    role: str = TRAINER
    has_other_roles: bool = False
    """Whether a role was set, even that of a trainer: the run has processes with others, which must find each other."""
    is_known: bool = True
    """Whether this process was given a rank; else it is numbered when it joins the run."""
    launch: str = ""
    """What the processes of the launch share, if the launcher has a name for it, as Ray does."""
    group: str = ""
    """Ray's name for the workers that were started together: another group is another attempt."""
    supervises: bool = False
    """Whether this process learns how the others end, as a controller of Ray does: it writes the end if they cannot."""

    @property
    def participant(self) -> Participant:
        return Participant(self.role, self.rank)

    @property
    def is_on_one_machine(self) -> bool:
        """Whether all ranks are known to be on this machine."""
        return self.local_size_is_known and self.local_world_size == self.world_size


class _Variables(NamedTuple):
    """The variable names of one launcher."""

    launcher: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


# The innermost launcher first: torchrun may run inside mpirun, and mpirun in a Slurm step, whose variables
# are still there but count the outer processes.
_LAUNCHERS = (
    _Variables("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Variables("horovod", "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    _Variables(
        "openmpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables(
        "mvapich",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    _Variables("mpich", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def find_own(environ: Mapping[str, str], role: str | None, rank: int | None, world_size: int | None) -> Rank:
    """The rank of this process: as passed by the program, else from its launcher's variables, else from
    torch.distributed, for processes started with `mp.spawn`."""
    place = ray_job.find_own()
    found = find_rank(environ) if place is None or place.is_driver else _find_ray_rank(place)
    group = _find_group_rank() if rank is None and found.launcher == SINGLE else None
    if rank is not None:
        found = take_word_for(rank, world_size, found)
    elif group is not None:
        found = take_word_for(*group, found)
    if place is not None and found.launcher in (SINGLE, RAY) and group is None:
        found = found._replace(launch=place.launch)
    role = role or environ.get(ROLE_VARIABLE) or (place.role if place is not None else None)
    if not role:
        return found
    role = clean_role(role)
    if place is not None and place.member and rank is None:
        number = ray_job.number_of(place.launch, role, place.member)
        found = found._replace(rank=number, world_size=number + 1)
    is_known = rank is not None or group is not None or found.launcher != SINGLE
    return found._replace(role=role, has_other_roles=True, is_known=is_known)


def _find_ray_rank(place: ray_job.RayPlace) -> Rank:
    """Ray Train sets torchrun's variables as well, but those do not name the launch."""
    local = (place.local_rank, place.world_size, place.local_world_size)
    return Rank(place.rank, *local, RAY, local_size_is_known=not place.member, group=place.group)


def is_spawned(environ: Mapping[str, str]) -> bool:
    """Whether this process was started by `multiprocessing`, without a rank or a role."""
    multiprocessing = sys.modules.get("multiprocessing")
    if multiprocessing is None or multiprocessing.parent_process() is None or environ.get(ROLE_VARIABLE):
        return False
    return find_rank(environ).launcher == SINGLE and _find_group_rank() is None


def _find_group_rank() -> tuple[int, int] | None:
    """(rank, world size) in torch's default process group; None without one."""
    distributed = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)  # a build of torch may lack it
    if distributed is None or is_initialized is None or not is_initialized():
        return None
    rank, size = distributed.get_rank(), distributed.get_world_size()
    return (rank, size) if size > 1 else None


def find_rank(environ: Mapping[str, str]) -> Rank:
    """The rank that a launcher gave this process. Values that are not numbers, or do not fit together, are ignored."""
    slurm = _find_slurm(environ)
    for names in _LAUNCHERS:
        rank, world_size = _number(environ, names.rank), _number(environ, names.world_size)
        if rank is None and names.launcher == "torchrun":
            rank = _find_lightning_rank(environ)
        if rank is None or world_size is None or rank >= world_size:
            continue
        if names.launcher == "mpich" and slurm and (slurm.rank, slurm.world_size) == (rank, world_size):
            break  # srun sets PMI variables too, and only Slurm's own have the local rank
        local_rank = _number(environ, names.local_rank)
        local_size = _number(environ, names.local_world_size)
        if local_size is None and environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            local_size = world_size  # they rendezvous on this machine, so they are all here; Lightning sets no more
        return _fit(rank, world_size, local_rank, local_size, names.launcher)
    return slurm or Rank()


def take_word_for(rank: int, world_size: int | None, found: Rank) -> Rank:
    """The rank passed by the program, completed with what was found."""
    size = world_size or max(found.world_size, rank + 1)
    if min(found.local_world_size, size) == 1:  # started by hand, such as with mp.spawn: all on this machine
        return found._replace(
            rank=rank, local_rank=rank, world_size=size, local_world_size=size, local_size_is_known=True
        )
    return found._replace(rank=rank, world_size=size, local_world_size=min(found.local_world_size, size))


def _fit(rank: int, world_size: int, local_rank: int | None, local_size: int | None, launcher: str) -> Rank:
    """The rank, with local numbers only as far as they are possible."""
    if local_rank is None or local_rank > rank:
        local_rank = 0
    is_known = local_size is not None and local_rank < local_size <= world_size
    if local_size is None or not is_known:
        local_size = local_rank + 1
    return Rank(rank, local_rank, world_size, local_size, launcher, is_known)


def _find_lightning_rank(environ: Mapping[str, str]) -> int | None:
    """Lightning starts its own processes and passes them everything but their rank."""
    local_rank, node_rank = _number(environ, "LOCAL_RANK"), _number(environ, "NODE_RANK")
    if local_rank is None or node_rank is None:
        return None
    if node_rank == 0:
        return local_rank
    local_size = _number(environ, "LOCAL_WORLD_SIZE")
    return None if local_size is None else node_rank * local_size + local_rank


def _find_slurm(environ: Mapping[str, str]) -> Rank | None:
    """The task of a job step. A batch script has SLURM_PROCID and SLURM_NTASKS too, but it is one process:
    only srun sets SLURM_STEP_NUM_TASKS."""
    rank, world_size = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS")
    if rank is None or world_size is None or world_size < 2 or rank >= world_size:
        return None
    node = _number(environ, "SLURM_NODEID")
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    local_size = None if node is None else _parse_tasks(tasks, node)
    return _fit(rank, world_size, _number(environ, "SLURM_LOCALID"), local_size, "slurm")


def _parse_tasks(text: str, node: int) -> int | None:
    """How many tasks the node of that index has: of `4(x2),1`, nodes 0 and 1 have 4 and node 2 has 1."""
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        if match is None:
            return None
        node -= int(match[2] or 1)
        if node < 0:
            return int(match[1])
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


# A scheduler's id of one run of a job; the same for all of its ranks.
_JOB = ("SLURM_JOB_ID", "SLURM_RESTART_COUNT", "PBS_JOBID", "LSB_JOBID")


def launch_key(environ: Mapping[str, str]) -> str | None:
    """What all ranks of one launch share and, where the launcher allows, no other launch has; the same for
    restarts in one torchrun. None for a single process, and where nothing identifies it (MPICH outside a job).

    A torchrun over several machines without `--rdzv-id` is identified only by its address and port, which a later
    launch may reuse.
    """
    rank = find_rank(environ)
    if rank.world_size < 2:
        return None
    names: tuple[str, ...]
    if rank.launcher == "torchrun":
        # Without the Slurm step: one srun per machine may have started one torchrun each.
        names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", *_JOB)
    elif rank.launcher == "slurm":
        names = (*_JOB, "SLURM_STEP_ID")
    else:
        names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "MPIRUN_ID", "PMI_JOBID", "PALS_APID", *_JOB)
    # torchrun writes "none" for an id that was not given.
    parts = [f"{name}={environ[name]}" for name in names if environ.get(name, "none") not in ("", "none")]
    if rank.launcher == "torchrun" and rank.local_world_size == rank.world_size:
        # All ranks on one machine share the folder of torchrun's error files, whose name is random:
        # /tmp/torchelastic_uc3sf2gf/none_3hx9u979/attempt_0/1/error.json
        folders = re.split(r"[/\\]", environ.get("TORCHELASTIC_ERROR_FILE", ""))
        parts += [f"folder={name}" for name in folders[-4:-3] if name]
    return " ".join(parts) or None

"""Ranks from the variables that launchers set; the environments are recordings of real launches, shortened."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.trainer.ranks import Rank, find_own, find_rank, launch_key, take_word_for


def torchrun(rank: int, world_size: int = 2, **others: str) -> dict[str, str]:
    """torchrun 2.13 on one machine, `--nproc-per-node 2`."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "44101",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": "cbb45cfe-b19c-4bc7-8b0b-0279c6e4b6ae",
        "TORCHELASTIC_ERROR_FILE": f"/tmp/torchelastic_seyg8gdc/cbb45cfe_fdlhvxdr/attempt_0/{rank}/error.json",
    } | others


def static_torchrun(rank: int, folder: str = "none_3hx9u979") -> dict[str, str]:
    """`torchrun --rdzv-backend static`: the id is the word none and the port is fixed."""
    return torchrun(
        rank,
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="none",
        TORCHELASTIC_ERROR_FILE=f"/tmp/torchelastic_uc3sf2gf/{folder}/attempt_0/{rank}/error.json",
    )


def open_mpi(rank: int) -> dict[str, str]:
    """mpirun of Open MPI 5."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "PMIX_NAMESPACE": "prterun-node1-7167@1",
        "PMIX_RANK": str(rank),
    }


def mpich(rank: int) -> dict[str, str]:
    """mpiexec.hydra of MPICH 5, and of Intel MPI."""
    return {
        "PMI_RANK": str(rank),
        "PMI_SIZE": "2",
        "MPI_LOCALRANKID": str(rank),
        "MPI_LOCALNRANKS": "2",
        "PMI_HOSTNAME": "node1",
    }


# A batch script of a job with four tasks: one process, though it sees four tasks and has a number.
BATCH_SCRIPT = {
    "SLURM_JOB_ID": "200505",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_TASKS_PER_NODE": "1(x4)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}


def srun(rank: int, node: int, local_rank: int, step: str = "0") -> dict[str, str]:
    """srun of five tasks on three machines, inside that job."""
    return BATCH_SCRIPT | {
        "SLURM_PROCID": str(rank),
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_STEP_ID": step,
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    }


def test_a_process_that_nobody_launched_is_rank_0_of_1() -> None:
    assert find_rank({}) == Rank(0, 0, 1, 1, "single")
    assert launch_key({}) is None


def test_torchrun_is_found() -> None:
    assert find_rank(torchrun(1)) == Rank(1, 1, 2, 2, "torchrun")


def test_one_rank_of_torchrun_is_a_single_process_for_the_key() -> None:
    assert find_rank(torchrun(0, 1)) == Rank(0, 0, 1, 1, "torchrun")
    assert launch_key(torchrun(0, 1)) is None


def test_one_rank_per_machine_is_assumed_where_only_rank_and_size_are_told() -> None:
    assert find_rank({"RANK": "3", "WORLD_SIZE": "4"}) == Rank(3, 0, 4, 1, "torchrun", local_size_is_known=False)


def test_a_local_rank_proves_at_least_as_many_neighbours() -> None:
    assert find_rank({"RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}).local_world_size == 4


@pytest.mark.parametrize(
    ("rank", "size", "found", "expected"),
    [
        (2, 4, Rank(), Rank(2, 2, 4, 4)),  # mp.spawn: nothing in the environment
        (2, None, Rank(), Rank(2, 2, 3, 3)),
        (5, None, Rank(1, 1, 8, 4, "torchrun"), Rank(5, 1, 8, 4, "torchrun")),
        (0, 2, Rank(1, 1, 8, 4, "torchrun"), Rank(0, 1, 2, 2, "torchrun")),
    ],
)
def test_a_program_that_says_its_rank_is_believed(rank: int, size: int | None, found: Rank, expected: Rank) -> None:
    assert take_word_for(rank, size, found) == expected


def test_processes_that_lightning_started_are_found() -> None:
    environ = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    assert find_rank(environ).rank == 1
    assert find_rank(environ | {"NODE_RANK": "1"}) == Rank(), "its place among all is not known"
    far = environ | {"NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    assert find_rank(far) == Rank(3, 1, 4, 2, "torchrun")


def test_open_mpi_is_found() -> None:
    assert find_rank(open_mpi(1)) == Rank(1, 1, 2, 2, "openmpi")


def test_mpich_is_found() -> None:
    assert find_rank(mpich(1)) == Rank(1, 1, 2, 2, "mpich")


@pytest.mark.parametrize(
    ("launcher", "prefix", "size", "local"),
    [("mvapich", "MV2_COMM_WORLD_", "SIZE", "LOCAL_"), ("horovod", "HOROVOD_", "SIZE", "LOCAL_")],
)
def test_mvapich_and_horovod_are_found(launcher: str, prefix: str, size: str, local: str) -> None:
    environ = {
        f"{prefix}RANK": "5",
        f"{prefix}{size}": "8",
        f"{prefix}{local}RANK": "1",
        f"{prefix}{local}SIZE": "4",
    }
    assert find_rank(environ) == Rank(5, 1, 8, 4, launcher)


@pytest.mark.parametrize(
    ("rank", "node", "local_rank", "local_world_size"),
    [(0, 0, 0, 2), (1, 0, 1, 2), (3, 1, 1, 2), (4, 2, 0, 1)],
)
def test_tasks_of_a_slurm_step_are_found(rank: int, node: int, local_rank: int, local_world_size: int) -> None:
    assert find_rank(srun(rank, node, local_rank)) == Rank(rank, local_rank, 5, local_world_size, "slurm")


def test_a_batch_script_is_one_process_however_many_tasks_its_job_has() -> None:
    assert find_rank(BATCH_SCRIPT) == Rank()
    assert launch_key(BATCH_SCRIPT) is None


def test_a_step_of_one_task_is_a_single_process() -> None:
    assert find_rank(BATCH_SCRIPT | {"SLURM_STEP_NUM_TASKS": "1"}) == Rank()


def test_srun_that_speaks_pmi_keeps_its_local_rank() -> None:
    assert find_rank(srun(3, 1, 1) | {"PMI_RANK": "3", "PMI_SIZE": "5"}) == Rank(3, 1, 5, 2, "slurm")


def test_the_inner_launcher_counts() -> None:
    assert find_rank(srun(0, 0, 0) | open_mpi(1)).launcher == "openmpi"
    assert find_rank(srun(0, 0, 0) | mpich(1)).launcher == "mpich"
    assert find_rank(srun(2, 1, 0) | open_mpi(0) | torchrun(1)) == Rank(1, 1, 2, 2, "torchrun")


@pytest.mark.parametrize(
    "environ",
    [
        {"RANK": "one", "WORLD_SIZE": "2"},
        {"RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "", "WORLD_SIZE": ""},
        {"RANK": "1.0", "WORLD_SIZE": "2"},
        {"RANK": "٣", "WORLD_SIZE": "4"},
        {"RANK": "0", "WORLD_SIZE": "0"},
    ],
)
def test_values_that_make_no_sense_are_ignored(environ: dict[str, str]) -> None:
    assert find_rank(environ) == Rank()
    assert find_rank(open_mpi(1) | environ).launcher == "openmpi"


@pytest.mark.parametrize(
    "local", [{"LOCAL_RANK": "x"}, {"LOCAL_RANK": "9"}, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "99"}]
)
def test_impossible_local_numbers_do_not_spoil_the_rank(local: dict[str, str]) -> None:
    assert find_rank({"RANK": "1", "WORLD_SIZE": "2", **local}) == Rank(
        1, 0, 2, 1, "torchrun", local_size_is_known=False
    )


@pytest.mark.parametrize("tasks", ["", "many", "2(x", "2(x2),,1", "1"])
def test_odd_tasks_per_node_are_ignored(tasks: str) -> None:
    environ = srun(4, 2, 0) | {"SLURM_STEP_TASKS_PER_NODE": tasks}
    assert find_rank(environ) == Rank(4, 0, 5, 1, "slurm", local_size_is_known=False)


NAMES = sorted({*torchrun(0), *open_mpi(0), *mpich(0), *srun(0, 0, 0), "NODE_RANK"})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), st.text() | st.integers(-2, 9).map(str)))
def test_any_environment_gives_a_possible_rank(environ: dict[str, str]) -> None:
    rank = find_rank(environ)
    assert 0 <= rank.local_rank <= rank.rank < rank.world_size
    assert rank.local_rank < rank.local_world_size <= rank.world_size
    assert launch_key(environ) is None or rank.world_size > 1


# -- the key of a launch


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torchrun(0), torchrun(1)),
        (static_torchrun(0), static_torchrun(1)),
        (open_mpi(0), open_mpi(1)),
        (srun(0, 0, 0), srun(4, 2, 0)),
        (mpich(0) | BATCH_SCRIPT, mpich(1) | BATCH_SCRIPT),
    ],
)
def test_all_ranks_of_a_launch_have_the_same_key(first: dict[str, str], second: dict[str, str]) -> None:
    assert launch_key(first) is not None
    assert launch_key(first) == launch_key(second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torchrun(0), torchrun(0, TORCHELASTIC_RUN_ID="another", MASTER_PORT="38473")),
        (static_torchrun(0), static_torchrun(0, folder="none_k2j4h5g6")),
        (open_mpi(0), open_mpi(0) | {"PMIX_NAMESPACE": "prterun-node1-7201@1"}),
        (srun(0, 0, 0), srun(0, 0, 0, step="1")),
        (srun(0, 0, 0), srun(0, 0, 0) | {"SLURM_RESTART_COUNT": "1"}),
    ],
)
def test_another_launch_has_another_key(first: dict[str, str], second: dict[str, str]) -> None:
    assert launch_key(first) != launch_key(second)


def test_workers_that_torchrun_restarts_belong_to_the_same_launch() -> None:
    again = torchrun(
        1,
        TORCHELASTIC_RESTART_COUNT="1",
        TORCHELASTIC_ERROR_FILE="/tmp/torchelastic_seyg8gdc/cbb45cfe_fdlhvxdr/attempt_1/1/error.json",
    )
    assert launch_key(torchrun(0)) == launch_key(again)


def test_machines_that_torchrun_spans_share_the_key() -> None:
    machines = [
        torchrun(
            rank,
            world_size=4,
            LOCAL_WORLD_SIZE="2",
            LOCAL_RANK=str(rank % 2),
            GROUP_RANK=str(rank // 2),
            SLURM_JOB_ID="7",
            SLURM_STEP_ID=str(rank // 2),
            TORCHELASTIC_ERROR_FILE=f"/tmp/torchelastic_{rank // 2}/job_{rank // 2}/attempt_0/0/error.json",
        )
        for rank in range(4)
    ]
    assert len({launch_key(environ) for environ in machines}) == 1


def test_mpich_outside_a_job_leaves_nothing_to_tell() -> None:
    assert launch_key(mpich(0)) is None


def test_a_role_is_what_the_program_says_else_the_environment() -> None:
    assert find_own({}, None, None, None) == Rank()
    named = find_own({"TRAINVITALS_ROLE": "Rollout"}, None, None, None)
    assert (named.role, named.has_other_roles, named.is_known) == ("rollout", True, False)
    assert find_own({"TRAINVITALS_ROLE": "rollout"}, "critic", 3, None).role == "critic"
    assert find_own({}, "trainer", None, None) == Rank(has_other_roles=True, is_known=False)


def test_a_role_has_the_rank_that_is_given_else_that_of_its_launcher() -> None:
    launched = find_own(torchrun(1), "rollout", None, None)
    assert (launched.role, launched.rank, launched.world_size, launched.is_known) == ("rollout", 1, 2, True)
    given = find_own(torchrun(1), "rollout", 0, 4)
    assert (given.rank, given.world_size, given.is_known) == (0, 4, True)

"""Jobs of Slurm as their processes see them: ranks are one run, tasks of an array one each, a requeued job goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

TRAIN = """
import sys, time, trainvitals
names = sys.argv[1:] or [None]
for name in names:
    run = trainvitals.init(name=name)
    for _ in range(3):
        run.log({"loss": 0.5})
    if name is not names[-1]:
        run.finish()
print(run.folder, flush=True)
time.sleep(600)
"""


class Cluster:
    """Starts processes as srun and sbatch would, all with one shared folder."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "runs"
        self.script = folder / "train.py"
        self.script.write_text(TRAIN)
        foreign = ("TRAINVITALS_", "SLURM_", "POD_", "RANK", "WORLD_SIZE", "LOCAL_RANK", "TRACEPARENT")
        self._environ = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
        self._environ |= {
            "TRAINVITALS_DIR": str(self.root),
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_AGENT": "off",
            "TRAINVITALS_SUMMARY": "off",
        }
        self._running: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, wrapped: bool = False, command: Sequence[str] = (), **slurm: object
    ) -> subprocess.Popen[str]:
        """The training, or another command, in the environment of `SLURM_...`; `wrapped` in a `trainvitals run`."""
        command = list(command) or [sys.executable, str(self.script), *arguments]
        if wrapped:
            command = [sys.executable, "-m", "trainvitals", "run", "--", *command]
        environ = self._environ | {f"SLURM_{name.upper()}": str(value) for name, value in slurm.items()}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, process_group=0)
        self._running.append(process)
        return process

    def srun(
        self, tasks: int, *, nodes: int = 1, wrapped: bool = False, command: Sequence[str] = (), **slurm: object
    ) -> list[subprocess.Popen[str]]:
        each = tasks // nodes
        step = {"step_id": 0, "step_num_tasks": tasks, "step_tasks_per_node": f"{each}(x{nodes})", **slurm}
        return [
            self.start(wrapped=wrapped, command=command, procid=rank, localid=rank % each, nodeid=rank // each, **step)
            for rank in range(tasks)
        ]

    def kill(self, processes: list[subprocess.Popen[str]]) -> None:
        """As Slurm does at the end of a job: everything at once, and nobody has a last word."""
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE)
            assert process.stdout is not None
            process.stdout.close()

    def end(self) -> None:
        self.kill(self._running)


@pytest.fixture
def cluster(tmp_path: Path) -> Any:
    made = Cluster(tmp_path)
    yield made
    made.end()


def folder_of(process: subprocess.Popen[str]) -> Path:
    """Of its last run, once it has logged."""
    assert process.stdout is not None
    return Path(process.stdout.readline().strip())


def read_run(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def lines_of(folder: Path) -> list[str]:
    return [line for path in sorted(folder.glob("training*.jsonl")) for line in path.read_text().splitlines()]


def attempts_of(folder: Path) -> list[int]:
    return [attempt["number"] for attempt in read_run(folder)["attempts"]]


def test_the_ranks_of_a_step_are_one_run_over_several_nodes(cluster: Cluster) -> None:
    folders = {folder_of(process) for process in cluster.srun(4, nodes=2, job_id=4711, job_nodelist="gpu[1-2]")}
    (folder,) = folders
    run = read_run(folder)
    assert run["world_size"] == 4 and run["job"] == {"slurm": "4711", "step": "0", "nodes": "gpu[1-2]"}


def test_each_task_of_an_array_is_a_run(cluster: Cluster) -> None:
    started = [cluster.start(job_id=4700 + n, array_job_id=4700, array_task_id=n) for n in range(3)]
    jobs = [read_run(folder_of(process))["job"] for process in started]
    assert [(job["slurm"], job["array"]) for job in jobs] == [
        ("4700", "4700_0"),
        ("4701", "4700_1"),
        ("4702", "4700_2"),
    ]


def test_a_requeued_job_is_another_attempt_of_its_run(cluster: Cluster) -> None:
    places = []
    for restarts in ({}, {"restart_count": 1}, {"restart_count": 2}):
        process = cluster.start(job_id=4711, **restarts)
        places.append(folder_of(process))
        cluster.kill([process])
    (folder,) = set(places)
    run = read_run(folder)
    assert attempts_of(folder) == [1, 2, 3] and run["job"]["restarts"] == 2
    steps = [json.loads(line)["step"] for line in lines_of(folder)]
    assert steps == list(range(9)), "each attempt goes on where the one before was killed"
    other = folder_of(cluster.start(job_id=4712, restart_count=1))
    assert other != folder and attempts_of(other) == [1], "another job, whose first attempt is not known here"


def test_a_requeued_program_with_two_runs_goes_on_with_both(cluster: Cluster) -> None:
    for restarts in (0, 1):
        process = cluster.start("first", "second", job_id=4711, restart_count=restarts)
        folder_of(process)
        cluster.kill([process])
    found = {read_run(path.parent)["name"]: attempts_of(path.parent) for path in cluster.root.glob("*/*/run.json")}
    assert found == {"first": [1, 2], "second": [1, 2]}


def test_two_programs_of_a_requeued_job_do_not_share_a_run(cluster: Cluster) -> None:
    first = [cluster.start(job_id=4711) for _ in range(2)]
    before = {folder_of(process) for process in first}
    cluster.kill(first)
    again = [cluster.start(job_id=4711, restart_count=1) for _ in range(2)]
    assert {folder_of(process) for process in again} == before and len(before) == 2


@pytest.mark.parametrize("wrapped", [False, True], ids=["srun python", "srun trainvitals run"])
def test_ranks_of_a_requeued_step_go_on_together(cluster: Cluster, wrapped: bool) -> None:
    places = set()
    for restarts in (0, 1):
        processes = cluster.srun(2, wrapped=wrapped, job_id=4711, restart_count=restarts)
        places |= {folder_of(process) for process in processes}
        cluster.kill(processes)
    (folder,) = places
    assert attempts_of(folder) == [1, 2]
    assert len(list(folder.glob("training_metrics_*rank1*.jsonl"))) == 2
    assert len(list(cluster.root.glob("*/*/run.json"))) == 1


def test_two_trainings_in_one_wrapped_script_are_two_runs(cluster: Cluster) -> None:
    """`srun trainvitals run -- bash job.sh`, and both have ranks."""
    script = cluster.script.with_name("job.sh")
    short = cluster.script.with_name("short.py")
    short.write_text(TRAIN.replace("time.sleep(600)", ""))
    script.write_text(f"{sys.executable} {short} first && exec {sys.executable} {short} second\n")
    processes = cluster.srun(2, wrapped=True, job_id=4711, command=["bash", str(script)])
    for process in processes:
        assert process.wait(PATIENCE) == 0
    runs = [read_run(path.parent) for path in cluster.root.glob("*/*/run.json")]
    assert sorted((run["name"], run["attempt"], run["world_size"]) for run in runs) == [
        ("first", 1, 2),
        ("second", 1, 2),
    ]


def test_a_requeued_trainvitals_run_is_another_attempt(cluster: Cluster) -> None:
    places = set()
    for restarts in (0, 1):
        process = cluster.start(wrapped=True, job_id=4711, restart_count=restarts)
        places.add(folder_of(process))
        cluster.kill([process])
    (folder,) = places
    wait_until(lambda: attempts_of(folder) == [1, 2], "the second attempt")
    assert read_run(folder)["kind"] == "training"

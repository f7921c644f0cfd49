"""A real cluster of several nodes on this machine, with pretended GPUs: real trainings, real experiments, and what can
happen to them. All programs run side by side; each test waits for its own."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_nvml import FakeNvml
from verl_site import make_site
from waiting import PATIENCE, read_whole_lines, wait_until

from trainvitals.agent import control
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.sources import Sample, SourceUnavailable, World, create, ray_pages

PROGRAMS = Path(__file__).parent / "ray_programs"
ANSWER = "answer: "
"""Before what a program says to the test. The id of a node may look like the beginning of a message of Ray."""
SLOW_STARTS = (
    "RAY_raylet_start_wait_time_s",
    "RAY_gcs_server_port_wait_time_s",
    "RAY_gcs_server_request_timeout_seconds",
    "RAY_gcs_rpc_server_connect_timeout_s",
    "RAY_worker_register_timeout_seconds",
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S",
)
"""How long Ray waits for its processes: else a slow start is a failure, of the cluster or of a training, which is then
tried again."""
QUICK_ENDS = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""Ray looks at its workers every two seconds, and starts one process more for each group of them, which nothing here
needs: three seconds of CPU each time."""
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_train.py"


class Cluster:
    """Two nodes, held by a process that ends with this one; what it leaves is removed."""

    def __init__(self, folder: Path, gpus: FakeNvml) -> None:
        # Not the tests' own folder: the names of Ray's sockets would be too long.
        self.session = Path(tempfile.mkdtemp(prefix="tv-ray-", dir="/tmp")) / "ray"
        self.session.mkdir()
        self.folder = folder
        self.environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": str(self.session.parent),  # else it notes the address of the cluster in /tmp/ray
            **dict.fromkeys(SLOW_STARTS, f"{PATIENCE:.0f}"),
            **QUICK_ENDS,
            "TRAINVITALS_RUNTIME_DIR": str(folder / "runtime"),
            "TRAINVITALS_SUMMARY": "0",
            "TRAINVITALS_DIR": str(folder / "example" / "runs"),
            "OMP_NUM_THREADS": "1",
        }
        self.gpus = gpus
        gpus.script("count = 2")
        # Only the agent sees these GPUs: how many the nodes have is pretended to Ray.
        seen = {key: value for key, value in gpus.env().items() if key.startswith(("LD_", "FAKE_"))}
        stays = {"TRAINVITALS_AGENT_IDLE_TIMEOUT": str(PATIENCE)}
        agent = [sys.executable, "-P", "-m", "trainvitals.agent"]
        subprocess.Popen(agent, env={**self.environment, **seen, **stays}, start_new_session=True)
        self._holder = self._start("cluster.py", str(self.session))
        self.address = self.environment["RAY_ADDRESS"] = self.answer(self._holder)
        self._drivers = {
            "example": self._start(str(EXAMPLE), "--steps", "5"),
        } | {
            name: self._start(f"{name.rstrip('2')}.py", self.address, str(folder / name / "runs"))
            for name in ("train", "tune", "watched", "job", "job2", "resize")
        }
        self.marker = folder / "nodes_are_measured"
        site, runs = make_site(folder / "site"), folder / "verl" / "runs"
        self._drivers["verl"] = self._start("verl_job.py", self.address, str(runs), str(site), str(self.marker))
        runs = folder / "silent_verl" / "runs"
        self._drivers["silent_verl"] = self._start("verl_job.py", self.address, str(runs), str(site))
        runs = folder / "nemo" / "runs"
        self.nemo_marker = folder / "nemo_nodes_are_measured"
        self._drivers["nemo"] = self._start("nemo_job.py", self.address, str(runs), str(self.nemo_marker))

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[str]:
        name = f"{Path(program).name}.{len(list(self.folder.glob('*.err')))}.err"
        speaks = program in ("cluster.py", "watched.py")
        with open(self.folder / name, "w") as errors:
            return subprocess.Popen(
                [sys.executable, str(PROGRAMS / program), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if speaks else errors,
                stderr=errors,
                text=True,
                env=self.environment,
                cwd=self.folder,
            )

    def answer(self, process: subprocess.Popen[str]) -> str:
        """The next line that is ours: Ray prints messages between them."""
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(ANSWER):
                return line.removeprefix(ANSWER).strip()
        raise AssertionError(self.errors())

    def tell(self, command: str) -> str:
        assert self._holder.stdin is not None
        self._holder.stdin.write(f"{command}\n")
        self._holder.stdin.flush()
        return self.answer(self._holder)

    def driver(self, name: str) -> subprocess.Popen[str]:
        return self._drivers[name]

    def runs_of(self, name: str, *, at_end: bool = True) -> dict[str, Path]:
        """The folders of a driver's runs by their names; `at_end` when it has ended well."""
        if at_end:
            assert self._drivers[name].wait() == 0, self.errors()
        found = run_folder.list_folders(self.folder / name / "runs")
        return {(run_folder.find_run(path) or RunFile()).name: path for path in found}

    def errors(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in self.folder.glob("*.err"))

    def close(self) -> None:
        for driver in self._drivers.values():
            driver.kill()
            driver.wait()
        assert self._holder.stdin is not None
        self._holder.stdin.close()
        self._holder.wait()
        shutil.rmtree(self.session.parent, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, fake_nvml_library: Path) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("ray")
    found = Cluster(folder, FakeNvml(fake_nvml_library, folder / "gpus"))
    yield found
    found.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINVITALS_RUNTIME_DIR", found.environment["TRAINVITALS_RUNTIME_DIR"])
        control.stop()


def events(run: Path) -> list[dict[str, Any]]:
    return sorted(
        (json.loads(line) for path in run.glob("events_*.jsonl") for line in read_whole_lines(path)),
        key=lambda row: row["timestamp"],
    )


def named(run: Path, event: str) -> list[dict[str, Any]]:
    return [row for row in events(run) if row["event"] == event]


def ended(run: Path) -> RunFile:
    """Its run.json, once the agent has closed it."""
    wait_until(lambda: named(run, "run_ended"), lambda: f"the end of {run}: {events(run)[-5:]}")
    return run_folder.read_run(run)


def curve(run: Path, name: str, rank: int = 0, role: str = "trainer") -> list[tuple[int, float]]:
    wanted = Participant(role, rank)
    series = [item for item in RunReader(run).series([name]) if item.participant == wanted]
    return [(int(step), float(value)) for item in series for step, value in zip(item.x, item.y, strict=True)]


# -- Ray Train


def test_a_training_whose_worker_was_killed_is_one_run_with_two_attempts(cluster: Cluster) -> None:
    run = cluster.runs_of("train")["restarted"]
    file = ended(run)
    assert (file.status, file.cause, file.attempt, file.world_size) == ("finished", None, 2, 2)
    assert [item.status for item in file.attempts][-1] == "finished"
    lost = named(run, "rank_lost")[0]
    assert (lost["rank"], lost["data"]["signal"]) == (1, "SIGKILL")
    assert [row["message"] for row in named(run, "workers_started")] == ["2 workers on 1 node started"]
    assert [row["message"] for row in named(run, "workers_restarted")] == ["2 workers on 1 node restarted"]
    assert [row["data"]["worker"] for row in named(run, "worker_failed")] == [1]
    assert len(named(run, "checkpoint")) == 1


def test_workers_log_as_ranks_and_what_they_report_is_beside_it(cluster: Cluster) -> None:
    run = cluster.runs_of("train")["restarted"]
    for rank in (0, 1):
        assert curve(run, "loss", rank) == [(10 * step, 1.0 / (1 + step + rank)) for step in range(3)]
        assert [value for _, value in curve(run, "report/accuracy", rank)][-1] == 2.0 + rank
    file = run_folder.read_run(run)
    assert file.config is not None
    assert (file.config["from"], file.project, file.tags) == ("the loop", "restarted", ("ray",))
    assert file.command is not None and "train.py" in file.command
    assert file.job.ray and f" job {file.job.ray} " in (file.launch or "")


def test_each_worker_is_known_with_its_process_its_node_and_its_gpu(cluster: Cluster) -> None:
    run = cluster.runs_of("train")["restarted"]
    workers = named(run, "workers_started")[0]["data"]["workers"]
    assert sorted(worker["rank"] for worker in workers) == [0, 1]
    assert len({tuple(worker["gpus"]) for worker in workers}) == 2
    assert len({worker["node_id"] for worker in workers}) == 1
    pids = {row["rank"]: row["data"]["pid"] for row in named(run, "rank_started") if "role" not in row}
    started = named(run, "workers_restarted")[0]["data"]["workers"]
    assert pids == {worker["rank"]: worker["pid"] for worker in started}


def test_a_worker_that_raises_is_the_cause_of_the_end(cluster: Cluster) -> None:
    run = cluster.runs_of("train")["failing"]
    file = ended(run)
    assert (file.status, str(file.cause)) == (
        "failed",
        "rank 1: ValueError: the second worker does not like its data",
    )
    assert [row["rank"] for row in named(run, "failed")] == [1]
    assert [curve(run, "accuracy", rank) for rank in (0, 1)] == [[(0, 0.5)], [(0, 1.5)]]
    assert curve(run, "nested/count") == [(0, 3.0)]


def test_a_training_that_is_resized_is_one_run_whose_workers_are_not_lost(cluster: Cluster) -> None:
    def has_trained() -> bool:
        runs = cluster.runs_of("resize", at_end=False)
        return any(curve(run, "report/workers") for run in runs.values())

    wait_until(has_trained, "the training with one worker")
    node = cluster.tell("add elastic")
    (run,) = cluster.runs_of("resize").values()
    file = ended(run)
    cluster.tell("remove elastic")  # another test counts the nodes
    first, second = file.attempts
    assert (file.status, first.status, second.status) == ("finished", "killed", "finished")
    assert first.ended is not None and "ended by Ray" in str(first.cause)
    (resized,) = named(run, "workers_resized")
    assert "2 workers" in resized["message"] and "1 before" in resized["message"]
    assert node in {worker["node_id"] for worker in resized["data"]["workers"]}
    assert named(run, "rank_lost") == [] and named(run, "worker_failed") == []
    steps = [step for step, _ in curve(run, "loss", rank=1)]
    assert steps == [0, 1, 2], "the worker that has come logs as a rank of the same run"


def test_the_example_has_a_run_of_two_ranks_and_one_of_the_cluster(cluster: Cluster) -> None:
    runs = cluster.runs_of("example")
    assert sorted(runs) == ["cluster", "example"]
    assert ended(runs["example"]).status == "finished"
    for rank in (0, 1):
        assert [step for step, _ in curve(runs["example"], "loss", rank)] == list(range(5))
    assert curve(runs["example"], "gradient_norm")
    assert ended(runs["cluster"]).status == "finished"


# -- Ray Tune


def find_trials(cluster: Cluster) -> dict[str, Path]:
    runs = cluster.runs_of("tune")
    return {(run_folder.read_run(path).config or {})["kind"]: path for path in runs.values()}


def test_every_trial_is_a_run_of_one_project_with_its_configuration_and_results(cluster: Cluster) -> None:
    trials = find_trials(cluster)
    assert sorted(trials) == ["done", "failing", "logging", "stopped"]
    assert {path.parent.name for path in trials.values()} == {"sweep"}
    assert {run_folder.read_run(path).tags for path in trials.values()} == {("sweep",)}
    assert ended(trials["done"]).status == "finished"
    assert curve(trials["done"], "loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    assert curve(trials["done"], "nested/count") == [(1, 0.0), (2, 1.0), (3, 2.0)]


def test_a_trial_that_is_stopped_early_says_so(cluster: Cluster) -> None:
    run = find_trials(cluster)["stopped"]
    assert ended(run).status == "finished"
    assert len(named(run, "stopped")) == 1
    assert named(find_trials(cluster)["done"], "stopped") == []


def test_a_trial_that_logs_for_itself_does_so_into_the_same_run(cluster: Cluster) -> None:
    run = find_trials(cluster)["logging"]
    assert ended(run).status == "finished"
    assert curve(run, "loss") == [(100, 0.25)]
    assert curve(run, "report/loss") == [(1, 1.0), (2, 0.5), (3, 1 / 3)]


def test_a_restored_experiment_continues_the_run_of_the_trial_that_failed(cluster: Cluster) -> None:
    run = find_trials(cluster)["failing"]
    file = ended(run)
    assert (file.attempt, file.status) == (2, "finished")
    assert [(item.status, str(item.cause)) for item in file.attempts[:1]] == [
        ("failed", "rank 0: ValueError: this trial has bad luck")
    ]


# -- the cluster, plain actors and drivers


def find_measured_nodes(run: Path) -> set[int]:
    return {row["rank"] for row in named(run, "rank_started") if row.get("role") == "node"}


@pytest.fixture(scope="module")
def watched(cluster: Cluster) -> tuple[Path, list[Any]]:
    """The run of a driver whose cluster is watched and to which a node was added and lost again, before the driver was
    killed; and what the driver printed."""
    driver = cluster.driver("watched")
    printed = ast.literal_eval(cluster.answer(driver))
    (run,) = cluster.runs_of("watched", at_end=False).values()
    node = cluster.tell("add late")
    wait_until(lambda: any(row["data"]["node_id"] == node for row in named(run, "node_joined")), "the new node")
    cluster.tell("remove late")
    wait_until(lambda: any(row["data"]["node_id"] == node for row in named(run, "node_lost")), "its loss")
    # With the driver ends what watches the cluster, and what was not done by then is never done.
    wait_until(
        lambda: [value for _, value in curve(run, "ray/nodes/alive", role="cluster")][-1:] == [2.0],
        "the nodes that are left",
    )
    wait_until(lambda: find_measured_nodes(run) >= {0, 1}, "the agents of both nodes")
    wait_until(lambda: any(run.glob("system_metrics_*")), "what they measure")
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    return run, printed


def test_the_numbers_of_the_cluster_are_in_the_run(watched: tuple[Path, list[Any]]) -> None:
    run, (_, _, used) = watched
    assert used["GPU"]["total"] == 4.0
    assert used["GPU"]["used_share"] >= 0.5  # two actors here, and perhaps a training
    assert {value for _, value in curve(run, "ray/gpu/total", role="cluster")} == {4.0}
    assert max(value for _, value in curve(run, "ray/gpu/used_percent", role="cluster")) >= 50.0
    nodes = [value for _, value in curve(run, "ray/nodes/alive", role="cluster")]
    assert (nodes[0], max(nodes), nodes[-1]) == (2.0, 3.0, 2.0)
    assert max(value for _, value in curve(run, "ray/actors/alive", role="cluster")) >= 3.0
    assert max(value for _, value in curve(run, "ray/object_store_memory_mb/total", role="cluster")) >= 160.0


def test_every_node_has_an_agent_that_measures_it(watched: tuple[Path, list[Any]]) -> None:
    run, _ = watched
    assert find_measured_nodes(run) >= {0, 1}
    assert len(named(run, "agent_attached")) == 1  # all nodes are on this machine, so one is enough
    assert any(run.glob("system_metrics_*"))


def test_actors_join_the_run_of_their_job_and_a_restarted_one_keeps_its_number(
    watched: tuple[Path, list[Any]],
) -> None:
    run, (before, after, _) = watched
    assert before == after
    assert sorted(before) == [(str(run), "rollout_worker", number) for number in (0, 1)]
    assert len(curve(run, "reward", before[0][2], "rollout_worker")) == 2
    assert len(curve(run, "reward", before[1][2], "rollout_worker")) == 1


@pytest.mark.promise("the driver of a Ray job is killed", "the run ends with that cause, and its actors are not lost")
def test_a_driver_that_is_killed_is_the_cause_of_the_end(watched: tuple[Path, list[Any]]) -> None:
    run, _ = watched
    file = ended(run)
    assert (file.status, file.cause is not None and file.cause.participant, file.signal) == (
        "killed",
        Participant("driver"),
        "SIGKILL",
    )
    killed = [row for row in named(run, "rank_lost") if row.get("role") == "rollout_worker"]
    assert len(killed) == 1  # the one that was killed before


def test_two_jobs_on_one_cluster_have_a_run_each(cluster: Cluster) -> None:
    for name in ("job", "job2"):
        (run,) = cluster.runs_of(name).values()
        assert ended(run).status == "finished"
        assert [len(curve(run, "loss")), len(curve(run, "score", role="judge"))] == [1, 1]


# -- verl


def test_verl_trains_in_an_actor_that_is_the_trainer_of_one_run_on_all_nodes(cluster: Cluster) -> None:
    (run,) = wait_until(lambda: cluster.runs_of("verl", at_end=False), "its run").values()
    wait_until(lambda: find_measured_nodes(run) >= {0, 1}, "the agents of both nodes")
    cluster.marker.touch()
    (folder,) = cluster.runs_of("verl").values()
    assert folder == run
    file = ended(run)
    assert (file.name, file.project, file.status) == ("grpo", "math", "failed")
    assert str(file.cause) == "ValueError: the rollout server is gone"
    assert curve(run, "critic/score/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert not [row for row in events(run) if row.get("role") == "task_runner_v1"]


@pytest.mark.promise("a verl trainer that never calls `finish` fails in its actor", "the run has failed")
def test_a_verl_trainer_that_says_nothing_has_failed_as_its_driver_did(cluster: Cluster) -> None:
    assert cluster.driver("silent_verl").wait() == 1, cluster.errors()
    (run,) = cluster.runs_of("silent_verl", at_end=False).values()
    file = ended(run)
    assert (file.status, file.cause is not None and file.cause.participant) == ("failed", Participant("driver"))
    assert curve(run, "critic/score/mean") == [(1, 0.25), (2, 0.5), (3, 0.75)]


# -- NeMo RL


@pytest.mark.promise("a node of a Ray cluster loses a GPU", "an event of the run; it goes on, and so do other GPUs")
def test_the_nodes_of_a_training_in_the_driver_are_measured_in_its_run_also_when_a_gpu_is_lost(
    cluster: Cluster,
) -> None:
    (run,) = wait_until(lambda: cluster.runs_of("nemo", at_end=False), "its run").values()
    wait_until(lambda: find_measured_nodes(run) >= {0, 1}, "the agents of both nodes")

    def count_readings(gpu: int) -> int:
        rows = RunReader(run).rows("gpu")
        return sum(row.get("gpu_index") == gpu and "utilization_percent" in row for row in rows)

    wait_until(lambda: count_readings(0) and count_readings(1), "readings of both GPUs")
    cluster.gpus.script("count = 2\nerr.*.1 = 15")
    (lost,) = wait_until(lambda: named(run, "gpu_lost"), "the loss")
    assert (lost["severity"], lost["data"]["gpu_index"]) == ("critical", 1)
    before = count_readings(0)
    wait_until(lambda: count_readings(0) > before, "more readings of the other GPU")
    assert cluster.driver("nemo").poll() is None
    cluster.nemo_marker.touch()
    (folder,) = cluster.runs_of("nemo").values()
    file = ended(folder)
    assert (folder, file.name, file.status) == (run, "nemo", "finished")
    assert curve(run, "train/reward") == [(1, 0.5)]
    assert curve(run, "ray/nodes/alive", role="cluster")


# -- Ray's own metrics


def test_the_pages_of_all_nodes_are_scraped_by_their_id(cluster: Cluster) -> None:
    source = create("openmetrics", World(openmetrics_urls=(f"ray:{cluster.session}",)))
    found: dict[str, list[Sample]] = {}

    def scrape() -> bool:
        for unit in source.discover():
            try:
                samples = [item for item in unit.read() if isinstance(item, Sample)]
                read = time.monotonic()
                # Not again before the page may have changed.
                assert unit.read() == () or time.monotonic() > read + ray_pages.SECONDS - 1.0
            except SourceUnavailable:
                continue  # it is starting, or was removed
            # Not `ray_resources`: a raylet gives up to report them if the page is not served within 30 seconds.
            if any(name.startswith("ray_node_mem") for item in samples for name in item.values):
                found[unit.key.rpartition(":")[2]] = samples
        return len(found) >= 2

    wait_until(scrape, "the pages of two nodes")
    for node_id, samples in found.items():
        assert {item.labels["node_id"] for item in samples} == {node_id}
        assert {item.labels["target"] for item in samples} == {f"ray:{cluster.session}"}
        names = {name for item in samples for name in item.values}
        assert not any(name.startswith(("ray_grpc", "ray_operation", "python_")) for name in names)


def test_a_program_without_ray_is_not_asked_for_it() -> None:
    done = (
        "import sys, trainvitals.trainer.ray_job as job; print(job.find_own(), job.find_driver(), 'ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", done], capture_output=True, text=True, check=True).stdout == (
        "None None False\n"
    )

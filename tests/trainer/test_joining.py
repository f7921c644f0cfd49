"""Processes with roles find one run, each is told apart, and those that nobody numbered are numbered as they come."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import trainvitals
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.documents.run import COMMAND, Process, RunFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.trainer import joining


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No agent, folders of our own, no launcher's variables."""
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_SUMMARY", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR", "TRAINVITALS_ROLE"):
        monkeypatch.delenv(name, raising=False)
    yield
    trainvitals.finish()


def run_python(script: str, *arguments: str, **env: str) -> str:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def titles(folder: Path) -> list[str]:
    return [series.participant.title for series in RunReader(folder).series(["loss"])]


def only_run(tmp_path: Path) -> Path:
    (path,) = (tmp_path / "runs").glob("*/*/run.json")
    return path.parent


MEMBER = """
    import sys, time, trainvitals
    from pathlib import Path
    role, rank, size = sys.argv[1], *map(int, sys.argv[2:4])
    with trainvitals.init(name="rl", role=role, rank=rank) as run:
        run.log({"loss": float(rank)}, step=0)
        run.event("here")
        while len(list(run.folder.glob("events_*"))) < size:  # nobody ends before all have come
            time.sleep(0.01)
"""


def test_processes_with_roles_that_one_script_starts_share_a_run(tmp_path: Path) -> None:
    started = [("trainer", "0"), ("trainer", "1"), ("rollout", "0"), ("rollout", "1")]
    script = f"""
        import subprocess, sys
        command = [sys.executable, "-c", {textwrap.dedent(MEMBER)!r}]
        jobs = [subprocess.Popen([*command, *words, "4"]) for words in {started}]
        sys.exit(sum(job.wait() for job in jobs))
    """
    run_python(script)
    folder = only_run(tmp_path)
    assert titles(folder) == ["rank 0", "rank 1", "rollout 0", "rollout 1"]
    assert {path.name.partition(".")[2] for path in folder.glob("training_metrics_*")} == {
        "rank0.jsonl",
        "rank1.jsonl",
        "role-rollout.rank0.jsonl",
        "role-rollout.rank1.jsonl",
    }
    assert {event.participant for event in RunReader(folder).events()} == {
        Participant(role, int(rank)) for role, rank in started
    }
    assert len(registrations.read_all(folder.name)) == 4


def test_a_process_that_a_driver_started_joins_its_run_and_is_numbered(tmp_path: Path) -> None:
    script = """
        import subprocess, sys, trainvitals
        child = "import trainvitals; run = trainvitals.init(); run.log({'loss': 1.0}, step=0); run.finish()"
        with trainvitals.init(name="rl", role="driver", rank=0) as run:
            run.log({"loss": 0.0}, step=0)
            for _ in range(2):
                subprocess.run([sys.executable, "-c", child], check=True)
    """
    child_role = {"TRAINVITALS_ROLE": "Reward Model"}
    run_python(script, **child_role)
    assert titles(only_run(tmp_path)) == ["driver 0", "reward_model 0", "reward_model 1"]


def test_a_run_without_trainers_is_led_by_the_first_and_its_end_may_be_corrected(tmp_path: Path) -> None:
    with trainvitals.init(role="rollout") as run:
        run.log({"loss": 1.0}, step=0)
        assert (run.role, run.rank) == ("rollout", 0)
    file = run_folder.read_run(run.folder)
    assert (file.status, file.tentative, file.last_step, file.world_size) == ("finished", True, 0, None)


def test_a_trainer_that_comes_later_takes_the_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trainvitals.init(name="rl", role="rollout", config={"temperature": 1}) as rollout:
        monkeypatch.setenv("TRAINVITALS_RUN_DIR", str(rollout.folder))
        run_python(MEMBER, "trainer", "0", "1")
        run = run_folder.read_run(rollout.folder)
        assert (run.status, run.tentative, run.name) == ("finished", False, "rl")
    assert run_folder.read_run(rollout.folder) == run


def test_a_run_that_has_ended_is_joined_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with trainvitals.init(name="rl") as run:
        pass
    monkeypatch.setenv("TRAINVITALS_RUN_DIR", str(run.folder))
    with trainvitals.init(name="later", role="rollout") as later:
        assert later.folder != run.folder


def test_a_worker_below_run_leaves_the_program_as_the_process_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runs" / "default" / "wrapped"
    run_folder.create(folder)
    program = Process(pid=os.getppid(), host="here")
    file = RunFile(id="wrapped", kind=COMMAND, process=program, command="python hogwild.py", argv=("hogwild.py",))
    run_folder.write_run(folder, file)
    monkeypatch.setenv("TRAINVITALS_RUN_DIR", str(folder))
    with trainvitals.init(role="worker") as run:
        run.log({"loss": 1.0}, step=0)
    written = run_folder.read_run(folder)
    assert (written.kind, written.status, written.process, written.argv) == (
        "training",
        "running",
        program,
        ("hogwild.py",),
    )


def test_of_two_trainings_that_begin_at_once_below_run_one_has_its_folder(tmp_path: Path) -> None:
    program = "import trainvitals; run = trainvitals.init(); run.log({'loss': 1.0}, step=0); run.finish()"
    script = f'"{sys.executable}" -c "{program}" & "{sys.executable}" -c "{program}" & wait'
    command = [sys.executable, "-m", "trainvitals", "run", "--", "sh", "-c", script]
    subprocess.run(command, capture_output=True, check=True)
    found = [path.parent for path in (tmp_path / "runs").glob("*/*/run.json")]
    assert len(found) == 2 and all(titles(folder) == ["rank 0"] for folder in found)
    assert sorted(run_folder.read_run(folder).below is None for folder in found) == [False, True]


def test_numbers_are_given_once_and_a_lead_to_one(tmp_path: Path) -> None:
    script = """
        import sys
        from pathlib import Path
        from trainvitals.trainer.joining import take_lead, take_number
        place = Path(sys.argv[1])
        print(take_number(place, "worker", 1), take_lead(place, 1), take_lead(place, 1))
    """
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: run_python(script, str(tmp_path)).split(), range(4)))
    assert sorted(number for number, *_ in found) == ["0", "1", "2", "3"]
    assert sorted(lead for _, *lead in found) == [["False", "False"]] * 3 + [["True", "True"]]
    assert joining.take_number(tmp_path / "missing", "worker", 1) == 0 and joining.take_lead(tmp_path / "missing", 1)
    assert joining.take_number(tmp_path, "worker", 2) == joining.take_number(tmp_path, "rollout", 1) == 0

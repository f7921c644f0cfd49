"""The backend of verl, with its own `tracking.py` (tests/verl_site.py). In Ray: test_ray.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from programs import find_runs, rows_of
from verl_site import TIMER, make_site
from watching import lines

import trainvitals
from trainvitals.integrations import verl_plugin
from trainvitals.integrations.attachment import RL_STALL_SECONDS
from trainvitals.integrations.phase_edges import MOST_EDGES
from trainvitals.integrations.samples import MOST_CHARACTERS
from trainvitals.integrations.verl import Tracking, VerlLogger
from trainvitals.journal import registrations
from trainvitals.trainer.jsonable import MAX_TEXT
from trainvitals.trainer.run import Run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return make_site(tmp_path / "site")


def run_verl(site: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
        cwd=site.parent,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "TRAINVITALS_DIR": str(site.parent / "runs"),
            "TRAINVITALS_AGENT": "false",
            "VERL_FILE_LOGGER_PATH": str(site.parent / "verl.jsonl"),
            **environment,
        },
    )


TRAIN = """
import verl
from verl.utils import debug
from verl.utils.tracking import Tracking, ValidationGenerationsLogger
config = {"trainer": {"logger": ["file", "trainvitals"]}, "actor": {"lr": 1e-6}}
tracking = Tracking("math", "grpo", ["file", "trainvitals"], config)
tracking.log({"val-core/gsm8k/acc/mean@1": 0.25}, step=0)
for step in range(1, 4):
    timing = {}
    with debug.marked_timer("step", timing):
        with debug.marked_timer("gen", timing, color="red"):
            pass
    tracking.log({"critic/score/mean": step / 4, "response_length/mean": 100.0, "actor/entropy": float("nan"),
                  **{f"timing_s/{name}": value for name, value in timing.items()}}, step=step)
samples = [["What is 1 + 1?", "It is 2.", 1.0], ["And 2 + 2?", "5", 0.0]]
ValidationGenerationsLogger().log(["file", "trainvitals"], samples, 3)
ValidationGenerationsLogger().log(["file"], samples, 4)
tracking.finish()
print("trained", timing)
"""


def test_a_logger_named_trainvitals_is_all_that_a_program_needs(site: Path) -> None:
    done = run_verl(site, TRAIN)
    assert done.returncode == 0, done.stderr
    assert "trained {'gen': 1.5, 'step': 1.5}" in done.stdout
    (run,) = find_runs(site.parent)
    about = json.loads((run / "run.json").read_text())
    assert (about["project"], about["name"], about["status"]) == ("math", "grpo", "finished")
    assert about["config"]["actor"]["lr"] == 1e-6
    rows = rows_of(run, "training_metrics_*.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[0]["val-core/gsm8k/acc/mean@1"] == 0.25
    assert rows[2]["critic/score/mean"] == 0.5 and rows[2]["actor/entropy"] == "NaN" and rows[2]["timing_s/gen"] == 1.5
    (media,) = rows_of(run, "media/index*.jsonl")
    assert (media["kind"], media["name"], media["step"]) == ("table", "val/generations", 3)
    assert "It is 2." in (run / "media" / media["file"]).read_text()
    theirs = [json.loads(line) for line in (site.parent / "verl.jsonl").read_text().splitlines()]
    assert [row["step"] for row in theirs] == [0, 1, 2, 3]


@pytest.mark.parametrize(("count", "length"), [(40, 500_000), (3000, 9000)], ids=["long", "many"])
def test_long_samples_lose_their_middle_and_none_is_lost(tmp_path: Path, count: int, length: int) -> None:
    logger = VerlLogger("math", "long", dir=tmp_path / "runs", agent=False, summary=False)
    secret = f"sk-proj-{'a1B2' * 12}"
    # Where the cut of the middle goes through it.
    half = min(MAX_TEXT - 100, MOST_CHARACTERS // (2 * count)) // 2
    begin = "\u4e00" * (half - 20) + f" {secret} "
    samples = [
        [f"{secret} what is {number}?", begin + "\u4e00" * length + f"It is {number}.", 1.0] for number in range(count)
    ]
    logger.log_generations(samples, step=5)
    logger.finish()
    (run,) = find_runs(tmp_path)
    (media,) = rows_of(run, "media/index*.jsonl")
    text = (run / "media" / media["file"]).read_text()
    rows = json.loads(text)["data"]
    assert len(rows) == count and all(row[1].endswith(f"It is {number}.") for number, row in enumerate(rows))
    assert "sk-proj" not in text and "what is 0" in rows[0][0] and rows[0][2] == 1.0
    assert " characters … " in rows[0][1]


def test_the_entry_point_is_in_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["verl.plugins"] == {"trainvitals": verl_plugin.__name__}


def test_the_plugin_does_nothing_in_a_worker_that_only_imports_verl(site: Path) -> None:
    done = run_verl(
        site,
        """
        import sys
        import verl
        from verl.utils.tracking import Tracking
        assert "trainvitals" in Tracking.supported_backend
        Tracking("math", "grpo", "file").log({"loss": 1.0}, step=1)
        print(sorted(name for name in sys.modules if name.startswith("trainvitals")))
        """,
    )
    assert done.returncode == 0, done.stderr
    light = ["trainvitals", "trainvitals.integrations", "trainvitals.integrations.verl_plugin", "trainvitals.plugins"]
    assert set(eval(done.stdout.splitlines()[-1])) <= {*light, "trainvitals.errors", "trainvitals.stderr"}
    assert not (site.parent / "runs").exists()


@pytest.mark.promise("trainvitals fails inside verl's Tracking", "verl trains to the end; the failure is one line")
@pytest.mark.parametrize(
    "fault",
    [
        "import trainvitals.trainer.run as run; run.Run.log = lambda *a, **k: 1 / 0",
        "import trainvitals.integrations.verl as ours; ours.VerlLogger.__init__ = lambda *a, **k: 1 / 0",
        "import os; os.environ['TRAINVITALS_INTERVAL'] = 'often'",
    ],
)
def test_a_failure_of_ours_does_not_end_the_training(site: Path, fault: str) -> None:
    done = run_verl(site, f"{fault}\n{TRAIN}")
    assert done.returncode == 0 and "trained" in done.stdout, done.stderr
    assert done.stderr.count("trainvitals: ") == 1
    assert len((site.parent / "verl.jsonl").read_text().splitlines()) == 4


def test_an_exit_code_is_a_failed_run_and_an_error_in_another_backend_does_not_keep_it_open(site: Path) -> None:
    program = TRAIN.replace("tracking.finish()", "tracking.logger['file'].finish = lambda: 1 / 0\ntracking.finish(3)")
    done = run_verl(site, program)
    assert "ZeroDivisionError" in done.stderr
    (run,) = find_runs(site.parent)
    assert json.loads((run / "run.json").read_text())["status"] == "failed"


FIT = """
import sys, traceback
from verl.utils import debug
from verl.utils.tracking import Tracking

def fit(fail):
    tracking = Tracking("math", "grpo", ["trainvitals"], {})
    for step in (1, 2):
        with debug.marked_timer("step", {}):
            pass
        tracking.log({"critic/score/mean": 0.5}, step=step)
    fail()

def in_a_phase():
    with debug.marked_timer("step", {}), debug.marked_timer("gen", {}):
        raise ValueError("the rollout server is gone")

def outside():
    raise ValueError("the rollout server is gone")

def survived():
    try:
        in_a_phase()
    except ValueError:
        with debug.marked_timer("save_checkpoint", {}):
            pass

def print_what_ends(training):
    try:
        training()
    except ValueError:
        traceback.print_exc()
"""


@pytest.mark.promise("a verl trainer that never calls `finish` fails", "the run has failed, with the exception")
@pytest.mark.parametrize(
    ("ending", "runs"),
    [
        ("print_what_ends(lambda: fit(in_a_phase))\nsys.exit(1)", 1),  # as under Hydra
        ("for task in range(2): print_what_ends(lambda: fit(in_a_phase))", 2),  # as in an actor
        ("fit(in_a_phase)", 1),
        ("fit(outside)", 1),
    ],
    ids=["hydra", "actor", "uncaught", "uncaught outside of a phase"],
)
def test_a_training_that_nobody_finishes_has_failed_if_an_exception_ended_it(
    site: Path, ending: str, runs: int
) -> None:
    run_verl(site, f"{FIT}\n{ending}")
    found = find_runs(site.parent)
    assert len(found) == runs
    for run in found:
        about = json.loads((run / "run.json").read_text())
        assert (about["status"], about["cause"]) == ("failed", "ValueError: the rollout server is gone")
        assert "tentative" not in about
        (failed,) = (row for row in rows_of(run, "events_*.jsonl") if row["event"] == "failed")
        assert "in outside" in failed["data"]["traceback"] or "in in_a_phase" in failed["data"]["traceback"]


@pytest.mark.parametrize(
    "ending",
    ["fit(lambda: None)", "fit(survived)", "print_what_ends(lambda: fit(outside))\nsys.exit(1)"],
    ids=["trained", "exception survived", "hydra, outside of a phase"],
)
def test_else_the_exit_code_decides_which_the_agent_sees(site: Path, ending: str) -> None:
    run_verl(site, f"{FIT}\n{ending}")
    (run,) = find_runs(site.parent)
    about = json.loads((run / "run.json").read_text())
    assert (about["status"], about["tentative"]) == ("finished", True)


# -- in this process


@contextmanager
def logging(tmp_path: Path, **options: Any) -> Iterator[tuple[VerlLogger, Run]]:
    logger = VerlLogger("math", "grpo", dir=tmp_path, agent=False, **options)
    run = logger.attachment.run
    assert run is not None
    try:
        yield logger, run
    finally:
        logger.finish()


def test_values_of_every_kind_are_logged_or_counted(tmp_path: Path) -> None:
    import torch

    with logging(tmp_path) as (logger, run):
        logger.log(
            data={
                "tensor": torch.tensor(1.5),
                "numpy": np.float32(2.5),
                "one": np.array([3.5]),
                "nested": {"a": {"b": 4.5}},
                "none": None,
                "list": [[1.0, 2.0], [3.0]],
                "text": "words",
                "nan": float("nan"),
            },
            step=7,
        )
        logger.log(data={f"metric_{number}": float(number) for number in range(3000)}, step=8)
        logger.log(data={"x": 1.0}, step=3)
    first, many, back = lines(run)
    assert {key: first[key] for key in ("tensor", "numpy", "one", "nested/a/b", "nan", "step")} == {
        "tensor": 1.5, "numpy": 2.5, "one": 3.5, "nested/a/b": 4.5, "nan": "NaN", "step": 7
    }  # fmt: skip
    assert "list" not in first and "text" not in first and run.refused == 2
    assert len(many) >= 3000 and back["step"] == 3


def test_each_beginning_and_end_of_a_phase_is_reported_with_the_longest_time_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("verl.trainer.made_up")
    exec(TIMER, module.__dict__)
    original = module.marked_timer
    monkeypatch.setitem(sys.modules, "verl.trainer.made_up", module)
    now = [0.0]
    monkeypatch.setattr("trainvitals.integrations.phase_edges.time.monotonic", lambda: now[0])
    with logging(tmp_path) as (_, run):
        timing: dict[str, float] = {}
        seen: list[tuple[str, float, float | None]] = []

        def look() -> None:
            (_, found), *_ = registrations.read_all(run.id)
            assert found.phase is not None
            seen.append((found.phase.name, found.phase.since, found.phase.longest))

        for seconds in (100.0, 50.0):
            with module.marked_timer("step", timing):
                with module.marked_timer("gen", timing):
                    look()
                    now[0] += seconds
                    with module.marked_timer("reward", timing, color="red"):
                        now[0] += 7.0
                    look()
                    now[0] += 1.0
                look()
        assert timing == {"reward": 3.0, "gen": 3.0, "step": 3.0}
        assert seen == [
            *[("gen", 0.0, None), ("gen", 107.0, 100.0), ("", 108.0, 0.0)],
            *[("gen", 108.0, 100.0), ("gen", 165.0, 100.0), ("", 166.0, 0.0)],
        ]
        with pytest.raises(KeyError), module.marked_timer("gen", timing):
            raise KeyError
        look()
        assert seen[-1][0] == ""
        writes = []
        monkeypatch.setattr(registrations, "_write", lambda path, registration: writes.append(registration.phase))
        for _ in range(1000):  # steps that take no time
            with module.marked_timer("adv", timing):
                pass
        assert len(writes) <= MOST_EDGES
    with logging(tmp_path):  # another Tracking in one process: the first one's run is over
        assert module.marked_timer.of_trainvitals is original


def test_our_own_tracking_takes_what_that_of_verl_takes_and_monitors_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracking = Tracking(
        "math",
        "grpo",
        default_backend=["console", "trainvitals"],
        enable_gpu_monitoring=True,
        gpu_monitor_interval=2.0,
        dir=tmp_path,
        agent=False,
    )
    run = trainvitals.current_run()
    assert run is not None and run.settings.gpu_interval == 2.0
    monkeypatch.setattr("trainvitals.alerts.readings.Readings.gpus", lambda self: {0: {"power_draw_watts": 300.0}})
    tracking.log({"critic/score/mean": 0.5}, step=1)
    tracking.log({"critic/score/mean": 0.6}, step=2, backend="console")
    tracking.finish()
    assert [(row["critic/score/mean"], row["gpu_0_power_draw_watts"]) for row in lines(run)] == [(0.5, 300.0)]
    assert "step:1 - critic/score/mean:0.5" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown backend 'wandb'"):
        Tracking("math", "grpo", "wandb")


def test_a_trainer_on_a_node_without_gpus_says_once_that_it_monitors_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for gpus, told in (({}, 1), ({0: {"power_draw_watts": 300.0}}, 0)):
        monkeypatch.setattr("trainvitals.alerts.readings.Readings.gpus", lambda self, gpus=gpus: gpus)
        with logging(tmp_path, enable_gpu_monitoring=True) as (logger, _):
            for step in range(10):
                logger.log({"critic/score/mean": 0.5}, step=step)
        assert capsys.readouterr().err.count("no GPU is measured on the node of the trainer") == told


def test_a_step_may_take_minutes_unless_somebody_has_set_when_it_stalls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logging(tmp_path) as (_, run):
        assert run.settings.stall_after == RL_STALL_SECONDS
    with logging(tmp_path, stall_after=30.0) as (_, run):
        assert run.settings.stall_after == 30.0
    monkeypatch.setenv("TRAINVITALS_STALL_AFTER", "45")
    with logging(tmp_path) as (_, run):
        assert run.settings.stall_after == 45.0


def test_gpu_monitoring_is_read_from_the_trainer_of_the_configuration(tmp_path: Path) -> None:
    config = {"trainer": {"enable_gpu_monitoring": True, "gpu_monitor_interval": 3.0}}
    with logging(tmp_path, config=config) as (_, run):
        assert run.settings.gpu_interval == 3.0 and run.config["trainer"] == config["trainer"]

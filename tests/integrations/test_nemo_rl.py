"""NeMo RL, which cannot be installed beside us: a `Logger` with its signatures, calling as its GRPO does."""

from __future__ import annotations

import functools
import json
import sys
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from programs import rows_of
from watching import lines

from trainvitals import catalog
from trainvitals.errors import SettingError
from trainvitals.integrations.nemo_rl import NemoLogger, attach, install
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.trainer.run import Run


class Logger:
    """`nemo_rl.utils.logger.Logger`: fans out, and has no guard around a backend."""

    def __init__(self, cfg: Mapping[str, Any] | None = None) -> None:
        self.loggers: list[Any] = []

    def log_metrics(
        self,
        metrics: dict[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        for logger in self.loggers:
            logger.log_metrics(metrics, step, prefix, step_metric, step_finished)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        for logger in self.loggers:
            logger.log_hyperparams(params)

    def log_histogram(self, histogram: list[Any], step: int, name: str) -> None:
        for logger in self.loggers:
            logger.log_histogram(histogram, step, name)

    def log_plot(self, figure: Any, step: int, name: str) -> None:
        for logger in self.loggers:
            logger.log_plot(figure, step, name)

    def finish(self) -> None:
        for logger in self.loggers:
            finish = getattr(logger, "finish", None)
            if callable(finish):
                finish()


class Timer:
    """`nemo_rl.utils.timer.Timer`: `time` is made of `start` and `stop`, and `reset` forgets what runs."""

    def __init__(self, context: dict[str, object] | None = None) -> None:
        self.running: set[str] = set()
        self.ended: list[str] = []

    def start(self, label: str, should_log: bool = True) -> None:
        if label in self.running:
            raise ValueError(f"Timer '{label}' is already running")
        self.running.add(label)

    def stop(self, label: str, should_log: bool = True) -> float:
        if label not in self.running:
            raise ValueError(f"Timer '{label}' is not running")
        self.running.remove(label)
        self.ended.append(label)
        return 1.5

    @contextmanager
    def time(self, label: str, should_log: bool = True) -> Generator[None, None, None]:
        self.start(label, should_log)
        try:
            yield
        finally:
            self.stop(label, should_log)

    def reset(self, label: str | None = None) -> None:
        self.running = self.running - {label} if label else set()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> type[Timer]:
    """The class of its module, new for each test."""
    found = type("Timer", (), {name: value for name, value in vars(Timer).items() if name != "__dict__"})
    module = ModuleType("nemo_rl.utils.timer")
    module.Timer = found  # type: ignore[attr-defined]
    for name in ("nemo_rl", "nemo_rl.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found  # type: ignore[return-value]


@pytest.fixture
def logger(tmp_path: Path) -> Iterator[Logger]:
    made = Logger()
    attach(made, dir=tmp_path, agent=False, project="math")
    yield made
    made.finish()


def run_of(logger: Logger) -> Run:
    (ours,) = logger.loggers
    assert isinstance(ours, NemoLogger) and ours.attachment.run is not None
    return ours.attachment.run


def train(logger: Logger, step: int) -> None:
    """As one step of GRPO."""
    logger.log_metrics({"accuracy": 0.5}, step, prefix="validation")
    logger.log_metrics({"total_validation_time": 9.0}, step, prefix="timing/validation")
    metrics = {
        "reward": torch.tensor(0.25),
        "mean_gen_tokens_per_sample": np.float64(300),
        "token_mult_prob_error": 1.01,
        "baseline_reward/pct_mixed": 70.0,
        "generation_logger_metrics": {"inflight_batch_sizes": {0: [1, 2], 1: [3, [4]]}},
        "text": "left out",
    }
    logger.log_metrics(metrics, step, prefix="train")
    logger.log_metrics({"valid_tokens_per_sec_per_gpu": 1000.0}, step, prefix="performance")
    timing = {"total_step_time": 60.0, "generation": [20.0, 30.0, 40.0], "policy_training": 15.0}
    logger.log_metrics(timing, step, prefix="timing/train", step_finished=True)


def test_the_calls_of_a_step_are_one_line_and_everything_is_a_number(logger: Logger) -> None:
    logger.log_hyperparams({"grpo": {"num_prompts_per_step": 32}})
    for step in (1, 2):
        train(logger, step)
    logger.finish()
    run = run_of(logger)
    assert run.config["grpo"] == {"num_prompts_per_step": 32}
    first, second = lines(run)
    assert (first["step"], second["step"]) == (1, 2)
    assert {name: first[name] for name in first if name not in ("timestamp", "step")} == {
        "validation/accuracy": 0.5,
        "timing/validation/total_validation_time": 9.0,
        "train/reward": 0.25,
        "train/mean_gen_tokens_per_sample": 300.0,
        "train/token_mult_prob_error": 1.01,
        "train/baseline_reward/pct_mixed": 70.0,
        "train/generation_logger_metrics/inflight_batch_sizes/0": 2.0,
        "train/generation_logger_metrics/inflight_batch_sizes/1": 4.0,
        "performance/valid_tokens_per_sec_per_gpu": 1000.0,
        "timing/train/total_step_time": 60.0,
        "timing/train/generation": 40.0,
        "timing/train/policy_training": 15.0,
        "rl_rollout_slowest_time": 40.0,
        "rl_rollout_mean_time": 30.0,
    }
    for meaning in ("rl_reward", "rl_mixed_groups", "rl_mismatch_factor", "rl_generation_time", "rl_validation_time"):
        assert catalog.find_spelling("training", meaning, first.keys()), meaning


def test_a_nan_of_one_worker_is_that_of_all_wherever_it_is(logger: Logger) -> None:
    for values in ([1.0, float("nan")], [float("nan"), 1.0]):
        logger.log_metrics({"loss": values, "generation": values}, 1, prefix="train", step_finished=True)
    logger.finish()
    for line in lines(run_of(logger)):
        assert (line["train/loss"], line["rl_rollout_slowest_time"]) == ("NaN", "NaN")


def test_a_step_that_is_never_reported_as_finished_is_written_when_the_next_one_begins(logger: Logger) -> None:
    for step in (5, 6):  # a resumed training
        logger.log_metrics({"loss": 1.0}, step, prefix="train")
        logger.log_metrics({"reward": 0.5}, step, prefix="train")
    assert [row["step"] for row in lines(run_of(logger))] == [5]
    logger.finish()
    assert [(row["step"], row["train/reward"]) for row in lines(run_of(logger))] == [(5, 0.5), (6, 0.5)]


def test_its_gpu_monitor_makes_no_steps_and_its_names_are_served(
    logger: Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = {"utilization_percent": 90.0, "memory_used_mb": 2048.0, "power_draw_watts": 300.0}
    monkeypatch.setattr("trainvitals.alerts.readings.Readings.gpus", lambda self: {3: gpu})
    logger.log_metrics({"loss": 1.0}, 1, prefix="train", step_finished=True)
    for second in (10, 20):
        sampled = {"node.0.gpu.3.util": 1.0, "ray/ray_step": second}
        logger.log_metrics(sampled, second, prefix="ray", step_metric="ray/ray_step")
    logger.log_metrics({"loss": 1.0}, 2, prefix="train", step_finished=True)
    before, after = lines(run_of(logger))
    assert not [name for name in before if name.startswith("ray/")]
    assert {name: after[name] for name in after if name.startswith("ray/")} == {
        "ray/node.0.gpu.3.util": 90.0,
        "ray/node.0.gpu.3.mem_gb": 2.0,
        "ray/node.0.gpu.3.power_watts": 300.0,
    }


def phase_of(run: Run) -> str:
    (_, found), *_ = registrations.read_all(run.id)
    return found.phase.name if found.phase is not None else "none was reported"


def test_its_timers_are_phases_which_are_reported_as_they_begin_and_end(timers: type[Timer], logger: Logger) -> None:
    run, timer, seen = run_of(logger), timers(context={"worker": "driver"}), []
    timer.start("init/total")
    seen.append(phase_of(run))
    assert timer.stop("init/total") == 1.5
    with timer.time("total_step_time"):
        seen.append(phase_of(run))
        with timer.time("generation", should_log=False):
            seen.append(phase_of(run))
            with timers().time("run_rollouts"):
                seen.append(phase_of(run))
            other = threading.Thread(target=timers().start, args=("idle/refit_event_wait",))
            other.start()
            other.join()
            seen.append(phase_of(run))
        seen.append(phase_of(run))
    assert seen == ["init/total", "", "generation", "run_rollouts", "generation", ""]
    assert timer.ended == ["init/total", "generation", "total_step_time"]
    with pytest.raises(KeyError), timer.time("policy_training"):
        raise KeyError
    assert phase_of(run) == ""
    timer.start("checkpointing")
    for wrong in (lambda: timer.start("checkpointing"), lambda: timer.stop("generation")):
        with pytest.raises(ValueError, match="running"):
            wrong()
    assert phase_of(run) == "checkpointing"
    timer.reset()
    assert phase_of(run) == ""


def test_the_timer_of_the_next_training_reports_to_its_run_and_keeps_what_others_put_around_it(
    timers: type[Timer], logger: Logger, tmp_path: Path
) -> None:
    first, ours, calls = run_of(logger), timers.start, []
    assert hasattr(ours, "of_trainvitals")

    @functools.wraps(ours)
    def start(timer: Timer, label: str, should_log: bool = True) -> None:
        calls.append(label)
        ours(timer, label, should_log)

    timers.start = start  # type: ignore[method-assign]
    logger.finish()
    timers().start("generation")  # between two trainings
    again = Logger()
    attach(again, dir=tmp_path, agent=False)
    second = run_of(again)
    assert second is not first and timers.start is start
    with timers().time("policy_training"):
        assert phase_of(second) == "policy_training"
    again.finish()
    assert calls == ["generation", "policy_training"]


def test_a_nemo_rl_without_that_timer_is_logged_all_the_same(
    timers: type[Timer], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(sys.modules["nemo_rl.utils.timer"], "Timer")
    made = Logger()
    attach(made, dir=tmp_path, agent=False)
    made.log_metrics({"loss": 1.0}, 1, prefix="train", step_finished=True)
    made.finish()
    assert [row["train/loss"] for row in lines(run_of(made))] == [1.0]
    assert "failed" not in capsys.readouterr().err


def test_the_responses_of_a_validation_are_a_table_of_the_run(tmp_path: Path) -> None:
    class WritingLogger(Logger):
        def __init__(self) -> None:
            super().__init__()
            self.written: list[str] = []

        def log_batched_dict_as_jsonl(self, to_log: dict[str, Any], filename: str) -> None:
            self.written.append(filename)

    logger = WritingLogger()
    attach(logger, dir=tmp_path, agent=False)
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 1?"}]
    answered = [[*asked, {"role": "assistant", "content": f"It is {number}."}] for number in (2, 3)]
    logger.log_batched_dict_as_jsonl({"content": answered, "rewards": [1.0, 0.0]}, "val_data_step20.jsonl")
    logger.log_batched_dict_as_jsonl({"content": ["a"], "rewards": [1.0]}, "train_data_step21.jsonl")
    logger.log_batched_dict_as_jsonl({"idx": [1]}, "val_data_step22.jsonl")
    logger.finish()
    assert logger.written == ["val_data_step20.jsonl", "train_data_step21.jsonl", "val_data_step22.jsonl"]
    (media,) = rows_of(run_of(logger).folder, "media/index*.jsonl")
    assert (media["kind"], media["name"], media["step"]) == ("table", "val/generations", 20)
    table = json.loads((run_of(logger).folder / "media" / media["file"]).read_text())
    question = "Be brief.\nWhat is 1 + 1?"
    assert table["data"] == [[question, "It is 2.", 1.0], [question, "It is 3.", 0.0]]


def test_histograms_and_plots_are_media_of_the_run(logger: Logger) -> None:
    figure = plt.figure(figsize=(1, 1))
    logger.log_histogram(np.array([1.0, 2.0, 6.0]), 1, "train/advantages/histogram")
    logger.log_histogram([], 1, "train/empty")
    logger.log_plot(figure, 1, "train/token_mult_prob_error_plot_sample")
    logger.finish()
    plt.close(figure)
    media = rows_of(run_of(logger).folder, "media/index*.jsonl")
    assert [(row["kind"], row["name"]) for row in media] == [
        ("histogram", "train/advantages/histogram"),
        ("image", "train/token_mult_prob_error_plot_sample"),
    ]


@pytest.fixture
def loggers(monkeypatch: pytest.MonkeyPatch) -> type[Logger]:
    """The class of its module, new for each test."""
    found = type("Logger", (Logger,), {"__init__": Logger.__init__})
    module = ModuleType("nemo_rl.utils.logger")
    module.Logger = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return found


def setup(loggers: type[Logger], **more: Any) -> Logger:
    """As the functions of that name do, before the program gets the logger."""
    logger = loggers({"log_dir": "logs", "wandb_enabled": False, **more})
    logger.log_hyperparams({"grpo": {"num_prompts_per_step": 32}})
    logger.log_metrics({"total_setup_time_s": 30.0}, step=0, prefix="timing/setup")
    return logger


def test_installed_before_the_setup_it_gets_the_configuration_and_the_times_of_the_setup(
    timers: type[Timer], loggers: type[Logger], tmp_path: Path
) -> None:
    for name in ("first", "second"):
        install(name=name, dir=tmp_path, agent=False)
        logger = setup(loggers)
        run = run_of(logger)
        train(logger, 1)
        logger.finish()
        assert run.name == name and run.config["grpo"] == {"num_prompts_per_step": 32}
        assert [row.get("timing/setup/total_setup_time_s") for row in lines(run)] == [30.0, None]
    assert setup(loggers, trainvitals_enabled=False).loggers == []


def test_what_is_wrong_with_an_installed_backend_does_not_keep_the_training_from_beginning(
    timers: type[Timer], loggers: type[Logger], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SettingError, match="intervall"):
        install(intervall=1)
    install(dir=tmp_path / "file", agent=False)
    (tmp_path / "file").touch()
    setup(loggers)
    assert capsys.readouterr().err.count("trainvitals: ") == 1


def test_a_logger_that_is_finished_while_an_exception_is_on_its_way_ends_a_failed_run(
    logger: Logger, tmp_path: Path
) -> None:
    try:
        try:
            raise ValueError("no rollout comes")
        finally:
            logger.finish()
    except ValueError:
        again = Logger()
        attach(again, dir=tmp_path, agent=False)
        again.finish()
    ends = [run_folder.read_run(run_of(item).folder) for item in (logger, again)]
    assert [(end.status, str(end.cause or "")) for end in ends] == [
        ("failed", "ValueError: no rollout comes"),
        ("finished", ""),
    ]


def test_attaching_twice_is_attaching_once(logger: Logger, tmp_path: Path) -> None:
    assert attach(logger, dir=tmp_path) is logger.loggers[0] and len(logger.loggers) == 1


@pytest.mark.promise("trainvitals fails inside NeMo RL's Logger", "the training continues; the failure is one line")
def test_a_failure_of_ours_is_reported_once_and_the_training_continues(
    logger: Logger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nested: dict[str, Any] = {}
    nested["self"] = nested
    logger.log_metrics(nested, 1, prefix="train")  # without an end
    monkeypatch.setattr(Run, "log", lambda *args, **kwargs: 1 / 0)
    for step in range(3):
        train(logger, step)
    logger.finish()
    assert capsys.readouterr().err.count("NemoLogger.log_metrics failed") == 1
    run_of(logger).finish()

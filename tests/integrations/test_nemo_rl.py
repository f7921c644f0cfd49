"""NeMo RL, which cannot be installed beside us: a `Logger` with its signatures, calling as its GRPO does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from programs import rows_of
from watching import lines

from trainvitals import catalog
from trainvitals.integrations.nemo_rl import NemoLogger, attach
from trainvitals.trainer.run import Run


class Logger:
    """`nemo_rl.utils.logger.Logger`: fans out, and has no guard around a backend."""

    def __init__(self) -> None:
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

"""NVIDIA NeMo RL: what its `Logger` reports, as lines of a run.

    from trainvitals.integrations import nemo_rl

    logger = Logger(config["logger"])
    nemo_rl.attach(logger)

Its loggers are called several times in a step, with `train`, `timing/train`, `performance` and other prefixes; all of
that is one line of the run.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from trainvitals.alerts.readings import Readings
from trainvitals.integrations.attachment import RL_STALL_SECONDS, Attachment, guarded
from trainvitals.trainer.scalars import Refused, convert

_GENERATION = ("generation", "exposed_generation")
"""Timers that each rollout worker has."""
_ROLLOUT = ("rl_rollout_slowest_time", "rl_rollout_mean_time")
"""What is made of them, as the catalog calls it."""
_MONITOR = "ray/ray_step"
"""The axis of NeMo RL's own GPU monitor."""
_GPU_NAMES = (
    ("util", "utilization_percent", 1.0),
    ("mem_gb", "memory_used_mb", 1024.0),
    ("power_watts", "power_draw_watts", 1.0),
    ("temperature_celsius", "temperature_celsius", 1.0),
    ("throttle_thermal_seconds", "throttle_thermal_seconds", 1.0),
    ("throttle_power_seconds", "throttle_power_seconds", 1.0),
)
_DEEPEST = 8
"""Levels of nested metrics; what is deeper is not logged."""


def attach(logger: Any, **options: Any) -> NemoLogger:
    """Add a backend to NeMo RL's `Logger`. `options` are those of `trainvitals.init` (`project=`, `name=`, settings).
    A second call returns what the first one added."""
    known = next((item for item in logger.loggers if isinstance(item, NemoLogger)), None)
    if known is not None:
        return known
    added = NemoLogger(**options)
    logger.loggers.append(added)
    return added


class NemoLogger:
    """A backend, with the methods of NeMo RL's `LoggerInterface`. Nothing of it raises into the training."""

    def __init__(self, **options: Any) -> None:
        self.attachment = Attachment(options, watch=False, stall_after=RL_STALL_SECONDS)
        self._step: int | None = None
        self._held: dict[str, Any] = {}
        self._readings = Readings()
        self._names_gpus = False
        """Whether its own GPU monitor is on, whose names are then in every line."""
        self._begin({})

    @guarded
    def _begin(self, config: Mapping[str, Any]) -> None:
        self.attachment.begin(config, fresh=self.attachment.run is None)
        # Registered after the run's own, so called before it: the last step of a program that ends without `finish`.
        atexit.register(self._write_last)

    @guarded
    def log_metrics(
        self,
        metrics: Mapping[str, Any],
        step: int,
        prefix: str | None = "",
        step_metric: str | None = None,
        step_finished: bool = False,
    ) -> None:
        """Hold what belongs to one step until the next begins, it is reported as finished, or the run ends."""
        if step_metric == _MONITOR:
            # Its steps are seconds, and its numbers those that the agent measures anyway.
            self._names_gpus = True
            return
        if step != self._step:
            self._write()
            self._step = step
        lead = f"{prefix}/" if prefix else ""
        for name, value in _flatten(metrics):
            self._held[name if name in (step_metric, *_ROLLOUT) else f"{lead}{name}"] = value
        if step_finished:
            self._write()

    @guarded
    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        if self.attachment.run is not None:
            self.attachment.run.add_config(dict(params))

    @guarded
    def log_histogram(self, histogram: Any, step: int, name: str) -> None:
        if self.attachment.run is not None and len(histogram):
            self.attachment.run.log_histogram(name, histogram, step=step)

    @guarded
    def log_plot(self, figure: Any, step: int, name: str) -> None:
        if self.attachment.run is not None:
            self.attachment.run.log_image(name, figure, step=step)

    @guarded
    def finish(self) -> None:
        atexit.unregister(self._write_last)
        self._write()
        self.attachment.finish()

    @guarded
    def _write_last(self) -> None:
        self._write()

    def _write(self) -> None:
        held, self._held = self._held, {}
        if held and self.attachment.run is not None:
            named = dict(_name_gpus(self._readings)) if self._names_gpus else {}
            self.attachment.run.log({**named, **held}, step=self._step)


def _name_gpus(readings: Readings) -> Iterator[tuple[str, float]]:
    """What the agent measures on this node, named as NeMo RL's monitor does, and what that one does not measure."""
    for index, gpu in readings.gpus().items():
        for name, metric, divisor in _GPU_NAMES:
            if metric in gpu:
                yield f"ray/node.0.gpu.{index}.{name}", gpu[metric] / divisor


def _flatten(metrics: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Nested mappings with `/` between the keys. A list becomes its highest value, and for generation its mean too: all
    workers wait for the slowest."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < _DEEPEST:
                yield from _flatten(value, f"{name}/", depth + 1)
            continue
        if not isinstance(convert(value), Refused):
            yield name, value
            continue
        numbers = list(_numbers(value.tolist() if hasattr(value, "tolist") else value))
        if numbers:
            yield name, max(numbers)
            if str(key) in _GENERATION and len(numbers) > 1:
                yield from zip(_ROLLOUT, (max(numbers), sum(numbers) / len(numbers)), strict=True)


def _numbers(value: Any) -> Iterable[float]:
    """The numbers of a list, and of the lists in it."""
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from _numbers(item)

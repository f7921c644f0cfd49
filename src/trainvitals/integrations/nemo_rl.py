"""NVIDIA NeMo RL: what its `Logger` reports, as lines of a run.

    from trainvitals.integrations import nemo_rl

    nemo_rl.install(project="math")  # before setup(), which makes the Logger and logs the configuration
    nemo_rl.attach(logger, config=config)  # or later, to one that is there

Its loggers are called several times in a step, with `train`, `timing/train`, `performance` and other prefixes; all of
that is one line of the run. The phases of its `Timer` are reported to the agent as they begin and end.
"""

from __future__ import annotations

import atexit
import functools
import math
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from weakref import WeakKeyDictionary

from trainvitals.alerts.readings import Readings
from trainvitals.integrations.attachment import RL_STALL_SECONDS, Attachment, guarded
from trainvitals.integrations.phase_edges import PhaseEdges
from trainvitals.integrations.samples import log_samples
from trainvitals.journal.documents.registration import PhaseNote
from trainvitals.stderr import print_line
from trainvitals.trainer import ray_job
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
_STEP = "total_step_time"
"""The timer of the whole step, which has all other phases in it."""
_VALIDATION_FILE = re.compile(r"val_data_step(\d+)\.jsonl$", re.ASCII)
_DEEPEST = 8
"""Levels of nested metrics; what is deeper is not logged."""


def install(**options: Any) -> None:
    """Attach to each `Logger` that NeMo RL makes from now on, unless `trainvitals_enabled` is false in its
    configuration. `options` are those of `attach`; a later call replaces them."""
    Attachment(options, watch=False)  # SettingError here, not in the training
    loggers = import_module("nemo_rl.utils.logger").Logger
    original = getattr(loggers.__init__, "of_trainvitals", loggers.__init__)

    @functools.wraps(original)
    def init(logger: Any, cfg: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        original(logger, cfg, *args, **kwargs)
        try:
            if cfg.get("trainvitals_enabled", True):
                attach(logger, **options)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the training begins
            print_line(f"this training is not logged: {error}")

    init.of_trainvitals = original  # type: ignore[attr-defined]
    loggers.__init__ = init


def attach(logger: Any, **options: Any) -> NemoLogger:
    """Add a backend to NeMo RL's `Logger`. `options` are those of `trainvitals.init` (`project=`, `name=`, settings).
    A second call returns what the first one added."""
    known = next((item for item in logger.loggers if isinstance(item, NemoLogger)), None)
    if known is not None:
        return known
    added = NemoLogger(**options)
    logger.loggers.append(added)
    write = getattr(logger, "log_batched_dict_as_jsonl", None)
    if write is not None:
        # The responses of a validation go into a file of the logger's own, and to no backend.

        @functools.wraps(write)
        def written(to_log: Any, filename: str, *args: Any, **kwargs: Any) -> Any:
            result = write(to_log, filename, *args, **kwargs)
            added.log_validation(to_log, filename)
            return result

        logger.log_batched_dict_as_jsonl = written
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
        self._watch: Any = None
        """The actor that watches a cluster of several nodes: without a handle Ray would end it."""
        self._phases = OpenPhases(PhaseEdges(self._note_phase, whole=_STEP))
        self._handled = sys.exc_info()[1]
        """An exception that the program is dealing with by training again."""
        self._begin({})

    @guarded
    def _begin(self, config: Mapping[str, Any]) -> None:
        run = self.attachment.begin(config, fresh=self.attachment.run is None)
        # Registered after the run's own, so called before it: the last step of a program that ends without `finish`.
        atexit.register(self._write_last)
        if "nemo_rl" in sys.modules:
            with suppress(ImportError, AttributeError):  # a version that has moved it: there are no phases
                _observe(import_module("nemo_rl.utils.timer").Timer)
        _observers[:] = [self._phases]
        if run.settings.agent and ray_job.find_own() is not None:
            from trainvitals.ray import watch_nodes_of

            self._watch = watch_nodes_of(run)

    @guarded
    def _note_phase(self, phase: PhaseNote) -> None:
        if self.attachment.run is not None:
            self.attachment.run.note_phase(phase)

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
    def log_validation(self, data: Mapping[str, Any], filename: str) -> None:
        """What NeMo RL writes into `filename`: the messages and the rewards of a validation, among other things."""
        found = _VALIDATION_FILE.search(str(filename))
        if self.attachment.run is None or found is None or "content" not in data or "rewards" not in data:
            return
        answers = zip(data["content"], data["rewards"], strict=False)
        samples = [(*_split(messages), reward) for messages, reward in answers]
        log_samples(self.attachment.run, samples, int(found[1]))

    @guarded
    def finish(self) -> None:
        atexit.unregister(self._write_last)
        if _observers == [self._phases]:
            _observers.clear()
        self._write()
        # NeMo RL ends its loggers while the exception that ends the training is on its way.
        raised = sys.exc_info()[1]
        self.attachment.finish(raised if raised is not self._handled else None)

    @guarded
    def _write_last(self) -> None:
        self._write()

    def _write(self) -> None:
        held, self._held = self._held, {}
        if held and self.attachment.run is not None:
            named = dict(_name_gpus(self._readings)) if self._names_gpus else {}
            self.attachment.run.log({**named, **held}, step=self._step)


class OpenPhases:
    """Which timers of the training run, as phases. Those of other threads are none: what they do goes on while the
    training hangs."""

    def __init__(self, edges: PhaseEdges) -> None:
        self._edges = edges
        self._open: WeakKeyDictionary[Any, dict[str, list[str]]] = WeakKeyDictionary()
        self._thread: int | None = None

    def begin(self, timer: Any, label: str) -> None:
        thread = threading.get_ident()
        if self._thread is None or label == _STEP:
            self._thread = thread
        if thread == self._thread:
            self._open.setdefault(timer, {})[label] = self._edges.enter(label)

    def end(self, timer: Any, label: str | None) -> None:
        """`label` is None for all of this timer."""
        running = self._open.get(timer, {})
        for name in [label] if label else list(running):
            phase = running.pop(name, None)
            if phase is not None:
                self._edges.leave(phase)


_observers: list[OpenPhases] = []
"""Those of the training that is logged, if there is one."""


def _observe(timers: Any) -> None:
    """Have NeMo RL's `Timer` report what is started and stopped, `with timer.time(...)` too; a second time, nothing
    happens. What somebody puts around it later stays there."""
    if hasattr(timers.start, "of_trainvitals"):
        return
    start, stop, reset = timers.start, timers.stop, timers.reset

    @functools.wraps(start)
    def started(timer: Any, label: str, *args: Any, **kwargs: Any) -> Any:
        result = start(timer, label, *args, **kwargs)
        _report(OpenPhases.begin, timer, label)
        return result

    @functools.wraps(stop)
    def stopped(timer: Any, label: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return stop(timer, label, *args, **kwargs)
        finally:
            _report(OpenPhases.end, timer, label)

    @functools.wraps(reset)
    def forgotten(timer: Any, label: str | None = None) -> Any:
        try:
            return reset(timer, label)
        finally:
            _report(OpenPhases.end, timer, label)

    started.of_trainvitals = True  # type: ignore[attr-defined]
    timers.start, timers.stop, timers.reset = started, stopped, forgotten


def _report(change: Callable[[OpenPhases, Any, Any], None], timer: Any, label: Any) -> None:
    for observer in _observers:
        try:
            change(observer, timer, label)
        except Exception:  # noqa: BLE001 - a timer or label of another kind; the training comes first
            continue


def _split(messages: Any) -> tuple[str, str]:
    """What was asked, and the last message, which answers it."""
    if isinstance(messages, str):
        return "", messages
    texts = [str(message["content"]) for message in messages]
    return "\n".join(texts[:-1]), texts[-1] if texts else ""


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
            # `max` takes or leaves NaN depending on where it is.
            highest = math.nan if any(map(math.isnan, numbers)) else max(numbers)
            yield name, highest
            if str(key) in _GENERATION and len(numbers) > 1:
                yield from zip(_ROLLOUT, (highest, sum(numbers) / len(numbers)), strict=True)


def _numbers(value: Any) -> Iterable[float]:
    """The numbers of a list, and of the lists in it."""
    if isinstance(value, (int, float)):
        yield float(value)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for item in value:
            yield from _numbers(item)

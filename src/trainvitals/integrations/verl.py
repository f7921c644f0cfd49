"""verl: what its `Tracking` reports, as lines of a run.

trainer.logger='["console","trainvitals"]'     # as published, through verl_plugin.py
Tracking(project, experiment, default_backend=["console", "trainvitals"], enable_gpu_monitoring=True)     # by yourself

Phases of a step (`gen`, `update_actor` …) are reported to the agent as they begin and end, so that a hang inside one is
seen while it happens, and a long one is not taken for a hang.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from trainvitals.alerts.readings import Readings
from trainvitals.integrations.attachment import RL_STALL_SECONDS, Attachment, guarded
from trainvitals.integrations.phase_edges import PhaseEdges
from trainvitals.integrations.samples import log_samples
from trainvitals.integrations.verl_plugin import NAME
from trainvitals.journal.documents.registration import PhaseNote
from trainvitals.journal.identity import TRAINER
from trainvitals.stderr import print_line
from trainvitals.trainer import outcomes, ray_job
from trainvitals.trainer.outcomes import Outcome

STEP = "step"
"""What verl calls the whole step, which has all other phases but the validation in it."""
PATIENT_LINES = 3
"""Lines without a GPU after which that is said: the first come before the agent has measured anything."""


class VerlLogger:
    """A backend: `log(data=, step=)` and `finish`. Nothing of it raises into the training."""

    def __init__(
        self,
        project_name: str | None,
        experiment_name: str | None,
        config: Any = None,
        *,
        enable_gpu_monitoring: bool = False,
        gpu_monitor_interval: float | None = None,
        **options: Any,
    ) -> None:
        """The keywords are also read from `config.trainer`; `options` are settings."""
        trainer = _get(config, "trainer")
        self._readings = Readings() if enable_gpu_monitoring or _get(trainer, "enable_gpu_monitoring") else None
        self._patience = PATIENT_LINES
        interval = gpu_monitor_interval or _get(trainer, "gpu_monitor_interval")
        if interval:
            options.setdefault("gpu_interval", float(interval))
        given = {"project": project_name, "name": experiment_name, **options}
        self._is_in_actor = ray_job.is_in_actor()
        if self._is_in_actor:
            given.setdefault("role", TRAINER)  # else it would be that of the actor's class, `task_runner_v1`
        self.attachment = Attachment(given, watch=False, stall_after=RL_STALL_SECONDS)
        self._phases = PhaseEdges(self._note_phase, whole=STEP)
        self._watch: Any = None
        """The actor that watches a cluster of several nodes: without a handle Ray would end it."""
        self._raised: Outcome | None = None
        """How the training has ended if the exception that left a phase last was not caught."""
        self._begin(config)

    @guarded
    def _begin(self, config: Any) -> None:
        run = self.attachment.begin(_plain(config), fresh=True)
        # Registered after the run's own, so called before it.
        atexit.register(self.leave)
        if self._is_in_actor and run.settings.agent:
            from trainvitals.ray import watch_nodes_of

            self._watch = watch_nodes_of(run)
        for module in [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "verl"]:
            timer = vars(module).get("marked_timer")
            if callable(timer):
                module.marked_timer = self._observe(timer)  # type: ignore[attr-defined]
        generations = getattr(sys.modules.get("verl.utils.tracking"), "ValidationGenerationsLogger", None)
        if generations is not None:
            generations.log = self._overhear(generations.log)

    @guarded
    def log(self, data: Mapping[str, Any], step: int, **kwargs: Any) -> None:
        run = self.attachment.run
        if run is None:
            return
        self._raised = None
        if self._readings is not None:
            named = {
                f"gpu_{index}_{name}": v for index, gpu in self._readings.gpus().items() for name, v in gpu.items()
            }
            data = {**named, **data}
            self._expect_gpus(bool(named))
        run.log(data, step=step)

    def _expect_gpus(self, are_there: bool) -> None:
        if are_there:
            self._patience = 0
        elif self._patience:
            self._patience -= 1
            if not self._patience:
                print_line("no GPU is measured on the node of the trainer, so there are no gpu_N_ metrics (docs/rl.md)")

    @guarded
    def log_generations(self, samples: Sequence[Sequence[Any]], step: int) -> None:
        """Responses of the validation: prompt, response and score of each."""
        if self.attachment.run is not None:
            log_samples(self.attachment.run, samples, step)

    @guarded
    def finish(self, exit_code: int = 0) -> None:
        atexit.unregister(self.leave)
        # verl ends its loggers while the exception that ends the training is on its way.
        self.attachment.finish((sys.exc_info()[1] or SystemExit(exit_code)) if exit_code else None)

    @guarded
    def leave(self) -> None:
        """Nobody has said how the training ended: most of verl's trainers never call `finish`, not even if they fail,
        and the exception has been dealt with by Ray or Hydra by now."""
        atexit.unregister(self.leave)
        if self._raised is not None:
            self.attachment.end_as(self._raised)
        elif self._is_in_actor:
            # Ray ends the process without a Python exit; the driver's exit code tells whether that was a failure.
            self.attachment.end_as(Outcome("finished", is_tentative=True))
        else:
            self.attachment.end_training()

    # -- phases

    def _observe(self, timer: Callable[..., AbstractContextManager[Any]]) -> Callable[..., AbstractContextManager[Any]]:
        """verl's `marked_timer`, which also reports when a phase begins and ends."""
        timer = _unwrap(timer)

        @contextmanager
        def marked_timer(name: str, timing_raw: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            self._raised = None
            phase = self._phases.enter(str(name))
            try:
                with timer(name, timing_raw, *args, **kwargs) as value:
                    yield value
            except BaseException as error:
                self._note_exception(error)
                raise
            finally:
                self._phases.leave(phase)

        marked_timer.of_trainvitals = timer  # type: ignore[attr-defined]
        return marked_timer

    @guarded
    def _note_exception(self, error: BaseException) -> None:
        self._raised = outcomes.to_remember(error)

    @guarded
    def _note_phase(self, phase: PhaseNote) -> None:
        if self.attachment.run is not None:
            self.attachment.run.note_phase(phase)

    def _overhear(self, log: Callable[..., None]) -> Callable[..., None]:
        """verl's `ValidationGenerationsLogger.log`, which knows its own backends only."""
        original = _unwrap(log)

        def log_to_all(logger: Any, loggers: Any, samples: Any, step: int) -> None:
            original(logger, loggers, samples, step)
            if NAME in loggers:
                self.log_generations(samples, step)

        log_to_all.of_trainvitals = original  # type: ignore[attr-defined]
        return log_to_all


def _unwrap(function: Callable[..., Any]) -> Callable[..., Any]:
    """Without what an earlier Tracking put around it: its run is over."""
    found: Callable[..., Any] = getattr(function, "of_trainvitals", function)
    return found


class Tracking:
    """verl's interface without verl, for trainers that follow it: other backends than ours are left to the program."""

    supported_backend = [NAME, "console"]  # noqa: RUF012 - a list, as verl has it

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | list[str] = "console",
        config: Any = None,
        **options: Any,
    ) -> None:
        """`options`: `enable_gpu_monitoring`, `gpu_monitor_interval` in seconds, and settings."""
        wanted = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        unknown = [name for name in wanted if name not in self.supported_backend]
        if unknown:
            raise ValueError(f"unknown backend {unknown[0]!r}: this Tracking has {', '.join(self.supported_backend)}")
        self.logger: dict[str, Any] = {}
        if NAME in wanted:
            self.logger[NAME] = VerlLogger(project_name, experiment_name, config, **options)
        if "console" in wanted:
            self.logger["console"] = ConsoleLogger()

    def log(self, data: Mapping[str, Any], step: int, backend: list[str] | str | None = None) -> None:
        for name, logger in self.logger.items():
            if backend is None or name in backend:
                logger.log(data=data, step=step)

    def finish(self, exit_code: int = 0) -> None:
        if NAME in self.logger:
            self.logger[NAME].finish(exit_code)


class ConsoleLogger:
    """A line per step, as verl prints it."""

    def log(self, data: Mapping[str, Any], step: int) -> None:
        numbers = (f"{name}:{value}" for name, value in data.items() if isinstance(value, (int, float)))
        sys.stdout.write(" - ".join((f"step:{step}", *numbers)) + "\n")


def _get(config: Any, name: str) -> Any:
    """A value of a mapping, of OmegaConf or of a plain dict; None if there is none."""
    try:
        return config.get(name) if config is not None else None
    except Exception:  # noqa: BLE001 - foreign objects
        return None


def _plain(config: Any) -> Mapping[str, Any]:
    """The configuration as a mapping: OmegaConf's is resolved by its own package, which is there if it is one."""
    if config is None:
        return {}
    omegaconf = sys.modules.get("omegaconf")
    if omegaconf is not None and omegaconf.OmegaConf.is_config(config):
        config = omegaconf.OmegaConf.to_container(config, resolve=True)
    return dict(config) if isinstance(config, Mapping) else {"config": config}

"""TrainingMonitor and TrainingMonitorCallback: a run, for loops that call a monitor at each step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trainvitals.alerts.python_rules import RuleBook, WaitingRules
from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.classic.allocator import read_current_device
from trainvitals.integrations.classic.configuration import read_configuration, report_notes
from trainvitals.integrations.classic.monitors import GPUMonitor, GPUResourceMonitor, SystemMonitor
from trainvitals.settings.kinds import parse_duration
from trainvitals.trainer.run import Run


@dataclass(slots=True)
class TrainingMetrics:
    """The numbers of one step, for `TrainingMonitor.record_metrics`; what is None is absent."""

    step: int | None = None
    epoch: float | None = None
    loss: Any = None
    accuracy: Any = None
    learning_rate: Any = None
    grad_norm: Any = None
    batch_time: float | None = None
    batch_size: int | None = None
    custom_metrics: Mapping[str, Any] = field(default_factory=dict)


class TrainingMonitor:
    """A run behind one object: `start_monitoring`, `log_training_step`, `stop_monitoring`."""

    def __init__(self, config: Mapping[str, Any] | str | Path | None = None) -> None:
        """`config` is a mapping or the path of a YAML file: settings, under our names or those of older monitors
        (docs/arriving.md). SettingError for an unknown key; a key without effect is reported once."""
        self._configuration = read_configuration(config)
        report_notes(self._configuration)
        self.attachment = Attachment(self._configuration.settings, self._configuration.watch or True)
        self._waiting_rules = WaitingRules()
        self._system_monitor = SystemMonitor(parse_duration(self._configuration.settings.get("interval", 1.0)))
        self._began: float | None = None
        self._ended: float | None = None
        self._samples = 0

    @property
    def system_monitor(self) -> SystemMonitor:
        """The host and all GPUs. May be replaced: the old one is stopped, and the new one started with the run."""
        return self._system_monitor

    @system_monitor.setter
    def system_monitor(self, monitor: SystemMonitor) -> None:
        self._system_monitor.stop()
        self._system_monitor = monitor
        if self._began is not None and self._ended is None:
            monitor.start()

    @property
    def run(self) -> Run | None:
        """The run; None before `start_monitoring`, and if `monitoring.enabled` is false."""
        return self.attachment.run

    @property
    def alert_system(self) -> RuleBook:
        """`alert_system.add_alert_rule(name, condition, ...)`: the run's own conditions (docs/alerts.md). Before
        `start_monitoring` they wait for it, and if monitoring is off they do nothing."""
        return self.attachment.run.alerts if self.attachment.run is not None else self._waiting_rules

    def start_monitoring(self) -> None:
        """Start a run, or use the program's current one."""
        if self._configuration.enabled and self.attachment.run is None:
            run = self.attachment.begin({})
            for rule in self._waiting_rules.rules:
                run.alerts.accept(rule)
            self.system_monitor.start()
            self._began = time.monotonic()

    @guarded
    def log_training_step(
        self,
        model: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        accuracy: Any = None,
        learning_rate: Any = None,
        custom_metrics: Mapping[str, Any] | None = None,
        step: int | None = None,
        epoch: float | None = None,
    ) -> None:
        """Log one step. A model and an optimizer are watched from the first time they are given."""
        run = self.attachment.run
        if run is None:
            return
        if model is not None and self.attachment.watching is None:
            self.attachment.watch(model, optimizer, report=False)
        values = {"loss": loss, "accuracy": accuracy, "learning_rate": learning_rate, "epoch": epoch}
        run.log({**values, **(custom_metrics or {})}, step=step)

    @guarded
    def record_metrics(
        self,
        step: int | TrainingMetrics | None = None,
        loss: Any = None,
        lr: Any = None,
        batch_size: int | None = None,
        *,
        learning_rate: Any = None,
        **more: Any,
    ) -> None:
        """Log one step: numbers by name, or `TrainingMetrics`. Monitoring begins with the first."""
        self.start_monitoring()
        if self.attachment.run is None:
            return
        if isinstance(step, TrainingMetrics):
            given = {item.name: getattr(step, item.name) for item in fields(step)}
            more = {**more, **given.pop("custom_metrics")}
            number: int | None = given.pop("step")
        else:
            learning_rate = lr if learning_rate is None else learning_rate
            number = step
            given = {"loss": loss, "learning_rate": learning_rate, "batch_size": batch_size}
        self._samples += given["batch_size"] or 0
        self.attachment.run.log({**given, **more}, step=number)

    def get_training_stats(self) -> dict[str, float]:
        """For every metric `current_loss`, `avg_loss`, `min_loss` and `max_loss`; `total_steps`, `training_time` in
        seconds and `steps_per_second`, with `batch_size` also `samples_per_second`. Empty before the first step. Read
        back from the run folder, so it is not for every step of a loop."""
        summary = self.attachment.run.summary if self.attachment.run is not None else {}
        if not summary or self._began is None:
            return {}
        stats: dict[str, float] = {}
        for name, item in summary.items():
            known = {"current": item.last, "avg": item.mean, "min": item.low, "max": item.high}
            stats |= {f"{word}_{name}": value for word, value in known.items() if value is not None}
        logged = summary.get("loss") or max(summary.values(), key=lambda item: item.count)
        elapsed = (self._ended or time.monotonic()) - self._began
        stats |= {"total_steps": logged.count, "training_time": elapsed}
        if elapsed > 0:
            stats["steps_per_second"] = logged.count / elapsed
            stats |= {"samples_per_second": self._samples / elapsed} if self._samples else {}
        return stats

    def log_model_inference_benchmark(
        self, model: Any, device: Any = None, dummy_input: Any = None, **options: Any
    ) -> dict[str, float]:
        """Measure the model (`run.benchmark`), while the loop waits: `avg_latency_ms`, `samples_per_second`,
        `model_size_mb`, `memory_footprint_mb`, and `quantization_ratio` where `variants=` has a smaller one. Empty if
        it could not be measured; the reason is in the run's events."""
        from trainvitals.bench.beside import classic_values  # numpy, which nobody waits for who measures no model

        self.start_monitoring()
        if self.attachment.run is None:
            return {}
        place = str(device) if device is not None else None
        found = self.attachment.run.benchmark(model, dummy_input, wait=True, device=place, **options)
        return classic_values(found) if found is not None else {}

    def stop_monitoring(self) -> None:
        """End the run, if `start_monitoring` began it."""
        self._ended = self._ended or time.monotonic()
        self.system_monitor.stop()
        self.attachment.end_training()
        self.attachment.finish()


class TrainingMonitorCallback:
    """Logs steps to the current run, or starts one with `options` (`project=`, any setting), and runs a monitor during
    the training."""

    def __init__(self, monitor: GPUMonitor | SystemMonitor | GPUResourceMonitor | None = None, **options: Any) -> None:
        self.monitor = monitor
        self.attachment = Attachment(options, False)
        self._begun: float | None = None

    @property
    def run(self) -> Run | None:
        """The run; None before `on_train_begin`."""
        return self.attachment.run

    @guarded
    def on_train_begin(self) -> None:
        self.attachment.begin({})
        if isinstance(self.monitor, GPUResourceMonitor):
            self.monitor.start_monitoring()
        elif self.monitor is not None:
            self.monitor.start()

    @guarded
    def on_step_begin(self) -> None:
        self._begun = time.perf_counter()

    @guarded
    def on_step_end(
        self,
        step: int,
        epoch: float | None = None,
        loss: Any = None,
        lr: Any = None,
        grad_norm: Any = None,
        throughput: Any = None,
    ) -> None:
        """Log the step; `batch_time` is the time since `on_step_begin`, and what torch's allocator holds is added where
        there is a device. What is None is absent."""
        values = {
            "epoch": epoch,
            "loss": loss,
            "learning_rate": lr,
            "gradient_norm": grad_norm,
            "throughput_samples_per_sec": throughput,
        }
        if self._begun is not None:
            values["batch_time"] = time.perf_counter() - self._begun
            self._begun = None
        if self.attachment.run is not None:
            self.attachment.run.log({**values, **read_current_device()}, step=step)

    @guarded
    def on_train_end(self) -> None:
        if isinstance(self.monitor, GPUResourceMonitor):
            self.monitor.stop_monitoring()
        elif self.monitor is not None:
            self.monitor.stop()
        self.attachment.finish()

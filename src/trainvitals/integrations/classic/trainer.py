"""GPUMonitoringCallback: GPU readings with the steps of a Transformers `Trainer`."""

from __future__ import annotations

from typing import Any

from trainvitals.integrations.attachment import guarded
from trainvitals.integrations.classic.monitors import GPUMonitor
from trainvitals.integrations.transformers import TransformersCallback


class GPUMonitoringCallback(TransformersCallback):
    """A TransformersCallback that also runs `monitor`, and logs its newest reading as `gpu/...` with every
    `log_interval`-th step."""

    def __init__(self, monitor: GPUMonitor, log_interval: int = 10, **options: Any) -> None:
        super().__init__(**options)
        if log_interval < 1:
            raise ValueError(f"log_interval must be at least 1 step, not {log_interval}")
        self.monitor = monitor
        self.log_interval = log_interval

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.monitor.start()

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        reading = self.monitor.latest() if state.global_step % self.log_interval == 0 else None
        if reading is not None and self.attachment.run is not None:
            numbers = {f"gpu/{key}": value for key, value in reading.items() if isinstance(value, (int, float))}
            self.attachment.run.log(numbers, step=state.global_step)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.monitor.stop()
        super().on_train_end(args, state, control, **kwargs)

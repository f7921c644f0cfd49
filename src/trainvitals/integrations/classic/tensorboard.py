"""TensorBoardMonitor: a run that is mirrored to TensorBoard (docs/trackers.md), for scripts that wrote event files
themselves."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.stderr import print_line
from trainvitals.trainer.run import Run


class TensorBoardMonitor:
    """Logs to the current run, or to one that it begins with the setting `tensorboard` on. The agent writes the event
    files, below `log_dir`."""

    def __init__(self, log_dir: str | os.PathLike[str], **options: Any) -> None:
        """`options` are those of `trainvitals.init`."""
        self.log_dir = os.fspath(log_dir)
        self.attachment = Attachment({**options, "tensorboard": self.log_dir}, {"histograms_every": 1})

    @property
    def run(self) -> Run | None:
        """The run; None before the first metrics."""
        return self.attachment.run

    @guarded
    def log_training_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """`training/loss` and so on, in TensorBoard."""
        self._begin().log(metrics, step=step)

    @guarded
    def log_resource_metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Numbers of your own about the machine: `training/resources/...`. What the agent measures is there anyway."""
        self._begin().log({"resources": metrics}, step=step)

    @guarded
    def log_model_parameters(self, step: int, model: Any) -> None:
        """Watch the model from now on: histograms of weights and gradients at every optimizer step."""
        self._begin()
        if self.attachment.watching is None:
            self.attachment.watch(model, report=False)

    def _begin(self) -> Run:
        if self.attachment.run is not None:
            return self.attachment.run
        run = self.attachment.begin({})
        if run.settings.tensorboard is None:
            print_line("TensorBoardMonitor has no effect: the current run was started without the setting tensorboard")
        return run

    @guarded
    def close(self) -> None:
        """End the run, if this began it."""
        self.attachment.end_training()
        self.attachment.finish()

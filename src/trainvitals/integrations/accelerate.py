"""Hugging Face Accelerate: a tracker for `Accelerator(log_with=...)`.

accelerator = Accelerator(log_with=trainvitals.AccelerateTracker())
accelerator.init_trackers("mnist", config={"lr": 1e-3})
accelerator.log({"loss": loss}, step=step)
accelerator.end_training()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.trainer.current import current_run
from trainvitals.trainer.run import Run


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]
    """Logs to the current run, or starts one with `options` (`project=`, `name=`, `dir=`, any setting). Every rank
    writes its own lines; with the setting `rank_zero_only` only rank 0 does."""

    name = "trainvitals"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, *, watch: bool | Mapping[str, Any] = True, **options: Any) -> None:
        super().__init__()
        self.attachment = Attachment(options, watch)

    @property
    def tracker(self) -> Run | None:
        """The run; None before `init_trackers`."""
        return self.attachment.run

    @guarded
    def start(self) -> None:
        """`init_trackers` was called. Models and optimizers are found at their first step."""
        self._begin({})

    @guarded
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self._begin(values)

    @guarded
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        run = self.attachment.run
        if run is not None:
            run.log(values, step=step)

    @guarded
    def finish(self) -> None:
        """`end_training` was called: ends the run too, if the tracker started it."""
        self.attachment.end_training()
        self.attachment.finish()

    def _begin(self, config: Mapping[str, Any]) -> None:
        if self.attachment.run is None or self.attachment.run is not current_run():
            self.attachment.begin(config)
            self.attachment.watch(report=False)  # the program logs its loss itself
        else:
            self.attachment.run.add_config(config)

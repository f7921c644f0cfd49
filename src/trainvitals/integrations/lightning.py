"""Lightning: a callback that watches, and a logger.

    trainer = L.Trainer(callbacks=[trainvitals.LightningCallback()])
    trainer = L.Trainer(logger=trainvitals.LightningLogger())

The callback logs the values of `self.log` and measures phases, gradients and memory. The logger logs the same values
as Lightning passes them to every logger. With both, each value is logged once, by the logger. Steps have the
numbers that Lightning gives to its loggers; the first is 0.
"""

from __future__ import annotations

import functools
import sys
from argparse import Namespace
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.trainer.run import Run

# `lightning` and `pytorch_lightning` are the same code with different classes: take the one the program uses.
_PACKAGE = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
try:
    _lightning = import_module(_PACKAGE)
except ImportError:
    _lightning = import_module("pytorch_lightning")
_Callback: Any = import_module(f"{_lightning.__name__}.callbacks").Callback
_Logger: Any = import_module(f"{_lightning.__name__}.loggers").Logger


class LightningCallback(_Callback):  # type: ignore[misc]
    """Logs and watches a `Trainer`'s training in the current run, or starts one with `options` (`project=`, `name=`,
    `dir=`, any setting). Checkpoints contain the id of the run, so resuming continues it."""

    def __init__(self, *, watch: bool | Mapping[str, Any] = True, **options: Any) -> None:
        self.attachment = Attachment(options, watch)
        self._resume: str | None = None
        self._number = -1
        self._best: dict[str, float] = {}
        self._wrapped: Any = None

    # -- beginning and end

    @guarded
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if _is_served(trainer, self):
            self.attachment.failed = True  # not a failure, but with the same effect: from now on nothing is done
            return
        self.attachment.begin(describe(trainer, pl_module), resume=self._resume, fresh=self._resume is None)

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.global_step and self.attachment.run is not None:
            step = trainer.global_step
            self.attachment.run.event("resume", f"from step {step}", resumed_step=step)
        self.attachment.reported_to = _clients_of(trainer)
        self.attachment.watch(pl_module, trainer.optimizers)
        if self.attachment.watching is not None:
            self._wrapped = pl_module
            # Lightning never calls the module itself: training_step is the forward.
            vars(pl_module)["training_step"] = _timed(pl_module.training_step, self.attachment.watching, pl_module)

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._log_best(trainer)
        self._stop()
        if self.attachment.run is not None:
            self.attachment.run.event("train_end", f"training finished after {trainer.global_step} steps")

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._stop()
        self.attachment.finish(exception)

    @guarded
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage in ("validate", "test", "predict") and not _is_served(trainer, self):
            self.attachment.begin(describe(trainer, pl_module))

    @guarded
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._wrapped is not None:
            vars(self._wrapped).pop("training_step", None)
            self._wrapped = None
        self.attachment.end_training()

    # -- what it logs

    @guarded
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        number = _step_of(trainer)
        if self.attachment.watching is not None:
            self.attachment.watching.name_step(number, _epoch_of(trainer, batch_idx))
        self._number = number
        if not (pl_module.automatic_optimization and trainer.fit_loop._should_accumulate()):
            self._log_values(trainer)

    @guarded
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self._log_values(trainer)
        if self.attachment.run is not None:
            epoch = trainer.current_epoch
            self.attachment.run.event("epoch", f"epoch {epoch} finished", epoch=epoch)

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self._log_evaluation(trainer)

    @guarded
    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        self._log_evaluation(trainer)

    def _log_evaluation(self, trainer: Any) -> None:
        logged = self._log_values(trainer)
        if self.attachment.run is not None:
            self.attachment.run.event("evaluation", ", ".join(logged))

    def _log_values(self, trainer: Any) -> list[str]:
        """Log the current loop's values for the loggers; returns their names."""
        run = self.attachment.run
        if run is None or _has_our_logger(trainer):
            return []
        values = dict(trainer._logger_connector.metrics["log"])  # trainer.logged_metrics has all the older ones too
        if "loss" in values:  # the program's own, so the watch leaves the reporting to it
            self.attachment.leave_reporting()
            values = {**_rate(trainer), **values}
        self.attachment.reported_to = _clients_of(trainer)
        if not self.attachment.is_logged_by_tracker:
            run.log(values, step=max(self._number, 0))
        return sorted(values)

    # -- checkpoints

    @guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        run = self.attachment.run
        if run is not None and not _has_our_logger(trainer):
            run.event("checkpoint", f"at step {checkpoint.get('global_step')}", epoch=checkpoint.get("epoch"))
        self._log_best(trainer)

    def _log_best(self, trainer: Any) -> None:
        if self.attachment.run is not None and not _has_our_logger(trainer):
            for name, value in best_of(trainer.checkpoint_callbacks).items():
                if self._best.get(name) != value:
                    self._best[name] = value
                    self.attachment.run.log({f"best/{name}": value}, step=max(self._number, 0))

    def state_dict(self) -> dict[str, Any]:
        """In every checkpoint: which run it belongs to."""
        run = self.attachment.run
        return {} if run is None else {"run": str(run.folder)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resume = state_dict.get("run")


class LightningLogger(_Logger):  # type: ignore[misc]
    """A Lightning logger, for the current run or one that it starts. Checkpoints go into the run's folder unless
    `ModelCheckpoint` has another."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attachment = Attachment(options, False)
        self._best: dict[str, float] = {}

    @property
    def experiment(self) -> Run:
        """The run, started on first use."""
        if self.attachment.run is None:
            self.attachment.begin({})
        assert self.attachment.run is not None
        return self.attachment.run

    @property
    def name(self) -> str:
        return self.experiment.project

    @property
    def version(self) -> str:
        return self.experiment.id

    @property
    def save_dir(self) -> str:
        return str(self.experiment.folder.parent.parent)

    @guarded
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.experiment.log(metrics, step=step)

    @guarded
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.experiment.add_config(vars(params) if isinstance(params, Namespace) else dict(params or {}))

    @guarded
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        path = getattr(checkpoint_callback, "_last_checkpoint_saved", "") or checkpoint_callback.best_model_path
        self.experiment.event("checkpoint", str(path), path=str(path), best=checkpoint_callback.best_model_path)
        for name, value in best_of([checkpoint_callback]).items():
            if self._best.get(name) != value:
                self._best[name] = value
                self.experiment.log({f"best/{name}": value}, step=max(self.experiment.step, 0))

    @guarded
    def finalize(self, status: str) -> None:
        self.attachment.end_training()
        if status == "failed":
            self.attachment.finish(sys.exception())


def autostart() -> None:
    """Lightning was imported under `trainvitals run`: every Trainer made from now on gets the callback."""
    for package in ("lightning.pytorch", "pytorch_lightning"):
        module = sys.modules.get(f"{package}.trainer.trainer")
        if module is not None and package == _lightning.__name__:
            _add_to_every(module.Trainer)


def _add_to_every(trainer: Any) -> None:
    original = trainer.__init__
    if getattr(original, "__trainvitals__", False):
        return

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        callback = LightningCallback()
        callback.attachment = Attachment({}, True, automatic=True)
        self.callbacks.append(callback)

    __init__.__trainvitals__ = True  # type: ignore[attr-defined]
    trainer.__init__ = __init__


# -- helpers


def describe(trainer: Any, module: Any) -> dict[str, Any]:
    """The hyperparameters: of the module, of the data module, and of the Trainer."""
    found: dict[str, Any] = {}
    for part in (getattr(trainer, "datamodule", None), module):
        if part is not None and getattr(part, "hparams", None):
            found.update(part.hparams)
    found["trainer"] = {
        "max_epochs": trainer.max_epochs,
        "max_steps": trainer.max_steps,
        "precision": str(trainer.precision),
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "gradient_clip_val": trainer.gradient_clip_val,
        "strategy": type(trainer.strategy).__name__,
        "devices": trainer.num_devices,
        "num_nodes": trainer.num_nodes,
    }
    found["parameters"] = sum(parameter.numel() for parameter in module.parameters())
    found["trainable_parameters"] = sum(p.numel() for p in module.parameters() if p.requires_grad)
    return found


def best_of(checkpoints: Any) -> dict[str, float]:
    """The best value of what each ModelCheckpoint monitors."""
    return {
        callback.monitor: callback.best_model_score.item()
        for callback in checkpoints
        if getattr(callback, "monitor", None) and getattr(callback, "best_model_score", None) is not None
    }


def _timed(training_step: Any, watch: Any, module: Any) -> Any:
    @functools.wraps(training_step)
    def timed(*args: Any, **kwargs: Any) -> Any:
        watch.moments.forward_begins(module, args, kwargs)
        try:
            return training_step(*args, **kwargs)
        finally:
            watch.moments.forward_ends(sys.exception())

    return timed


def _is_served(trainer: Any, callback: LightningCallback) -> bool:
    """Whether the program added a callback itself, so that the automatic one has nothing to do."""
    others = [item for item in trainer.callbacks if isinstance(item, LightningCallback) and item is not callback]
    return callback.attachment.automatic and bool(others)


def _clients_of(trainer: Any) -> frozenset[str]:
    """The trackers that its loggers log to, by the name of their client."""
    names = " ".join(base.__name__.lower() for logger in trainer.loggers for base in type(logger).__mro__)
    return frozenset(client for client in ("wandb", "mlflow") if f"{client}logger" in names)


def _has_our_logger(trainer: Any) -> bool:
    return any(isinstance(logger, LightningLogger) for logger in trainer.loggers)


def _step_of(trainer: Any) -> int:
    """The number that Lightning gives to the loggers for this batch."""
    return int(trainer.fit_loop.epoch_loop._batches_that_stepped)


def _rate(trainer: Any) -> dict[str, Any]:
    optimizer = next(iter(trainer.optimizers), None)
    return {} if optimizer is None else {"learning_rate": optimizer.param_groups[0]["lr"]}


def _epoch_of(trainer: Any, batch_idx: int) -> float:
    batches = trainer.num_training_batches
    return float(trainer.current_epoch + ((batch_idx + 1) / batches if 0 < batches < float("inf") else 0))

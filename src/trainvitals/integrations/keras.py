"""Keras 3, on TensorFlow, JAX or torch.

    model.fit(..., callbacks=[trainvitals.KerasCallback()])

A step is a batch, continuing the optimizer's iterations; the first is 1. Keras reports the loss and the metrics as
their mean since the start of the epoch, and they are logged as such.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

import keras

from trainvitals.integrations.attachment import Attachment, guarded

if TYPE_CHECKING:
    from trainvitals.integrations import keras_torch

_TRACKERS = {"WandbMetricsLogger": "wandb", "WandbCallback": "wandb", "MlflowCallback": "mlflow"}
"""Callbacks of trackers that report what Keras logs, and their clients."""


class KerasCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Logs a `fit()` to the current run, or starts one with `options` (`project=`, `name=`, `dir=`, any setting).
    `monitor` is the metric whose best value is kept; `mode` is `min`, `max` or `auto`."""

    async_safe = True
    """Keras may report the metrics of a batch in a thread, while the next batch is running."""

    def __init__(self, *, monitor: str = "val_loss", mode: str = "auto", **options: Any) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"mode must be 'auto', 'min' or 'max', not {mode!r}")
        self.attachment = Attachment(options, False)
        self._monitor = monitor
        self._higher = mode == "max" or (mode == "auto" and not monitor.endswith(("loss", "error", "perplexity")))
        self._best: float | None = None
        self._base = 0
        self._epoch = 0
        self._begun: tuple[int, int] | None = None
        self._runs_ahead = keras.backend.backend() == "jax"
        """JAX begins a batch while others are still being computed: a batch ends when its loss can be read."""
        self._in_fit = False
        self._noted: dict[str, Any] = {}
        self._updates: keras_torch.Fit | None = None
        self._tracker_has_batches = False
        """A callback reports to a tracker what we log of batches, and not only of epochs."""

    def note_trackers(self, callbacks: Iterable[Any]) -> None:
        """`callbacks` are those of the program, of which some may report to a tracker."""
        found = {
            _TRACKERS[kind.__name__]: item
            for item in callbacks
            for kind in type(item).__mro__
            if kind.__name__ in _TRACKERS
        }
        self.attachment.reported_to = frozenset(found)
        # MLflow's has Keras' names, under which the numbers of batches and of epochs would be one curve.
        self._tracker_has_batches = any(
            client == "mlflow" or getattr(item, "logging_batch_wise", False) for client, item in found.items()
        )

    # -- the training

    @guarded
    def on_train_begin(self, logs: Any = None) -> None:
        self._base = _iterations(self.model)
        run = self.attachment.begin(describe(self.model, self.params), fresh=self._base == 0)
        if self._base:
            run.event("resume", f"from step {self._base}", resumed_step=self._base)
        self._in_fit = True
        self._note_saves()
        if _is_on_torch():
            from trainvitals.integrations import keras_torch

            self._updates = keras_torch.fits[self.model.optimizer] = keras_torch.Fit()

    @guarded
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._begun = None
        if self._updates is not None:
            self._updates.step = self._base

    @guarded
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._begun is None or not self._runs_ahead:
            self._write_time(batch, now := time.perf_counter_ns())
            self._begun = (batch, now)

    @guarded
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run = self.attachment.run
        if self._runs_ahead and self._begun is not None and batch >= self._begun[0]:
            # Its loss was read just now. Keras calls from several threads: one that overtook another has its time too.
            self._write_time(batch + 1, now := time.perf_counter_ns())
            self._begun = (batch + 1, now)
        if run is not None and logs and not (self._tracker_has_batches and self.attachment.is_logged_by_tracker):
            steps = (self.params or {}).get("steps")
            epoch = self._epoch + ((batch + 1) / steps if steps else 0)
            run.log({**logs, "epoch": epoch}, step=self._base + batch + 1)

    @guarded
    def on_test_begin(self, logs: Any = None) -> None:
        self._end_last_batch()  # the validation that follows is not part of it

    @guarded
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        run = self.attachment.run
        if run is None:
            return
        self._end_last_batch()
        self._base = _iterations(self.model) or run.step
        values = {_rename(key): value for key, value in (logs or {}).items()}
        rate = _learning_rate(self.model)
        if rate is not None:
            values["learning_rate"] = rate
        if not self.attachment.is_logged_by_tracker:
            run.log({**values, "epoch": epoch + 1}, step=self._base)
        run.event("epoch", f"epoch {epoch + 1} finished", epoch=epoch + 1)
        self._keep_best((logs or {}).get(self._monitor))

    @guarded
    def on_train_end(self, logs: Any = None) -> None:
        self._in_fit = False
        for name in self._noted:
            self.model.__dict__.pop(name, None)
        self._noted = {}
        if self._updates is not None:
            self._updates.over = True
        self.attachment.end_training()
        if self.attachment.run is not None:
            self.attachment.run.event("train_end", f"training finished after {self._base} steps")

    @guarded
    def on_test_end(self, logs: Any = None) -> None:
        """`evaluate()`. Inside of `fit()`, on_epoch_end gets the same values as `val_...`; on its own it is of other
        data."""
        if self._in_fit or not logs:
            return
        run = self.attachment.run or self.attachment.begin(describe(self.model, self.params))
        run.log({f"test/{key}": value for key, value in logs.items()}, step=max(run.step, 0))
        run.event("evaluation", "", metrics=dict(logs))

    # -- parts

    def _write_time(self, batch: int, now: int) -> None:
        """The duration of the step that ends where the next one begins, waiting for its data included. With several
        steps per execution it is their mean."""
        run = self.attachment.run
        if self._begun is None or run is None or batch <= self._begun[0]:
            return
        if self._updates is not None and run.watching is not None and run.watching.alive:
            return  # the steps are timed there, with their phases
        before, began = self._begun
        seconds = (now - began) / 1e9 / (batch - before)
        run.write_row(self._base + batch, {"batch_time": seconds}, time.time_ns() // 1000)

    def _end_last_batch(self) -> None:
        if self._begun is not None and not self._runs_ahead:
            self._write_time(self._begun[0] + 1, time.perf_counter_ns())
            self._begun = None

    def _keep_best(self, value: Any) -> None:
        if value is None or math.isnan(value) or self.attachment.run is None:
            return
        if self._best is None or (value > self._best if self._higher else value < self._best):
            self._best = float(value)
            self.attachment.run.log({f"best/{_rename(self._monitor)}": self._best}, step=self._base)

    def _note_saves(self) -> None:
        """Keras does not notify callbacks of a ModelCheckpoint: wrap the two methods it calls, during `fit()` only."""
        run = self.attachment.run
        for name in ("save", "save_weights"):
            original = getattr(self.model, name)
            if run is None or name in self.model.__dict__:
                continue

            @functools.wraps(original)
            def noted(filepath: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
                result = _original(filepath, *args, **kwargs)
                run.event("checkpoint", str(filepath), path=str(filepath))
                return result

            self.model.__dict__[name] = noted  # bypasses Keras' __setattr__, which would track it
            self._noted[name] = original


def autostart() -> None:
    """Keras was imported under `trainvitals run`: every `fit()` and `evaluate()` from now on gets the callback."""
    callbacks = import_module("keras.src.callbacks.callback_list").CallbackList
    original = callbacks.__init__
    if getattr(original, "__trainvitals__", False):
        return

    @functools.wraps(original)
    def __init__(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        original(self, callbacks, *args, **kwargs)
        if kwargs.get("model") is not None and not any(isinstance(item, KerasCallback) for item in self.callbacks):
            callback = KerasCallback()
            callback.attachment = Attachment({}, False, automatic=True)
            callback.note_trackers(self.callbacks)
            callback.set_model(kwargs["model"])
            callback.set_params(self.params)
            self.callbacks.append(callback)

    __init__.__trainvitals__ = True  # type: ignore[attr-defined]
    callbacks.__init__ = __init__
    if _is_on_torch():
        import_module("trainvitals.integrations.keras_torch").autostart()


# -- small questions


def describe(model: Any, params: Mapping[str, Any] | None) -> dict[str, Any]:
    """The hyperparameters: optimizer, loss, epochs, size and backend."""
    found: dict[str, Any] = {"backend": keras.backend.backend(), "model": model.name, "fit": dict(params or {})}
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        found["optimizer"] = optimizer.get_config()
    loss = getattr(model, "loss", None)
    if loss is not None:
        found["loss"] = loss if isinstance(loss, str) else getattr(loss, "name", str(loss))
    if model.built:
        found["parameters"] = model.count_params()
    return found


def _is_on_torch() -> bool:
    return bool(keras.backend.backend() == "torch")


def _rename(key: str) -> str:
    return f"eval/{key.removeprefix('val_')}" if key.startswith("val_") else key


def _iterations(model: Any) -> int:
    optimizer = getattr(model, "optimizer", None)
    return 0 if optimizer is None else int(keras.ops.convert_to_numpy(optimizer.iterations))


def _learning_rate(model: Any) -> float | None:
    optimizer = getattr(model, "optimizer", None)
    return None if optimizer is None else float(keras.ops.convert_to_numpy(optimizer.learning_rate))

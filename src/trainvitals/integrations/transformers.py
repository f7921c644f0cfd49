"""Hugging Face Transformers' `Trainer`, and TRL, whose trainers inherit it.

    trainer = Trainer(..., callbacks=[trainvitals.TransformersCallback()])

Steps have the Trainer's own numbers (`global_step`, the first is 1). Everything the Trainer logs is logged.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.trl_phases import TrainerPhases
from trainvitals.integrations.trl_samples import TrainerSamples
from trainvitals.journal.documents.registration import PhaseNote

STATE_KEY = "trainvitals"
_EVALUATIONS = ("eval", "test", "predict")
_RENAMED = {"grad_norm": "gradient_norm", "train_loss": "train_loss_mean"}


class TransformersCallback(TrainerCallback):  # type: ignore[misc]
    """Logs a `Trainer`'s training to the current run, or starts one with `options` (`project=`, `name=`, `dir=`, any
    setting)."""

    def __init__(self, *, watch: bool | Mapping[str, Any] = True, **options: Any) -> None:
        self.attachment = Attachment(options, watch)
        self.state: Any = None
        self._best: float | None = None
        self._phases: TrainerPhases | None = None
        self._samples: TrainerSamples | None = None
        """Of a training; only TRL's for reinforcement learning has any."""
        _given.add(self)

    # -- the training

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.state = state
        self._begin(args, state, model, kwargs.get("optimizer"))

    def _begin(self, args: Any, state: Any, model: Any, optimizer: Any) -> None:
        earlier = (state.stateful_callbacks or {}).get(STATE_KEY) if state.global_step else None
        run = self.attachment.begin(
            describe(args, state, model),
            resume=(earlier or {}).get("run"),
            fresh=state.global_step == 0,
        )
        # Checkpoints contain the id of their run, so that a training resumed from one continues it.
        if isinstance(state.stateful_callbacks, dict):
            state.stateful_callbacks[STATE_KEY] = {"run": str(run.folder)}
        self._best = state.best_metric
        if state.global_step:
            run.event("resume", f"from step {state.global_step}", resumed_step=state.global_step)
        self._note_reporting(args)
        self._phases = TrainerPhases(self._note_phase)
        self._samples = TrainerSamples(run, state)
        self.attachment.watch(model, optimizer)

    @guarded
    def _note_phase(self, phase: PhaseNote) -> None:
        if self.attachment.run is not None:
            self.attachment.run.note_phase(phase)

    def _note_reporting(self, args: Any) -> None:
        given = getattr(args, "report_to", None) or ()
        self.attachment.reported_to = frozenset([given] if isinstance(given, str) else given)

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.attachment.watching is not None:
            self.attachment.watching.name_step(state.global_step, state.epoch)
        if self._phases is not None:
            self._phases.end_step()

    @guarded
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._phases is not None:
            self._phases.discard()

    @guarded
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.attachment.run is not None and state.epoch is not None:
            self.attachment.run.event("epoch", f"epoch {state.epoch:g} finished", epoch=state.epoch)

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.attachment.end_training()
        if self._phases is not None:
            self._phases.close()
        if self._samples is not None:
            self._samples.close()
        if self.attachment.run is not None:
            self.attachment.run.event("train_end", f"training finished after {state.global_step} steps")

    # -- what it logs

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        run = self.attachment.run
        if run is None and logs:  # evaluate() without train()
            run = self.attachment.begin(describe(args, state, kwargs.get("model")))
        self._note_reporting(args)
        if run is not None and logs and not self.attachment.is_logged_by_tracker:
            timed = self._phases.take(logs) if self._phases is not None else {}
            run.log({**dict(translate(logs, self.attachment.reports)), **timed}, step=state.global_step)

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        if self.attachment.run is not None:
            self.attachment.run.event("evaluation", "", metrics=dict(translate(metrics or {}, False)))

    @guarded
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """`predict()` logs nothing by itself, unlike `evaluate()`."""
        if metrics:
            self.on_log(args, state, control, logs=metrics, **kwargs)

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        run = self.attachment.run
        if run is None:
            return
        if state.is_world_process_zero:
            path = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            run.event("checkpoint", str(path), path=str(path), best=state.best_model_checkpoint)
        if state.best_metric is not None and state.best_metric != self._best:
            self._best = state.best_metric
            metric = dict(translate({_with_prefix(args.metric_for_best_model): self._best}, False))
            for name, value in metric.items():
                run.log({f"best/{name}": value}, step=state.global_step)


class AutomaticCallback(TransformersCallback):
    """What `trainvitals run` adds to every Trainer: it does nothing if the program added a callback itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attachment = Attachment({}, True, automatic=True)
        self._waits: tuple[Any, Any] | None = None
        _given.discard(self)

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self._waits = (model, kwargs.get("optimizer"))  # the callbacks of the program begin after this one

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._waits is None:
            return
        (model, optimizer), self._waits = self._waits, None
        if not any(other.state is state for other in _given):
            self._begin(args, state, model, optimizer)

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if self.attachment.run is not None:
            super().on_log(args, state, control, logs=logs, **kwargs)


_given: weakref.WeakSet[TransformersCallback] = weakref.WeakSet()


def autostart() -> None:
    """transformers was imported under `trainvitals run`: every Trainer made from now on gets the callback."""
    import_module("transformers.trainer").DEFAULT_CALLBACKS.append(AutomaticCallback)


def translate(logs: Mapping[str, Any], reported: bool) -> Iterator[tuple[str, Any]]:
    """The Trainer's names as ours: `eval_loss` is `eval/loss`, `grad_norm` is `gradient_norm`.

    Where the watch reports every step's own loss, the Trainer's is `mean_loss`: it is the mean since it last logged.
    """
    for key, value in logs.items():
        prefix, _, rest = key.partition("_")
        if prefix in _EVALUATIONS and rest:
            yield f"{prefix}/{rest}", value
        elif not reported:
            yield _RENAMED.get(key, key), value
        elif key == "loss":
            yield "mean_loss", value
        elif key not in ("grad_norm", "learning_rate", "epoch"):  # the same values are in the watch's line
            yield _RENAMED.get(key, key), value


def describe(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """The hyperparameters: TrainingArguments, the model's configuration, its size, and PEFT's if there is one."""
    found: dict[str, Any] = {"training_arguments": args.to_sanitized_dict()}
    if state.trial_name is not None:
        found |= {"trial_name": state.trial_name, "trial_params": state.trial_params}
    if model is None:
        return found
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        found["model"] = config.to_dict()
    found["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    found["trainable_parameters"] = sum(p.numel() for p in model.parameters() if p.requires_grad)
    peft = getattr(model, "peft_config", None)
    if isinstance(peft, Mapping):
        found["peft"] = {str(name): item.to_dict() for name, item in peft.items()}
    return found


def _with_prefix(metric: str | None) -> str:
    name = metric or "loss"
    return name if name.startswith("eval_") else f"eval_{name}"

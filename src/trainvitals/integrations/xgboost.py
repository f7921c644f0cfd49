"""XGBoost.

    xgboost.train(..., callbacks=[trainvitals.XGBoostCallback()])

A step is a boosting round; the first is 0. The metrics of each data set in `evals` are logged as `<data set>/<metric>`.
Tested in tests/integrations/test_rounds.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from xgboost.callback import TrainingCallback

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.rounds import RoundLog, is_main_process, make_automatic


class XGBoostCallback(TrainingCallback):  # type: ignore[misc]
    """Logs `xgboost.train`, `xgboost.cv` and the estimators to the current run, or starts one with `options`
    (`project=`, `name=`, `dir=`, any setting)."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._attach(Attachment(options, False))

    def _attach(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self._rounds = RoundLog(attachment)

    def before_training(self, model: Any) -> Any:
        self._begin(model)
        return model

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        self._end_round(epoch, evals_log)
        return False

    @guarded
    def _begin(self, model: Any) -> None:
        self._rounds.begin("a boosting", describe(model))

    @guarded
    def _end_round(self, number: int, history: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
        values = {}
        for data, metrics in history.items():
            for name, scores in metrics.items():
                # Cross-validation has a mean and a standard deviation.
                score = scores[-1]
                values[f"{data}/{name}"] = score[0] if isinstance(score, tuple) else score
        self._rounds.end_round(number, values)


def describe(model: Any) -> dict[str, Any]:
    """The parameters, as the booster parsed them; none for a cross-validation, which has a booster for each fold."""
    if not hasattr(model, "save_config"):
        return {}
    import json

    learner = json.loads(model.save_config()).get("learner", {})
    found = {"objective": learner.get("objective", {}).get("name")}
    found |= learner.get("gradient_booster", {}).get("tree_train_param", {})
    return {key: value for key, value in found.items() if value is not None}


_automatic: XGBoostCallback | None = None


def _find_automatic() -> XGBoostCallback:
    """One for the whole program: the next training continues in the same run."""
    global _automatic
    if _automatic is None:
        _automatic = XGBoostCallback()
        _automatic._attach(make_automatic())
    return _automatic


def autostart() -> None:
    """XGBoost was imported under `trainvitals run`: every training from now on gets the callback."""
    container = import_module("xgboost.callback").CallbackContainer
    original = container.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_main_process() and not any(isinstance(item, XGBoostCallback) for item in self.callbacks):
            self.callbacks.insert(0, _find_automatic())  # first: one that ends the training ends the round for the rest

    container.__init__ = __init__

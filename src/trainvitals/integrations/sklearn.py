"""scikit-learn fits that can be followed live, under `trainvitals run`: multi-layer perceptrons and gradient boosting.
The loops of other estimators are in compiled code without callbacks.

A step is an epoch or a boosting stage; the first is 0. Tested in tests/integrations/test_rounds.py.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from trainvitals.integrations.attachment import guarded
from trainvitals.integrations.rounds import RoundLog, is_main_process, make_automatic
from trainvitals.trainer.tracebacks import drop_frame


class Fits:
    """The fits of this program."""

    def __init__(self) -> None:
        self.attachment = make_automatic()
        self._rounds = RoundLog(self.attachment)

    @guarded
    def begin(self, estimator: Any, is_timed: bool) -> None:
        name = type(estimator).__name__
        config = {"estimator": name, **estimator.get_params(deep=False)}
        self._rounds.begin(name, config, is_timed=is_timed)

    @guarded
    def end_epoch(self, network: Any) -> None:
        """Of a perceptron."""
        epoch = len(network.loss_curve_)
        if epoch == 1:
            self.begin(network, False)
        values = {"loss": network.loss_, "epoch": epoch}
        rate = getattr(getattr(network, "_optimizer", None), "learning_rate", None)
        if rate is not None:
            values["learning_rate"] = rate
        if getattr(network, "validation_scores_", None):
            values["eval/score"] = network.validation_scores_[-1]
        self._rounds.end_round(epoch - 1, values)

    @guarded
    def end_stage(self, number: int, booster: Any) -> None:
        """Of gradient boosting."""
        values = {"loss": booster.train_score_[number], "learning_rate": booster.learning_rate}
        self._rounds.end_round(number, values)


@functools.cache
def _find_fits() -> Fits:
    return Fits()


def autostart() -> None:
    """One of the two modules was imported; the other may follow."""
    perceptrons = sys.modules.get("sklearn.neural_network._multilayer_perceptron")
    if perceptrons is not None:
        _wrap_once(perceptrons.BaseMultilayerPerceptron, "_update_no_improvement_count", _wrap_epoch_end)
    boosting = sys.modules.get("sklearn.ensemble._gb")
    if boosting is not None:
        _wrap_once(boosting.BaseGradientBoosting, "fit", _wrap_fit)


def _wrap_once(owner: Any, name: str, wrap: Any) -> None:
    original = getattr(owner, name)
    if not hasattr(original, "__trainvitals__"):
        ours = wrap(original)
        ours.__trainvitals__ = True
        setattr(owner, name, ours)


def _wrap_epoch_end(original: Any) -> Any:
    @functools.wraps(original)
    def ended(network: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(network, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if is_main_process():
            _find_fits().end_epoch(network)
        return result

    return ended


def _wrap_fit(original: Any) -> Any:
    @functools.wraps(original)
    def fit(booster: Any, X: Any, y: Any, sample_weight: Any = None, monitor: Any = None) -> Any:
        def look(number: int, *args: Any) -> Any:
            _find_fits().end_stage(number, booster)
            return monitor(number, *args) if monitor is not None else False

        try:
            if not is_main_process():
                return original(booster, X, y, sample_weight, monitor)
            _find_fits().begin(booster, True)
            return original(booster, X, y, sample_weight, look)
        except BaseException as error:
            drop_frame(error)
            raise

    return fit

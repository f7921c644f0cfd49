"""LightGBM.

    lightgbm.train(..., callbacks=[trainvitals.LightGBMCallback()])

A step is a boosting round; the first is 0. The metrics of each data set in `valid_sets` are logged as
`<data set>/<metric>`. Tested in tests/integrations/test_rounds.py.
"""

from __future__ import annotations

import functools
import inspect
from importlib import import_module
from typing import Any

from trainvitals.integrations.attachment import Attachment, guarded
from trainvitals.integrations.rounds import RoundLog, is_main_process, make_automatic
from trainvitals.trainer.tracebacks import drop_frame


class LightGBMCallback:
    """Logs `lightgbm.train`, `lightgbm.cv` and the estimators to the current run, or starts one with `options`
    (`project=`, `name=`, `dir=`, any setting)."""

    order = 0
    """Before LightGBM's own: the one for early stopping raises an exception."""
    before_iteration = False

    def __init__(self, **options: Any) -> None:
        self._attach(Attachment(options, False))

    def _attach(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self._rounds = RoundLog(attachment)

    @guarded
    def __call__(self, env: Any) -> None:
        if env.iteration == env.begin_iteration:  # LightGBM calls only after a round: its start is unknown
            self._rounds.begin("a boosting", {key: str(value) for key, value in env.params.items()}, is_timed=False)
        results = env.evaluation_result_list or ()
        values = {f"{data}/{name}": score for data, name, score, *_ in results}
        self._rounds.end_round(env.iteration - env.begin_iteration, values)


@functools.cache
def _find_automatic() -> LightGBMCallback:
    """One for the whole program: the next training continues in the same run."""
    callback = LightGBMCallback()
    callback._attach(make_automatic())
    return callback


def autostart() -> None:
    """LightGBM was imported under `trainvitals run`: every training from now on gets the callback."""
    engine = import_module("lightgbm.engine")
    for name in ("train", "cv"):
        original = getattr(engine, name)
        ours = _wrap(original)
        for module in ("lightgbm", "lightgbm.engine", "lightgbm.sklearn"):
            owner = import_module(module)
            if getattr(owner, name, None) is original:
                setattr(owner, name, ours)


def _wrap(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
            callbacks = list(given.arguments.get("callbacks") or ())
            if is_main_process() and not any(isinstance(item, LightGBMCallback) for item in callbacks):
                given.arguments["callbacks"] = [*callbacks, _find_automatic()]
            return original(*given.args, **given.kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return train

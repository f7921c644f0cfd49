"""Lightning's `MLFlowLogger` below `trainvitals run`: it takes the address of a server from the environment when it is
imported, before MLflow is, and has a folder of its own where there is none. Tested in tests/trainer/test_capture.py."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from typing import Any

_MODULES = ("lightning.pytorch.loggers.mlflow", "pytorch_lightning.loggers.mlflow")
_PLACES = ("tracking_uri", "save_dir")


def autostart() -> None:
    """A logger that is given no place logs where MLflow's client does."""
    for module in _MODULES:
        logger = getattr(sys.modules.get(module), "MLFlowLogger", None)
        if logger is not None and not hasattr(logger.__init__, "__trainvitals__"):
            logger.__init__ = _pointing(logger.__init__)


def _pointing(original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def __init__(*args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(*args, **kwargs).arguments
            if not any(given.get(name) for name in _PLACES):
                import mlflow  # noqa: F401 - it is pointed here as it is imported

                if os.environ.get("MLFLOW_TRACKING_URI"):
                    kwargs["tracking_uri"] = os.environ["MLFLOW_TRACKING_URI"]
        except (ImportError, TypeError):
            pass  # the logger itself raises, in its own words
        original(*args, **kwargs)

    __init__.__trainvitals__ = True  # type: ignore[attr-defined]
    return __init__

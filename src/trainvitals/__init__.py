"""trainvitals watches the hardware and the training together.

    import trainvitals

    run = trainvitals.init(project="mnist", config={"lr": 1e-3})
    run.log({"loss": loss}, step=step)
    run.finish()

This module is a menu: every name is imported when it is first used, so `import trainvitals` costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # true for type checkers; importing `typing` for it would be all that this import costs

if TYPE_CHECKING:
    from trainvitals.errors import TrainvitalsError as TrainvitalsError
    from trainvitals.integrations.accelerate import AccelerateTracker as AccelerateTracker
    from trainvitals.integrations.classic.analyzer import PerformanceAlerting as PerformanceAlerting
    from trainvitals.integrations.classic.analyzer import PerformanceAnalyzer as PerformanceAnalyzer
    from trainvitals.integrations.classic.monitors import GPUMonitor as GPUMonitor
    from trainvitals.integrations.classic.monitors import GPUResourceMonitor as GPUResourceMonitor
    from trainvitals.integrations.classic.monitors import SystemMonitor as SystemMonitor
    from trainvitals.integrations.classic.tensorboard import TensorBoardMonitor as TensorBoardMonitor
    from trainvitals.integrations.classic.trainer import GPUMonitoringCallback as GPUMonitoringCallback
    from trainvitals.integrations.classic.training import TrainingMetrics as TrainingMetrics
    from trainvitals.integrations.classic.training import TrainingMonitor as TrainingMonitor
    from trainvitals.integrations.classic.training import TrainingMonitorCallback as TrainingMonitorCallback
    from trainvitals.integrations.keras import KerasCallback as KerasCallback
    from trainvitals.integrations.lightgbm import LightGBMCallback as LightGBMCallback
    from trainvitals.integrations.lightning import LightningCallback as LightningCallback
    from trainvitals.integrations.lightning import LightningLogger as LightningLogger
    from trainvitals.integrations.ray.train import RayTrainCallback as RayTrainCallback
    from trainvitals.integrations.ray.tune import RayTuneCallback as RayTuneCallback
    from trainvitals.integrations.transformers import TransformersCallback as TransformersCallback
    from trainvitals.integrations.xgboost import XGBoostCallback as XGBoostCallback
    from trainvitals.journal.reader import RunReader as RunReader
    from trainvitals.journal.reader import open_run as open_run
    from trainvitals.journal.run_info import list_runs as list_runs
    from trainvitals.ray import monitor_ray_cluster as monitor_ray_cluster
    from trainvitals.trainer.current import current_run as current_run
    from trainvitals.trainer.current import finish as finish
    from trainvitals.trainer.current import log as log
    from trainvitals.trainer.run import Run as Run
    from trainvitals.trainer.showing import show as show
    from trainvitals.trainer.start import init as init

__version__ = "0.1.0"

_MENU = {
    "init": "trainvitals.trainer.start",
    "log": "trainvitals.trainer.current",
    "finish": "trainvitals.trainer.current",
    "current_run": "trainvitals.trainer.current",
    "show": "trainvitals.trainer.showing",
    "Run": "trainvitals.trainer.run",
    "RunReader": "trainvitals.journal.reader",
    "open_run": "trainvitals.journal.reader",
    "list_runs": "trainvitals.journal.run_info",
    "TrainvitalsError": "trainvitals.errors",
    "TransformersCallback": "trainvitals.integrations.transformers",
    "LightningCallback": "trainvitals.integrations.lightning",
    "LightningLogger": "trainvitals.integrations.lightning",
    "KerasCallback": "trainvitals.integrations.keras",
    "XGBoostCallback": "trainvitals.integrations.xgboost",
    "LightGBMCallback": "trainvitals.integrations.lightgbm",
    "AccelerateTracker": "trainvitals.integrations.accelerate",
    "RayTrainCallback": "trainvitals.integrations.ray.train",
    "RayTuneCallback": "trainvitals.integrations.ray.tune",
    "GPUMonitor": "trainvitals.integrations.classic.monitors",
    "GPUResourceMonitor": "trainvitals.integrations.classic.monitors",
    "SystemMonitor": "trainvitals.integrations.classic.monitors",
    "TrainingMonitor": "trainvitals.integrations.classic.training",
    "TrainingMetrics": "trainvitals.integrations.classic.training",
    "TensorBoardMonitor": "trainvitals.integrations.classic.tensorboard",
    "PerformanceAnalyzer": "trainvitals.integrations.classic.analyzer",
    "PerformanceAlerting": "trainvitals.integrations.classic.analyzer",
    "TrainingMonitorCallback": "trainvitals.integrations.classic.training",
    "GPUMonitoringCallback": "trainvitals.integrations.classic.trainer",
    "monitor_ray_cluster": "trainvitals.ray",
}

__all__ = ["__version__", *_MENU]


def __getattr__(name: str) -> object:
    if name in _MENU:
        from importlib import import_module

        try:
            value: object = getattr(import_module(_MENU[name]), name)
        except ModuleNotFoundError as error:
            raise _explain_missing(name, error) from None
    elif name == "ray":  # a module with functions for the user
        from importlib import import_module

        value = import_module("trainvitals.ray")
    else:
        value = _find_integration(name)
    globals()[name] = value
    return value


def _explain_missing(name: str, error: ModuleNotFoundError) -> ModuleNotFoundError:
    """What to install for a callback whose framework is missing."""
    *_, room, extra = _MENU[name].split(".")
    extra = {"classic": "transformers", "ray": "ray"}.get(room, extra)
    if (error.name or "trainvitals").partition(".")[0] == "trainvitals":
        return error
    text = f"{name} needs {error.name}, which is not installed: pip install 'trainvitals[{extra}]'"
    return ModuleNotFoundError(text, name=error.name)


def _find_integration(name: str) -> type:
    """The callback class of another package. Only names that look like a class are looked up: `from trainvitals import
    settings` asks for an attribute first, too."""
    reason = ""
    if name[:1].isupper():
        from trainvitals.integrations import REGISTRY

        found = REGISTRY.get(name)
        if found is not None:
            return found
        error = REGISTRY.error(name)
        reason = f": its plugin cannot be used: {error}" if error is not None else ""
    raise AttributeError(f"module 'trainvitals' has no attribute '{name}'{reason}")


def __dir__() -> list[str]:
    return sorted(__all__)

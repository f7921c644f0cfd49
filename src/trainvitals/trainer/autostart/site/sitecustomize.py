"""Runs when a Python under `trainvitals run` starts: waits for torch, a framework or a tracker to be imported, or for a
failure.

Every Python started there pays for this file, so it imports nothing, not even trainvitals, until one of the modules
in WANTED has been imported by the program. Understood by any Python 3, does nothing in one that is too old.
Tested in tests/trainer/test_autostart.py.
"""

import os
import sys

# A module to wait for, and our module whose `autostart()` installs the hook once it is imported.
WANTED = {
    "torch": "trainvitals.trainer.autostart.first_step",
    "transformers.trainer": "trainvitals.integrations.transformers",
    "lightning.pytorch.trainer.trainer": "trainvitals.integrations.lightning",
    "pytorch_lightning.trainer.trainer": "trainvitals.integrations.lightning",
    "keras": "trainvitals.integrations.keras",
    "flax.nnx": "trainvitals.integrations.flax",
    "xgboost": "trainvitals.integrations.xgboost",
    "lightgbm": "trainvitals.integrations.lightgbm",
    "sklearn.neural_network._multilayer_perceptron": "trainvitals.integrations.sklearn",
    "wandb": "trainvitals.trainer.autostart.wandb",
    "mlflow": "trainvitals.trainer.autostart.mlflow",
    "lightning.pytorch.loggers.mlflow": "trainvitals.trainer.autostart.lightning_mlflow",
    "pytorch_lightning.loggers.mlflow": "trainvitals.trainer.autostart.lightning_mlflow",
    "sklearn.ensemble._gb": "trainvitals.integrations.sklearn",
    "tensorboard.summary.writer.event_file_writer": "trainvitals.trainer.autostart.program_files",
    "tensorboardX.event_file_writer": "trainvitals.trainer.autostart.program_files",
    "tensorflow.python.ops.summary_ops_v2": "trainvitals.trainer.autostart.program_files",
    "lightning.fabric.loggers.csv_logs": "trainvitals.trainer.autostart.program_files",
    "lightning_fabric.loggers.csv_logs": "trainvitals.trainer.autostart.program_files",
    "keras.src.callbacks.csv_logger": "trainvitals.trainer.autostart.program_files",
}


class Finder:
    """First in `sys.meta_path`; finds nothing itself, and steps aside for every name it does not wait for."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        hook = WANTED.get(name)
        if hook is None:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(name, path, target)
                if spec is not None:
                    if hasattr(spec.loader, "exec_module"):
                        spec.loader = Loader(spec.loader, hook)  # type: ignore[no-untyped-call, assignment]
                    return spec
        return None


class Loader:
    """Loads with the real loader, then installs the hook. The module never sees anything but its real loader."""

    def __init__(self, loader, hook):  # type: ignore[no-untyped-def]
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name):  # type: ignore[no-untyped-def]
        return getattr(self._loader, name)

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return self._loader.create_module(spec)

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        try:
            self._loader.exec_module(module)
        except BaseException as error:
            _drop_frame(error)
            raise
        try:
            from trainvitals.trainer.autostart import place
        except ImportError:
            return  # an environment without trainvitals, or with an older one
        place(self._hook, module.__name__)


def _drop_frame(error: BaseException) -> None:
    """`trainvitals.trainer.tracebacks.drop_frame`, without the import."""
    trace = error.__traceback__
    BaseException.with_traceback(error, trace.tb_next if trace else None)


class Ending:
    """Notes why the program fails: an exit code alone says little."""

    def __init__(self) -> None:
        # Built into the interpreter, all three.
        import atexit
        import time
        from _thread import get_ident

        self._began = time.time()
        self._get_thread = get_ident
        self._main_thread = get_ident()
        self._exited = False
        atexit.register(self._at_exit)

    def wrap_exit(self):  # type: ignore[no-untyped-def]
        """A replacement for `sys.exit`; pickled, it is `sys.exit` wherever it is loaded."""
        original = sys.exit

        def exit(*status):  # type: ignore[no-untyped-def]
            try:
                if len(status) == 1 and not (status[0] is None or (isinstance(status[0], int) and status[0] == 0)):
                    self._note_exit(status[0])
                original(*status)
            except BaseException as error:
                _drop_frame(error)
                raise

        exit.__module__, exit.__qualname__, exit.__doc__ = "sys", "exit", original.__doc__
        return exit

    def _note_exit(self, status: object) -> None:
        if self._get_thread() != self._main_thread:
            return  # it ends a thread only
        try:
            from trainvitals.trainer.autostart.ending import note_exit

            note_exit(status, sys._getframe(2))
            self._exited = True
        except Exception:  # noqa: BLE001, S110 - the boundary around the user's program
            pass

    def _at_exit(self) -> None:
        if not self._exited and getattr(sys, "last_value", None) is None:
            return
        try:
            from trainvitals.trainer.autostart.ending import write_failure

            write_failure(self._began)
        except Exception:  # noqa: BLE001, S110 - an environment without trainvitals, or with an older one
            pass


def _pass_on() -> None:
    """Run the sitecustomize that this one hides, as if it had been found."""
    # What importlib.machinery and importlib.util offer, without the cost of importing them.
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would cost 3 ms of every start
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or ".") != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if sys.version_info >= (3, 11) and os.environ.get("TRAINVITALS_RUN_DIR"):
    sys.meta_path.insert(0, Finder())
    sys.exit = Ending().wrap_exit()  # type: ignore[no-untyped-call]
_pass_on()

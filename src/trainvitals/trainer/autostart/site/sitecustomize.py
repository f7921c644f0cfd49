"""Runs when a Python below `trainvitals run` starts. Understood by any Python 3, does nothing in an older one."""

import os
import sys


def _prepare() -> None:
    if sys.version_info < (3, 11) or not os.environ.get("TRAINVITALS_RUN_DIR"):
        return
    try:
        from trainvitals.trainer.autostart import imports
    except ImportError:
        return  # an environment without trainvitals, or with an older one
    imports.install()


def _pass_on() -> None:
    """Run the sitecustomize that this one hides, as if it had been found."""
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    here = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120 - pathlib would cost 3 ms of every start
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.realpath(p or ".") != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_prepare()
_pass_on()

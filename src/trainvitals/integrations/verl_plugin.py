"""The backend `trainvitals` of verl's `Tracking`, with no code in the program:

    trainer.logger='["console","trainvitals"]'

`import verl` loads this through the entry point `verl.plugins`, in every Ray worker: it adds the name to verl's list of
backends and wraps three methods, and nothing else happens until a `Tracking` with that backend is made. That is once
per job, in the actor that runs the training. Tested in tests/integrations/test_verl.py.
"""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any

NAME = "trainvitals"


def install(tracking: type) -> None:
    """Make `trainvitals` a backend of this `Tracking`; a second time, nothing happens."""
    backends: Any = getattr(tracking, "supported_backend", None)
    if not isinstance(backends, list) or NAME in backends:
        return
    backends.append(NAME)
    original_init, original_finish = tracking.__init__, getattr(tracking, "finish", None)  # type: ignore[misc]

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        _begin(self, *args, **kwargs)

    setattr(tracking, "__init__", init)  # noqa: B010 - mypy knows no other way
    if original_finish is None:  # before 0.9 nothing is finished: the run ends with the process
        return

    @functools.wraps(original_finish)
    def finish(self: Any, exit_code: int = 0) -> None:
        try:
            original_finish(self, exit_code)
        finally:
            logger = getattr(self, "logger", {}).get(NAME)
            if logger is not None:
                logger.finish(exit_code)

    setattr(tracking, "finish", finish)  # noqa: B010
    original_del = getattr(tracking, "__del__", None)
    if original_del is None:
        return

    @functools.wraps(original_del)
    def forget(self: Any) -> None:
        # Before verl's own, which calls `finish()` also if an exception has ended the training.
        logger = getattr(self, "logger", {}).pop(NAME, None)
        try:
            original_del(self)
        finally:
            if logger is not None:
                logger.leave()

    setattr(tracking, "__del__", forget)  # noqa: B010


def _begin(
    self: Any,
    project_name: Any = None,
    experiment_name: Any = None,
    default_backend: Any = "console",
    config: Any = None,
    *args: Any,
    **kwargs: Any,
) -> None:
    backends = [default_backend] if isinstance(default_backend, str) else default_backend
    if NAME not in backends:
        return
    try:
        from trainvitals.integrations.verl import VerlLogger

        self.logger[NAME] = VerlLogger(project_name, experiment_name, config)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with us, the training begins
        from trainvitals.stderr import print_line

        print_line(f"this training is not logged: {error}")


def _find_tracking() -> type | None:
    try:
        found: type = import_module("verl.utils.tracking").Tracking
    except (ImportError, AttributeError):  # loaded without verl, or by a verl that has moved it
        return None
    return found


if (_tracking := _find_tracking()) is not None:
    install(_tracking)

"""Errors under the names that W&B gives them. Tested in tests/wandb_drop_in/test_surface.py."""

from __future__ import annotations

from trainvitals.errors import TrainvitalsError


class Error(TrainvitalsError):
    """Base of all."""


class CommError(Error):
    """Never raised: nothing is sent."""


class UsageError(Error):
    """A call that makes no sense."""


def __getattr__(name: str) -> type[Error]:
    """Others of W&B, for programs that handle them: never raised."""
    if name.startswith("_"):
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return type(name, (Error,), {})

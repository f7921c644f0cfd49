"""`import wandb` below `trainvitals run`. Tested in tests/trainer/test_capture.py."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainvitals.trackers.intake.keys import is_program_address, make_wandb_env
from trainvitals.trainer.autostart import capture

CONFIGURED = (
    *("WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_MODE", "WANDB_DISABLED", "WANDB_IDENTITY_TOKEN_FILE"),
    *("WANDB_SERVICE", "WANDB_SWEEP_ID"),
)
"""Variables with which somebody has set up the client."""
_SETTINGS = ("base_url", "api_key", "mode", "disabled", "entity")
_ACCOUNT = ("api_key", "base_url")
_OFFLINE = ("offline", "dryrun")


def autostart() -> None:
    """W&B's client is there: point it here, unless it is set up."""
    if not capture.is_wanted():
        return
    made = capture.keep_pointed("wandb")
    if not made and not is_configured(os.environ):
        made = capture.point_here("wandb", make_wandb_env)
    _follow(sys.modules["wandb"], made)


def is_configured(environ: Mapping[str, str]) -> bool:
    """Whether there is an account, a key, a server or a mode for the client."""
    if any(environ.get(name) for name in CONFIGURED):
        return True
    home = Path(environ.get("HOME") or Path.home())
    netrc = (Path(environ["NETRC"]) if environ.get("NETRC") else home / ".netrc", home / "_netrc")
    if any("wandb" in _read(path) for path in netrc):
        return True
    config = Path(environ["WANDB_CONFIG_DIR"]) if environ.get("WANDB_CONFIG_DIR") else home / ".config" / "wandb"
    folder = Path(environ.get("WANDB_DIR") or ".") / "wandb"
    lines = [line for path in (config, folder) for line in _read(path / "settings").splitlines()]
    return any(line.partition("=")[0].strip() in _SETTINGS for line in lines)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _follow(wandb: Any, made: Mapping[str, str]) -> None:
    """A program that gives the client a key or a server of its own has an account, and that is where it logs to."""
    login, init = wandb.login, wandb.init

    @functools.wraps(login)
    def give_way_at_login(*args: Any, **kwargs: Any) -> Any:
        if any(value for value in (*args[1:], kwargs.get("key"), kwargs.get("host"))):
            capture.withdraw(made)
        return login(*args, **kwargs)

    @functools.wraps(init)
    def give_way_at_init(*args: Any, **kwargs: Any) -> Any:
        is_ours = capture.is_pointed_here("wandb")
        if _names_account(kwargs.get("settings")) or (is_ours and not capture.is_answered("wandb")):
            capture.withdraw(made)
        run = init(*args, **kwargs)
        capture.guard(_note_run, run)
        return run

    wandb.login, wandb.init = give_way_at_login, give_way_at_init


def _note_run(run: Any) -> None:
    """A run has begun, here or elsewhere."""
    mode = run.settings.mode
    if mode != "disabled" and (mode in _OFFLINE or not is_program_address(run.settings.base_url)):
        capture.copy_from("wandb", run.settings.sync_file)


def _names_account(settings: Any) -> bool:
    """Whether `wandb.Settings`, or a mapping in its place, was given a key or a server."""
    if isinstance(settings, Mapping):
        return any(settings.get(name) for name in _ACCOUNT)
    given = getattr(settings, "model_fields_set", ("api_key",))  # older ones do not note what was given
    return any(name in given and getattr(settings, name, None) for name in _ACCOUNT)

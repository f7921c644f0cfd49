"""A program below `trainvitals run` imports the client of another tracker for which nobody has set up a server: its
client is pointed at a process of ours, which writes what it logs into the run of the command.

Whoever has an account, a key, a server or a folder for the client keeps them: nothing is redirected then, and a line
says so when the client begins a run; the agent copies the numbers that the client keeps on this machine. If anything
goes wrong here, the client behaves as it would without us.
Tested in tests/trainer/test_capture.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.stderr import print_line
from trainvitals.trackers.intake.keys import find_program_address, has_own_key, list_ours, make_program_path

_OFF = "to turn this off: TRAINVITALS_CAPTURE_TRACKERS=0"

MakeEnv = Callable[[str, str | None], dict[str, str]]

_told: set[str] = set()


def is_wanted() -> bool:
    """Whether this is a program below `trainvitals run`, and the setting does not say not to."""
    from trainvitals.settings import resolve

    return bool(os.environ.get("TRAINVITALS_RUN_DIR")) and resolve().capture_trackers


def keep_pointed(client: str) -> dict[str, str]:
    """The variables with which a program that this one was started by has pointed the client into the run. Empty if
    there is none, or if somebody has given the client a key of theirs since, which is not for us."""
    if not is_pointed_here(client):
        return {}
    from trainvitals.trackers.intake.process import note_client, read_token

    token = read_token()
    made = {name: os.environ[name] for name in list_ours(os.environ, token, [client])}
    if token is not None and has_own_key(client, os.environ, token):
        withdraw(made)
        return {}
    note_client()
    return made


def point_here(client: str, make_env: MakeEnv) -> dict[str, str]:
    """Set the variables with which the client logs into this run. Which were set."""
    from trainvitals.trackers.intake.process import ensure_intake, note_client
    from trainvitals.trainer import ranks

    if not _has_server():
        print_line(f"what this program logs with {client} is not captured: pip install 'trainvitals[web]'; {_OFF}")
        return {}
    note_client()
    listener = ensure_intake()
    if listener is None:
        return {}
    rank = ranks.find_rank(os.environ)
    path = make_program_path(Path(os.environ["TRAINVITALS_RUN_DIR"]), rank.rank, os.getpid())
    made = make_env(listener.address + path, listener.token)
    os.environ.update(made)
    if rank.rank == 0:
        print_line(f"what this program logs with {client} goes into this run, as no server is set up for it; {_OFF}")
    return made


def is_answered(client: str) -> bool:
    """Whether the process that the client was pointed at answers, now that it is needed; started again if it died."""
    from trainvitals.trackers.intake.process import ensure_intake

    try:
        listener = ensure_intake()
    except Exception:  # noqa: BLE001 - the boundary around the user's program
        listener = None
    pointed = find_program_address(client, os.environ)
    if listener is not None and pointed is not None and pointed.startswith(f"{listener.address}/"):
        return True
    print_line(f"what this program logs with {client} is not captured: nothing listens for it any more")
    return False


def _has_server() -> bool:
    from importlib.util import find_spec

    return find_spec("starlette") is not None and find_spec("uvicorn") is not None


def is_pointed_here(client: str) -> bool:
    """Whether the program has imported this client, and it logs into this run."""
    return find_program_address(client, os.environ) is not None


def guard(work: Callable[..., None], *given: Any) -> None:
    """Do something of ours in a call of the program's."""
    try:
        work(*given)
    except Exception as error:  # noqa: BLE001 - the boundary around the user's program
        from trainvitals.trainer.autostart.trouble import note_trouble

        note_trouble(f"a run of a tracker is not looked at: {error!r:.300}")


def copy_from(client: str, path: str | None, run: str = "") -> None:
    """The client has begun a run that is not ours: the agent copies its numbers from where the client keeps it, if that
    is a file or folder of this machine."""
    from trainvitals.settings import resolve
    from trainvitals.trainer import ranks
    from trainvitals.trainer.autostart.program_files import note_file

    is_copied = path is not None and resolve().agent
    if path is not None and is_copied:
        note_file(client, path, run=run)
    if client not in _told and ranks.find_rank(os.environ).rank == 0:
        here = "its numbers are copied into this run" if is_copied else "not into this run"
        print_line(f"what this program logs with {client} goes where {client} is set up to, and {here}; {_OFF}")
    _told.add(client)


def withdraw(made: Mapping[str, str]) -> None:
    """The program names a server of its own: what was set is unset."""
    for name, value in made.items():
        if os.environ.get(name) == value:
            del os.environ[name]


def is_logging(modules: Mapping[str, object] = sys.modules) -> bool:
    """Whether the program has begun a run of a client that logs here."""
    wandb, mlflow = modules.get("wandb"), modules.get("mlflow")
    if wandb is not None and is_pointed_here("wandb"):
        return getattr(wandb, "run", None) is not None
    if mlflow is not None and is_pointed_here("mlflow"):
        return mlflow.active_run() is not None  # type: ignore[attr-defined]
    return False

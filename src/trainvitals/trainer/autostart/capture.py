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
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.stderr import print_line
from trainvitals.trackers.intake.keys import find_program_address, has_own_key, list_ours, make_program_path
from trainvitals.trackers.program_files.notes import SENT
from trainvitals.trackers.program_files.sent import SentFile, SentRow

_OFF = "to turn this off: TRAINVITALS_CAPTURE_TRACKERS=0"

MakeEnv = Callable[[str, str | None], dict[str, str]]

_told: set[str] = set()
_sent: dict[tuple[int, str, str], SentFile | None] = {}
_sent_lock = threading.Lock()


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
    """The client has begun a run that is not ours: the agent copies what the client keeps of it on this machine, if
    anything."""
    from trainvitals.settings import resolve
    from trainvitals.trainer.autostart.program_files import note_file

    is_copied = path is not None and resolve().agent
    if path is not None and is_copied:
        note_file(client, path, run=run)
    _tell(client, is_copied=is_copied)


def copy_sent(client: str, run: str) -> None:
    """The client has begun a run on a server that is not ours: the agent copies what it sends there."""
    _tell(client, is_copied=_open_sent(client, run) is not None)


def keep_sent(client: str, run: str, rows: Iterable[SentRow]) -> None:
    """The client has sent this. Raises OSError."""
    file = _open_sent(client, run)
    if file is None:
        return
    for row in rows:
        was_full = file.is_full
        file.write(row)
        if file.is_full and not was_full:
            from trainvitals.trainer.autostart.trouble import note_trouble

            note_trouble(f"what this program sends with {client} is too much to be copied: the rest is not in this run")


def _open_sent(client: str, run: str) -> SentFile | None:
    """Noted for the agent when it is made; None where there is no agent."""
    from trainvitals.settings import resolve
    from trainvitals.trainer.autostart.program_files import note_file

    key = (os.getpid(), client, run)
    with _sent_lock:
        if key not in _sent:
            folder = os.environ.get("TRAINVITALS_RUN_DIR")
            file = None
            settings = resolve()
            if folder and settings.agent:
                file = SentFile(Path(folder), f".{client}.{os.getpid()}.{len(_sent)}.jsonl", settings.redact)
                note_file(SENT, str(file.path))
            _sent[key] = file
        return _sent[key]


def _tell(client: str, *, is_copied: bool) -> None:
    from trainvitals.trainer import ranks

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

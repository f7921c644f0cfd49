"""How a client is pointed at us: the address, the token in the form that each client takes, and the file in the run
that says so. Imports nothing heavy:
programs below `trainvitals run` use it.
Tested in tests/trackers/intake/test_app.py.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

PROGRAM_PATH = "/program"
"""Below this, clients of a program under `trainvitals run`: /program/FOLDER/RANK/PID, the folder in base64."""
STATE_FILE = ".intake.json"
"""In a run of `trainvitals run`: which client logs there, and how far that was received."""
ANY_KEY = "0" * 40
"""W&B's client wants a key, also where nobody asks for one."""


def make_key(token: str) -> str:
    """The token as W&B's client takes one: 40 characters."""
    return hmac.digest(token.encode(), b"wandb key", "sha256").hex()[:40]


def make_program_path(folder: Path, rank: int, pid: int) -> str:
    """Where clients of a program log to."""
    text = base64.urlsafe_b64encode(str(folder).encode()).decode().rstrip("=")
    return f"{PROGRAM_PATH}/{text}/{rank}/{pid}"


def make_wandb_env(address: str, token: str | None) -> dict[str, str]:
    """Variables of W&B's client. It sends every second what it would keep for 15."""
    return {
        "WANDB_BASE_URL": address,
        "WANDB_API_KEY": make_key(token) if token is not None else ANY_KEY,
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_X_FILE_STREAM_TRANSMIT_INTERVAL": "1",
    }


def make_mlflow_env(address: str, token: str | None) -> dict[str, str]:
    """Variables of MLflow's client."""
    return {"MLFLOW_TRACKING_URI": address, **({"MLFLOW_TRACKING_TOKEN": token} if token is not None else {})}


class _ClientRow(NamedTuple):
    """How one client is pointed at us."""

    address: str
    key: str
    make_env: Callable[[str, str | None], dict[str, str]]


_CLIENTS = {
    "wandb": _ClientRow("WANDB_BASE_URL", "WANDB_API_KEY", make_wandb_env),
    "mlflow": _ClientRow("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_TOKEN", make_mlflow_env),
}
_PROGRAM_ADDRESS = re.compile(rf"http://127\.0\.0\.1:\d+{PROGRAM_PATH}/[\w-]+/\d+/\d+")


def is_program_address(address: object) -> bool:
    return isinstance(address, str) and _PROGRAM_ADDRESS.fullmatch(address) is not None


def find_program_address(client: str, environ: Mapping[str, str]) -> str | None:
    """Where the client of a program below `trainvitals run` was pointed at; None if it was not."""
    row = _CLIENTS.get(client)
    address = environ.get(row.address, "") if row is not None else ""
    return address if is_program_address(address) else None


def list_ours(environ: Mapping[str, str], token: str | None, clients: Iterable[str] = tuple(_CLIENTS)) -> list[str]:
    """The variables that did it, without those that somebody has set to something else since."""
    found = []
    for client in clients:
        address = find_program_address(client, environ)
        if address is not None:
            made = _CLIENTS[client].make_env(address, token)
            found += [name for name, value in made.items() if environ.get(name) == value]
    return found


def has_own_key(client: str, environ: Mapping[str, str], token: str) -> bool:
    """Whether somebody has given a client a key since it was pointed here."""
    key = _CLIENTS[client].key
    return bool(environ.get(key)) and key not in list_ours(environ, token, [client])


def make_client_env(address: str, token: str | None) -> dict[str, str]:
    """Variables of all clients that may log to a server."""
    return {
        **make_wandb_env(address, token),
        **make_mlflow_env(address, token),
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{address}/v1/metrics",
        **({"OTEL_EXPORTER_OTLP_METRICS_HEADERS": f"authorization=Bearer%20{token}"} if token is not None else {}),
    }

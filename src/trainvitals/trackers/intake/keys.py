"""How a client is pointed at us: the address, the token in the form that each client takes, and the file in the run
that says so. Imports nothing heavy:
programs below `trainvitals run` use it.
Tested in tests/trackers/intake/test_app.py.
"""

from __future__ import annotations

import base64
import hmac
from pathlib import Path

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


def make_client_env(address: str, token: str | None) -> dict[str, str]:
    """Variables of all clients that may log to a server."""
    return {
        **make_wandb_env(address, token),
        **make_mlflow_env(address, token),
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{address}/v1/metrics",
        **({"OTEL_EXPORTER_OTLP_METRICS_HEADERS": f"authorization=Bearer%20{token}"} if token is not None else {}),
    }

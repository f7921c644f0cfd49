"""The child that keeps runs in a folder or a database of MLflow: `python -m trainvitals.exporters.mlflow_store`.

MLflow's own server, without a port: the requests that a server would get come on standard input. It needs the package
mlflow, and a few hundred megabytes that the agent is to be spared. Tested in tests/exporters/test_mlflow.py.
"""

from __future__ import annotations

import base64
import os
from typing import Any

from trainvitals.exporters.child import answer

STORE = "TRAINVITALS_MLFLOW_STORE"
"""Where the folder or the address of the database is passed, for it may hold a password."""


def main() -> None:
    from mlflow import server

    store = os.environ.pop(STORE)
    os.environ[server.BACKEND_STORE_URI_ENV_VAR] = store
    os.environ[server.ARTIFACT_ROOT_ENV_VAR] = _artifact_root(store)
    client = server.app.test_client()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        body = base64.b64decode(request["body"]) if request.get("body") else None
        found = client.open(
            request["path"], method=request["method"], data=body, content_type=request.get("content_type")
        )
        return {"status": found.status_code, "body": found.get_data(as_text=True)}

    answer(handle)


def _artifact_root(store: str) -> str:
    """As `mlflow.set_tracking_uri` of the same store would have it: beside the runs."""
    if store.startswith("sqlite:///"):
        return os.path.join(os.path.dirname(store.removeprefix("sqlite:///")) or ".", "mlartifacts")  # noqa: PTH118, PTH120
    return store if "://" not in store else "./mlartifacts"


if __name__ == "__main__":
    main()

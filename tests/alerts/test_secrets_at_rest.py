"""The whole life of a run whose every setting that can hold a secret does, and then every byte that is left of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import free_port, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver
from test_agent import Place

from trainvitals import runtime

WORDS = (
    "query", "user", "slack", "mail", "program", "variable", "path", "page", "pagequery", "rule", "link", "scrape",
    "basic", "push", "write", "gateway", "otlp", "config", "flag", "environ", "printed", "raised", "event",
)  # fmt: skip
SECRETS = {word: f"zX9{word}Qk7w3vB5" for word in WORDS}

TRAINING = """
import os, sys, time
import trainvitals
run = trainvitals.init(project="p", config={"api_key": os.environ["S_config"]}, capture_env=["MY_TOKEN"])
open(sys.argv[1], "w").write(str(run.folder))
print("using token=" + os.environ["S_printed"], flush=True)
run.event("login", "with password: " + os.environ["S_event"])
for step in range(100000):
    run.log({"loss": float("nan") if step == 20 else 1.0}, step=step)
    time.sleep(0.02)
    if os.path.exists(sys.argv[2]):
        raise RuntimeError(f"cannot reach http://me:{os.environ['S_raised']}@host/")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "left" / "runtime"))
    receiver = Receiver(503)
    found = Place(tmp_path, receiver)
    yield found
    found.end()
    receiver.close()


def secretive_settings(receiver: Receiver) -> dict[str, Any]:
    secret, host, nowhere = SECRETS, f"127.0.0.1:{receiver.port}", f"127.0.0.1:{free_port()}"
    return {
        "openmetrics": [f"http://me:{secret['page']}@{nowhere}/metrics?token={secret['pagequery']}"],
        "alerts": {
            "link": f"http://{host}/?token={secret['link']}",
            "notify": {
                "query": f"http://{host}/hook?token={secret['query']}",
                "user": f"http://me:{secret['user']}@{host}/hook",
                "slack": f"slack://T1/B2/{secret['slack']}",
                "mail": f"mailto://me:{secret['mail']}@{nowhere}",
                "program": f"command:false --password {secret['program']}",
                "path": f"http://{nowhere}/hooks/{secret['path']}",
                "variable": "env:S_variable_url",
            },
            "rules": [
                {"name": "mine", "when": "training.loss > 0.5", "actions": ["exec"],
                 "command": f"false --api-key {secret['rule']}"},
            ],
        },
        "prometheus": {
            "port": free_port(),
            "token": "env:S_scrape",
            "password": "env:S_basic",
            "push_token": "env:S_push",
            "push_interval": "1s",
            "remote_write": "env:S_write_url",
            "pushgateway": "env:S_gateway_url",
            "otlp": "env:S_otlp_url",
        },
    }  # fmt: skip


@pytest.mark.promise(
    "a secret in every setting that can hold one",
    "no remaining file of a run contains one, even after a killed agent and with channels down",
    area="Other users",
)
@pytest.mark.parametrize("source", ["file", "variables"])
def test_no_secret_of_any_setting_is_left_anywhere(place: Place, tmp_path: Path, source: str) -> None:
    secret, nowhere = SECRETS, f"127.0.0.1:{free_port()}"
    left = tmp_path / "left"
    place.config = secretive_settings(place.receiver)
    place.environment = {f"S_{word}": text for word, text in secret.items()} | {
        "S_variable_url": f"http://{nowhere}/hook?token={secret['variable']}",
        "S_write_url": f"http://me:{secret['write']}@{nowhere}/api/v1/write",
        "S_gateway_url": f"http://me:{secret['gateway']}@{nowhere}",
        "S_otlp_url": f"http://{nowhere}/v1/metrics?token={secret['otlp']}",
        "S_basic": f"me:{secret['basic']}",
        "MY_TOKEN": secret["environ"],
    }
    if source == "variables":
        alerts = place.config["alerts"]
        place.environment |= {
            "TRAINVITALS_OPENMETRICS": place.config.pop("openmetrics")[0],
            "TRAINVITALS_ALERTS_NOTIFY": " ".join(url for url in alerts.pop("notify").values() if " " not in url),
            "TRAINVITALS_ALERTS_RULES": json.dumps(alerts.pop("rules")),
            "TRAINVITALS_ALERTS_LINK": alerts.pop("link"),
        }
    environ = place.env() | {
        "TRAINVITALS_RUNTIME_DIR": str(left / "runtime"),
        "TRAINVITALS_DIR": str(left / "runs"),
        "HOME": str(left),
        "XDG_STATE_HOME": str(left / "state"),
    }
    place.env = lambda: environ  # type: ignore[method-assign]
    (left / "runs").mkdir(parents=True)

    place.agent()
    told, stop = tmp_path / "folder", tmp_path / "stop"
    with open(tmp_path / "output", "wb") as output:
        words = [sys.executable, "-c", TRAINING, str(told), str(stop), "--api-key", secret["flag"]]
        training = subprocess.Popen(words, env=environ, stdout=output, stderr=output)
    place.processes.append(training)  # type: ignore[arg-type]
    place.run = Path(wait_until(lambda: told.exists() and told.read_text(), "the run folder"))
    failed = {"query", "user", "path", "variable"} if source == "file" else {"http", "http-2", "http-3", "env"}
    wait_until(lambda: failed <= {row.get("channel") for row in place.rows()}, lambda: f"failures: {place.rows()}")
    wait_until(lambda: any(row.get("result") == "exited with 1" for row in place.rows()), "the rule's program")
    wait_until(lambda: any(secret["query"] in path for path, _, _ in place.receiver.requests), "the secret to be used")

    first = runtime.read_agent_file() or {}
    place.processes[0].send_signal(signal.SIGKILL)
    place.processes[0].wait()
    second = place.agent()
    before = len(place.receiver.requests)
    wait_until(lambda: len(place.receiver.requests) > before, "the next agent to try")
    assert first["pid"] != second.pid
    stop.touch()
    training.wait()
    wait_until(lambda: (runtime.read_json(place.run / "run.json") or {}).get("status") == "failed", "the end")
    wait_until(lambda: list((left / "runtime" / "outbox").glob("*.json")), "the note about messages that wait")
    for command in (["report", str(place.run), "--output", str(left / "report.html")], ["config"], ["doctor"],
                    ["runs", "show", str(place.run)], ["export", str(place.run), "--table", "all"]):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-m", "trainvitals", *command], env=environ, capture_output=True, check=False, cwd=left
        )
        (left / f"said-by-{command[0]}").write_bytes(done.stdout + done.stderr)
        assert b"Traceback" not in done.stderr, done.stderr
    place.end()  # what is left stays as it is while it is read
    leaks = {
        f"{word} in {path.relative_to(left)}"
        for path in left.rglob("*")
        if path.is_file()
        for word, text in secret.items()
        if text.encode() in path.read_bytes()
    }
    assert leaks == set()
    assert len([path for path in left.rglob("*") if path.is_file()]) > 15

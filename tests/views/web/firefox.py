"""Debian's Firefox, driven through its own WebDriver BiDi: Playwright drives only a Firefox that it has patched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from waiting import PATIENCE, free_port, wait_until
from websocket import WebSocket, WebSocketException


class Firefox:
    """One window and everything that went wrong in it."""

    def __init__(self, place: Path, *, width: int = 1280, height: int = 800) -> None:
        program = os.environ.get("TRAINVITALS_TEST_FIREFOX") or shutil.which("firefox-esr") or shutil.which("firefox")
        assert program, "Firefox is needed: apt-get install firefox-esr"
        self._port = free_port()
        options = ["--headless", "--no-remote", "--profile", str(place), f"--remote-debugging-port={self._port}"]
        with open(place / "firefox.log", "wb") as log:
            self._process = subprocess.Popen(
                [program, *options, "about:blank"], env={**os.environ, "HOME": str(place)}, stdout=log, stderr=log
            )
        self.problems: list[str] = []
        self._number = 0
        self._socket: WebSocket = wait_until(self._connect, lambda: (place / "firefox.log").read_text())
        self._ask("session.new", capabilities={})
        self._tab = self._ask("browsingContext.getTree")["contexts"][0]["context"]
        self._ask("session.subscribe", events=["log.entryAdded"])
        self._ask("browsingContext.setViewport", context=self._tab, viewport={"width": width, "height": height})

    def _connect(self) -> WebSocket | None:
        assert self._process.poll() is None, "Firefox has ended"
        made = WebSocket()
        try:
            made.connect(f"ws://127.0.0.1:{self._port}/session", timeout=PATIENCE, suppress_origin=True)
        except (OSError, WebSocketException):
            return None  # it does not listen yet
        return made

    def _ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.problems.append(message["params"]["text"])
            if message.get("id") == self._number:
                assert message["type"] == "success", message
                return message["result"]

    def open(self, address: str) -> None:
        """A page of its own, also where only the part after # differs."""
        for url in ("about:blank", address):
            self._ask("browsingContext.navigate", context=self._tab, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, None where it throws: what it asks for is not drawn yet."""
        code = f"JSON.stringify({expression}) ?? 'null'"
        found = self._ask("script.evaluate", expression=code, target={"context": self._tab}, awaitPromise=True)
        return json.loads(found["result"]["value"]) if found["type"] == "success" else None

    def wait(self, expression: str) -> Any:
        """Until it is true."""
        return wait_until(
            lambda: self.evaluate(expression), lambda: f"{expression}\n{self.evaluate('document.body.innerText')}"
        )

    def move(self, x: float, y: float) -> None:
        self._point([_move(x, y)])

    def drag(self, x: float, y: float, to: float) -> None:
        """From a point to the right or left, with the button pressed."""
        ways = [_move(x + (to - x) * part / 5, y) for part in range(6)]
        self._point([ways[0], {"type": "pointerDown", "button": 0}, *ways[1:], {"type": "pointerUp", "button": 0}])

    def _point(self, actions: list[dict[str, Any]]) -> None:
        mouse = {"type": "pointer", "id": "mouse", "actions": actions}
        self._ask("input.performActions", context=self._tab, actions=[mouse])

    def stop(self) -> None:
        self._ask("browser.close")
        self._socket.close()
        self._process.wait(PATIENCE)


def _move(x: float, y: float) -> dict[str, Any]:
    return {"type": "pointerMove", "x": round(x), "y": round(y)}

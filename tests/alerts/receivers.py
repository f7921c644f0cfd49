"""Real ends to send to: an HTTP receiver that can misbehave, a mail server, an Alertmanager."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from typing import Any

from waiting import PATIENCE, wait_until


class Receiver:
    """Takes POSTs and remembers them. `answers` are given one after the other, the last one for ever."""

    def __init__(self, *answers: int | tuple[int, dict[str, str]], port: int = 0) -> None:
        self.answers: list[int | tuple[int, dict[str, str]]] = list(answers or (200,))
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.times: list[float] = []
        self._busy = 0
        """Connections that were accepted and have not ended."""
        self._lock = threading.Lock()
        self.hang = threading.Event()
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if outer.hang.is_set():
                    outer.release.wait(PATIENCE)
                    return
                outer.times.append(time.monotonic())
                answer = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                outer.requests.append((self.path, dict(self.headers), body))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(b"ok" if status < 300 else b"no")

            do_PUT = do_POST

            def log_message(self, *_: object) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            def process_request(self, request: Any, client_address: Any) -> None:
                with outer._lock:
                    outer._busy += 1
                super().process_request(request, client_address)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    with outer._lock:
                        outer._busy -= 1

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Whoever asked was killed meanwhile."""

        self.server = Server(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.requests]

    def settle(self) -> None:
        """Until `requests` has all that were sent so far, also by somebody who is dead by now."""
        with socket.create_connection(("127.0.0.1", self.port)) as last:  # accepted after all of them
            last.sendall(b"GET / HTTP/1.0\r\n\r\n")
            while last.recv(1000):
                pass
        wait_until(lambda: self._busy == 0, "the requests so far")

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()

"""A gateway that keeps the files of runs in a folder: small, honest, and able to misbehave when it is told to.

    python honest_gateway.py FOLDER PORT

Its copy of a run is a run folder itself, so that tests can compare and read it. What it has of a file is what the copy
has: it can be killed at any moment.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from trainvitals.fleet import wire
from trainvitals.fleet.wire import FileRange, Held
from trainvitals.journal import layout

GENERATIONS = ".generations"


class Copy:
    """One run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, path: str) -> Held:
        file, kind = self.folder / path, wire.kind_of(path)
        data = file.read_bytes() if file.is_file() else b""
        if kind == "document":
            return Held(end=len(data), digest=wire.digest_of(data)) if data else Held()
        if kind == "lines":
            end = data.rfind(b"\n") + 1
            sealed = (self.folder / layout.SEGMENTS / f"{file.stem}.parquet").is_file()
            return Held(end=end, rows=data.count(b"\n"), sealed=sealed)
        note = self.folder / GENERATIONS / path.replace("/", "@")
        return Held(end=len(data), generation=note.read_text() if note.is_file() else "")

    def find_all(self) -> dict[str, Held]:
        paths = [path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()]
        known = {path for path in paths if wire.kind_of(path) is not None}
        known |= {f"{Path(path).stem}.jsonl" for path in known if wire.kind_of(path) == "segment"}
        return {path: self.find(path) for path in sorted(known)}

    def take(self, frame: FileRange) -> bool:
        """Whether it fits."""
        file, held = self.folder / frame.path, self.find(frame.path)
        file.parent.mkdir(parents=True, exist_ok=True)
        if frame.kind == "document" and frame.generation != held.digest:
            return False
        if frame.kind in ("document", "segment"):
            half = file.with_name(f".half-{file.name}")
            half.write_bytes(frame.data)
            half.replace(file)
            return True
        if frame.kind == "bytes" and frame.generation != held.generation:
            if frame.offset:
                return False
            note = self.folder / GENERATIONS / frame.path.replace("/", "@")
            note.parent.mkdir(exist_ok=True)
            note.unlink(missing_ok=True)
            file.write_bytes(b"")
            note.write_text(frame.generation)
            held = Held(generation=frame.generation)
        if held.sealed or frame.offset != held.end or (frame.kind == "lines" and not frame.data.endswith(b"\n")):
            return False
        with open(file, "r+b" if file.exists() else "wb") as copy:
            copy.truncate(held.end)
            copy.seek(held.end)
            copy.write(frame.data)
        return True


class HonestGateway:
    """`misbehave` may answer a request instead: (status, headers, body), or None to leave it to the honest one. `lie`
    may change what it says that it has."""

    def __init__(self, folder: Path, port: int = 0, context: ssl.SSLContext | None = None) -> None:
        self.folder = folder
        self.token: str | None = None
        self.misbehave: Callable[[str, list[FileRange]], tuple[int, dict[str, str], bytes] | None] = lambda *_: None
        self.lie: Callable[[dict[str, Any]], dict[str, Any]] = lambda files: files
        self.requests: list[tuple[str, list[FileRange]]] = []
        self._lock = threading.Lock()
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer([])

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = wire.decompress(body)
                self._answer(list(wire.decode_frames(body)))

            def _answer(self, frames: list[FileRange]) -> None:
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                assert self.headers[wire.VERSION_HEADER] == str(wire.VERSION)
                status, headers, answer = gateway.answer(self.command, self.path, token, frames)
                try:
                    self.send_response(status)
                    for name, value in {wire.VERSION_HEADER: str(wire.VERSION), **headers}.items():
                        if value:
                            self.send_header(name, value)
                    self.send_header("Content-Length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    pass  # who asked has been killed

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.address = f"{'https' if context else 'http'}://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def copy(self, project: str, run: str) -> Copy:
        return Copy(self.folder / project / run)

    def answer(self, method: str, path: str, token: str, frames: list[FileRange]) -> tuple[int, dict[str, str], bytes]:
        with self._lock:
            self.requests.append((method, frames))
            if (other := self.misbehave(method, frames)) is not None:
                return other
            if self.token is not None and token != self.token:
                return 401, {}, b"no such token"
            prefix, project, run = path.rsplit("/", 2)
            assert prefix == f"{wire.PREFIX}/runs"
            copy = self.copy(unquote(project), unquote(run))
            fits = True
            for frame in frames:
                fits &= copy.take(frame)
            about = {frame.path for frame in frames}
            about |= {f"{Path(frame.path).stem}.jsonl" for frame in frames if frame.kind == "segment"}
            held = {path: copy.find(path) for path in about} if method == "POST" else copy.find_all()
            files = self.lie({path: found.as_json() for path, found in held.items()})
            return 200 if fits else 409, {}, json.dumps({"files": files}).encode()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


if __name__ == "__main__":
    HonestGateway(Path(sys.argv[1]), int(sys.argv[2]))
    threading.Event().wait()

"""Today's ClickHouse engine, which comes as a library without a server, behind the part of its HTTP that we use.

python chdb_front.py FOLDER PORT
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from chdb.session import Session

PLACE = Path(sys.argv[1])
PLACE.mkdir(parents=True, exist_ok=True)
SESSION = Session(str(PLACE / "data"))
LOCK = threading.Lock()


class Front(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        parameters = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            with LOCK:
                status, answer = 200, answer_to(parameters, body)
        except RuntimeError as error:
            status, answer = 500, str(error).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


def answer_to(parameters: dict[str, str], body: bytes) -> bytes:
    SESSION.query(f"USE {parameters.get('database', 'default')}")
    if "query" in parameters:  # the rows of an INSERT: the library takes them from a file only
        into = re.fullmatch(r"INSERT INTO (.*) FORMAT Native", parameters["query"])
        assert into is not None
        with tempfile.NamedTemporaryFile(suffix=".native", dir=PLACE) as file:
            file.write(body)
            file.flush()
            SESSION.query(f"INSERT INTO {into[1]} SELECT * FROM file('{file.name}', Native)")
        return b""
    query = body.decode("utf-8", "surrogatepass")
    format = "TabSeparated"
    if query.endswith(" FORMAT Native"):
        query, format = query.removesuffix(" FORMAT Native"), "Native"
    return bytes(SESSION.query(query, format).bytes())


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Front).serve_forever()

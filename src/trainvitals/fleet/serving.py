"""Running a gateway: the port, TLS, and a shutdown that waits for what was begun.
Tested in tests/fleet/test_serving.py."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from trainvitals.errors import TrainvitalsError
from trainvitals.fleet.gateway import Gateway


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway listens, and how it proves who it is."""

    host: str
    port: int
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    """Agents prove who they are with a certificate of this authority, beside their token."""

    @property
    def address(self) -> str:
        """For people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{self.port}"


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises TrainvitalsError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(1024)
    except OSError as error:
        raise TrainvitalsError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another: --listen ADDRESS, --port N"
        ) from error
    return made


def serve(gateway: Gateway, where: Listening, bound: socket.socket) -> None:
    """Until Ctrl-C or SIGTERM."""
    import uvicorn

    from trainvitals.connections import AT_ONCE, PIECE_SECONDS, make_protocol

    config = uvicorn.Config(
        gateway.make_app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,  # for what is being written to the engine
        timeout_keep_alive=75,
        http=make_protocol(PIECE_SECONDS),
        ws="none",
        backlog=AT_ONCE,
        ssl_certfile=where.certificate,
        ssl_keyfile=where.key,
        ssl_ca_certs=str(where.client_ca) if where.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if where.client_ca else ssl.CERT_NONE,
        h11_max_incomplete_event_size=64 << 10,
    )
    uvicorn.Server(config).run(sockets=[bound])

"""Running a gateway: the port, TLS, and a shutdown that waits for what was begun.
Tested in tests/fleet/test_serving.py."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from trainvitals.certificates import make_server_context
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

    def make_context(self) -> ssl.SSLContext | None:
        """For TLS, None without; raises TrainvitalsError."""
        if self.certificate is None or self.key is None:
            return None
        try:
            return make_server_context(self.certificate, self.key, self.client_ca)
        except OSError as error:
            files = ", ".join(str(path) for path in (self.certificate, self.key, self.client_ca) if path)
            reason = "no PEM certificate with its key" if isinstance(error, ssl.SSLError) else error.strerror
            raise TrainvitalsError(
                f"cannot use {files} for TLS: {reason}", hint="check --certificate, --key and --client-ca"
            ) from error


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


def serve(gateway: Gateway, context: ssl.SSLContext | None, bound: socket.socket) -> None:
    """Until Ctrl-C or SIGTERM, over TLS with a context."""
    import uvicorn

    from trainvitals.connections import AT_ONCE, PIECE_SECONDS, make_protocol

    config = uvicorn.Config(
        gateway.make_app(),
        # uvloop reads from a connection before the protocol can say that TLS comes first.
        loop="auto" if context is None else "asyncio",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=10,  # for what is being written to the engine
        timeout_keep_alive=75,
        http=make_protocol(PIECE_SECONDS, context),
        ws="none",
        backlog=AT_ONCE,
        h11_max_incomplete_event_size=64 << 10,
    )
    uvicorn.Server(config).run(sockets=[bound])

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
    from trainvitals.connections import listen

    try:
        return listen(host, port)
    except OSError as error:
        raise TrainvitalsError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another: --listen ADDRESS, --port N"
        ) from error


def serve(gateway: Gateway, context: ssl.SSLContext | None, bound: socket.socket) -> None:
    """Until Ctrl-C or SIGTERM, over TLS with a context."""
    from trainvitals.connections import PIECE_SECONDS, make_server

    server = make_server(
        gateway.make_app(),
        grace_seconds=10,  # for what is being written to the engine
        idle_seconds=75,
        request_seconds=PIECE_SECONDS,
        context=context,
    )
    server.run(sockets=[bound])

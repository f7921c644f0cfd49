"""Running a gateway: the port, TLS, and a shutdown that waits for what was begun.
Tested in tests/fleet/test_serving.py."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from trainvitals.certificates import CurrentContext, make_server_context
from trainvitals.errors import TrainvitalsError
from trainvitals.fleet.gateway import Gateway
from trainvitals.stderr import print_line


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

    def open_context(self) -> CurrentContext | None:
        """For TLS, None without; raises TrainvitalsError."""
        certificate, key = self.certificate, self.key
        if certificate is None or key is None:
            return None

        def describe(error: OSError) -> str:
            reason = "no PEM certificate with its key" if isinstance(error, ssl.SSLError) else error.strerror
            return f"cannot use {', '.join(map(str, files))} for TLS: {reason}"

        files = [path for path in (certificate, key, self.client_ca) if path is not None]
        try:
            return CurrentContext(
                files,
                lambda: make_server_context(certificate, key, self.client_ca),
                lambda error: print_line(f"{describe(error)}; the previous certificate stays in use"),
            )
        except OSError as error:
            raise TrainvitalsError(describe(error), hint="check --certificate, --key and --client-ca") from error


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; raises TrainvitalsError."""
    from trainvitals.connections import listen

    try:
        return listen(host, port)
    except OSError as error:
        raise TrainvitalsError(
            f"cannot listen on {host} port {port}: {error.strerror}", hint="choose another: --listen ADDRESS, --port N"
        ) from error


def serve(gateway: Gateway, context: CurrentContext | None, bound: socket.socket) -> None:
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

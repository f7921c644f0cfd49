"""Files of certificates that may be replaced at any time. Tested in tests/exporters/test_credentials.py and
tests/fleet/test_serving.py."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Stamps = tuple[tuple[int, int] | None, ...]


def stamp(files: Iterable[Path]) -> Stamps:
    """Different once one of them was replaced."""
    found: list[tuple[int, int] | None] = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found.append(None)
        else:
            found.append((status.st_ino, status.st_mtime_ns))
    return tuple(found)


class CurrentContext:
    """For TLS, with what the files hold now. While they are being replaced they may not fit together: until they do,
    what was valid stays in force."""

    def __init__(
        self,
        files: Iterable[Path],
        make: Callable[[], ssl.SSLContext],
        tell: Callable[[OSError], None] = lambda error: None,
    ) -> None:
        """Raises OSError, as `make` does. `tell` hears once of files that cannot be used."""
        self._files = tuple(files)
        self._make = make
        self._tell = tell
        self._stamps = self._told = stamp(self._files)
        self._context = make()

    def get(self) -> ssl.SSLContext:
        """For the next connection."""
        stamps = stamp(self._files)
        if stamps != self._stamps:
            try:
                self._context = self._make()
                self._stamps = stamps
            except OSError as error:
                if stamps != self._told:
                    self._tell(error)
                self._told = stamps
        return self._context


@dataclass(frozen=True, slots=True)
class ClientTls:
    """The files (PEM) of a client that is asked for a certificate, or whose server has one of its own authority."""

    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None

    @property
    def files(self) -> list[Path]:
        return [path for path in (self.certificate, self.key, self.authority) if path is not None]

    def make_context(self) -> ssl.SSLContext:
        """Raises OSError, with its subclass ssl.SSLError, for a file that is missing or something else."""
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def make_server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """For a server, which asks its clients for certificates of `client_ca` if there is one; raises OSError as above."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context

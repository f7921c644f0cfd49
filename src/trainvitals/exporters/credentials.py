"""How a push shows who it is: token, headers and certificates, each as its file or variable has it now.

What is being replaced may be half there for a moment; until it is whole, what was valid stays in force.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from trainvitals.certificates import ClientTls, CurrentContext
from trainvitals.errors import SettingError


@dataclass(slots=True)
class Credentials:
    """Of one push. Raises SettingError when made of what is not there."""

    read_token: Callable[[], str | None] = lambda: None
    read_headers: Callable[[], Mapping[str, str]] = dict
    tls: ClientTls = field(default_factory=ClientTls)
    _token: str | None = field(init=False, repr=False)
    _headers: Mapping[str, str] = field(init=False, repr=False)
    _context: CurrentContext | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._token = self.read_token()
        self._headers = self.read_headers()
        if self.tls.key is not None and self.tls.certificate is None:
            raise SettingError("prometheus.push_tls_key needs prometheus.push_tls_certificate")
        if self.tls.files:
            try:
                self._context = CurrentContext(self.tls.files, self.tls.make_context)
            except ssl.SSLError as error:
                raise SettingError(f"invalid TLS certificate or key for pushes: {error.reason or error}") from error
            except OSError as error:
                raise SettingError(f"cannot read the TLS files for pushes: {error.strerror or error}") from error

    @property
    def token(self) -> str | None:
        with suppress(SettingError):
            self._token = self.read_token()
        return self._token

    @property
    def headers(self) -> Mapping[str, str]:
        with suppress(SettingError):
            self._headers = self.read_headers()
        return self._headers

    @property
    def context(self) -> ssl.SSLContext | None:
        """For TLS; None for that of everybody."""
        return self._context.get() if self._context is not None else None

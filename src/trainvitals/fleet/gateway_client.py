"""A gateway as an agent sees it: what it answers, and when it may be asked again.

Whatever is wrong with it is one of four exceptions, none of which says more than the caller needs: try later
(`NotNow`; with other runs at once if it is `RunNotNow`), less at once (`TooLarge`), that it will never take this
(`GatewayRefused`), or anything of this run (`RunGone`).
"""

from __future__ import annotations

import random
import ssl
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

from trainvitals import http_client
from trainvitals.certificates import ClientTls, CurrentContext
from trainvitals.errors import SettingError
from trainvitals.fleet import wire
from trainvitals.fleet.wire import FileRange, Held
from trainvitals.http_client import LONGEST_ASKED_PAUSE
from trainvitals.plain_json import parse_object
from trainvitals.redaction import redact_text
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.settings.secrets import is_reference, read_secret

REQUEST_SECONDS = 130.0
"""Longer than a gateway waits for its engine: what is sent again because an answer is late makes a busy one busier."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds after a failure, twice as long after each further one."""
CLOSED_PAUSE = 60.0
"""Where the token is refused: somebody has to mend it."""
STRANGE_PAUSE = 600.0
"""Where it speaks another version: somebody has to install another one."""
MOST_OF_AN_ANSWER = 32 << 20
"""A run with ten thousand pictures has a line for each."""


class GatewayError(Exception):
    """It does not take what it was sent."""


class NotNow(GatewayError):
    """It cannot be reached, does not let us in, or has too much to do."""


class RunNotNow(NotNow):
    """It takes nothing of this run for so many seconds: its project or the token has had its share, or the token is not
    for this project. Other runs go on."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class RunGone(GatewayError):
    """The run was removed there, and is not taken again."""


class TooLarge(GatewayError):
    """It takes less at once."""


class GatewayRefused(GatewayError):
    """It takes everything but this."""


@dataclass(frozen=True, slots=True)
class GatewayAccess:
    """Where a run is to be shipped, and what opens the door there."""

    address: str
    token: str
    """A reference: what it leads to may be replaced."""
    tls: ClientTls = field(default_factory=ClientTls)
    environment: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Of the training, where its user may have put the token."""

    @classmethod
    def find(cls, settings: Settings, environment: Mapping[str, str]) -> GatewayAccess | None:
        """None if no gateway is set. Raises SettingError."""
        address = settings.gateway
        if address is None:
            return None
        if is_reference(address):
            address = read_secret(address, environment.get)
        return cls(
            address.rstrip("/"),
            settings.gateway_token,
            ClientTls(settings.gateway_certificate, settings.gateway_key, settings.gateway_ca),
            environment,
        )

    @property
    def shown(self) -> str:
        """The address without what may be secret in it."""
        return redact_text(self.address)

    def read_token(self) -> str | None:
        """As it is now; None if there is none. Raises SettingError if it cannot be read."""
        kind, _, name = self.token.partition(":")
        if kind == "env" and not self.environment.get(name.strip()):
            return None
        return read_secret(self.token, self.environment.get)


class FarGateway:
    """One address, entered with one token. Used by one thread."""

    def __init__(self, access: GatewayAccess) -> None:
        self._access = access
        self._context: CurrentContext | None = None
        self._pause = FIRST_PAUSE
        self._again = 0.0
        self.trouble = ""
        """What went wrong last, until it goes well again."""
        self.sent = self.failed = 0
        """Requests that it has taken, and others."""

    @property
    def wait(self) -> float:
        """Seconds until it may be asked again."""
        return max(self._again - time.monotonic(), 0.0)

    def ask(self, project: str, run: str) -> dict[str, Held]:
        """How far it has each file of the run."""
        return self._parse(self._request("GET", project, run))

    def send(self, project: str, run: str, frames: Sequence[FileRange]) -> dict[str, Held]:
        """How far it has these files now, whether it has taken the frames or they did not fit."""
        # Parquet and pictures do not shrink.
        plain = sum(len(frame.data) for frame in frames if frame.kind in ("lines", "document"))
        compress = 2 * plain > sum(len(frame.data) for frame in frames)
        return self._parse(self._request("POST", project, run, wire.encode_frames(frames, compress=compress), compress))

    def remove(self, project: str, run: str) -> None:
        """Have the run removed, which takes a token of an admin. Raises GatewayError."""
        self._parse(self._request("DELETE", project, run))

    def _request(
        self, method: str, project: str, run: str, body: bytes | None = None, compressed: bool = False
    ) -> http_client.Answer:
        access = self._access
        place = "/".join(quote(part, safe="") for part in (project, run))
        headers = {wire.VERSION_HEADER: str(wire.VERSION), "Content-Type": "application/octet-stream"}
        if compressed:
            headers["Content-Encoding"] = "gzip"
        try:
            token = access.read_token()
            if token is not None:
                headers["Authorization"] = f"Bearer {token}"
            request = urllib.request.Request(
                f"{access.address}{wire.PREFIX}/runs/{place}", data=body, headers=headers, method=method
            )
            context = self._find_context() if access.address.startswith("https:") else None
            answer = http_client.send(request, REQUEST_SECONDS, most=MOST_OF_AN_ANSWER, context=context)
        except http_client.UnknownAuthority as error:
            raise self._fail(f"{error} (gateway_ca: the file of the CA that signed it)") from None
        except (OSError, ValueError, SettingError) as error:
            raise self._fail(str(error)) from None
        return self._judge(answer, had_token=token is not None)

    def _judge(self, answer: http_client.Answer, *, had_token: bool) -> http_client.Answer:
        reason = _find_reason(answer)
        status, said = answer.status, f": {reason}" if reason else ""
        if answer.is_good or status == 409:
            return answer
        if status == 413:
            raise TooLarge
        if status in (400, 422):
            self.failed += 1
            raise GatewayRefused(redact_text(f"HTTP {status}{said}"))
        if status == 410 and wire.VERSION_HEADER in answer.headers:
            raise RunGone(redact_text(reason or "the run was removed from the store"))
        if status == 403 and had_token:  # for another project it may do
            self.failed += 1
            raise RunNotNow(redact_text(f"the token is refused (HTTP 403{said})"), CLOSED_PAUSE)
        if status in (401, 403):
            missing = f"it requires a token, and {self._access.token.removeprefix('env:')} is not set"
            text = "the token is refused" if had_token else missing
            raise self._fail(f"{text} (HTTP {status}{said})", CLOSED_PAUSE)
        if status == 426:
            raise self._fail(f"it does not know version {wire.VERSION} of the protocol (HTTP 426{said})", STRANGE_PAUSE)
        if status == 429 and _is_quota(answer):
            self.failed += 1
            pause = LONGEST_ASKED_PAUSE if answer.retry_after is None else answer.retry_after
            raise RunNotNow(redact_text(reason or "over quota"), min(max(pause, FIRST_PAUSE), LONGEST_ASKED_PAUSE))
        text = f"HTTP {status} {answer.reason}{said}".strip()
        raise self._fail(text, answer.retry_after if status in (429, 503) else None)

    def _parse(self, answer: http_client.Answer) -> dict[str, Held]:
        if answer.headers.get(wire.VERSION_HEADER) is None:
            raise self._fail("no trainvitals gateway at this address", CLOSED_PAUSE)
        try:
            files = parse_object(answer.body)["files"]
            found = {path: Held.parse(held) for path, held in files.items() if isinstance(path, str)}
        except (ValueError, KeyError, AttributeError):
            raise self._fail("its answer makes no sense") from None
        self.sent += 1
        self.trouble = ""
        self._pause = FIRST_PAUSE
        return found

    def _fail(self, text: str, asked: float | None = None) -> NotNow:
        """Not again for a while: so many seconds if that is asked for, else ever longer."""
        self.failed += 1
        seconds = min(asked, LONGEST_ASKED_PAUSE) if asked is not None else self._pause * random.uniform(0.5, 1.0)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._again = time.monotonic() + seconds
        self.trouble = redact_text(text)
        return NotNow(self.trouble)

    def _find_context(self) -> ssl.SSLContext:
        """Kept: loading the certificates of the system takes longer than a request."""
        if self._context is None:
            self._context = CurrentContext(self._access.tls.files, self._access.tls.make_context)
        return self._context.get()


def _is_quota(answer: http_client.Answer) -> bool:
    try:
        return parse_object(answer.body).get("quota") is True
    except ValueError:
        return False


def _find_reason(answer: http_client.Answer) -> str:
    """What a gateway says, or whatever is in front of it."""
    try:
        return one_line(str(parse_object(answer.body)["error"]))
    except (ValueError, KeyError):
        return answer.text

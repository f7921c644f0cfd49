"""How a browser logs in: with a link whose code works once, then with a cookie that scripts cannot read.

The token of a user is in a file that only this user can read, and outlives the server: an open page survives
a restart, and whoever can read the token can make another link without the server. Codes and cookies are signed with
it. A code is for one port, so that another server cannot use what was meant for us.
"""

from __future__ import annotations

import base64
import errno
import functools
import hmac
import os
import secrets
import time
from pathlib import Path

from trainvitals import runtime
from trainvitals.errors import TrainvitalsError
from trainvitals.guessing import Clock, can_be_guessed

TOKEN_FILE = "serve.token"
CODE_SECONDS = 86_400.0
COOKIE_SECONDS = 30 * 86_400
WRITE_SECONDS = 2.0
"""How long another process may take between making the file and writing the token."""


# -- the token


def token_file() -> Path:
    """Where the token of this user is."""
    return runtime.runtime_dir() / TOKEN_FILE


def new_token() -> str:
    """Long enough that nobody guesses it."""
    return secrets.token_urlsafe(24)


def read_token() -> str:
    """The token of this user, made if there is none."""
    path = token_file()
    deadline = time.monotonic() + WRITE_SECONDS
    while True:
        try:
            if path.is_symlink():
                raise OSError(errno.ELOOP, "it is a symbolic link")
            token = runtime.read_regular(path, 1000, own=True).decode("ascii", "replace").strip()
        except FileNotFoundError:
            token = new_token()
            if _save(path, token):
                return token
            continue  # another server was faster
        except OSError as error:
            raise TrainvitalsError(
                f"the token file {path} cannot be used: {error.strerror}",
                hint="remove it, or set TRAINVITALS_RUNTIME_DIR to a private folder on this machine",
            ) from None
        if token:
            return token
        if time.monotonic() > deadline:
            path.unlink(missing_ok=True)  # its creator was killed before writing it
        time.sleep(0.02)


def keep_token(token: str) -> None:
    """Keep cleaners of temporary files from removing the token while a server uses it."""
    try:
        os.utime(token_file())
    except FileNotFoundError:
        _save(token_file(), token)
    except OSError:
        return


def _save(path: Path, token: str) -> bool:
    """Write a new token file. False if there is one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | runtime.NO_LINK, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return True


# -- codes and cookies


def new_code(token: str, port: int, clock: Clock = time.time) -> str:
    """A code for one visit to the server on this port."""
    nonce = secrets.token_urlsafe(9)
    issued = f"{_milliseconds(clock()):x}"
    return f"{nonce}~{issued}~{_sign(token, 'code', str(port), nonce, issued)}"


def new_cookie(token: str, clock: Clock = time.time) -> str:
    """What a browser presents from now on."""
    expires = str(int(clock()) + COOKIE_SECONDS)
    return f"{expires}~{_sign(token, 'cookie', expires)}"


def is_cookie(token: str, value: str, clock: Clock = time.time) -> bool:
    """Whether this cookie was made with the token and has not expired."""
    expires, _, signature = value.partition("~")
    return _is_equal(signature, _sign(token, "cookie", expires)) and clock() < float(expires)


class Codes:
    """The codes that one server accepts."""

    def __init__(self, token: str, port: int, begun: float, clock: Clock = time.time) -> None:
        """`begun` is when the server started, before it made its first link."""
        self._token = token
        self._port = str(port)
        self._begun = begun
        self._clock = clock
        self._used: set[str] = set()

    def spend(self, code: str) -> str | None:
        """None if the code is valid, this once; else why not."""
        nonce, _, rest = code.partition("~")
        issued, _, signature = rest.partition("~")
        if not _is_equal(signature, _sign(self._token, "code", self._port, nonce, issued)):
            return "This link is not for this server"
        # Codes used before a restart are no longer known.
        if nonce in self._used or int(issued, 16) < _milliseconds(self._begun):
            return "This link was already used, or is from before a restart"
        if _milliseconds(self._clock()) - int(issued, 16) > _milliseconds(CODE_SECONDS):
            return "This link has expired"
        self._used.add(nonce)
        return None


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _sign(token: str, *parts: str) -> str:
    """128 bits, so that a link fits on a line."""
    digest = hmac.digest(_signing_key(token, runtime.runtime_dir()), "\n".join(parts).encode(), "sha256")
    return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")


@functools.lru_cache(maxsize=100)
def _signing_key(token: str, place: Path) -> bytes:
    """A token of somebody's own choice may be guessed, and nobody counts wrong cookies: the token in our file is needed
    as well."""
    own = read_token() if can_be_guessed(token) else ""
    return hmac.digest(own.encode(), token.encode(), "sha256") if own else token.encode()


def _is_equal(given: str, right: str) -> bool:
    return hmac.compare_digest(given.encode(), right.encode())

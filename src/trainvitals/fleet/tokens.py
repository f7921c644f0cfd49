"""Who may do what at a gateway: a file of tokens, of which only hashes are kept. Tested in tests/fleet/test_tokens.py.

    {"tokens": [{"name": "cluster-a", "role": "write", "projects": ["vision", "speech"], "sha256": "..."}]}

A token has 256 bits of chance, so a plain hash is enough: there is nothing to guess. The file is read again when it
changes, so a token can be added or taken away without a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import orjson

from trainvitals import runtime
from trainvitals.errors import TrainvitalsError

Role = Literal["write", "read", "admin"]
ROLES: tuple[str, ...] = get_args(Role)
ALL = "*"
MOST_BYTES = 16 << 20


class TokensError(TrainvitalsError):
    """The file of tokens cannot be used."""


@dataclass(frozen=True, slots=True)
class Access:
    """What the bearer of a token may do."""

    name: str
    role: str
    projects: frozenset[str]

    def may(self, role: Role, project: str) -> bool:
        """An admin may do everything, in its projects. Who writes reads how far it got; nothing else."""
        return self.role in (role, "admin") and (ALL in self.projects or project in self.projects)

    @property
    def readable(self) -> frozenset[str] | None:
        """The projects that a viewer sees; None for all."""
        return None if ALL in self.projects else self.projects


EVERYTHING = Access("this machine", "admin", frozenset({ALL}))


class Tokens:
    """The tokens of a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._stamp: object = None
        self._known: dict[bytes, Access] = {}
        self.refresh()

    def find(self, header: str) -> Access | None:
        """Of an `Authorization` header."""
        self.refresh()
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        digest = _hash(token.strip())
        # Compared with all, so that the time says nothing about how close a guess was.
        found = [access for known, access in self._known.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None

    def list(self) -> dict[str, Access]:
        """Those of the file as it is now, by the hash of each token."""
        self.refresh()
        return {digest.hex(): access for digest, access in self._known.items()}

    def refresh(self) -> None:
        """Read the file if it changed. One that became damaged changes nothing, for a gateway that runs."""
        try:
            status = self._file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamp:
                return
            self._known = _parse(read(self._file))
            self._stamp = stamp
        except (OSError, TokensError) as error:
            if self._stamp is None:
                reason = error.message if isinstance(error, TokensError) else error.strerror or str(error)
                raise TokensError(
                    f"cannot read the tokens in {self._file}: {reason}",
                    hint=f"make one: trainvitals gateway token NAME --project PROJECT --tokens {self._file}",
                ) from error


def read(file: Path) -> list[Mapping[str, Any]]:
    """The entries of the file. Raises OSError, TokensError."""
    try:
        found = orjson.loads(runtime.read_regular(file, MOST_BYTES))
    except orjson.JSONDecodeError as error:
        raise TokensError(f"it is not JSON: {error}") from error
    entries = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TokensError('it is not {"tokens": [...]}')
    return entries


def add(file: Path, name: str, role: str, projects: list[str]) -> str:
    """A new token, which is only told here. One of the same name is replaced."""
    try:
        entries = [entry for entry in read(file) if entry.get("name") != name]
    except FileNotFoundError:
        entries = []
    token = secrets.token_urlsafe(32)
    entries.append({"name": name, "role": role, "projects": projects, "sha256": _hash(token).hex()})
    _write(file, entries)
    return token


def remove(file: Path, name: str) -> bool:
    """Whether there was one of this name."""
    entries = read(file)
    left = [entry for entry in entries if entry.get("name") != name]
    _write(file, left)
    return len(left) < len(entries)


def _write(file: Path, entries: list[Mapping[str, Any]]) -> None:
    data = orjson.dumps({"tokens": entries}, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    runtime.write_atomically(file, data, 0o600)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def _parse(entries: list[Mapping[str, Any]]) -> dict[bytes, Access]:
    found = {}
    for number, entry in enumerate(entries, 1):
        name, role, projects, digest = (entry.get(key) for key in ("name", "role", "projects", "sha256"))
        what = f"entry {number} ({name})"
        if role not in ROLES:
            raise TokensError(f"{what} has the role {role!r}; roles are {', '.join(ROLES)}")
        if not isinstance(projects, list) or not all(isinstance(item, str) for item in projects):
            raise TokensError(f"{what} has no list of projects")
        try:
            key = bytes.fromhex(str(digest))
        except ValueError:
            key = b""
        if len(key) != 32:
            raise TokensError(f"{what} has no sha256")
        found[key] = Access(str(name), str(role), frozenset(projects))
    return found

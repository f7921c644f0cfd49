"""Who may do what at a gateway: a file of tokens, of which only hashes are kept. Tested in tests/fleet/test_tokens.py.

    {"tokens": [{"name": "cluster-a", "role": "write", "projects": ["vision", "speech"], "sha256": "...",
                 "limits": {"gb_per_day": 20}, "metrics_tenant": "ml"}],
     "limits": {"vision": {"gb_per_day": 50, "runs_per_day": 100, "runs": 5000}, "*": {"runs": 1000}}}

A token has 256 bits of chance, so a plain hash is enough: there is nothing to guess. The file is read again when it
changes, so a token can be added or taken away without a restart. `limits` are those of projects, `*` of each that is
not named; how they are counted is in `quotas`. `metrics_tenant` is the tenant of a metrics storage that the bearer's
pushes are for.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import orjson

from trainvitals import runtime
from trainvitals.errors import TrainvitalsError

Role = Literal["write", "read", "admin"]
ROLES: tuple[str, ...] = get_args(Role)
_TENANT = re.compile(r"[!-~]{0,150}")
"""What may stand in a header."""
ALL = "*"
MOST_BYTES = 16 << 20


class TokensError(TrainvitalsError):
    """The file of tokens cannot be used."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be shipped; None: as much as there is."""

    gb_per_day: float | None = None
    runs_per_day: int | None = None
    """New ones."""
    runs: int | None = None
    """Kept at a time."""

    @classmethod
    def parse(cls, what: str, data: object) -> Self:
        """Raises TokensError: a limit that is misspelt would be none."""
        found = data if isinstance(data, Mapping) else {"": data}
        for name, value in found.items():
            if name not in cls.__slots__:
                raise TokensError(f"{what} has the limit {name!r}; limits are {', '.join(cls.__slots__)}")
            kinds = (int, float) if name == "gb_per_day" else int
            if value is not None and not (isinstance(value, kinds) and type(value) is not bool and 0 <= value < 1e15):
                raise TokensError(f"{what} has {name} {value!r}, which is not a number")
        return cls(**found)

    def as_json(self) -> dict[str, float]:
        """Those that there are."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __bool__(self) -> bool:
        return bool(self.as_json())


@dataclass(frozen=True, slots=True)
class Access:
    """What the bearer of a token may do."""

    name: str
    role: str
    projects: frozenset[str]
    limits: Limits = field(default_factory=Limits)
    metrics_tenant: str = ""

    def find_metrics_tenant(self, asked: str | None) -> str | None:
        """The tenant for which hardware metrics are pushed. Only who may write every project may ask for any."""
        return self.metrics_tenant or (asked if ALL in self.projects else None)

    def may(self, role: Role, project: str) -> bool:
        """An admin may do everything, in its projects. Who writes reads how far it got; nothing else."""
        return self.role in (role, "admin") and (ALL in self.projects or project in self.projects)

    @property
    def readable(self) -> frozenset[str] | None:
        """The projects that a viewer sees; None for all."""
        return None if ALL in self.projects else self.projects


EVERYTHING = Access("this machine", "admin", frozenset({ALL}))


Tell = Callable[[str, str], None]
"""What became of a token or a project's limits, and its name."""


class Tokens:
    """The tokens of a file."""

    def __init__(self, file: Path, tell: Tell = lambda what, name: None) -> None:
        """`tell` hears of every change of the file, whoever made it."""
        self._file = file
        self._tell = tell
        self._stamp: object = None
        self._known: dict[bytes, Access] = {}
        self._limits: dict[str, Limits] = {}
        self._reading = threading.Lock()
        self.refresh()

    def find_limits(self, project: str) -> Limits:
        """Of a project."""
        self.refresh()
        return self._limits.get(project) or self._limits.get(ALL) or Limits()

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
            stamp = self._look()
            if stamp == self._stamp:
                return
            with self._reading:
                if stamp == self._stamp:
                    return
                found = read(self._file)
                known, limits = _parse(found["tokens"]), _parse_limits(found["limits"])
                before = self._known, self._limits
                is_first = self._stamp is None
                self._known, self._limits, self._stamp = known, limits, stamp
            if not is_first:
                for what, name in _compare(*before, known, limits):
                    self._tell(what, name)
        except (OSError, TokensError) as error:
            if self._stamp is None:
                reason = error.message if isinstance(error, TokensError) else error.strerror or str(error)
                raise TokensError(
                    f"cannot read the tokens in {self._file}: {reason}",
                    hint=f"make one: trainvitals gateway token NAME --project PROJECT --tokens {self._file}",
                ) from error

    def _look(self) -> tuple[int, int, int]:
        status = self._file.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


def read(file: Path) -> dict[str, Any]:
    """`tokens` and `limits` of the file. Raises OSError, TokensError."""
    try:
        found = orjson.loads(runtime.read_regular(file, MOST_BYTES))
    except orjson.JSONDecodeError as error:
        raise TokensError(f"it is not JSON: {error}") from error
    entries = found.get("tokens") if isinstance(found, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise TokensError('it is not {"tokens": [...]}')
    limits = found.get("limits", {})
    if not isinstance(limits, dict):
        raise TokensError('its "limits" are not by project')
    return {**found, "limits": limits}


def add(file: Path, name: str, role: str, projects: list[str], metrics_tenant: str = "") -> str:
    """A new token, which is only told here. One of the same name is replaced; its limits and tenant stay."""
    try:
        found = read(file)
    except FileNotFoundError:
        found = {"tokens": [], "limits": {}}
    before = [entry for entry in found["tokens"] if entry.get("name") == name]
    token = secrets.token_urlsafe(32)
    entry: dict[str, Any] = {"name": name, "role": role, "projects": projects, "sha256": _hash(token).hex()}
    if metrics_tenant:
        entry["metrics_tenant"] = _check_tenant(f"the token {name!r}", metrics_tenant)
    for kept in ("limits", "metrics_tenant"):
        if before and before[0].get(kept) and kept not in entry:
            entry[kept] = before[0][kept]
    found["tokens"] = [*(entry for entry in found["tokens"] if entry.get("name") != name), entry]
    _write(file, found)
    return token


def remove(file: Path, name: str) -> bool:
    """Whether there was one of this name."""
    found = read(file)
    left = [entry for entry in found["tokens"] if entry.get("name") != name]
    was_there = len(left) < len(found["tokens"])
    _write(file, {**found, "tokens": left})
    return was_there


def set_limits(file: Path, limits: Limits, *, project: str | None = None, token: str | None = None) -> bool:
    """Of a project, or of a token; none at all removes them. Whether there is such a token."""
    found = read(file)
    made = limits.as_json()
    entries = [entry for entry in found["tokens"] if token is not None and entry.get("name") == token]
    for entry in entries:
        entry["limits"] = made
    if project is not None:
        found["limits"][project] = made
        found["limits"] = {name: value for name, value in found["limits"].items() if value}
    _write(file, found)
    return token is None or bool(entries)


def _write(file: Path, found: Mapping[str, Any]) -> None:
    kept = {name: value for name, value in found.items() if value or name == "tokens"}
    data = orjson.dumps(kept, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        mode = stat.S_IMODE(file.stat().st_mode)  # a gateway of another user may have to read it
    except FileNotFoundError:
        mode = 0o600
    runtime.write_atomically(file, data, mode)


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
        limits = Limits.parse(what, entry.get("limits", {}))
        tenant = _check_tenant(what, entry.get("metrics_tenant", ""))
        found[key] = Access(str(name), str(role), frozenset(projects), limits, tenant)
    return found


def _check_tenant(what: str, tenant: object) -> str:
    if not isinstance(tenant, str) or _TENANT.fullmatch(tenant) is None:
        raise TokensError(f"{what} has the metrics_tenant {str(tenant)[:50]!r}, which no header can hold")
    return tenant


def _parse_limits(found: Mapping[str, Any]) -> dict[str, Limits]:
    return {project: Limits.parse(f"project {project!r}", data) for project, data in found.items()}


def _compare(
    tokens: Mapping[bytes, Access],
    limits: Mapping[str, Limits],
    new: Mapping[bytes, Access],
    others: Mapping[str, Limits],
) -> Iterator[tuple[str, str]]:
    """What changed, without a hash of any token."""
    before, after = ({access.name: (digest, access) for digest, access in known.items()} for known in (tokens, new))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield (
                ("token added" if name not in before else "token removed" if name not in after else "token changed"),
                name,
            )
    for project in sorted(limits.keys() | others.keys()):
        if limits.get(project) != others.get(project):
            yield "limits changed", project

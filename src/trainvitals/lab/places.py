"""What a user may type for a machine: `gpu1`, `alice@gpu3`, `gpu2:/data/runs`, `https://gpu4:8080`, `local`.

The name goes to the user's own ssh as one argument, and never through a shell. Still only names of hosts are taken: one
that begins with a dash would be an option of ssh, and ssh itself expands `%h` and the like in its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import urlsplit

from trainvitals.errors import SettingError
from trainvitals.safe_text import one_line
from trainvitals.settings.addresses import read_address
from trainvitals.settings.secrets import is_reference

LOCAL = "local"
"""This machine."""
MOST_MACHINES = 200

_HINT = (
    "such as gpu1, alice@gpu3, gpu2:/data/runs, https://gpu4:8080 or local; port, key and jump host of a machine "
    "belong into ~/.ssh/config"
)
_SSH = re.compile(
    r"(?P<target>(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}@)?(?:[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\]))"
    r"(?::(?P<folder>(?:/(?!/)|~/).*))?"
)


@dataclass(frozen=True, slots=True)
class Place:
    """One machine, and how it is reached."""

    name: str
    """Unique among those of a list."""
    way: Literal["local", "ssh", "http"]
    target: str = ""
    """What ssh is given, or the address of a server."""
    folder: str = ""
    """Of its runs; empty: what its own settings say."""
    token: str = field(default="", repr=False)


def parse_place(text: str) -> Place:
    """Raises SettingError for what names no machine."""
    text = text.strip()
    if text == LOCAL:
        return Place(LOCAL, "local")
    if text.startswith(("http://", "https://")) and "@" in text:
        raise SettingError(
            "do not pass a token on the command line", hint="store the URL in a variable and pass env:NAME"
        )
    if is_reference(text) or text.startswith(("http://", "https://")):
        return _parse_address(read_address(text), text)
    match = _SSH.fullmatch(text)
    if match is None or not text.isprintable():
        raise SettingError(f"'{one_line(text)[:80]}' is not a machine", hint=_HINT)
    target = match["target"].replace("[", "").replace("]", "")
    return Place(target, "ssh", target, match["folder"] or "")


def _parse_address(url: str, shown: str) -> Place:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    host = parts.hostname or ""
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9a-f:.]+", host) is not None
    if parts.scheme not in ("http", "https") or not plain or parts.path.strip("/") or parts.query or parts.fragment:
        where = shown if is_reference(shown) else one_line(shown.rpartition("@")[2])[:80]
        raise SettingError(f"'{where}' is not a server URL", hint="such as https://gpu4:8080")
    name = f"{host}:{port}" if port is not None else host
    netloc = f"[{host}]" if ":" in host else host
    target = f"{parts.scheme}://{netloc}" + (f":{port}" if port is not None else "")
    # The token as user or as password: `https://TOKEN@gpu4` is as good as `https://me:TOKEN@gpu4`.
    return Place(name, "http", target, token=parts.password or parts.username or "")


def parse_places(texts: Iterable[str]) -> tuple[Place, ...]:
    """Each machine once, each with a name that no other has."""
    found: dict[str, Place] = {}
    for text in texts:
        place = parse_place(text)
        if any(replace(place, name=known.name) == known for known in found.values()):
            continue
        name, count = place.name, 2
        while name in found:
            name, count = f"{place.name}-{count}", count + 1
        found[name] = replace(place, name=name)
    if len(found) > MOST_MACHINES:
        raise SettingError(f"{len(found)} machines are more than {MOST_MACHINES}")
    return tuple(found.values())


def machine_of(key: str, names: Iterable[str]) -> str:
    """Whose run that is, of these machines; empty if it is of none. A name may begin with another, and have a colon."""
    return max((name for name in names if key.startswith(f"{name}:")), key=len, default="")

"""Addresses of channels and metrics pages, kept so that a secret in an address is never written or shown.

An address is a text such as `ntfy://topic`, or refers to one: `env:NAME`, `file:PATH`, `keyring:SERVICE/USER`, or with
`${env:NAME}` inside. What is passed on to another process (`reference`) is never the secret itself but where it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from trainvitals.errors import SettingError
from trainvitals.settings.channels import find_channel
from trainvitals.settings.kinds import TEXTS, Kind
from trainvitals.settings.secrets import PLACES, Environment, is_reference, read_inside, read_secret

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
REFERENCES = (*PLACES, "config")
PRESETS = ("ray",)
"""Metrics pages that are found without an address."""
SHOWN = 12
UNSAFE = (
    "safe in an argument or a flag, because it holds a secret; put it in an environment variable and write env:NAME, "
    "or in trainvitals.yaml"
)


class Address(NamedTuple):
    """One channel or metrics page. `where` is the file or variable in which it was found, with the setting there:
    `trainvitals.yaml#alerts.notify`."""

    name: str
    url: str
    where: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it may be written and shown as it is."""
        from trainvitals.redaction import redact_text

        if self.url.partition(":")[0].lower() in (*REFERENCES, *PRESETS):
            return True
        without = re.sub(r"\$\{[^}]*\}", "", self.url)
        return find_channel(self.url).is_plain and redact_text(without) == without

    @property
    def reference(self) -> str:
        """A reference by which another process can find the address; empty if only this process knows it."""
        if self.is_open:
            return self.url
        return f"config:{self.where}#{self.name}" if self.where else ""

    @property
    def shown(self) -> str:
        """For people."""
        return self.url if self.is_open else f"{self.url.partition(':')[0]}:[redacted]"

    def __str__(self) -> str:
        return self.shown

    def __repr__(self) -> str:
        return f"Address({self.name!r}, {self.shown!r})"


class BadEntry(ValueError):
    """One of the addresses cannot be used; the others can."""

    def __init__(self, entry: object) -> None:
        super().__init__("an address such as ntfy://topic, env:SLACK_URL or bell:")
        text = str(entry)
        self.entry = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        """Enough to recognize it: without a scheme it may be a token."""


def _parse(value: object) -> tuple[Address, ...]:
    expected = "a list of addresses such as ntfy://topic, env:SLACK_URL or bell:, or a mapping of names to them"
    if isinstance(value, str):
        text = value.strip()
        value = [] if text.lower() in ("", "none") else re.split(r"\s+|,(?=[A-Za-z][A-Za-z0-9+.-]*:)", text)
    if isinstance(value, Mapping):
        pairs = [(str(name), url) for name, url in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [("", url) for url in value]
    else:
        raise ValueError(expected)
    found: dict[str, Address] = {}
    for name, item in pairs:
        if isinstance(item, Address):
            name, item, where = item
        elif isinstance(item, str):
            where = ""
        else:
            raise BadEntry(item)
        url = item.strip()
        scheme, colon, rest = url.partition(":")
        if not colon or not SCHEME.fullmatch(scheme) or (scheme in REFERENCES and not rest.strip("/")):
            raise BadEntry(item)
        if not name:
            name = rest.rpartition("#")[2] if scheme == "config" else scheme.lower()
        if name in found:
            count = 2
            while f"{name}-{count}" in found:
                count += 1
            name = f"{name}-{count}"
        found[name] = Address(name, url, where)
    return tuple(found.values())


def find_where(setting: str, origin: str, path: Path | None) -> str:
    """Where another process can read the value of a setting; empty if only this process knows it."""
    place = str(path) if path is not None else f"${origin}" if origin.startswith("TRAINVITALS_") else ""
    return f"{place}#{setting}" if place else ""


def place(addresses: tuple[Address, ...], where: str) -> tuple[Address, ...]:
    """The same, with where they are. ValueError if one with a secret is where no other process can find it."""
    placed = tuple(address if address.where else address._replace(where=where) for address in addresses)
    if not all(address.reference for address in placed):
        raise ValueError(UNSAFE)
    return placed


def read_address(url: str, environment: Environment = os.environ.get) -> str:
    """The address with every reference looked up, by the process that sends. SettingError names the one that could not
    be found, not its value."""
    if url.startswith("config:"):
        url = _read_config(url.removeprefix("config:"), environment)
    # The target of a reference may contain references itself, but not to another file.
    return read_inside(read_secret(url, environment) if is_reference(url) else url, environment)


def _read_config(rest: str, environment: Environment) -> str:
    """The address of that name in a configuration file, or in the variable that lists them."""
    where, _, name = rest.rpartition("#")
    try:
        found = {item.name: item.url for item in ADDRESSES.parse(read_value(where, environment) or [])}
    except ValueError:
        found = {}
    if name not in found:
        raise SettingError(f"'{name}' is no longer in {where.removeprefix('$')}")
    return found[name]


def read_value(where: str, environment: Environment) -> object:
    """The raw value of a setting where `find_where` has found it; None if it is no longer there."""
    from trainvitals.settings.files import read_text
    from trainvitals.settings.translation import read_entries

    place, _, setting = where.rpartition("#")
    if place.startswith("$"):
        return environment(place[1:])
    entries, _ = read_entries(Path(place), read_text(Path(place), place), place)
    return next((item for key, item, _ in entries if setting in (key, key.replace("_", ".", 1))), None)


ADDRESSES: Kind[tuple[Address, ...]] = Kind(
    "list of addresses", _parse, lambda value: ",".join(item.shown for item in value) or "none"
)


_PAGE = re.compile(rf"https?://[^\s/]|(?:env|keyring|config):.|file:(?!//).|(?:{'|'.join(PRESETS)}):(?:/|$)")


def _parse_pages(value: object) -> tuple[Address, ...]:
    expected = "a list of addresses that begin with http:// or https://, or env:NAME for one with a password"
    if isinstance(value, str) and value.strip() in PRESETS:
        value = f"{value.strip()}:"
    elif isinstance(value, (list, tuple)):
        value = [f"{item}:" if item in PRESETS else item for item in value]
    try:
        found = _parse(value)
    except ValueError:
        raise ValueError(expected) from None
    if not all(_PAGE.match(address.url) for address in found):
        raise ValueError(expected)
    return found


PAGES: Kind[tuple[Address, ...]] = Kind("list of URLs", _parse_pages, ADDRESSES.format)


def _parse_hosts(value: object) -> tuple[str, ...]:
    expected = "a list of machines such as gpu1, alice@gpu3 or https://gpu4:8080; env:NAME for an address with a token"
    try:
        found = TEXTS.parse(value)
    except ValueError:
        raise ValueError(expected) from None
    if any("://" in text and "@" in text for text in found):
        raise ValueError(expected)
    return found


HOSTS: Kind[tuple[str, ...]] = Kind("list of machines", _parse_hosts, TEXTS.format)

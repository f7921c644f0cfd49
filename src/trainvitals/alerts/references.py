"""Secrets by reference: `env:NAME`, `file:PATH`, `keyring:SERVICE/USER`, or `${env:NAME}` inside an address.

A secret is looked up when a message is sent, by the process that sends it. It is never written, shown or logged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

from trainvitals.errors import SettingError

_INSIDE = re.compile(r"\$\{(env|file|keyring):([^}]+)\}")
_KINDS = ("env", "file", "keyring", "config")

Environment = Callable[[str], str | None]


def resolve(url: str, environment: Environment = os.environ.get) -> str:
    """The address with every reference looked up. SettingError says which one could not be found, not its value."""
    kind, _, rest = url.partition(":")
    if kind in _KINDS:
        found = _look_up(kind, rest, environment)
        # What a reference leads to may hold references itself, but not lead on to another file.
        return _INSIDE.sub(lambda match: _look_up(match[1], match[2], environment), found)
    return _INSIDE.sub(lambda match: _look_up(match[1], match[2], environment), url)


def _look_up(kind: str, rest: str, environment: Environment) -> str:
    if kind == "env":
        value = environment(rest.strip())
        if not value:
            raise SettingError(f"the environment variable {rest.strip()} is not set", hint=f"export {rest.strip()}=...")
        return value.strip()
    if kind == "file":
        return _read_file(Path(rest.strip()))
    if kind == "keyring":
        return _read_keyring(rest.strip())
    return _read_config(rest, environment)


def _read_file(path: Path) -> str:
    try:
        text = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise SettingError(f"cannot read the secret in {path}: {reason}") from None
    if not text:
        raise SettingError(f"the file {path} is empty")
    return text


def _read_keyring(name: str) -> str:
    service, _, user = name.rpartition("/")
    try:
        keyring = import_module("keyring")
    except ImportError:
        raise SettingError("keyring: references need the package keyring", hint="pip install keyring") from None
    value = keyring.get_password(service or "trainvitals", user)
    if not value:
        raise SettingError(f"the keyring has no entry '{name}'", hint=f"keyring set {service or 'trainvitals'} {user}")
    return str(value)


def _read_config(rest: str, environment: Environment) -> str:
    """The address of that name in a configuration file, or in the variable that lists them."""
    from trainvitals.settings.addresses import ADDRESSES
    from trainvitals.settings.files import parse_file, read_text
    from trainvitals.settings.table import TABLE

    place, _, name = rest.rpartition("#")
    if place.startswith("$"):
        value: object = environment(place[1:])
    else:
        names = [row.name for row in TABLE]
        entries = parse_file(Path(place), read_text(Path(place), place), place, names)
        value = next((item for key, item, _ in entries if key in ("alerts.notify", "alerts_notify")), None)
    try:
        found = {item.name: item.url for item in ADDRESSES.parse(value or [])}
    except ValueError:
        found = {}
    if name not in found:
        raise SettingError(f"{place.removeprefix('$')} names no channel '{name}' any more")
    url = found[name]
    return resolve(url, environment) if not url.startswith("config:") else url


def process_environment(pid: int | None) -> Environment:
    """This process's environment, and behind it that of the training: the agent may be older than the shell the
    training was started from. What cannot be read is not there."""
    theirs: Mapping[str, str] = {}
    if pid is not None:
        import psutil

        try:
            theirs = psutil.Process(pid).environ()
        except (psutil.Error, OSError):
            theirs = {}

    def look(name: str) -> str | None:
        return theirs.get(name) or os.environ.get(name)

    return look

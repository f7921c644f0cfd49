"""Secrets are given by reference, and read by the process that needs them.

`env:NAME`, `file:PATH` or `keyring:SERVICE/USER`; inside a longer text `${env:NAME}`. So nothing secret is in a
registration, a run folder, or the output of `trainvitals config`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from trainvitals.errors import SettingError
from trainvitals.settings.kinds import TEXT, Kind, format_structure, parse_structure

PLACES = ("env", "file", "keyring")

Environment = Callable[[str], str | None]

_INSIDE = re.compile(rf"\$\{{({'|'.join(PLACES)}):([^}}]+)\}}")
_EXPECTED = "env:NAME, file:PATH or keyring:SERVICE/USER"


def is_reference(text: str) -> bool:
    """Whether this is a reference to a secret."""
    return text.partition(":")[0] in PLACES


def _parse_secret(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    kind, _, rest = text.partition(":")
    if not is_reference(text) or not rest.strip():
        raise ValueError(f"a reference to the secret: {_EXPECTED}, never the secret itself")
    # The process that reads it may be in another folder.
    return f"file:{Path(rest.strip()).expanduser().absolute()}" if kind == "file" else f"{kind}:{rest.strip()}"


SECRET: Kind[str] = Kind(_EXPECTED, _parse_secret)


def _address(pattern: str, such_as: str) -> Callable[[object], str]:
    """An address without a password in it, or a reference to one."""

    def parse(value: object) -> str:
        text = value.strip() if isinstance(value, str) else ""
        if is_reference(text):
            return _parse_secret(text)
        if not re.match(pattern, text) or _holds_secret(text):
            raise ValueError(f"an address {such_as} (with a password in it: {_EXPECTED})")
        return text

    return parse


TARGET: Kind[str] = Kind("address", _address(r"https?://[^\s/@]+(?:[/?]|$)", "http://... or https://..."))


STORE: Kind[str] = Kind("address", _address(r"clickhouses?://[^\s/]+(?:/|$)", "clickhouse://HOST:8123/DATABASE"))


def _parse_tracking_uri(value: object) -> str:
    text = str(value).strip() if isinstance(value, (str, os.PathLike)) else ""
    if text.startswith("databricks"):
        raise ValueError("supported: Databricks needs its own client")
    if text.startswith(("sqlite://", "postgresql", "mysql", "mssql")):
        if _holds_secret(text):
            raise ValueError(f"safe here, because it holds a password: {_EXPECTED}")
        return text
    folder = text.removeprefix("file://")
    if folder and (folder != text or not re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text)):
        return str(Path(folder).expanduser().absolute())
    return TARGET.parse(text)


TRACKING_URI: Kind[str] = Kind("address or folder", _parse_tracking_uri)


def _holds_secret(text: str) -> bool:
    from trainvitals.redaction import redact_text

    return redact_text(text) != text


def _parse_link(value: object) -> str:
    from trainvitals.redaction import redact_text

    return redact_text(TEXT.parse(value))


LINK: Kind[str] = Kind("text", _parse_link)
"""An address to show: what looks like a secret in it is removed, because it goes into every message."""


def _parse_targets(value: object) -> dict[str, str]:
    expected = f"a mapping of exporters to addresses (with a password in it: {_EXPECTED})"
    pairs = parse_structure(value, expected) or {}
    if not isinstance(pairs, dict) or not all(isinstance(text, str) and text.strip() for text in pairs.values()):
        raise ValueError(expected)
    found = {}
    for name, text in pairs.items():
        if not is_reference(text) and _holds_secret(text):
            raise ValueError(expected)
        found[str(name)] = _parse_secret(text) if is_reference(text) else text.strip()
    return found


TARGETS: Kind[dict[str, str]] = Kind("mapping of addresses", _parse_targets, format_structure)


def read_secret(reference: str, environment: Environment = os.environ.get) -> str:
    """The value of a reference. SettingError if it is missing; never with the value."""
    kind, _, rest = reference.partition(":")
    name = rest.strip()
    if kind == "env":
        value = (environment(name) or "").strip()
        if not value:
            raise SettingError(f"the environment variable {name} is not set", hint=f"export {name}=...")
        return value
    return _read_keyring(name) if kind == "keyring" else _read_file(Path(name))


def find_file(reference: str) -> Path | None:
    """The file that a reference names, which may be replaced by another one; None if it is elsewhere."""
    kind, _, rest = reference.partition(":")
    return Path(rest.strip()).expanduser() if kind == "file" else None


def read_inside(text: str, environment: Environment = os.environ.get) -> str:
    """The text with every `${env:NAME}` in it looked up."""
    return _INSIDE.sub(lambda match: read_secret(f"{match[1]}:{match[2]}", environment), text)


def _read_file(path: Path) -> str:
    try:
        value = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"cannot read the secret in {path}: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None
    if not value:
        raise SettingError(f"{path} is empty")
    return value


def _read_keyring(name: str) -> str:
    service, _, user = name.rpartition("/")
    service = service or "trainvitals"
    try:
        keyring = import_module("keyring")
    except ImportError:
        raise SettingError("keyring: references require the package keyring", hint="pip install keyring") from None
    try:
        value = keyring.get_password(service, user)
    except Exception as error:  # noqa: BLE001 - any backend may be behind it, locked or broken in a way of its own
        raise SettingError(f"cannot read '{name}' from the keyring: {type(error).__name__}") from None
    if not value:
        raise SettingError(f"the keyring has no entry '{name}'", hint=f"keyring set {service} {user}")
    return str(value)

"""Settings that are secrets: they are said by where they stand, and read by the process that needs them.

`env:NAME` or `file:PATH`. So nothing secret is in a registration, a run folder, or the output of `trainvitals config`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trainvitals.errors import SettingError
from trainvitals.settings.kinds import Kind


def _parse_secret(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    kind, colon, rest = text.partition(":")
    if kind not in ("env", "file") or not colon or not rest.strip():
        raise ValueError("where the secret stands: env:NAME or file:PATH, never the secret itself")
    return f"file:{Path(rest.strip()).expanduser().absolute()}" if kind == "file" else f"env:{rest.strip()}"


SECRET: Kind[str] = Kind("env:NAME or file:PATH", _parse_secret)


def _parse_target(value: object) -> str:
    text = value.strip() if isinstance(value, str) else ""
    if text.startswith(("env:", "file:")):
        return _parse_secret(text)
    if not re.match(r"https?://[^\s/@]+(?:[/?]|$)", text):
        raise ValueError("an address http://... or https://... (with a password in it: env:NAME or file:PATH)")
    return text


TARGET: Kind[str] = Kind("address", _parse_target)


def read_secret(reference: str, environ: Mapping[str, str] = os.environ) -> str:
    """What stands there. SettingError says that it is not there; never what it is."""
    kind, _, rest = reference.partition(":")
    if kind == "env":
        value = environ.get(rest, "").strip()
        if not value:
            raise SettingError(f"the environment variable {rest} is not set", hint=f"export {rest}=...")
        return value
    try:
        value = Path(rest).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"the secret in {rest} cannot be read: {getattr(error, 'strerror', None) or 'not text'}"
        ) from None
    if not value:
        raise SettingError(f"{rest} is empty")
    return value

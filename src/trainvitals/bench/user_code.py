"""The user's own functions, by name. Tested in tests/bench/test_worker.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from trainvitals.bench.unavailable import Unavailable


def import_callable(name: str) -> Any:
    """`module:callable`, looked up in the current folder first."""
    sys.path.insert(0, str(Path.cwd()))
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"cannot import {name}: {error}") from None
    return found

"""What the tests of this folder share."""

from __future__ import annotations

from typing import Any

import pytest

_begun: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def same_noise(request: pytest.FixtureRequest) -> None:
    """Every test of a module draws the same numbers from its `RANDOM`, in whatever order they run."""
    random = getattr(request.module, "RANDOM", None)
    if random is not None:
        random.bit_generator.state = _begun.setdefault(request.module.__name__, random.bit_generator.state)

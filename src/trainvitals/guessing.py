"""Which tokens can be guessed, and how often an address may try. Needs no server, as W&B's importer and mirror do not.
Tested in tests/views/web/test_login.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_WRONG, WRONG_SECONDS = 10, 60.0
"""Wrong tokens that an address may try within this time, if the right one can be guessed at all."""
UNGUESSABLE = 22
"""Characters of a token that cannot be guessed; a user's own choice may be shorter."""
MOST_ADDRESSES = 10_000

Clock = Callable[[], float]


def can_be_guessed(token: str) -> bool:
    """Whether somebody could come upon it by trying."""
    return 0 < len(token) < UNGUESSABLE


class WrongTokens:
    """How many wrong tokens each address tried recently. Codes, cookies and signatures are made with more than a short
    token, so nobody can try one with them. They and long tokens are not counted: other accounts come from the same
    address, and must not be able to lock anybody out."""

    def __init__(self, token: str, clock: Clock = time.monotonic) -> None:
        self._can_be_guessed = can_be_guessed(token)
        self._clock = clock
        self._tries: dict[str, tuple[float, int]] = {}

    def note(self, address: str) -> None:
        """Count a wrong token from this address."""
        if not self._can_be_guessed:
            return
        since, count = self._recent(address)
        self._tries.pop(address, None)
        if len(self._tries) >= MOST_ADDRESSES:
            del self._tries[next(iter(self._tries))]
        self._tries[address] = (since, count + 1)

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 if it may."""
        since, count = self._recent(address)
        return since + WRONG_SECONDS - self._clock() if count >= MOST_WRONG else 0.0

    def _recent(self, address: str) -> tuple[float, int]:
        now = self._clock()
        since, count = self._tries.get(address, (now, 0))
        return (since, count) if now - since < WRONG_SECONDS else (now, 0)

"""Who takes part in a run, as views choose and show them. Tested in tests/views/test_roles.py."""

from __future__ import annotations

from trainvitals.journal.contracts import Reader
from trainvitals.journal.identity import Participant


def lowest_of(reader: Reader) -> list[Participant]:
    """The one that speaks for the run where only one can be shown; empty if none has logged."""
    return reader.participants()[:1]


def choose_participants(reader: Reader, role: str | None, rank: int | None) -> list[Participant] | None:
    """Those of a role, of a rank, or the one of both; None for all. A rank alone is one of the lowest role."""
    if role is None and rank is None:
        return None
    known = reader.participants()
    role = role if role is not None else next((item.role for item in known), None)
    return [item for item in known if item.role == role and rank in (None, item.rank)]


def format_rank(participant: Participant) -> str:
    """In a column of ranks: `3`, `rollout 3`."""
    return participant.title.removeprefix("rank ")

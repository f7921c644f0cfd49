"""The participants of a run, for its summary: how many there were, and which came less far or ended otherwise.
Tested in tests/views/cli/test_summary.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo
from trainvitals.safe_text import one_line

MAX_RANKS = 4


class RankEnd(NamedTuple):
    """How far one participant came."""

    participant: Participant
    last_step: int | None
    """None if it logged nothing."""
    state: str | None
    """As its agent reported; None if none did."""

    def as_json(self) -> dict[str, Any]:
        return {**self.participant.labels, "last_step": self.last_step, "state": self.state}


def read_ranks(reader: Reader, info: RunInfo) -> list[RankEnd]:
    """Every participant of the newest attempt, in order; none if the run has only one."""
    known: dict[Participant, RankStatus] = {}
    for status in reader.statuses():
        # Else the agent died before the run.
        if status.attempt == info.attempt and (info.is_live or status.is_over):
            known |= status.participants()
    wrote = reader.participants(info.attempt)
    size = info.file.world_size or 1
    expected = [Participant(rank=rank) for rank in range(size)] if size > 1 else []
    found = sorted({*known, *wrote, *expected})
    if len(found) < 2:
        return []
    return [_read_rank(reader, item, known.get(item, RankStatus()), item in wrote) for item in found]


def _read_rank(reader: Reader, participant: Participant, known: RankStatus, wrote: bool) -> RankEnd:
    step = known.step
    if step is None and wrote:  # no agent watched it: from its files
        steps = (item.last_step for item in reader.summary(participant=participant).values())
        step = max((item for item in steps if item is not None), default=None)
    return RankEnd(participant, step, known.state)


def format_ranks(ranks: Sequence[RankEnd], status: str) -> str:
    """`4, all at step 99` or `4; rank 2 ended at step 57 (crashed), rank 3 logged nothing`; then the same of each other
    role: `rollout: 2, all at step 7`."""
    parts = []
    for role, group in groupby(ranks, key=lambda item: item.participant.role):
        members = list(group)
        text = _format_role(members, status)
        parts.append(text if members[0].participant.is_trainer else f"{role}: {text}")
    return "; ".join(parts)


def _format_role(ranks: Sequence[RankEnd], status: str) -> str:
    logged = [item for item in ranks if item.last_step is not None]
    if len(logged) == 1 and len(ranks) > 1:
        return f"{len(ranks):,}; only {logged[0].participant.title} logged"
    furthest = max((item.last_step for item in logged if item.last_step is not None), default=None)
    if furthest is None:
        return f"{len(ranks):,}; none logged a step"
    differ = [item for item in ranks if item.last_step != furthest or item.state not in (None, status)]
    if not differ:
        return f"{len(ranks):,}, all at step {furthest:,}"
    parts = [_format_rank(item, status) for item in differ[:MAX_RANKS]]
    if len(differ) > MAX_RANKS:
        parts.append(f"and {len(differ) - MAX_RANKS:,} more differ")
    return f"{len(ranks):,}, up to step {furthest:,}; {', '.join(parts)}"


def _format_rank(item: RankEnd, status: str) -> str:
    where = "logged nothing" if item.last_step is None else f"at step {item.last_step:,}"
    state = f" ({one_line(item.state)})" if item.state not in (None, status) else ""
    return f"{item.participant.title} {where}{state}"

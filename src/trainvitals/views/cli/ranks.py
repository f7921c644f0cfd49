"""The ranks of a run, for its summary: how many there were, and which of them came less far or ended otherwise.
Tested in tests/views/cli/test_summary.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.status import RankStatus
from trainvitals.journal.run_info import RunInfo
from trainvitals.views.data.safe_text import one_line

MAX_RANKS = 4


class RankEnd(NamedTuple):
    """How far one rank came."""

    rank: int
    last_step: int | None
    """None if it logged nothing."""
    state: str | None
    """As its agent said; None if none did."""


def read_ranks(reader: Reader, info: RunInfo) -> list[RankEnd]:
    """Every rank of the newest attempt, in order; none if the run has only one."""
    known: dict[int, RankStatus] = {}
    for status in reader.statuses():
        # Else the agent died before the run.
        if status.attempt == info.attempt and (info.is_live or status.is_over):
            known |= status.training_ranks()
    wrote = reader.ranks(info.attempt)
    ranks = sorted({*known, *wrote, *range(info.file.world_size or 0)})
    if len(ranks) < 2:
        return []
    return [_read_rank(reader, rank, known.get(rank, RankStatus()), rank in wrote) for rank in ranks]


def _read_rank(reader: Reader, rank: int, known: RankStatus, wrote: bool) -> RankEnd:
    step = known.step
    if step is None and wrote:  # no agent watched it: from its files
        steps = (item.last_step for item in reader.summary(rank=rank).values())
        step = max((item for item in steps if item is not None), default=None)
    return RankEnd(rank, step, known.state)


def format_ranks(ranks: Sequence[RankEnd], status: str) -> str:
    """`4, all at step 99` or `4; rank 2 ended at step 57 (crashed), rank 3 logged nothing`."""
    logged = [item for item in ranks if item.last_step is not None]
    if len(logged) == 1:
        return f"{len(ranks):,}; only rank {logged[0].rank} logged"
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
    return f"rank {item.rank} {where}{f' ({one_line(item.state)})' if item.state not in (None, status) else ''}"

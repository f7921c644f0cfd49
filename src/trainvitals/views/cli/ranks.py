"""The ranks of a run, for its summary: how many there were, and which of them came less far or ended otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.reader import RunReader
from trainvitals.journal.run_info import RunInfo
from trainvitals.views.data.run_rows import reported_ranks
from trainvitals.views.data.safe_text import one_line

MAX_RANKS = 4


class RankEnd(NamedTuple):
    """How far one rank came."""

    rank: int
    last_step: int | None
    """None if it logged nothing."""
    state: str | None
    """As its agent said; None if none did."""


def read_ranks(reader: RunReader, info: RunInfo) -> list[RankEnd]:
    """Every rank of the newest attempt, in order; none if the run has only one."""
    told: dict[int, Mapping[str, Any]] = {}
    for said in run_folder.read_statuses(reader.folder):
        is_last_word = info.is_live or said.get("state") in run_folder.ENDED  # else the agent died before the run
        if said.get("attempt") == info.attempt and is_last_word:
            told |= dict(reported_ranks(said))
    wrote = {
        name.rank
        for name, _, _ in layout.list_files(reader.folder)
        if name.table == "training" and name.attempt == info.attempt and name.rank is not None
    }
    size = info.details.get("world_size")
    ranks = sorted({*told, *wrote, *range(size if isinstance(size, int) else 0)})
    return [_read_rank(reader, rank, told.get(rank, {}), rank in wrote) for rank in ranks] if len(ranks) > 1 else []


def _read_rank(reader: RunReader, rank: int, told: Mapping[str, Any], wrote: bool) -> RankEnd:
    step, state = told.get("step"), told.get("state")
    if not isinstance(step, int) and wrote:  # no agent watched it: from its files
        step = max(
            (item.last_step for item in reader.summary(rank=rank).values() if item.last_step is not None), default=None
        )
    return RankEnd(rank, step if isinstance(step, int) else None, state if isinstance(state, str) else None)


def tell_ranks(ranks: Sequence[RankEnd], status: str) -> str:
    """`4, the last step of each is 99` or `4; rank 2 ended at step 57 (crashed), rank 3 logged nothing`."""
    logged = [item for item in ranks if item.last_step is not None]
    if len(logged) == 1:
        return f"{len(ranks):,}; only rank {logged[0].rank} logged"
    furthest = max((item.last_step for item in logged if item.last_step is not None), default=None)
    if furthest is None:
        return f"{len(ranks):,}; none logged a step"
    differ = [item for item in ranks if item.last_step != furthest or item.state not in (None, status)]
    if not differ:
        return f"{len(ranks):,}, the last step of each is {furthest:,}"
    parts = [_tell_rank(item, status) for item in differ[:MAX_RANKS]]
    if len(differ) > MAX_RANKS:
        parts.append(f"and {len(differ) - MAX_RANKS:,} more differ")
    return f"{len(ranks):,}; the furthest is at step {furthest:,}; {', '.join(parts)}"


def _tell_rank(item: RankEnd, status: str) -> str:
    where = "logged nothing" if item.last_step is None else f"at step {item.last_step:,}"
    return f"rank {item.rank} {where}{f' ({one_line(item.state)})' if item.state not in (None, status) else ''}"

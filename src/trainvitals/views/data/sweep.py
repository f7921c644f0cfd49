"""A sweep: what the runs of a search came to in one metric, which was the best, and which parameter mattered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from trainvitals.analysis.comparison import without_seed
from trainvitals.analysis.importance import find_importances
from trainvitals.analysis.metric_sense import better
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.status import Status
from trainvitals.views.data.comparison import decisive
from trainvitals.views.data.curves import common_names
from trainvitals.views.data.run_details import unit_of
from trainvitals.views.data.shapes import RowJson, SweepJson

Take = Literal["last", "min", "max"]
TAKES: tuple[Take, ...] = get_args(Take)


def describe_sweep(
    rows: Sequence[RowJson],
    read_statuses: Callable[[str], Sequence[Status]],
    *,
    metric: str = "",
    take: Take = "last",
) -> SweepJson:
    """Without `metric`, of the one that shows best how good the runs are. The seed is no parameter."""
    names = common_names(rows)
    name = metric or next(iter(decisive(names)), "")
    values = [_value(row, read_statuses, name, take) for row in rows]
    importances, interactions = find_importances([without_seed(row["config"]) for row in rows], values)
    direction = better(name)
    known = [(value, at) for at, value in enumerate(values) if value is not None and value == value]
    best = None
    if known and direction is not None:
        best = rows[(min(known) if direction == "lower" else max(known))[1]]["key"]
    return {
        "name": name,
        "take": take,
        "better": direction,
        "names": names,
        "runs": [row["key"] for row in rows],
        "values": values,
        "best": best,
        "importances": [item._asdict() for item in importances],
        "interactions": [item._asdict() for item in interactions],
        **unit_of("training", name),
    }


def _value(row: RowJson, read_statuses: Callable[[str], Sequence[Status]], name: str, take: Take) -> float | None:
    if take == "last":
        last = row["summary"].get(name)
        return None if last is None else float(last)  # rows say "NaN" where a number is not finite
    try:
        statuses = read_statuses(row["key"])
    except (TrainvitalsError, OSError):
        return None  # removed since it was listed
    current = [status for status in statuses if status.attempt in (None, row["attempt"])]
    found = Status.of_lowest(current).summary.get(name)
    return None if found is None else found.low if take == "min" else found.high

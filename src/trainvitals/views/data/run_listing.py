"""Runs on one line each as plain values, from the cache of rows where they are in it: then nothing is imported that
making a row needs, which takes longer than looking a thousand up. Tested in tests/views/test_same_answers.py."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.row_cache import Made

if TYPE_CHECKING:
    from trainvitals.journal.contracts import Runs
    from trainvitals.views.data.shapes import RowJson

MAX_OWN_SECONDS = 2.0
"""Of one listing, for the values of runs that no agent followed: what is left comes with the next listings."""


def list_json(runs: Runs, keys: Iterable[str]) -> list[RowJson]:
    """The runs as the API gives them: ended runs are read only when they changed. A run that was
    removed or is half-copied is left out, and one that cannot be shown is marked."""
    found = []
    until = time.monotonic() + MAX_OWN_SECONDS
    with _without_collector():
        for key in keys:
            try:
                found.append(recall_row(runs, key, until))
            except (TrainvitalsError, OSError):
                continue
            except Exception as error:  # noqa: BLE001 - a run may be anybody's: no other is kept from the list by it
                found.append(_mark(runs, key, error))
    runs.keep_rows()
    return found


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Looking for garbage takes as long as reading ten thousand rows, and they are none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _mark(runs: Runs, key: str, error: Exception) -> RowJson:
    from trainvitals.views.data.run_rows import describe_row, mark_row

    return describe_row(mark_row(runs, key, error))


def recall_row(runs: Runs, key: str, until: float) -> RowJson:
    """A run on one line. `until` there is time to read values that no agent noted."""

    def make() -> Made:
        from trainvitals.views.data.run_rows import add_own_values, describe_row, lacks_values, read_row

        row = read_row(runs, key)
        is_late = False
        if lacks_values(row) and runs.has_values(key):
            is_late = time.monotonic() > until
            row = row if is_late else add_own_values(row, lambda: runs.open(key))
        return Made({**describe_row(row)}, row.lasts and not is_late, row.info.file.created or "")

    found = cast("RowJson", runs.recall(key, make))
    # It depends on the names of other runs.
    return found if found["key"] == key else {**found, "key": key}

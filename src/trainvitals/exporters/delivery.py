"""What is left of a run for its exporters of rows, read from the files: after its end, or by a command.
Tested in tests/exporters/test_delivery.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from trainvitals.exporters.rows import RowRunner, RunEnd
from trainvitals.journal.documents.status import RowExport
from trainvitals.journal.follower import Relay

PIECE = 512 << 10
SAVE_SECONDS = 2.0
IDLE_SECONDS = 0.1

Save = Callable[[Mapping[str, RowExport]], None]


def deliver(
    runners: Sequence[RowRunner],
    relay: Relay,
    end: RunEnd | None,
    save: Save,
    *,
    stop: threading.Event,
    patience: float,
    progress: Callable[[Mapping[str, RowExport]], None] = lambda exports: None,
) -> bool:
    """Hand over all that is left and then the end, None for a live run. False if nothing was accepted for
    `patience` seconds, or `stop` was set: what was accepted is saved, and the rest is for another time. `save` may
    raise OSError."""
    for runner in runners:
        relay.add(runner, runner.has_room)
    saved, accepted, moved = time.monotonic(), -1, time.monotonic()
    complete = False
    while not stop.is_set():
        more = relay.poll(PIECE)
        if not more and not relay.waits and all(runner.has_all(relay) for runner in runners):
            complete = True
            break
        now = time.monotonic()
        exports = {runner.name: runner.describe() for runner in runners}
        progress(exports)
        written = sum(export.written + export.refused for export in exports.values())
        if written != accepted:
            accepted, moved = written, now
        elif now - moved > patience:
            break
        if now - saved > SAVE_SECONDS:
            saved = now
            save(exports)
        if not more:
            stop.wait(IDLE_SECONDS)
    relay.close()
    for runner in runners:
        runner.end(end if complete else None)
    closed = [runner.wait() for runner in runners]
    save({runner.name: runner.describe() for runner in runners})
    return complete and all(closed)

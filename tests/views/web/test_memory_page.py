"""The page in Chromium over runs that are kept in memory: no folder stands behind it."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn
from memory_runs import MemoryRun, MemoryRuns
from waiting import free_port, wait_until

from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.layout import FileName
from trainvitals.views.web.app import make_app

from .conftest import Tab

BEGAN = time.time() - 600
TRAINING = FileName("training", 1, "20260115_100000", rank=0)
EVENTS = FileName("events", 1, "20260115_100000", rank=0)


def row(step: int, loss: float) -> tuple[FileName, dict[str, object]]:
    return TRAINING, {"timestamp": format_time(BEGAN + step), "step": step, "loss": loss}


@contextlib.contextmanager
def served(runs: MemoryRuns) -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(make_app(runs, lambda *_: b""), port=port, log_level="error", timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_until(lambda: server.started, "the server")
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


def test_a_live_run_in_memory_is_listed_drawn_and_followed(open_tab: Callable[..., Tab]) -> None:
    file = RunFile.parse(
        {"id": "one", "project": "p", "name": "held", "status": "running", "started": format_time(BEGAN)}
    )
    run = MemoryRun(file, [row(step, 1.0 - step / 1000) for step in range(100)])
    with served(MemoryRuns(one=run)) as address:
        tab = open_tab()
        tab.page.goto(address)
        tab.page.get_by_role("link", name="held").click()
        tab.wait("document.querySelectorAll('.chart canvas').length >= 1")
        tab.wait("document.body.innerText.includes('99')")
        run.rows.append(row(12_345, 0.125))
        run.rows.append(
            (EVENTS, {"timestamp": format_time(BEGAN + 700), "event": "checkpoint", "message": "saved in memory"})
        )
        tab.wait("document.body.innerText.includes('12,345')")
        tab.wait("document.body.innerText.includes('0.125')")
        tab.page.goto(f"{address}#/run/one/logs")
        tab.wait(f"document.body.innerText.includes({json.dumps('saved in memory')})")
        tab.page.goto("about:blank")

"""A training in a program that gevent has patched: threads are greenlets, and locks, sleeps and sockets its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trainvitals.journal.reader import open_run


@pytest.mark.promise(
    "a program patched by gevent", "every row of every greenlet is written once, and the agent keeps sampling"
)
def test_greenlets_may_log_and_the_run_ends_as_it_should(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        from gevent import monkey
        monkey.patch_all()
        import threading, time
        import gevent
        import trainvitals
        run = trainvitals.init(project="p", simulate_gpus=1, interval=0.1, capture_git=False)
        def work(rank):
            for step in range(200):
                run.log({"loss": float(step), f"of_{rank}": step}, step=rank * 1000 + step)
                if step % 10 == 0:
                    gevent.sleep(0)
        gevent.joinall([gevent.spawn(work, rank) for rank in range(4)])
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4, 8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        while not list(run.folder.glob("gpu_metrics_*.jsonl")):
            time.sleep(0.05)
        run.finish()
        """
    )
    environment = {
        **os.environ,
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_AGENT_IDLE_TIMEOUT": "1",
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = open_run("latest", tmp_path / "runs")
    steps = [row["step"] for row in run.rows()]
    assert sorted(steps) == [rank * 1000 + step for rank in range(8) for step in range(200)]
    assert run.info.status == "finished"

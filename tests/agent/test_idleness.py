"""Whether a silent rank computes, by the CPU time of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from waiting import wait_until

from trainvitals.agent.idleness import Idleness


def test_a_process_that_sleeps_is_idle_and_one_whose_child_computes_is_not() -> None:
    busy = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'while True: pass'])"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        for script in ("import time; time.sleep(600)", busy)
    ]
    sleeping, working = (Idleness(process.pid) for process in processes)

    def look() -> bool:
        now = time.monotonic()
        working.measure(now)
        return sleeping.measure(now) > 3.0

    wait_until(look, "three idle seconds")
    wait_until(lambda: working.measure(time.monotonic()) == 0.0, "a look at the one that works")
    sleeping.reset()
    assert sleeping.measure(time.monotonic()) == 0.0
    for process in processes:
        os.killpg(process.pid, 9)
        process.wait()

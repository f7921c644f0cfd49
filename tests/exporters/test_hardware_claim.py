"""One agent of a machine pushes its hardware; the others push their runs, and take over when it is gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import wait_until

from trainvitals.exporters.hardware_claim import HardwareClaim

HOLD = """
import sys, time
from trainvitals.exporters.hardware_claim import HardwareClaim
claim = HardwareClaim(sys.argv[1])
print(claim.hold(), flush=True)
time.sleep(600)
"""


def test_the_next_one_has_it_when_the_first_is_killed(tmp_path: Path) -> None:
    target = f"http://127.0.0.1:1{tmp_path}"  # the claim is of the whole machine, where others may run this test too
    with subprocess.Popen([sys.executable, "-c", HOLD, target], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None and first.stdout.readline() == "True\n"
        mine, other = HardwareClaim(target), HardwareClaim(f"{target}/elsewhere")
        assert not mine.hold() and other.hold(), "another server is another matter"
        first.kill()
        first.wait()
    wait_until(mine.hold, "the claim of the one that was killed")
    assert mine.hold() and not HardwareClaim(target).hold()
    mine.release()
    again = HardwareClaim(target)
    assert again.hold()
    again.release()
    other.release()

"""The clock of a machine that is set wrong: with this folder in PYTHONPATH, the time of day is CLOCK_SHIFT seconds
later for a Python process. Files keep the time of their file system, and the monotonic clock is as it was."""

from __future__ import annotations

import os
import time

shift = float(os.environ.get("CLOCK_SHIFT", "0"))
seconds, nanoseconds = time.time, time.time_ns
in_utc, in_local, spell = time.gmtime, time.localtime, time.strftime
time.time = lambda: seconds() + shift
time.time_ns = lambda: nanoseconds() + int(shift * 1e9)
time.gmtime = lambda moment=None: in_utc(time.time() if moment is None else moment)
time.localtime = lambda moment=None: in_local(time.time() if moment is None else moment)
time.strftime = lambda form, moment=None: spell(form, time.localtime() if moment is None else moment)

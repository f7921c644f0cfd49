"""On PYTHONPATH of the programs with gloo ranks, so that they end with their own exit code.

torch 2.13 aborts a process that finalizes Python while a worker of gloo still lets go of the last collective: the
worker asks for the interpreter's lock and is killed (issue 190489 of pytorch). Programs that know nothing of
trainvitals do so too, the more often the busier the machine. Half a second of idleness lets the worker end first, and
more where others want the cores as well.
"""

import atexit
import os
import time

atexit.register(time.sleep, 0.5 + 0.2 * os.getloadavg()[0] / (os.cpu_count() or 1))

"""`python -P -m trainvitals.agent`: be the agent of this machine and user, unless there is one already."""

from __future__ import annotations

import argparse
import os
import sys

from trainvitals.agent.loop import Agent


def main(arguments: list[str] | None = None) -> int:
    """Run until idle or stopped. `trainvitals agent` calls this with its own flags."""
    parser = argparse.ArgumentParser(prog="python -m trainvitals.agent", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="keep running and sampling without a run (as a service)")
    parser.add_argument("--foreground", action="store_true", help="also log to standard error")
    options = parser.parse_args(arguments)
    return Agent(keep=options.keep, echo=options.foreground).run()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Threads that hang in a driver must not keep the process from ending, nor be there when Python is torn down.
    os._exit(code)

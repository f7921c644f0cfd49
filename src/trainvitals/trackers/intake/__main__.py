"""`python -m trainvitals.trackers.intake`: what programs below `trainvitals run` start by themselves."""

from __future__ import annotations

import sys

from trainvitals.trackers.intake.process import main

if __name__ == "__main__":
    sys.exit(main())

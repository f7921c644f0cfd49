"""`python -m trainvitals.trackers.program_files RUN-FOLDER`: what the agent starts."""

from __future__ import annotations

import sys

from trainvitals.trackers.program_files.following import main

if __name__ == "__main__":
    sys.exit(main())

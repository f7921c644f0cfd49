"""`python -m trainvitals` is `trainvitals`."""

import sys

from trainvitals.views.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m trainvitals.alerts > docs/rules.md`."""

from __future__ import annotations

import sys

from trainvitals.alerts.builtin import render_markdown

if __name__ == "__main__":
    sys.stdout.write(render_markdown())

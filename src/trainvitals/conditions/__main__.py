"""`python -m trainvitals.conditions > docs/rules.md`"""

import sys

from trainvitals.conditions.reference import render_markdown

if __name__ == "__main__":
    sys.stdout.write(render_markdown())

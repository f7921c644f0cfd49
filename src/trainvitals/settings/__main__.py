"""`python -m trainvitals.settings > docs/settings.md`"""

import sys

from trainvitals.settings.reference import render_markdown

if __name__ == "__main__":
    sys.stdout.write(render_markdown())

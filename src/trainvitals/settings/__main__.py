"""`python -m trainvitals.settings > docs/settings.md`"""

import sys

from trainvitals.settings.docs_page import render_markdown

if __name__ == "__main__":
    sys.stdout.write(render_markdown())

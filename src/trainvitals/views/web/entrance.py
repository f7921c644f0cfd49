"""The login page. It is self-contained: nothing else is served without the token.

Tested in tests/views/web/test_gate.py.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape

# The colours and sizes of web/src/style.css; the theme is the system's, for only the page knows the user's choice.
_STYLE = """
:root { color-scheme: dark light; --page: #0e1318; --panel: #161d24; --raised: #1e2730; --line: #2a3540;
  --text: #e6ecf1; --dim: #9aa8b4; --accent: #5db7f5; }
@media (prefers-color-scheme: light) { :root { --page: #f3f5f7; --panel: #ffffff; --raised: #eef2f5; --line: #d5dde4;
  --text: #17212a; --dim: #55636f; --accent: #0067a8; } }
* { box-sizing: border-box; margin: 0; }
body { min-height: 100vh; display: grid; place-items: center; padding: 20px; background: var(--page);
  color: var(--text); font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans",
  sans-serif; }
main { width: 100%; max-width: 520px; padding: 24px; display: grid; gap: 12px; background: var(--panel);
  border: 1px solid var(--line); border-radius: 8px; }
.brand { display: flex; align-items: center; gap: 10px; font-weight: 650; font-size: 15px; }
.brand svg { width: 24px; height: 24px; color: var(--accent); }
h1 { font-size: 17px; font-weight: 650; }
p { color: var(--dim); }
pre { padding: 10px 12px; background: var(--raised); border: 1px solid var(--line); border-radius: 6px;
  font: 13px/1.45 ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; user-select: all; }
"""

_BRAND = (
    '<svg viewBox="0 0 32 32" aria-hidden="true"><path d="M3 18h7l3-9 5 15 4-11 2 5h5" fill="none" '
    'stroke="currentColor" stroke-width="2.6" stroke-linejoin="round" stroke-linecap="round"/></svg>'
)

POLICY = (
    f"default-src 'none'; style-src 'sha256-{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The content security policy under which these pages show their own style, and nothing else happens."""


def draw_entrance(problem: str, command: str, viewers_host: str = "") -> str:
    """What is wrong, and the command that prints a new link. With `viewers_host`, where the browser found the server,
    also what a viewer who was given a token does."""
    if not viewers_host:
        return _draw(
            f"<h1>{escape(problem)}</h1>"
            "<p>For a new link, run this on the server's machine, as the user who started it:</p>"
            f"<pre>{escape(command)}</pre>"
            "<p>A link works once. This browser is then remembered for 30 days.</p>"
        )
    return _draw(
        f"<h1>{escape(problem)}</h1>"
        "<p>With a token for your projects, open this address once, with the token in place of TOKEN:</p>"
        f"<pre>{escape(viewers_host)}/?token=TOKEN</pre>"
        "<p>This browser is then remembered for 30 days, and the token is not kept in the address. "
        "Whoever runs this server gives out tokens.</p>"
        "<p>Whoever started the server sees all projects, with a link from:</p>"
        f"<pre>{escape(command)}</pre>"
    )


def draw_step(target: str) -> str:
    """A page that redirects to another of ours."""
    where = escape(target)
    return _draw(
        f'<p><a href="{where}">Open the dashboard</a></p>', f'<meta http-equiv="refresh" content="0;url={where}">'
    )


def _draw(content: str, head: str = "") -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>trainvitals</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{head}<style>{_STYLE}</style></head>'
        f'<body><main><div class="brand">{_BRAND}<span>trainvitals</span></div>{content}</main></body></html>'
    )

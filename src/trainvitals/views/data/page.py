"""The built page: its files, and the same as one file with data inside. Tested in tests/views/web/test_build.py."""

from __future__ import annotations

import base64
import gzip
import re
from pathlib import Path

from trainvitals.errors import TrainvitalsError

FOLDER = Path(__file__).parents[1] / "web" / "static"
MARKER = "<!--DATA-->"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
}
REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def read_assets(folder: Path = FOLDER) -> dict[str, tuple[bytes, str]]:
    """Every file of the page by its name, with its media type."""
    found = {
        path.name: (path.read_bytes(), TYPES[path.suffix])
        for path in (folder.iterdir() if folder.is_dir() else ())
        if path.suffix in TYPES
    }
    if "index.html" not in found:
        raise TrainvitalsError(
            "the web page was not built when trainvitals was installed",
            hint="reinstall: pip install --force-reinstall --no-deps trainvitals (or 'pip install .')",
        )
    return found


def make_single_file(data: bytes, folder: Path = FOLDER) -> bytes:
    """The page as one HTML file that opens from disk: scripts, styles and `data` (JSON) inside."""
    assets = read_assets(folder)
    page = assets["index.html"][0].decode()
    if MARKER not in page:
        raise TrainvitalsError("the web page has no place for data", hint="rebuild it: pip install .")
    style = assets["app.css"][0].decode().replace("</", "<\\/")
    script = assets["app.js"][0].decode().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    packed = base64.b64encode(gzip.compress(data, 9, mtime=0)).decode()
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{REPORT_POLICY}" />'
        f'<script type="application/json" id="data" data-encoding="gzip">{packed}</script>'
    )
    page = page.replace(MARKER, head, 1)
    # Functions as replacements: a backslash in the script is not a group reference.
    page = re.sub(r'<link rel="stylesheet"[^>]*href="\./app\.css"[^>]*>', lambda _: f"<style>{style}</style>", page)
    page = re.sub(r'<script type="module"[^>]*src="\./app\.js"[^>]*></script>', lambda _: "", page)
    # A module runs after the page is parsed; inline it is at the end for the same effect.
    return page.replace("</body>", f'<script type="module">{script}</script></body>', 1).encode()

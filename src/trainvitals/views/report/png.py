"""SVG as PNG with resvg, which draws text only where it finds a font. Tested in tests/views/report/test_svg.py."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

from trainvitals.errors import TrainvitalsError

HINT = "pip install 'trainvitals[report]'"


def draw_png(svg: str, zoom: float = 2.0) -> bytes:
    """The picture, `zoom` pixels for each unit of the SVG; raises if resvg or every font is missing."""
    if find_spec("resvg_py") is None:
        raise TrainvitalsError("writing PNG needs the package resvg-py", hint=f"{HINT}, or write an SVG: --format svg")
    if not has_font():
        raise TrainvitalsError(
            "no font found to draw the text of a chart",
            hint=f"{HINT}, or install a font such as fonts-dejavu-core, or write an SVG: --format svg",
        )
    return _render(svg, zoom)


def _render(svg: str, zoom: float = 1.0) -> bytes:
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=zoom, font_files=list(find_fonts()) or None))


@cache
def find_fonts() -> tuple[str, ...]:
    """Font files that came with the extra; those of the system are known to resvg itself."""
    found = find_spec("font_source_sans_pro")
    if found is None or found.origin is None:
        return ()
    files = Path(found.origin).parent / "files"
    names = ("SourceSansPro-Regular.ttf", "SourceSansPro-Semibold.ttf")
    return tuple(str(files / name) for name in names if (files / name).is_file())


@cache
def has_font() -> bool:
    """Whether text shows: drawn with and without, the pictures differ."""
    from trainvitals.views.report.svg import draw_text

    frame = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40">{}</svg>'
    return _render(frame.format(draw_text("0", 5, 30, 30, "#000000"))) != _render(frame.format(""))

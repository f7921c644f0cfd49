"""Makes the pictures of many runs in docs/images: real screens of Chromium, of simulated runs, which the page says.

python docs/make_sweep_images.py

Needs playwright and Chromium.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "benchmarks")]

from made_sweep import make_sweep  # noqa: E402
from make_web_images import IMAGES, take  # noqa: E402

from web import browser, server  # noqa: E402


def main() -> None:
    for name, view, theme, height, runs, steps, seeds in (
        ("web-run-charts", "charts", "dark", 720, 48, 400, 4),
        ("web-run-sweep", "sweep", "light", 960, 300, 0, 1),
    ):
        with tempfile.TemporaryDirectory() as place:
            make_sweep(Path(place), runs, steps=steps, seeds=seeds)
            with server(Path(place)) as (base, _), browser() as chromium:
                take(chromium, f"{base}#/runs?view={view}", IMAGES / f"{name}.png", 1440, height, theme)


if __name__ == "__main__":
    main()

"""Makes the picture of the fleet page in docs/images: a real screen of Chromium, of simulated GPUs, which it says.

python docs/make_fleet_image.py

Needs playwright and Chromium.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "benchmarks")]

from made_fleet import make_fleet  # noqa: E402
from make_web_images import IMAGES, take  # noqa: E402

from web import browser, server  # noqa: E402


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        make_fleet(Path(place), 64, time.time())
        with server(Path(place)) as (base, _), browser() as chromium:
            address = f"{base}#/fleet?node=node-022"
            take(chromium, address, IMAGES / "web-fleet.png", 1440, 1000, "dark", ".racks .node")


if __name__ == "__main__":
    main()

"""Makes the pictures of the web dashboard in docs/images: real screens of Chromium, of a real run.

    python docs/make_web_images.py

Runs `trainvitals demo` twice with eight simulated GPUs (the pictures say so), serves the folder, and takes the overview
while the second runs, then the other pages in both themes, on a desk and on a phone. Needs playwright and Chromium.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
SECONDS = 40


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        os.environ["TRAINVITALS_RUNTIME_DIR"] = f"{place}/runtime"
        runs = f"{place}/runs"
        program = [sys.executable, "-m", "trainvitals"]
        flags = ["--seconds", str(SECONDS), "--dir", runs, "--simulate-gpus", "8"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        demos = [[*program, "demo", *flags, "--steps", steps] for steps in ("900", "1200")]
        subprocess.run(demos[0], check=True, cwd=place, **quiet)  # type: ignore[call-overload]
        server = subprocess.Popen(
            [*program, "serve", "--dir", runs, "--port", "0", "--no-token"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=place,
        )
        second = subprocess.Popen(demos[1], cwd=place, **quiet)  # type: ignore[call-overload]
        try:
            assert server.stdout is not None
            base = server.stdout.readline().removeprefix("dashboard: ").strip()
            take_all(base, Path(runs), second)
        finally:
            second.wait()
            server.terminate()
            server.wait()


def take_all(base: str, runs: Path, second: subprocess.Popen[bytes]) -> None:
    from playwright.sync_api import sync_playwright

    while len(keys := sorted(path.parent.name for path in runs.glob("*/*/run.json"))) < 2:
        time.sleep(0.2)
    newest = keys[-1]
    both = "&".join(f"run={key}" for key in keys)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("TRAINVITALS_TEST_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        alive = IMAGES / "web-overview.png"
        take(browser, f"{base}#/run/{newest}/overview", alive, 1440, 1000, "dark", "progress[value^='0.7']")
        second.wait()
        for name, address, width, height, theme in (
            ("web-system", f"#/run/{newest}/system", 1440, 1000, "light"),
            ("web-compare", f"#/compare?{both}", 1440, 1000, "light"),
            ("web-phone", f"#/run/{newest}/training", 390, 844, "dark"),
        ):
            take(browser, base + address, IMAGES / f"{name}.png", width, height, theme)
        browser.close()


def take(
    browser: Any, address: str, file: Path, width: int, height: int, theme: str, until: str = ".chart canvas"
) -> None:
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(until, timeout=2000 * SECONDS)
    page.wait_for_timeout(1500)
    page.screenshot(path=str(file))
    context.close()


if __name__ == "__main__":
    main()

"""Makes the pictures of the web dashboard in docs/images: real screens of Chromium, of a real run.

    python docs/make_web_images.py

Runs `trainvitals demo` twice with eight simulated GPUs (the pictures say so), serves the folder, and takes the overview
while the second runs, then the other pages in both themes, on a desk and on a phone; last, a training in a real
JupyterLab. Needs playwright, Chromium and jupyterlab.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "images"
SECONDS = 40
CELL = """import trainvitals

run = trainvitals.init(project="mnist", name="wide-resnet", config={"lr": 3e-4})
run"""
TRAINING = """import math, random, time

for step in range(2000):
    loss = 2.4 * math.exp(-step / 700) + random.gauss(0, 0.04)
    run.log(
        {
            "loss": loss,
            "accuracy": 1 - math.exp(-step / 700) * 0.9 + random.gauss(0, 0.01),
            "lr": 3e-4 * min(step / 300, 1),
            "grad_norm": math.exp(random.gauss(0, 0.2)),
            "batch_time": random.gauss(0.02, 0.0008),
        },
        step=step,
    )
    if step % 100 == 0:
        run.log({"val/loss": loss + 0.1}, step=step)
    time.sleep(0.01)"""
PROJECT = "demo"
PANELS = [
    {"id": "a", "title": "Loss, and its average", "items": ["loss", "ema(loss, 0.98)"]},
    {"id": "b", "title": "Gradient norm per loss", "items": ["gradient_norm / loss"]},
    {"id": "c", "title": "Accuracy by epoch", "items": ["accuracy"], "x": "epoch"},
]


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
        take_notebook(Path(place))


def take_all(base: str, runs: Path, second: subprocess.Popen[bytes]) -> None:
    from playwright.sync_api import sync_playwright

    while len(keys := sorted(path.parent.name for path in runs.glob("*/*/run.json"))) < 2:
        time.sleep(0.2)
    newest = keys[-1]
    both = "&".join(f"run={key}" for key in keys)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        alive = IMAGES / "web-overview.png"
        take(browser, f"{base}#/run/{newest}/overview", alive, 1440, 1000, "dark", "progress[value^='0.7']")
        second.wait()
        for name, address, width, height, theme in (
            ("web-system", f"#/run/{newest}/system", 1440, 1000, "light"),
            ("web-compare", f"#/compare?{both}", 1440, 1000, "light"),
            ("web-phone", f"#/run/{newest}/training", 390, 844, "dark"),
        ):
            take(browser, base + address, IMAGES / f"{name}.png", width, height, theme)
        (runs / PROJECT / "view.json").write_text(json.dumps({"format": 1, "panels": PANELS}))
        take(browser, f"{base}#/run/{newest}/training", IMAGES / "web-panels.png", 1440, 700, "light")
        browser.close()


def take_notebook(place: Path) -> None:
    """A run below its cell, while the cell after it trains."""
    import nbformat
    from playwright.sync_api import sync_playwright

    cells = [nbformat.v4.new_code_cell(code) for code in (CELL, TRAINING)]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=kernel), place / "train.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {f"JUPYTER_{name}_DIR": f"{place}/jupyter-{name.lower()}" for name in ("CONFIG", "DATA", "RUNTIME")}
    own |= {"IPYTHONDIR": f"{place}/ipython", "TRAINVITALS_DIR": f"{place}/notebook-runs", "TRAINVITALS_AGENT": "0"}
    options = [f"--port={port}", "--no-browser", "--allow-root", "--IdentityProvider.token=", "--LabApp.news_url=None"]
    lab = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        cwd=place,
        env=os.environ | own,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with sync_playwright() as playwright:
            browser = launch(playwright)
            page = browser.new_page(viewport={"width": 1280, "height": 1400})
            page.set_default_timeout(2000 * SECONDS)
            while not is_listening(port):
                time.sleep(0.2)
            page.goto(f"http://127.0.0.1:{port}/lab/tree/train.ipynb")
            page.wait_for_selector(".jp-Notebook .jp-CodeCell")
            kernels = f"http://127.0.0.1:{port}/api/kernels"
            while '"idle"' not in page.request.get(kernels).text():
                time.sleep(0.2)
            page.click(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
            for _ in range(2):
                page.keyboard.press("Shift+Enter")
            source = "decodeURIComponent(document.querySelector('.jp-OutputArea-output img')?.src)"
            page.wait_for_function(f"/last step 1,/.test({source})")
            cell = page.locator(".jp-Notebook .jp-CodeCell").first
            cell.scroll_into_view_if_needed()
            cell.screenshot(path=str(IMAGES / "notebook.png"))
            browser.close()
    finally:
        lab.terminate()
        lab.wait()


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def launch(playwright: Any) -> Any:
    return playwright.chromium.launch(
        executable_path=os.environ.get("TRAINVITALS_TEST_CHROMIUM") or shutil.which("chromium"),
        args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    )


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

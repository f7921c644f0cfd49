"""A run in a real JupyterLab in Chromium: drawn below its cell, redrawn while it trains, there after the kernel."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
import psutil
import pytest
from waiting import PATIENCE, free_port, wait_until

TOKEN = "for-this-test"
IMAGE = ".jp-OutputArea-output img"


class Lab:
    """A JupyterLab for the notebooks of `place`."""

    def __init__(self, place: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        own = {name: str(place / name.lower()) for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
        own |= {"JUPYTER_RUNTIME_DIR": str(place / "jupyter"), "TRAINVITALS_RUNTIME_DIR": str(place / "runtime")}
        own |= {"TRAINVITALS_DIR": str(place / "runs"), "TRAINVITALS_AGENT": "0"}
        port = self.url.rpartition(":")[2]
        options = [f"--port={port}", "--no-browser", "--allow-root", f"--IdentityProvider.token={TOKEN}"]
        options += ["--ServerApp.port_retries=0", f"--ServerApp.root_dir={place}", "--LabApp.news_url=None"]
        with open(place / "jupyterlab.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", *options],
                env={**os.environ, **own},
                cwd=place,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self.ask("/api") is not None, lambda: (place / "jupyterlab.log").read_text())

    def ask(self, path: str, method: str = "GET") -> Any:
        """None while it does not answer."""
        headers = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, ConnectionError):
            assert self.process.poll() is None, "JupyterLab has ended"
            return None

    def stop(self) -> None:
        """At once: asked to end, it would wait a minute for a kernel that a page has only begun to start."""
        family = [*psutil.Process(self.process.pid).children(recursive=True), self.process]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        self.process.wait(PATIENCE)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.stop()


def texts_of(page: Any) -> str:
    """The words in the picture below the cell; empty while there is none. JupyterLab shows SVG as an image."""
    found = page.evaluate(f"[...document.querySelectorAll({IMAGE!r})].map((image) => image.src)")
    (source,) = found or [""]
    return " | ".join(re.findall(r"<text[^>]*>([^<]*)", unquote(source)))


def is_drawn(page: Any) -> bool:
    """Whether the browser could make a picture of it, and shows all of it."""
    whole = "image.getBoundingClientRect().right <= image.closest('.jp-OutputArea').getBoundingClientRect().right"
    drawn = f"(image) => image && image.naturalWidth > 500 && {whole}"
    return bool(page.evaluate(f"({drawn})(document.querySelector({IMAGE!r}))"))


def test_a_run_is_seen_while_it_trains_and_after_its_kernel(tmp_path: Path, lab: Lab, browser: Any) -> None:
    enough = tmp_path / "enough"
    code = f"""import os, time, trainvitals
run = trainvitals.init(project="p", name="in-a-notebook")
trainvitals.show(run)
step = 0
while not os.path.exists({str(enough)!r}):
    run.log({{"loss": 1 / (step + 1)}}, step=step)
    step += 1
    time.sleep(0.01)
run.finish()"""
    cell = nbformat.v4.new_code_cell(code)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = tmp_path / "train.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=kernel), path)

    page = browser.new_page(viewport={"width": 1280, "height": 1100})
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(f"{lab.url}/lab/tree/train.ipynb?token={TOKEN}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell")
    wait_until(lambda: [k for k in lab.ask("/api/kernels") or [] if k["execution_state"] == "idle"], "a kernel")
    page.click(".jp-Notebook .jp-CodeCell .jp-InputArea-editor")
    page.keyboard.press("Control+Enter")

    early = wait_until(lambda: re.search(r"last step [\d,]+", texts_of(page)), "a picture")[0]
    wait_until(lambda: "last step" in texts_of(page) and early not in texts_of(page).split(" | "), "another picture")
    # It is replaced all the time: for a moment there is none, or one that the browser has not drawn yet.
    wait_until(lambda: "running" in texts_of(page), "the state of the run")
    wait_until(lambda: is_drawn(page), "a picture that is drawn")
    enough.touch()
    last = wait_until(lambda: re.search(r".*finished, last step.*", texts_of(page)), "the end of the run")[0]
    page.keyboard.press("Control+s")
    wait_until(lambda: "finished, last step" in path.read_text(), "the saved notebook")

    (running,) = lab.ask("/api/kernels")
    lab.ask(f"/api/kernels/{running['id']}", "DELETE")
    wait_until(lambda: lab.ask("/api/kernels") == [], "the end of the kernel")
    page.goto(f"{lab.url}/lab/tree/train.ipynb?reset")
    wait_until(lambda: texts_of(page) == last, "the picture that was saved")
    wait_until(lambda: is_drawn(page))

    # Somebody else's notebook is not trusted: JupyterLab shows no SVG of it, and so the other picture.
    other = nbformat.read(path, as_version=4)
    other.cells[0].source += "\n"
    nbformat.write(other, tmp_path / "other.ipynb")
    page.goto(f"{lab.url}/lab/tree/other.ipynb?reset")
    page.wait_for_selector(IMAGE)
    source = page.get_attribute(IMAGE, "src")
    assert source.startswith("data:image/png")
    wait_until(lambda: is_drawn(page))
    page.close()

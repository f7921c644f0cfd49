"""The web dashboard: how long the server takes, when the first chart is there, how soon a logged value is on the
screen, and what 200 viewers cost.

python benchmarks/web.py [--steps 1e6 1e7] [--root FOLDER_WITH_RUNS] [--peers PYTHON [--peer-steps 1e6]]

With --root the largest runs of that folder are used instead of new ones. Needs playwright and Chromium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apart  # noqa: F401
import httpx
import psutil
from table import Table, machine

import trainvitals
from trainvitals.journal import layout, segment_writer

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
VIEWERS = 200
RUNS = 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", nargs="*", default=["1e6", "1e7"])
    parser.add_argument("--root", type=Path)
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with TensorBoard, MLflow, trackio and Aim")
    parser.add_argument("--peer-steps", default="1e6", help="steps of the run that all of them show")
    parser.add_argument("--peer-seconds", type=float, default=600, help="time each has to take them in")
    parser.add_argument("--only-peers", action="store_true", help="nothing but the comparison")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    arguments = parser.parse_args()
    print(machine())
    tables = []
    with tempfile.TemporaryDirectory() as place:
        for make in list_benchmarks(arguments, Path(place)):
            table = make().markdown()
            print(table, flush=True)
            tables.append(table)
    if arguments.write:
        body = f"Measured on {machine()}.\n\n" + "\n".join(tables)
        marked = re.compile(r"(<!-- web tables -->\n).*?(<!-- end of web tables -->)", re.DOTALL)
        PAGE.write_text(marked.sub(lambda match: match[1] + body + match[2], PAGE.read_text()))


def list_benchmarks(arguments: argparse.Namespace, place: Path) -> Iterator[Callable[[], Table]]:
    if not arguments.only_peers:
        root = arguments.root or make_runs(place / "runs", [int(float(text)) for text in arguments.steps])
        yield lambda: bench_answers(root)
        yield lambda: bench_first_chart(root)
        yield lambda: bench_pixels(place / "live")
        yield lambda: bench_viewers(place / "viewers")
        yield lambda: bench_many_runs(place / "many")
        yield lambda: bench_table(place / "very_many")
    if arguments.peers:
        yield lambda: bench_peers(arguments.peers, int(float(arguments.peer_steps)), arguments.peer_seconds)


def make_runs(root: Path, counts: list[int]) -> Path:
    from storage import values

    for steps in counts:
        run = trainvitals.init(project="bench", name=f"{steps:g} steps", dir=root, agent=False, capture_git=False)
        columns = values(steps)
        names = list(columns)
        for begin in range(0, steps, 100_000):
            for offset in range(begin, min(begin + 100_000, steps)):
                run.log({name: float(columns[name][offset]) for name in names}, step=offset)
        run.finish()
        for _, suffix, path in layout.list_files(Path(run.folder)):
            if suffix == ".jsonl" and path.stat().st_size > 4 << 20:
                segment_writer.seal(path)
    return root


@contextmanager
def server(root: Path) -> Iterator[tuple[str, psutil.Process]]:
    command = [sys.executable, "-m", "trainvitals", "serve", "--dir", str(root), "--port", "0", "--no-token"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("dashboard: ").strip(), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def bench_answers(root: Path) -> Table:
    """Time of a request, best and median of 15, after one that fills the caches; bytes as they are sent."""
    rows = []
    with server(root) as (base, _), httpx.Client(base_url=f"{base}api/v1", timeout=300) as client:
        for run in reversed(client.get("/runs").json()["runs"]):
            key = run["key"]
            whole = client.get(f"/runs/{key}/series?name=loss&points=2000").json()["series"]
            if not whole:
                continue
            total, end = whole[0]["total"], whole[0]["x"][-1]
            for what, path in (
                ("the run", f"/runs/{key}"),
                ("one metric, all of it", f"/runs/{key}/series?name=loss&points=2000"),
                (
                    "zoom to 1 %",
                    f"/runs/{key}/series?name=loss&points=2000&start={end // 2}&end={end // 2 + end // 100}",
                ),
            ):
                client.get(path)
                times, size = [], 0
                for _ in range(15):
                    began = time.perf_counter()
                    with client.stream("GET", path) as answer:
                        size = sum(len(chunk) for chunk in answer.iter_raw())
                    times.append((time.perf_counter() - began) * 1000)
                rows.append([f"{total:,}", what, min(times), statistics.median(times), f"{size / 1024:.1f} KB"])
    return Table(
        "Answers of the server",
        ["steps", "asked", "best ms", "median ms", "sent"],
        rows,
        "one metric of 1e6 steps under 50 ms, of 1e7 under 300 ms",
    )


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=os.environ.get("TRAINVITALS_TEST_CHROMIUM") or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield made
        made.close()


# From the beginning of the navigation to the first chart with a curve in it, as the page's own clock has it.
FIRST_CHART = """new Promise(done => { const look = () => {
  const canvas = document.querySelector('.chart canvas');
  if (canvas && canvas.width > 50) requestAnimationFrame(() => done(performance.now())); else setTimeout(look, 5);
}; look(); })"""


def bench_first_chart(root: Path) -> Table:
    rows = []
    with server(root) as (base, _), browser() as chromium:
        keys = [row["key"] for row in reversed(httpx.get(f"{base}api/v1/runs", timeout=300).json()["runs"])]
        for key in keys:
            times, sent = [], 0
            for _ in range(6):
                context = chromium.new_context(viewport={"width": 1440, "height": 900})
                page = context.new_page()
                page.goto(f"{base}#/run/{key}/overview", wait_until="commit")
                times.append(page.evaluate(FIRST_CHART))
                page.wait_for_timeout(300)
                sent = page.evaluate(
                    "performance.getEntriesByType('resource').reduce((sum, entry) => sum + entry.transferSize, 0)"
                )
                context.close()
            rows.append([key, times[0], min(times[1:]), statistics.median(times[1:]), f"{sent / 1024:.0f} KB"])
    return Table(
        "First chart in Chromium, empty browser cache",
        ["run", "first visit ms", "best ms", "median ms", "sent"],
        rows,
        "under 1 s for 1e6 steps",
    )


def bench_pixels(root: Path, count: int = 100) -> Table:
    """From `log()` returning to the frame after which the chart shows the value."""
    run = trainvitals.init(project="bench", name="pixels", dir=root, agent=False, capture_git=False)
    for step in range(100):
        run.log({"loss": 1.0}, step=step)
    times = []
    with server(root) as (base, _), browser() as chromium:
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{base}#/run/{Path(run.folder).name}/overview")
        page.wait_for_selector(".chart canvas")
        page.wait_for_timeout(1500)
        page.evaluate(
            """() => { window.seen = {}; const look = () => {
              const label = document.querySelector('.plot[aria-label^="Loss:"]')?.getAttribute('aria-label') ?? '';
              const value = /loss ([\\d,]+)/.exec(label)?.[1];
              if (value && !(value in seen)) seen[value] = Date.now(); requestAnimationFrame(look); }; look(); }"""
        )
        logged = {}
        for step in range(100, 100 + count):
            value = 1000 + step
            run.log({"loss": float(value)}, step=step)
            logged[f"{value:,}"] = time.time() * 1000
            time.sleep(0.11 + 0.013 * (step % 7))
        page.wait_for_timeout(1500)
        seen = page.evaluate("seen")
        times = sorted(seen[text] - at for text, at in logged.items() if text in seen)
    run.finish()
    return Table(
        "From log() to the screen",
        ["values", "seen one by one", "p50 ms", "p99 ms"],
        [[count, len(times), statistics.median(times), times[int(len(times) * 0.99)]]],
        "p99 under 1 s",
    )


def bench_viewers(root: Path, seconds: float = 20.0) -> Table:
    """One run logging twice a second, many viewers: CPU of the server, delivery to each viewer."""
    run = trainvitals.init(project="bench", name="watched", dir=root, agent=False, capture_git=False)
    run.log({"sent": time.time()}, step=0)
    delays: list[float] = []
    rows = []
    for viewers in (1, VIEWERS):
        delays.clear()
        with server(root) as (base, process):
            stop = threading.Event()

            def keep_logging(stop: threading.Event = stop) -> None:
                step = 1
                while not stop.wait(0.5):
                    run.log({"sent": time.time(), **{f"metric {at}": float(at) for at in range(10)}}, step=step)
                    step += 1

            logger = threading.Thread(target=keep_logging)
            logger.start()
            try:
                used = asyncio.run(_watch(base, Path(run.folder).name, viewers, seconds, delays, process))
            finally:
                stop.set()
                logger.join()
        ordered = sorted(delays)
        p99 = ordered[int(len(ordered) * 0.99)] if ordered else float("nan")
        rows.append([viewers, len(delays), used / seconds * 100, statistics.median(delays) * 1000, p99 * 1000])
    run.finish()
    return Table(
        "Viewers of one run",
        ["viewers", "messages", "CPU of the server, % of a core", "p50 ms after log()", "p99 ms"],
        rows,
        note="The client that reads all the streams runs on the same cores.",
    )


async def _watch(
    base: str, key: str, viewers: int, seconds: float, delays: list[float], process: psutil.Process
) -> float:
    host, _, port = base.removeprefix("http://").rstrip("/").partition(":")

    async def view() -> None:
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
        writer.write(f"GET /api/v1/runs/{key}/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        try:
            while line := await reader.readline():
                if line.startswith(b'data: {"series"'):
                    arrived = time.time()
                    found = json.loads(line[6:])["series"]
                    delays.extend(arrived - series["y"][-1] for series in found if series["name"] == "sent")
        finally:
            writer.close()

    tasks = [asyncio.create_task(view()) for _ in range(viewers)]
    await asyncio.sleep(3)
    delays.clear()
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    used = sum(process.cpu_times()[:2]) - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return float(used)


def bench_many_runs(root: Path) -> Table:
    for place in range(RUNS):
        run = trainvitals.init(
            project=f"p{place % 5}", name=f"run {place}", config={"lr": place / 1000, "seed": place},
            dir=root, agent=False, capture_git=False,
        )  # fmt: skip
        run.log({"loss": 1 / (place + 1)}, step=0)
        run.finish()
    with server(root) as (base, _), browser() as chromium:
        times = []
        for _ in range(6):
            began = time.perf_counter()
            httpx.get(f"{base}api/v1/runs", timeout=60).raise_for_status()
            times.append((time.perf_counter() - began) * 1000)
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(base, wait_until="commit")
        shown = page.evaluate(
            """new Promise(done => { const look = () => document.querySelector('tbody tr')
              ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 5); look(); })"""
        )
    return Table(
        f"{RUNS:,} runs in the table",
        ["first answer ms", "next answers, median ms", "table on the screen ms"],
        [[times[0], statistics.median(times[1:]), shown]],
    )


# From an event to the next picture.
AFTER = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def bench_table(root: Path, count: int = 10_000) -> Table:
    """What the page does between a key or click and the table as it is then: time of its thread alone, so that other
    programs do not count."""
    from many_runs import make_runs

    make_runs(root, count)
    took: dict[str, list[float]] = {}
    with server(root) as (base, _), browser() as chromium:
        page = chromium.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{base}#/runs")
        page.wait_for_selector("td.run-name", timeout=120_000)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent() -> float:
            found = session.send("Performance.getMetrics")["metrics"]
            return next(item["value"] for item in found if item["name"] == "TaskDuration") * 1000

        def measure(what: str, act: Callable[[], object]) -> None:
            before = spent()
            act()
            page.evaluate(AFTER)
            took.setdefault(what, []).append(spent() - before)

        for _ in range(3):
            page.get_by_label("search runs").focus()
            for key in "lr<500 tag:seed-1":
                measure("a key in the search box", lambda key=key: page.keyboard.press(key))
            page.get_by_label("search runs").fill("")
            page.evaluate(AFTER)
            for title in ("run", "run", "train/loss", "lr", "started", "started"):
                head = page.locator("table.runs th button", has_text=re.compile(f"^{title}( |$)"))
                measure("sort by a column", head.click)
            for part in (0.5, 1.0, 0.1, 0.0):
                measure("scroll to anywhere", lambda part=part: page.evaluate(SCROLL, part))
    rows: list[list[object]] = [[what, statistics.median(times), max(times)] for what, times in took.items()]
    return Table(f"{count:,} runs in the table", ["what", "median ms", "highest ms"], rows, "under 300 ms")


SCROLL = "part => scrollTo(0, part * document.documentElement.scrollHeight)"


def bench_peers(python: str, steps: int, seconds: float) -> Table:
    """From starting the server to the first curve in Chromium, beside other dashboards with the same data."""
    import web_peers
    from storage import values

    @contextmanager
    def own(folder: Path) -> Iterator[str]:
        with server(folder) as (base, _):
            (key,) = (path.parent.name for path in folder.glob("*/*/run.json"))
            yield f"{base}#/run/{key}/overview"

    def make(folder: Path) -> Any:
        make_runs(folder, [steps])
        return own(folder)

    return web_peers.bench(python, values(steps), browser, make, seconds)


if __name__ == "__main__":
    main()

"""Every page in Chromium, judged by axe-core: nothing on it may keep people who use other means from reading it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import made_runs
import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from made_sweep import make_sweep
from rl_runs import FAULTS, make_healthy, spell

import trainvitals
from trainvitals.journal.benchmarks import write_benchmark
from trainvitals.journal.documents.benchmark import Agreement, Benchmark, Latency, MeasuredVariant, ModelMemory
from trainvitals.journal.encoding import format_time
from trainvitals.journal.folder_runs import name_runs
from trainvitals.settings import resolve
from trainvitals.views.report.document import draw_report

from .conftest import Server, Tab, make_run

Open = Callable[..., Tab]
GRAVE = ("serious", "critical")


class Page(NamedTuple):
    address: str
    """With names in place of the keys of runs."""
    until: str
    """Selector of what is drawn last."""
    press: str = ""
    """Selector of what is pressed then, to open a menu or a form."""


CHART = ".chart canvas"
PAGES = {
    "runs": Page("#/runs", "table.runs tbody tr"),
    "columns": Page("#/runs", "table.runs tbody tr", ".menu summary"),
    "charts": Page("#/runs?view=charts&project=sweep", ".many canvas"),
    "sweep": Page("#/runs?view=sweep&project=sweep", ".sweep-halves canvas, .sweep-halves svg"),
    "overview": Page("#/run/RUN/overview", CHART),
    "findings": Page("#/run/RUN/findings", ".findings > li"),
    "training": Page("#/run/RUN/training", CHART),
    "system": Page("#/run/RUN/system", CHART),
    "rl": Page("#/run/POLICY/rl", ".findings > li"),
    "benchmark": Page("#/run/MODEL/benchmark", "main .charts canvas, main .charts svg"),
    "media": Page("#/run/MEDIA/media", ".picture img"),
    "alerts": Page("#/run/RUN/alerts", "main table"),
    "events": Page("#/run/RUN/logs", "main table"),
    "export": Page("#/run/RUN/export", "main a[download]"),
    "compare": Page("#/compare?run=RUN&run=OTHER", CHART),
}


class Made(NamedTuple):
    server: Server
    report: str
    keys: dict[str, str]
    """By the names of PAGES."""

    def find(self, page: Page, base: str) -> str:
        address = page.address
        for name, key in self.keys.items():
            address = address.replace(name, key)
        return base + address


def make_policy(folder: Path) -> Path:
    """Reinforcement learning with a fault, on the GPUs of two roles."""
    policy = make_healthy(5)
    FAULTS["rl_truncation"](policy)
    made_runs.write(made_runs.make_run(folder), [{"step": step, **row} for step, row in spell(policy, "verl")])
    waiting = [{"role": role, "rank": 0, "gpu_waiting_percent": 40.0} for role in ("actor", "rollout")]
    made_runs.write(folder, waiting * 100, "process_metrics_20260101_000000")
    return folder


def make_model(folder: Path) -> Path:
    """A model that was measured in two variants."""
    shared = {"threads": 1, "items_per_second": 500.0, "disk_mb": 4.0, "memory": ModelMemory(peak=10.0)}
    reference = Latency(calls=100, median=2.0, low=1.9, high=2.1, p90=2.2, p95=2.3, p99=2.4, mean=2.0)
    results = (
        MeasuredVariant(variant="fp32", reference=True, latency=reference, **shared),
        MeasuredVariant(
            variant="int8-ort", latency=replace(reference, median=1.0), ratio=0.5, verdict="faster",
            agreement=Agreement(cosine=0.99, within=True), **shared,
        ),
    )  # fmt: skip
    made_runs.write(made_runs.make_run(folder), [{"step": 0, "loss": 1.0}])
    write_benchmark(folder, Benchmark(model="model.pt2", inputs="1x64", started=format_time(), results=results))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Two runs with everything that a page shows, a policy, a model, a sweep, and a report of the first three kinds."""
    root: Path = tmp_path_factory.mktemp("runs")
    first, second = make_run(root, "baseline"), make_run(root, "candidate", scale=0.5)
    folder = root / "p" / first
    make_sweep(root, 12, steps=20)
    run = trainvitals.init(project="p", name="media", dir=root, agent=False)
    run.log({"loss": 1.0}, step=0)
    run.log_image("shades", np.zeros((8, 8), dtype=np.uint8), caption="a shade")
    run.log_text("prompt", "a text")
    run.log_histogram("logits", range(100))
    run.log_table("errors", [[1, "one"]], columns=["n", "name"])
    run.finish()
    keys = {"RUN": first, "OTHER": second, "MEDIA": Path(run.folder).name, "POLICY": "grpo", "MODEL": "model"}
    folders = [folder, make_policy(root / "p" / "grpo"), make_model(root / "p" / "model")]
    report = root / "report.html"
    report.write_bytes(draw_report(name_runs(folders), "html", resolve({})))
    server = Server(root, "--allow-edit")
    yield Made(server, report.as_uri(), keys)
    server.stop()


def judge(tab: Tab) -> list[str]:
    """What axe-core finds grave, and where."""
    found = [item for item in Axe().run(tab.page).response["violations"] if item["impact"] in GRAVE]
    return [f"{item['id']}: {node['html']}: {node['failureSummary']}" for item in found for node in item["nodes"]]


def judge_in_both_themes(tab: Tab) -> list[str]:
    found = []
    for theme in ("light", "dark"):
        tab.page.emulate_media(color_scheme=theme)
        tab.wait(f"document.documentElement.dataset.theme === {theme!r}")
        found += judge(tab)
    return found


@pytest.mark.parametrize("name", PAGES)
def test_no_page_keeps_anybody_out(made: Made, open_tab: Open, name: str) -> None:
    page = PAGES[name]
    tab = open_tab(reduced_motion="reduce")  # a color on its way to another one is not judged
    tab.page.goto(made.find(page, made.server.base))
    tab.page.wait_for_selector(page.until)
    if page.press:
        tab.page.click(page.press)
    assert judge_in_both_themes(tab) == []
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.wait_for_selector(page.until)
    assert judge(tab) == []


@pytest.mark.parametrize("name", ["overview", "findings", "training", "system", "rl", "benchmark", "alerts", "events"])
def test_no_page_of_a_report_does(made: Made, open_tab: Open, name: str) -> None:
    page = PAGES[name]
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(made.find(page, made.report))
    tab.page.wait_for_selector(page.until)
    assert judge_in_both_themes(tab) == []


def test_the_list_of_keys_does_not(made: Made, open_tab: Open) -> None:
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(made.find(PAGES["overview"], made.server.base))
    tab.page.wait_for_selector(CHART)
    tab.page.keyboard.press("?")
    tab.page.wait_for_selector("dialog[open]")
    assert judge_in_both_themes(tab) == []


def test_the_page_of_machines_keeps_nobody_out(serve: Callable[..., Server], tmp_path: Path, open_tab: Open) -> None:
    make_run(tmp_path, "baseline")
    server = serve(tmp_path, "--host", "local", "--host", "http://127.0.0.1:1")
    tab = open_tab(reduced_motion="reduce")
    tab.page.goto(f"{server.base}#/machines")
    tab.page.wait_for_selector(".facts")
    tab.page.wait_for_selector(".machine-state.critical")
    assert judge_in_both_themes(tab) == []
    tab.page.goto(f"{server.base}#/runs")
    tab.page.wait_for_selector(".machine-trouble")
    assert judge_in_both_themes(tab) == []

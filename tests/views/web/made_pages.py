"""Every page of the dashboard, and runs that fill each of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import made_runs
import numpy as np
from made_sweep import make_sweep
from rl_runs import FAULTS, make_healthy, spell

import trainvitals
from trainvitals.journal.benchmarks import write_benchmark
from trainvitals.journal.documents.benchmark import Agreement, Benchmark, Latency, MeasuredVariant, ModelMemory
from trainvitals.journal.encoding import format_time

from .conftest import make_run


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


class MadePages(NamedTuple):
    root: Path
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
            agreement=Agreement(cosine=0.99, relative_error=0.02, within=True), **shared,
        ),
    )  # fmt: skip
    made_runs.write(made_runs.make_run(folder), [{"step": 0, "loss": 1.0}])
    write_benchmark(folder, Benchmark(model="model.pt2", inputs="1x64", started=format_time(), results=results))
    return folder


def make_pages(root: Path) -> MadePages:
    """Two runs with everything that a page shows, a policy, a model, a sweep, and one with media."""
    first, second = make_run(root, "baseline"), make_run(root, "candidate", scale=0.5)
    make_sweep(root, 12, steps=20)
    run = trainvitals.init(project="p", name="media", dir=root, agent=False)
    run.log({"loss": 1.0}, step=0)
    run.log_image("shades", np.zeros((8, 8), dtype=np.uint8), caption="a shade")
    run.log_text("prompt", "a text")
    run.log_histogram("logits", range(100))
    run.log_table("errors", [[1, "one"]], columns=["n", "name"])
    run.finish()
    make_policy(root / "p" / "grpo")
    make_model(root / "p" / "model")
    return MadePages(
        root, {"RUN": first, "OTHER": second, "MEDIA": Path(run.folder).name, "POLICY": "grpo", "MODEL": "model"}
    )

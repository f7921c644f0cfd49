"""Every Python snippet of the documentation runs as it stands, a page's in order in a process of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import rows_of, run_python

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOOP = "loss, lr = 0.5, 1e-3"
RULE = "import trainvitals\nrun, target, my_function = trainvitals.init(), 1.0, print"
LOGGED = 'run.log({"loss": 5.0})\nrun.finish()'
MEDIA = """import trainvitals
run, step, generated = trainvitals.init(), 3, "once upon a time"
image, logits = [[0.0, 1.0], [1.0, 0.0]], [0.5, 1.5, 2.5]
run.log({"loss": 5.0}, step=step)"""
ANALYSED = """import trainvitals
with trainvitals.init() as run:
    for step in range(300):
        run.log({"loss": 1.0 + 100.0 / (step + 10)}, step=step)"""
LOGGER = """import sys, types, trainvitals
class Logger:  # NeMo RL's
    def __init__(self, cfg):
        self.loggers = []
sys.modules["nemo_rl.utils.logger"] = types.SimpleNamespace(Logger=Logger)
GRPOTrainer = lambda *arguments, **options: None"""
REWARDED = 'Logger({}).loggers[0].log_metrics({"loss": 5.0}, 1)'
MODEL = """import torch, trainvitals
model, example_input, run = torch.nn.Linear(16, 4), torch.zeros(1, 16), trainvitals.init()
run.log({"loss": 5.0})"""
TWO_RUNS = """import trainvitals
for name in ("baseline", "candidate"):
    with trainvitals.init(name=name) as run:
        run.log({"loss": 5.0})"""
MEASURED = "run.finish()\nassert found is not None and len(found.results) == 4"


@pytest.mark.parametrize(
    ("page", "before", "after", "runs"),
    [
        ("README.md", LOOP, "", 1),
        ("docs/logging.md", LOOP, "", 3),
        ("docs/alerts.md", RULE, LOGGED, 1),
        ("docs/integrations.md", "", "", 6),
        ("docs/classic-api.md", "", "", 4),
        ("docs/media.md", MEDIA, "run.finish()", 1),
        ("docs/trackers.md", "", "", 1),
        ("docs/analysis.md", ANALYSED, "", 1),
        ("docs/rl.md", LOGGER, REWARDED, 1),
        ("docs/bench.md", MODEL, MEASURED, 1),
        ("docs/notebooks.md", TWO_RUNS, LOGGED, 3),
    ],
)
def test_every_snippet_runs_as_it_stands(tmp_path: Path, page: str, before: str, after: str, runs: int) -> None:
    """`before` is what the reader's own program has, and `after` what it does then."""
    (tmp_path / "snippets.py").write_text("\n".join([before, *SNIPPET.findall((ROOT / page).read_text()), after]))
    keras = {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path / "keras")}
    run_python(tmp_path, "snippets.py", TRAINVITALS_SIMULATE_GPUS="1", **keras)
    found = list((tmp_path / "runs").glob("*/*/run.json"))
    assert len(found) == runs
    for path in found:
        rows = rows_of(path.parent, "training_metrics*")
        assert any("loss" in row or "train/rmse" in row for row in rows)


def test_no_page_has_a_snippet_that_is_not_run() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]
    found = {str(page.relative_to(ROOT)) for page in pages if SNIPPET.search(page.read_text())}
    marks = test_every_snippet_runs_as_it_stands.pytestmark  # type: ignore[attr-defined]
    here = {row[0] for row in marks[0].args[1]}
    # The first is run by tests/trainer/test_watch_docs.py, the second by tests/plugins.
    assert found == here | {"docs/watch.md", "docs/plugins.md"}

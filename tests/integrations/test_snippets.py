"""Every Python snippet of the two pages runs, in order, in a process of its own; and their table is the code's."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainvitals.integrations.classic.configuration import KEYS

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize(("page", "runs"), [("integrations.md", 5), ("classic-api.md", 3)])
def test_every_snippet_runs_as_it_stands(tmp_path: Path, page: str, runs: int) -> None:
    snippets = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(snippets) == 5
    program = tmp_path / "snippets.py"
    program.write_text("\n".join(snippets))
    done = subprocess.run(
        [sys.executable, program.name],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            **os.environ,
            "TRAINVITALS_AGENT": "0",
            "TRAINVITALS_SIMULATE_GPUS": "1",
            "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
            "KERAS_BACKEND": "torch",
            "KERAS_HOME": str(tmp_path / "keras"),
            "OMP_NUM_THREADS": "1",
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "goes on without it" not in done.stderr
    found = [path for root in ("trainvitals_runs", "runs") for path in (tmp_path / root).glob("*/*/run.json")]
    assert len(found) == runs
    for path in found:
        rows = [
            json.loads(line) for file in path.parent.glob("training_metrics*") for line in file.read_text().splitlines()
        ]
        assert any("loss" in row for row in rows)


def test_the_page_says_of_every_key_what_it_means() -> None:
    page = (DOCS / "classic-api.md").read_text()
    for key in KEYS:
        assert f"| `{key.name}` | {key.meaning} |" in page

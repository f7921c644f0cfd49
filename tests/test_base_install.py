"""What `pip install trainvitals` alone has, without an extra: every test environment has them all."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from trainvitals.exporters.registry import REGISTRY as EXPORTERS
from trainvitals.trackers.registry import REGISTRY as IMPORTERS

BASE = ("orjson", "psutil", "pynvml", "numpy", "duckdb", "_duckdb", "yaml", "_yaml")
"""What the packages that we depend on are imported as."""
ROWS = [row.module for row in EXPORTERS.own if row.contract == "rows"]
"""W&B's and MLflow's clients are for children only."""


@pytest.mark.parametrize(
    "module",
    sorted({"trainvitals.wandb", "trainvitals.exporters.wandb_client", *ROWS, *(row.module for row in IMPORTERS.own)}),
)
def test_what_needs_no_extra_imports_none(module: str) -> None:
    script = f"""
        import sys

        class Nothing:
            def find_spec(self, name, path=None, target=None):
                package = name.partition(".")[0]
                if package not in {("trainvitals", *BASE)!r} and package not in sys.stdlib_module_names:
                    raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

        sys.meta_path.insert(0, Nothing())
        import {module}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")

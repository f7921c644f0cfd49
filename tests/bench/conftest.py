"""Where the models of these tests are found, here and in child processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # some_models.py beside this file; importlib mode adds no path


@pytest.fixture(autouse=True)
def models_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children look in the current folder."""
    monkeypatch.chdir(HERE)
    monkeypatch.setattr(sys, "path", [*sys.path])

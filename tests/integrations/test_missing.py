"""Callbacks on a machine without their framework."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
WITHOUT = """
import sys
sys.modules[sys.argv[2]] = None  # as Python does for a module that must not be found
import trainvitals
try:
    getattr(trainvitals, sys.argv[1])
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("TransformersCallback", "transformers", "transformers"),
        ("GPUMonitoringCallback", "transformers", "transformers"),
        ("KerasCallback", "keras", "keras"),
        ("XGBoostCallback", "xgboost", "xgboost"),
        ("AccelerateTracker", "accelerate", "accelerate"),
        ("RayTrainCallback", "ray", "ray"),
        ("RayTuneCallback", "ray", "ray"),
    ],
)
def test_a_callback_without_its_framework_says_what_to_install(name: str, package: str, extra: str) -> None:
    assert extra in PYPROJECT["project"]["optional-dependencies"]
    done = subprocess.run([sys.executable, "-c", WITHOUT, name, package], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"ModuleNotFoundError {name} needs {package}")
    assert done.stdout.endswith(f"which is not installed: pip install 'trainvitals[{extra}]'\n")


def test_lightning_may_have_either_name() -> None:
    program = "import sys; sys.modules['pytorch_lightning'] = None" + WITHOUT
    words = [sys.executable, "-c", program, "LightningCallback", "lightning"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("pip install 'trainvitals[lightning]'\n")

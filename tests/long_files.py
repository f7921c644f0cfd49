"""Which test files begin first."""

from __future__ import annotations

LONG_FILES = (
    "trainer/test_capture.py",
    "integrations/test_ray.py",
    "trainer/test_autostart.py",
    "integrations/test_keras.py",
    "integrations/test_snippets.py",
    "integrations/test_automatic.py",
    "exporters/test_mlflow.py",
    "exporters/test_mirrors.py",
    "exporters/test_alert_path.py",
    "integrations/test_many_ranks.py",
    "exporters/test_end_of_run.py",
)
"""Few tests that take long, the longest first. Files are handed out whole: one of these at the end, and two of three
workers have nothing to do."""

"""Imported for its effect: what a benchmark starts and registers stays apart from the runs of whoever starts it."""

from __future__ import annotations

import os
import tempfile

_PREFIX = "trainvitals-benchmark-"

if _PREFIX not in os.environ.get("TRAINVITALS_RUNTIME_DIR", ""):  # else a benchmark that has one started this process
    _folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    os.environ["TRAINVITALS_RUNTIME_DIR"] = _folder.name

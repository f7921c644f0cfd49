"""Imported for its effect: what a benchmark starts and registers stays apart from the runs of whoever starts it."""

from __future__ import annotations

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="trainvitals-benchmark-", ignore_cleanup_errors=True)
os.environ["TRAINVITALS_RUNTIME_DIR"] = _folder.name

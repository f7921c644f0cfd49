"""Why a variant or a model cannot be had here. Tested in tests/bench/test_worker.py."""

from __future__ import annotations


class Unavailable(Exception):
    """The reason, and what to do, in one line."""

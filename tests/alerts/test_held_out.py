"""Healthy runs that no rule was tuned by: nobody is sent anything about them.

Shortened here; `python benchmarks/alert_quality.py SEED ...` judges whole sets, and docs/alerts.md has what came out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import judging

SEED = 151


@pytest.mark.parametrize("kind", judging.make_set(SEED))
def test_nothing_is_sent_about_a_healthy_run(kind: str) -> None:
    steps, sent, _ = judging.judge_healthy(SEED, kind, share=0.3)
    assert steps > 1000
    assert set(sent) <= judging.RIGHT.get(kind, set()), sent

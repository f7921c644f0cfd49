"""Verdicts on two values of a metric, as a table. Tested in tests/views/cli/test_compare.py and test_analyze.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.safe_text import one_line
from trainvitals.views.cli.terminal import Cell, Paint, draw_table
from trainvitals.views.data import quantities

STYLES = {"better": "green", "worse": "red", "different": "yellow", "same": "dim", "uncertain": "dim"}


def draw_verdicts(verdicts: Sequence[Mapping[str, Any]], paint: Paint, columns: int | None) -> str:
    rows = [
        (
            Cell(item["word"], STYLES.get(item["word"], "")),
            one_line(item["metric"]),
            quantities.format_value(item["baseline"]),
            quantities.format_value(item["value"]),
            quantities.format_change(item["change"]),
            quantities.format_confidence(item["confidence"]),
            Cell(one_line(item["reason"]), "dim"),
        )
        for item in verdicts
    ]
    header = ("verdict", "metric", "baseline", "now", "change", "confidence", "")
    return draw_table(header, rows, paint=paint, columns=columns, right=(2, 3, 4, 5))

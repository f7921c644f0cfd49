"""The report as JSON, for programs: everything but the series. Tested in tests/views/report/test_document.py."""

from __future__ import annotations

import orjson

from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.views.data.shapes import ReportDataJson, ReportSummaryJson


def draw_json(data: ReportDataJson) -> bytes:
    """NaN and infinity are strings, as in the journal. `comparison` is there for several runs."""
    return dump_json(spell_all(make_summary(data)), orjson.OPT_INDENT_2) + b"\n"


def make_summary(data: ReportDataJson) -> ReportSummaryJson:
    """What was found, and what the runs came to."""
    runs = []
    for item in data["runs"].values():
        run = item["run"]
        left_out = ("tables", "details", "histograms", "stacks", "consoles", "summary")
        runs.append(
            {
                **{key: value for key, value in run.items() if key not in left_out},
                "environment": {key: value for key, value in run["details"].items() if key != "config"},
                "diagnosis": item["diagnosis"],
                "alerts": item["alerts"]["history"],
                "events": item["events"]["events"],
            }
        )
    summary: ReportSummaryJson = {"written": data["written"], "version": data["about"]["version"], "runs": runs}
    if "comparison" in data:
        wanted = ("config", "metrics", "verdicts")
        summary["comparison"] = {key: value for key, value in data["comparison"].items() if key in wanted}
    return summary

"""The page of findings: a list of them, and below it the selected one with its evidence and advice."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from trainvitals.analysis.wording import SEVERITY_SIGNS, count_of
from trainvitals.safe_text import one_line
from trainvitals.views.tui.pages import Page, empty, rule
from trainvitals.views.tui.pages.lists import draw_list, format_clock, text_column
from trainvitals.views.tui.paint import Line, fit
from trainvitals.views.tui.snapshot import Snapshot
from trainvitals.views.tui.table import Column
from trainvitals.views.tui.view import View, key_of

if TYPE_CHECKING:
    from trainvitals.analysis.findings import Finding

LEAST_HEIGHT = 8
"""A lower page has only the list; `space` shows the rest."""
MOST_TEXT = 2000
"""Characters of one text that are shown."""


def shown_findings(snapshot: Snapshot, view: View) -> list[Finding]:
    """Those that contain all words of the filter."""
    words = view.filters.get("findings", "").casefold().split()
    found = snapshot.judged.findings if snapshot.judged is not None else ()
    return [finding for finding in found if all(word in _text(finding) for word in words)]


def _text(finding: Finding) -> str:
    parts = (finding.rule, finding.severity, finding.title, finding.subject, finding.advice, *finding.evidence)
    return " ".join(parts).casefold()


def describe(finding: Finding, snapshot: Snapshot) -> list[tuple[str, str]]:
    """Everything about one, in words; empty where there is nothing to say."""
    found = snapshot.judged.findings if snapshot.judged is not None else ()
    cause = next((other.title for other in found if other.rule == finding.cause), finding.cause or "")
    return [
        ("", finding.title),
        ("where", finding.subject),
        ("since", _since(finding, snapshot.time)),
        ("until", f"step {finding.until:,}" if finding.until is not None else ""),
        *((("evidence" if place == 0 else ""), text) for place, text in enumerate(finding.evidence)),
        ("cause", cause),
        ("advice", finding.advice),
    ]


def draw(snapshot: Snapshot, view: View, width: int, height: int) -> Page:
    """The page in at most `height` lines."""
    palette = view.palette
    rows = shown_findings(snapshot, view)
    view.rows = len(rows)
    judged = snapshot.judged
    if judged is None or not rows:
        word, hint = _explain_empty(snapshot, view)
        return Page(empty(word, width, palette, hint), [])

    def colour(finding: Finding) -> Style:
        return palette.severity(finding.severity)

    def headline(finding: Finding) -> str:
        return ("  " if finding.cause else "") + finding.headline

    columns: list[Column[Finding]] = [
        text_column("", 1, 2, lambda row: SEVERITY_SIGNS[row.severity], colour),
        text_column("SINCE", 12, 3, lambda row: _since(row, snapshot.time), lambda _: palette.dim, right=True),
        text_column("FINDING", 24, 1, headline, colour, most=max(map(len, map(headline, rows)))),
        text_column("ADVICE", 40, 4, lambda row: row.advice, lambda _: palette.text, most=400),
    ]
    if not any(_since(row, snapshot.time) for row in rows):
        columns = [column for column in columns if column.title != "SINCE"]
    checks = f"{count_of(judged.passed, 'check')} passed, {judged.skipped} skipped"
    heading = rule(count_of(len(rows), "finding"), width, palette, checks)
    pane: list[Line] = []
    if height >= LEAST_HEIGHT:
        selected = rows[min(view.row, len(rows) - 1)]
        least_list = min(len(rows) + 2, height // 2)
        pane = _draw_pane(selected, snapshot, view, width, height - least_list)
    page = draw_list(columns, rows, view, width, height - len(pane), heading)
    return Page(page.lines + pane, page.hits)


def _draw_pane(finding: Finding, snapshot: Snapshot, view: View, width: int, height: int) -> list[Line]:
    """The selected finding in full, as far as there is room."""
    palette = view.palette
    lines: list[Line] = [[], rule("Selected", width, palette)]
    for word, text in describe(finding, snapshot):
        if not text:
            continue
        style = palette.severity(finding.severity) if text == finding.title else palette.text
        indent = 0 if text == finding.title else 10
        for place, piece in enumerate(textwrap.wrap(one_line(text[:MOST_TEXT]), max(width - indent - 2, 8))):
            head = fit(f" {word if place == 0 else ''}", indent + 1)
            lines.append([Segment(head, palette.dim), Segment(piece, style)])
    return lines[:height]


def _explain_empty(snapshot: Snapshot, view: View) -> tuple[str, str]:
    """Why there is nothing to list, and what to do about it."""
    judged = snapshot.judged
    if snapshot.run is None:
        return "no run selected", f"press {key_of('runs')} to select a run"
    if judged is None:
        return (snapshot.notes[-1], "") if snapshot.notes else ("checking the run...", "")
    if judged.findings:
        return f"no findings match '{view.filter}'", "esc to clear the filter"
    word = "no problems found" if judged.passed else "not enough data yet"
    return word, f"{count_of(judged.passed, 'check')} passed, {judged.skipped} skipped (missing data)"


def _since(finding: Finding, now: float) -> str:
    if finding.step is not None:
        return f"step {finding.step:,}"
    if finding.time is None:
        return ""
    return format_clock(finding.time, now)

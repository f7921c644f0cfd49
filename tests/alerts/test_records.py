"""The lines of alerts, read back."""

from __future__ import annotations

from trainvitals.alerts.records import count_fired
from trainvitals.journal.documents.findings import Counts
from trainvitals.journal.documents.rows import AlertRow, new_alert_row


def row(at: float, rule: str, state: str, severity: str = "critical", **more: str) -> AlertRow:
    return new_alert_row(at, rule=rule, state=state, severity=severity, **more)


def test_alerts_that_fired_are_counted_once_and_those_that_lasted_to_the_end_apart() -> None:
    rows = [
        row(10, "hot", "firing"),
        row(11, "hot", "resolved"),
        row(12, "hot", "firing"),
        row(13, "hot", "resolved"),
        row(14, "nan", "firing"),
        row(15, "slow", "firing", "warning"),
        row(20, "nan", "resolved", reason="the run is finished"),
        new_alert_row(21, delivery="x", rule="nan"),
    ]
    found = count_fired(rows, started=5.0)
    assert (found.ever, found.to_the_end) == (Counts(2, 1), Counts(1, 1)), "nothing resolved the warning"
    assert rows[-2].state_text == "ended with the run" and rows[1].state_text == "resolved"


def test_what_ended_an_earlier_attempt_did_not_last_to_the_end_of_this_one() -> None:
    rows = [row(10, "nan", "firing"), row(11, "nan", "resolved", reason="the run is failed")]
    found = count_fired(rows, started=20.0)
    assert (found.ever, found.to_the_end) == (Counts(critical=1), Counts())

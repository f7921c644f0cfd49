"""The report in one HTML file: the page of the dashboard with its data inside."""

from __future__ import annotations

from trainvitals.views.data.page import make_single_file
from trainvitals.views.data.shapes import ReportDataJson
from trainvitals.views.data.wire import encode


def draw_html(data: ReportDataJson) -> bytes:
    """The file; opens from disk, asks for nothing."""
    return make_single_file(encode(data))

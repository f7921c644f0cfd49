"""How the page shows a project, as the API hands it out. Tested in tests/views/web/test_project_view.py."""

from __future__ import annotations

from trainvitals.journal.documents.view import ViewFile
from trainvitals.views.data.shapes import ViewJson


def describe_view(project: str, found: ViewFile | None, problem: str = "") -> ViewJson:
    """What is not kept is empty."""
    view = found or ViewFile()
    return {
        "project": project,
        "panels": [
            {"id": panel.id, "title": panel.title, "items": list(panel.items), "x": panel.x} for panel in view.panels
        ],
        "pins": list(view.pins),
        "log": list(view.log),
        "linear": list(view.linear),
        "hide": list(view.hide),
        "columns": None if view.columns is None else list(view.columns),
        "is_kept": found is not None,
        "problem": problem,
    }

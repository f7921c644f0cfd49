"""view.json: how the page shows the runs of a project. It lies beside them and is edited on the page.
Tested in tests/journal/test_project_view.py."""

from __future__ import annotations

from dataclasses import dataclass

from trainvitals.journal.documents.fields import Document, document, entry, list_of, text, texts, whole

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPanel(Document):
    """A chart that a user made."""

    id: str = entry(text, "")
    title: str = entry(text, "")
    """Empty: what it draws."""
    items: tuple[str, ...] = entry(texts, (), always=True)
    """Names, patterns and expressions, as `views.data.chosen` understands them."""
    x: str = entry(text, "")
    """Empty: the axis of the page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewFile(Document):
    """All charts go by their titles, in the order in which they are shown."""

    format: int = entry(whole, FORMAT)
    panels: tuple[OwnPanel, ...] = entry(list_of(document(OwnPanel)), ())
    pins: tuple[str, ...] = entry(texts, ())
    """Metrics whose charts come first."""
    log: tuple[str, ...] = entry(texts, ())
    linear: tuple[str, ...] = entry(texts, ())
    """Charts whose scale is not the usual one."""
    hide: tuple[str, ...] = entry(texts, ())
    """`chart: line`."""
    columns: tuple[str, ...] | None = entry(texts, None)
    """Of the table of runs; None: the usual ones."""

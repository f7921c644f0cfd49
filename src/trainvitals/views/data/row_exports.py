"""How far the mirrors and other exporters of a run's rows are, in words.
Tested in tests/views/cli/test_export_to.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainvitals.analysis.wording import count_of
from trainvitals.journal.documents.status import RowExport, Status


def list_exports(statuses: Iterable[Status]) -> Iterator[tuple[str, RowExport]]:
    """By name, of the agents of all hosts."""
    for status in statuses:
        yield from status.row_exports.items()


def describe_export(export: RowExport) -> str:
    """What was sent, what waits, and what went wrong last."""
    parts = [f"{count_of(export.written, 'row')} sent"]
    parts += [f"{export.refused:,} refused"] if export.refused else []
    parts += [f"{export.waiting:,} or more waiting"] if export.waiting else []
    parts += ["complete"] if export.complete else []
    text = ", ".join(parts)
    text += f"; {export.trouble}" if export.trouble else ""
    return f"{text} ({export.link})" if export.link else text

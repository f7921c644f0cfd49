"""Starts an exporter of rows that settings ask for. Tested in tests/exporters/test_rows.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

from trainvitals.exporters.registry import Wish
from trainvitals.exporters.rows import DeliveryLimits, RowExporter, RowRunner, RunDescription
from trainvitals.journal.documents.status import RowExport
from trainvitals.redaction import redact_text
from trainvitals.settings.secrets import is_reference, read_secret


def start_runner(
    wish: Wish,
    run: RunDescription,
    known: RowExport | None,
    warn: Callable[[str], None],
    limits: DeliveryLimits | None = None,
) -> RowRunner:
    """Begin with what `known` has not got."""
    return RowRunner(
        wish.exporter.name,
        partial(_create, wish, run),
        run,
        known,
        target=redact_text(wish.target),
        tables=wish.exporter.tables,
        warn=warn,
        limits=limits,
    )


def _create(wish: Wish, run: RunDescription) -> RowExporter:
    """Called from the runner's thread: importing the exporter may take its time and fail."""
    target = read_secret(wish.target, run.environment.get) if is_reference(wish.target) else wish.target
    made: RowExporter = import_module(wish.exporter.module).create(target, wish.settings)
    return made

"""`trainvitals export RUN --to TRACKER`: a run, or what is missing of it there, to an exporter of rows.
Tested in tests/views/cli/test_export_to.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

from trainvitals import runtime
from trainvitals.agent import status
from trainvitals.analysis.wording import count_of
from trainvitals.errors import TrainvitalsError, nearest
from trainvitals.exporters.delivery import deliver
from trainvitals.exporters.mirroring import MirrorBusy, MirrorState
from trainvitals.exporters.registry import REGISTRY, ExporterRow, Wish
from trainvitals.exporters.rows import DeliveryLimits, RunDescription, RunEnd
from trainvitals.exporters.start import start_runner
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.run import ENDED, RunFile
from trainvitals.journal.documents.status import RowExport, Status
from trainvitals.journal.follower import Relay
from trainvitals.redaction import redact_text
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.settings.kinds import IN_PLACE
from trainvitals.settings.table import find
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import UsageError

PATIENCE = 60.0
"""Seconds in which at least one row must be accepted."""
CLOSE_SECONDS = 600.0


def send(reference: str, words: list[str], settings: Settings) -> int:
    """`words` are the name of the exporter and, perhaps, its target."""
    if words[0] == "gateway":
        from trainvitals.views.cli.ship import ship

        return ship(reference, words[1:], settings)
    folder = run_folder.find(reference, Path(settings.dir))
    about = run_folder.read_run(folder)
    state, cause = run_folder.read_state(folder, about)
    end = RunEnd(state, cause) if state in ENDED else None
    row = _find_row(words[0])
    if len(words) > 2:
        raise UsageError(f"unexpected argument '{one_line(words[2])}'", hint=f"such as: --to {row.name} TARGET")
    target = _parse_target(row, words[1]) if len(words) == 2 else _find_target(row, about, settings)
    wish = Wish(row, target, (), settings)
    known, host = _find_known(folder, row.name, redact_text(target))
    _check_free(folder, row, target)
    run = RunDescription(about.id or folder.name, folder, runtime.host_name(), about.attempt, about, os.environ)
    runner = start_runner(wish, run, known, print_line, DeliveryLimits(patience=CLOSE_SECONDS))

    def save(exports: Mapping[str, RowExport]) -> None:
        if host is not None and end is not None:  # else the agent keeps it
            status.write_row_exports(folder, host, exports, settings.file_mode)

    stop = threading.Event()
    try:
        complete = deliver([runner], Relay(folder), end, save, stop=stop, patience=PATIENCE)
    except KeyboardInterrupt:
        stop.set()
        raise
    result = runner.describe()
    written = result.written - (known.written if known is not None else 0)
    place = f": {one_line(result.link)}" if result.link else ""
    print_line(f"{row.name} accepted {count_of(written, 'row')} of {about.id or folder.name}{place}")
    if result.refused:
        print_line(f"{row.name} refused {count_of(result.refused, 'row')}: {one_line(result.trouble or '')}")
    if not complete:
        why = f": {one_line(result.trouble)}" if result.trouble else ""
        raise TrainvitalsError(f"{row.name} does not have all of the run{why}", hint="the same command sends the rest")
    return 0


def _find_row(name: str) -> ExporterRow:
    rows = {row.name: row for row in REGISTRY if row.contract == "rows"}
    row = rows.get(name)
    if row is None:
        raise UsageError(
            f"no exporter '{one_line(name)}'{nearest(name, rows)}", hint=f"one of {', '.join((*rows, 'gateway'))}"
        )
    if not row.is_installed:
        raise TrainvitalsError(f"{row.name} needs {row.needs}", hint=row.install)
    return row


def _parse_target(row: ExporterRow, text: str) -> str:
    """As the setting of the same exporter would take it."""
    setting = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb.project"}.get(row.name)
    if setting is None:
        return text
    try:
        return str(find(setting, "argument").kind.parse(text) or text)
    except ValueError as error:
        raise UsageError(f"'{one_line(redact_text(text))}' is not {error}") from None


def _find_target(row: ExporterRow, about: RunFile, settings: Settings) -> str:
    usual = {
        "tensorboard": IN_PLACE,
        "wandb": about.project,
        "mlflow": os.environ.get("MLFLOW_TRACKING_URI"),
    }
    target = row.target(settings) or usual.get(row.name)
    if not target:
        raise UsageError(f"{row.name} needs a target", hint=f"such as: --to {row.name} http://127.0.0.1:5000")
    return target


def _find_known(folder: Path, name: str, target: str) -> tuple[RowExport | None, str | None]:
    """What was sent there already, and the host in whose status.json that is kept; None where another target is."""
    statuses = run_folder.read_statuses(folder)
    for item in statuses:
        found = item.row_exports.get(name)
        if found is not None:
            return (found, item.host) if found.target in ("", target) else (None, None)
    return None, Status.of_lowest(statuses).host or None


def _check_free(folder: Path, row: ExporterRow, target: str) -> None:
    if row.is_mirror:
        try:
            MirrorState(folder, row.name, target).close()
        except MirrorBusy as error:
            raise TrainvitalsError(str(error), hint="see how far it is: trainvitals runs show RUN") from None

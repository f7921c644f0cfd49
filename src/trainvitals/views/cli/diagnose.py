"""`trainvitals diagnose`: what is wrong with a run, since when, why, and what to do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.rows import SEVERITIES
from trainvitals.safe_text import one_line
from trainvitals.stderr import print_line
from trainvitals.views.cli.arguments import RUN_HELP, Parser, UsageError, resolve_settings
from trainvitals.views.cli.hosts import add_hosts, is_elsewhere, open_far_runs
from trainvitals.views.cli.terminal import Paint, print_json

if TYPE_CHECKING:
    from trainvitals.analysis.diagnosis import Diagnosis
    from trainvitals.analysis.findings import Finding
    from trainvitals.journal.contracts import Reader
    from trainvitals.journal.documents.findings import FindingsFile
    from trainvitals.journal.reader import RunReader
    from trainvitals.settings import Settings

DESCRIPTION = (
    "Diagnose a run, live or ended, or a table of another program: what is wrong, since which step, what explains it, "
    "and what to do."
)

EXAMPLES = """
trainvitals diagnose
trainvitals diagnose latest --all
trainvitals diagnose 20261115-2236 --fail-on warning
trainvitals diagnose --csv metrics.csv --json
"""
STYLES = {"critical": "red", "warning": "yellow", "info": "dim"}


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        help=f"{RUN_HELP} (default: latest)",
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        help="a table instead of a run: columns such as step, wall_s, train_loss, val_loss, step_ms, rank; - for "
        "standard input",
    )
    parser.add_argument("--all", action="store_true", help="also list passed and skipped checks, with reasons")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="save the findings of an ended run in its folder, for lists of runs; the agent does this automatically",
    )
    parser.add_argument(
        "--fail-on",
        metavar="SEVERITY",
        choices=SEVERITIES[::-1],
        help="exit with code 3 if there is a finding of at least this severity: info, warning or critical",
    )
    parser.add_settings("dir")
    add_hosts(parser)


def execute(arguments: argparse.Namespace) -> int:
    if arguments.csv and arguments.run:
        raise UsageError("give a run or --csv, not both")
    settings = resolve_settings(arguments)
    if arguments.csv and arguments.keep:
        raise UsageError("--keep is for runs, not for tables")
    title = ""
    if arguments.csv:
        found = _diagnose_table(arguments.csv, settings)
    else:
        found, title = _diagnose_run(arguments, settings)
    paint = Paint(sys.stdout)
    if arguments.json:
        _print_json(found)
    else:
        if title:
            print(paint("bold", one_line(title)))
        print(draw(found, paint, everything=arguments.all, run=arguments.run or ""))
    if arguments.fail_on is None:
        return 0
    least = SEVERITIES.index(arguments.fail_on)
    return 3 if any(SEVERITIES.index(finding.severity) >= least for finding in found.findings) else 0


def _diagnose_run(arguments: argparse.Namespace, settings: Settings) -> tuple[Diagnosis, str]:
    """What is wrong, and which run it is: "the newest" may be another than one thinks."""
    from trainvitals.analysis.diagnosis import diagnose
    from trainvitals.conditions import Conditions
    from trainvitals.journal.reader import RunReader, open_run
    from trainvitals.prices import Prices
    from trainvitals.views.data.diagnosis import describe_judges, make_findings_file, read_measurements

    reference = arguments.run or "latest"
    reader: Reader
    if is_elsewhere(arguments, settings):
        if arguments.keep:
            raise UsageError("--keep is for runs in a folder of this machine")
        ((_, reader),) = open_far_runs([reference], arguments, settings)
    else:
        reader = open_run(reference, settings.dir)
    found = diagnose(read_measurements(reader, Prices.of(settings)), Conditions(settings.alerts_thresholds))
    if arguments.keep and isinstance(reader, RunReader):
        _keep(reader, make_findings_file(found, reader.info.attempt, describe_judges(settings)))
    return found, reader.info.id


def _keep(reader: RunReader, file: FindingsFile) -> None:
    from trainvitals.journal import folder as run_folder

    if reader.info.is_live:
        print_line("the findings were not saved: the run has not ended")
        return
    try:
        run_folder.write_findings(reader.folder, file, run_folder.file_rights(reader.folder))
    except OSError as error:
        raise TrainvitalsError(f"cannot keep the findings: {error}") from error


def _diagnose_table(name: str, settings: Settings) -> Diagnosis:
    from trainvitals.analysis.diagnosis import diagnose
    from trainvitals.conditions import Conditions
    from trainvitals.views.data.csv_rows import open_table
    from trainvitals.views.data.measured_table import read_measurements

    with open_table(name) as (file, title):
        measured = read_measurements(file, title)
    found = diagnose(measured, Conditions(settings.alerts_thresholds))
    if not found.findings and not found.fine:
        names = ", ".join(map(one_line, measured.training.names()[:8])) or "none"
        print_line(f"{title}: too few values for any check, or none for these columns: {names}")
    return found


def draw(found: Diagnosis, paint: Paint, everything: bool, run: str) -> str:
    """The findings as text, what follows from another indented below it."""
    from trainvitals.analysis.wording import count_of

    lines: list[str] = []
    for finding in found.findings:
        lines += _draw_finding(finding, paint)
    passed, skipped = len(found.fine), len(found.not_judged)
    more = "" if everything else f" (trainvitals diagnose {run + ' ' if run else ''}--all)"
    fine = "" if found.findings or not passed else "no problems found: "
    lines.append(f" {paint('green', '✓')} {fine}{count_of(passed, 'check')} passed, {skipped} skipped{more}")
    if everything:
        lines += [f"     passed   {title}" for title in found.fine]
        lines += [f"     skipped  {gap.title}: needs {one_line(gap.needs)}" for gap in found.not_judged]
    return "\n".join(lines)


def _draw_finding(finding: Finding, paint: Paint) -> list[str]:
    from trainvitals.analysis.wording import SEVERITY_SIGNS

    sign = paint(STYLES[finding.severity], SEVERITY_SIGNS[finding.severity])
    indent = "   " if finding.cause else " "
    lines = [f"{indent}{sign} {one_line(finding.headline)}"]
    lines += [f"{indent}    {one_line(text)}" for text in finding.evidence]
    if finding.cause:
        lines.append(f"{indent}    follows from {finding.cause}")
    lines.append(f"{indent}    → {one_line(finding.advice)}")
    return lines


def _print_json(found: Diagnosis) -> None:
    answer = {
        "findings": [_plain(finding) for finding in found.findings],
        "passed": list(found.fine),
        "skipped": [{"id": gap.rule, "title": gap.title, "needs": gap.needs} for gap in found.not_judged],
    }
    print_json(answer)


def _plain(finding: Finding) -> Mapping[str, Any]:
    evidence: Sequence[str] = list(finding.evidence)
    return {
        "id": finding.rule,
        "severity": finding.severity,
        "title": finding.title,
        "since_step": finding.step,
        "since_time": finding.time,
        "named_at_step": finding.named_at,
        "until_step": finding.until,
        "where": finding.subject or None,
        "evidence": evidence,
        "action": finding.advice,
        "cause": finding.cause,
        "values": dict(finding.values),
    }

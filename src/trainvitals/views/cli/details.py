"""The contents of run.json, for `runs show`: how it was started, from what, with which settings.
Tested in tests/views/cli/test_runs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from trainvitals.analysis.gpu_use import METRICS, GpuUse
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.run import Attempt, RunFile
from trainvitals.journal.encoding import parse_time, spell_all
from trainvitals.journal.flat_config import flatten
from trainvitals.prices import Prices
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.views.cli.summary import RunSummary
from trainvitals.views.cli.terminal import Paint, shorten
from trainvitals.views.data import quantities
from trainvitals.views.data.cost import find_co2
from trainvitals.views.data.gpus import is_of_many_hosts
from trainvitals.views.data.media import count_media, format_media
from trainvitals.views.data.patches import describe_patch, format_untracked
from trainvitals.views.data.row_exports import describe_export, list_exports
from trainvitals.views.data.run_details import describe_cost, format_git
from trainvitals.views.data.run_rows import read_row_of
from trainvitals.views.data.shipments import describe_shipment

if TYPE_CHECKING:  # a summary needs no numpy
    from trainvitals.views.data.shapes import CostJson

MAX_CONFIG = 30
MAX_FINDINGS = 5
MAX_NOTES = 12
TAIL_BYTES = 64 << 10
_SHORT = {"Slurm job": "slurm", "Slurm nodes": "nodes", "Kubernetes node": "node", "pod labels": "labels"}
"""Titles of what a scheduler knows, as wide as the others here."""
_SHOWN_EVENTS = 5
_SHOWN_LINES = 5


class RunPrice(NamedTuple):
    """What the run cost and emitted, as far as that is known."""

    cost: CostJson | None
    co2_kg: float | None


def read_price(reader: Reader, summary: RunSummary, settings: Settings) -> RunPrice:
    """By the prices that are set, or listed."""
    prices = Prices.of(settings)
    latest = {name: item.last for name, item in summary.metrics.items()}
    cost = describe_cost(reader, read_row_of(reader, summary.info.id), prices, latest)
    return RunPrice(cost, find_co2(prices, summary.energy_joules))


def make_json(summary: RunSummary, diagnosis: Mapping[str, Any], price: RunPrice, reader: Reader) -> dict[str, Any]:
    """Everything, with NaN and infinity spelled as in the journal."""
    data = {
        **summary.info.file.as_json(),
        "status": summary.info.status,
        "cause": summary.info.cause_text or None,
        "folder": summary.info.place,
        "summary": {
            "seconds": summary.seconds,
            "last_step": summary.last_step,
            "metrics": {name: asdict(item) for name, item in summary.metrics.items()},
            "gpus": [_describe_gpu(gpu, is_of_many_hosts(summary.gpus)) for gpu in summary.gpus],
            "energy_joules": summary.energy_joules,
            **price._asdict(),
            "alerts": sum(item.times for item in summary.alerts),
            "alerts_by_rule": [item._asdict() for item in summary.alerts],
            "warnings": summary.warnings,
            "criticals": summary.criticals,
            "ranks": [item.as_json() for item in summary.ranks],
            "below": [row.info.id for row in summary.below],
            "media": count_media(reader.media()),
            "damage": asdict(summary.damage),
        },
        "patch": describe_patch(reader),
        "diagnosis": diagnosis,
    }
    spelled: dict[str, Any] = spell_all(data)
    return spelled


def _describe_gpu(gpu: GpuUse, with_host: bool) -> dict[str, Any]:
    use, share, used, heat, power = (gpu.spreads[name] for name in METRICS)
    return {
        "title": gpu.title(with_host),
        "name": str(gpu.labels.get("gpu_name") or ""),
        "simulated": gpu.simulated,
        "utilization_low": use.low,
        "utilization_mean": use.mean,
        "utilization_max": use.high,
        "memory_low_percent": share.low,
        "memory_mean_percent": share.mean,
        "memory_max_percent": share.high,
        "memory_peak_mb": used.high,
        "memory_total_mb": gpu.memory_total_mb,
        "temperature_low": heat.low,
        "temperature_mean": heat.mean,
        "temperature_max": heat.high,
        "power_low": power.low,
        "power_mean": power.mean,
        "power_max": power.high,
        "energy_joules": gpu.energy.joules,
    }


def draw_details(
    summary: RunSummary,
    diagnosis: Mapping[str, Any],
    price: RunPrice,
    reader: Reader,
    paint: Paint,
    columns: int | None,
) -> str:
    """Lines of `word  text`; only what there is."""
    run = summary.info.file
    lines: list[tuple[str, str]] = []
    lines += [("name", one_line(summary.info.name))] if summary.info.name != summary.info.id else []
    lines.append(("project", one_line(summary.info.project)))
    started = parse_time(run.started)
    if started is not None:
        lines.append(("started", quantities.format_clock(started)))
    for key, text in (
        ("tags", ", ".join(map(one_line, run.tags))),
        *_notes(run.notes),
        ("command", one_line(run.command or "")),
        ("host", one_line(run.host_name)),
        *((_SHORT.get(title, title.lower()), one_line(text)) for title, text in run.placed.facts()),
        ("git", format_git(run.git)),
        *_patch(reader),
        ("python", one_line(_python(run))),
    ):
        lines += [(key, text)] if text else []
    if len(run.attempts) > 1:
        lines.append(("attempts", ", ".join(map(_attempt, run.attempts))))
    config = flatten(run.config or {})
    if config:
        items = [f"{one_line(key)} = {one_line(value)}" for key, value in list(config.items())[:MAX_CONFIG]]
        more = [f"and {len(config) - MAX_CONFIG} more"] if len(config) > MAX_CONFIG else []
        lines += [("config" if place == 0 else "", item) for place, item in enumerate(items + more)]
    if counts := count_media(reader.media()):
        lines.append(("media", format_media(counts)))
    for place, (exporter, export) in enumerate(list_exports(reader.statuses())):
        lines.append(("mirrors" if place == 0 else "", one_line(f"{exporter}: {describe_export(export)}")))
    shipments = [status.shipment for status in reader.statuses() if status.shipment.target]
    for place, shipment in enumerate(shipments):
        lines.append(("gateway" if place == 0 else "", one_line(describe_shipment(shipment))))
    for place, row in enumerate(summary.last_events[-_SHOWN_EVENTS:]):
        moment = quantities.format_clock(row.seconds)
        text = f"{moment}  {row.severity}  {one_line(row.message or row.event)}"
        lines.append(("events" if place == 0 else "", text))
    if price.cost is not None:
        lines.append(("cost", one_line(quantities.format_cost(price.cost))))
    if price.co2_kg is not None:
        lines.append(("CO2", f"{quantities.format_value(price.co2_kg, 3)} kg, of the energy of the GPUs"))
    lines += _findings(diagnosis["findings"])
    lines += [("printed" if place == 0 else "", text) for place, text in enumerate(_printed(reader))]
    limit = (columns or 10_000) - 12
    return "\n".join(f"  {paint('dim', f'{word:<8}')}  {shorten(text, limit)}" for word, text in lines)


def _findings(findings: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    lines = []
    for finding in findings[:MAX_FINDINGS]:
        subject = f" ({one_line(finding['subject'])})" if finding["subject"] else ""
        lines += [f"{finding['severity']}  {one_line(finding['title'])}{subject}", f"  {one_line(finding['advice'])}"]
    if len(findings) > MAX_FINDINGS:
        lines.append(f"and {len(findings) - MAX_FINDINGS} more: trainvitals report")
    return [("findings" if place == 0 else "", text) for place, text in enumerate(lines)]


def _printed(reader: Reader) -> list[str]:
    """The last lines of what the lowest participant printed, where that was kept."""
    files = [file for file in reader.texts("console") if ".older." not in file.name][:1]
    found = [reader.read_text("console", file.name, TAIL_BYTES).text for file in files]
    return [one_line(line) for line in "".join(found).splitlines()[-_SHOWN_LINES:]]


def _notes(text: str) -> list[tuple[str, str]]:
    """Line by line, for they may have paragraphs and lists."""
    lines = [one_line(line) for line in text.splitlines() if line.strip()]
    more = [f"and {len(lines) - MAX_NOTES} more lines"] if len(lines) > MAX_NOTES else []
    return [("notes" if place == 0 else "", line) for place, line in enumerate(lines[:MAX_NOTES] + more)]


def _attempt(attempt: Attempt) -> str:
    cause = f" ({one_line(str(attempt.cause))})" if attempt.cause is not None else ""
    return f"{attempt.number} {attempt.status}{cause}"


def _patch(reader: Reader) -> list[tuple[str, str]]:
    found = describe_patch(reader)
    if found is None:
        return []
    size = f"{found['title']}; to print it: --patch" if found["kept"] else found["title"]
    untracked = format_untracked(found)
    lines = [("patch", size), ("", found["warning"]), ("", untracked and f"untracked: {untracked}")]
    return [(word, one_line(text)) for word, text in lines]


def _python(run: RunFile) -> str:
    version = (run.python or {}).get("version", "")
    packages = run.packages or {}
    known = [f"{name} {packages.get(name, '')}" for name in run.imported or packages]
    return ", ".join([str(version), *known[:6]]) if version else ""

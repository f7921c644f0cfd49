"""What a run came to, on a few lines: printed when a run ends, and by `runs show`."""

from __future__ import annotations

import itertools
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

from trainvitals import catalog
from trainvitals.analysis.gpu_use import GpuUse, total_energy
from trainvitals.analysis.health import Health
from trainvitals.analysis.metric_sense import better
from trainvitals.analysis.wording import count_of
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import Reader, Runs
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.rows import SEVERITIES, AlertRow, EventRow
from trainvitals.journal.identity import Participant
from trainvitals.journal.run_info import RunInfo, default_root, shorten_path
from trainvitals.journal.summaries import MetricSummary
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.stderr import print_error
from trainvitals.views.cli.ranks import RankEnd, format_ranks, read_ranks
from trainvitals.views.cli.terminal import (
    SEVERITY_STYLES,
    STATUS_STYLES,
    Cell,
    Paint,
    draw_table,
    is_terminal,
    shorten,
    style_status,
    width,
)
from trainvitals.views.data import quantities
from trainvitals.views.data.gpus import is_of_many_hosts, read_gpus
from trainvitals.views.data.run_details import find_last_step
from trainvitals.views.data.run_rows import ListedRun, read_row, read_row_of

T = TypeVar("T")
_FIRST = ("rl_reward", "loss", "accuracy", "gradient_norm", "throughput_samples_per_sec", "learning_rate")
"""Metrics that are shown first, by any of their names."""
MAX_METRICS = 8
MANY_GPUS = 5
"""GPUs of one model from which they are one line, followed by those that are unlike the others."""
ODD_PERCENT, ODD_CELSIUS = 15.0, 8.0
"""How far the utilization or the temperature of such a GPU is from the median of all."""
MAX_GPUS = 16
MAX_ALERTS = 4
MAX_FINDINGS = 4
MAX_CAUSE = 200
MAX_BELOW = 5
NO_TRAINING = "no_training"
"""The event of a command in which no training was seen."""


class AlertCount(NamedTuple):
    """One rule that fired in the run."""

    rule: str
    severity: str
    times: int
    """How often it began to fire, for whatever rank or GPU."""
    message: str = ""
    """What it said last."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in numbers."""

    info: RunInfo
    health: Health
    seconds: float | None
    last_step: int | None
    metrics: Mapping[str, MetricSummary]
    gpus: Sequence[GpuUse]
    alerts: Sequence[AlertCount]
    """Worst first."""
    warnings: int
    criticals: int
    damage: Damage
    last_events: Sequence[EventRow] = field(default=())
    ranks: Sequence[RankEnd] = field(default=())
    """None if there is only one."""
    below: Sequence[ListedRun] = field(default=())
    """Further runs that the same command began."""
    findings: Sequence[Mapping[str, Any]] = field(default=())
    """What was found wrong, a cause before what follows from it; empty where nobody asked."""
    no_training: str = ""
    """That no training was seen, and what to do; empty if one was."""

    @property
    def energy_joules(self) -> float | None:
        """Of its own GPUs together; None if none reported any."""
        return total_energy(self.gpus)


# -- reading


def read_summary(reader: Reader, runs: Runs | None = None) -> RunSummary:
    """What the run came to; among `runs`, further ones of the same command are looked for."""
    info, statuses = reader.info, reader.statuses()
    row = read_row_of(reader, info.id)
    metrics = reader.summary()
    events = reader.events()
    severe = [event for event in events if event.severity in ("warning", "critical") and not _shows_end(event)]
    return RunSummary(
        info=info,
        health=row.health,
        seconds=row.seconds(),
        last_step=find_last_step(reader, row, metrics),
        metrics=metrics,
        gpus=read_gpus(reader, statuses),
        alerts=count_alerts(reader.alerts()),
        warnings=sum(event.severity == "warning" for event in severe),
        criticals=sum(event.severity == "critical" for event in severe),
        damage=reader.damage(),
        last_events=severe[-5:],
        ranks=read_ranks(reader, info),
        below=read_below(runs, info) if runs is not None else (),
        no_training=next((event.message for event in events if event.event == NO_TRAINING), ""),
    )


def read_below(runs: Runs, info: RunInfo) -> list[ListedRun]:
    """The runs that programs of this `trainvitals run` began besides it, oldest first."""
    # Not until its end: that may be the end of its first program, and the next one began later.
    newest_first = (read_row(runs, key) for key in reversed(runs.list_keys()))
    later = itertools.takewhile(lambda row: row.info.id != info.id, newest_first)
    return sorted((row for row in later if row.info.file.below == info.id), key=lambda row: row.started or 0.0)


def _shows_end(event: EventRow) -> bool:
    """Whether the event repeats the status and cause of the run."""
    return event.event == "run_ended" or (
        event.event in ("failed", "rank_lost") and event.participant in (None, Participant())
    )


def count_alerts(rows: Sequence[AlertRow]) -> list[AlertCount]:
    """What fired, worst first. The file also holds messages, deliveries and requests, which have no `state`."""
    firing = [row for row in rows if row.state == "firing"]
    found = Counter((row.rule, row.severity or "warning") for row in firing)
    messages = {row.rule: row.message for row in firing}
    counts = [AlertCount(rule, severity, times, messages[rule]) for (rule, severity), times in found.items()]
    weights: dict[str, int] = {severity: -weight for weight, severity in enumerate(SEVERITIES, 1)}
    return sorted(counts, key=lambda item: (weights.get(item.severity, 0), -item.times, item.rule))


# -- drawing


def print_summary(reader: Reader, settings: Settings, runs: Runs | None = None) -> None:
    """To standard error, as everything that is about a run and not its output; with what was found wrong with it."""
    from trainvitals.views.data.diagnosis import read_findings

    summary = replace(read_summary(reader, runs), findings=read_findings(reader, settings)["findings"])
    columns = width(sys.stderr) if is_terminal(sys.stderr) else None
    print_error(f"\n{draw_summary(summary, Paint(sys.stderr), columns)}")


def draw_summary(summary: RunSummary, paint: Paint, columns: int | None = None, *, next_steps: bool = True) -> str:
    """The summary as text, lines at most `columns` wide where that is possible."""
    blocks = [draw_head(summary, paint)]
    if summary.metrics:
        blocks.append(draw_metrics(summary.metrics, paint, columns))
    if summary.gpus:
        blocks.append(draw_gpus(summary, paint, columns))
    notes = draw_notes(summary, paint)
    if notes:
        blocks.append(notes)
    blocks.append(draw_place(summary, paint, columns, next_steps))
    return "\n\n".join(blocks)


def draw_head(summary: RunSummary, paint: Paint) -> str:
    """Who it was and how it ended."""
    info = summary.info
    style = style_status(info.status, summary.health.severity, "cyan")
    parts = [paint(f"bold {style}", info.status)]
    if summary.last_step is not None:
        parts.append(f"last step {summary.last_step:,}")
    if summary.seconds is not None:
        parts.append(quantities.format_duration(summary.seconds))
    if info.attempt > 1:
        parts.append(f"attempt {info.attempt}")
    if info.simulated or any(gpu.simulated for gpu in summary.gpus):
        parts.append(paint("yellow", "simulated GPUs"))
    lines = [f"{paint('bold', one_line(info.id))}  {'  '.join(parts)}"]
    if info.cause and info.status != "running":
        lines.append(f"  {paint(STATUS_STYLES.get(info.status, ''), shorten(one_line(info.cause_text), MAX_CAUSE))}")
    elif info.status == "finished" and summary.health.severity != "ok":
        lines.append(f"  {paint(style, shorten(one_line(summary.health.reason), MAX_CAUSE))}")
    return "\n".join(lines)


def draw_metrics(metrics: Mapping[str, MetricSummary], paint: Paint, columns: int | None) -> str:
    """Last and best of the main metrics."""
    rows = []
    shown = main_metrics(metrics)
    others = [name for name in metrics if name not in shown]
    for name in [*shown, *others] if len(others) == 1 else shown:  # "and 1 more" would take its line
        item = metrics[name]
        word = _which_end(name)
        end, step = (item.low, item.low_step) if word == "low" else (item.high, item.high_step)
        title = "best" if word in ("low", "high") else word
        extreme = f"{title} {quantities.format_value(end)}" if title and end is not None else ""
        at = f"at step {step:,}" if extreme and step is not None else ""
        broken = Cell(f"{item.nonfinite:,} not finite", "yellow") if item.nonfinite else ""
        rows.append(
            (one_line(name), Cell(quantities.format_value(item.last), "bold"), extreme, Cell(at, "dim"), broken)
        )
    left = len(metrics) - len(rows)
    text = draw_table(
        ("metric", "last", "", "", ""),
        rows,
        paint=paint,
        columns=columns,
        right=(1,),
        optional=(3,),
        indent="  ",
    )
    if left > 0:
        text += "\n" + paint("dim", f"  and {left:,} more")
    return text


def main_metrics(metrics: Mapping[str, MetricSummary]) -> list[str]:
    """The names to show: the catalog's own by any of their names, then what reads like a result, then the rest."""
    chosen = [key for name in _FIRST if (key := catalog.find_spelling("training", name, metrics)) is not None]
    results = [key for key in metrics if key not in chosen and not key.endswith("_time")]
    for direction in ("lower", "higher"):
        chosen += [key for key in results if better(key) == direction]
    return (chosen or list(metrics))[:MAX_METRICS]


def _which_end(name: str) -> str:
    """`low` or `high` where that is the best, `max` for the highest value of others, or nothing worth showing."""
    row = catalog.find("training", name)
    canonical = row.name if row else name
    if canonical == "learning_rate":
        return ""
    return {"lower": "low", "higher": "high", None: "max"}[better(canonical)]


def draw_gpus(summary: RunSummary, paint: Paint, columns: int | None) -> str:
    """How much the GPUs had to do: many of one model on one line, and below it those that are unlike the others."""
    rows: list[tuple[str, ...]] = []
    with_host = is_of_many_hosts(summary.gpus)
    models: dict[tuple[str, float | None], list[GpuUse]] = {}
    for gpu in summary.gpus:
        models.setdefault((gpu.name, gpu.memory_total_mb), []).append(gpu)
    left = 0
    for gpus in models.values():
        alone = gpus
        if len(gpus) >= MANY_GPUS:
            rows.append(_describe_many(gpus, with_host))
            alone = find_odd(gpus)
        shown, more = _first(alone, MAX_GPUS)
        rows += [_describe_gpu(gpu, with_host) for gpu in shown]
        left += more
    header = ("GPU", "utilization", "peak memory", "hottest", "power", "")
    text = draw_table(header, rows, paint=paint, columns=columns, optional=(5,), right=(4,), indent="  ")
    if left:
        text += "\n" + paint("dim", f"  and {left} more GPUs")
    return text


def _first(items: Sequence[T], most: int) -> tuple[Sequence[T], int]:
    """The first ones, and how many more there are: never 1, which needs no more room than saying so."""
    shown = items if len(items) <= most + 1 else items[:most]
    return shown, len(items) - len(shown)


def _describe_gpu(gpu: GpuUse, with_host: bool) -> tuple[str, ...]:
    use = gpu.spreads["utilization_percent"]
    mean, most = quantities.format_percent(use.mean), quantities.format_percent(use.high)
    return (
        one_line(gpu.title(with_host)),
        f"{mean} (max {most})" if use.mean is not None else quantities.NONE,
        _format_memory(gpu.spreads["memory_used_mb"].high, gpu.memory_total_mb),
        quantities.format_unit(gpu.spreads["temperature_celsius"].high, "°C"),
        quantities.format_unit(gpu.spreads["power_draw_watts"].mean, "W"),
        Cell(one_line(gpu.name), "dim"),
    )


def _describe_many(gpus: Sequence[GpuUse], with_host: bool) -> tuple[str, ...]:
    """The medians, how far they spread, and which is the hottest."""
    uses, powers = (_known(gpus, name, "mean") for name in ("utilization_percent", "power_draw_watts"))
    peaks, heats = (_known(gpus, name, "high") for name in ("memory_used_mb", "temperature_celsius"))
    use = quantities.format_percent(median(uses.values())) if uses else quantities.NONE
    if uses and (low := f"{min(uses.values()):.0f}") != (high := f"{max(uses.values()):.0f}"):
        use += f" ({low} to {high})"
    hottest = max(heats, key=lambda place: heats[place], default=None)
    heat = quantities.format_unit(heats[hottest] if hottest is not None else None, "°C")
    return (
        f"{len(gpus)} x {one_line(gpus[0].name) or 'GPU'}",
        use,
        _format_memory(max(peaks.values(), default=None), gpus[0].memory_total_mb),
        heat if hottest is None else f"{heat} ({one_line(gpus[hottest].title(with_host))})",
        quantities.format_unit(median(powers.values()) if powers else None, "W"),
        "",
    )


def _format_memory(peak: float | None, total: float | None) -> str:
    of_total = f" of {quantities.format_mb(total)}" if total is not None else ""
    return f"{quantities.format_mb(peak)}{of_total}"


def _known(gpus: Sequence[GpuUse], name: str, part: str) -> dict[int, float]:
    """That of each GPU, by its place; of those that told it."""
    found = ((place, getattr(gpu.spreads[name], part)) for place, gpu in enumerate(gpus))
    return {place: value for place, value in found if value is not None}


def find_odd(gpus: Sequence[GpuUse]) -> list[GpuUse]:
    """Those that were much more or less busy, or much hotter, than the median of all."""
    odd: set[int] = set()
    uses, heats = _known(gpus, "utilization_percent", "mean"), _known(gpus, "temperature_celsius", "high")
    if uses:
        middle = median(uses.values())
        odd |= {place for place, value in uses.items() if abs(value - middle) > ODD_PERCENT}
    if heats:
        middle = median(heats.values())
        odd |= {place for place, value in heats.items() if value - middle > ODD_CELSIUS}
    return [gpu for place, gpu in enumerate(gpus) if place in odd]


def draw_notes(summary: RunSummary, paint: Paint) -> str:
    """Ranks, energy, alerts, damage: only what there is."""
    lines = []
    if summary.no_training:
        lines.append(("steps", one_line(summary.no_training)))
    if summary.ranks:
        lines.append(("ranks", format_ranks(summary.ranks, summary.info.status)))
    if summary.energy_joules is not None:
        simulated = " (simulated)" if all(gpu.simulated for gpu in summary.gpus if gpu.is_own) else ""
        lines.append(("energy", f"{quantities.format_energy(summary.energy_joules)}{simulated}"))
    if summary.findings:
        lines += _label("found", _format_findings(summary, paint))
    if summary.alerts:
        lines += _label("alerts", _format_alerts(summary.alerts, paint))
        lines.append(("", paint("cyan", f"{find_program()} alerts history {reference_to(summary.info)}")))
    if summary.criticals or summary.warnings:
        parts = [f"{summary.criticals:,} critical"] if summary.criticals else []
        parts += [f"{summary.warnings:,} warning{'s' if summary.warnings > 1 else ''}"] if summary.warnings else []
        newest = one_line(summary.last_events[-1].message)[:80] if summary.last_events else ""
        lines.append(("events", f"{paint('yellow', ', '.join(parts))}{f'; newest: {newest}' if newest else ''}"))
    if summary.damage:
        lines.append(("damage", paint("yellow", f"{summary.damage}; everything else is intact")))
        lines.append(("", paint("cyan", f"{find_program()} runs check {reference_to(summary.info)}")))
    if summary.below:
        lines.append(("nested", f"{count_of(len(summary.below), 'run')} started inside this one"))
        shown, more = _first(summary.below, MAX_BELOW)
        lines += [("", format_nested(row, paint)) for row in shown]
        lines += [("", paint("dim", f"and {more:,} more: {find_program()} runs"))] if more else []
    return "\n".join(f"  {word:<8}{text}" for word, text in lines)


def format_nested(row: ListedRun, paint: Paint) -> str:
    """`20261115-223601-run-k3f9  finished  last step 47  19 s`."""
    parts = [one_line(row.info.id), paint(STATUS_STYLES.get(row.info.status, "cyan"), row.info.status)]
    parts += [f"last step {row.last_step:,}"] if row.last_step is not None else []
    return "  ".join([*parts, quantities.format_duration(row.seconds())])


def _label(word: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """The word beside the first of several lines."""
    return [(word if place == 0 else "", text) for place, text in enumerate(texts)]


def _format_findings(summary: RunSummary, paint: Paint) -> list[str]:
    """`critical  Loss became NaN at step 331`; what follows from another finding is indented below it."""
    shown, more = _first(summary.findings, MAX_FINDINGS)
    lines = []
    for item in shown:
        subject = one_line(item["subject"])
        named = f" ({subject})" if subject and subject.lower() not in item["title"].lower() else ""
        severity = paint(SEVERITY_STYLES.get(item["severity"], ""), f"{item['severity']:<8}")
        lines.append(f"{severity}  {'  ' if item['cause'] else ''}{one_line(item['title'])}{named}")
    rest = f"and {more:,} more: " if more else ""
    return [*lines, f"{rest}{paint('cyan', f'{find_program()} diagnose {reference_to(summary.info)}')}"]


def _format_alerts(alerts: Sequence[AlertCount], paint: Paint) -> list[str]:
    """`critical  GPU 5 is at 91 °C, above its 89 °C throttle limit (3 times)`."""
    shown, more = _first(alerts, MAX_ALERTS)
    lines = []
    for item in shown:
        severity = paint(SEVERITY_STYLES.get(item.severity, ""), f"{one_line(item.severity):<8}")
        times = f" ({item.times:,} times)" if item.times > 1 else ""
        lines.append(f"{severity}  {shorten(one_line(item.message or item.rule), MAX_CAUSE)}{times}")
    return [*lines, *([f"and {more:,} more rules"] if more else [])]


def draw_place(summary: RunSummary, paint: Paint, columns: int | None, next_steps: bool) -> str:
    """Where it is, and what to type next."""
    lines = [f"  folder  {one_line(where(summary.info))}"]
    steps = next_commands(summary) if next_steps else []
    size = max((len(command) for command, _ in steps), default=0)
    for place, (command, what) in enumerate(steps):
        fits = columns is None or 12 + size + len(what) <= columns
        hint = f"{' ' * (size - len(command))}  {paint('dim', what)}" if fits else ""
        lines.append(f"  {'' if place else 'next':<8}{paint('cyan', command)}{hint}")
    return "\n".join(lines)


def next_commands(summary: RunSummary) -> list[tuple[str, str]]:
    """What one may want to type now, and what it gives."""
    program, reference = find_program(), reference_to(summary.info)
    found = [(f"{program} runs show {reference}", "full details")]
    if summary.metrics or summary.gpus:
        table = "" if summary.metrics else " --table gpu"
        root = (
            f" --dir {_quote(shorten_path(summary.info.folder.parent.parent))}"
            if summary.info.folder is not None and reference != _quote(summary.info.id)
            else ""
        )
        found += [
            (f"{program} top {reference}", "charts in the terminal"),
            (f"{program} serve{root}", "web dashboard of all runs"),
            (f"{program} report {reference}", "shareable report"),
            (f"{program} export {reference} --format csv{table}", "raw data"),
        ]
    return found


def find_program() -> str:
    """What to type for this program: its name where the shell finds it by that, else the way to it."""
    import shutil

    script = Path(sys.executable).with_name("trainvitals.exe" if sys.platform == "win32" else "trainvitals")
    if not script.is_file() or shutil.which("trainvitals") == str(script):
        return "trainvitals"
    return shlex.quote(shorten_path(script))


def where(info: RunInfo) -> str:
    """Where the run is kept, as somebody here would type it."""
    return shorten_path(info.folder) if info.folder is not None else info.place


def reference_to(info: RunInfo) -> str:
    """What to type for this run: its id where it is found by that, else its folder."""
    from trainvitals.errors import TrainvitalsError

    if info.folder is None:
        return _quote(info.id)
    try:
        if run_folder.find(info.folder.name, default_root()).samefile(info.folder):
            return _quote(info.folder.name)
    except (TrainvitalsError, OSError):
        pass  # it lies elsewhere
    return _quote(shorten_path(info.folder))


def _quote(word: str) -> str:
    """A word to type; one that a terminal would obey can only be shown."""
    return shlex.quote(one_line(word))

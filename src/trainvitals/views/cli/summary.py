"""What a run came to, on a few lines: printed when a run ends, and by `runs show`."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import catalog, runtime
from trainvitals.analysis.energy import Energy
from trainvitals.journal import folder as run_folder
from trainvitals.journal import layout
from trainvitals.journal.cursor import Damage
from trainvitals.journal.reader import RunInfo, RunReader, Series
from trainvitals.journal.summaries import MetricSummary
from trainvitals.views.cli.ranks import RankEnd, read_ranks, tell_ranks
from trainvitals.views.cli.terminal import (
    STATUS_STYLES,
    Cell,
    Paint,
    clean,
    draw_table,
    is_terminal,
    print_error,
    width,
)
from trainvitals.views.data import quantities

# Which end of a metric is worth telling: the lowest loss, the highest accuracy, the largest gradient.
_BEST = {
    "loss": "best",
    "accuracy": "best",
    "gradient_norm": "max",
    "throughput_samples_per_sec": "best",
    "learning_rate": "",
}
_LOWER_IS_BETTER = ("loss", "perplexity", "error", "wer", "mse", "mae")
_HIGHER_IS_BETTER = (
    "acc",
    "f1",
    "auc",
    "bleu",
    "rouge",
    "reward",
    "throughput",
    "samples_per_sec",
    "tokens_per_sec",
)
MAX_METRICS = 8
MAX_GPUS = 16
MAX_ALERTS = 4
MAX_BELOW = 5
_STAMP = len("20261115-223601")
"""What a run id begins with: when it began, in UTC."""
_SEVERITIES = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One GPU over the whole run; None where it was never measured."""

    title: str
    name: str
    simulated: bool
    utilization_mean: float | None = None
    utilization_low: float | None = None
    utilization_max: float | None = None
    memory_mean_percent: float | None = None
    memory_max_percent: float | None = None
    memory_low_percent: float | None = None
    memory_peak_mb: float | None = None
    memory_total_mb: float | None = None
    temperature_low: float | None = None
    temperature_mean: float | None = None
    temperature_max: float | None = None
    power_low: float | None = None
    power_mean: float | None = None
    power_max: float | None = None
    energy_joules: float | None = None


class AlertCount(NamedTuple):
    """One rule that fired in the run."""

    rule: str
    severity: str
    times: int
    """How often it began to fire, for whatever rank or GPU."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in numbers."""

    info: RunInfo
    seconds: float | None
    last_step: int | None
    metrics: Mapping[str, MetricSummary]
    gpus: Sequence[GpuUse]
    alerts: Sequence[AlertCount]
    """Worst first."""
    warnings: int
    criticals: int
    damage: Damage
    last_events: Sequence[Mapping[str, Any]] = field(default=())
    ranks: Sequence[RankEnd] = field(default=())
    """None if there is only one."""
    below: Sequence[Mapping[str, Any]] = field(default=())
    """Further runs that the same command began."""

    @property
    def energy_joules(self) -> float | None:
        """Of all GPUs together; None if none told."""
        known = [gpu.energy_joules for gpu in self.gpus if gpu.energy_joules is not None]
        return sum(known) if known else None


# -- reading


def find_last_step(reader: RunReader, info: RunInfo, metrics: Mapping[str, MetricSummary]) -> int | None:
    """The step that was logged last, which is not the highest where steps went back."""
    stated = info.details.get("last_step")
    if isinstance(stated, int):
        return stated if stated >= 0 else None
    newest = reader.newest_steps(1)
    steps = [item.last_step for item in metrics.values() if item.last_step is not None]
    return newest[-1][0] if newest else max(steps, default=None)


def read_summary(folder: Path, root: Path | None = None) -> Summary:
    """Everything the summary tells, from the folder alone; in `root`, further runs of the same command are looked
    for."""
    reader = RunReader(folder)
    info = reader.info
    metrics = reader.summary()
    events = reader.events()
    severe = [row for row in events if row.get("severity") in ("warning", "critical") and not _tells_end(row)]
    return Summary(
        info=info,
        seconds=duration_of(info.details, info.status),
        last_step=find_last_step(reader, info, metrics),
        metrics=metrics,
        gpus=read_gpus(reader),
        alerts=count_alerts(reader.alerts()),
        warnings=sum(row.get("severity") == "warning" for row in severe),
        criticals=sum(row.get("severity") == "critical" for row in severe),
        damage=reader.damage(),
        last_events=severe[-5:],
        ranks=read_ranks(reader, info),
        below=read_below(root, info) if root is not None else (),
    )


def read_below(root: Path, info: RunInfo) -> list[dict[str, Any]]:
    """The runs that programs of this `trainvitals run` began besides it, oldest first, each as a line of `runs`."""
    from trainvitals.views.cli.runs import read_row

    # Not until its end: that may be the end of its first program, and the next one began later.
    later = [item for item in run_folder.list_folders(root) if item.name[:_STAMP] >= info.id[:_STAMP]]
    below = [item for item in later if (runtime.read_json(item / layout.RUN_FILE) or {}).get("below") == info.id]
    return sorted((read_row(item) for item in below), key=lambda row: str(row["started"]))


def duration_of(run: Mapping[str, Any], status: str) -> float | None:
    """Seconds that the newest attempt took, or takes so far."""
    started = quantities.parse_time(run.get("started"))
    if started is None:
        return None
    ended = quantities.parse_time(run.get("ended"))
    if ended is None:
        if status in run_folder.ENDED:
            return None  # it died and nobody noted when
        ended = time.time()
    return max(ended - started, 0.0)


def _tells_end(row: Mapping[str, Any]) -> bool:
    """Whether the event says no more than the status and cause of the run do."""
    return row.get("event") == "run_ended" or (row.get("event") in ("failed", "rank_lost") and not row.get("rank"))


def count_alerts(rows: Sequence[Mapping[str, Any]]) -> list[AlertCount]:
    """What fired, worst first. The file also holds messages, deliveries and wishes, which have no `state`."""
    found = Counter((str(row.get("rule")), str(row.get("severity"))) for row in rows if row.get("state") == "firing")
    counts = [AlertCount(rule, severity, times) for (rule, severity), times in found.items()]
    return sorted(counts, key=lambda item: (_SEVERITIES.get(item.severity, len(_SEVERITIES)), -item.times, item.rule))


def read_gpus(reader: RunReader) -> list[GpuUse]:
    """Each GPU of the run, in order of host and index."""
    names = (
        *("utilization_percent", "memory_percent", "memory_used_mb", "memory_total_mb"),
        *("temperature_celsius", "power_draw_watts", "energy_joules"),
    )
    found: dict[tuple[str, int, str], dict[str, Series]] = {}
    labels: dict[tuple[str, int, str], Mapping[str, Any]] = {}
    for series in reader.series(names, table="gpu", x="time"):
        index = series.labels.get("gpu_index")
        key = (
            str(series.labels.get("host", "")),
            index if isinstance(index, int) else -1,
            str(series.labels.get("gpu_uuid", "")),
        )
        found.setdefault(key, {})[series.name] = series
        labels[key] = series.labels
    many_hosts = len({key[0] for key in found}) > 1
    return [_read_gpu(labels[key], found[key], many_hosts) for key in sorted(found)]


def _read_gpu(labels: Mapping[str, Any], series: Mapping[str, Series], many_hosts: bool) -> GpuUse:
    import numpy as np

    def of(name: str) -> tuple[float | None, float | None, float | None]:
        values = series[name].y if name in series else np.empty(0)
        values = values[np.isfinite(values)]
        if not len(values):
            return None, None, None
        return float(values.min()), float(values.mean()), float(values.max())

    index = labels.get("gpu_index")
    title = f"GPU{index}" if index is not None else str(labels.get("gpu_uuid", "GPU"))[:12]
    utilization, memory = of("utilization_percent"), of("memory_percent")
    temperature, power = of("temperature_celsius"), of("power_draw_watts")
    return GpuUse(
        title=f"{labels.get('host')} {title}" if many_hosts else title,
        name=str(labels.get("gpu_name", "")),
        simulated=bool(labels.get("simulated")),
        utilization_low=utilization[0],
        utilization_mean=utilization[1],
        utilization_max=utilization[2],
        memory_low_percent=memory[0],
        memory_mean_percent=memory[1],
        memory_max_percent=memory[2],
        memory_peak_mb=of("memory_used_mb")[2],
        memory_total_mb=of("memory_total_mb")[2],
        temperature_low=temperature[0],
        temperature_mean=temperature[1],
        temperature_max=temperature[2],
        power_low=power[0],
        power_mean=power[1],
        power_max=power[2],
        energy_joules=energy_used(series.get("energy_joules"), series.get("power_draw_watts")),
    )


def energy_used(counter: Series | None, power: Series | None) -> float | None:
    """Joules; None if the card told nothing."""
    energy = Energy()
    if counter is not None:
        for moment, joules in zip(counter.x.tolist(), counter.y.tolist(), strict=True):
            energy.add(moment, joules)
    if power is not None:
        for moment, watts in zip(power.x.tolist(), power.y.tolist(), strict=True):
            energy.add(moment, None, watts)
    return energy.joules


# -- drawing


def print_summary(folder: Path, root: Path | None = None) -> None:
    """To standard error, as everything that is about a run and not its output."""
    columns = width(sys.stderr) if is_terminal(sys.stderr) else None
    print_error(f"\n{draw_summary(read_summary(folder, root), Paint(sys.stderr), columns)}")


def draw_summary(summary: Summary, paint: Paint, columns: int | None = None, *, next_steps: bool = True) -> str:
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


def draw_head(summary: Summary, paint: Paint) -> str:
    """Who it was and how it ended."""
    info = summary.info
    parts = [paint(f"bold {STATUS_STYLES.get(info.status, 'cyan')}", info.status)]
    if summary.last_step is not None:
        parts.append(f"last step {summary.last_step:,}")
    if summary.seconds is not None:
        parts.append(quantities.format_span(summary.seconds))
    if info.attempt > 1:
        parts.append(f"attempt {info.attempt}")
    if info.simulated or any(gpu.simulated for gpu in summary.gpus):
        parts.append(paint("yellow", "GPUs simulated"))
    lines = [f"{paint('bold', clean(info.id))}  {'  '.join(parts)}"]
    if info.cause and info.status != "running":
        lines.append(f"  {paint(STATUS_STYLES.get(info.status, ''), clean(info.cause)[:300])}")
    return "\n".join(lines)


def draw_metrics(metrics: Mapping[str, MetricSummary], paint: Paint, columns: int | None) -> str:
    """Last and best of the main metrics."""
    rows = []
    for name in main_metrics(metrics):
        item = metrics[name]
        word = _which_end(name)
        end, step = (item.low, item.low_step) if word == "low" else (item.high, item.high_step)
        title = "best" if word in ("low", "high") else word
        told = f"{title} {quantities.format_value(end)}" if title and end is not None else ""
        at = f"at step {step:,}" if told and step is not None else ""
        broken = Cell(f"{item.nonfinite:,} not finite", "yellow") if item.nonfinite else ""
        rows.append((clean(name), Cell(quantities.format_value(item.last), "bold"), told, Cell(at, "dim"), broken))
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
    """The names to tell: the catalog's own by any of their names, then what sounds like a result, then the rest."""
    chosen: list[str] = []
    for name in _BEST:
        row = catalog.find("training", name)
        known = (name, *row.aliases) if row else (name,)
        chosen += [key for key in known if key in metrics][:1]
    for words in (_LOWER_IS_BETTER, _HIGHER_IS_BETTER):
        chosen += [key for key in metrics if key not in chosen and any(word in key.lower() for word in words)]
    if not chosen:
        chosen = list(metrics)
    return chosen[:MAX_METRICS]


def _which_end(name: str) -> str:
    """`low`, `high`, another word for the highest value, or nothing to tell."""
    row = catalog.find("training", name)
    canonical = row.name if row else name.lower()
    if _BEST.get(canonical) in ("max", ""):
        return _BEST[canonical]
    if any(word in canonical for word in _LOWER_IS_BETTER):
        return "low"
    return "high" if any(word in canonical for word in _HIGHER_IS_BETTER) else "max"


def draw_gpus(summary: Summary, paint: Paint, columns: int | None) -> str:
    """How much the GPUs had to do."""
    rows = []
    for gpu in summary.gpus[:MAX_GPUS]:
        memory = quantities.format_mb(gpu.memory_peak_mb)
        if gpu.memory_total_mb is not None:
            memory += f" of {quantities.format_mb(gpu.memory_total_mb)}"
        use, most = map(quantities.format_percent, (gpu.utilization_mean, gpu.utilization_max))
        rows.append(
            (
                clean(gpu.title),
                f"{use} (max {most})" if gpu.utilization_mean is not None else quantities.NONE,
                memory,
                quantities.format_unit(gpu.temperature_max, "°C"),
                quantities.format_unit(gpu.power_mean, "W"),
                Cell(label_of(gpu), "dim"),
            )
        )
    header = ("GPU", "use, mean", "memory, peak", "hottest", "power", "")
    text = draw_table(header, rows, paint=paint, columns=columns, optional=(5,), right=(3, 4), indent="  ")
    if len(summary.gpus) > MAX_GPUS:
        text += "\n" + paint("dim", f"  and {len(summary.gpus) - MAX_GPUS} more GPUs")
    return text


def label_of(gpu: GpuUse) -> str:
    """Its name; one that is not there is always said to be simulated."""
    name = clean(gpu.name)
    return f"{name} (simulated)".lstrip() if gpu.simulated and "simulated" not in name.lower() else name


def draw_notes(summary: Summary, paint: Paint) -> str:
    """Ranks, energy, alerts, damage: only what there is."""
    lines = []
    if summary.ranks:
        lines.append(("ranks", tell_ranks(summary.ranks, summary.info.status)))
    if summary.energy_joules is not None:
        simulated = " (simulated)" if all(gpu.simulated for gpu in summary.gpus) else ""
        lines.append(("energy", f"{quantities.format_energy(summary.energy_joules)}{simulated}"))
    if summary.alerts:
        lines.append(("alerts", paint("yellow", tell_alerts(summary.alerts))))
        lines.append(("", paint("cyan", f"{find_program()} alerts history {reference_to(summary.info)}")))
    if summary.criticals or summary.warnings:
        parts = [f"{summary.criticals:,} critical"] if summary.criticals else []
        parts += [f"{summary.warnings:,} warning{'s' if summary.warnings > 1 else ''}"] if summary.warnings else []
        newest = clean(summary.last_events[-1].get("message", ""))[:80] if summary.last_events else ""
        lines.append(("events", f"{paint('yellow', ', '.join(parts))}{f'; newest: {newest}' if newest else ''}"))
    if summary.damage:
        lines.append(("damage", paint("yellow", f"{summary.damage}; everything else was read")))
        lines.append(("", paint("cyan", f"{find_program()} runs check {reference_to(summary.info)}")))
    if summary.below:
        word = "run" if len(summary.below) == 1 else "runs"
        lines.append(("below", f"{len(summary.below):,} further {word} began below this one"))
        lines += [("", tell_below(row, paint)) for row in summary.below[:MAX_BELOW]]
    if len(summary.below) > MAX_BELOW:
        lines.append(("", paint("dim", f"and {len(summary.below) - MAX_BELOW:,} more: {find_program()} runs")))
    return "\n".join(f"  {word:<8}{text}" for word, text in lines)


def tell_below(row: Mapping[str, Any], paint: Paint) -> str:
    """`20261115-223601-run-k3f9  finished  last step 47  19 s`."""
    parts = [clean(row["id"]), paint(STATUS_STYLES.get(row["status"], "cyan"), row["status"])]
    parts += [f"last step {row['last_step']:,}"] if row["last_step"] is not None else []
    return "  ".join([*parts, quantities.format_span(row["seconds"])])


def tell_alerts(alerts: Sequence[AlertCount]) -> str:
    """`3: process_died (critical), step_slow 2 times (warning)`."""
    told = [
        f"{clean(item.rule)}{f' {item.times:,} times' if item.times > 1 else ''} ({clean(item.severity)})"
        for item in alerts[:MAX_ALERTS]
    ]
    if len(alerts) > MAX_ALERTS:
        told.append(f"and {len(alerts) - MAX_ALERTS:,} more rules")
    return f"{sum(item.times for item in alerts):,}: {', '.join(told)}"


def draw_place(summary: Summary, paint: Paint, columns: int | None, next_steps: bool) -> str:
    """Where it is, and what to type next."""
    lines = [f"  folder  {clean(near(summary.info.folder))}"]
    steps = next_commands(summary) if next_steps else []
    size = max((len(command) for command, _ in steps), default=0)
    for place, (command, what) in enumerate(steps):
        fits = columns is None or 12 + size + len(what) <= columns
        told = f"{' ' * (size - len(command))}  {paint('dim', what)}" if fits else ""
        lines.append(f"  {'' if place else 'next':<8}{paint('cyan', command)}{told}")
    return "\n".join(lines)


def next_commands(summary: Summary) -> list[tuple[str, str]]:
    """What one may want to type now, and what it gives."""
    program, reference = find_program(), reference_to(summary.info)
    found = [(f"{program} runs show {reference}", "all there is to know")]
    if summary.metrics or summary.gpus:
        table = "" if summary.metrics else " --table gpu"
        root = (
            f" --dir {shlex.quote(near(summary.info.folder.parent.parent))}"
            if reference != shlex.quote(summary.info.id)
            else ""
        )
        found += [
            (f"{program} top {reference}", "its curves in the terminal"),
            (f"{program} serve{root}", "all runs in the browser"),
            (f"{program} report {reference}", "one file to send around"),
            (f"{program} export {reference} --format csv{table}", "its numbers"),
        ]
    return found


def find_program() -> str:
    """What to type for this program: its name where the shell finds it by that, else the way to it."""
    import shutil

    script = Path(sys.executable).with_name("trainvitals.exe" if sys.platform == "win32" else "trainvitals")
    if not script.is_file() or shutil.which("trainvitals") == str(script):
        return "trainvitals"
    return shlex.quote(near(script))


def near(folder: Path) -> str:
    """The folder as somebody here would type it."""
    try:
        return f"./{folder.absolute().relative_to(Path.cwd())}"
    except (ValueError, OSError):
        return str(folder)


def reference_to(info: RunInfo) -> str:
    """What to type for this run: its id where it is found by that, else its folder."""
    from trainvitals.errors import TrainvitalsError
    from trainvitals.journal.reader import default_root

    try:
        if run_folder.find(info.folder.name, default_root()).samefile(info.folder):
            return shlex.quote(info.folder.name)
    except (TrainvitalsError, OSError):
        pass  # it lies elsewhere
    return shlex.quote(near(info.folder))

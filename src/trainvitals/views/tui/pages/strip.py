"""The run strip: progress, speed and health of the training."""

from __future__ import annotations

import math

from rich.segment import Segment
from rich.style import Style

from trainvitals.analysis.health import Health
from trainvitals.analysis.wording import SEVERITY_SIGNS
from trainvitals.safe_text import one_line
from trainvitals.views.data.quantities import format_duration, format_measure, format_short
from trainvitals.views.panels import BY_ID
from trainvitals.views.tui.paint import Line, bar, crop, fit, stacked, width_of
from trainvitals.views.tui.palette import Palette
from trainvitals.views.tui.snapshot import Judged, RunState
from trainvitals.views.tui.view import View, key_of

# Metric, label, unit: the most important first, since the last are dropped in a narrow window.
_SHOWN = (
    ("loss", "loss", ""),
    ("learning_rate", "lr", ""),
    ("gradient_norm", "grad", ""),
    ("throughput_samples_per_sec", "", "samples/s"),
    ("batch_time", "step", "s"),
    ("accuracy", "acc", ""),
    ("epoch", "epoch", ""),
    ("memory_allocated_mb", "mem", "MB"),
)
_PHASES = BY_ID["step_phases"].metrics
LEAST_NAME = 24
"""If less is left for the name, it is shown rather than the duration of the run."""
LEAST_WITH_FINDING = 3
"""Lines that are taken by name, progress and numbers."""
QUIET_SECONDS = 30.0
LEAST_BAR, MOST_BAR = 8, 60
"""Cells of the bar of phases, without its labels."""
_CHIP = Style(reverse=True, bold=True)


def draw_strip(
    run: RunState, health: Health, judged: Judged | None, now: float, width: int, height: int, view: View
) -> list[Line]:
    """At most `height` lines, the most important first."""
    palette = view.palette
    lines = [_name(run, health, now, width, palette)]
    if health.reason and (health.severity != "ok" or not run.live):
        text = fit(f"  {health.reason}", width)
        lines.append([Segment(text, palette.dim if health.severity == "ok" else palette.severity(health.severity))])
    numbers = _numbers(run, width, view)
    if judged is not None and judged.problems and height > LEAST_WITH_FINDING:
        lines.append(_finding(judged, width, palette))
    lines.append(numbers)
    progress = _progress(run, now, width, palette)
    if progress:
        lines.insert(1, progress)
    phases = _phases(run, width, palette)
    if phases:
        lines.append(phases)
    return [crop(line, width, palette.text) for line in lines[:height]]


def _finding(judged: Judged, width: int, palette: Palette) -> Line:
    """The most important one, and how many more there are."""
    first, *others = judged.problems
    more = f"  {len(others)} more: press {key_of('findings')} " if others else ""
    if width - len(more) < LEAST_NAME:
        more = ""
    style = palette.severity(first.severity)
    text = fit(f" {SEVERITY_SIGNS[first.severity]} {first.headline}", width - len(more))
    return [Segment(text, style), Segment(more, palette.dim)]


def _name(run: RunState, health: Health, now: float, width: int, palette: Palette) -> Line:
    style = palette.severity(health.severity)
    end = run.ended if run.ended is not None else now if run.live else None  # it died, and when is unknown
    spent = ""
    if run.started is not None and end is not None:
        spent = format_duration(end - run.started + run.seconds_before)
    word = f" {health.word.upper()} "
    state = run.status if run.status != health.word else ""
    right = "  ".join(part for part in (state, spent) if part) if width >= 48 else ""
    head: Line = [Segment(" ● " if run.live else " ○ ", style)]
    mark = ("  SIMULATED" if width >= 40 else " SIM") if run.simulated else ""
    if width - len(right) - len(word) - len(mark) < LEAST_NAME:
        right = ""
    tail: Line = [Segment(f"{right}  " if right else "", palette.dim), Segment(word, style + _CHIP), Segment(" ")]
    room = width - width_of(tail) - 2
    name = one_line(run.name[:room])
    head.append(Segment(fit(name, min(width_of([Segment(name)]), max(room - 3 - len(mark), 4))), palette.strong))
    head.append(Segment(mark, palette.warning))
    tags = [run.project, *([f"attempt {run.attempt}"] if run.attempt > 1 else []), *([run.job] if run.job else [])]
    project = Segment("  " + one_line(" · ".join(tags)[:room]), palette.dim)
    if width_of([*head, project]) <= room:
        head.append(project)
    return [*crop(head, max(room, 4), palette.text), Segment("  "), *tail]


def _progress(run: RunState, now: float, width: int, palette: Palette) -> Line:
    if run.step is None:
        return []
    share, total = run.progress.share, run.progress.total_steps
    text = f" step {run.step:,}" + (f" of {total:,}" if total is not None else "")
    if share is None:
        if run.step_seconds:
            text += f"  {format_short(1 / run.step_seconds)} steps/s"
        return [Segment(text, palette.text), *_silence(run, now, palette)]
    text += f"  {share * 100:.1f}%"
    if run.progress.seconds_left is not None:
        text += f"  {format_duration(run.progress.seconds_left)} left"
    quiet = _silence(run, now, palette)
    size = width - len(text) - width_of(quiet) - 2
    return [
        Segment(" "),
        *bar(share, max(size, 4), palette.accent, palette),
        Segment(text, palette.text),
        *quiet,
    ]


def _silence(run: RunState, now: float, palette: Palette) -> Line:
    if not run.live or run.last_step_time is None or now - run.last_step_time < QUIET_SECONDS:
        return []
    return [Segment(f"  no step for {format_duration(now - run.last_step_time)}", palette.warning)]


def _numbers(run: RunState, width: int, view: View) -> Line:
    palette = view.palette
    line: Line = [Segment(" ")]
    for name, word, unit in _SHOWN:
        value = run.values.get(name)
        if value is None:
            continue
        grave = view.grade("training", name, value)
        style = palette.critical if not math.isfinite(value) else palette.severity(grave) if grave else palette.strong
        text = format_measure(value, unit) if unit in ("s", "MB") else format_short(value)
        part = [Segment(f"{word} " if word else "", palette.dim), Segment(text, style)]
        if unit == "samples/s":
            part.append(Segment(f" {unit}", palette.dim))
        if width_of(line) + width_of(part) + 2 > width:
            break
        line += [*part, Segment("   " if width >= 100 else "  ")]
    if len(line) == 1:
        line.append(Segment("nothing logged yet", palette.dim))
    return line


def _phases(run: RunState, width: int, palette: Palette) -> Line:
    parts = [(name, run.values[name]) for name in _PHASES if run.values.get(name, 0.0) > 0.0]
    whole = sum(value for _, value in parts)
    if not parts or not math.isfinite(whole) or whole <= 0:
        return []
    colours = {name: palette.phases.get(name, palette.text) for name, _ in parts}
    labels = {name: _phase(name, value / whole, colours[name], palette) for name, value in parts}
    # If not all of them fit beside the bar, the shortest have no label.
    for name, _ in sorted(parts, key=lambda part: part[1]):
        if width - 2 - sum(map(width_of, labels.values())) >= LEAST_BAR:
            break
        del labels[name]
    legend = [segment for words in labels.values() for segment in words]
    size = min(width - 2 - width_of(legend), MOST_BAR)
    return [Segment(" "), *stacked([(value, colours[name]) for name, value in parts], size), *legend]


def _phase(name: str, share: float, colour: Style, palette: Palette) -> Line:
    word = name.removesuffix("_time")
    word = {"transfer": "copy", "forward": "fwd", "backward": "bwd", "optimizer": "opt"}.get(word, word)
    return [Segment(f"  {word} ", palette.dim), Segment(f"{share * 100:.0f}%", colour)]

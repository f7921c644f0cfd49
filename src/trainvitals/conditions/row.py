"""A row of the catalogue: what the condition is called, from which number on it holds, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Severity = Literal["info", "warning", "critical"]
Subject = Literal["run", "rank", "layer", "gpu", "host", "source"]


class Threshold(NamedTuple):
    """A number from which a condition holds. It belongs to one condition; other rows may refer to it."""

    name: str
    """Unique in the catalogue: `$name` in rules and PromQL, a key of the setting `alerts.thresholds`."""
    default: float
    unit: str
    meaning: str
    below: bool = False
    """True where small is bad: disk space left, learning rate."""


class LiveRule(NamedTuple):
    """How the agent judges it while the run lives, in the language of the user's own rules (docs/alerts.md)."""

    when: str
    message: str
    wait: str = ""
    """How long `when` must hold: `30s`, `3 steps`; empty for at once."""
    after: str = ""
    """The warm-up that is not judged."""
    clear: str = ""
    clear_wait: str = ""
    let: Mapping[str, str] = {}
    advice: str = ""
    """For a measurement that is more specific than the advice of the condition."""


class PrometheusRule(NamedTuple):
    """How Prometheus judges it.

    `<table.metric>` is the series of a metric, `$name` a threshold, `~table.metric:number` a number in the unit of
    the catalog, converted to that of the series; `<held>` is a window of a wait in steps.
    """

    expression: str
    summary: str
    wait: str = ""
    """Only without a live rule, which has it otherwise."""
    name: str = ""
    """Of the alert; by default that of the condition."""


class Colour(NamedTuple):
    """From which values on a metric is coloured: names of thresholds, or numbers where there is nothing to choose."""

    table: str
    metric: str
    warning: str | float | None = None
    critical: str | float | None = None


class Condition(NamedTuple):
    """One thing that can be wrong."""

    id: str
    """The name of its alert."""
    subject: Subject
    title: str
    severity: Severity
    """Of its alert; a finding and a colour are graded by the threshold that was passed."""
    advice: str
    """What to do. `{gpu_index}` is the GPU it is about."""
    thresholds: tuple[Threshold, ...] = ()
    live: LiveRule | None = None
    named: LiveRule | None = None
    """How it is judged instead once a threshold in here was set: as a plain limit, because somebody asked for it."""
    prometheus: PrometheusRule | None = None
    findings: tuple[str, ...] = ()
    """What `analysis` calls it after the fact."""
    colours: tuple[Colour, ...] = ()
    about_end: bool = False
    """It is about the end of a rank or run: its alert is still shown after that."""
    noticed_by_watch: bool = False
    """By an event of the run, written in the training process."""
    speaks_of_node: bool = False
    """It is the fault of a machine rather than of a training: nodes are ranked by it."""

    def advise(self, gpu: str = "") -> str:
        """The advice for the GPU with this index; without one where it is unknown, or several are meant."""
        return self.advice.replace("{gpu_index}", gpu or "INDEX")

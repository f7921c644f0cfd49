"""Metric families from what is known now: the one place that decides which series there are.

Labels: `host` on everything; `gpu uuid` on a GPU's, `run project rank` on a training's. Values are the newest ones;
what has none has no series.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Exemplar, Sample

from trainvitals.exporters import names
from trainvitals.exporters.names import Export, Spelling
from trainvitals.exporters.store import RunView, SourceHealth, Store, Thing
from trainvitals.exporters.training import BUCKETS, RankTraining
from trainvitals.journal.encoding import number

GPU_LABELS = ("gpu", "uuid", "host")
RANK_LABELS = ("run", "project", "rank", "host")
GPU_STATES = ("ok", "lost", "asleep", "reset required", "failing")
RUN_STATES = ("running", "stalled", "hung", "finished", "failed", "killed", "crashed")
LONGEST_LABEL = 256
"""Letters of a label value; a longer one is cut and gets a mark that keeps it apart from others."""

_AT_FIRST: Mapping[str, tuple[str, ...]] = {"gpu": GPU_LABELS, "system": ("host",), "process": RANK_LABELS}


@dataclass(frozen=True, slots=True)
class Options:
    """How the page is to look."""

    spelling: Spelling = "mb"
    compat: frozenset[str] = frozenset()
    user_names: str = "label"
    """`label`: training_metric{name="val/acc"}; `name`: training_metric_val_acc; `both`."""
    max_user_series: int = 2000


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a page is made of."""

    host: str
    started: float
    things: tuple[Thing, ...] = ()
    runs: tuple[tuple[RunView, Mapping[int, RankTraining]], ...] = ()
    healths: tuple[SourceHealth, ...] = ()


@dataclass(slots=True)
class _Page:
    """Families in the making, by name, so that the series of one family stand together."""

    families: dict[str, Metric] = field(default_factory=dict)

    def add(self, export: Export, labels: dict[str, str], value: float, created: float) -> None:
        """One value. `labels` is shared by all values of a thing, which saves most of the work of writing them."""
        family = self.families.get(export.name)
        if family is None:
            family = self.families[export.name] = Metric(export.name, export.help, export.kind, export.unit)
        family.samples.append(Sample(export.series, labels, value * export.factor))
        if export.kind == "counter":
            family.samples.append(Sample(f"{export.name}_created", labels, created))


def build(snapshot: Snapshot, options: Options) -> list[Metric]:
    """All families of the page."""
    page = _Page()
    projects = {run.run_id: run.project for run, _ in snapshot.runs}
    reasons, states, actions, gpus = _gpu_words()
    for thing in snapshot.things:
        labels = _labels(thing, snapshot.host, projects)
        if labels is None:
            continue
        _add_values(page, thing, labels, options.spelling, snapshot.started)
        if thing.table == "gpu":
            _add_gpu_words(thing, labels, reasons, states, actions, gpus)
    found = [*page.families.values(), *(family for family in (gpus, states, reasons, actions) if family.samples)]
    found += _training(snapshot, options)
    found += _own(snapshot, options)
    if options.compat:
        from trainvitals.exporters import compat

        found += compat.build(snapshot, options.compat)
    return found


def clean(value: object) -> str:
    """A label value: valid text of a bounded length, still different where the whole was different."""
    text = str(value).encode("utf-8", "replace").decode()
    if len(text) > LONGEST_LABEL:
        text = f"{text[: LONGEST_LABEL - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def gpu_label(labels: Mapping[str, object]) -> str:
    """`0`, or `0:1` for the second slice of the first GPU; the PCI address of one that cannot say its number."""
    index = labels.get("gpu_index", labels.get("pci", ""))
    return f"{index}:{labels['mig_index']}" if "mig_index" in labels else str(index)


def _labels(thing: Thing, host: str, projects: Mapping[str, str]) -> tuple[str, ...] | None:
    """The values of the labels of a thing; None for what is not exposed (scraped pages, processes of no run)."""
    if thing.table == "gpu":
        return (gpu_label(thing.labels), clean(thing.labels.get("gpu_uuid", "")), host)
    if thing.table == "system":
        return (host,)
    run = str(thing.labels.get("run_id", ""))
    if thing.table == "process" and run in projects:
        return (clean(run), clean(projects[run]), str(thing.labels.get("rank", 0)), host)
    return None


def _add_values(page: _Page, thing: Thing, labels: tuple[str, ...], spelling: Spelling, started: float) -> None:
    named = dict(zip(_AT_FIRST[thing.table], labels, strict=True))
    for name, item in thing.values.items():
        value = None if isinstance(item, str) else number(item)
        if value is None:
            continue
        export = names.export_of(thing.table, name, spelling)
        if export is None:
            continue
        if thing.table == "system" and name.startswith("cpu") and name[3:4].isdigit():
            core = name[3:].partition("_")[0]
            page.add(export, {"cpu": core, **named}, value, started)
        else:
            page.add(export, named, value, started)


# -- words as series: one with value 1 for what is the case


def _gpu_words() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily, InfoMetricFamily]:
    def words(name: str, help: str, label: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, help, labels=(label, *GPU_LABELS))

    return (
        words("gpu_throttle_reason", "1 for each reason for which the clocks are held down", "reason"),
        words("gpu_state", "1 for the state the GPU is in, 0 for the others", "state"),
        words("gpu_recovery_action", "1 for what the driver asks for: none, reset, reboot, drain", "action"),
        InfoMetricFamily("gpu", "What the GPU is", labels=GPU_LABELS),
    )


def _add_gpu_words(
    thing: Thing,
    labels: tuple[str, ...],
    reasons: GaugeMetricFamily,
    states: GaugeMetricFamily,
    actions: GaugeMetricFamily,
    gpus: InfoMetricFamily,
) -> None:
    for reason in str(thing.values.get("throttle_reasons", "none")).split(","):
        if reason.strip() not in ("none", ""):
            reasons.add_metric((clean(reason.strip()), *labels), 1.0)
    state = thing.values.get("state")
    if state is not None:
        for word in GPU_STATES if state in GPU_STATES else (*GPU_STATES, str(state)):
            states.add_metric((word, *labels), float(word == state))
    if "recovery_action" in thing.values:
        actions.add_metric((clean(thing.values["recovery_action"]), *labels), 1.0)
    about = {"name": clean(thing.labels.get("gpu_name", "")), "vendor": clean(thing.labels.get("vendor", ""))}
    about["simulated"] = str(int(bool(thing.labels.get("simulated"))))
    gpus.add_metric(labels, about)


# -- training


def _training(snapshot: Snapshot, options: Options) -> list[Metric]:
    page = _Page()
    steps = CounterMetricFamily("training_steps", "Optimizer steps done, over all attempts", labels=RANK_LABELS)
    duration = HistogramMetricFamily(
        "training_step_duration_seconds", "Duration of a step", labels=RANK_LABELS, unit="seconds"
    )
    phase = GaugeMetricFamily(
        "training_phase_duration_seconds", "Phases of the newest step; they add up to it",
        labels=("phase", *RANK_LABELS), unit="seconds",
    )  # fmt: skip
    last = GaugeMetricFamily(
        "training_last_step_timestamp_seconds", "When the newest step was logged", labels=RANK_LABELS, unit="seconds"
    )
    memory, factor = names.spell("memory_allocation_mb", options.spelling)
    allocation = SummaryMetricFamily(memory, "Device memory held by tensors, over the newest steps", labels=RANK_LABELS)
    metric = GaugeMetricFamily(
        "training_metric", "Newest value of each metric of your own", labels=("name", *RANK_LABELS)
    )
    by_name: dict[str, GaugeMetricFamily] = {}
    room = options.max_user_series
    left_out = 0
    for run, ranks in snapshot.runs:
        for rank, training in sorted(ranks.items()):
            labels = (clean(run.run_id), clean(run.project), str(rank), snapshot.host)
            named = dict(zip(RANK_LABELS, labels, strict=True))
            for name, value in list(training.values.items()):
                if name in names.PHASES:
                    phase.add_metric((name.removesuffix("_time"), *labels), value)
                export = names.export_of("training", name, options.spelling)
                if export is not None:
                    page.add(export, named, value, snapshot.started)
            if training.last_step is not None:
                steps.add_metric(labels, training.steps_total, created=training.first_time)
            if training.last_time is not None:
                last.add_metric(labels, training.last_time)
            _add_duration(duration, labels, training)
            _add_allocation(allocation, labels, training, factor)
            own = list(training.metrics.items())
            left_out += max(len(own) - room, 0) + training.left_out
            for name, value in own[: max(room, 0)]:
                if options.user_names != "name":
                    metric.add_metric((clean(name), *labels), value)
                if options.user_names != "label":
                    _user_family(by_name, name).add_metric((clean(name), *labels), value)
            room -= min(len(own), room)
    left = GaugeMetricFamily(
        "trainvitals_user_series_left_out", "User metrics beyond prometheus.max_user_series", labels=("host",)
    )
    left.add_metric((snapshot.host,), left_out)
    apart: list[Metric] = [steps, duration, phase, last, allocation, metric, *by_name.values()]
    return [*page.families.values(), *(family for family in apart if family.samples), left]


def _user_family(families: dict[str, GaugeMetricFamily], name: str) -> GaugeMetricFamily:
    """Names that are the same once sanitised share a family; the label `name` keeps them apart."""
    full = f"training_metric_{names.sanitise(name)[:LONGEST_LABEL]}"
    if full not in families:
        families[full] = GaugeMetricFamily(full, "A metric of your own", labels=("name", *RANK_LABELS))
    return families[full]


def _add_duration(family: HistogramMetricFamily, labels: tuple[str, ...], training: RankTraining) -> None:
    counts = list(training.buckets)
    if not sum(counts):
        return
    total = 0
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for place, count in enumerate(counts):
        total += count
        end = str(BUCKETS[place]) if place < len(BUCKETS) else "+Inf"
        example = training.exemplars.get(place)
        if example is None:
            buckets.append((end, total))
        else:
            buckets.append((end, total, Exemplar({"step": str(example.step)}, example.value, example.time)))
    family.add_metric(labels, buckets, training.duration_sum)
    if training.first_time is not None:
        named = dict(zip(RANK_LABELS, labels, strict=True))
        family.samples.append(Sample(f"{family.name}_created", named, training.first_time))


def _add_allocation(
    family: SummaryMetricFamily, labels: tuple[str, ...], training: RankTraining, factor: float
) -> None:
    if not training.memory_count:
        return
    named = dict(zip(RANK_LABELS, labels, strict=True))
    for share, value in training.quantiles():
        family.samples.append(Sample(family.name, {**named, "quantile": str(share)}, value * factor))
    family.add_metric(labels, training.memory_count, training.memory_sum * factor)


# -- about ourselves


def _own(snapshot: Snapshot, options: Options) -> list[Metric]:
    build_info = InfoMetricFamily("trainvitals_build", "The version that serves this page")
    build_info.add_metric((), {"version": version("trainvitals"), "python": platform.python_version()})
    started = GaugeMetricFamily(
        "trainvitals_agent_start_time_seconds", "When the agent started", labels=("host",), unit="seconds"
    )
    started.add_metric((snapshot.host,), snapshot.started)
    runs = InfoMetricFamily("trainvitals_run", "The runs that are watched", labels=("run", "project", "host"))
    states = GaugeMetricFamily(
        "trainvitals_run_state",
        "1 for the state the run is in, 0 for the others",
        labels=("state", "run", "project", "host"),
    )
    alerts = GaugeMetricFamily(
        "trainvitals_alert_active",
        "1 for each alert that fires",
        labels=("rule", "severity", "run", "project", "host", "gpu", "rank"),
    )
    for run, _ in snapshot.runs:
        labels = (clean(run.run_id), clean(run.project), snapshot.host)
        runs.add_metric(labels, {"name": clean(run.name)})
        for word in RUN_STATES if run.state in RUN_STATES else (*RUN_STATES, run.state):
            states.add_metric((word, *labels), float(word == run.state))
        # One series per rule and GPU or rank, also where a rule looks at something finer.
        firing = {
            (
                clean(alert.rule),
                alert.severity,
                *labels,
                gpu_label(alert.labels) if {"gpu_index", "pci"} & alert.labels.keys() else "",
                str(alert.labels.get("rank", "")),
            )
            for alert in run.alerts
        }
        for values in sorted(firing):
            alerts.add_metric(values, 1.0)
    found: list[Metric] = [build_info, started]
    found += [family for family in (runs, states, alerts) if family.samples]
    return [*found, *_sources(snapshot)]


def _sources(snapshot: Snapshot) -> Iterable[Metric]:
    page = _Page()
    for health in snapshot.healths:
        labels = {"source": health.source, "unit": clean(health.unit), "host": snapshot.host}
        for name, value in health.values.items():
            export = names.export_of("source", name, "mb")
            if export is not None:
                page.add(export, labels, value, snapshot.started)
    return page.families.values()


def take_snapshot(store: Store, runs: Iterable[tuple[RunView, Mapping[int, RankTraining]]]) -> Snapshot:
    """What a page is made of, now."""
    return Snapshot(store.host, store.started, tuple(store.things()), tuple(runs), store.healths)

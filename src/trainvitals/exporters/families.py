"""Metric families from what is known now: the one place that decides which series there are.

Labels: `host` on everything; `gpu uuid` on a GPU's, `run project rank` on a training's, with its `role` unless that is
trainer. Values are the newest ones; what has none has no series.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import NamedTuple

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import BucketSpan, Exemplar, NativeHistogram, Sample

from trainvitals import catalog
from trainvitals.exporters import names
from trainvitals.exporters.labels import ROLE, Labels, share
from trainvitals.exporters.names import NAME_ENDINGS, Spelling
from trainvitals.exporters.runs import GpuHolder, RunView, ShippingCounts
from trainvitals.exporters.training import BUCKETS, FINENESS, FIRST, RankTraining
from trainvitals.journal.documents import job
from trainvitals.journal.documents.cause import EXCEPTION, EXIT_CODE, INTERRUPTED, OUT_OF_MEMORY, SIGNAL, UNKNOWN
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.documents.run import ENDED
from trainvitals.journal.encoding import number
from trainvitals.journal.identity import Participant, gpu_number
from trainvitals.newest import Thing
from trainvitals.redaction import redact_text

GPU_LABELS = ("gpu", "uuid", "host")
RANK_LABELS = ("run", "project", ROLE, "rank", "host")
GPU_FACTS = ("pci_bus_id", "serial", "vbios_version", "driver_version", "cuda_version")
HOLDER_LABELS = ("user", "command", "slurm_job_id", "pod", "namespace", "container")
GPU_STATES = ("ok", "lost", "asleep", "reset required", "failing", "unresponsive")
RUN_STATES = ("running", "stalled", "hung", *ENDED)
ENDINGS = (
    ("finished", ""),
    *(("failed", kind) for kind in (EXCEPTION, EXIT_CODE, INTERRUPTED)),
    *(("killed", kind) for kind in (SIGNAL, OUT_OF_MEMORY)),
    *(("crashed", kind) for kind in (SIGNAL, UNKNOWN)),
)
"""Statuses with their usual causes: counted from 0, so that the first one is an increase."""
LONGEST_LABEL = 256
"""Letters of a label value; a longer one is cut and gets a mark that keeps it apart from others."""

_ENDS = (*map(str, BUCKETS), "+Inf")
_NAMES: Mapping[str, tuple[str, ...]] = {"gpu": GPU_LABELS, "system": ("host",), "process": RANK_LABELS}


@dataclass(frozen=True, slots=True)
class FamilyOptions:
    """How the page is to look."""

    spelling: Spelling = "mb"
    compat: frozenset[str] = frozenset()
    user_names: str = "label"
    """`label`: training_metric{name="val/acc"}; `name`: training_metric_val_acc; `both`."""
    max_user_series: int = 2000
    host: str | None = None
    """What this machine is called; by default its own name."""
    native: bool = False
    """Whether the histogram is also there in fine buckets, as one sample that only some ways out can take."""


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """Everything that a page is made of."""

    host: str
    started: float
    things: tuple[Thing, ...] = ()
    runs: tuple[tuple[RunView, Mapping[Participant, RankTraining]], ...] = ()
    healths: Mapping[str, SourceHealth] = field(default_factory=dict)
    """By unit."""
    lines_parsed: Mapping[str, int] = field(default_factory=dict)
    """By table."""
    holders: tuple[GpuHolder, ...] = ()
    gpu_facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What a GPU is besides its labels (`GPU_FACTS`), by UUID; what is not known is missing."""
    runs_ended: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By status and kind of cause."""
    shipping: ShippingCounts | None = None

    def facts_of(self, gpu: Mapping[str, object]) -> Mapping[str, str]:
        """What the GPU with these labels is besides; a MIG slice is what its GPU is."""
        return self.gpu_facts.get(str(gpu.get("gpu_uuid")), self.gpu_facts.get(str(gpu.get("mig_parent")), {}))


class FamilySeries:
    """A family in the making, all of whose series have the same label names."""

    def __init__(
        self, name: str, help: str, labels: tuple[str, ...] = (), *, kind: str = "gauge", unit: str = ""
    ) -> None:
        self.family = Metric(name, help, kind, unit)
        self._labels = labels
        self._name = name + NAME_ENDINGS.get(kind, "")

    def add(self, labels: tuple[str, ...], value: float = 1.0, *, created: float | None = None) -> None:
        """One series: its label values and its value."""
        shared = share(self._labels, labels)
        self.family.samples.append(Sample(self._name, shared, value))
        if created is not None:
            self.family.samples.append(Sample(f"{self.family.name}_created", shared, created))


class _Place(NamedTuple):
    """Where the values of a catalog metric go."""

    samples: list[Sample]
    series: str
    factor: float
    created: str | None
    """The series of the created times, of a counter that the agent began."""


class _Exports:
    """Families of catalog metrics in the making; the series of one family are adjacent."""

    def __init__(self, spelling: Spelling, started: float) -> None:
        self._spelling = spelling
        self._started = started
        self._places: dict[tuple[str, str], _Place | None] = {}
        self.families: dict[str, Metric] = {}

    def add(self, table: str, name: str, labels: Labels, value: float) -> None:
        """One value; nothing for a metric without a separate family."""
        try:
            place = self._places[table, name]
        except KeyError:
            place = self._places[table, name] = self._open(table, name)
        if place is None:
            return
        place.samples.append(Sample(place.series, labels, value * place.factor))
        if place.created is not None:
            place.samples.append(Sample(place.created, labels, self._started))

    def _open(self, table: str, name: str) -> _Place | None:
        export = names.export_of(table, name, self._spelling)
        if export is None:
            return None
        family = self.families.get(export.name)
        if family is None:
            family = self.families[export.name] = Metric(export.name, export.help, export.kind, export.unit)
        created = f"{export.name}_created" if export.counted_here else None
        return _Place(family.samples, export.series, export.factor, created)


def build(snapshot: MetricsSnapshot, options: FamilyOptions) -> list[Metric]:
    """All families of the page."""
    if options.host is not None:
        snapshot = replace(snapshot, host=options.host)
    exports = _Exports(options.spelling, snapshot.started)
    projects = {run.run_id: run.project for run, _ in snapshot.runs}
    words = _GpuWords(snapshot)
    for thing in snapshot.things:
        labels = _labels(thing, snapshot.host, projects)
        if labels is None:
            continue
        _add_values(exports, thing, labels)
        if thing.table == "gpu":
            words.add(thing, labels)
    found = [*exports.families.values(), *_filled(words.info, words.states, words.reasons, words.actions)]
    found += _holders(snapshot, options.spelling)
    found += _training(snapshot, options)
    found += _own(snapshot)
    if options.compat:
        from trainvitals.exporters import compat

        found += compat.build(snapshot, options.compat)
    return found


def _filled(*series: FamilySeries) -> list[Metric]:
    return [item.family for item in series if item.family.samples]


def is_hardware(sample: Sample) -> bool:
    """Of a GPU or the host: what every agent of the machine measures alike."""
    of_agent = sample.name.startswith("trainvitals_") and not sample.name.startswith("trainvitals_gpu_holder")
    return not sample.labels.get("run") and not of_agent


def clean(value: object) -> str:
    """A label value: valid text of a bounded length, still different where the whole was different."""
    text = str(value)
    if not text.isascii():
        text = text.encode("utf-8", "backslashreplace").decode()
    if len(text) > LONGEST_LABEL:
        text = f"{text[: LONGEST_LABEL - 9]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return text


def gpu_label(labels: Mapping[str, object]) -> str:
    """Its number; the PCI address of a GPU that cannot give one."""
    return gpu_number(labels, labels.get("pci", ""))


def _labels(thing: Thing, host: str, projects: Mapping[str, str]) -> tuple[str, ...] | None:
    """The values of the labels of a thing; None for what is not exposed (scraped pages, processes of no run)."""
    if thing.table == "gpu":
        return (gpu_label(thing.labels), clean(thing.labels.get("gpu_uuid", "")), host)
    if thing.table == "system":
        return (host,)
    run = str(thing.labels.get("run_id", ""))
    if thing.table == "process" and run in projects:
        return _rank_labels(clean(run), clean(projects[run]), Participant.of(thing.labels), host)
    return None


def _rank_labels(run: str, project: str, participant: Participant, host: str) -> tuple[str, ...]:
    """The values of RANK_LABELS."""
    return (run, project, str(participant.labels.get(ROLE, "")), str(participant.rank), host)


def _add_values(exports: _Exports, thing: Thing, labels: tuple[str, ...]) -> None:
    shared = share(_NAMES[thing.table], labels)
    for name, item in thing.values.items():
        value = None if isinstance(item, str) else number(item)
        if value is None:
            continue
        if thing.table == "system" and name.startswith("cpu") and name[3:4].isdigit():
            core = name[3:].partition("_")[0]
            exports.add(thing.table, name, share(("cpu", "host"), (core, *labels)), value)
        else:
            exports.add(thing.table, name, shared, value)
    for name, counts in thing.counters.items():
        row = catalog.find_counter(thing.table, name)
        if row is None:
            continue
        for which, count in counts.items():
            named = share((row.label, *_NAMES[thing.table]), (clean(which), *labels)) if row.label else shared
            exports.add(thing.table, name, named, count)


class _GpuWords:
    """Words as series: one with value 1 for what is the case."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._facts_of = snapshot.facts_of
        about = ("name", "vendor", "simulated", *GPU_FACTS)
        self.info = FamilySeries("gpu", "GPU name and identifiers", (*GPU_LABELS, *about), kind="info")
        self.states = FamilySeries(
            "gpu_state", "1 for the state the GPU is in, 0 for the others", ("state", *GPU_LABELS)
        )
        self.reasons = FamilySeries("gpu_throttle_reason", "1 for each active throttle reason", ("reason", *GPU_LABELS))
        self.actions = FamilySeries(
            "gpu_recovery_action",
            "1 for the recovery action requested by the driver: none, reset, reboot, drain",
            ("action", *GPU_LABELS),
        )

    def add(self, thing: Thing, labels: tuple[str, ...]) -> None:
        for reason in str(thing.values.get("throttle_reasons", "none")).split(","):
            if reason.strip() not in ("none", ""):
                self.reasons.add((clean(reason.strip()), *labels))
        state = thing.values.get("state")
        if state is not None:
            for word in GPU_STATES if state in GPU_STATES else (*GPU_STATES, str(state)):
                self.states.add((word, *labels), float(word == state))
        if "recovery_action" in thing.values:
            self.actions.add((clean(thing.values["recovery_action"]), *labels))
        about = thing.labels
        simulated = str(int(bool(about.get("simulated"))))
        facts = self._facts_of(about)
        words = (clean(about.get("gpu_name", "")), clean(about.get("vendor", "")), simulated)
        self.info.add((*labels, *words, *(clean(facts.get(name, "")) for name in GPU_FACTS)))


def _holders(snapshot: MetricsSnapshot, spelling: Spelling) -> list[Metric]:
    """Who is on which GPU: facts on one series, numbers by GPU and process, to be joined."""
    names_of = ("gpu", "uuid", "pid", "host")
    info = FamilySeries(
        "trainvitals_gpu_holder",
        "A process on a GPU, watched or not, and whose it is; a pod that was given the GPU and has none there",
        (*names_of, *HOLDER_LABELS, "run", ROLE, "rank"),
        kind="info",
    )
    memory_name, factor = names.spell("trainvitals_gpu_holder_memory_mb", spelling)
    memory = FamilySeries(
        memory_name, "Device memory of a process", names_of, unit="bytes" if spelling == "base" else "mb"
    )
    busy_name, share_factor = names.spell("trainvitals_gpu_holder_sm_percent", spelling)
    busy = FamilySeries(busy_name, "SM use of a process", names_of, unit="ratio" if spelling == "base" else "percent")
    for holder in snapshot.holders:
        pid = "" if holder.pid is None else str(holder.pid)
        at = (gpu_label(holder.gpu), clean(holder.gpu.get("gpu_uuid", "")), pid, snapshot.host)
        role, rank = "", ""
        if holder.run:
            role, rank = str(holder.participant.labels.get(ROLE, "")), str(holder.participant.rank)
        owner = {"user": holder.user, "command": holder.command, **holder.job.label_values()}
        info.add((*at, *(clean(owner[name]) for name in HOLDER_LABELS), clean(holder.run), role, rank))
        if holder.memory_mb is not None:
            memory.add(at, holder.memory_mb * factor)
        if holder.sm_percent is not None:
            busy.add(at, holder.sm_percent * share_factor)
    return _filled(info, memory, busy)


# -- training


def _training(snapshot: MetricsSnapshot, options: FamilyOptions) -> list[Metric]:
    exports = _Exports(options.spelling, snapshot.started)
    steps = FamilySeries("training_steps", "Optimizer steps completed, over all attempts", RANK_LABELS, kind="counter")
    duration = Metric("training_step_duration_seconds", "Duration of a step", "histogram", "seconds")
    phase = FamilySeries(
        "training_phase_duration_seconds", "Phases of the latest step; they add up to its duration",
        ("phase", *RANK_LABELS), unit="seconds",
    )  # fmt: skip
    last = FamilySeries(
        "training_last_step_timestamp_seconds", "Time of the latest logged step", RANK_LABELS, unit="seconds"
    )
    memory, factor = names.spell("memory_allocation_mb", options.spelling)
    allocation = Metric(memory, "Device memory held by tensors, over recent steps", "summary")
    metric = FamilySeries("training_metric", "Latest value of each user metric", ("name", *RANK_LABELS))
    by_name: dict[str, FamilySeries] = {}
    room = options.max_user_series
    left_out = 0
    for run, ranks in snapshot.runs:
        for participant in sorted(ranks):
            training = ranks[participant]
            labels = _rank_labels(clean(run.run_id), clean(run.project), participant, snapshot.host)
            shared = share(RANK_LABELS, labels)
            for name, value in list(training.values.items()):
                if name in names.PHASES:
                    phase.add((name.removesuffix("_time"), *labels), value)
                exports.add("training", name, shared, value)
            if training.last_step is not None:
                from_start = training.first_step is not None and training.first_step <= 1
                steps.add(labels, training.steps_total, created=training.first_time if from_start else None)
            if training.last_time is not None:
                last.add(labels, training.last_time)
            if options.native and training.durations:
                duration.samples.append(Sample(duration.name, shared, 0.0, native_histogram=_native(training)))
            _add_duration(duration, labels, training)
            _add_allocation(allocation, labels, training, factor)
            own = list(training.metrics.items())
            left_out += max(len(own) - room, 0) + training.left_out
            for name, value in own[: max(room, 0)]:
                named = (clean(name), *labels)
                if options.user_names != "name":
                    metric.add(named, value)
                if options.user_names != "label":
                    _user_series(by_name, name).add(named, value)
            room -= min(len(own), room)
    left = FamilySeries(
        "trainvitals_user_series_left_out", "User metrics dropped beyond prometheus.max_user_series", ("host",)
    )
    left.add((snapshot.host,), left_out)
    histogram_and_summary = [family for family in (duration, allocation) if family.samples]
    return [
        *exports.families.values(),
        *histogram_and_summary,
        *_filled(steps, phase, last, metric, *by_name.values(), left),
    ]


def _user_series(series: dict[str, FamilySeries], name: str) -> FamilySeries:
    """Names that are the same once sanitized share a family; the label `name` keeps them apart."""
    full = f"training_metric_{names.sanitise(name)[:LONGEST_LABEL]}"
    if full not in series:
        series[full] = FamilySeries(full, "User metric", ("name", *RANK_LABELS))
    return series[full]


def _add_duration(family: Metric, labels: tuple[str, ...], training: RankTraining) -> None:
    counts = training.count_durations()
    if not counts[-1]:
        return
    names_of, name = (*RANK_LABELS, "le"), f"{family.name}_bucket"
    for place, (end, count) in enumerate(zip(_ENDS, counts, strict=True)):
        step = training.exemplars.get(FIRST + place)
        example = None if step is None else Exemplar({"step": str(step.step)}, step.value, step.time)
        family.samples.append(Sample(name, share(names_of, (*labels, end)), count, None, example))
    shared = share(RANK_LABELS, labels)
    family.samples.append(Sample(f"{family.name}_count", shared, counts[-1]))
    family.samples.append(Sample(f"{family.name}_sum", shared, training.duration_sum))
    if training.first_time is not None:
        family.samples.append(Sample(f"{family.name}_created", shared, training.first_time))


def _native(training: RankTraining) -> NativeHistogram:
    """Neighbouring buckets are spans; each count is encoded as the difference to the one before."""
    counts = sorted(dict(training.durations).items())
    spans: list[BucketSpan] = []
    deltas: list[int] = []
    after, before = 0, 0
    for place, count in counts:
        if not spans or place > after:
            spans.append(BucketSpan(place - after, 1))
        else:
            spans[-1] = BucketSpan(spans[-1].offset, spans[-1].length + 1)
        deltas.append(count - before)
        after, before = place + 1, count
    total = sum(count for _, count in counts)
    schema = FINENESS.bit_length() - 1
    return NativeHistogram(total, training.duration_sum, schema, 0.0, 0, pos_spans=spans, pos_deltas=deltas)


def _add_allocation(family: Metric, labels: tuple[str, ...], training: RankTraining, factor: float) -> None:
    if not training.memory_count:
        return
    for quantile, value in training.quantiles():
        at = share((*RANK_LABELS, "quantile"), (*labels, str(quantile)))
        family.samples.append(Sample(family.name, at, value * factor))
    shared = share(RANK_LABELS, labels)
    family.samples.append(Sample(f"{family.name}_count", shared, training.memory_count))
    family.samples.append(Sample(f"{family.name}_sum", shared, training.memory_sum * factor))


# -- about ourselves


def _own(snapshot: MetricsSnapshot) -> list[Metric]:
    host = snapshot.host
    about = FamilySeries("trainvitals_build", "Version of trainvitals", ("version", "python"), kind="info")
    about.add(_versions())
    started = FamilySeries("trainvitals_agent_start_time_seconds", "Start time of the agent", ("host",), unit="seconds")
    started.add((host,), snapshot.started)
    parsed = FamilySeries(
        "trainvitals_agent_lines_parsed",
        "Lines of run folders parsed by the agent",
        ("table", "host"),
        kind="counter",
    )
    for table, count in sorted(snapshot.lines_parsed.items()):
        parsed.add((clean(table), host), count)
    ended = FamilySeries("trainvitals_runs_ended", "Runs that ended", ("status", "cause", "host"), kind="counter")
    for (status, cause), count in (dict.fromkeys(ENDINGS, 0) | dict(snapshot.runs_ended)).items():
        ended.add((clean(status), clean(cause), host), count)
    return [*_filled(about, started, parsed, ended), *_shipping(snapshot), *_runs(snapshot), *_sources(snapshot)]


def _shipping(snapshot: MetricsSnapshot) -> list[Metric]:
    counts, host = snapshot.shipping, snapshot.host
    if counts is None:
        return []
    requests = FamilySeries(
        "trainvitals_agent_gateway_requests", "Requests to gateways by result", ("outcome", "host"), kind="counter"
    )
    requests.add(("taken", host), counts.requests)
    requests.add(("failed", host), counts.failures)
    sent = FamilySeries(
        "trainvitals_agent_shipped_bytes", "Bytes of runs that gateways have taken", ("host",), kind="counter"
    )
    waiting = FamilySeries("trainvitals_agent_unshipped_bytes", "Bytes of runs that wait for a gateway", ("host",))
    runs = FamilySeries("trainvitals_agent_unshipped_runs", "Runs that a gateway does not have as a whole", ("host",))
    behind = FamilySeries(
        "trainvitals_agent_shipping_behind_seconds",
        "Time for which a gateway has lacked something of a run, of the run for which that is longest",
        ("host",),
        unit="seconds",
    )
    values = (counts.sent_bytes, counts.waiting_bytes, counts.runs, counts.behind_seconds)
    for family, value in zip((sent, waiting, runs, behind), values, strict=True):
        family.add((host,), value)
    return _filled(requests, sent, waiting, runs, behind)


def build_endings(snapshot: MetricsSnapshot, options: FamilyOptions) -> list[Metric]:
    """How the runs of this snapshot that are over ended: what stays in a server when an agent stops."""
    if options.host is not None:
        snapshot = replace(snapshot, host=options.host)
    over = tuple((run, ranks) for run, ranks in snapshot.runs if run.ended is not None)
    return _runs(replace(snapshot, runs=over))


def _runs(snapshot: MetricsSnapshot) -> list[Metric]:
    host = snapshot.host
    runs = FamilySeries(
        "trainvitals_run",
        "Monitored runs, and what a scheduler knows them as",
        ("run", "project", "host", "name", *job.LABELS),
        kind="info",
    )
    states = FamilySeries(
        "trainvitals_run_state",
        "1 for the state the run is in, 0 for the others",
        ("state", "run", "project", "host"),
    )
    alerts = FamilySeries(
        "trainvitals_alert_active",
        "1 for each firing alert",
        ("rule", "severity", "run", "project", "host", "gpu", ROLE, "rank"),
    )
    endings = FamilySeries(
        "trainvitals_run_end_timestamp_seconds",
        "When a run ended, how, and the kind of cause with its details",
        ("status", "cause", "detail", "run", "project", "host"),
        unit="seconds",
    )
    for run, _ in snapshot.runs:
        labels = (clean(run.run_id), clean(run.project), host)
        placed = run.job.label_values()
        runs.add((*labels, clean(run.name), *(clean(placed[name]) for name in job.LABELS)))
        if run.ended is not None:
            cause = run.ended.cause
            why = (cause.kind, clean(redact_text(str(cause)))) if cause is not None else ("", "")
            endings.add((run.state, *why, *labels), run.ended.time)
        for word in RUN_STATES if run.state in RUN_STATES else (*RUN_STATES, run.state):
            states.add((word, *labels), float(word == run.state))
        # One series per rule and GPU or participant, also where a rule looks at something finer.
        firing = {
            (
                clean(alert.rule),
                alert.severity,
                *labels,
                gpu_label(alert.labels) if {"gpu_index", "pci"} & alert.labels.keys() else "",
                str(alert.labels.get(ROLE, "")),
                str(alert.labels.get("rank", "")),
            )
            for alert in run.alerts
        }
        for values in sorted(firing):
            alerts.add(values)
    return _filled(runs, states, endings, alerts)


@cache
def _versions() -> tuple[str, str]:
    """Of the package and of Python; looked up on the disk."""
    return version("trainvitals"), platform.python_version()


def _sources(snapshot: MetricsSnapshot) -> Iterable[Metric]:
    exports = _Exports("mb", snapshot.started)
    for unit, health in snapshot.healths.items():
        labels = share(("source", "unit", "host"), (health.source, clean(unit), snapshot.host))
        for name, value in health.values().items():
            exports.add("source", name, labels, float(value))
    return exports.families.values()

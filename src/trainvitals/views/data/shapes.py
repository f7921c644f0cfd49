"""The shapes of all answers, each declared once: what `views.data` returns, the API describes and the page reads.

mypy compares the functions that make them; `views.web.schemas` makes the API's description of them, and that the page's
TypeScript types. There a shape has its name without `Json`. Tested in tests/views/web/test_schemas.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from trainvitals import catalog
from trainvitals.analysis.comparison import Verdict
from trainvitals.analysis.diagnosis import Gap
from trainvitals.analysis.findings import Finding
from trainvitals.analysis.health import Health
from trainvitals.analysis.importance import Importance, Interaction
from trainvitals.analysis.metric_sense import Direction
from trainvitals.analysis.progress import Progress
from trainvitals.conditions.catalogue import Level
from trainvitals.journal.contracts import MediaKind, TextPart
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.findings import Counts
from trainvitals.journal.documents.latest import LatestSample
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.encoding import Real
from trainvitals.journal.summaries import MetricSummary
from trainvitals.views import panels


class Wire(NamedTuple):
    """Beside a type in `Annotated`: what it is in JSON, where that is another type."""

    type: Any
    and_type: Any = None
    """Its fields are there as well."""
    name: str = ""
    """Of the JSON type, where it deserves one."""


Plain = dict[str, Any]
"""What `_asdict()`, `asdict()` and `as_json()` return: `Wire` has the type whose fields they are."""
Labels = Annotated[Mapping[str, Any], Wire(dict[str, str | float | bool], name="Labels")]
Value = Annotated[float | None, Wire(Real | None, name="Value")]
Numbers = Annotated[NDArray[Any] | Sequence[float], Wire(list[float])]
Curve = Annotated[NDArray[np.float64], Wire(list[float | None])]
"""Null where a value is not finite."""
AlertJson = Annotated[Plain, Wire(AlertRow)]
EventJson = Annotated[Plain, Wire(EventRow)]
LevelJson = Annotated[Plain, Wire(Level)]
TextJson = Annotated[Plain, Wire(TextPart)]


class AboutJson(TypedDict):
    version: str
    root: str
    allow_edit: bool
    runs: int
    machines: Annotated[list[str], "Whose runs these are; empty: of this one alone"]


# -- the dashboard


class GroupJson(TypedDict):
    id: str
    title: str


class PanelJson(TypedDict):
    id: str
    title: str
    group: str
    table: str
    metrics: list[str]
    importance: int
    chart: panels.Chart
    by: list[str]
    limit: str | None
    low: float | None
    high: float | None
    log: bool
    log_first: bool
    smooth: bool
    unit: str
    rate: bool
    thresholds: list[LevelJson]


class LeveledMetricJson(TypedDict):
    table: str
    metric: str


class PanelsJson(TypedDict):
    groups: list[GroupJson]
    panels: list[PanelJson]
    scheduled: list[str]
    key_metrics: Annotated[list[str], "Patterns: in a list of runs the metric that matches the first comes first"]
    metrics: dict[str, list[Annotated[Plain, Wire(catalog.Metric)]]]
    thresholds: list[Annotated[Plain, Wire(LeveledMetricJson, Level)]]


# -- runs


class RowJson(TypedDict):
    """A run on one line of the table of runs."""

    key: str
    id: str
    name: str
    project: str
    status: str
    live: bool
    cause: str | None
    kind: str
    started: str | None
    ended: str | None
    seconds: float | None
    step: int | None
    attempt: int
    simulated: bool
    tags: list[str]
    host: str
    job: Annotated[Plain, "What a scheduler knows it as: `slurm`, `array`, `pod`, `labels.team` ..."]
    config: Plain
    summary: Mapping[str, Value]
    energy_joules: float | None
    health: Annotated[Plain, Wire(Health)]
    problems: str
    alert_counts: Annotated[Plain, Wire(Counts)]
    finding_counts: Annotated[Plain | None, Wire(Counts | None)]


class RunsJson(TypedDict):
    total: Annotated[int, "How many runs match, also those beyond `limit`"]
    projects: list[str]
    runs: Annotated[list[Any], Wire(list[RowJson])]
    version: Annotated[str, "To be sent as `since` to get only what changed"]
    since: Annotated[str | None, "Since when `runs` are those that changed; null: `runs` are all"]
    order: Annotated[list[str] | None, "With `since`, the keys of all runs if they are not the same as then"]


class CostJson(TypedDict):
    amount: float
    currency: str
    of: str
    basis: Annotated[str, "The list prices it is made from; empty where the user set one"]
    per_epoch: float | None
    to_finish: float | None
    per_loss_percent: Annotated[float | None, "What lowering the loss by 1 % of itself cost late in the run"]


class UnitJson(TypedDict):
    unit: str
    help: str


class NamedMetricJson(UnitJson):
    name: str
    better: Direction | None


class TableJson(TypedDict):
    names: list[str]
    left_out: int
    labels: Sequence[Labels]


class RankJson(TypedDict):
    role: NotRequired[str]
    rank: str
    host: str
    pid: NotRequired[int]
    state: NotRequired[str]
    alive: NotRequired[bool]
    step: NotRequired[int]
    phase: NotRequired[Annotated[str, "What it is doing within its step, where the framework reports that"]]
    phase_since: NotRequired[str]
    step_seconds: NotRequired[float]
    last_log: NotRequired[str]
    lines: NotRequired[int]
    exit_code: NotRequired[int]
    cause: NotRequired[str]


class AttemptJson(TypedDict):
    """One start of a run."""

    number: int | None
    status: str
    started: str | None
    seconds: float | None
    first_step: Annotated[int | None, "The first step that it logged"]
    host: str
    cause: str | None


class PatchJson(TypedDict):
    """What was changed in the repository of a run since its commit, when its newest attempt began."""

    attempt: int
    kept: Annotated[bool, "Else `title` has the reason"]
    title: Annotated[str, "How large it is, in words"]
    warning: Annotated[str, "Why it may not apply; empty if it does"]
    commit: str
    bytes: int
    untracked: Annotated[list[str], "Names of files that git did not know; their contents are not kept"]
    untracked_cut: Annotated[bool, "There were more"]


class PatchTextJson(TypedDict):
    text: str
    cut: Annotated[bool, "It is only the beginning"]


class RunJson(RowJson):
    """Everything about a run but its series."""

    progress: Annotated[Plain, Wire(Progress)]
    step_seconds: float | None
    cost: CostJson | None
    co2_kg: float | None
    gpu_seconds: float | None
    metrics: list[Annotated[Plain, Wire(NamedMetricJson, MetricSummary)]]
    tables: dict[str, TableJson]
    layers: dict[str, int]
    histograms: Sequence[str]
    ranks: list[Annotated[Plain, Wire(RankJson)]]
    attempts: list[AttemptJson]
    firing: list[AlertJson]
    damage: Annotated[Plain, Wire(Damage)]
    details: Plain
    job_facts: Annotated[list[tuple[str, str]], "The same for people: titles and texts"]
    stacks: list[str]
    consoles: list[str]
    patch: PatchJson | None
    benchmarks: Annotated[int, "How many times its model was measured"]


class DistributionJson(TypedDict):
    """Which share of the calls took how long."""

    ms: Annotated[list[float], "The middle of each bin"]
    percent: list[float]


class BenchmarkRowJson(TypedDict):
    """One variant with one batch size, as a line of the table."""

    name: str
    cells: Annotated[list[str], "One per title; empty where it has no figures, and `text` has the reason"]
    text: Annotated[str, "The verdict, or why there are no figures"]
    distribution: DistributionJson | None


class ShownBenchmarkJson(TypedDict):
    document: Annotated[Plain, Wire(Benchmark)]
    titles: list[str]
    rows: list[BenchmarkRowJson]
    remarks: list[str]
    warnings: list[str]


class BenchmarksJson(TypedDict):
    """Oldest first; every call that was timed is in the run folder."""

    benchmarks: list[ShownBenchmarkJson]


class EventsJson(TypedDict):
    total: int
    events: list[EventJson]


class AlertsJson(TypedDict):
    firing: list[AlertJson]
    total: int
    history: list[AlertJson]
    deliveries: list[AlertJson]


class MachineJson(TypedDict):
    written: str | None
    samples: list[Annotated[Plain, Wire(LatestSample)]]


class GpuNowJson(TypedDict):
    index: str
    name: str
    values: Annotated[dict[str, float], "By the names of the catalog's `gpu` table; those that are known"]
    problem: Annotated[str, "Why there is no new sample, or its state; empty if it is well"]
    simulated: bool


class MachineNowJson(TypedDict):
    """One of the machines of `--host`, as it answered last."""

    name: Annotated[str, "The keys of its runs begin with it and a colon"]
    state: Annotated[str, "`up`, `connecting`, `slow`, `down` or `incompatible`"]
    detail: Annotated[str, "Why it is not up"]
    hint: Annotated[str, "What to do about that"]
    version: str
    host: Annotated[str, "What it calls itself"]
    place: Annotated[str, "Where it keeps its runs"]
    heard: Annotated[float | None, "When it answered last, in seconds since 1970"]
    origin: Annotated[str, "`agent`, `own sampling`, or empty if nothing is measured there"]
    age: Annotated[float | None, "Seconds since the numbers were written, when it answered last"]
    current: Annotated[bool, "Whether the numbers are those of now"]
    gpus: list[GpuNowJson]
    values: Annotated[dict[str, float], "Of the host, by the names of the catalog's `system` table"]
    utilization_percent: Annotated[float | None, "Mean of the GPUs"]
    memory_used_mb: Annotated[float | None, "Of all GPUs together"]
    memory_total_mb: float | None
    power_draw_watts: float | None
    runs: Annotated[int | None, "Null until it has answered, as the next two"]
    live: Annotated[int | None, "Runs that have not ended"]
    firing: Annotated[int | None, "Alerts of these that fire"]


class MachinesJson(TypedDict):
    machines: Annotated[list[MachineNowJson], "Empty without `--host`"]
    now: float


# -- the fleet


class FleetGpuJson(TypedDict):
    index: str
    values: Annotated[list[float | None], "One per metric of the answer"]
    state: Annotated[
        str,
        "`busy`; `idle`: held and not used; `other`: used, but by no run that is known here; `free`; `down`; `unknown`",
    ]
    holders: Annotated[list[int], "Which of the holders"]
    problem: str


class FleetNodeJson(TypedDict):
    name: str
    rack: Annotated[str, "Empty if nobody said where it stands"]
    state: Annotated[
        str, "`up`; `quiet`: no run there now; `silent`: a run, but no word from its agent; or as a machine of `--host`"
    ]
    detail: str
    seen: Annotated[float | None, "When it was last heard of, in seconds since 1970"]
    model: Annotated[str, "Of its GPUs"]
    simulated: bool
    gpus: list[FleetGpuJson]


class IdleNodeJson(TypedDict):
    """A node without a run for more than a week. Whether it is still there is not known."""

    name: str
    rack: Annotated[str, "Empty if nobody said where it stands"]
    model: Annotated[str, "Of its GPUs"]
    gpus: Annotated[int, "How many it had"]
    seen: Annotated[float | None, "When its agent last reported, in seconds since 1970"]
    simulated: bool


class HolderJson(TypedDict):
    """A live run on one node, and its GPUs there."""

    node: str
    gpus: Annotated[list[str], "Their indices"]
    key: str
    name: str
    project: str
    user: Annotated[str, "Empty if it was not recorded"]
    job: Annotated[str, "What a scheduler knows it as; empty without one"]
    pids: list[int]
    started: str | None
    status: str


class FleetAlertJson(TypedDict):
    """An alert that fires now."""

    node: str
    key: str
    name: Annotated[str, "Of the run"]
    rule: str
    severity: str
    count: Annotated[int, "Of how many GPUs, ranks or layers"]
    since: str | None
    message: str
    acknowledged: bool
    silenced: bool


class CapacityJson(TypedDict):
    """Nodes, and GPUs by state."""

    nodes: int
    nodes_down: int
    gpus: int
    busy: int
    idle: int
    other: int
    free: int
    down: int
    unknown: int


class FleetJson(TypedDict):
    now: float
    window: str
    metrics: Annotated[list[str], "What `values` of a GPU are; over days: mean use, peak memory, peak heat, mean power"]
    nodes: Annotated[list[FleetNodeJson], "By rack and name"]
    left_out: int
    idle: Annotated[list[IdleNodeJson], "Not among the nodes, nor in the capacity; the last one heard of comes first"]
    holders: list[HolderJson]
    alerts: Annotated[list[FleetAlertJson], "The gravest first"]
    alerts_total: int
    capacity: CapacityJson
    simulated: Annotated[bool, "Whether any of the GPUs does not exist"]


UseBy = Literal["user", "project", "run", "node"]


class UseRowJson(TypedDict):
    """What somebody used of the GPUs they held. What was not measured is null."""

    title: str
    key: Annotated[str, "Of a run"]
    runs: int
    gpus: int
    gpu_seconds: float
    use_percent: Annotated[float | None, "Mean"]
    idle_seconds: float | None
    joules: float | None
    idle_joules: float | None
    co2_kg: float | None
    cost: Annotated[float | None, "Null unless all of it has a price in one currency"]
    idle_cost: float | None
    currency: str


class FleetUseJson(TypedDict):
    period: str
    by: UseBy
    first: Annotated[str, "Day (UTC)"]
    last: str
    rows: list[UseRowJson]
    left_out: int
    total: UseRowJson
    unmeasured: Annotated[int, "Runs that held GPUs and have no figures by day, such as those of earlier versions"]
    simulated: bool


class FaultJson(TypedDict):
    """Alerts of one rule on one node."""

    rule: str
    title: str
    severity: str
    days: Annotated[int, "On how many days it fired"]
    times: int
    gpus: list[str]
    last: float
    message: Annotated[str, "Of the last one"]
    key: Annotated[str, "The run that it fired in"]
    name: str


class DeathJson(TypedDict):
    key: str
    name: str
    time: float
    cause: str


class FaultyNodeJson(TypedDict):
    name: str
    rack: str
    points: Annotated[int, "For each day with an alert 5 (critical), 2 (warning) or 1, for each death 5"]
    last: float
    faults: list[FaultJson]
    deaths: Annotated[int, "Runs that died there of something other than their program, a person or a scheduler"]
    died: Annotated[list[DeathJson], "The newest of these"]


class FleetFaultsJson(TypedDict):
    days: int
    since: float
    nodes: Annotated[list[FaultyNodeJson], "The worst first"]
    left_out: int
    without: Annotated[int, "Nodes on which nothing happened"]
    simulated: bool


# -- series


class ValuesJson(TypedDict):
    y: Curve
    nonfinite: NotRequired[Annotated[list[tuple[int, str]], "Index and spelling of the values that are not finite"]]


class SeriesJson(ValuesJson):
    """`y` is null where a value is not finite. `total` and `nonfinite_total` count before downsampling. A band also has
    `low`, `high` and `members`, and in `nonfinite` the places where only some of its series are not finite."""

    name: str
    labels: Labels
    rank: int | None
    total: int
    nonfinite_total: NotRequired[int]
    x: Numbers
    members: NotRequired[int]
    low: NotRequired[Curve]
    high: NotRequired[Curve]


class SeriesAnswerJson(TypedDict):
    axis: str
    table: str
    series: list[SeriesJson]
    problems: NotRequired[list[str]]
    """Why something that was chosen is not among them, in sentences."""


class RangeJson(TypedDict):
    """A range of x. Both are null where the run has no such x, or nothing of it in there."""

    start: float | None
    end: float | None


class StatesJson(TypedDict):
    """A metric that is a word: when it became another."""

    name: str
    labels: Labels
    rank: int | None
    gpu: int | None
    left_out: int
    changes: list[tuple[float, str]]


class StatesAnswerJson(TypedDict):
    table: str
    states: list[StatesJson]


class LayersJson(TypedDict):
    """`values[layer][column]`, null where nothing was measured."""

    measure: str
    layers: list[str]
    x: Annotated[NDArray[np.int64] | list[int], Wire(list[int])]
    values: list[list[float | None]]
    left_out: int


class HistogramJson(TypedDict):
    step: int
    low: float
    high: float
    counts: list[float]
    nonfinite: int


class HistogramsJson(TypedDict):
    name: str
    histograms: list[Annotated[Plain, Wire(HistogramJson)]]


# -- media


class MediaItemJson(TypedDict):
    step: int | None
    time: Annotated[float | None, "Seconds since 1970"]
    file: Annotated[str, "Identifies it within the run"]
    caption: str
    owner: Annotated[str, "Which participant logged it, where that is not rank 0"]


class MediaGroupJson(TypedDict):
    """All of one name, in the order in which they were logged; those of a histogram have their own endpoint."""

    kind: MediaKind
    name: str
    items: list[MediaItemJson]


class MediaJson(TypedDict):
    groups: list[MediaGroupJson]
    left_out: Annotated[int, "Items that a report has no room for"]


class MediaTableJson(TypedDict):
    columns: list[str]
    rows: list[list[Any]]
    total: Annotated[int, "Rows that were logged; the first 10,000 are kept"]


class MediaTextJson(TypedDict):
    text: str
    cut: bool


# -- what is found in them


class ResourceJson(TypedDict):
    """What one device did over the whole run."""

    subject: str
    simulated: bool
    table: str
    metric: str
    unit: str
    low: float
    mean: float
    median: float
    p95: float
    high: float


class FindingsJson(TypedDict):
    findings: list[Annotated[Plain, Wire(Finding)]]
    fine: list[str]
    not_judged: list[Annotated[Plain, Wire(Gap)]]


class DiagnosisJson(FindingsJson):
    resources: list[ResourceJson]
    from_step: int | None


class DifferenceJson(TypedDict):
    key: str
    values: list[Any]


class DifferenceGroupJson(TypedDict):
    """What differs of one kind besides the configuration."""

    title: Annotated[str, "`code`, `command`, `package`, `environment` or `machine`"]
    rows: list[DifferenceJson]


class ComparedValueJson(TypedDict):
    last: Value
    low: Value
    high: Value


class ComparedMetricJson(NamedMetricJson):
    values: list[ComparedValueJson | None]
    best: Annotated[int | None, "Which run has the best value, of those whose last one is finite"]


class OfRunJson(TypedDict):
    run: Annotated[int, "Which of the compared runs it is about"]


class ComparedSeriesJson(SeriesJson):
    run: int
    key: str


class ComparisonJson(TypedDict):
    runs: list[RowJson]
    config: list[DifferenceJson]
    others: list[DifferenceGroupJson]
    seeds: Annotated[list[list[int]], "Runs that differ in nothing but their seed; a verdict is about all of them"]
    metrics: list[ComparedMetricJson]
    verdicts: list[Annotated[Plain, Wire(OfRunJson, Verdict)]]
    axis: str
    names: list[str]
    series: list[ComparedSeriesJson]


class LineJson(TypedDict):
    """A run, or a group of runs, as one line of every chart."""

    id: Annotated[str, "The same one when other runs come and go"]
    title: str
    runs: Annotated[list[str], "Keys of its runs"]


class CurveJson(SeriesJson):
    """Of a run; or of a group, with the mean in `y`, the band in `low` and `high`, and in `members` its runs that have
    the metric."""

    line: Annotated[int, "Which of the lines"]
    counts: NotRequired[Annotated[Numbers, "Of how many runs each point is"]]


class CurvesJson(TypedDict):
    total: Annotated[int, "Runs that the search finds"]
    left_out: Annotated[int, "Oldest of these whose curves were not read"]
    axis: str
    group: Annotated[str, "What the runs were grouped by; empty if each is a line"]
    names: list[str]
    lines: list[LineJson]
    series: list[CurveJson]


class SweepJson(NamedMetricJson):
    """What each run came to in one metric, and which parameter explains it."""

    take: str
    names: Annotated[list[str], "Metrics of these runs, the most common first"]
    runs: Annotated[list[str], "Keys, the newest first"]
    values: Annotated[list[Value], "One per run"]
    best: Annotated[str | None, "Key of the run with the best value"]
    importances: list[Annotated[Plain, Wire(Importance)]]
    interactions: list[Annotated[Plain, Wire(Interaction)]]


# -- the live stream


class IncrementJson(ValuesJson):
    """What is new in one series."""

    table: str
    name: str
    labels: Labels
    rank: int | None
    step: NotRequired[list[int | None]]
    time: list[float]


class PointsJson(TypedDict):
    series: list[IncrementJson]
    more: Annotated[list[str], "Tables of which some series were left out"]


class StateJson(TypedDict):
    status: str
    live: bool
    cause: str | None
    attempt: NotRequired[int]
    ended: NotRequired[str | None]
    consoles: NotRequired[Annotated[dict[str, int], "Bytes by file"]]
    now: float


# -- how a project is shown


class OwnPanelJson(TypedDict):
    id: str
    title: str
    """Empty: what it draws."""
    items: list[str]
    """Names, patterns and expressions."""
    x: str
    """Empty: the axis of the page."""


class ViewJson(TypedDict):
    """Charts go by their titles."""

    project: str
    panels: list[OwnPanelJson]
    pins: list[str]
    """Metrics whose charts come first."""
    log: list[str]
    linear: list[str]
    """Charts whose scale is not the usual one."""
    hide: list[str]
    """Lines, as `chart: line`."""
    columns: list[str] | None
    """Of the table of runs; null: the usual ones."""
    is_kept: bool
    """False: nobody has changed anything."""
    problem: str
    """Why what is kept cannot be read; else empty."""


# -- changes


class EditedJson(TypedDict):
    name: str
    tags: list[str]
    notes: str


class RemovedJson(TypedDict):
    removed: str


class StoppingJson(TypedDict):
    stopping: str
    """The run that was asked to stop."""


class AskedJson(TypedDict):
    asked: AlertJson


# -- reports


class ClockJson(TypedDict):
    """Which step was when, so that what is known by step can be drawn over time."""

    step: Numbers
    time: Numbers


class ReportMediaJson(MediaJson):
    """The newest of each name, with its content by file."""

    images: Annotated[dict[str, str], "As addresses that hold the image (`data:`)"]
    tables: dict[str, MediaTableJson]
    texts: dict[str, MediaTextJson]


class ReportPanelJson(TypedDict):
    """What a custom panel draws of a run. Curves of expressions are among the series, under their texts."""

    items: list[str]
    names: list[str]
    problems: list[str]


class ReportRunJson(TypedDict):
    run: RunJson
    own_panels: list[ReportPanelJson]
    series: Annotated[dict[str, dict[str, list[SeriesJson]]], "By table, then by axis (`step`, `time`)"]
    layers: dict[str, LayersJson]
    states: list[StatesJson]
    histograms: dict[str, list[Annotated[Plain, Wire(HistogramJson)]]]
    clock: ClockJson | None
    events: EventsJson
    alerts: AlertsJson
    diagnosis: DiagnosisJson
    benchmarks: BenchmarksJson
    texts: dict[str, TextJson]
    patch: PatchTextJson | None
    media: ReportMediaJson


class ReportDataJson(TypedDict):
    """What an HTML report holds: the answers of the API, put into the file."""

    about: AboutJson
    panels: PanelsJson
    runs: dict[str, ReportRunJson]
    views: Annotated[dict[str, ViewJson], "By project, where somebody has changed how it is shown"]
    comparison: NotRequired[ComparisonJson]
    written: str


class ReportSummaryJson(TypedDict):
    """A report for programs: everything but the series."""

    written: str
    version: str
    runs: list[Plain]
    comparison: NotRequired[Plain]


class ErrorDetailJson(TypedDict):
    message: str
    hint: str


class ErrorJson(TypedDict):
    error: ErrorDetailJson

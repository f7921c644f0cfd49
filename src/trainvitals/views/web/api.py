"""The API: every endpoint once. Adding one is a function and a row. Tested in tests/views/web/test_app.py."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar

from trainvitals import __version__
from trainvitals.alerts import builtin, records
from trainvitals.analysis.expressions import ExpressionError
from trainvitals.analysis.groups import BAND_KINDS
from trainvitals.conditions import Conditions
from trainvitals.errors import JournalError, RunNotFound, TrainvitalsError, nearest
from trainvitals.journal import edits, layout, project_view
from trainvitals.journal import folder as run_folder
from trainvitals.journal.contracts import MediaItem, MediaKind, Reader, TextKind
from trainvitals.journal.documents.latest import Latest, read_agent, read_latest
from trainvitals.journal.documents.run import ENDED
from trainvitals.journal.documents.view import OwnPanel, ViewFile
from trainvitals.journal.edits import Edit
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.stop_requests import request_stop
from trainvitals.lab.places import machine_of
from trainvitals.lab.runs import MachineRuns
from trainvitals.prices import NO_PRICES, Prices
from trainvitals.views.data import comparison, curves, dashboard, export, media, run_details, sweep
from trainvitals.views.data.benchmark import describe_benchmarks
from trainvitals.views.data.clock import describe_range
from trainvitals.views.data.diagnosis import DiagnosisCache
from trainvitals.views.data.fleet import PERIODS, describe_fleet
from trainvitals.views.data.fleet_faults import describe_faults, list_rules
from trainvitals.views.data.fleet_runs import FleetRun
from trainvitals.views.data.fleet_use import GROUPINGS, describe_use
from trainvitals.views.data.layers import LAYER_MEASURES, describe_histograms, describe_layers
from trainvitals.views.data.machines import MachineNow, describe_machines, read_machines
from trainvitals.views.data.participants import choose_participants
from trainvitals.views.data.patches import read_patch_text
from trainvitals.views.data.project_view import describe_view
from trainvitals.views.data.run_order import sort_rows
from trainvitals.views.data.run_search import MAX_COMPARED, SearchError, find_compared, parse_search, search_rows
from trainvitals.views.data.series import describe_series, describe_states
from trainvitals.views.data.shapes import (
    AboutJson,
    AlertsJson,
    AskedJson,
    BenchmarksJson,
    ComparisonJson,
    CurvesJson,
    DiagnosisJson,
    EditedJson,
    EventsJson,
    FleetFaultsJson,
    FleetJson,
    FleetUseJson,
    HistogramsJson,
    LayersJson,
    MachineJson,
    MachinesJson,
    MediaJson,
    MediaTableJson,
    MediaTextJson,
    PanelsJson,
    PatchTextJson,
    Plain,
    RangeJson,
    RemovedJson,
    ReportSummaryJson,
    RowJson,
    RunJson,
    RunsJson,
    SeriesAnswerJson,
    StatesAnswerJson,
    StoppingJson,
    SweepJson,
    TextJson,
    ViewJson,
    Wire,
)
from trainvitals.views.data.wire import encode
from trainvitals.views.web.endpoints import (
    BadRequest,
    Conflict,
    Endpoint,
    Forbidden,
    NotFound,
    Outdated,
    Parameter,
    Values,
    tag_of,
)
from trainvitals.views.web.shared_runs import Listing, SharedRuns

T = TypeVar("T")
MAX_RUNS = 20_000
"""In one answer; the page shows the newest of more."""
MAX_SERIES_NAMES = 100
TABLES = layout.METRIC_TABLES
MEDIA_TYPES = {
    "csv": "text/csv",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
REPORT_TYPES = {
    "html": "text/html",
    "md": "text/markdown",
    "json": "application/json",
    "png": "image/png",
    "svg": "image/svg+xml",
}
TEXT_BYTES = 1 << 20
DrawReport = Callable[[str, Reader, str, str], bytes]
"""Makes a document of (key, run, format, theme); passed in by the command that starts the server."""


@dataclass(frozen=True)
class Web:
    """What every endpoint gets."""

    runs: SharedRuns
    draw_report: DrawReport
    editable: FolderRuns | None = None
    """The same runs, if viewers may change them."""
    prices: Prices = NO_PRICES
    conditions: Conditions = field(default_factory=Conditions)
    machines: MachineRuns | None = None
    """Those whose runs these are, if they are not of this one."""
    diagnoses: DiagnosisCache = field(default_factory=DiagnosisCache)
    curves: curves.CurveCache = field(default_factory=curves.CurveCache)

    fleets: dict[str, tuple[list[FleetRun], FleetJson]] = field(default_factory=dict)
    """What was said of the fleet last, by window, and of which runs."""

    def read_machines(self) -> list[MachineNow]:
        """Those of `--host`, as they are now."""
        return read_machines(self.machines) if self.machines is not None else []

    @property
    def machine_names(self) -> list[str]:
        """Of those of `--host`."""
        return [machine.name for machine in self.machines.machines] if self.machines is not None else []

    @property
    def idle_percent(self) -> float:
        return self.conditions.thresholds["gpu_idle_percent"]

    def require_editable(self) -> FolderRuns:
        if self.editable is None:
            raise Forbidden("this server is read-only", hint="to edit runs: trainvitals serve --allow-edit")
        return self.editable


@dataclass(frozen=True)
class File:
    """An answer to download as a file."""

    name: str
    media_type: str
    chunks: Iterator[bytes]
    cache: str = "no-store"


# -- what there is


def about(web: Web, values: Values) -> AboutJson:
    return {
        "version": __version__,
        "root": web.runs.place,
        "allow_edit": web.editable is not None,
        "runs": len(web.runs.keys()),
        "machines": web.machine_names,
    }


def list_panels(web: Web, values: Values) -> PanelsJson:
    return dashboard.describe_panels(web.conditions)


def list_runs(web: Web, values: Values) -> RunsJson:
    if values["since"] is not None:
        if any(values[name] for name in ("machine", "project", "status", "q", "sort", "offset")):
            raise BadRequest("'since' is for the list of all runs", hint="leave out the other parameters")
        return _list_changes(web, values)
    listing = web.runs.listing()
    rows = _search(web, listing.rows, values)
    if values["sort"]:
        rows = sort_rows(rows, values["sort"])
    shown = rows[values["offset"] : values["offset"] + values["limit"]]
    return {
        "total": len(rows),
        "projects": _projects(listing),
        "runs": [listing.encoded(row) for row in shown],
        "version": listing.version,
        "since": None,
        "order": None,
    }


def _list_changes(web: Web, values: Values) -> RunsJson:
    listing = web.runs.listing()
    changed = listing.changed(values["since"])
    shown = listing.rows[: values["limit"]]
    return {
        "total": len(listing.rows),
        "projects": _projects(listing),
        "runs": [listing.encoded(row) for row in shown if changed is None or row["key"] in changed.keys],
        "version": listing.version,
        "since": values["since"] if changed is not None else None,
        "order": [row["key"] for row in shown] if changed is not None and changed.order else None,
    }


def _projects(listing: Listing) -> list[str]:
    return sorted({row["project"] for row in listing.rows})


def _search(web: Web, rows: list[RowJson], values: Values) -> list[RowJson]:
    """Those of a machine, project and status that the search finds."""
    if values["machine"]:
        names = web.machine_names
        rows = [row for row in rows if machine_of(row["key"], names) == values["machine"]]
    if values["project"]:
        rows = [row for row in rows if row["project"] == values["project"]]
    if values["status"]:
        rows = [row for row in rows if row["status"] == values["status"]]
    if values["q"]:
        try:
            rows = search_rows(rows, parse_search(values["q"]))
        except SearchError as error:
            raise BadRequest(error.message, hint=error.hint) from error
    return rows


def machine(web: Web, values: Values) -> MachineJson:
    """The newest samples of this machine's agent; `written` is null where no agent runs."""
    try:
        agent = read_agent()
        latest = read_latest(agent) if agent is not None else None
    except TrainvitalsError:
        latest = None
    latest = latest or Latest()
    return {"written": latest.written, "samples": [sample.as_json() for sample in latest.samples.values()]}


def show_machines(web: Web, values: Values) -> MachinesJson:
    return describe_machines(web.machines)


# -- the fleet


def show_fleet(web: Web, values: Values) -> FleetJson:
    runs, window = web.runs.fleet(), values["window"]
    known = web.fleets.get(window)
    if known is not None and known[0] is runs and web.machines is None:  # another viewer has just asked
        return known[1]
    found = describe_fleet(runs, web.read_machines(), window=window, idle_percent=web.idle_percent)
    web.fleets[window] = (runs, found)
    return found


def show_fleet_use(web: Web, values: Values) -> FleetUseJson:
    until = _parse_day(values["until"]) if values["until"] else None
    return describe_use(
        web.runs.fleet(),
        web.read_machines(),
        period=values["period"],
        by=values["by"],
        until=until,
        prices=web.prices,
    )


def _parse_day(text: str) -> float:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise BadRequest(f"'until' must be a day, such as 2026-11-18, not '{text[:20]}'") from None


def show_fleet_faults(web: Web, values: Values) -> FleetFaultsJson:
    now, days = time.time(), values["days"]
    tallies = web.runs.tally_alerts(list_rules(web.conditions), now - days * 86_400, now)
    return describe_faults(web.runs.fleet(), tallies, web.conditions, web.read_machines(), days=days, now=now)


# -- one run


def show_run(web: Web, values: Values) -> RunJson:
    key = web.runs.find(values["run"])
    with web.runs.reader(key) as reader:
        return run_details.describe_run(reader, key, web.prices)


def show_series(web: Web, values: Values) -> SeriesAnswerJson:
    _check_range(values)
    if values["table"] != "training" and values["x"] not in ("time", "relative"):
        raise BadRequest(f"table '{values['table']}' has no steps: use x=time or x=relative")
    if not values["name"] and not values["chosen"]:
        raise BadRequest("'name' or 'chosen' is missing", hint="?name=loss or ?chosen=train/loss - val/loss")
    if values["chosen"] and values["table"] != "training":
        raise BadRequest("'chosen' is for the table 'training'")
    with web.runs.reader(values["run"]) as reader, _bad_expressions():
        return describe_series(
            reader,
            values["name"],
            chosen=values["chosen"],
            table=values["table"],
            axis=values["x"],
            start=values["start"],
            end=values["end"],
            points=values["points"],
            participants=choose_participants(reader, values["role"], values["rank"]),
            band=values["band"],
            rate=values["rate"],
            all_attempts=values["all_attempts"],
        )


@contextlib.contextmanager
def _bad_expressions() -> Iterator[None]:
    try:
        yield
    except ExpressionError as error:
        raise BadRequest(error.message, hint=error.hint) from error


def show_states(web: Web, values: Values) -> StatesAnswerJson:
    _check_range(values)
    with web.runs.reader(values["run"]) as reader:
        return describe_states(reader, values["name"], table=values["table"], start=values["start"], end=values["end"])


def _check_range(values: Values) -> None:
    if values["start"] is not None and values["end"] is not None and values["start"] > values["end"]:
        raise BadRequest("'start' is after 'end'")


def show_range(web: Web, values: Values) -> RangeJson:
    _check_range(values)
    with web.runs.reader(values["run"]) as reader:
        return describe_range(reader, values["x"], values["start"], values["end"], values["to"])


def show_layers(web: Web, values: Values) -> LayersJson:
    with web.runs.reader(values["run"]) as reader:
        chosen = choose_participants(reader, values["role"], values["rank"])
        return describe_layers(reader, values["measure"], values["points"], chosen)


def show_histograms(web: Web, values: Values) -> HistogramsJson:
    with web.runs.reader(values["run"]) as reader:
        return describe_histograms(reader, values["name"], values["limit"])


def show_media(web: Web, values: Values) -> MediaJson:
    with web.runs.reader(values["run"]) as reader:
        return media.describe_media(reader)


def show_image(web: Web, values: Values) -> Annotated[File, Wire(Plain)]:
    """With the media type of its content, so that nothing else is ever drawn or run."""
    data, kind = _medium(web, "image", values, media.read_image)
    name = values["file"].rpartition("/")[2]
    # A file of media is never written again under the same name.
    return File(_safe(name), kind, iter([data]), "private, max-age=86400, immutable")


def show_media_table(web: Web, values: Values) -> MediaTableJson:
    return _medium(web, "table", values, media.read_table)


def show_media_text(web: Web, values: Values) -> MediaTextJson:
    return _medium(web, "text", values, media.read_text)


def _medium(web: Web, kind: MediaKind, values: Values, read: Callable[[MediaItem], T]) -> T:
    try:
        with web.runs.reader(values["run"]) as reader:
            item = media.find_item(reader, kind, values["file"])
        return read(item)
    except JournalError as error:
        raise NotFound(error.message) from error


def show_events(web: Web, values: Values) -> EventsJson:
    with web.runs.reader(values["run"]) as reader:
        return run_details.describe_events(reader, values["limit"], values["text"] or "")


def show_alerts(web: Web, values: Values) -> AlertsJson:
    with web.runs.reader(values["run"]) as reader:
        return run_details.describe_alerts(reader, values["limit"])


def show_diagnosis(web: Web, values: Values) -> DiagnosisJson:
    # With a separate reader: it takes a second or two on a long run, and the charts must not wait for it.
    key = web.runs.find(values["run"])
    return web.diagnoses.read(key, web.runs.open(key), web.conditions, web.prices)


def show_benchmarks(web: Web, values: Values) -> BenchmarksJson:
    with web.runs.reader(values["run"]) as reader:
        return describe_benchmarks(reader)


def show_stack(web: Web, values: Values) -> TextJson:
    return _text(web, "stack", values)


def show_console(web: Web, values: Values) -> TextJson:
    return _text(web, "console", values)


def show_patch(web: Web, values: Values) -> PatchTextJson:
    try:
        with web.runs.reader(values["run"]) as reader:
            return read_patch_text(reader)
    except JournalError as error:
        raise NotFound(error.message) from error


def _text(web: Web, kind: TextKind, values: Values) -> TextJson:
    try:
        return asdict(web.runs.open(values["run"]).read_text(kind, values["file"], TEXT_BYTES, values["after"]))
    except JournalError as error:
        raise NotFound(error.message) from error


def export_run(web: Web, values: Values) -> Annotated[File, Wire(list[Plain])]:
    """A table of the run as a file; made in a temporary file, so that a large run needs no memory."""
    key = web.runs.find(values["run"])
    file = tempfile.TemporaryFile(prefix="trainvitals-export-")  # noqa: SIM115 - `_chunks` closes it
    export.write_rows(export.Rows(web.runs.open(key), (values["table"],)), values["format"], file)
    file.seek(0)
    return File(f"{_safe(key)}-{values['table']}.{values['format']}", MEDIA_TYPES[values["format"]], _chunks(file))


def report_run(web: Web, values: Values) -> Annotated[File, Wire(ReportSummaryJson)]:
    """The run as a document, as `trainvitals report` writes it."""
    key, format = web.runs.find(values["run"]), values["format"]
    try:
        content = web.draw_report(key, web.runs.open(key), format, values["theme"])
    except TrainvitalsError as error:
        raise NotFound(error.message, hint=error.hint) from error
    return File(f"{_safe(key)}-report.{format}", REPORT_TYPES[format], iter([content]))


def _safe(name: str) -> str:
    """A file name that is safe in any browser and header."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(256 << 10):
            yield chunk


# -- several runs


def compare(web: Web, values: Values) -> ComparisonJson:
    _check_range(values)
    keys = list(dict.fromkeys(values["run"]))
    if values["q"]:
        try:
            found = find_compared(web.runs.listing().rows, values["q"])
        except SearchError as error:
            raise BadRequest(error.message, hint=error.hint) from error
        keys = list(dict.fromkeys([*keys, *(row["key"] for row in reversed(found))]))
    if len(keys) > MAX_COMPARED:
        raise BadRequest(f"cannot compare more than {MAX_COMPARED} runs, got {len(keys)}")
    if len(keys) < 2:
        raise BadRequest("need at least two different runs to compare", hint="?run=A&run=B")
    # Separate readers: holding the locks of many runs at once could deadlock.
    readers = [(key, web.runs.open(key)) for key in keys]
    try:
        return comparison.describe_comparison(
            readers,
            values["name"],
            axis=values["x"],
            points=values["points"],
            start=values["start"],
            end=values["end"],
        )
    except TrainvitalsError as error:
        raise NotFound(error.message) from error


def show_curves(web: Web, values: Values) -> CurvesJson:
    _check_range(values)
    group = values["group"] or ""
    if group and group not in (curves.AUTO, *curves.GROUPINGS) and not group.startswith("config."):
        raise BadRequest(
            f"cannot group by '{group}'{nearest(group, curves.GROUPINGS)}",
            hint=f"one of {', '.join(curves.GROUPINGS)}, or config.KEY",
        )
    return curves.describe_curves(
        _search(web, web.runs.listing().rows, values),
        web.runs.open,
        web.curves,
        names=values["name"],
        axis=values["x"],
        points=values["points"],
        group=group,
        band=values["band"],
        within=(values["start"], values["end"]),
    )


def show_sweep(web: Web, values: Values) -> SweepJson:
    return sweep.describe_sweep(
        _search(web, web.runs.listing().rows, values),
        web.runs.statuses,
        metric=values["name"] or "",
        take=values["take"],
    )


# -- how a project is shown


def show_view(web: Web, values: Values) -> ViewJson:
    project = _project(web, values)
    try:
        return describe_view(project, web.runs.find_view(project))
    except JournalError as error:
        return describe_view(project, None, problem=" ".join(filter(None, (f"{error.message};", error.hint))))


def _project(web: Web, values: Values) -> str:
    """One that has runs: no text of a request becomes part of a path."""
    project: str = values["project"]
    if not web.runs.has_project(project):
        raise NotFound(f"no project '{project[:80]}'", hint="the Runs page lists all projects")
    return project


def replace_view(web: Web, values: Values) -> ViewJson:
    """Only what nobody has changed since it was read: `If-Match` has the ETag of that answer."""
    project = _project(web, values)

    def change(found: ViewFile | None) -> ViewFile:
        if tag_of(encode(describe_view(project, found))).strip('W/"') not in values["If-Match"]:
            raise Outdated(f"the view of {project} was changed meanwhile", hint="read it again")
        return replace(
            found or ViewFile(),
            panels=tuple(OwnPanel(**{**panel, "items": tuple(panel["items"])}) for panel in values["panels"] or ()),
            pins=tuple(values["pins"] or ()),
            log=tuple(values["log"] or ()),
            linear=tuple(values["linear"] or ()),
            hide=tuple(values["hide"] or ()),
            columns=None if values["columns"] is None else tuple(values["columns"]),
        )

    try:
        return describe_view(project, web.require_editable().change_view(project, change))
    except JournalError as error:
        raise Conflict(error.message, hint=error.hint) from error


# -- changes, only with --allow-edit


def _folder(web: Web, values: Values) -> Path:
    """Of the run to edit."""
    return web.require_editable().folder(web.runs.find(values["run"]))


def edit_run(web: Web, values: Values) -> EditedJson:
    edit = Edit(
        name=values["name"],
        notes=values["notes"],
        tags=None if values["tags"] is None else tuple(values["tags"]),
        add_tags=tuple(values["add_tags"] or ()),
        remove_tags=tuple(values["remove_tags"] or ()),
    )
    try:
        run = edits.edit_run(_folder(web, values), edit)
    except RunNotFound as error:
        raise NotFound(error.message) from error
    except JournalError as error:
        raise BadRequest(error.message) from error
    return {"name": run.name, "tags": list(run.tags), "notes": run.notes}


def delete_run(web: Web, values: Values) -> RemovedJson:
    from trainvitals.journal.retention import remove

    key = web.runs.find(values["run"])
    try:
        remove(web.require_editable().folder(key))
    except JournalError as error:
        raise Conflict(error.message, hint=error.hint) from error
    web.runs.forget(key)
    return {"removed": key}


def stop_run(web: Web, values: Values) -> StoppingJson:
    """Leave the request in the run folder: the agent or the tracker's client stops the program."""
    key = web.runs.find(values["run"])
    folder = web.require_editable().folder(key)
    if run_folder.read_state(folder)[0] in ENDED:
        raise Conflict("the run has ended")
    request_stop(folder)
    return {"stopping": key}


def control_alert(web: Web, values: Values) -> AskedJson:
    """Ask the agent to acknowledge or silence a rule."""
    folder = _folder(web, values)
    known = {row.rule for row in records.read_rows(folder)}
    known |= {condition.id for condition in builtin.REGISTRY if condition.live is not None}
    if values["rule"] not in known and values["rule"] != "all":
        raise NotFound(f"no rule '{values['rule'][:80]}' in this run{nearest(values['rule'], known)}")
    until = time.time() + values["seconds"] if values["action"] == "silence" else None
    return {"asked": records.ask(folder, values["action"], values["rule"], "web", until).as_json()}


def openapi(web: Web, values: Values) -> Plain:
    from trainvitals.views.web.openapi import describe

    return describe(ENDPOINTS, web.editable is not None)


# -- the table

RUN = Parameter("run", "Key of the run, from /runs, or `latest`", place="path", most=300)
MACHINE = Parameter("machine", "Only runs of this machine of `--host`")
PROJECT = Parameter("project", "Only runs of this project")
IN_PROJECT = Parameter("project", "Name of the project", place="path", most=300)
STATUS = Parameter("status", "Only runs with this status", most=40)
SEARCH = Parameter("q", "Only runs that this search finds, such as `lr>0.01 tag:a -status:failed`")
CHOSEN = Parameter(
    "chosen",
    "As in a custom panel: a training metric, a pattern such as `val/*` or `/block_[12]/`, or an expression such as"
    " `train/loss - val/loss`; may be repeated",
    "texts",
    most=MAX_SERIES_NAMES,
)
START = Parameter("start", "Lower bound of x", "number", low=-1e15, high=1e15)
END = Parameter("end", "Upper bound of x", "number", low=-1e15, high=1e15)
POINTS = Parameter(
    "points",
    "Maximum points per series; beyond that, the min and max of each bucket are kept",
    "integer",
    default=1000,
    low=4,
    high=20_000,
)
LIMIT = Parameter("limit", "Maximum number of items", "integer", default=1000, low=1, high=10_000)
FILE = Parameter("file", "Name of the file", place="path", most=200)
MEDIA_FILE = Parameter("file", "`file` of an item of the media", required=True, most=1000)
AFTER = Parameter("after", "Only what follows this byte: `next` of the previous answer", "integer", low=0, high=1e15)
ROLE = Parameter("role", "Only participants with this role, such as `trainer` or `rollout`", most=40)
RANK = Parameter("rank", "Only this rank of `role`; without a role, of the trainers", "integer", low=0, high=1_000_000)


def _of_run(
    method: str,
    path: str,
    summary: str,
    call: Callable[..., Any],
    *parameters: Parameter,
    errors: tuple[int, ...] = (404,),
    edits: bool = False,
    media: tuple[str, ...] = (),
) -> Endpoint:
    """An endpoint below `/runs/{run}`."""
    return Endpoint(method, f"/runs/{{run}}{path}", summary, call, (RUN, *parameters), errors, edits, media)


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("GET", "/about", "Version and options of this server", about),
    Endpoint("GET", "/panels", "The panels of the dashboard and the catalog of metrics", list_panels),
    Endpoint(
        "GET",
        "/runs",
        "All runs, newest first",
        list_runs,
        (
            MACHINE,
            PROJECT,
            STATUS,
            SEARCH,
            Parameter(
                "sort", "Column to sort by, such as `name`, `config.lr` or `-summary.loss`; `-` means descending"
            ),
            Parameter("offset", "Number of items to skip", "integer", default=0, low=0, high=1_000_000),
            Parameter("limit", "Maximum number of items", "integer", default=MAX_RUNS, low=1, high=MAX_RUNS),
            Parameter("since", "Only runs that changed since this `version` of an earlier answer", most=60),
        ),
    ),
    Endpoint("GET", "/machine", "The newest samples of this machine", machine),
    Endpoint("GET", "/machines", "The machines of `--host`, and their hardware now", show_machines),
    Endpoint(
        "GET",
        "/fleet",
        "Every GPU of every node: how it is, who holds it, active alerts, and how much is free",
        show_fleet,
        (Parameter("window", "Values of now, or over the last days (UTC)", choices=("now", *PERIODS), default="now"),),
    ),
    Endpoint(
        "GET",
        "/fleet/use",
        "GPU hours, use, idle time, energy and cost of the GPUs that runs held",
        show_fleet_use,
        (
            Parameter("period", "1, 7 or 30 days (UTC)", choices=tuple(PERIODS), default="week"),
            Parameter("until", "Its last day, such as `2026-11-18`; today by default", most=20),
            Parameter("by", "Whose", choices=GROUPINGS, default="user"),
        ),
    ),
    Endpoint(
        "GET",
        "/fleet/faults",
        "Failing and slow nodes, the worst first, with the evidence",
        show_fleet_faults,
        (Parameter("days", "Over how many days", "integer", default=28, low=1, high=60),),
    ),
    _of_run("GET", "", "Everything about a run except its series", show_run),
    _of_run(
        "GET",
        "/series",
        "Series of a run, downsampled with every peak kept",
        show_series,
        Parameter("name", "Metric; may be repeated", "texts", most=MAX_SERIES_NAMES),
        CHOSEN,
        Parameter("table", "Table of the metric", choices=TABLES, default="training"),
        Parameter("x", "step, time, relative, or a training metric such as epoch", default="step", most=200),
        START,
        END,
        POINTS,
        ROLE,
        RANK,
        Parameter("band", "All ranks or devices as one band: min, mean, max", "switch", default=False),
        Parameter("rate", "A counter as its rate per second", "switch", default=False),
        Parameter("all_attempts", "Include steps that a later attempt logged again", "switch", default=False),
    ),
    _of_run(
        "GET",
        "/range",
        "A range of one x as a range of another: of steps that were logged again, the newest attempt counts",
        show_range,
        Parameter("x", "step, time, relative, or a training metric such as epoch", required=True, most=200),
        replace(START, required=True),
        replace(END, required=True),
        Parameter("to", "The other x", required=True, most=200),
    ),
    _of_run(
        "GET",
        "/states",
        "Values that are words, such as `throttle_reasons`: when they changed",
        show_states,
        Parameter("name", "Metric; may be repeated", "texts", required=True, most=MAX_SERIES_NAMES),
        Parameter("table", "Table of the metric", choices=TABLES, default="gpu"),
        Parameter("start", "Start time, in seconds since 1970", "number", low=-1e15, high=1e15),
        Parameter("end", "End time, in seconds since 1970", "number", low=-1e15, high=1e15),
    ),
    _of_run(
        "GET",
        "/layers",
        "One measure of every layer by step",
        show_layers,
        Parameter("measure", "What", choices=LAYER_MEASURES, default="gradient_norm"),
        Parameter("points", "Most columns", "integer", default=200, low=4, high=2000),
        ROLE,
        RANK,
    ),
    _of_run(
        "GET",
        "/histograms",
        "Histograms of one name by step",
        show_histograms,
        Parameter("name", "Such as weights/encoder.0", required=True),
        Parameter("limit", "Most histograms", "integer", default=200, low=1, high=2000),
    ),
    _of_run("GET", "/media", "Images, tables, texts and histograms by name", show_media),
    _of_run("GET", "/media/image", "An image", show_image, MEDIA_FILE, media=tuple(media.IMAGE_TYPES.values())),
    _of_run("GET", "/media/table", "A table", show_media_table, MEDIA_FILE),
    _of_run("GET", "/media/text", "A text", show_media_text, MEDIA_FILE),
    _of_run(
        "GET",
        "/events",
        "Events, newest first",
        show_events,
        LIMIT,
        Parameter("text", "Only events that contain this text"),
    ),
    _of_run("GET", "/alerts", "Active alerts and the history", show_alerts, LIMIT),
    _of_run(
        "GET", "/diagnosis", "Findings with evidence and advice, skipped checks, and resource usage", show_diagnosis
    ),
    _of_run("GET", "/benchmarks", "How fast, large and exact the model is, each time it was measured", show_benchmarks),
    _of_run("GET", "/stacks/{file}", "A stack dump", show_stack, FILE, AFTER),
    _of_run("GET", "/console/{file}", "The tail of the program's output", show_console, FILE, AFTER),
    _of_run("GET", "/patch", "What was changed in the run's repository since its commit, as a git patch", show_patch),
    _of_run(
        "GET",
        "/export",
        "A table of the run as a file",
        export_run,
        Parameter("format", "Of the file", choices=tuple(MEDIA_TYPES), required=True),
        Parameter("table", "Which", choices=export.TABLES, default="training"),
        media=tuple(MEDIA_TYPES.values()),
    ),
    _of_run(
        "GET",
        "/report",
        "A report: one HTML file, Markdown, JSON, or an image of the charts",
        report_run,
        Parameter("format", "Of the file", choices=tuple(REPORT_TYPES), default="html"),
        Parameter("theme", "Of a picture", choices=("light", "dark"), default="light"),
        media=tuple(REPORT_TYPES.values()),
    ),
    Endpoint(
        "GET",
        "/compare",
        "Compare runs; the first is the baseline",
        compare,
        (
            Parameter("run", "Key of a run; with those that `q` finds, two to twenty", "texts", most=MAX_COMPARED),
            Parameter("q", "Also the runs that this search finds, such as `tag:a lr>0.01`, oldest first"),
            Parameter("name", "Metric to return series of; may be repeated", "texts", most=MAX_SERIES_NAMES),
            Parameter("x", "Axis", choices=("step", "time", "relative"), default="step"),
            START,
            END,
            POINTS,
        ),
        (404,),
    ),
    Endpoint(
        "GET",
        "/curves",
        "Curves of all runs that a search finds, each by itself or as groups with mean and band",
        show_curves,
        (
            MACHINE,
            PROJECT,
            STATUS,
            SEARCH,
            Parameter("name", "Metric; may be repeated", "texts", most=20),
            Parameter("x", "step, time, relative, or a training metric such as epoch", default="step", most=200),
            START,
            END,
            Parameter("points", "Maximum points per line", "integer", default=500, low=4, high=2000),
            Parameter(
                "group",
                f"One line per group: {', '.join(curves.GROUPINGS)}, or config.KEY; auto: per experiment where most"
                " runs differ from another in nothing but the seed",
                most=300,
            ),
            Parameter(
                "band",
                "Of a group: min to max, standard deviation, or 95 % confidence of the mean",
                choices=BAND_KINDS,
                default="range",
            ),
        ),
    ),
    Endpoint(
        "GET",
        "/sweep",
        "What the runs that a search finds came to in one metric, the best, and which parameter matters",
        show_sweep,
        (
            MACHINE,
            PROJECT,
            STATUS,
            SEARCH,
            Parameter("name", "Metric; without it the most telling one", most=300),
            Parameter("take", "Which value of each run", choices=sweep.TAKES, default="last"),
        ),
    ),
    Endpoint(
        "GET",
        "/projects/{project}/view",
        "How the page shows the runs of a project: custom panels, pins, scales, hidden lines, columns",
        show_view,
        (IN_PROJECT,),
        (404,),
    ),
    Endpoint(
        "PUT",
        "/projects/{project}/view",
        "Replace it; what is missing is empty",
        replace_view,
        (
            IN_PROJECT,
            Parameter("If-Match", "`ETag` of the answer that was changed", place="header", required=True),
            Parameter(
                "panels",
                "Custom panels, in their order",
                "objects",
                "body",
                most=project_view.MAX_PANELS,
                fields=(
                    Parameter("id", "Tells it from others", place="body", required=True, most=project_view.MAX_ID),
                    Parameter("title", "Empty: what it draws", place="body", default="", most=project_view.MAX_TITLE),
                    replace(CHOSEN, name="items", place="body", required=True, most=project_view.MAX_ITEMS),
                    Parameter("x", "Axis; empty: that of the page", place="body", default=""),
                ),
            ),
            Parameter("pins", "Metrics whose charts come first", "texts", "body", most=project_view.MAX_NAMES),
            Parameter("log", "Charts with a logarithmic scale", "texts", "body", most=project_view.MAX_NAMES),
            Parameter("linear", "Charts with a linear scale", "texts", "body", most=project_view.MAX_NAMES),
            Parameter("hide", "Lines, as `chart: line`", "texts", "body", most=project_view.MAX_NAMES),
            Parameter("columns", "Of the table of runs", "texts", "body", most=project_view.MAX_NAMES),
        ),
        (403, 404, 409, 412),
        edits=True,
    ),
    _of_run(
        "PATCH",
        "",
        "Change name, notes and tags of a run, also while it is active",
        edit_run,
        Parameter("name", "Name", place="body", most=edits.MAX_NAME),
        Parameter("notes", "Notes, in Markdown", place="body", most=edits.MAX_NOTES),
        Parameter("tags", "All tags", "texts", place="body", most=edits.MAX_TAGS),
        Parameter("add_tags", "Tags to add", "texts", place="body", most=edits.MAX_TAGS),
        Parameter("remove_tags", "Tags to remove", "texts", place="body", most=edits.MAX_TAGS),
        errors=(403, 404),
        edits=True,
    ),
    _of_run("DELETE", "", "Remove an ended run", delete_run, errors=(403, 404, 409), edits=True),
    _of_run("POST", "/stop", "Stop a live run", stop_run, errors=(403, 404, 409), edits=True),
    _of_run(
        "POST",
        "/alerts",
        "Acknowledge or silence the alerts of a rule",
        control_alert,
        Parameter("action", "What to do", place="body", choices=("ack", "silence"), required=True),
        Parameter("rule", "Name of the rule, or `all`", place="body", required=True, most=200),
        Parameter("seconds", "Duration of the silence", "integer", "body", default=3600, low=1, high=31_536_000),
        errors=(403, 404),
        edits=True,
    ),
    Endpoint("GET", "/openapi.json", "This description", openapi),
)

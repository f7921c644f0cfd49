"""Documents of a run folder with anything in them: nothing raises, nothing hangs, and one bad run harms no other."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_runs import make_run, write
from starlette.testclient import TestClient

from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.documents.fields import Document
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.job import Job
from trainvitals.journal.documents.latest import Latest
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.documents.rows import AlertRow, EventRow
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.folder_runs import FolderRuns, name_runs, refer_to
from trainvitals.journal.reader import RunReader
from trainvitals.settings import resolve
from trainvitals.views.cli.main import main
from trainvitals.views.data.run_listing import list_json
from trainvitals.views.data.run_rows import list_rows
from trainvitals.views.report.document import draw_report
from trainvitals.views.tui import screen
from trainvitals.views.tui.feed import Feed
from trainvitals.views.tui.options import TopOptions
from trainvitals.views.tui.snapshot import Request
from trainvitals.views.tui.view import View
from trainvitals.views.web.api import ENDPOINTS
from trainvitals.views.web.app import make_app

BEFORE = Path(__file__).parent / "data" / "runs_before" / "default"
KINDS = (
    RunFile, Status, Latest, Registration, EventRow, AlertRow, Cause, FindingsFile, Benchmark, PatchFile, ViewFile, Job
)  # fmt: skip

# What JSON files are found to hold: what Python's json module reads, and so more than JSON itself allows.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**25), 2**63, float("nan"), float("inf"), -float("inf")]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["\ud800", "\x00\x1b[2J", "NaN", "Infinity", "2026-01-01T00:00:00Z", "9999999-13-45T99:99", "x" * 5000]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within, the whole first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places_in(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """`value` with something else at that place."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], new)
    return copy


@st.composite
def damaged(draw: st.DrawFn, whole: Any) -> Any:
    """A document of ours in which some values are anything."""
    for _ in range(draw(st.integers(1, 4))):
        whole = put(whole, draw(st.sampled_from(list(places_in(whole)))), draw(VALUES))
    return whole


def read(name: str) -> Any:
    folder = next(BEFORE.glob(f"*-{name.split('/')[0]}-*"))
    file = next(folder.glob(name.split("/")[1]))
    return json.loads(file.read_text().splitlines()[-1] if file.suffix == ".jsonl" else file.read_text())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(value=st.one_of(VALUES, st.dictionaries(st.text(max_size=8), VALUES)))
def test_anything_is_parsed_and_nothing_of_it_is_lost(kind: type[Document], value: Any) -> None:
    found = kind.parse(value).as_json()
    for key, item in value.items() if isinstance(value, dict) else ():
        assert repr(found[key]) == repr(item) or key in kind.__dataclass_fields__


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(data=st.data())
def test_what_is_damaged_in_a_known_field_is_kept_until_it_is_replaced(
    kind: type[Document], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from([name for name, item in kind.__dataclass_fields__.items() if item.metadata]))
    value = data.draw(VALUES)
    document = kind.parse({name: value, "of another version": [1]})
    assert document.as_json()["of another version"] == [1]
    again = kind.parse(document.as_json())
    assert repr(again.as_json()) == repr(document.as_json()), "reading and writing changes nothing more"


ASKED = {
    "/runs/{run}/series": "?name=loss",
    "/runs/{run}/range": "?x=step&start=0&end=5&to=time",
    "/runs/{run}/states": "?name=throttle_reasons&table=gpu",
    "/runs/{run}/histograms": "?name=w",
    "/runs/{run}/media/image": "?file=image/x/0.png",
    "/runs/{run}/media/table": "?file=table/x/0.json",
    "/runs/{run}/media/text": "?file=table/x/0.json",
    "/runs/{run}/export": "?format=jsonl&table=events",
    "/runs/{run}/report": "?format=json",
    "/compare": "?run={run}&run={other}",
}
"""What an endpoint has to be asked, or has something to say for."""


class Place:
    """A healthy run and a bad one, and everybody who lists or shows runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.good = make_run(root / "p" / "20260101-000000-good-aaaa")
        self.bad = root / "p" / "20260102-000000-bad-bbbb"
        write(self.good, ({"step": step, "loss": 1.0} for step in range(10)))
        self.client = TestClient(
            make_app(FolderRuns(root), lambda *_: b""), base_url="http://localhost", raise_server_exceptions=False
        )

    def make_bad(self, source: str) -> None:
        shutil.rmtree(self.bad, ignore_errors=True)
        if not (whole := self.root.parent / "whole" / source).exists():
            shutil.copytree(next(BEFORE.glob(f"*-{source}-*")), whole)
            for table in RunReader(whole).tables():  # makes the side tables anew, once instead of for each example
                RunReader(whole).summary(table)
        shutil.copytree(whole, self.bad)

    def look(self) -> None:
        """As every view does. Refusals are fine, and other exceptions are not."""
        listed = json.loads(self.run("runs", "--dir", str(self.root), "--json"))
        assert [Path(row["folder"]).name for row in listed] == [self.good.name, self.bad.name]
        self.run("runs", "--dir", str(self.root))
        self.run("runs", "show", str(self.bad))
        self.run("runs", "show", str(self.bad), "--json")
        self.run("alerts", "list", str(self.bad))
        self.run("alerts", "list", str(self.bad), "--json")
        self.run("alerts", "history", str(self.bad), "--all")
        self.run("alerts", "history", str(self.bad), "--all", "--json")
        self.run("diagnose", str(self.bad), "--json")
        exported = str(self.root.parent / "exported.jsonl")
        self.run("export", str(self.bad), "--format", "jsonl", "--table", "all", "-o", exported, "--force")
        rows = self.get("/api/v1/runs")["runs"]
        assert [row["id"] for row in rows if row["key"] == self.good.name] == [self.good.name]
        (key,) = (row["key"] for row in rows if row["key"] != self.good.name)
        for endpoint in ENDPOINTS:
            if endpoint.method == "GET":
                path = endpoint.path.format(run=key, file="rank0.txt", project=self.bad.parent.name)
                self.ask(f"/api/v1{path}{ASKED.get(endpoint.path, '').format(run=key, other=self.good.name)}")
        for format in ("md", "json", "svg", "html"):
            with contextlib.suppress(TrainvitalsError):
                draw_report(name_runs([self.bad]), format, resolve({}))
        self.draw()

    def run(self, *words: str) -> str:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(words))
        assert "Traceback" not in err.getvalue()
        assert code in (0, 1), err.getvalue()
        return out.getvalue()

    def get(self, path: str) -> Any:
        return json.loads(self.ask(path))

    def ask(self, path: str) -> bytes:
        answer = self.client.get(path)
        assert answer.status_code in (200, 404, 409, 413), (path, answer.text)
        return answer.content

    def draw(self) -> None:
        feed = Feed(TopOptions(run=refer_to(self.bad), runs=FolderRuns(self.root), sources=()))
        try:
            for page in ("overview", "charts", "ranks", "alerts", "events", "runs"):
                feed.want(Request(page=page, charts=2))
                screen.draw(feed.read(), View(page=page), 100, 30)
        finally:
            feed.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield Place(tmp_path_factory.mktemp("hostile") / "runs")


fuzzed = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
sparsely = settings(fuzzed, max_examples=6)
"""For sealed runs: to look at one takes several times as long."""


def damage(place: Place, source: str, name: str, content: Any) -> None:
    place.make_bad(source)
    (place.bad / name).write_text(json.dumps(content))
    place.look()


@fuzzed
@given(content=damaged(read("ranks/run.json")))
@pytest.mark.promise("anything in run.json", "no view fails; other runs are listed")
def test_a_run_json_with_anything_in_it_takes_no_list_down(place: Place, content: Any) -> None:
    damage(place, "ranks", "run.json", content)


@sparsely
@given(content=damaged(read("sealed/run.json")))
def test_nor_does_that_of_a_sealed_run(place: Place, content: Any) -> None:
    damage(place, "sealed", "run.json", content)


@fuzzed
@given(content=damaged(read("ranks/status.json")))
@pytest.mark.promise("anything in status.json", "no view fails; other runs are listed")
def test_a_status_json_with_anything_in_it_takes_no_list_down(place: Place, content: Any) -> None:
    damage(place, "ranks", "status.json", content)


@sparsely
@given(content=damaged(read("sealed/status.json")))
def test_nor_does_the_status_of_a_sealed_run(place: Place, content: Any) -> None:
    damage(place, "sealed", "status.json", content)


@fuzzed
@given(
    event=damaged(read("ranks/events_*.jsonl")), alert=damaged(read("ranks/alerts_*.jsonl")), row=damaged({"step": 1})
)
@pytest.mark.promise("anything in events, alerts and metrics", "no view fails; other runs are listed")
def test_lines_with_anything_in_them_take_no_list_down(place: Place, event: Any, alert: Any, row: Any) -> None:
    place.make_bad("ranks")
    metrics = ("training_metrics", "gpu_metrics", "system_metrics", "process_metrics", "source_metrics")
    for stem, line in (("events", event), ("alerts", alert), *((table, row) for table in metrics)):
        (place.bad / f"{stem}_20260101_000000.jsonl").write_text(json.dumps(line) + "\n")
    place.look()


DEEP = b"[" * 100_000 + b"]" * 100_000
DEPTHS = (101, 900)
"""What orjson reads, and what no function that calls itself comes to the end of."""


WHOLE: dict[str, Any] = {
    "findings.json": {
        "attempt": 1,
        "judged_by": {"version": "0.1.0", "thresholds": {"slower": 0.1}},
        "findings": [
            {"rule": "loss_nan", "severity": "critical", "title": "loss is NaN", "evidence": ["at step 3"], "step": 3,
             "advice": "lower the rate", "subject": "loss", "time": 1.8e9, "until": 9, "values": {"value": 1.5}},
        ],
        "fine": ["slow_steps"],
        "not_judged": [{"rule": "mfu", "title": "use of the GPU", "needs": "flops"}],
    },
    "benchmarks/000000005-20260101_000000.json": {
        "format": 1, "started": "2026-01-01T00:00:00Z", "seconds": 2.5, "model": "m.pt2", "inputs": "x: 1x3", "step": 5,
        "machine": {"cpu": "one", "load": [1.0, 2.0]},
        "results": [
            {"variant": "fp32", "batch": 1, "threads": 2, "reference": True, "items_per_second": 50.0, "ratio": 1.0,
             "latency": {"calls": 20, "median": 20.1, "low": 19.0, "high": 21.0, "p99": 25.0, "steady": True},
             "memory": {"weights": 64.0, "peak": 80.0}, "bytes_by_dtype": {"F32": 64}, "rounds": [[20.0, 20.2], [20.1]],
             "agreement": {"max_error": 0.0, "cosine": 1.0, "within": True}, "generation": {"prompt": 8}, "flops": 100},
        ],
        "largest_batch": {"fp32": 64}, "peaks": [{"threads": 2, "flops_per_second": 1e11, "bytes_per_second": 1e10}],
        "checks": ["NaN in the answers"], "warnings": ["noisy"],
    },
    "patches/attempt1.json": {
        "attempt": 1, "captured": "2026-01-01T00:00:00Z", "commit": "0123", "limit_kb": 256, "bytes": 5, "files": 1,
        "sha256": "00", "added": 1, "removed": 1, "untracked": ["a.py"], "missing": "too_large",
    },
    "media/index.jsonl": {
        "timestamp": "2026-01-01T00:00:00.000000Z", "kind": "table", "name": "x", "file": "table/x/0.json", "step": 0,
        "digest": "00", "bytes": 5, "rows": 2, "caption": "rows", "rank": 0,
    },
    "media/table/x/0.json": {"columns": ["a", "b"], "data": [[1, "x"], [None, 2.5]]},
    "media/histograms.rank0.jsonl": {
        "timestamp": "2026-01-01T00:00:00.000000Z", "name": "w", "step": 0, "low": 0.0, "high": 1.0, "counts": [1, 2],
        "nonfinite": 0,
    },
    "../view.json": {
        "format": 1, "panels": [{"id": "a", "title": "A", "items": ["loss"], "x": "step"}], "pins": ["loss"],
        "log": ["loss"], "linear": ["lr"], "hide": ["loss: a"], "columns": ["name"],
    },
}  # fmt: skip
"""What is beside the documents above, as it should be."""


@pytest.mark.parametrize("name", WHOLE)
@settings(fuzzed, max_examples=6)
@given(data=st.data())
@pytest.mark.promise(
    "anything in findings, benchmarks, patches, media and panels", "no view fails; other runs are listed"
)
def test_what_is_beside_a_run_with_anything_in_it_takes_no_list_down(
    place: Place, name: str, data: st.DataObject
) -> None:
    place.make_bad("ranks")
    for other, content in WHOLE.items():
        (place.bad / other).parent.mkdir(parents=True, exist_ok=True)
        (place.bad / other).write_text(f"{json.dumps(content)}\n")
    (place.bad / name).write_text(f"{json.dumps(data.draw(damaged(WHOLE[name])))}\n")
    try:
        place.look()
    finally:
        (place.bad / "../view.json").unlink()


def write_bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def nest(depth: int) -> bytes:
    """A document or line of any kind with lists within lists in all that may hold some."""
    lists = "[" * depth + "]" * depth
    plain = '"timestamp": "2026-01-01T00:00:00.000000Z", "step": 1, "event": "e", "rule": "r", "state": "firing"'
    inner = f'"config": {{"a": {lists}}}, "data": {{"a": {lists}}}, "labels": {{"a": {lists}}}, "tags": {lists}'
    return f'{{{plain}, {inner}, "of another version": {lists}}}\n'.encode()


def write_hole(path: Path) -> None:
    """A file of four gigabytes that takes no room."""
    path.touch()
    os.truncate(path, 1 << 32)


DEEP_LISTS = {f"lists {depth} deep": write_bytes(nest(depth)) for depth in DEPTHS}
ODD: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "nothing in it": write_bytes(b""),
    "deep nesting": write_bytes(b'{"config": %s}' % DEEP),
    **DEEP_LISTS,
    "a number of many digits": write_bytes(b'{"attempt": %s}' % (b"9" * 10_000)),
    "a list": write_bytes(b"[1, 2]"),
    "not UTF-8": write_bytes(b'{"name": "\xff\xfe"}'),
    "too large": write_hole,
}


DOCUMENTS = ("run.json", "status.json")
LINES = tuple(
    f"{stem}_20260101_000000.jsonl"
    for stem in ("events", "alerts", "training_metrics", "gpu_metrics", "system_metrics")
)
BESIDE = (
    "console.rank0.log",
    "stacks/rank0.txt",
    "media/histograms.rank0.jsonl",
    "segments/training_metrics_20260101_000000.rejected",
    "segments/training_metrics_20260101_000000.parquet",
)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *((name, what) for name in DOCUMENTS for what in ODD),
        # Lines are read in pieces, however long the file is.
        *((name, what) for name in LINES for what in ODD if what != "too large"),
        *((name, what) for name in BESIDE for what in ODD if what not in ("too large", *DEEP_LISTS)),
    ],
)
@pytest.mark.promise(
    "a pipe, device, folder or hole in place of a file", "no view hangs; the run is marked or the file ignored"
)
def test_what_is_no_document_at_all_is_a_marked_row_or_is_ignored(place: Place, name: str, what: str) -> None:
    place.make_bad("ranks")
    (place.bad / name).unlink(missing_ok=True)
    (place.bad / name).parent.mkdir(exist_ok=True)
    ODD[what](place.bad / name)
    if (name, what) == ("run.json", "a link to itself"):  # there is nothing at its end, so this is not a run
        assert "ranks" not in place.run("runs", "--dir", str(place.root))
    else:
        place.look()


class FaultyRuns(FolderRuns):
    """With a fault of ours that one run brings to light."""

    def findings(self, key: str) -> FindingsFile | None:
        if key.endswith("-bbbb"):
            raise RuntimeError("nobody has thought of this")
        return super().findings(key)


def test_a_run_that_we_fail_to_show_is_marked_and_the_others_are_listed(place: Place) -> None:
    place.make_bad("ranks")
    runs = FaultyRuns(place.root)
    bad = place.bad.name
    rows = {row["key"]: row for row in list_json(runs, runs.list_keys())}
    assert (rows[place.good.name]["name"], rows[bad]["status"]) == (place.good.name, "unreadable")
    assert rows[bad]["cause"] == "RuntimeError: nobody has thought of this"
    assert {row.key: row.info.status == "unreadable" for row in list_rows(runs)} == {place.good.name: False, bad: True}

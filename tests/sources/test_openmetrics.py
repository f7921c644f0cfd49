from __future__ import annotations

import base64
import gzip
import http.server
import math
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import prometheus_client
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.core import CollectorRegistry, GaugeMetricFamily
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_text
from prometheus_client.parser import text_string_to_metric_families
from waiting import PATIENCE, free_port

from trainvitals.sources import Notice, Sample, SourceUnavailable, World, create, openmetrics
from trainvitals.sources.exposition import PageParser, ScrapedPage, ScrapedSeries, parse_head, split_line
from trainvitals.sources.openmetrics import LARGEST_PAGE, TargetUnit, target_name

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


class Exporter:
    """A real HTTP server that answers as the test says."""

    def __init__(self) -> None:
        self.requests: list[http.server.BaseHTTPRequestHandler] = []
        self.answer: Answer = lambda request: None
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                exporter.requests.append(self)
                exporter.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.url = f"http://{self.address}/metrics"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def page(self, text: str | bytes, kind: str = "text/plain; version=0.0.4", **headers: str) -> None:
        body = text.encode() if isinstance(text, str) else text

        def answer(request: http.server.BaseHTTPRequestHandler) -> None:
            request.send_response(200)
            request.send_header("Content-Type", kind)
            for name, value in {"Content_Length": str(len(body)), **headers}.items():
                request.send_header(name.replace("_", "-"), value)
            request.end_headers()
            request.wfile.write(body)

        self.answer = answer


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine answers late: only a test that is about that is impatient."""
    monkeypatch.setattr(TargetUnit.__init__, "__defaults__", (openmetrics.MOST_SERIES, PATIENCE))


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.server.shutdown()
    server.server.server_close()


def scrape(url: str, **options: object) -> list[Sample | Notice]:
    return list(TargetUnit(url, **options).read())  # type: ignore[arg-type]


def series_of(samples: list[Sample | Notice]) -> dict[tuple[str, frozenset[tuple[str, object]]], float]:
    found = {}
    for sample in samples:
        if isinstance(sample, Sample) and "scrape_series" not in sample.values:
            for name, value in sample.values.items():
                found[name, frozenset(sample.labels.items())] = float(value)
    return found


def parse(text: str, openmetrics: bool = False, most: int = 1000) -> ScrapedPage:
    return PageParser(most).parse(text, openmetrics)


def test_each_address_is_a_unit_of_its_own(exporter):
    exporter.page("a 1\n")
    other = exporter.url.replace("/metrics", "/other")

    units = create("openmetrics", World(openmetrics_urls=(exporter.url, other, exporter.url))).discover()

    assert [unit.key for unit in units] == [f"openmetrics:{exporter.url}", f"openmetrics:{other}"]
    assert [unit.read()[1].values for unit in units] == [{"a": 1}, {"a": 1}]


def test_without_addresses_the_source_says_so():
    with pytest.raises(SourceUnavailable, match=r"setting openmetrics"):
        create("openmetrics", World()).discover()


def test_a_node_of_ray_without_a_metrics_page_is_left_out(tmp_path):
    session = tmp_path / "session_latest"
    session.mkdir()
    for number, text in enumerate(("-1", "0", "", "70000", "12x", "9999")):
        (session / f"metrics_export_port_{number:056x}").write_text(text)
    source = create("openmetrics", World(openmetrics_urls=(f"ray:{tmp_path}",)))
    assert [unit.key for unit in source.discover()] == [f"openmetrics:ray:{5:056x}"]
    (session / f"metrics_export_port_{5:056x}").unlink()
    with pytest.raises(SourceUnavailable, match="no Ray node on this machine"):
        source.discover()


def test_series_keep_their_names_labels_and_values(exporter):
    exporter.page(
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).\n"
        "# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n"
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 41\n'
        'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-1"} 181.5\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2"} 43\n'
        "up 1\n"
    )
    before = time.time()
    meta, *samples = scrape(exporter.url)
    after = time.time()

    assert isinstance(meta, Sample)
    assert meta.values == {"scrape_series": 4, "scrape_series_beyond": 0, "scrape_lines_malformed": 0}
    assert [(sample.table, dict(sample.labels), dict(sample.values)) for sample in samples] == [
        (
            "openmetrics",
            {"target": exporter.url, "gpu": "0", "UUID": "GPU-1"},
            {"DCGM_FI_DEV_GPU_TEMP": 41, "DCGM_FI_DEV_POWER_USAGE": 181.5},
        ),
        ("openmetrics", {"target": exporter.url, "gpu": "1", "UUID": "GPU-2"}, {"DCGM_FI_DEV_GPU_TEMP": 43}),
        ("openmetrics", {"target": exporter.url}, {"up": 1}),
    ]
    assert all(before <= sample.time <= after for sample in samples)


def test_not_a_number_and_infinity_are_data(exporter):
    exporter.page("a NaN\nb +Inf\nc -Inf\nd -0\ne nan\nf inf\n")

    values = scrape(exporter.url)[1].values

    assert math.isnan(values["a"])
    assert math.isnan(values["e"])
    assert (values["b"], values["c"], values["f"]) == (math.inf, -math.inf, math.inf)
    assert math.copysign(1, values["d"]) == -1


def test_a_moment_the_page_tells_itself_is_kept():
    assert parse("a 1 1700000000123\n").series == [ScrapedSeries("a", (), 1, 1700000000.123)]
    assert parse("a 1 1700000000.123\n# EOF\n", openmetrics=True).series == [ScrapedSeries("a", (), 1, 1700000000.123)]


def test_exemplars_are_passed_over():
    text = 'h_bucket{le="1"} 17 # {trace_id="a b",x="}"} 0.67 1700000000\nh_bucket{le="+Inf"} 18\n# EOF\n'

    assert parse(text, openmetrics=True).series == [
        ScrapedSeries("h_bucket", (("le", "1"),), 17, None),
        ScrapedSeries("h_bucket", (("le", "+Inf"),), 18, None),
    ]


@pytest.mark.parametrize(
    ("line", "name", "labels"),
    [
        ('a{x="1"} 1', "a", {"x": "1"}),
        ('a{x="1",} 1', "a", {"x": "1"}),
        ('a { x = "1" , y = "2" } 1', "a", {"x": "1", "y": "2"}),
        ("a{} 1", "a", {}),
        ("a\t1", "a", {}),
        ('a{x="}"} 1', "a", {"x": "}"}),
        ('a{x="{,=\\"# "} 1', "a", {"x": '{,="# '}),
        (
            r'a{x="line\nbreak",y="back\\slash",z="\"q\""} 1',
            "a",
            {"x": "line\nbreak", "y": "back\\slash", "z": '"q"'},
        ),
        ('a:b_c{x="ünïcödé 🔥"} 1', "a:b_c", {"x": "ünïcödé 🔥"}),
        ('{"a metric.name",x="1"} 1', "a metric.name", {"x": "1"}),
        ('{"a.b"} 1', "a.b", {}),
        ('a{"a label"="1"} 1', "a", {"a label": "1"}),
        ('a{x=""} 1', "a", {"x": ""}),
    ],
)
def test_heads(line, name, labels):
    page = parse(line + "\n")

    assert page.malformed == 0
    assert [(series.name, dict(series.labels), series.value) for series in page.series] == [(name, labels, 1)]


@pytest.mark.parametrize(
    "line",
    [
        "a",
        "a ",
        "a one",
        "a 1_000",
        "a 0x1p3",
        "a 1 2 3",
        "a 1 tomorrow",
        "1a 1",
        "a-b 1",
        "{} 1",
        'a{x="1" 1',
        'a{x="1} 1',
        "a{x=1} 1",
        'a{="1"} 1',
        'a{x="1";y="2"} 1',
        'a{x="1" y="2"} 1',
        'a{x="1",x="2"} 1',
        "<html><body>hello</body></html>",
        '{"error": "not found"}',
        "a 1 # {}",
    ],
)
def test_a_line_that_is_no_metric_is_counted_and_costs_only_itself(line):
    page = parse(f"before 1\n{line}\nafter 2\n")

    assert page.malformed == 1
    assert [series.name for series in page.series] == ["before", "after"]


def test_a_second_page_is_read_like_the_first():
    parser = PageParser(1000)
    first = parser.parse('a{x="1"} 1\nb 2\nnonsense\n')
    second = parser.parse('a{x="1"} 5\nc{y="}"} 3\nnonsense\n')

    assert [series.value for series in first.series] == [1, 2]
    assert second.series == [ScrapedSeries("a", (("x", "1"),), 5, None), ScrapedSeries("c", (("y", "}"),), 3, None)]
    assert second.malformed == 1


def test_series_beyond_the_limit_are_counted_and_said_once(exporter, by_kind):
    exporter.page("".join(f'a{{x="{number}"}} 1\n' for number in range(50)))
    unit = TargetUnit(exporter.url, most_series=20)

    first, second = by_kind(unit.read()), by_kind(unit.read())

    assert first.samples[0].values["scrape_series"] == 20
    assert first.samples[0].values["scrape_series_beyond"] == 30
    assert len(first.samples) == 21
    assert [notice.event for notice in first.notices + second.notices] == ["scrape_too_large"]
    assert "20 series" in first.notices[0].message


def test_lines_that_are_no_metrics_are_said_once(exporter, by_kind):
    exporter.page("a 1\noops\n")
    unit = TargetUnit(exporter.url)

    first, second = by_kind(unit.read()), by_kind(unit.read())

    assert [sample.values["scrape_lines_malformed"] for sample in (first.samples[0], second.samples[0])] == [
        1,
        1,
    ]
    assert [notice.event for notice in first.notices + second.notices] == ["scrape_malformed"]


def test_names_that_are_the_journals_own_are_renamed(exporter):
    exporter.page('a{target="x",host="y",gpu="0"} 1\ntimestamp 5\n')

    _, first, second = scrape(exporter.url)

    assert first.labels == {"target": exporter.url, "exported_target": "x", "exported_host": "y", "gpu": "0"}
    assert second.values == {"exported_timestamp": 5}


def test_a_packed_page_is_unpacked(exporter):
    exporter.page(gzip.compress(b"a 1\n" * 2000), Content_Encoding="gzip")

    assert scrape(exporter.url)[1].values == {"a": 1}
    assert exporter.requests[0].headers["Accept-Encoding"] == "gzip"
    assert "application/openmetrics-text" in exporter.requests[0].headers["Accept"]


def test_an_address_without_a_path_means_the_usual_one(exporter):
    exporter.page("a 1\n")

    scrape(f"http://{exporter.address}")

    assert exporter.requests[0].path == "/metrics"


def test_a_password_is_sent_but_never_shown(exporter):
    exporter.page("a 1\n")
    url = f"http://me:s%40cret@{exporter.address}/metrics?token=hidden"
    unit = TargetUnit(url)

    samples = unit.read()

    assert exporter.requests[0].headers["Authorization"] == "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert exporter.requests[0].path == "/metrics?token=hidden"
    assert not re.search("s@cret|s%40cret|hidden", f"{unit.key} {samples}")
    assert "hidden" not in str(create("openmetrics", World(openmetrics_urls=(url,))).describe())
    assert target_name(url) == f"http://{exporter.address}/metrics"


def test_a_proxy_of_the_environment_is_not_used(exporter, monkeypatch):
    exporter.page("a 1\n")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")

    assert scrape(exporter.url)[1].values == {"a": 1}


def failure(url: str, **options: object) -> str:
    with pytest.raises(SourceUnavailable) as caught:
        scrape(url, **options)
    return str(caught.value)


def test_nobody_there():
    assert re.search(r"is unreachable: .*refused", failure(f"http://127.0.0.1:{free_port()}/metrics"))


@pytest.mark.parametrize("code", [301, 302, 307, 401, 404, 500, 503])
def test_an_answer_that_is_no_page(exporter, code):
    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(code)
        request.send_header("Location", "http://127.0.0.1:1/elsewhere")
        request.send_header("Content-Length", "0")
        request.end_headers()

    exporter.answer = answer

    assert f"returned {code}" in failure(exporter.url)
    assert len(exporter.requests) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/x", "metrics", "", "http://[::1/metrics"])
def test_an_address_that_is_not_http(url):
    with pytest.raises((SourceUnavailable, ValueError), match=r"not an http address|Invalid IPv6"):
        scrape(url)


def test_a_page_of_something_else(exporter):
    exporter.page("<html>\n<body>It works!</body>\n</html>\n", kind="text/html")

    assert "not a metrics page" in failure(exporter.url)


def test_an_empty_page_has_no_series(exporter):
    exporter.page("")

    (meta,) = scrape(exporter.url)
    assert meta.values["scrape_series"] == 0


def test_a_page_that_is_too_large(exporter):
    exporter.page(b"a 1\n" * (LARGEST_PAGE // 4 + 1))

    assert "larger than 16 MB" in failure(exporter.url, timeout=PATIENCE)


@pytest.mark.promise("a metrics page that is a gzip bomb", "it is rejected at 16 MB")
def test_a_small_page_that_unpacks_to_a_large_one(exporter):
    exporter.page(gzip.compress(bytes(LARGEST_PAGE + 1)), Content_Encoding="gzip")

    assert "larger than 16 MB" in failure(exporter.url, timeout=PATIENCE)


def test_a_page_that_is_not_packed_as_it_says(exporter):
    exporter.page("a 1\n", Content_Encoding="gzip")

    assert "cannot read" in failure(exporter.url)


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_a_packed_page_that_is_cut_short(exporter, cut):
    exporter.page(gzip.compress(b"a 1\nb 2\nc 3\nd 4\n")[:-cut], Content_Encoding="gzip")

    assert "cannot read" in failure(exporter.url)


def test_a_page_shorter_than_it_says_is_not_taken_for_whole(exporter):
    exporter.page("a 1\nb 12", Content_Length="9")

    assert "truncated" in failure(exporter.url)


def test_openmetrics_without_its_end_is_cut_short(exporter):
    exporter.page("a 1\n", kind="application/openmetrics-text; version=1.0.0; charset=utf-8")

    assert "truncated" in failure(exporter.url)


def test_a_server_that_never_answers(exporter):
    waiting = threading.Event()
    exporter.answer = lambda request: waiting.wait(PATIENCE) and None

    assert "timed out" in failure(exporter.url, timeout=0.2)
    waiting.set()


@pytest.mark.promise("a metrics page that arrives byte by byte", "the scrape ends after 5 s")
def test_a_server_that_answers_drop_by_drop(exporter, monkeypatch):
    flows = threading.Event()

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            for _ in range(1200):
                request.wfile.write(b"a 1\n")
                time.sleep(0.05)
                flows.set()
        except OSError:
            pass  # the reader has left

    exporter.answer = answer

    # The time is up once the first drops have come, however late a busy machine sends them: a silent server is another
    # failure.
    clock = SimpleNamespace(monotonic=lambda: PATIENCE + 1 if flows.is_set() else 0.0, time=time.time)
    monkeypatch.setattr(openmetrics, "time", clock)
    assert f"no response within {PATIENCE:g} s" in failure(exporter.url)


def test_a_server_that_does_not_speak_http():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"

        def talk() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x00\xff nonsense\r\n\r\n")

        threading.Thread(target=talk, daemon=True).start()
        assert "cannot read" in failure(url)


def test_the_next_scrape_after_a_failure_works(exporter):
    unit = TargetUnit(exporter.url)
    exporter.page("nonsense\n")
    with pytest.raises(SourceUnavailable):
        unit.read()

    exporter.page("a 1\n")

    assert unit.read()[1].values == {"a": 1}


@pytest.mark.promise("a line that makes a parser slow", "parsing stays linear")
def test_a_hostile_line_does_not_take_for_ever():
    braces = 'a{x="' + "}" * 200_000 + "\n"
    quotes = "a{" + 'x="' * 100_000 + "\n"
    spaces = "a{" + " " * 200_000 + "x\n"

    assert parse(braces + quotes + spaces).malformed == 3
    assert split_line("a 1") == ("a", "1")
    assert parse_head("") is None


def test_the_real_node_exporter_is_read_whole(node_exporter):
    url = node_exporter()
    samples = scrape(url)
    ours = series_of(samples)

    meta = samples[0]
    assert isinstance(meta, Sample)
    assert meta.values["scrape_lines_malformed"] == 0
    names = {name for name, _ in ours}
    assert len(ours) > 100
    assert {"node_memory_MemTotal_bytes", "node_load1", "node_cpu_seconds_total", "go_goroutines"} <= names
    boot = [value for (name, _), value in ours.items() if name == "node_boot_time_seconds"]
    assert boot == [pytest.approx(time.time() - float(Path("/proc/uptime").read_text().split()[0]), abs=30)]
    cores = {dict(labels)["cpu"] for name, labels in ours if name == "node_cpu_seconds_total"}
    assert len(cores) >= 1


def test_prometheus_own_client_reads_the_same_from_the_real_node_exporter(node_exporter, exporter):
    import urllib.request

    with urllib.request.urlopen(node_exporter(), timeout=PATIENCE) as response:
        text = response.read().decode()
    exporter.page(text)

    ours = series_of(scrape(exporter.url))
    theirs = {
        (sample.name, frozenset({"target": exporter.url, **sample.labels}.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }

    assert len(theirs) > 100
    assert set(ours) == set(theirs)
    differing = {key for key in ours if repr(ours[key]) != repr(float(theirs[key]))}
    assert differing == set()


def test_prometheus_own_client_writes_what_is_read(exporter):
    registry = CollectorRegistry()
    steps = prometheus_client.Counter("training_steps", "Steps", ["run"], registry=registry)
    steps.labels('a"b\\c\nd').inc(3)
    prometheus_client.Histogram("step_seconds", "Duration", registry=registry).observe(0.3)
    prometheus_client.Info("build", "Build", registry=registry).info({"version": "1"})
    exporter.page(openmetrics_text(registry), kind="application/openmetrics-text; version=1.0.0; charset=utf-8")

    ours = series_of(scrape(exporter.url))

    target = ("target", exporter.url)
    assert ours["training_steps_total", frozenset({target, ("run", 'a"b\\c\nd')})] == 3
    assert ours["step_seconds_bucket", frozenset({target, ("le", "+Inf")})] == 1
    assert ours["step_seconds_sum", frozenset({target})] == 0.3
    assert ours["build_info", frozenset({target, ("version", "1")})] == 1


label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda name: name[:2] != "__")
label_values = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)
metric_names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)


@settings(max_examples=150, deadline=None)
@given(
    name=metric_names,
    rows=st.dictionaries(st.tuples(label_values, label_values), st.floats(), min_size=1, max_size=8),
    labels=st.tuples(label_names, label_names).filter(lambda pair: pair[0] != pair[1]),
)
def test_whatever_prometheus_own_client_writes_is_read_back(name, rows, labels):
    class Collector:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            family = GaugeMetricFamily(name, "help", labels=list(labels))
            for values, number in rows.items():
                family.add_metric(list(values), number)
            yield family

    registry = CollectorRegistry()
    registry.register(Collector())
    page = parse(prometheus_client.generate_latest(registry).decode())

    assert page.malformed == 0
    found = {series.labels: series.value for series in page.series}
    expected = {tuple(sorted(zip(labels, values, strict=True))): number for values, number in rows.items()}
    assert repr(sorted(found.items())) == repr(sorted(expected.items()))


@settings(max_examples=300, deadline=None)
@given(st.text())
def test_no_text_at_all_is_an_error(text):
    page = parse(text)

    lines = [line for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]
    assert len(page.series) + page.malformed == len(lines)

"""Remote write to Debian's Prometheus and VictoriaMetrics, and to servers that answer badly."""

from __future__ import annotations

import math
import struct
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import BucketSpan, Exemplar, NativeHistogram, Sample
from servers import Answering, Front, Server, fetch
from waiting import free_port, wait_until
from write_requests import Read, read_request

from trainvitals import http_client
from trainvitals.exporters import push_queue
from trainvitals.exporters.credentials import Credentials
from trainvitals.exporters.push_queue import Destination, PushQueue
from trainvitals.exporters.remote_write import BATCH, RemoteWrite
from trainvitals.exporters.spool import Spool
from trainvitals.exporters.write_messages import FamilyAbout, SentPoint, SentSeries, encode_first, encode_second

WITHOUT = {"X-Prometheus-Remote-Write-Samples-Written": ""}
"""The header that a server of the first version does not send."""


class Numbers:
    """Something to send: one series per name, all with the same value."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.value = 0.0

    def __call__(self) -> Iterable[Metric]:
        family = GaugeMetricFamily("sent", "A number", labels=("name", "run"))
        for name in self.names:
            family.add_metric((name, "made"), self.value)
        return [family]


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[Callable[..., PushQueue]]:
    """`writers(url, numbers)`: one that writes only when told, unless an interval is given."""
    started: list[PushQueue] = []

    def start(url: str, numbers: Numbers, **options: Any) -> PushQueue:
        credentials = Credentials(options.pop("read_token", lambda: None))
        place = Destination(url, tmp_path / "spool", credentials)
        writer = PushQueue(RemoteWrite(), place, numbers, **{"interval": 3600.0, **options})
        started.append(writer)
        return writer

    yield start
    for writer in started:
        writer.close()


def flush(victoria: Server) -> None:
    assert fetch(f"{victoria.url}/internal/force_flush")[0] == 200


def sent_all(writer: PushQueue) -> bool:
    return writer.pending_bytes == 0


@pytest.mark.parametrize("kind", ["prometheus", "victoria"])
@pytest.mark.promise("the server is killed for a while", "it has everything in the end")
def test_a_server_killed_for_a_while_has_everything_in_the_end(
    kind: str,
    start_prometheus: Callable[..., Server],
    start_victoria: Callable[..., Server],
    writers: Callable[..., PushQueue],
) -> None:
    server = start_prometheus() if kind == "prometheus" else start_victoria()
    numbers = Numbers("a", 'b"\n\\')
    writer = writers(f"{server.url}/api/v1/write", numbers)
    wait_until(lambda: writer.counts.sent, "the value before the first")
    for value in range(1, 31):
        numbers.value = float(value)
        writer.write_now()
        if value == 10:
            wait_until(lambda: sent_all(writer), "the first ten")
            if kind == "victoria":
                server.stop()  # it answers before it has written, so a SIGKILL would lose what it said it has
            else:
                server.kill()
        if value == 20:
            assert not sent_all(writer)
            wait_until(lambda: writer.counts.failed, "the failure to be noticed")
            server.start()
    wait_until(lambda: sent_all(writer), "everything to be sent")
    if kind == "victoria":
        flush(server)

    def values() -> list[float]:
        found = server.query('sent{name="a"}[1h]', time.time() + 1)
        return [float(value) for _, value in found[0]["values"]] if found else []

    wait_until(lambda: values() and values()[-1] == 30.0, "the last value")
    assert values() == [0.0, *(float(value) for value in range(1, 31))]

    def names() -> set[str]:
        # VictoriaMetrics takes a series whose samples came milliseconds apart for stale a second later.
        return {item["metric"]["name"] for item in server.query("last_over_time(sent[5m])", time.time() + 1)}

    wait_until(lambda: names() == set(numbers.names), "every series")  # its index is some time behind its samples
    assert writer.counts.rejected == 0


def test_the_agents_of_two_users_on_one_machine_lose_nothing_and_one_xid_is_one(
    start_prometheus: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_prometheus()
    front = Front(server)
    losses, xids = {"alice": 0.0, "bob": 0.0}, {"alice": 1.0, "bob": 0.0}

    def collect(user: str) -> list[Metric]:
        loss = GaugeMetricFamily("training_loss", "Loss", labels=("run", "host"))
        loss.add_metric((user, "box"), losses[user])
        xid = CounterMetricFamily("gpu_xid_errors", "Xids since this agent began", labels=("uuid", "host"))
        xid.add_metric(("GPU-0", "box"), xids[user])
        return [loss, xid]

    def agent(user: str) -> PushQueue:
        dialect = RemoteWrite({"job": "trainvitals", "instance": f"box:{user}"})
        place = Destination(front.url, tmp_path / user)
        return PushQueue(dialect, place, lambda: collect(user), interval=3600.0)

    agents = {user: agent(user) for user in losses}
    wait_until(lambda: all(writer.counts.sent for writer in agents.values()), "the values before the first")
    for step in range(1, 31):
        front.answer = (lambda sent: 503 if b"box:bob" in sent else None) if 10 <= step < 20 else front.pass_on
        for user, writer in agents.items():
            losses[user] = float(step)
            writer.write_now()
            if user == "alice":
                wait_until(lambda writer=writer: sent_all(writer), "what alice sends")
    wait_until(lambda: all(sent_all(writer) for writer in agents.values()), "everything")
    assert [writer.counts.rejected for writer in agents.values()] == [0, 0]
    for user in losses:
        found = server.query(f'training_loss{{run="{user}"}}[1h]', time.time() + 1)
        assert [float(value) for _, value in found[0]["values"]] == [float(step) for step in range(31)]
    held = server.query("gpu_xid_errors_total[1h]", time.time() + 1)
    assert len(held) == 1 and {value for _, value in held[0]["values"]} in ({"0"}, {"1"}), (
        "one of them has the hardware"
    )
    owner = held[0]["metric"]["instance"].removeprefix("box:")
    agents.pop(owner).close()
    (other,) = agents.values()
    other.write_now()
    wait_until(lambda: server.query("gpu_xid_errors_total"), "the hardware from the other one")
    other.close()
    front.close()


def test_a_series_that_ends_is_said_to_have_ended(
    start_prometheus: Callable[..., Server], writers: Callable[..., PushQueue]
) -> None:
    server = start_prometheus()
    numbers = Numbers("stays", "goes")
    writer = writers(f"{server.url}/api/v1/write", numbers)
    wait_until(lambda: server.query('sent{name="goes"}'), "the series")
    numbers.names = ["stays"]
    writer.write_now()
    wait_until(lambda: not server.query('sent{name="goes"}'), "the end of the series, long before it is stale by age")
    assert server.query('sent{name="stays"}')


@pytest.mark.usefixtures("patient_end")
def test_the_end_sends_the_last_values_and_that_all_series_have_ended(
    start_prometheus: Callable[..., Server], writers: Callable[..., PushQueue]
) -> None:
    server = start_prometheus()
    numbers = Numbers("a", "b")
    writer = writers(f"{server.url}/api/v1/write", numbers)
    wait_until(lambda: len(server.query("sent")) == 2, "the first values")
    numbers.value = 7.0
    writer.close()
    assert sent_all(writer)
    assert [float(item["value"][1]) for item in server.query("last_over_time(sent[1h])")] == [7.0, 7.0]
    assert server.query("sent") == []
    assert server.value("trainvitals_next_push_timestamp_seconds") == math.inf, "no push is missed from now on"


def test_a_hurried_writer_does_not_wait_for_its_interval(
    writers: Callable[..., PushQueue], answering: Answering
) -> None:
    numbers = Numbers("a")
    writer = writers(answering.url, numbers)
    wait_until(lambda: writer.counts.sent == 1, "the first")
    writer.hurry()
    wait_until(lambda: writer.counts.sent == 2, "the second")


@pytest.mark.parametrize(
    "bad", [None, (503, b"", {"Retry-After": "600"}), (-1, b"", {})], ids=["away", "503", "silence"]
)
def test_the_end_does_not_wait_for_a_server_that_does_not_answer_and_the_next_one_sends(
    bad: tuple[int, bytes, dict[str, str]] | None,
    writers: Callable[..., PushQueue],
    answering: Answering,
    tmp_path: Path,
) -> None:
    numbers = Numbers("a")
    answering.answers = [bad] if bad else []
    first = writers(answering.url if bad else f"http://127.0.0.1:{free_port()}", numbers)
    wait_until(lambda: first.counts.failed or answering.received, "a try")
    first.close()

    def read_spool() -> list[bytes]:
        return [path.read_bytes() for path in sorted((tmp_path / "spool").glob("*.request"))]

    # It is not waited for either where a busy machine needs longer to write that much.
    wait_until(lambda: len(read_spool()) == 3, "the first values, the last ones, and the end")
    kept = read_spool()
    answering.answers, answering.received[:] = [], []
    answering.silence.set()
    second = writers(answering.url, numbers)
    wait_until(lambda: second.counts.sent >= 4, "what was left and the first of its own")
    assert [body for _, _, body in answering.received][:3] == kept


@pytest.mark.promise("the agent ends before all is sent", "the next one sends the rest")
def test_what_one_process_could_not_send_the_next_one_sends(
    writers: Callable[..., PushQueue], answering: Answering
) -> None:
    numbers = Numbers("a")
    first = writers(f"http://127.0.0.1:{free_port()}/nobody", numbers)
    wait_until(lambda: first.counts.failed, "a try that fails")
    first.close()
    second = writers(answering.url, numbers)
    wait_until(lambda: len(answering.received) >= 2, "the old request and the new one")
    assert sent_all(second) or len(answering.received) >= 2


@pytest.mark.parametrize(
    "bad",
    [
        (429, b"slow down", {"Retry-After": "0"}),
        (503, b"", {}),
        (500, b"<html>", {"Retry-After": "nonsense"}),
        (0, b"\x00garbage\r\n\r\n", {}),
        (0, b"", {}),
        (401, b"who are you", {}),
        (-1, b"", {}),
    ],
    ids=["429", "503", "500", "garbage", "nothing", "401", "silence"],
)
def test_a_server_that_fails_gets_the_same_again(
    bad: tuple[int, bytes, dict[str, str]],
    writers: Callable[..., PushQueue],
    answering: Answering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if bad[0] == -1:
        # Only while the server is silent: an answer may take its time on a busy machine.
        limits, send = iter((2.0, 2.0)), http_client.send

        def send_in_time(request: urllib.request.Request, seconds: float, **more: Any) -> http_client.Answer:
            return send(request, next(limits, seconds) if request.data is not None else seconds, **more)

        monkeypatch.setattr(http_client, "send", send_in_time)
    told: list[str] = []
    answering.answers = [bad, bad, (204, b"", {})]
    writer = writers(answering.url, Numbers("a"), warn=told.append)
    wait_until(lambda: writer.counts.sent, "the third try")
    bodies = [body for _, _, body in answering.received]
    assert len(bodies) == 3 and len(set(bodies)) == 1
    assert writer.counts.failed == 2 and writer.counts.rejected == 0
    assert len(told) == 1, "said once, not with every try"
    assert bad[0] <= 0 or bad[1].decode() in told[0]


def test_a_server_that_refuses_is_believed_and_the_rest_goes_on(
    writers: Callable[..., PushQueue], answering: Answering
) -> None:
    told: list[str] = []
    answering.answers = [(400, b"out of order sample\nmore", {}), (204, b"", {})]
    writer = writers(answering.url, Numbers("a"), warn=told.append)
    wait_until(lambda: writer.counts.rejected, "the refusal")
    writer.write_now()
    wait_until(lambda: writer.counts.sent, "the next one")
    wait_until(lambda: sent_all(writer), "an empty spool")
    assert "out of order" in told[0] and "set prometheus.host" in told[0]


def test_the_real_refusal_of_prometheus_loses_only_what_is_refused(
    start_prometheus: Callable[..., Server], writers: Callable[..., PushQueue]
) -> None:
    server, now = start_prometheus(), [time.time()]
    numbers = Numbers("a")
    writer = writers(f"{server.url}/api/v1/write", numbers, clock=lambda: now[0])
    wait_until(lambda: writer.counts.sent == 1, "the first")
    now[0] -= 3600.0  # the clock is set back an hour: Prometheus takes nothing older than its newest
    writer.write_now()
    wait_until(lambda: writer.counts.rejected == 1, "the refusal")
    now[0] += 3600.0 + 5.0
    numbers.value = 7.0
    writer.write_now()
    wait_until(lambda: writer.counts.sent == 2, "the next one")
    wait_until(lambda: sent_all(writer), "an empty spool")


def test_a_clock_set_back_a_little_does_not_make_samples_go_back(
    writers: Callable[..., PushQueue], start_prometheus: Callable[..., Server]
) -> None:
    server, now = start_prometheus(), [time.time() - 100]
    numbers = Numbers("a")
    writer = writers(f"{server.url}/api/v1/write", numbers, clock=lambda: now[0])
    wait_until(lambda: writer.counts.sent == 1, "the first")
    for _ in range(3):
        now[0] -= 2.0
        writer.write_now()
    wait_until(lambda: sent_all(writer), "the others")
    assert writer.counts.rejected == 0 and writer.counts.sent == 4


@pytest.mark.promise("the clock of a machine is an hour ahead", "it pushes nothing until it is right; others go on")
def test_a_clock_that_is_ahead_pushes_nothing_until_it_is_right(
    writers: Callable[..., PushQueue],
    start_prometheus: Callable[..., Server],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_queue, "CLOCK_PAUSE", 0.05)
    monkeypatch.setattr(push_queue, "LONGEST_PAUSE", 0.05)
    server, ahead = start_prometheus(), [3600.0]
    told: list[str] = []
    url = f"{server.url}/api/v1/write"
    numbers = Numbers("wrong")
    Spool(tmp_path / "spool", 1 << 20).put(b"from before that was known", time.time() + 3600)
    wrong = writers(url, numbers, clock=lambda: time.time() + ahead[0], warn=told.append)
    wait_until(lambda: told, "the warning")
    assert "this machine's clock is ahead" in told[0] and "3,6" in told[0], told
    right = PushQueue(RemoteWrite(), Destination(url, tmp_path / "other"), Numbers("right"), interval=3600.0)
    try:
        for count in range(1, 4):
            wrong.write_now()
            wait_until(lambda count=count: right.counts.sent == count, "what another machine pushes")  # type: ignore[misc]
            right.write_now()
        assert right.counts.rejected == wrong.counts.sent == 0 and wrong.counts.failed > 0
    finally:
        right.close()
    ahead[0] = 0.0
    wait_until(lambda: wrong.counts.rejected and sent_all(wrong), "what was written before it was known")
    wrong.write_now()
    wait_until(lambda: wrong.counts.sent == 1, "the next one")
    ((_, value),) = server.query('sent{name="wrong"}[2h]', time.time() + 3600)[0]["values"]
    assert float(value) == 0.0
    assert len(told) == 2 and "dropping samples of the future" in told[1]


@pytest.mark.promise("a server redirects to another host", "the token does not go there")
def test_the_token_goes_to_the_server_and_into_no_redirect(
    writers: Callable[..., PushQueue], answering: Answering
) -> None:
    elsewhere = Answering()
    answering.answers = [(307, b"", {"Location": f"{elsewhere.url}/x"})]
    writer = writers(answering.url, Numbers("a"), read_token=lambda: "s3cret")
    wait_until(lambda: answering.received, "the request")
    assert answering.received[0][1]["authorization"] == "Bearer s3cret"
    wait_until(lambda: writer.counts.rejected or writer.counts.failed, "the answer to be read")
    assert elsewhere.received == []
    elsewhere.close()


@pytest.mark.parametrize("pause", ["nan", "-1", "soon", "0"])
@pytest.mark.promise(
    "a server answers 429 with a `Retry-After` that makes no sense", "it is tried again, and gets everything"
)
def test_a_pause_that_makes_no_sense_does_not_end_the_sender(
    writers: Callable[..., PushQueue], answering: Answering, pause: str
) -> None:
    answering.answers = [(429, b"", {"Retry-After": pause}), (204, b"", {})]
    writer = writers(answering.url, Numbers("a"))
    wait_until(lambda: sent_all(writer) and writer.counts.sent, "the second try")
    assert writer.counts.failed == 1 and answering.received[0][2] == answering.received[1][2]


@pytest.mark.parametrize("pause", ["1e9", "99999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"])
@pytest.mark.promise("`Retry-After: 1e9`", "the pause is ten minutes at most, and the agent's end does not wait for it")
def test_a_pause_of_years_is_cut_and_the_end_does_not_wait_for_it(
    writers: Callable[..., PushQueue], answering: Answering, pause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals.exporters.push_queue.LONGEST_ASKED_PAUSE", 0.1)
    answering.answers = [(429, b"", {"Retry-After": pause}), (204, b"", {})]
    writer = writers(answering.url, Numbers("a"))
    wait_until(lambda: sent_all(writer) and writer.counts.sent, "the second try")
    monkeypatch.undo()
    answering.answers = [(429, b"", {"Retry-After": pause})]
    writer.write_now()
    wait_until(lambda: writer.counts.failed == 2, "the refusal")
    writer.close()
    assert writer.pending_bytes > 0, "for the next agent"


@pytest.mark.parametrize("target", ["http://[", "file:///etc/passwd", "//"])
def test_a_redirect_to_nowhere_does_not_end_the_sender(
    writers: Callable[..., PushQueue], answering: Answering, target: str
) -> None:
    answering.answers = [(302, b"", {"Location": target}), (204, b"", {})]
    writer = writers(answering.url, Numbers("a"))
    wait_until(lambda: writer.counts.rejected == 1, "the redirect to be refused")
    writer.write_now()
    wait_until(lambda: writer.counts.sent == 1, "the next request")


def test_many_series_go_in_several_requests(writers: Callable[..., PushQueue], answering: Answering) -> None:
    writer = writers(answering.url, Numbers(*(str(number) for number in range(2 * BATCH + 1))))
    wait_until(lambda: writer.counts.sent == 3, "three requests")


# -- the spool and the wire


@pytest.mark.promise("a server is away for very long", "the spool is bounded; the oldest is dropped and counted")
def test_a_full_spool_gives_up_the_oldest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 100)
    for number in range(5):
        spool.put(bytes([number]) * 40, time.time())
    assert len(spool) == 2 and spool.dropped == 3
    waiting = spool.oldest()
    assert waiting is not None and waiting[2][0] == 3


def test_a_spool_is_found_again_in_its_order_without_what_was_half_written(tmp_path: Path) -> None:
    first = Spool(tmp_path, 1 << 20)
    for number in range(12):
        first.put(bytes([number]), float(number))
    (tmp_path / ".0000000000000099.request").write_bytes(b"half")
    second = Spool(tmp_path, 1 << 20)
    second.put(b"\xff", 12.0)
    found = []
    while (waiting := second.oldest()) is not None:
        found.append(waiting[1:])
        second.done(waiting[0])
    assert found == [*((float(number), bytes([number])) for number in range(12)), (12.0, b"\xff")]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encode", [encode_first, encode_second])
def test_the_end_of_a_series_is_the_nan_that_means_it(encode: Callable[[Iterable[SentPoint], int], bytes]) -> None:
    series = SentSeries(("__name__", "sent"), FamilyAbout("gauge", "A number", ""), "")
    assert struct.pack("<Q", 0x7FF0000000000002) in encode([SentPoint(series, None)], 5)


# -- which version


def everything() -> list[Metric]:
    """A counter with a beginning and one without, a gauge with a unit, a histogram with an exemplar."""
    counted = CounterMetricFamily("steps", "Steps", labels=("run",))
    counted.add_metric(("a",), 7.0, created=1000.5)
    lifetime = CounterMetricFamily("energy_joules", "Since the driver was loaded", labels=("gpu",))
    lifetime.add_metric(("0",), 9.0)
    heat = GaugeMetricFamily("heat_celsius", "Temperature", labels=("gpu", "empty"), unit="celsius")
    heat.add_metric(("0", ""), 40.0)
    took = Metric("took_seconds", "Duration", "histogram", "seconds")
    example = Exemplar({"step": "3"}, 0.5, 1001.25)
    took.add_sample("took_seconds_bucket", {"run": "a", "le": "+Inf"}, 2.0, exemplar=example)
    took.add_sample("took_seconds_count", {"run": "a"}, 2.0)
    took.add_sample("took_seconds_created", {"run": "a"}, 1000.0)
    return [counted, lifetime, heat, took]


def reads(answering: Answering) -> list[tuple[str, dict[str, Read]]]:
    """(version, series by name) of every request."""
    return [
        (
            headers["x-prometheus-remote-write-version"],
            {series.labels["__name__"]: series for series in read_request(headers, body)},
        )
        for _, headers, body in answering.received
    ]


def test_a_server_of_the_second_version_gets_types_helps_beginnings_and_exemplars(
    tmp_path: Path, answering: Answering
) -> None:
    dialect = RemoteWrite({"job": "trainvitals"})
    writer = PushQueue(dialect, Destination(answering.url, tmp_path), everything, interval=3600.0)
    wait_until(lambda: writer.counts.sent == 2, "runs and hardware")
    writer.close()
    (_, runs), (_, hardware) = reads(answering)[:2]
    assert {version for version, _ in reads(answering)} == {"2.0.0"} and writer.counts.rejected == 0
    assert runs["steps_total"][3:7] == ("counter", "Steps", "", 1_000_500)
    assert hardware["energy_joules_total"].began_ms == 0, "nobody knows since when"
    assert hardware["heat_celsius"][3:7] == ("gauge", "Temperature", "celsius", 0)
    assert hardware["heat_celsius"].labels == {"__name__": "heat_celsius", "gpu": "0", "job": "trainvitals"}
    assert runs["took_seconds_bucket"].exemplar == ({"step": "3"}, 0.5, 1_001_250)
    assert runs["took_seconds_bucket"].began_ms == runs["took_seconds_count"].began_ms == 1_000_000


@pytest.mark.parametrize(
    "refusal",
    [(415, b"", {}), (400, b"unknown content type", WITHOUT), (500, b"no such field", WITHOUT), (204, b"", WITHOUT)],
    ids=["415", "400", "500", "no word of what was written"],
)
@pytest.mark.promise("the server knows only remote write 1.0", "it gets the same request again in 1.0")
def test_a_server_of_the_first_version_gets_everything_in_it(
    refusal: tuple[int, bytes, dict[str, str]], tmp_path: Path, answering: Answering
) -> None:
    answering.answers = [(503, b"", {}), refusal, (204, b"", {})]
    writer = PushQueue(RemoteWrite(), Destination(answering.url, tmp_path), everything, interval=3600.0)
    wait_until(lambda: writer.counts.failed, "a try")
    writer.write_now()  # kept in the second version: the server has not shown yet what it knows
    wait_until(lambda: writer.counts.sent == 4, "everything")
    writer.write_now()
    wait_until(lambda: writer.counts.sent == 6, "what follows")
    found = reads(answering)
    assert [version for version, _ in found] == ["2.0.0"] * 2 + ["0.1.0"] * 6, "asked once"
    assert writer.counts.rejected == 0
    for _, series in found[2:]:
        for read in series.values():
            assert read.kind == "" and read.began_ms == 0 and read.exemplar is None
    spooled, direct = found[2][1], found[6][1]  # one was converted, the other made so
    due = "trainvitals_next_push_timestamp_seconds"
    assert spooled.pop(due).value < direct.pop(due).value
    assert [read[:2] for read in spooled.values()] == [read[:2] for read in direct.values()]
    assert spooled["took_seconds_bucket"].labels == {"__name__": "took_seconds_bucket", "le": "+Inf", "run": "a"}
    writer.close()


def lasting() -> list[Metric]:
    """A histogram in both kinds: seven steps of half a second and three of two seconds."""
    took = Metric("took_seconds", "Duration", "histogram", "seconds")
    spans = (BucketSpan(-7, 1), BucketSpan(15, 1))
    native = NativeHistogram(10.0, 9.5, 3, 0.0, 0.0, pos_spans=spans, pos_deltas=(7, -4))
    took.samples.append(Sample("took_seconds", {"run": "a"}, 0.0, native_histogram=native))
    took.add_sample("took_seconds_bucket", {"run": "a", "le": "+Inf"}, 10.0)
    took.add_sample("took_seconds_created", {"run": "a"}, 1000.0)
    return [took]


def test_a_native_histogram_is_pushed_instead_of_its_buckets_in_both_versions(
    tmp_path: Path, answering: Answering
) -> None:
    answering.answers = [(204, b"", {}), (415, b"", {}), (204, b"", {})]
    writer = PushQueue(RemoteWrite(), Destination(answering.url, tmp_path), lasting, interval=3600.0)
    wait_until(lambda: writer.counts.sent == 1, "one of the second version")
    for count in (2, 3):  # one that is converted, and one that is made so
        writer.write_now()
        wait_until(lambda count=count: writer.counts.sent == count, "one of the first version")
    (_, second), _, *first = reads(answering)
    assert "took_seconds_bucket" not in second and second["took_seconds"][3:7] == (
        "histogram", "Duration", "seconds", 1_000_000
    )  # fmt: skip
    assert [version for version, _ in first] == ["0.1.0"] * 2
    for _, found in ("", second), *first:
        assert found["took_seconds"].value == (10, 9.5, 3, [(-7, 1), (15, 1)], [7, -4])
    writer.close()


def test_prometheus_takes_a_native_histogram(tmp_path: Path, start_prometheus: Callable[..., Server]) -> None:
    server = start_prometheus(None, None, "native-histograms")
    writer = PushQueue(RemoteWrite(), Destination(f"{server.url}/api/v1/write", tmp_path), lasting, interval=3600.0)
    wait_until(lambda: server.query("took_seconds"), "the histogram")
    for share, seconds in ((0.5, 0.5), (0.95, 2.0)):
        assert server.value(f"histogram_quantile({share}, took_seconds)") == pytest.approx(seconds, rel=0.09)
    writer.close()
    assert not server.query("took_seconds")


def test_a_server_that_was_away_is_asked_again_which_version_it_knows(tmp_path: Path) -> None:
    port = free_port()
    old = Answering(port)
    old.answers = [(415, b"", {}), (204, b"", {})]
    numbers = Numbers("a")
    writer = PushQueue(RemoteWrite(), Destination(old.url, tmp_path), numbers, interval=3600.0)
    wait_until(lambda: writer.counts.sent, "the first")
    old.close()
    writer.write_now()
    wait_until(lambda: writer.counts.failed, "the failure")
    new = Answering(port)
    writer.write_now()
    wait_until(lambda: writer.counts.sent == 3, "the rest")
    # The one that waited was made for the old one; a newer one takes it as well.
    assert [version for version, _ in reads(new)] == ["0.1.0", "2.0.0"]
    writer.close()
    new.close()


def test_a_server_that_wrote_less_than_it_accepted_is_reported(
    writers: Callable[..., PushQueue], answering: Answering
) -> None:
    told: list[str] = []
    answering.answers = [(204, b"", {"X-Prometheus-Remote-Write-Samples-Written": "1"})]
    writer = writers(answering.url, Numbers("a", "b"), warn=told.append)
    wait_until(lambda: writer.counts.rejected, "the complaint")
    assert "1 of 3 samples written" in told[0]


def test_a_damaged_request_of_the_spool_holds_up_no_other(
    writers: Callable[..., PushQueue], answering: Answering, tmp_path: Path
) -> None:
    Spool(tmp_path / "spool", 1 << 20).put(b"not snappy", time.time())
    answering.answers = [(400, b"what is that", {}), (204, b"", {})]
    writer = writers(answering.url, Numbers("a"))
    wait_until(lambda: writer.counts.sent == 1 and writer.counts.rejected == 1, "both")

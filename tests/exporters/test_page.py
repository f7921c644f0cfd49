"""One page for all who ask at the same time, and labels that are written once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.utils import floatToGoString
from waiting import PATIENCE

from trainvitals.exporters.families import FamilySeries
from trainvitals.exporters.labels import share
from trainvitals.exporters.page import OPENMETRICS, PROTOBUF, TEXT, SharedPage, content_type, render


class Counted:
    """A family whose only value is how often it was asked for; asking takes as long as the gate is shut."""

    def __init__(self) -> None:
        self.times = 0
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()

    def __call__(self) -> list[Metric]:
        self.begun.set()
        assert self.gate.wait(PATIENCE)
        self.times += 1
        series = FamilySeries("asked", "How often")
        series.add((), self.times)
        return [series.family]


def test_who_asks_later_gets_a_newer_page() -> None:
    page = SharedPage(Counted())
    assert page("")[0].endswith(b"asked 1.0\n") and page("")[0].endswith(b"asked 2.0\n")


def test_all_who_ask_while_one_is_made_share_the_next() -> None:
    counted = Counted()
    page = SharedPage(counted)
    asking = threading.Barrier(20)

    def ask() -> bytes:
        asking.wait(PATIENCE)
        return page("")[0]

    counted.gate.clear()
    with ThreadPoolExecutor(20) as clients:
        first = clients.submit(page, "")
        assert counted.begun.wait(PATIENCE)
        others = [clients.submit(ask) for _ in range(19)]
        asking.wait(PATIENCE)
        time.sleep(0.2)  # until they wait; one that is slower only makes one page more
        counted.gate.set()
        assert first.result()[0].endswith(b"asked 1.0\n")
        pages = {other.result() for other in others}
    assert len(pages) < 19 and not any(body.endswith(b"asked 1.0\n") for body in pages)


def test_each_format_is_a_page_of_its_own() -> None:
    page = SharedPage(Counted())
    assert page("")[1] == TEXT
    body, kind = page("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert kind == OPENMETRICS and body.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/plain", TEXT),
        ("application/openmetrics-text;version=1.0.0;q=0.4,text/plain;q=0.3", OPENMETRICS),
        (f"{PROTOBUF.replace(' ', '')},application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1", PROTOBUF),
        (f"application/openmetrics-text;version=1.0.0;q=0.6,{PROTOBUF};q=0.5", OPENMETRICS),
        ("application/vnd.google.protobuf;encoding=text", TEXT),
        ("application/openmetrics-text;q=often", TEXT),
    ],
)
def test_what_is_wanted_most_is_sent(accept: str, kind: str) -> None:
    assert content_type(accept) == kind


def test_the_same_labels_are_one_object() -> None:
    assert share(("gpu", "host"), ("0", "box")) is share(("gpu", "host"), ("0", "box"))
    assert share(("gpu",), ("0",)) == {"gpu": "0"}


@given(st.one_of(st.floats(), st.integers(-(10**20), 10**20)))
def test_every_number_is_spelled_as_the_library_does(value: float) -> None:
    series = FamilySeries("number", "Any")
    series.add((), value)
    assert render([series.family])[0].decode().splitlines()[-1] == f"number {floatToGoString(value)}"

"""A message arrives once, late rather than never, and a channel that hangs delays nobody."""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, free_port, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from receivers import Receiver

from trainvitals.alerts import messages
from trainvitals.alerts.outbox import Outbox, Patience, Result, carry, hide
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.encoding import format_time
from trainvitals.settings.addresses import Address


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def message(number: int = 1, channels: tuple[str, ...] = ("hook",), age: float = 0.0, **more: Any) -> AlertRow:
    import time

    stamp = format_time(time.time() - age)
    alert = {
        "timestamp": stamp,
        "since": stamp,
        "severity": "critical",
        "message": f"message {number}",
        "advice": "do this",
        "labels": {"gpu_index": 3},
        "value": float("nan"),
        "threshold": 80.0,
        "step": 7,
        **more,
    }
    about = {"run": "r1", "project": "p", "name": "r1", "host": "node", "link": "http://dashboard"}
    body = messages.build("firing", "hot", [AlertRow.parse(alert)], about, f"id-{number}", stamp)
    return AlertRow(timestamp=stamp, outgoing=f"id-{number}", rule="hot", channels=channels, body=body)


def carry_patiently(url: str, body: Mapping[str, Any], **more: Any) -> Result:
    """One attempt, on a machine that may be busy."""
    return carry(url, body, send_seconds=PATIENCE, child_seconds=PATIENCE, **more)


BOXES: list[Box] = []


@pytest.fixture(autouse=True)
def no_box_is_left() -> Iterator[None]:
    """What one test could not send must not arrive at the next one that is given the same port."""
    yield
    while BOXES:
        BOXES.pop().outbox.close()


class Box:
    """An outbox and what it recorded."""

    def __init__(self, *addresses: Address, **more: Any) -> None:
        self.rows: list[AlertRow] = []
        times = {item.name for item in dataclasses.fields(Patience)}
        given = {"first_wait": 0.05, "send_seconds": PATIENCE, "child_seconds": PATIENCE, **more}
        patience = Patience(**{name: value for name, value in given.items() if name in times})
        options = {name: value for name, value in given.items() if name not in times}
        self.outbox = Outbox(addresses, self.rows.append, environment={}.get, patience=patience, **options)
        BOXES.append(self)

    def results(self, channel: str = "hook") -> list[str]:
        return [row.result for row in self.rows if row.channel == channel]


def test_a_webhook_gets_the_documented_body(receiver: Receiver) -> None:
    box = Box(Address("hook", receiver.url))
    box.outbox.add(message())
    wait_until(lambda: box.results() == ["delivered"], "delivery")
    body = receiver.bodies[0]
    expected = {
        "version": 1,
        "id": "id-1",
        "kind": "firing",
        "state": "firing",
        "rule": "hot",
        "severity": "critical",
        "message": "message 1",
        "advice": "do this",
        "run": "r1",
        "project": "p",
        "host": "node",
        "step": 7,
        "value": "NaN",
        "threshold": 80.0,
        "link": "http://dashboard",
        "count": 1,
    }
    assert {key: body[key] for key in expected} == expected
    assert body["alerts"][0]["labels"] == {"gpu_index": 3}
    assert "do this" in body["text"] and "late_seconds" not in body
    assert receiver.requests[0][1]["Content-Type"] == "application/json"


@pytest.mark.promise("a channel is down for a while", "it gets everything, in order")
def test_a_channel_that_was_down_gets_everything_in_order_once_it_is_back() -> None:
    port = free_port()
    box = Box(Address("hook", f"http://127.0.0.1:{port}/hook"))
    for number in range(3):
        box.outbox.add(message(number, age=3600.0))
    wait_until(lambda: "failed" in box.results(), "the first failure")
    receiver = Receiver(port=port)
    wait_until(lambda: box.results().count("delivered") == 3, "delivery of all")
    assert [body["id"] for body in receiver.bodies] == ["id-0", "id-1", "id-2"]
    assert all(
        body["late_seconds"] >= 3600 and " late: the channel was unreachable" in body["text"]
        for body in receiver.bodies
    )
    assert box.results().count("failed") == 1  # said once, not with every attempt
    receiver.close()


def test_an_error_of_the_server_is_tried_again_and_delivered_once() -> None:
    receiver = Receiver(500, 500, 200)
    box = Box(Address("hook", receiver.url))
    box.outbox.add(message())
    wait_until(lambda: "delivered" in box.results(), "delivery")
    assert [body["id"] for body in receiver.bodies] == ["id-1"] * 3
    assert box.rows[-1].attempts == 3
    receiver.close()


def test_a_channel_that_asks_for_patience_gets_it() -> None:
    receiver = Receiver((429, {"Retry-After": "2"}), 200)
    box = Box(Address("hook", receiver.url))
    box.outbox.add(message())
    wait_until(lambda: "delivered" in box.results(), "delivery")
    assert receiver.times[1] - receiver.times[0] >= 2.0
    receiver.close()


@pytest.mark.promise("the clock is set two days ahead", "no message expires")
def test_a_clock_that_is_set_two_days_ahead_makes_no_message_old(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    receiver = Receiver(503, 503, 200)
    box = Box(Address("hook", receiver.url), first_wait=0.5, give_up_after=86400.0)
    box.outbox.add(message())
    wait_until(lambda: "failed" in box.results(), "the first failure")
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 2 * 86400)
    wait_until(lambda: "delivered" in box.results(), "delivery")
    assert "given up" not in box.results()
    assert "late_seconds" not in receiver.bodies[-1]
    receiver.close()


def test_a_refusal_for_good_is_given_up_at_once_and_said() -> None:
    receiver = Receiver(404)
    box = Box(Address("hook", receiver.url))
    box.outbox.add(message())
    wait_until(lambda: box.results() == ["given up"], "giving up")
    assert "404" in box.rows[0].reason
    assert len(receiver.requests) == 1
    receiver.close()


@pytest.mark.promise("a notification channel hangs", "the others get their messages")
def test_a_channel_that_hangs_delays_no_other(receiver: Receiver) -> None:
    hanging = Receiver()
    hanging.hang.set()
    box = Box(Address("stuck", hanging.url), Address("hook", receiver.url))
    for number in range(3):
        box.outbox.add(message(number, ("stuck", "hook")))
    wait_until(lambda: box.results("hook").count("delivered") == 3, "delivery beside a channel that hangs")
    assert box.results("stuck") == []
    assert box.outbox.waiting == 3
    hanging.close()


@pytest.mark.promise("the delivery process hangs", "it is killed and retried")
def test_a_child_that_hangs_is_ended(receiver: Receiver) -> None:
    receiver.hang.set()
    result = carry(receiver.url, message().body, send_seconds=PATIENCE, child_seconds=2.0)
    assert not result.sent
    assert "no response" in result.reason


def test_adding_a_message_waits_for_nothing() -> None:
    receiver = Receiver()
    receiver.hang.set()
    box = Box(Address("hook", receiver.url))
    before = threading.active_count()
    for number in range(200):
        box.outbox.add(message(number))
    assert box.outbox.waiting == 200
    assert threading.active_count() <= before + 2  # one thread a channel, whatever waits
    receiver.close()


def test_what_could_not_be_delivered_in_time_is_given_up_and_said() -> None:
    box = Box(Address("hook", "http://127.0.0.1:1/hook"), give_up_after=10.0)
    box.outbox.add(message(age=11.0))
    wait_until(lambda: "given up" in box.results(), "giving up")
    assert box.outbox.close(PATIENCE)


def test_a_channel_that_nobody_configured_is_said() -> None:
    box = Box()
    box.outbox.add(message())
    assert box.results() == ["given up"]
    assert "unknown channel 'hook'" in box.rows[0].reason


def test_a_missing_secret_is_said_by_name_and_waited_for(receiver: Receiver) -> None:
    box = Box(Address("hook", "env:WEBHOOK_URL"))
    box.outbox.add(message())
    wait_until(lambda: "failed" in box.results(), "failure")
    assert "WEBHOOK_URL is not set" in box.rows[0].reason
    box.outbox.close()


def test_a_wrong_address_is_said_without_its_secret() -> None:
    box = Box(Address("hook", "slack://not-a-token-but-a-secret-of-some-kind"))
    box.outbox.add(message())
    wait_until(lambda: "given up" in box.results(), "giving up")
    assert "cannot parse" in box.rows[-1].reason
    assert "secret-of-some-kind" not in repr(box.rows)


def test_errors_do_not_quote_the_address() -> None:
    url = "https://example.org/services/T0AAAAAAA/verysecrettoken?key=anothersecret"
    text = f"cannot reach {url}: bad token verysecrettoken (anothersecret)"
    shown = hide(text, url)
    assert "verysecrettoken" not in shown and "anothersecret" not in shown


def test_apprise_that_is_not_installed_is_named_with_the_command(tmp_path: Path) -> None:
    import json
    import subprocess

    (tmp_path / "apprise.py").write_text("raise ImportError('not here')")
    job = json.dumps({"url": "ntfy://topic", "body": message().body}, default=str)
    script = "import sys; sys.path.insert(0, sys.argv[1]); from trainvitals.alerts.courier import main; main()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, input=job, capture_output=True, text=True, check=True)
    assert "pip install 'trainvitals[notify]'" in json.loads(done.stdout)["reason"]

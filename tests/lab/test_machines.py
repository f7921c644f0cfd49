"""One machine: whatever its far side answers, this process goes on and says what is wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from trainvitals.errors import MachineError, TrainvitalsError
from trainvitals.lab import machines, messages
from trainvitals.lab.channels import check
from trainvitals.lab.machines import Machine
from trainvitals.lab.messages import Message
from trainvitals.lab.places import parse_place
from trainvitals.lab.runs import MachineRuns
from trainvitals.views.data.machines import describe_machines
from trainvitals.views.data.run_listing import list_json

Answers = Mapping[str, Any]
HELLO = {"protocol": messages.PROTOCOL, "version": "1.2.3", "host": "far", "place": "/runs"}
INFO = {"id": "one", "name": "one", "project": "p", "status": "running", "file": {"id": "one"}}


class Scripted:
    """A channel that answers by question."""

    is_open = True

    def __init__(self, answers: Answers | Callable[[str], Any]) -> None:
        self._answers = answers

    def ask(self, question: Mapping[str, Any], seconds: float) -> Message:
        asked = question["ask"]
        found = self._answers(asked) if callable(self._answers) else self._answers.get(asked, {})
        if isinstance(found, Exception):
            raise found
        return check(found if isinstance(found, Message) else Message(found))

    def close(self) -> None: ...


def watch(answers: Answers) -> MachineRuns:
    machine = Machine(parse_place("gpu1"), lambda: Scripted({"hello": HELLO, **answers}), interval=0.01)
    runs = MachineRuns([machine])
    runs.start()
    runs.wait(600)
    return runs


def test_what_it_says_about_itself_is_one_safe_line() -> None:
    runs = watch({"hello": {**HELLO, "version": "1\x1b[2J\n2" * 100, "host": "x" * 10_000, "place": 7}})
    state = runs.states[0]
    assert state.word == "up" and "\x1b" not in state.version and "\n" not in state.version
    assert len(state.version) <= 200 and len(state.host) <= 200 and state.place == ""
    runs.stop()


def test_keys_that_come_from_no_folder_are_left_out() -> None:
    rows = [{"key": key, "info": INFO} for key in ("good", "../x", "a/b", "", "a\x1b", "x" * 300, 7, None)]
    runs = watch({"list": {"order": [row["key"] for row in rows], "changed": rows}})
    assert runs.list_keys() == ["gpu1:good"]
    runs.stop()


@pytest.mark.promise(
    "another machine answers that its list goes on, again and again", "it is up, and asked every few seconds as ever"
)
@pytest.mark.parametrize("changed", [[], [{"key": "one", "info": INFO}]], ids=["without runs", "with the same run"])
def test_a_list_without_an_end_comes_to_one(changed: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MOST_RUNS", 50)
    runs = watch({"list": {"order": ["one"], "changed": changed, "more": True}})
    wait_until(lambda: runs.states[0].word == "up", "an end of the list")
    assert runs.list_keys() == (["gpu1:one"] if changed else [])
    runs.stop()


@pytest.mark.promise("another machine says more of its runs than there is memory for", "what fits is kept")
def test_a_list_is_kept_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "MOST_BYTES", 10_000)
    rows = [{"key": f"run{number}", "info": INFO, "statuses": ["x" * 1000]} for number in range(100)]
    runs = watch({"list": {"order": [row["key"] for row in rows], "changed": rows}})
    assert 5 < len(runs.list_keys()) < 10
    runs.stop()


JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=8,
)
NAMES = (
    "key",
    "info",
    "statuses",
    "alerts",
    "findings",
    "summary",
    "file",
    "id",
    "status",
    "started",
    "attempt",
    "cause",
)


@settings(max_examples=60)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), JUNK), max_size=3),
    st.dictionaries(st.sampled_from(("samples", "reasons", "origin", "age", "agent", "now")), JUNK),
    st.dictionaries(st.sampled_from(("gpu_name", "gpu_index", "mig_index", "simulated", "state")), JUNK),
)
def test_a_hostile_machine_harms_nothing(rows: list[Any], hardware: dict[str, Any], gpu: dict[str, Any]) -> None:
    rows = [{**row, "key": f"run{number}"} for number, row in enumerate(rows)]
    sample = {"table": "gpu", "labels": gpu, "values": {**gpu, "utilization_percent": gpu.get("state")}}
    hardware = {"samples": {"nvidia:0": sample}, **hardware}
    machine = Machine(parse_place("gpu1"), lambda: Scripted({}))
    listed = Message({"order": [row["key"] for row in rows], "changed": rows})
    machine._take_list(messages.decode(messages.encode(listed)).json, fresh=True)
    machine._hardware = machines.MachineHardware.parse(messages.decode(messages.encode(Message(hardware))).json)
    runs = MachineRuns([machine])
    keys = runs.list_keys()
    assert len(keys) == len(rows)
    list_json(runs, keys)
    described = describe_machines(runs)["machines"][0]
    messages.encode(Message(dict(described)))


READS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("info", lambda run: run.info),
    ("statuses", lambda run: run.statuses()),
    ("series", lambda run: run.series(["loss"])),
    ("states", lambda run: run.states(["x"])),
    ("summary", lambda run: run.summary()),
    ("newest_steps", lambda run: run.newest_steps(3)),
    ("first_steps", lambda run: run.first_steps()),
    ("events", lambda run: run.events()),
    ("benchmarks", lambda run: run.benchmarks()),
    ("rows", lambda run: list(run.rows())),
    ("poll", lambda run: run.follow().poll()),
    ("texts", lambda run: run.texts("console")),
    ("read_text", lambda run: run.read_text("console", "x", 10)),
    ("patches", lambda run: run.patches()),
    ("media", lambda run: run.media()),
    ("damage", lambda run: run.damage()),
    ("extent", lambda run: run.extent()),
    ("participants", lambda run: run.participants()),
)


@settings(max_examples=30)
@given(JUNK, st.binary(max_size=40))
def test_an_answer_that_makes_no_sense_is_an_error_or_nothing(junk: Any, rest: bytes) -> None:
    answer = Message({"is": junk, **(junk if isinstance(junk, dict) else {}), "series": junk, "error": None}, rest)
    answer = messages.decode(messages.encode(answer))
    machine = Machine(parse_place("gpu1"), lambda: Scripted(lambda asked: HELLO if asked == "hello" else answer))
    machine._word = "up"
    for _, read in READS:
        try:
            read(machine.open("one"))
        except TrainvitalsError:
            pass  # said


def test_fewer_numbers_than_announced_are_an_error() -> None:
    series = {"name": "loss", "labels": {}, "points": 3}
    answers = {"hello": HELLO, "series": Message({"series": [series]}, b"\0" * 40)}
    machine = Machine(parse_place("gpu1"), lambda: Scripted(answers))
    machine._word = "up"
    with pytest.raises(MachineError, match="fewer numbers"):
        machine.open("one").series(["loss"])


def test_pauses_become_longer_until_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    is_well = threading.Event()

    def connect() -> Scripted:
        if len(pauses) < 9:
            raise MachineError("no route to host", hint="switch it on")
        is_well.set()
        return Scripted({"hello": HELLO})

    machine = Machine(parse_place("gpu1"), connect, interval=0.01)
    monkeypatch.setattr(machine._ended, "wait", lambda seconds: pauses.append(seconds))
    machine.start()
    is_well.wait()
    wait_until(lambda: machine.state.word == "up", "it to be up")
    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    machine.stop()


def test_why_it_is_down_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Scripted:
        raise MachineError("no route to host", hint="switch it on")

    machine = Machine(parse_place("gpu1"), refuse)
    machine.start()
    assert machine.wait(600)
    assert (machine.state.word, machine.state.detail, machine.state.hint) == (
        "down",
        "no route to host",
        "switch it on",
    )
    with pytest.raises(MachineError, match="gpu1 is down: no route to host"):
        machine.open("one").names()
    machine.stop()


def test_a_command_that_prints_once_waits_for_a_machine_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose next list hangs while a run of it is asked for."""
    listed, go_on = threading.Event(), threading.Event()

    def answer(asked: str) -> Any:
        if asked == "list" and listed.is_set():
            go_on.wait()
        if asked == "hardware":
            listed.set()
        return {"hello": HELLO, "list": {"order": ["one"], "changed": [{"key": "one", "info": INFO}]}}.get(asked, {})

    monkeypatch.setattr(machines, "SLOW_SECONDS", 0.0)
    for patient in (False, True):
        listed.clear()
        machine = Machine(parse_place("gpu1"), lambda: Scripted(answer), interval=0.01, patient=patient)
        runs = MachineRuns([machine])
        runs.start()
        runs.wait(600)
        wait_until(lambda state=machine: state.state.word == "slow", "a question that is not answered")  # type: ignore[misc]
        reader = runs.open("gpu1:one")
        if patient:
            assert list(reader.findings() or ()) == []
        else:
            with pytest.raises(MachineError, match="gpu1 is slow"):
                reader.findings()
        runs.stop()
    go_on.set()

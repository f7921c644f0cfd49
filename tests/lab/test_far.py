"""The far side: answers everything, changes nothing, and does not stumble over a question."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from far_runs import make_run
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.lab import far as far_module
from trainvitals.lab import messages
from trainvitals.lab.far import FarSide, FoldersHere, encode_answer
from trainvitals.lab.messages import Message


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> FarSide:
    root = tmp_path_factory.mktemp("runs")
    make_run(root, "one")
    return FarSide(FolderRuns(root), dict)


def ask(side: FarSide, **question: Any) -> Any:
    return messages.decode(encode_answer(side, question)).json


ANYTHING = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text(), max_size=3)


PARAMETERS = (
    *("run", "table", "names", "x", "start", "end", "max_points", "participant", "participants", "all_attempts"),
    *("attempt", "at", "tables", "extent", "skip", "count", "limit", "after", "file", "kind", "name", "fresh"),
)


@given(
    st.sampled_from([*far_module._OF_A_RUN, "list", "hardware", "hello", "nothing"]),
    st.dictionaries(
        st.sampled_from(PARAMETERS),
        ANYTHING,
    ),
    st.booleans(),
)
def test_every_question_has_an_answer(side: FarSide, asked: str, more: dict[str, Any], real: bool) -> None:
    question = {**more, "ask": asked, "id": 7, **({"run": "one"} if real else {})}
    answer = messages.decode(encode_answer(side, question))
    assert answer.json["id"] == 7


def test_what_is_asked_wrongly_is_said(side: FarSide) -> None:
    assert "unknown question" in ask(side, ask="rm", run="one")["error"]["message"]
    assert "about no run" in ask(side, ask="names")["error"]["message"]
    assert "'table' must be" in ask(side, ask="names", run="one", table="../secret")["error"]["message"]
    assert ask(side, ask="names", run="none")["error"]["kind"] == "RunNotFound"
    assert ask(side, ask="names", run="../../etc")["error"]["kind"] == "RunNotFound"
    assert ask(side, ask="read_text", run="one", name="../run.json", limit=9)["error"]["kind"] == "JournalError"
    assert ask(side, ask="read_medium", run="one", file="../run.json")["error"]["kind"] == "JournalError"


def test_an_answer_that_is_too_large_says_so(side: FarSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_REST", 10)
    assert "too large" in ask(side, ask="series", run="one", names=["loss"])["error"]["message"]


def test_a_list_has_what_changed_and_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        make_run(tmp_path, f"run{number}", at=1_800_000_000.0 + number)
    monkeypatch.setattr(far_module, "LISTED_BYTES", 1)
    side = FarSide(FolderRuns(tmp_path), dict)
    keys = [f"run{number}" for number in range(5)]
    first = ask(side, ask="list", fresh=True)
    assert (first["order"], [row["key"] for row in first["changed"]], first["more"]) == (keys, ["run4"], True)
    found = []
    while True:
        answer = ask(side, ask="list")
        assert "order" not in answer
        found += [row["key"] for row in answer["changed"]]
        if not answer["more"]:
            break
    assert found == ["run3", "run2", "run1", "run0"]
    assert ask(side, ask="list")["changed"] == []
    assert len(ask(side, ask="list", fresh=True)["order"]) == 5


def test_a_run_of_which_too_much_is_known_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run(tmp_path, "one", config={"text": "x" * 5000})
    monkeypatch.setattr(far_module, "MOST_OF_A_RUN", 2000)
    (row,) = ask(FarSide(FolderRuns(tmp_path), dict), ask="list", fresh=True)["changed"]
    assert row["info"]["status"] == "unreadable" and "room" in row["info"]["cause"]["detail"]


def test_runs_of_other_folders_are_found_while_something_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    make_run(tmp_path / "usual", "one")
    folder = make_run(tmp_path / "elsewhere", "two")
    runs = FoldersHere(tmp_path / "usual")
    assert runs.list_keys() == ["one"]
    place = registrations.register(
        Registration.parse({"run_id": "two", "folder": str(folder), "pid": os.getpid(), "rank": 0, "host": "h"})
    )
    assert runs.list_keys() == ["one", "two"]
    place.unlink()
    assert runs.list_keys() == ["one", "two"], "it is still there after its end"
    assert runs.describe("two").name == "two" and runs.open("two").names() == ["loss"]


def test_as_a_command_it_greets_answers_and_ends_with_the_other_end(tmp_path: Path) -> None:
    make_run(tmp_path, "one")
    before = sorted(tmp_path.rglob("*"))
    questions = b"".join(
        messages.encode(Message({"ask": asked, "id": number, "fresh": True}))
        for number, asked in enumerate(["hello", "list"])
    )
    words = [sys.executable, "-m", "trainvitals.views.cli.main", "reader", "--dir", str(tmp_path)]
    done = subprocess.run(words, input=questions, capture_output=True)
    assert done.returncode == 0, done.stderr
    greeting, _, rest = done.stdout.partition(b"\n")
    assert greeting == b"trainvitals reader 1"
    size = len(messages.encode(messages.read(_reader_of(rest))))
    hello, listed = messages.decode(rest[:size]), messages.decode(rest[size:])
    assert hello.json["protocol"] == messages.PROTOCOL and hello.json["place"] == str(tmp_path)
    assert [row["key"] for row in listed.json["changed"]] == ["one"]
    assert sorted(tmp_path.rglob("*")) == before, "nothing was written"


def _reader_of(data: bytes) -> Any:
    import io

    return io.BytesIO(data).read


HELLO = messages.encode(Message({"ask": "hello", "id": 1}))
JUNK = {
    "another protocol": (b"GET / HTTP/1.1\r\n\r\n" * 10, 1, b"not a trainvitals message"),
    "an endless line": (b"a" * (4 << 20), 1, b"not a trainvitals message"),
    "a question that announces gigabytes": (struct.pack(">4sII", b"tvr1", 2**32 - 1, 0), 1, b"larger than allowed"),
    "a question with bytes behind it": (struct.pack(">4sII", b"tvr1", 2, 9) + b"{}" + b"x" * 9, 1, b"larger than"),
    "nesting without end": (struct.pack(">4sII", b"tvr1", 1 << 20, 0) + b"[" * (1 << 20), 1, b"not JSON"),
    "half a question": (HELLO + HELLO[:-3], 0, b""),
    "half a head": (HELLO + b"tvr", 0, b""),
}


@pytest.mark.parametrize("name", JUNK)
@pytest.mark.promise(
    "questions to `trainvitals reader` that are garbage, endless, huge or cut off", "it ends at once, with the reason"
)
def test_junk_on_standard_input_ends_it(tmp_path: Path, name: str) -> None:
    data, code, reason = JUNK[name]
    words = [sys.executable, "-m", "trainvitals.views.cli.main", "reader", "--dir", str(tmp_path)]
    done = subprocess.run(words, input=data, capture_output=True)
    assert done.returncode == code and reason in done.stderr and b"Traceback" not in done.stderr

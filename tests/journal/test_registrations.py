"""Registrations, from the process that leaves one to the agent that reads it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import PhaseNote, Registration, new_registration


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


@pytest.mark.parametrize(("kind", "rank"), [("training", 0), ("training", 3), ("command", 0), ("monitor", 0)])
def test_a_registration_is_read_as_it_was_left(tmp_path: Path, kind: str, rank: int) -> None:
    left = new_registration(tmp_path, os.getpid(), kind=kind, rank=rank, settings={"interval": 1.0})
    path = registrations.register(left)
    ((where, found),) = registrations.read_all()
    assert where == path
    assert found.as_json() == left.as_json() and found.is_same(left)


@pytest.mark.parametrize(("key", "value"), [("pid", "many"), ("rank", None), ("folder", 3), ("settings", [])])
def test_one_that_does_not_say_which_process_is_ignored(tmp_path: Path, key: str, value: object) -> None:
    path = registrations.register(new_registration(tmp_path, os.getpid()))
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    assert Registration.read(path) is None and registrations.read_all() == []


def test_how_a_process_ended_is_noted_unless_the_agent_has_removed_it(tmp_path: Path) -> None:
    left = new_registration(tmp_path, os.getpid())
    path = registrations.register(left)
    said = registrations.note_end(path, left, "finished")
    ((_, found),) = registrations.read_all()
    assert found.goodbye == "finished"
    registrations.note_phase(path, said, PhaseNote(name="gen", since=1.0))
    ((_, found),) = registrations.read_all()
    assert found.goodbye == "finished"  # a loop that Ray is about to end may still report
    registrations.unregister(path, left)
    registrations.note_end(path, left, "finished")
    assert registrations.read_all() == []


def test_the_variables_that_hide_gpus_are_registered(tmp_path: Path) -> None:
    hidden = {"CUDA_VISIBLE_DEVICES": "0", "ZE_AFFINITY_MASK": ""}
    left = new_registration(tmp_path, os.getpid(), environ={**hidden, "HOME": "/root"})
    registrations.register(left)
    ((_, found),) = registrations.read_all()
    assert found.visible_devices == hidden


def test_the_one_variable_that_the_version_before_registered_is_read(tmp_path: Path) -> None:
    path = registrations.register(new_registration(tmp_path, os.getpid(), environ={}))
    path.write_text(json.dumps({**json.loads(path.read_text()), "cuda_visible_devices": "2,3"}))
    ((_, found),) = registrations.read_all()
    assert found.visible_devices == {"CUDA_VISIBLE_DEVICES": "2,3"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "cuda_visible_devices": None}))
    ((_, found),) = registrations.read_all()
    assert found.visible_devices == {}

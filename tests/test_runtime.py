"""Where the trainer, the commands and the agent find each other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import trainvitals
from trainvitals import runtime
from trainvitals.errors import AgentError
from trainvitals.journal import registrations
from trainvitals.journal.documents.registration import Registration

NOBODY = 2**22 + 1
"""No process has this number."""


def test_a_signal_that_is_not_caught_is_known_as_such() -> None:
    source = "import sys; print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    assert not runtime.catches_signal(process.pid, signal.SIGUSR1)
    assert runtime.catches_signal(process.pid, signal.SIGINT)  # Python's own
    assert not runtime.catches_signal(NOBODY, signal.SIGINT)
    process.communicate()


def test_a_registration_written_anew_is_not_taken_away_with_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    old = Registration(run_id="run", folder="/folder", rank=0, pid=NOBODY, pid_start=1.0, host="host")
    path = registrations.register(old)
    newer = replace(old, pid=os.getpid())
    registrations.register(newer)
    registrations.unregister(path, old)
    assert registrations.read_all() == [(path, newer)]
    registrations.unregister(path, newer)
    assert registrations.read_all() == [] and list((tmp_path / "runs").iterdir()) == []


def test_files_that_are_no_registrations_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path))
    mine = Registration(run_id="run", folder="/folder", rank=0, pid=NOBODY, pid_start=None, host="host")
    path = registrations.register(mine)
    for name, text in (("torn.json", '{"run_id"'), ("list.json", "[]"), ("old.json", '{"run_id": "a"}')):
        (path.parent / name).write_text(text)
    for number, wrong in enumerate(({"run_id": 7}, {"folder": None}, {"pid": "1"}, {"rank": 0.5}, {"settings": []})):
        (path.parent / f"wrong{number}.json").write_text(json.dumps({**asdict(mine), **wrong}))
    assert registrations.read_all() == [(path, mine)]


def test_a_runtime_folder_that_cannot_be_made_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", "/proc/nope")
    with pytest.raises(AgentError) as caught:
        runtime.runtime_dir()
    assert "/proc/nope" in caught.value.message
    assert "TRAINVITALS_RUNTIME_DIR" in str(caught.value.hint)
    assert not runtime.agent_is_alive()


@pytest.mark.promise("no runtime folder can be made", "the training loses no line")
def test_a_runtime_folder_that_cannot_be_made_costs_no_line_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", "/proc/nope")
    monkeypatch.setattr("trainvitals.trainer.presence.AGENT_CHECK_SECONDS", 0.0)  # at the first line of every second
    with trainvitals.init(dir=tmp_path) as run:
        run.log({"loss": 1.0}, step=0)
    (file,) = run.folder.glob("training_metrics_*")
    assert len(file.read_text().splitlines()) == 1
    said = capfd.readouterr().err
    assert "/proc/nope" in said and "TRAINVITALS_RUNTIME_DIR" in said


def test_tests_never_meet_the_runtime_folder_of_the_user() -> None:
    assert os.environ["TRAINVITALS_RUNTIME_DIR"] and "trainvitals-tests-" in str(runtime.runtime_dir())


def test_the_variables_that_hide_gpus_are_registered_whichever_vendor_reads_them() -> None:
    environ = {
        "CUDA_VISIBLE_DEVICES": "0",
        "ZE_AFFINITY_MASK": "0.1",
        "ACME_VISIBLE_DEVICES": "",
        "NEURON_RT_VISIBLE_CORES": "0-3",
        "HOME": "/root",
    }
    assert runtime.visible_devices(environ) == {name: text for name, text in environ.items() if name != "HOME"}

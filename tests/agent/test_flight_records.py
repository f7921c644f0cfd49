"""Dumps of PyTorch's flight recorder: JSON is read, a pickle is only named."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from trainvitals.agent.flight_records import LARGEST, find_record

NAMES = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")


@pytest.mark.parametrize("name", NAMES)
def test_the_last_collective_of_a_dump_in_json_is_described(tmp_path: Path, name: str) -> None:
    entries = [
        {"profiling_name": "gloo:broadcast", "collective_seq_id": 4, "retired": True},
        {"profiling_name": "gloo:all_reduce", "collective_seq_id": 7, "state": "scheduled", "retired": False},
    ]
    path = tmp_path / "trace_2"
    path.write_text(json.dumps({"version": "2.10", "entries": entries}))
    found = find_record({name: str(tmp_path / "trace_")}, 2, 0.0)
    assert found == f"rank 2: last collective gloo:all_reduce number 7, not done ({path})"


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (3,)


@pytest.mark.promise("a pickle where PyTorch's flight recorder dumps", "it is reported and never loaded")
def test_a_pickle_is_named_and_never_loaded(tmp_path: Path) -> None:
    (tmp_path / "trace_0").write_bytes(pickle.dumps(Evil()))
    assert find_record({NAMES[0]: str(tmp_path / "trace_")}, 0, 0.0) == f"rank 0: {tmp_path}/trace_0"


@pytest.mark.parametrize("text", ["{", "{}", '{"entries": 3}', '{"entries": [1, {}]}', ""])
def test_a_damaged_dump_is_only_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "trace_0").write_text(text)
    assert str(tmp_path / "trace_0") in str(find_record({NAMES[0]: str(tmp_path / "trace_")}, 0, 0.0))


@pytest.mark.promise(
    "a pipe, or a file of another user, where PyTorch's flight recorder dumps", "it is neither waited for nor believed"
)
@pytest.mark.parametrize("kind", ["pipe", "foreign", "large"])
def test_what_somebody_else_put_there_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "trace_0"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "large":
        path.write_bytes(b"{" * (LARGEST + 1))
    else:
        path.write_text(json.dumps({"entries": [{"profiling_name": "forged", "collective_seq_id": 1}]}))
        path.chmod(0o666)
    named = f"rank 0: {path}" if kind == "large" else None
    assert find_record({NAMES[0]: str(tmp_path / "trace_")}, 0, 0.0) == named


def test_without_a_dump_of_this_run_there_is_nothing_to_say(tmp_path: Path) -> None:
    variables = {NAMES[0]: str(tmp_path / "trace_")}
    assert find_record({}, 0, 0.0) is None and find_record(variables, 0, 0.0) is None
    (tmp_path / "trace_0").write_text("{}")
    os.utime(tmp_path / "trace_0", (1000.0, 1000.0))
    assert find_record(variables, 0, 2000.0) is None

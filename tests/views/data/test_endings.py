"""How real programs ended, read from their run folders, and from runs that are no folders."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_runs import START, make_run, write
from memory_runs import MemoryReader, MemoryRun

from trainvitals.conditions import Conditions
from trainvitals.journal import folder as run_folder
from trainvitals.journal.documents.cause import EXCEPTION, SIGNAL, STALLED, Cause
from trainvitals.journal.documents.status import Status
from trainvitals.journal.encoding import format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.diagnosis import describe_diagnosis
from trainvitals.views.data.endings import read_ending

PROGRAM = """
import sys
import trainvitals
run = trainvitals.init(dir=sys.argv[1], project="p", agent=False, stack_dumps=False, capture_git=False)
{0}
"""
SHAPES = """
import torch
model = torch.nn.Linear(3, 4)
def step(batch):
    return model(batch)
for number in range(5):
    run.log({"loss": step(torch.ones(2, 3 if number < 3 else 5)).sum().item()}, step=number)
"""
WORKER = """
import os, signal, torch
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.zeros(1)
for batch in torch.utils.data.DataLoader(Data(), num_workers=1):
    run.log({"loss": 1.0})
"""


def run_program(folder: Path, body: str) -> Path:
    subprocess.run([sys.executable, "-c", PROGRAM.format(body), str(folder)], capture_output=True, check=False)
    (found,) = (folder / "p").iterdir()
    return found


def find_ending(reader: Any) -> dict[str, Any]:
    (found,) = [
        item for item in describe_diagnosis(reader, Conditions())["findings"] if item["rule"].startswith("end.")
    ]
    return dict(found)


def test_a_wrong_shape_in_a_real_training_is_named_with_its_step_and_line(tmp_path: Path) -> None:
    found = find_ending(RunReader(run_program(tmp_path, SHAPES)))
    assert found["rule"] == "end.shape_mismatch" and found["step"] == 2 and found["severity"] == "critical"
    assert "shapes cannot be multiplied (2x5 and 3x4)" in found["evidence"][0]
    assert 'File "<string>", line 9 in step' in found["evidence"][1]


def test_a_killed_worker_of_a_real_loader_is_named(tmp_path: Path) -> None:
    found = find_ending(RunReader(run_program(tmp_path, WORKER)))
    assert found["rule"] == "end.loader_worker"


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ("open('/nowhere/data.bin')", "end.missing_file"),
        ("import no_such_module", "end.missing_module"),
        ("raise KeyboardInterrupt", "end.interrupted"),
        ("open('/dev/full', 'w').write('x' * 100_000)", "end.disk_full"),
        ("with run: sys.exit('the answer is wrong')", "end.unexplained"),
        ("import os; os.kill(os.getpid(), 9)", "end.unexplained"),  # nobody was there to see the signal
    ],
)
def test_real_programs_that_fail_have_a_finding(tmp_path: Path, body: str, rule: str) -> None:
    folder = run_program(tmp_path, body)
    found = find_ending(RunReader(folder))
    assert found["rule"] == rule and found["advice"]
    if RunReader(folder).info.file.is_over:  # a run in memory has no process that could be seen to be gone
        assert find_ending(MemoryReader("r", {"r": MemoryRun.of_folder(folder)})) == found


def test_a_run_that_ends_well_has_none_and_nothing_is_read_for_it(tmp_path: Path) -> None:
    reader = RunReader(run_program(tmp_path, "run.log({'loss': 1.0})"))
    assert read_ending(reader).status == "finished"
    assert not [
        item for item in describe_diagnosis(reader, Conditions())["findings"] if item["rule"].startswith("end.")
    ]


def make_ended(folder: Path, cause: Cause, **more: Any) -> Path:
    ended = {"status": "killed", "ended": format_time(START + 100), "cause": str(cause), "reason": cause.as_json()}
    return make_run(folder, **{**ended, **more})


def event(name: str, **more: Any) -> dict[str, Any]:
    return {"event": name, "message": name, **more}


def test_what_was_printed_last_and_the_hosts_are_read(tmp_path: Path) -> None:
    cause = Cause(kind=EXCEPTION, exception="ValueError", detail="ValueError: x", rank=1)
    folder = make_ended(tmp_path / "p" / "run", cause, world_size=2, environment={"SLURM_JOB_ID": "7"}, last_step=41)
    (folder / "console.rank0.log").write_text("early\n" * 1000 + "the end\n")
    for rank, name in enumerate(("node1", "node2")):
        ranks = {str(rank): {"pid": 1, "step": 41}}
        run_folder.write_status(folder, Status.parse({"host": name, "attempt": 1, "ranks": ranks}), name)
    failed = [event("failed", rank=rank, data={"traceback": f"of rank {rank}"}) for rank in (0, 1)]
    write(folder, failed, "events_20260101_000000")
    found = read_ending(RunReader(folder))
    assert found.printed.endswith("the end") and found.printed.count("early") < 100
    assert (found.host, found.step, found.seconds, found.world_size) == ("node2", 41, 100.0, 2)
    assert found.traceback == "of rank 1" and found.job == "Slurm job 7"


def test_a_rule_that_stopped_the_run_is_its_sender(tmp_path: Path) -> None:
    folder = make_ended(tmp_path / "p" / "run", Cause(kind=SIGNAL, signal="SIGTERM"))
    stop = {"action": "stop", "rule": "loss_not_finite", "result": "SIGTERM sent", "pids": [7]}
    write(folder, [stop], "alerts_20260101_000000")
    assert "by the action of the alert rule loss_not_finite" in find_ending(RunReader(folder))["evidence"][-1]


def test_a_hang_is_read_from_the_events_of_all_hosts_unless_it_went_on(tmp_path: Path) -> None:
    stalled = Cause(kind=STALLED, seconds=12.0, detail="somewhere", rank=0)
    folder = make_ended(tmp_path / "p" / "run", Cause(kind=SIGNAL, signal="SIGKILL", before="hung"))
    data = {"reason": stalled.as_json(), "main_threads": {"0": ["a"], "1": ["b"]}, "flight_records": ["a file"]}
    write(folder, [event("stalled", rank=0, data=data)], "events_20260101_000000.host-a", START)
    other = {"reason": stalled.as_json(), "main_threads": {"2": ["c"]}}
    write(folder, [event("stalled", rank=2, data=other)], "events_20260101_000000.host-b", START + 1)
    write(folder, [event("hung", rank=0)], "events_20260101_000000.host-a", START + 2)
    found = read_ending(RunReader(folder))
    assert found.stall == stalled and list(found.flight_records) == ["a file"]
    assert found.stacks == {Participant(rank=rank): (frame,) for rank, frame in enumerate("abc")}
    assert find_ending(RunReader(folder))["rule"] == "end.hang"
    write(folder, [event("recovered", rank=0)], "events_20260101_000000.host-a", START + 3)
    assert read_ending(RunReader(folder)).stall is None
    assert find_ending(RunReader(folder))["rule"] == "end.killed"

"""Where a process hangs."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import runtime
from trainvitals.agent import stacks
from trainvitals.agent.stacks import collect_stacks, parse_main_thread, parse_py_spy
from trainvitals.journal.documents.registration import Registration
from trainvitals.trainer import stacks as trainer_stacks

FAULTHANDLER = """Thread 0x00007f1 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "loader.py", line 7 in work

Current thread 0x00007f0 (most recent call first):
  File "train.py", line 12 in wait_for_batch
  File "train.py", line 40 in <module>
"""

PY_SPY = """Process 4711: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4711 (idle): "MainThread"
    wait_for_batch (train.py:12)
    <module> (train.py:40)
Thread 4712 (idle): "loader"
    work (loader.py:7)
"""

STUCK = """
import sys, time
def wait_for_batch():
    print("ready", flush=True)
    time.sleep(600)
wait_for_batch()
"""


PYTHON = sys.executable


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may give a process, or py-spy, its turn late."""
    monkeypatch.setattr(stacks, "WAIT_SECONDS", PATIENCE)
    monkeypatch.setattr(stacks, "PY_SPY_SECONDS", PATIENCE)


@pytest.fixture
def without_py_spy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/nowhere")


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([PYTHON, "-c", script, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline().strip() == "ready"
    return process


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def registration(folder: Path, process: subprocess.Popen[str], **more: Any) -> Registration:
    return Registration(
        run_id="r",
        folder=str(folder),
        rank=0,
        pid=process.pid,
        pid_start=runtime.process_start(process.pid),
        host="here",
        **more,
    )


def test_the_main_thread_is_found_in_a_dump_of_faulthandler() -> None:
    assert parse_main_thread(FAULTHANDLER)[0] == 'File "train.py", line 12 in wait_for_batch'
    without_current = FAULTHANDLER.replace("Current thread", "Thread")
    assert parse_main_thread(without_current)[0] == 'File "train.py", line 12 in wait_for_batch'
    assert parse_main_thread("") == ()


def test_the_main_thread_is_found_in_a_dump_of_py_spy() -> None:
    frames = ('File "train.py", line 12 in wait_for_batch', 'File "train.py", line 40 in <module>')
    assert parse_py_spy(PY_SPY) == {4711: frames}
    assert parse_py_spy(PY_SPY.replace(': "MainThread"', "")) == {4711: frames}
    other = PY_SPY.replace("4711", "4713").replace("12", "8").replace("train", "work")
    both = parse_py_spy(f"{PY_SPY}\n{'-' * 80}\n{other}")
    assert both[4711] == frames and both[4713][0] == 'File "work.py", line 8 in wait_for_batch'
    assert parse_py_spy("no threads here") == {}


def test_a_process_is_read_from_outside_and_not_sent_the_signal(tmp_path: Path) -> None:
    process = start(STUCK)
    (tmp_path / "stacks").mkdir()
    # It does not catch the signal, and would die of it.
    lie = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(tmp_path / "stacks" / "0.txt"))
    found = collect_stacks(lie, None, "sleeping", may_signal=True)
    assert process.poll() is None and found.path is not None
    assert "wait_for_batch" in found.path.read_text() and "wait_for_batch" in found.extract[0]
    stop(process)


@pytest.mark.usefixtures("without_py_spy")
def test_a_process_that_does_not_catch_the_signal_is_never_sent_it(tmp_path: Path) -> None:
    process = start(STUCK)
    lie = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(tmp_path / "0.txt"))
    found = collect_stacks(lie, None, "sleeping", may_signal=True)
    assert process.poll() is None and found.path is None and "pip install" in (found.note or "")
    stop(process)


def test_a_stopped_process_is_left_alone(tmp_path: Path) -> None:
    process = start(STUCK)
    found = collect_stacks(registration(tmp_path, process), None, "stopped", may_signal=True)
    assert found.path is None and "stopped" in (found.note or "")
    stop(process)


INTERRUPTED = """
import signal, sys, time
first, rest = sys.argv[2].split("\\n\\n")
def dump(*_):
    with open(sys.argv[1], "a") as file:
        print(first, file=file, flush=True)
        time.sleep(1)
        print("\\n" + rest, end="", file=file)
signal.signal(signal.SIGUSR1, dump)
print("ready", flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.usefixtures("without_py_spy")
def test_a_dump_that_a_busy_machine_interrupts_is_read_to_its_end(tmp_path: Path) -> None:
    """Written as faulthandler writes it, by a process that is not given its turn in the middle of it."""
    target = tmp_path / "stacks.txt"
    process = start(INTERRUPTED, str(target), FAULTHANDLER)
    item = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(target))
    found = collect_stacks(item, None, "sleeping", may_signal=True)
    assert found.path == target and "wait_for_batch" in found.extract[0]
    stop(process)


@pytest.mark.usefixtures("without_py_spy")
def test_the_process_that_has_the_number_now_is_not_mistaken_for_the_one_that_had_it(tmp_path: Path) -> None:
    armed = STUCK.replace(
        "import sys, time",
        f"import sys, time, faulthandler\n"
        f"faulthandler.register({int(signal.SIGUSR1)}, file=open({str(tmp_path / 'stacks.txt')!r}, 'w'))",
    )
    process = start(armed)
    item = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(tmp_path / "stacks.txt"))
    found = collect_stacks(item, None, "sleeping", may_signal=True)
    assert found.path == tmp_path / "stacks.txt" and "wait_for_batch" in found.extract[0]
    size = (tmp_path / "stacks.txt").stat().st_size
    other = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(tmp_path / "stacks.txt"))
    reused = Registration(**{**{f: getattr(other, f) for f in other.__dataclass_fields__}, "pid_start": 1.0})
    collect_stacks(reused, None, "sleeping", may_signal=True)
    assert (tmp_path / "stacks.txt").stat().st_size == size
    stop(process)


LOADER = """
import faulthandler, os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "ab", buffering=0))

class Slow(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        read_shard(index)

def read_shard(index):
    print("ready", flush=True)
    time.sleep(600)

def train():
    for batch in DataLoader(Slow(), num_workers=1):
        pass

train()
"""


@pytest.mark.parametrize("way", ["outside", "signal"])
def test_a_loader_that_hangs_is_named_by_the_programs_own_lines_and_those_of_its_worker(
    tmp_path: Path, way: str, request: pytest.FixtureRequest
) -> None:
    if way == "signal":
        request.getfixturevalue("without_py_spy")
    script, target = tmp_path / "loader.py", tmp_path / "stacks.txt"
    script.write_text(LOADER)
    command = [PYTHON, str(script), str(target)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    item = registration(tmp_path, process, stack_signal=signal.SIGUSR1, stack_file=str(target))

    place = ""

    def is_told() -> bool:
        """Once both are where they stay: on a busy machine each of them may come there late."""
        nonlocal place
        place = collect_stacks(item, None, "sleeping", may_signal=True).describe()
        main = r'main thread is at File ".*loader\.py", line 20 in train, waiting for a DataLoader'
        worker = r'its worker \d+ is at File ".*loader\.py", line 17 in read_shard'
        return bool(re.search(f"{main}; {worker}", place))

    wait_until(is_told, lambda: f"the lines of both; they are: {place}")
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def test_a_kernel_that_restricts_reading_is_asked_to_let_the_agent_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = tmp_path / "ptrace_scope"
    monkeypatch.setattr(trainer_stacks, "YAMA", scope)
    for name in trainer_stacks.MPI:
        monkeypatch.delenv(name, raising=False)
    assert not trainer_stacks.allow_reading(os.getpid())  # a kernel that does not restrict it
    scope.write_text("2\n")
    assert not trainer_stacks.allow_reading(os.getpid())  # one that cannot be asked
    scope.write_text("1\n")
    asked: list[tuple[int, ...]] = []

    class Library:
        @staticmethod
        def prctl(option: int, pid: ctypes.c_ulong, *rest: int) -> int:
            asked.append((option, pid.value, *rest))
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library)
    assert trainer_stacks.allow_reading(4711) and asked == [(0x59616D61, 4711, 0, 0, 0)]
    monkeypatch.setenv("PMIX_RANK", "0")
    assert not trainer_stacks.allow_reading(4711) and len(asked) == 1

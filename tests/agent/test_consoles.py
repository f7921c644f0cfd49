"""Output that goes to a file is copied into the run folder by the agent; the training does nothing for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals.agent.consoles import Consoles
from trainvitals.journal.documents.registration import ConsoleFile, Registration
from trainvitals.journal.reader import RunReader
from trainvitals.journal.texts import list_texts
from trainvitals.settings import resolve

TRAIN = """
import os, sys
import trainvitals
run = trainvitals.init(project="p", name="test")
{script}
"""


def console_files(folder: Path) -> list[Path]:
    return [folder / file.name for file in list_texts(folder, "console")]


class Printed:
    """A training whose output goes to a file."""

    def __init__(self, machine: Any, tmp_path: Path, script: str, **env: str) -> None:
        self.output = tmp_path / "slurm-1.out"
        self.root = machine.root
        with open(self.output, "ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TRAIN.format(script=script)],
                env=machine.env(**env), stdin=subprocess.PIPE, stdout=file, stderr=file, text=True,
            )  # fmt: skip
        machine.processes.append(self.process)

    def kept(self) -> str:
        return "".join(path.read_text() for folder in self.root.glob("*/*") for path in console_files(folder))


def test_what_goes_to_a_file_is_kept_while_it_is_printed_and_at_the_end(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "slurm-1.out").write_text("of the job before\n")
    machine.start_agent()
    script = "print('one', flush=True); os.system('echo two from a shell'); input(); print('three', end='')"
    training = Printed(machine, tmp_path, script)
    wait_until(lambda: "two from a shell\n" in training.kept(), "the first lines")
    training.process.communicate("\n", timeout=PATIENCE)
    wait_until(lambda: "three" in training.kept(), "the last line")
    lines = [line for line in training.kept().splitlines() if not line.startswith("trainvitals")]
    assert lines == ["one", "two from a shell", "three"]


def test_what_was_printed_before_a_kill_is_kept(machine: Any, tmp_path: Path) -> None:
    machine.start_agent()
    training = Printed(machine, tmp_path, "print('last words', flush=True); os.kill(os.getpid(), 9)")
    assert training.process.wait(PATIENCE) == -signal.SIGKILL
    wait_until(lambda: "last words\n" in training.kept(), "the last words")


def test_another_agent_goes_on_where_the_first_was_killed(machine: Any, tmp_path: Path) -> None:
    first = machine.start_agent()
    script = "print('one', flush=True); input(); print('two', flush=True); input(); print('three', flush=True)"
    training = Printed(machine, tmp_path, script)
    wait_until(lambda: "one\n" in training.kept(), "the first line")
    first.kill()
    first.wait()
    assert training.process.stdin is not None
    training.process.stdin.write("\n")
    training.process.stdin.flush()
    machine.start_agent()
    wait_until(lambda: "two\n" in training.kept(), "the second line")
    training.process.communicate("\n", timeout=PATIENCE)
    wait_until(lambda: "three\n" in training.kept(), "the third line")
    lines = [line for line in training.kept().splitlines() if not line.startswith("trainvitals")]
    assert lines == ["one", "two", "three"]


def test_switched_off_nothing_is_kept(machine: Any, tmp_path: Path) -> None:
    machine.start_agent()
    training = Printed(machine, tmp_path, "print('private', flush=True)", TRAINVITALS_CONSOLE="off")
    assert training.process.wait(PATIENCE) == 0
    (folder,) = training.root.glob("*/*")
    wait_until(lambda: any(row.event == "run_ended" for row in RunReader(folder).events()), "the end")
    assert training.kept() == ""


# -- the copying itself


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    return place


def registration(folder: Path, source: Path, rank: int = 0, offset: int = 0, stream: str = "") -> Registration:
    status = source.stat()
    file = ConsoleFile(
        path=str(source), fds=(1,), device=status.st_dev, inode=status.st_ino, offset=offset, stream=stream
    )
    return Registration(
        run_id="r", folder=str(folder), rank=rank, pid=os.getpid(), host="here",
        console=(file,),
    )  # fmt: skip


def kept(folder: Path) -> str:
    return "".join(path.read_text() for path in console_files(folder))


@pytest.mark.promise("a program prints 100 MB", "the copy is limited in size and contains the end")
def test_a_hundred_megabytes_are_bounded_and_the_end_is_there(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "out"
    with open(source, "wb") as file:
        for _ in range(100):
            file.write((b"x" * 1023 + b"\n") * 1024)
        file.write(b"the end\n")
    consoles = Consoles(folder, resolve({"console_size_mb": 4}, environ={}, folder=folder), {})
    consoles.join(registration(folder, source))
    consoles.look()
    consoles.end()
    assert "bytes of output omitted]" in kept(folder)
    assert kept(folder).endswith("x\nthe end\n")
    assert sum(path.stat().st_size for path in console_files(folder)) < 4 << 20


def test_bytes_that_are_no_text_are_readable(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "out"
    source.write_bytes(b"caf\xe9 \xff\n" + "Größe\n".encode())
    consoles = Consoles(folder, resolve(environ={}, folder=folder), {})
    consoles.join(registration(folder, source))
    consoles.look()
    assert kept(folder) == "caf\\xe9 \\xff\nGröße\n"
    consoles.end()


def test_ranks_that_share_a_file_are_copied_once_and_errors_apart_stay_apart(tmp_path: Path, folder: Path) -> None:
    out, errors = tmp_path / "out", tmp_path / "err"
    out.write_text("loss 1\n")
    errors.write_text("warning\n")
    consoles = Consoles(folder, resolve(environ={}, folder=folder), {})
    for rank in (0, 1):
        consoles.join(registration(folder, out, rank))
        consoles.join(registration(folder, errors, rank, stream="stderr"))
    consoles.end()
    found = {path.name: path.read_text() for path in console_files(folder)}
    assert found == {"console.rank0.log": "loss 1\n", "console.rank0.stderr.log": "warning\n"}


def test_a_file_emptied_by_log_rotation_is_read_from_its_beginning(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "out"
    source.write_text("a long first line\n")
    consoles = Consoles(folder, resolve(environ={}, folder=folder), {})
    consoles.join(registration(folder, source))
    consoles.look()
    os.truncate(source, 0)
    with open(source, "a") as file:
        file.write("new\n")
    consoles.end()
    assert kept(folder) == "a long first line\nnew\n"


def test_a_full_disk_only_delays_the_copy(tmp_path: Path, folder: Path) -> None:
    source = tmp_path / "out"
    source.write_text("one\ntwo\n")
    consoles = Consoles(folder, resolve(environ={}, folder=folder), {})
    consoles.join(registration(folder, source))
    (tail,) = consoles._tails.values()
    tail._log._fd = os.open("/dev/full", os.O_WRONLY)
    consoles.look()
    assert kept(folder) == ""
    consoles.look()
    assert kept(folder) == "one\ntwo\n"
    consoles.end()


def test_a_file_in_the_run_folder_itself_is_not_copied_onto_itself(folder: Path) -> None:
    source = folder / "console.rank0.log"
    source.write_text("mine\n")
    consoles = Consoles(folder, resolve(environ={}, folder=folder), {})
    consoles.join(registration(folder, source))
    consoles.end()
    assert kept(folder) == "mine\n"


def test_only_regular_files_are_found(tmp_path: Path) -> None:
    source = """import json
from trainvitals.trainer.console import find_files
print(json.dumps([file.as_json() for file in find_files()]))"""
    piped = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert piped.stdout == "[]\n"
    with open(tmp_path / "out", "w+") as file:
        file.write("before\n")
        file.flush()
        subprocess.run([sys.executable, "-c", source], stdout=file, stderr=file, check=True)
        file.seek(0)
        text = file.read()
    assert f'"path": "{tmp_path / "out"}"' in text
    assert '"offset": 7' in text
    assert text.count('"path"') == 1

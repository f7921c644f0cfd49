"""log() where it interrupts itself: in signal handlers, finalizers, at exit, beside other threads and closed files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from trainvitals.journal.reader import RunReader


def train(tmp_path: Path, script: str, **env: str) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    source = "import gc, os, signal, sys, threading, time, trainvitals\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TRAINVITALS_DIR": str(tmp_path / "runs"), "TRAINVITALS_AGENT": "0", **env},
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    folders = [path.parent for path in (tmp_path / "runs").glob("*/*/run.json")]
    return done, [row for folder in folders for row in RunReader(folder).rows()]


TIMER = """
run = trainvitals.init(project="p")
import itertools
fired, depth, paused, over = itertools.count(), 0, False, False
def handler(*_):
    global depth, paused
    depth += 1
    if depth > 9 and not paused:  # too slow a machine for this pace: none of them would ever end
        paused = True
        signal.setitimer(signal.ITIMER_REAL, 0)
    number = next(fired)  # it may interrupt itself
    run.log({"from_handler": number}, step=number)
    depth -= 1
    if paused and not depth and not over:
        start()
def start():
    global paused
    paused = False
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
def stop():
    global over
    over = True
    signal.setitimer(signal.ITIMER_REAL, 0)
signal.signal(signal.SIGALRM, handler)
start()
"""


@pytest.mark.parametrize("way", ["fast", "slow", "waiting"])
@pytest.mark.promise("`log()` in a signal handler that interrupts `log()`", "each row is written exactly once")
def test_rows_of_a_signal_handler_and_of_what_it_interrupts_are_there_once(tmp_path: Path, way: str) -> None:
    """`waiting`: the folder is away for a while, so that lines wait and are written later, under fire."""
    nan = "float('nan')" if way != "fast" else "1.0"
    done, rows = train(
        tmp_path,
        TIMER
        + f"""
folder, away = str(run.folder), str(run.folder) + '-away'
for step in range(30_000):
    if {way == "waiting"} and step % 10_000 == 1_000:
        os.rename(folder, away); run._writer._close_file()
    if {way == "waiting"} and step % 10_000 == 6_000:
        os.rename(away, folder)
    run.log({{"loop": step, "other": {nan}}}, step=step)
stop()
run.finish()
print(next(fired))
""",
    )
    assert done.returncode == 0, done.stderr
    loop = [row["loop"] for row in rows if "loop" in row]
    handler = [row["from_handler"] for row in rows if "from_handler" in row]
    assert sorted(loop) == list(range(30_000))
    assert sorted(handler) == list(range(int(done.stdout)))
    assert len(handler) > 20


def test_a_handler_that_raises_while_a_thread_of_ours_begins_is_all_that_the_program_sees(tmp_path: Path) -> None:
    done, _ = train(
        tmp_path,
        """
        from trainvitals.trainer.watch.stalls import StallWriter
        class Loop:
            alive, steps = False, 0
        def handler(*_):
            global fired
            fired = True
            raise ValueError("too slow")
        signal.signal(signal.SIGALRM, handler)
        loop, raised = Loop(), 0
        for number in range(600):
            writer, fired = StallWriter(loop), False
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (number % 30 + 1))
                writer.start()
                while not fired:
                    pass
            except ValueError:
                raised += 1
        print(raised)
        """,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "600\n", "")


@pytest.mark.parametrize("error", ["TimeoutError", "ValueError", "KeyboardInterrupt", "SystemExit"])
@pytest.mark.parametrize("value", ["1.0", "float('nan')"])
@pytest.mark.promise("a signal handler raises during `log()`", "the program gets the exception; no row is duplicated")
def test_what_a_handler_raises_reaches_the_program_and_no_row_is_there_twice(
    tmp_path: Path, error: str, value: str
) -> None:
    """A time limit for a step, as people write it."""
    done, rows = train(
        tmp_path,
        f"""
        run = trainvitals.init(project="p")
        raised = 0
        def handler(number, frame):
            global raised
            # Within the machinery of imports or enumerations Python itself may lose what a handler raises.
            raised += "trainvitals" in frame.f_code.co_filename or frame.f_code.co_filename == "<string>"
            signalled.append(1)
            raise {error}("too slow")
        signal.signal(signal.SIGALRM, handler)
        signalled = []
        run.log({{"loop": -1, "other": {value}}}, step=0)  # imports what it needs: Python loses what is raised there
        step = reached = 0
        for _ in range(2000):
            before = len(signalled)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002)
                while len(signalled) == before:
                    run.log({{"loop": step, "other": {value}}}, step=step)
                    step += 1
            except {error}:
                reached += 1
                step += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        run.finish()
        print(raised, reached)
        """,
    )
    assert done.returncode == 0, done.stderr
    raised, reached = map(int, done.stdout.split())
    assert 1000 < raised <= reached, "none was swallowed"
    steps = [row["loop"] for row in rows]
    assert len(steps) == len(set(steps))


@pytest.mark.promise("`log()` in finalizers, exit functions and threads", "no deadlock; every row is written")
def test_finalizers_exit_functions_and_threads_may_log(tmp_path: Path) -> None:
    done, rows = train(
        tmp_path,
        """
        import atexit
        run = trainvitals.init(project="p")
        class Noisy:
            made = 0
            def __init__(self):
                self.number, self.me = Noisy.made, self  # a cycle: the collector ends it, wherever we are
                Noisy.made += 1
            def __del__(self):
                run.log({"finalizer": self.number, "nan": float("nan")}, step=self.number)
        gc.set_threshold(10, 2, 2)
        def loop(name):
            for step in range(3000):
                Noisy()
                run.log({name: step, "other": float("nan") if step % 2 else 1.0}, step=step)
        threads = [threading.Thread(target=loop, args=(f"thread{n}",)) for n in range(4)]
        [t.start() for t in threads]; loop("main"); [t.join() for t in threads]
        gc.collect()
        atexit.register(lambda: run.log({"at_exit": 1}, step=0))
        print(Noisy.made)
        """,
    )
    assert done.returncode == 0, done.stderr
    for name in ("main", *(f"thread{n}" for n in range(4))):
        assert sorted(row[name] for row in rows if name in row) == list(range(3000))
    assert sorted(row["finalizer"] for row in rows if "finalizer" in row) == list(range(int(done.stdout)))
    assert [row["at_exit"] for row in rows if "at_exit" in row] == [1]


@pytest.mark.promise("the program closes all its descriptors", "no line is written to another file of the program")
def test_a_program_that_closes_all_its_files_keeps_its_own_clean_from_the_first_line_on(tmp_path: Path) -> None:
    done, rows = train(
        tmp_path,
        """
        run = trainvitals.init(project="p")
        for step in range(100):
            run.log({"loop": step}, step=step)
        os.closerange(3, 4096)
        mine = [open(f"mine{n}.txt", "w") for n in range(40)]
        for step in range(100, 200):
            run.log({"loop": step}, step=step)
        run.finish()
        for file in mine:
            file.write("mine\\n"); file.close()
        """,
    )
    assert done.returncode == 0 and "the end of run" not in done.stderr, done.stderr
    assert {path.read_text() for path in tmp_path.glob("mine*.txt")} == {"mine\n"}
    assert [row["loop"] for row in rows] == list(range(200))


def test_numbers_of_classes_of_their_own_are_numbers(tmp_path: Path) -> None:
    done, rows = train(
        tmp_path,
        """
        import enum
        from decimal import Decimal
        from fractions import Fraction
        class Meters(float):
            def __repr__(self): return "far"
        class Level(enum.IntEnum):
            HIGH = 3
        run = trainvitals.init(project="p")
        run.log({"a": Meters(1.5), "b": Level.HIGH, "c": Decimal("0.25"), "d": Fraction(1, 2)}, step=0)
        run.log({"a": Meters("nan"), "b": 1}, step=Level.HIGH)
        run.finish()
        """,
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    first, second = [{k: v for k, v in row.items() if k != "timestamp"} for row in rows]
    assert first == {"step": 0, "a": 1.5, "b": 3, "c": 0.25, "d": 0.5}
    assert second == {"step": 3, "a": "NaN", "b": 1}


def test_two_names_that_become_one_are_told(tmp_path: Path) -> None:
    done, rows = train(
        tmp_path,
        """
        run = trainvitals.init(project="p")
        run.log({"a": {"b": 1.0}, "a/b": 2.0, 1: 3.0, "1": 4.0}, step=0)
        run.finish()
        """,
    )
    assert done.returncode == 0
    assert rows[0]["a/b"] == 2.0 and rows[0]["1"] == 4.0
    assert "'a/b' is logged twice in one call: the last one counts" in done.stderr
    strict, _ = train(tmp_path, "trainvitals.init(strict=True).log({'a': {'b': 1.0}, 'a/b': 2.0}, step=0)")
    assert strict.returncode == 1 and "'a/b' is logged twice" in strict.stderr


def test_what_a_handler_raises_reaches_a_program_that_is_watched(tmp_path: Path) -> None:
    done, _ = train(
        tmp_path,
        """
        import torch
        torch.set_num_threads(1)
        run = trainvitals.init(project="p")
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        watch = run.watch(model, optimizer)
        raised = reached = 0
        def handler(number, frame):
            global raised
            raised += "trainvitals" in frame.f_code.co_filename
            signalled.append(1)
            raise ValueError("too slow")
        signal.signal(signal.SIGALRM, handler)
        signalled = []
        def step():
            torch.set_grad_enabled(True)  # an optimizer that was interrupted may have left it off
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        step()
        for _ in range(500):
            before = len(signalled)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                while len(signalled) == before:
                    step()
            except ValueError:
                reached += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert watch.alive
        run.finish()
        print(raised, reached)
        """,
    )
    assert done.returncode == 0, done.stderr
    raised, reached = map(int, done.stdout.split())
    assert 5 < raised <= reached

"""`console=tee`: a copy of what Python prints, and nothing about the streams is different."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

BEGIN = """
import os, sys, threading, time
import trainvitals
before = (id(sys.stdout), id(sys.stderr), sys.stdout.fileno(), sys.stdout.encoding, sys.stdout.isatty())
run = trainvitals.init(console="tee", agent=False, summary=False)
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("TRAINVITALS_")}
    return {
        **kept,
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "PYTHONIOENCODING": "utf-8",
    }


def train(environ: dict[str, str], script: str, code: int = 0) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """What the program printed itself, and what was kept."""
    source = BEGIN + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    return done, kept_of(environ)


def kept_of(environ: dict[str, str], name: str = "console.rank0.log") -> str:
    (path,) = Path(environ["TRAINVITALS_DIR"]).glob(f"*/*/{name}")
    return path.read_bytes().decode()


def test_what_is_printed_is_printed_and_kept(environ: dict[str, str]) -> None:
    done, kept = train(
        environ,
        """
        print("hello", 1, "ünï", end="!\\n")
        sys.stderr.write("to the other\\n")
        sys.stdout.writelines(["a\\n", "b\\n"])
        assert (id(sys.stdout), id(sys.stderr), sys.stdout.fileno(), sys.stdout.encoding, sys.stdout.isatty()) == before
        print("unfinished", end="")
        """,
    )
    assert done.stdout.decode() == "hello 1 ünï!\na\nb\nunfinished"
    assert kept == "hello 1 ünï!\nto the other\na\nb\nunfinished\n"


def test_the_streams_are_given_back_when_the_run_ends(environ: dict[str, str]) -> None:
    _, kept = train(
        environ,
        """
        print("inside")
        run.finish()
        assert "write" not in vars(sys.stdout) and "write" not in vars(sys.stderr)
        print("after")
        """,
    )
    assert kept == "inside\n"


def test_the_traceback_of_a_crash_is_kept(environ: dict[str, str]) -> None:
    _, kept = train(environ, "raise ValueError('the loss is gone')", code=1)
    assert "Traceback" in kept
    assert kept.endswith("ValueError: the loss is gone\n")


def test_a_progress_bar_leaves_its_end_and_not_every_state(environ: dict[str, str]) -> None:
    _, kept = train(
        environ,
        """
        from tqdm import tqdm
        for step in tqdm(range(3000), mininterval=0, miniters=1, ascii=True, ncols=80):
            pass
        print("done")
        """,
    )
    last = kept.splitlines()[-2].split("\r")[-1]
    assert last.startswith("100%|")
    assert kept.endswith("done\n")
    assert len(kept) < 20_000


def test_threads_do_not_tear_each_others_lines(environ: dict[str, str]) -> None:
    _, kept = train(
        environ,
        """
        def work(name):
            for number in range(200):
                sys.stdout.write(f"{name} {number} {'x' * 50}\\n")
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """,
    )
    lines = kept.splitlines()
    assert sorted(lines) == sorted(f"{name} {number} {'x' * 50}" for name in "abcd" for number in range(200))


def test_a_forked_child_has_a_file_of_its_own(environ: dict[str, str]) -> None:
    _, kept = train(
        environ,
        """
        print("parent began", end="", flush=True)
        child = os.fork()
        if child == 0:
            print("child", flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(" and ended")
        """,
    )
    assert kept == "parent began and ended\n"
    assert kept_of(environ, "console.rank0.pid*.log") == "child\n"


def test_what_another_program_prints_is_not_claimed(environ: dict[str, str]) -> None:
    done, kept = train(environ, "import subprocess; print('one', flush=True); subprocess.run(['echo', 'two'])")
    assert (done.stdout, kept) == (b"one\ntwo\n", "one\n")


@pytest.mark.promise("`kill -9` with `console: tee`", "what was printed before is kept")
def test_what_was_printed_before_a_kill_is_there(environ: dict[str, str]) -> None:
    script = "print('step 1'); print('step 2'); os.kill(os.getpid(), 9)"
    _, kept = train(environ, script, code=-signal.SIGKILL)
    assert kept == "step 1\nstep 2\n"


def test_a_folder_that_vanishes_and_text_that_is_no_text_hurt_nobody(environ: dict[str, str]) -> None:
    done, _ = train(
        environ,
        """
        print("first")
        sys.stdout.reconfigure(errors="surrogateescape")
        print("\\udcff")
        run._presence._tee._log._fd = os.open("/dev/full", os.O_WRONLY)
        print("nobody keeps this")
        print("kept again")
        try:
            sys.stdout.write(5)
        except TypeError:
            print("the program's own mistake stays its own")
        """,
    )
    assert done.stdout == b"first\n\xff\nnobody keeps this\nkept again\nthe program's own mistake stays its own\n"
    assert kept_of(environ).splitlines() == [
        "first",
        "\\udcff",
        "[18 characters of output could not be written]",
        "kept again",
        "the program's own mistake stays its own",
    ]


def test_a_stream_that_goes_to_a_file_is_left_to_the_agent(environ: dict[str, str], tmp_path: Path) -> None:
    script = "print('to a pipe'); print('to a file', file=sys.stderr); assert 'write' not in vars(sys.stderr)"
    with open(tmp_path / "errors", "wb") as errors:
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + script], env=environ, stdout=subprocess.PIPE, stderr=errors, check=False
        )
    assert (done.returncode, done.stdout) == (0, b"to a pipe\n")
    assert kept_of(environ) == "to a pipe\n"


def test_without_being_asked_nothing_is_wrapped(environ: dict[str, str]) -> None:
    script = """
    import sys, trainvitals
    run = trainvitals.init(agent=False, summary=False)
    assert "write" not in vars(sys.stdout)
    print("hello")
    """
    source = textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", source], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, b"hello\n")
    assert list(Path(environ["TRAINVITALS_DIR"]).glob("*/*/console*")) == []

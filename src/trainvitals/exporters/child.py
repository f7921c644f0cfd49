"""A child process for what may hang, die or need much memory: somebody else's client library.

Questions and answers are lines of JSON. The child ends when the process that started it does, however that ends.
Tested in tests/exporters/test_child.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainvitals.trackers.intake.process import without_program

MOST_OF_A_LINE = 64 << 20
PIECE = 1 << 16
_CONNECTION = (
    "HOME",
    "NETRC",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_",
)


_AUTOSTART = str(Path(__file__).parents[1] / "trainer/autostart/site")


def child_environment(theirs: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    """This process's environment, with the variables of the training that its client library would look at. A program
    under `trainvitals run` is watched from its first line on; the child is not such a program."""
    wanted = (*prefixes, *_CONNECTION)
    environment = without_program(dict(os.environ))
    environment |= {name: text for name, text in theirs.items() if name.startswith(wanted)}
    places = environment.pop("PYTHONPATH", "").split(os.pathsep)
    places = [place for place in places if place and place != _AUTOSTART]
    return {**environment, "PYTHONPATH": os.pathsep.join(places)} if places else environment


class ChildFailed(OSError):
    """It did not answer, or not well."""


class Child:
    """`python -m MODULE`, whose main is `answer`."""

    def __init__(self, module: str, environment: Mapping[str, str], lock: int | None = None) -> None:
        """`lock` is a descriptor that the child keeps open: what it locks stays locked for as long as it lives."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environment),
            cwd="/",
            start_new_session=True,  # killed with all that it starts
            pass_fds=() if lock is None else (lock,),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Its answer. Raises ChildFailed with the reason; then it is to be killed."""
        deadline = time.monotonic() + seconds
        data = memoryview(json.dumps(question).encode() + b"\n")
        answer = bytearray()
        try:
            while data:
                self._wait([], [self._in], deadline, seconds)
                data = data[os.write(self._in, data[:PIECE]) :]
            while not answer.endswith(b"\n"):
                self._wait([self._out], [], deadline, seconds)
                piece = os.read(self._out, PIECE)
                if not piece or len(answer) > MOST_OF_A_LINE:
                    raise ChildFailed(f"its process ended{self._describe_end()}")
                answer += piece
        except BrokenPipeError:
            raise ChildFailed(f"its process ended{self._describe_end()}") from None
        found = json.loads(answer)
        if "error" in found:
            raise ChildFailed(str(found["error"]))
        result: dict[str, Any] = found
        return result

    def _wait(self, readers: list[int], writers: list[int], deadline: float, seconds: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0 or not any(select.select(readers, writers, [], left)):
            raise ChildFailed(f"its process did not answer within {seconds:g} s")

    def _describe_end(self) -> str:
        try:
            code = self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        return f" with {signal.Signals(-code).name if code < 0 else code}"

    def end(self, seconds: float) -> None:
        """Let it end by itself, and kill it if it does not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(seconds)
        except (OSError, subprocess.TimeoutExpired):
            pass  # killed now
        self.kill()

    def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it has ended, and so have those that it started
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # what was left in it is for nobody
        self._process.wait()


def answer(handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the child: answer every question until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the training
    out = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what the library prints must not be taken for an answer
    for line in sys.stdin.buffer:
        try:
            found = handle(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the boundary around somebody else's library
            found = {"error": f"{type(error).__name__}: {error}"[:500]}
        out.write(json.dumps(found) + "\n")
        out.flush()

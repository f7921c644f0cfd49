"""A child process that holds one variant of a model: started, asked, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from trainvitals.bench.plan import Plan
from trainvitals.errors import TrainvitalsError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
TAIL = 400
"""Characters of standard error that explain a death."""


class ChildFailure(Exception):
    """A question that the child could not answer. `state` is that of the result."""

    def __init__(self, reason: str, *, unavailable: bool = False, out_of_memory: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.unavailable = unavailable
        self.out_of_memory = out_of_memory


class ModelProcess:
    """One process, pinned to its cores. A context manager."""

    def __init__(self, plan: Plan, variant: str, threads: int, cores: Sequence[int], work: Path) -> None:
        self.plan = plan
        self.variant = variant
        self.threads = threads
        self.cores = cores
        self.work = work
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        environment = {
            **os.environ,
            **{name: str(threads) for name in THREAD_VARIABLES},
            "OMP_WAIT_POLICY": "passive",  # waiting threads of one variant must not take the cores of another
            "PYTHONUNBUFFERED": "1",
            # What an earlier benchmark compiled would make the time to compile look short.
            "TORCHINDUCTOR_CACHE_DIR": str(work / "compiled"),
        }
        if not plan.trust:
            environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"  # .pt2 files may contain pickles, too
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainvitals.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the parent, which then ends its children
        )
        if cores and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(self._process.pid, cores)
            except OSError as error:
                self.close()
                listed = ", ".join(map(str, cores))
                raise TrainvitalsError(f"cannot run on the cores {listed}: {error.strerror}") from None

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def load(self) -> dict[str, Any]:
        return self.ask("load", plan=self.plan.as_json(), variant=self.variant, threads=self.threads, work=self.work)

    def convert(self, variant: str, batches: Sequence[int]) -> float:
        """Seconds that it took."""
        found = self.ask("convert", plan=self.plan.as_json(), variant=variant, batches=batches, work=self.work)
        return float(found["seconds"])

    def ask(self, do: str, **given: Any) -> dict[str, Any]:
        """The answer, or Failure."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **given}, default=str) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._explain_death()
        answer: dict[str, Any] = json.loads(line)
        if "unavailable" in answer:
            raise ChildFailure(answer["unavailable"], unavailable=True)
        if "failed" in answer:
            raise ChildFailure(answer["failed"], out_of_memory=bool(answer.get("out_of_memory")))
        return answer

    def _explain_death(self) -> ChildFailure:
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return ChildFailure("the process was killed, most likely out of memory", out_of_memory=True)
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(self._errors.tell() - TAIL, 0))
        last = self._errors.read().decode(errors="replace").strip().splitlines()
        name = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return ChildFailure(f"its process died ({name}): {last[-1] if last else 'without a message'}")

    def close(self) -> None:
        """End the process; it has nothing to save."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # a question that was never read

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

"""The child's side of a benchmark: one variant of one model, which answers the parent's questions.

    python -m trainvitals.bench.worker

A question is a line of JSON on standard input, `{"do": "load", ...}`; its answer a line on standard output. What
libraries print goes to standard error, so that it cannot be taken for an answer, and a model that reads standard input
finds its end, not the next question.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.analysis.timings import is_steady
from trainvitals.bench import process_memory
from trainvitals.bench.inputs import make_arrays
from trainvitals.bench.plan import ONNX_VARIANTS, Plan
from trainvitals.bench.unavailable import Unavailable

MOST_WARM_UP = 1000
SKIPPED = 2
"""Calls at the beginning of each round that are not timed: another process had the caches before."""
FEWEST_CALLS = 11
"""Of a round, unless that takes this many times as long as it should."""
LONGEST_ROUND = 10
PERTURBATION = 1e-3
NANOS_PER_MS = 1e6
LOW_PRIORITY_FOR_OOM = 1000


class Worker:
    """One variant, loaded."""

    def __init__(self, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._clock = clock
        self._prepared: dict[int, Any] = {}

    # -- loading

    def convert(self, plan: dict[str, Any], variant: str, batches: list[int], work: str) -> dict[str, Any]:
        """Make the files that another child then loads; how long that took."""
        from trainvitals.bench import onnx_models

        parsed = Plan.parse(plan)
        _choose_code(parsed)
        begin = self._clock()
        onnx_models.convert(parsed, variant, Path(work), batches)
        return {"seconds": (self._clock() - begin) / 1e9}

    def load(self, plan: dict[str, Any], variant: str, threads: int, work: str) -> dict[str, Any]:
        """Load and convert the model; how long that took, how large it is, which inputs it wants."""
        self._plan = Plan.parse(plan)
        self._work = Path(work)
        is_onnx = variant in ONNX_VARIANTS
        if self._plan.target.endswith(".onnx") and not is_onnx:
            raise Unavailable("torch cannot run an ONNX file: use --variants onnx or int8-ort")
        _choose_code(self._plan)
        self._before = _import(self._plan, variant, threads)
        process_memory.reset_peak()
        begin = self._clock()
        self._model: Any
        if is_onnx:
            from trainvitals.bench import onnx_models

            self._model, specs, remarks = onnx_models.build(self._plan, variant, self._work, threads)
        else:
            from trainvitals.bench import torch_models

            self._model, specs, remarks = torch_models.build(self._plan, variant, self._work)
        seconds = (self._clock() - begin) / 1e9
        if self._plan.is_generator and not hasattr(getattr(self._model, "module", None), "generate"):
            raise Unavailable("--generate requires a Transformers language model folder")
        self._load_peak = process_memory.read_peak()
        self._specs = self._plan.inputs or specs
        if not self._specs:
            raise Unavailable("its inputs are not known: pass their shape, such as --input 1x3x224x224")
        gc.collect()
        gc.freeze()  # what was imported is not looked through again before every round
        return {
            "load_seconds": seconds - (self._model.convert_seconds or 0.0),
            "convert_seconds": self._model.convert_seconds,
            "inputs": [tuple(spec) for spec in self._specs],
            "remarks": list(remarks),
            "versions": _versions(),
            **self._model.describe(),
        }

    def disk(self) -> dict[str, Any]:
        """Apart from loading, for writing the weights takes memory."""
        return {"disk_bytes": self._model.disk_bytes(self._work)}

    # -- answers

    def outputs(self, batch: int, path: str) -> dict[str, Any]:
        """Write the model's answers for this batch into a file; how long the first call took. That of a generator is
        a text: what one compiles is what is timed later."""
        inputs = self._inputs(batch)
        begin = self._clock()
        if self._plan.is_generator:
            self._caller(batch)()
            first = (self._clock() - begin) / NANOS_PER_MS
            unranked = self._model.why_unranked()
            arrays = self._answer(inputs)
        else:
            arrays = self._answer(inputs)
            first = (self._clock() - begin) / NANOS_PER_MS
            unranked = self._model.why_unranked()
        np.savez(path, *arrays)
        moved = [*make_arrays(self._specs, batch, self._plan.seed), *arrays]
        return {
            "first_ms": first,
            "compiled": self._model.compiles,
            "unranked": unranked,
            "input_and_output_bytes": sum(item.nbytes for item in moved),
        }

    def check(self, batch: int) -> dict[str, Any]:
        """What is wrong with the answers, and how sensitive they are."""
        inputs = self._inputs(batch)
        once, twice = self._answer(inputs), self._answer(inputs)
        found = []
        if not once:
            found.append("the model returns no tensors, so outputs cannot be compared")
        broken = sum(int((~np.isfinite(item)).sum()) for item in once)
        if broken:
            found.append(f"{broken:,} of {sum(item.size for item in once):,} output values are NaN or infinite")
        if _distance(once, twice) > 0:
            found.append(
                f"the same input twice gave answers {_distance(once, twice):.2g} apart (relative): dropout, or another "
                "source of randomness, is on"
            )
        elif batch > 1 and (apart := self._batch_difference(batch, once)) is not None:
            found.append(apart)
        return {"checks": found, "sensitivity": self._sensitivity(batch, once)}

    def _batch_difference(self, batch: int, whole: list[NDArray[Any]]) -> str | None:
        """An item alone against the same item in a batch; None where they agree, or the shapes show no batch."""
        try:
            alone = self._answer(self._inputs(1))
        except Exception:  # noqa: BLE001 - a model with a fixed batch is not wrong
            return None
        if any(a.ndim == 0 or a.shape[0] != 1 or b.shape[0] != batch for a, b in zip(alone, whole, strict=True)):
            return None
        apart = _distance(alone, [item[:1] for item in whole])
        if apart <= 1e-3:  # kernels for other sizes add up in another order
            return None
        return f"an item alone and in a batch of {batch} gave answers {apart:.2g} apart (relative)"

    def _sensitivity(self, batch: int, answers: list[NDArray[Any]]) -> float | None:
        """By how much the answers change, relative, for inputs changed by 0.1 %."""
        arrays = make_arrays(self._specs, batch, self._plan.seed)
        random = np.random.default_rng(1)
        if not answers or not any(item.dtype.kind == "f" for item in arrays):
            return None
        moved = [
            (item * (1 + PERTURBATION * random.standard_normal(item.shape))).astype(item.dtype)
            if item.dtype.kind == "f"
            else item
            for item in arrays
        ]
        return _distance(answers, self._answer(self._model.prepare(self._specs, moved))) / PERTURBATION

    def metric(self, name: str) -> dict[str, Any]:
        """The user's own function, called with this variant."""
        from trainvitals.bench.user_code import import_callable

        return {"value": float(import_callable(name)(self._model.predict))}

    def flops(self, batch: int) -> dict[str, Any]:
        return {"flops": self._model.count_flops(self._inputs(batch))}

    def peak(self) -> dict[str, Any]:
        """The most that this machine does with these threads on this device: what a model is held against."""
        from trainvitals.bench import torch_models

        return torch_models.measure_peak(self._plan.device)

    # -- time

    def warm_up(self, batch: int, seconds: float) -> dict[str, Any]:
        """Call until the times are steady, at most this long."""
        process_memory.reset_peak()
        self._model.reset_device_peak()
        call = self._caller(batch)
        times: list[float] = []
        deadline = self._clock() + seconds * 1e9
        with self._model.guard():
            while not is_steady(times) and len(times) < MOST_WARM_UP and (not times or self._clock() < deadline):
                begin = self._clock()
                call()
                times.append((self._clock() - begin) / NANOS_PER_MS)
        return {"calls": len(times), "steady": is_steady(times), "call_ms": float(np.median(times[-10:]))}

    def round(self, batch: int, seconds: float, most: int, skipped: int = SKIPPED) -> dict[str, Any]:
        """Time calls for so long; each in milliseconds, and the CPU time of all. Longer if that were few: on a busy
        machine the only call of a short round is one that had to wait."""
        call, clock = self._caller(batch), self._clock
        times: list[int] = []
        note = times.append
        gc.collect()
        gc.disable()
        try:
            with self._model.guard():
                for _ in range(skipped if seconds else 0):
                    call()
                self._model.synchronize()
                cpu, start = time.process_time_ns(), clock()
                deadline = start + int(seconds * 1e9)
                latest = start + int(seconds * 1e9 * LONGEST_ROUND)
                now = start
                while (now < deadline or not times or (len(times) < FEWEST_CALLS and now < latest)) and len(
                    times
                ) < most:
                    begin = clock()
                    call()
                    now = clock()
                    note(now - begin)
                cpu, wall = time.process_time_ns() - cpu, now - start
        finally:
            gc.enable()
        return {"ms": [value / NANOS_PER_MS for value in times], "cpu_share": cpu / max(wall, 1)}

    def generate(self, batch: int, calls: int) -> dict[str, Any]:
        """Times to the first token and between the others, in milliseconds."""
        from trainvitals.bench import torch_models

        ids = self._inputs(batch)[1]["input_ids"]
        first, each, total = [], [], []
        for _ in range(calls):
            begin, stamps = torch_models.generate(self._model, ids, self._plan.generate or 1)
            first.append((stamps[0] - begin) / NANOS_PER_MS)
            total.append((stamps[-1] - begin) / NANOS_PER_MS)
            if len(stamps) > 1:
                each.append((stamps[-1] - stamps[0]) / NANOS_PER_MS / (len(stamps) - 1))
        return {"first_ms": first, "each_ms": each, "ms": total}

    def memory(self) -> dict[str, Any]:
        """MB above what the libraries took, since the warm-up of this batch began."""
        peak, private = process_memory.read_peak(), process_memory.read_private()
        found: dict[str, float] = dict(self._model.device_memory())
        if peak is not None and self._load_peak is not None:
            found |= {"peak": max(peak - self._before, 0.0), "load_peak": max(self._load_peak - self._before, 0.0)}
        return found | ({"private": private} if private is not None else {})

    def try_batch(self, batch: int) -> dict[str, Any]:
        """One call with this batch, which may be the end of this process."""
        self._prepared.clear()
        inputs = self._inputs(batch)
        begin = self._clock()
        self._model.call(inputs)
        self._model.synchronize()
        return {"seconds": (self._clock() - begin) / 1e9}

    def limit_memory(self, mb: float) -> dict[str, Any]:
        """Let allocations fail before the machine runs out, and be the first that the kernel ends."""
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + int(mb * (1 << 20))
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        Path("/proc/self/oom_score_adj").write_text(str(LOW_PRIORITY_FOR_OOM))
        return {}

    # -- the model

    def _inputs(self, batch: int) -> Any:
        if batch not in self._prepared:
            arrays = make_arrays(self._specs, batch, self._plan.seed)
            self._prepared[batch] = self._model.prepare(self._specs, arrays)
        return self._prepared[batch]

    def _caller(self, batch: int) -> Callable[[], Any]:
        if self._plan.is_generator:
            from trainvitals.bench import torch_models

            ids = self._inputs(batch)[1]["input_ids"]
            return lambda: torch_models.generate(self._model, ids, self._plan.generate or 1)
        call: Callable[[], Any] = self._model.caller(self._inputs(batch))
        return call

    def _answer(self, inputs: Any) -> list[NDArray[Any]]:
        arrays: list[NDArray[Any]] = self._model.arrays_of(self._model.call(inputs))
        self._model.synchronize()
        return arrays

    def explain(self, batch: int) -> str:
        """Which module complained."""
        culprit = self._model.find_culprit(self._inputs(batch)) if hasattr(self, "_model") else None
        return f"in {culprit}: " if culprit else ""


def _choose_code(plan: Plan) -> None:
    if plan.code is not None:
        from trainvitals.bench.user_code import import_from

        import_from(plan.code, plan.target)


def _import(plan: Plan, variant: str, threads: int) -> float:
    """Import the libraries, and return what the process holds then, in MB: their memory is not the model's."""
    if variant in ONNX_VARIANTS:
        with contextlib.suppress(ImportError):  # reported by whoever needs it
            import onnxruntime  # noqa: F401
        return process_memory.read_resident() or 0.0
    try:
        import torch
    except ImportError:
        raise Unavailable("torch is not installed; only ONNX files can be measured without it") from None
    torch.set_num_threads(threads)
    from trainvitals.bench.torch_loading import import_libraries

    before = process_memory.read_resident() or 0.0
    # A model that a module made when it was imported came with the libraries.
    return process_memory.read_resident() or 0.0 if import_libraries(plan, variant) else before


def _versions() -> dict[str, str]:
    names = ("torch", "onnxruntime", "torchao", "transformers", "numpy")
    return {name: str(sys.modules[name].__version__) for name in names if name in sys.modules}


def _distance(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> float:
    """Relative; what is NaN in both is equal."""
    worst = 0.0
    for one, other in zip(a, b, strict=True):
        left, right = (np.nan_to_num(np.asarray(item, dtype=np.float64)) for item in (one, other))
        norm = float(np.linalg.norm(left))
        worst = max(worst, float(np.linalg.norm(left - right)) / (norm or 1.0))
    return worst


def answer(worker: Worker, question: dict[str, Any]) -> dict[str, Any]:
    """The answer to one question; whatever the model raises is an answer too."""
    given = dict(question)
    do = given.pop("do")
    try:
        found: dict[str, Any] = getattr(worker, do)(**given)
        return found
    except Unavailable as error:
        return {"unavailable": str(error)}
    except Exception as error:  # noqa: BLE001 - the user's model, in a process of its own
        text = f"{type(error).__name__}: {error}".strip()
        where = worker.explain(given["batch"]) if "batch" in given and do != "try_batch" else ""
        no_memory = is_out_of_memory(error)
        return {
            "failed": f"{'out of memory ' if no_memory else ''}{where}{_first_line(text)}",
            "out_of_memory": no_memory,
        }


def is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or "out of memory" in text or "not enough memory" in text or "alloc" in text


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), text)[:400]


def main() -> None:
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    worker = Worker()
    for line in questions:
        found = answer(worker, json.loads(line))
        answers.write(json.dumps(found, default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()

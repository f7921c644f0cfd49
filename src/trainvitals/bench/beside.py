"""A benchmark of a model that is being trained: `run.benchmark`.

In the training's process the model is saved as a checkpoint is, and a process is started that measures it and writes
the result into the run:

    python -m trainvitals.bench.beside < order.json

Unless the training waits, that process gets other cores than the training's; where there are none it is refused.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainvitals.analysis.timings import FEWEST_PROCESSES
from trainvitals.bench import machine
from trainvitals.bench.plan import Plan
from trainvitals.errors import TrainvitalsError, name_kind
from trainvitals.journal import folder as run_folder
from trainvitals.journal.benchmarks import read_benchmarks, write_benchmark
from trainvitals.journal.documents.benchmark import Benchmark
from trainvitals.journal.documents.rows import new_event
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.writer import LineWriter

SECONDS = 5.0
"""For each variant and batch: a training does not wait for the last digit."""
ROLE = "benchmark"
EVENT, FAILED_EVENT = "benchmark", "benchmark_failed"


@dataclass(frozen=True, slots=True)
class BenchOrder:
    """What the process beside a training is asked to do."""

    folder: str
    attempt: int
    step: int
    name: str
    """Of the model's class."""
    work: str
    """Removed when it is done."""
    plan: Mapping[str, Any]


def benchmark(
    model: Any,
    example_input: Any,
    folder: Path,
    *,
    attempt: int,
    step: int,
    wait: bool,
    device: str | None = None,
    ranks: int = 1,
    **options: Any,
) -> Benchmark | None:
    """Start it, and with `wait` return the result. `ranks` are those of the training on this machine. TrainvitalsError
    with the reason why it is not done."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise TrainvitalsError(f"{name_kind(model)} is not a torch module")
    model = _unwrap(model)
    device = device or _device_of(model)
    if device != "cpu" and not wait:
        raise TrainvitalsError(f"the model is on {device}, which the training uses", hint="wait=True, or device='cpu'")
    own = frozenset(machine.allowed_cores())
    if wait:
        cores = tuple(sorted(own))
    else:
        cores = choose_cores(torch.get_num_threads(), own, machine.read_available_cores(), ranks)
    work = Path(tempfile.mkdtemp(prefix="trainvitals-bench-"))
    try:
        _save(torch, model, work / "model.pt")
        plan = Plan(
            str(work / "model.pt"),
            inputs=tuple(_describe_inputs(torch, example_input)),
            device=device,
            cores=cores,
            trust=True,  # we have just written it ourselves
            **{
                "seconds": SECONDS,
                "threads": (min(torch.get_num_threads(), len(cores)),),
                "processes": FEWEST_PROCESSES if len(options.get("variants", ())) > 1 else 1,
                **options,
            },
        )
        process = _start(BenchOrder(str(folder), attempt, step, type(model).__name__, str(work), plan.as_json()))
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    if not wait:
        return None
    process.wait()
    done = [found for found in read_benchmarks(folder) if found.step == step]
    if process.returncode or not done:
        raise TrainvitalsError("the benchmark failed", hint="the reason is in the run's events")
    return done[-1]


def choose_cores(threads: int, own: frozenset[int], available: frozenset[int], ranks: int = 1) -> tuple[int, ...]:
    """Cores that the training does not use: those outside its affinity that its container or job may use, else what
    its threads leave. With other ranks on this machine, those outside may be theirs, and those inside shared."""
    others = sorted(available - own)
    if others and ranks == 1:
        return tuple(others)
    spare = len(own) - threads * ranks
    if spare > 0:
        return tuple(sorted(own)[-spare:])
    raise TrainvitalsError(
        f"the training uses all {len(own)} cores, and a benchmark on them would slow it and measure nothing",
        hint="pause it with wait=True, or leave a core: torch.set_num_threads(...)",
    )


def _unwrap(model: Any) -> Any:
    """The module inside DistributedDataParallel and torch.compile."""
    model = getattr(model, "_orig_mod", model)
    return model.module if type(model).__name__ in ("DistributedDataParallel", "DataParallel") else model


def _device_of(model: Any) -> str:
    first = next(iter(model.parameters()), None)
    return str(first.device) if first is not None else "cpu"


def _save(torch: Any, model: Any, path: Path) -> None:
    """The whole module. A class of the program itself can be loaded elsewhere only if its code comes along."""
    options: dict[str, Any] = {}
    if any(type(item).__module__ == "__main__" for item in model.modules()):
        try:
            import cloudpickle
        except ImportError:
            raise TrainvitalsError(
                f"{type(model).__name__} is defined in the program itself, where another process cannot import it",
                hint="move it to a module, or: pip install cloudpickle",
            ) from None
        options["pickle_module"] = cloudpickle
    try:
        torch.save(model, path, **options)
    except Exception as error:
        if isinstance(error, OSError):
            raise
        raise TrainvitalsError(f"the model cannot be saved: {type(error).__name__}: {error}") from None


def _describe_inputs(torch: Any, example: Any) -> Iterator[Any]:
    """Shapes and types of a tensor, or of several in a tuple, a list or a dict."""
    from trainvitals.bench.inputs import DTYPES, InputSpec

    if isinstance(example, Mapping):
        given = list(example.items())
    else:
        given = [(None, item) for item in (example if isinstance(example, (tuple, list)) else (example,))]
    for name, item in given:
        dtype = str(getattr(item, "dtype", "")).removeprefix("torch.")
        if not isinstance(item, torch.Tensor) or dtype not in DTYPES or not item.dim():
            raise TrainvitalsError(
                f"an input is {name_kind(item)}{f' of {dtype}' if dtype else ''}",
                hint="give a tensor, or several in a tuple or a dict, the batch first",
            )
        below = int(item.max()) + 1 if "int" in dtype and item.numel() else 10
        yield InputSpec(tuple(item.shape), dtype, name, max(below, 1))


def _start(order: BenchOrder) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "trainvitals.bench.beside"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The training's imports work there too; its tracker, ranks and hooks are not for a benchmark.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        start_new_session=True,
    )
    assert process.stdin is not None
    with process.stdin as stream:
        stream.write(json.dumps(asdict(order)).encode())
    return process


# -- the process beside the training


def rows_of(found: Benchmark) -> dict[str, float]:
    """A result as metrics of the run: those of the reference under the catalog's names, others with their variant."""
    values: dict[str, float | None] = {}
    for row in found.results:
        if not row.is_ranked:
            continue
        ending = "" if row.reference and row is found.reference else f"/{row.name}"
        values |= {
            f"benchmark_latency_ms{ending}": row.latency.median,
            f"benchmark_items_per_sec{ending}": row.items_per_second,
            f"benchmark_memory_mb{ending}": row.memory.peak,
            f"benchmark_disk_mb{ending}": row.disk_mb,
        }
    return {name: value for name, value in values.items() if value is not None}


def classic_values(found: Benchmark) -> dict[str, float]:
    """The names of older monitors: `avg_latency_ms`, `samples_per_second`, `model_size_mb`, `memory_footprint_mb`, and
    `quantization_ratio` where a smaller variant was measured."""
    reference = found.reference
    if reference is None:
        return {}
    sizes = [row.disk_mb for row in found.results if row.disk_mb and row is not reference]
    ratio = reference.disk_mb / min(sizes) if sizes and reference.disk_mb else None
    known = {
        "avg_latency_ms": reference.latency.mean,
        "samples_per_second": reference.items_per_second,
        "model_size_mb": reference.memory.weights,
        "memory_footprint_mb": reference.memory.peak,
        "quantization_ratio": ratio,
    }
    return {name: value for name, value in known.items() if value is not None}


def write_result(order: BenchOrder, found: Benchmark) -> None:
    """The document, a line of metrics at the step of the model, and an event."""
    write_benchmark(Path(order.folder), found)
    _append(order, "training", {"timestamp": format_time(digits=3), "step": order.step, **rows_of(found)})
    reference = found.reference
    median = reference.latency.median if reference is not None else None
    text = f"{order.name}: {median:.3g} ms per call" if median is not None else f"{order.name}: see the benchmark"
    _write_event(order, EVENT, text, "info")


def _write_event(order: BenchOrder, event: str, text: str, severity: str) -> None:
    labels = Participant(ROLE, 0).labels
    _append(order, "events", new_event(event, text, severity=severity, step=order.step, **labels).as_json())


def _append(order: BenchOrder, table: str, row: Mapping[str, Any]) -> None:
    # A participant with files of its own: the training goes on with those of its ranks.
    folder = Path(order.folder)
    name = FileName(table, order.attempt, "", rank=0, role=ROLE)
    writer = LineWriter(folder, name, mode=run_folder.file_rights(folder))
    writer.append(encode_line(row))
    writer.close()


def main() -> int:
    from trainvitals.bench.measuring import measure

    order = BenchOrder(**json.loads(sys.stdin.read()))
    try:
        found = measure(Plan.parse(dict(order.plan)), step=order.step)
        write_result(order, replace(found, model=order.name))
    except Exception as error:  # noqa: BLE001 - nobody sees what a process in the background prints
        text = error.message if isinstance(error, TrainvitalsError) else f"{type(error).__name__}: {error}"
        _write_event(order, FAILED_EVENT, f"no benchmark: {text}", "warning")
        return 1
    finally:
        shutil.rmtree(order.work, ignore_errors=True)
    return 0


def describe_refusal(error: TrainvitalsError) -> str:
    return f"no benchmark: {error.message}{f' ({error.hint})' if error.hint else ''}"


if __name__ == "__main__":
    sys.exit(main())

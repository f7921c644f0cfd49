"""A benchmark, from the parent's side: children for the variants, correctness first, then interleaved rounds.

Each variant has a process of its own, for allocators and thread pools would leak from one to the next. They are timed
in turn, a short round each, so that what slows the machine for a while slows all of them. Then all of them again in
new processes: one is faster than the next by where its memory happens to lie, which no number of rounds shows.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from trainvitals.analysis import timings
from trainvitals.analysis.wording import count_of, percent
from trainvitals.bench import machine
from trainvitals.bench.agreement import Arrays, compare_outputs
from trainvitals.bench.child import ChildFailure, ModelProcess
from trainvitals.bench.inputs import InputSpec, describe_inputs
from trainvitals.bench.model_files import read_size
from trainvitals.bench.plan import AHEAD_OF_TIME, BY_NAME, MOST_BATCH, ONNX_VARIANTS, Plan
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.benchmark import (
    FAILED,
    MEASURED,
    NOT_RANKED,
    UNAVAILABLE,
    Agreement,
    Benchmark,
    Generation,
    MeasuredVariant,
    ModelMemory,
    Peak,
    new_benchmark,
)

MB = 1 << 20
ROUNDS = 48
"""Into which the time of a variant is divided, in all of its processes."""
ENOUGH_ROUNDS = 4
"""Of one process, if it is precise by then."""
SHORTEST_ROUND = 0.02
MOST_CALLS = 100_000
WARM_UP_SHARE = 0.3
LATER_WARM_UP_SHARE = 0.1
"""Of the second process and those that follow: caches on disk are warm by then."""
MEMORY_SHARE = 0.5
"""Of the memory that is free: what the search for the largest batch may take."""
SLOWEST_BATCH = 30.0
"""Seconds of one call after which the search ends."""
BASELINE = "baseline"
"""The row of the model that this one is compared with."""
SIZE_ONLY = (".safetensors", ".gguf")

ENERGY_LEAD, ENERGY_SECONDS = 1.5, 6.0
"""Of each variant alone on its GPU, without a break. A driver's power is a mean of the last second, and the agent reads
it once a second."""

Report = Callable[[str, float | None], None]
"""What is being done, and about how many seconds are left."""
ReadPower = Callable[[float, float], float | None]


@dataclass
class _Case:
    """One variant with one batch while it is measured, in one process after the other."""

    child: ModelProcess
    row: MeasuredVariant
    answers: Arrays = ()
    processes: list[list[tuple[float, ...]]] = field(default_factory=list)
    """The rounds of each."""
    cpu: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    between_tokens: list[float] = field(default_factory=list)
    is_done: bool = False

    @property
    def rounds(self) -> list[tuple[float, ...]]:
        return [part for process in self.processes for part in process]

    @property
    def last_calls(self) -> list[float]:
        """Of the process that runs."""
        return [value for part in self.processes[-1] for value in part]

    def fail(self, failure: ChildFailure) -> None:
        self.row = replace(self.row, state=UNAVAILABLE if failure.unavailable else FAILED, reason=failure.reason)
        self.is_done = True


def measure(
    plan: Plan,
    report: Report = lambda what, left: None,
    *,
    step: int | None = None,
    seen: Callable[[], Mapping[str, float]] = dict,
    power: ReadPower | None = None,
) -> Benchmark:
    """Measure the model. What a variant cannot do is a row with the reason; TrainvitalsError if the model itself
    cannot be loaded. `seen` is asked at the end what the agent saw meanwhile (`machine.read_hardware`), and `power`
    what the GPU drew between two moments (`machine.read_power`)."""
    found = new_benchmark(plan.target, device=plan.device, step=step, machine=machine.describe_machine())
    begin, load = time.monotonic(), machine.read_load()
    if plan.only_size or plan.target.endswith(SIZE_ONLY):
        return _only_size(found, plan)
    with tempfile.TemporaryDirectory(prefix="trainvitals-bench-") as work:
        session = _Session(plan, Path(work), report, measures_energy=power is not None and is_on_gpu(plan))
        rows = [row for threads in plan.threads for row in session.measure_all(threads)]
        largest = session.find_largest_batches() if plan.largest_batch else {}
    load_after = machine.read_load()
    hardware = seen()
    if power is not None:
        rows = session.add_energy(rows, power)
    facts = {
        **found.machine,
        "baseline": plan.baseline_name,
        "versions": session.versions,
        "load_before": load,
        "load_after": load_after,
    }
    return replace(
        found,
        seconds=time.monotonic() - begin,
        inputs=describe_inputs(session.specs),
        machine=facts,
        results=tuple(rows),
        largest_batch=largest,
        checks=tuple(session.checks),
        sensitivity=session.sensitivity,
        peaks=tuple(session.peaks),
        warnings=tuple(machine.explain(rows, max(load, load_after), hardware, plan.device)),
    )


def is_on_gpu(plan: Plan) -> bool:
    """Whether the power of a GPU is that of the model."""
    return not plan.device.startswith("cpu")


def _only_size(found: Benchmark, plan: Plan) -> Benchmark:
    path = Path(plan.target)
    if not path.exists():
        raise TrainvitalsError(f"no such file: {path}")
    size = read_size(path)
    has_code = plan.only_size and not plan.target.endswith(SIZE_ONLY)
    row = MeasuredVariant(
        variant="file",
        state=NOT_RANKED,
        reason="not loaded"
        if has_code
        else f"weights only; to time them, pass the code: my_models:make_model --weights {path.name}",
        disk_mb=size.disk_bytes / MB,
        parameters=size.parameters,
        bytes_by_dtype=size.bytes_by_dtype,
    )
    return replace(found, results=(row,))


class _Session:
    """What the children of one benchmark share."""

    def __init__(self, plan: Plan, work: Path, report: Report, *, measures_energy: bool = False) -> None:
        self.specs: tuple[InputSpec, ...] = plan.inputs
        self.versions: dict[str, str] = {}
        self.checks: list[str] = []
        self.sensitivity: float | None = None
        self.peaks: list[Peak] = []
        self._plan = plan
        self._measures_energy = measures_energy
        self._alone: dict[str, tuple[float, float, float]] = {}
        """By the name of a row: from when to when it had the GPU for itself, and its items per second then."""
        self._work = work
        self._report = report
        self._free = plan.cores or machine.allowed_cores()
        self._seconds_to_export: dict[Path, float] = {}
        self._seconds_to_load = 0.0
        self._processes_left = plan.processes * len(plan.threads)

    @property
    def _names(self) -> tuple[str, ...]:
        """The rows of each batch, the reference first."""
        return (BASELINE, *self._plan.variants) if self._plan.has_baseline else self._plan.variants

    # -- the children

    def measure_all(self, threads: int) -> list[MeasuredVariant]:
        """Every variant and batch with this number of threads."""
        if threads > len(self._free):
            reason = f"{threads} threads need as many cores: this process may use {len(self._free)}"
            return [
                MeasuredVariant(variant=name, batch=batch, threads=threads, state=UNAVAILABLE, reason=reason)
                for batch in self._plan.batches or (1,)
                for name in self._names
            ]
        with contextlib.ExitStack() as stack:
            loaded, missing = self._load_all(stack, threads)
            cases = [
                _Case(child, replace(row, batch=batch), is_done=row.state != MEASURED)
                for batch in self._batches
                for child, row in [*loaded, *missing]
            ]
            for batch in self._batches:
                self._measure_first([case for case in cases if case.row.batch == batch], batch)
            # Last, for counting imports much that would be taken for the model's memory.
            self._count_work(loaded[0][0], threads, cases)
        for number in range(1, self._plan.processes):
            self._processes_left -= 1
            self._measure_again(cases, number, threads)
        self._processes_left -= 1
        for case in cases:
            if case.row.state == MEASURED:
                self._summarize(case)
        references = {case.row.batch: case.row for case in cases if case.row.reference}
        rows = [judge(case.row, references[case.row.batch]) for case in cases]
        return sorted(rows, key=lambda row: (row.batch, self._names.index(row.variant)))

    def _load_all(
        self, stack: contextlib.ExitStack, threads: int
    ) -> tuple[list[tuple[ModelProcess, MeasuredVariant]], list[tuple[ModelProcess, MeasuredVariant]]]:
        """A process of each variant with what is known of it so far, and those that cannot be had."""
        loaded: list[tuple[ModelProcess, MeasuredVariant]] = []
        missing: list[tuple[ModelProcess, MeasuredVariant]] = []
        begin = time.monotonic()
        for name in self._names:
            child = stack.enter_context(self._start(name, threads))
            row = MeasuredVariant(variant=name, threads=threads, reference=name == self._names[0])
            try:
                loaded.append((child, self._load(child, row)))
            except ChildFailure as failure:
                if row.reference or (self._plan.has_baseline and len(loaded) < 2):
                    target = self._plan.target if name != BASELINE else self._plan.baseline_name
                    raise TrainvitalsError(f"cannot measure {target}: {failure.reason}") from None
                state = UNAVAILABLE if failure.unavailable else FAILED
                missing.append((child, replace(row, state=state, reason=failure.reason)))
        self._seconds_to_load = time.monotonic() - begin
        return loaded, missing

    def _measure_again(self, cases: Sequence[_Case], number: int, threads: int) -> None:
        """Time in new processes what could be timed before. They are loaded in the other order each time, for the
        first one finds another machine than the last."""
        names = dict.fromkeys(case.row.variant for case in cases if not case.is_done)
        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            for name in list(names) if number % 2 == 0 else reversed(list(names)):
                self._show(f"loading {name} again, process {number + 1} of {self._plan.processes}")
                child = stack.enter_context(self._start(name, threads))
                own = [case for case in cases if case.row.variant == name and not case.is_done]
                try:
                    child.load()
                except ChildFailure as failure:
                    for case in own:
                        case.fail(failure)
                for case in own:
                    case.child = child
            self._seconds_to_load = time.monotonic() - begin
            for batch in self._batches:
                left = [case for case in cases if case.row.batch == batch and not case.is_done]
                for case in left:
                    with _failing(case):
                        seconds = self._plan.seconds * LATER_WARM_UP_SHARE
                        case.child.ask("warm_up", batch=batch, seconds=seconds)
                self._time(left, batch, number)

    def _count_work(self, child: ModelProcess, threads: int, cases: Sequence[_Case]) -> None:
        """What a call computes, by the model as it is, and the most that this machine does."""
        counted: dict[int, int | None] = {}
        for case in cases:
            if case.row.reference:
                with contextlib.suppress(
                    ChildFailure
                ):  # at this batch it fails, or it has an operator without a formula
                    counted[case.row.batch] = child.ask("flops", batch=case.row.batch)["flops"]
        for case in cases:
            # Every variant does the same work, unless it is another model.
            if case.row.reference or not self._plan.has_baseline:
                case.row = replace(case.row, flops=counted.get(case.row.batch))
        if any(counted.values()):
            self._show("measuring the peak of this machine")
            with contextlib.suppress(ChildFailure):
                self.peaks.append(Peak(threads=threads, **child.ask("peak")))

    def _start(self, variant: str, threads: int) -> ModelProcess:
        # The last cores: the first ones serve interrupts on most machines.
        cores = self._free[-threads:]
        if variant != BASELINE:
            return ModelProcess(self._plan, variant, threads, cores, self._work)
        work = self._work / BASELINE
        work.mkdir(exist_ok=True)
        return ModelProcess(self._plan.baseline, self._plan.variants[0], threads, cores, work)

    def _load(self, child: ModelProcess, row: MeasuredVariant) -> MeasuredVariant:
        converted = self._convert(child)
        self._show(f"loading {child.variant}")
        found = child.load()
        if row.reference:
            self.specs = tuple(InputSpec(tuple(shape), *rest) for shape, *rest in found["inputs"])
            self._plan = replace(self._plan, inputs=self.specs, batches=self._plan.batches or (self.specs[0].shape[0],))
            self._note(found["remarks"])
        self.versions |= found["versions"]
        by_dtype = found.get("bytes_by_dtype") or {}
        return replace(
            row,
            load_seconds=found["load_seconds"],
            convert_seconds=converted if converted is not None else found["convert_seconds"],
            parameters=found.get("parameters"),
            bytes_by_dtype=by_dtype,
            memory=ModelMemory(weights=sum(by_dtype.values()) / MB) if by_dtype else ModelMemory(),
        )

    def _convert(self, child: ModelProcess) -> float | None:
        """Seconds that it took to make the files of an ONNX variant; None where there is nothing to make."""
        is_file = child.plan.target.endswith(".onnx")
        if child.variant not in ONNX_VARIANTS or (is_file and child.variant == "onnx"):
            return None
        self._show(f"converting to {child.variant}")
        with ModelProcess(child.plan, child.variant, child.threads, child.cores, child.work) as converter:
            if not is_file and child.work not in self._seconds_to_export:
                self._seconds_to_export[child.work] = converter.convert("onnx", self._batches)
            seconds = converter.convert(child.variant, self._batches) if child.variant != "onnx" else 0.0
        # int8 would have needed the export as well, whoever asked for it first.
        return self._seconds_to_export.get(child.work, 0.0) + seconds

    @property
    def _batches(self) -> tuple[int, ...]:
        return self._plan.batches or (self.specs[0].shape[0],)

    # -- one batch

    def _measure_first(self, cases: Sequence[_Case], batch: int) -> None:
        """Answers, memory and sizes, which one process shows as well as several, and the first times."""
        reference = cases[0]
        for case in cases:
            if not case.is_done:
                self._show(f"{case.child.variant}, batch {batch}: checking outputs")
                with _failing(case):
                    self._check(case, reference, batch)
        for case in cases:
            if not case.is_done:
                with _failing(case):
                    self._warm_up(case, batch)
        self._time([case for case in cases if not case.is_done], batch, 0)
        for case in cases if self._measures_energy else ():
            if not case.is_done:
                with _failing(case):
                    self._run_alone(case, batch)
        for case in cases:
            if case.row.state in (MEASURED, NOT_RANKED):
                with _failing(case):
                    self._read_sizes(case)

    def _check(self, case: _Case, reference: _Case, batch: int) -> None:
        path = self._work / f"answers.{case.child.pid}.npz"
        found = case.child.ask("outputs", batch=batch, path=str(path))
        with np.load(path) as stored:
            case.answers = [stored[name] for name in stored.files]
        path.unlink()
        case.row = replace(
            case.row,
            latency=replace(case.row.latency, first=found["first_ms"]),
            compile_seconds=found["first_ms"] / 1000 if found["compiled"] else None,
            bytes_moved=_bytes_moved(case.row, found["input_and_output_bytes"]),
        )
        if case is reference:
            checked = case.child.ask("check", batch=batch)
            self._note(checked["checks"])
            self.sensitivity = self.sensitivity if self.sensitivity is not None else checked["sensitivity"]
            agreement = None
        elif reference.row.state == FAILED:
            raise ChildFailure(f"the reference failed at this batch: {reference.row.reason}")
        else:
            agreement = compare_outputs(reference.answers, case.answers, self._plan.tolerance)
        if self._plan.metric is not None:
            value = case.child.ask("metric", name=self._plan.metric)["value"]
            agreement = replace(agreement or Agreement(within=True), metric=value)
        case.row = replace(case.row, agreement=agreement)
        unranked = found["unranked"] or (BY_NAME[case.child.variant].unranked if self._plan.device == "cpu" else "")
        if agreement is not None and not agreement.within and not self._plan.has_baseline:
            error = agreement.relative_error or 0.0
            unranked = f"its answers are off by {percent(error)} (tolerance {percent(self._plan.tolerance)})"
        if unranked:
            case.row = replace(case.row, state=NOT_RANKED, reason=unranked)
            case.is_done = True

    def _warm_up(self, case: _Case, batch: int) -> None:
        self._show(f"{case.child.variant}, batch {batch}: warming up")
        found = case.child.ask("warm_up", batch=batch, seconds=self._plan.seconds * WARM_UP_SHARE)
        latency = replace(case.row.latency, warm_up=found["calls"], steady=found["steady"])
        case.row = replace(case.row, latency=latency)

    def _time(self, cases: Sequence[_Case], batch: int, process: int) -> None:
        """Rounds in turn, until all are precise or this process's share of the time is over."""
        timed = [case for case in cases if not case.is_done]
        share = self._plan.seconds / self._plan.processes
        length = max(share / max(ROUNDS // self._plan.processes, ENOUGH_ROUNDS), SHORTEST_ROUND)
        begin = time.monotonic()
        limit = share * len(timed)
        number = 0
        for case in timed:
            case.processes.append([])
        while timed and (time.monotonic() - begin < limit or not number):
            left = max(limit - (time.monotonic() - begin), 0.0)
            several = f", process {process + 1} of {self._plan.processes}" if self._plan.processes > 1 else ""
            self._show(f"batch {batch}{several}: round {number + 1}", left)
            for at in timings.schedule(len(timed), process + number):
                case = timed[at]
                with _failing(case):
                    self._time_round(case, batch, length)
            timed = [case for case in timed if not case.is_done]
            number += 1
            if number >= ENOUGH_ROUNDS and all(timings.is_precise(c.last_calls, self._plan.precision) for c in timed):
                break

    def _time_round(self, case: _Case, batch: int, length: float) -> None:
        if self._plan.is_generator:
            found = case.child.ask("generate", batch=batch, calls=1)
            case.first_tokens += found["first_ms"]
            case.between_tokens += found["each_ms"]
        else:
            found = case.child.ask("round", batch=batch, seconds=length, most=MOST_CALLS // ROUNDS)
            case.cpu.append(found["cpu_share"])
        case.processes[-1].append(tuple(round(value, 6) for value in found["ms"]))

    def _run_alone(self, case: _Case, batch: int) -> None:
        """Without a break, while the other variants wait: in rounds nobody knows whose power it was."""
        self._show(f"{case.child.variant}, batch {batch}: measuring energy", ENERGY_LEAD + ENERGY_SECONDS)
        self._keep_busy(case, batch, ENERGY_LEAD)
        begin = time.time()
        calls = self._keep_busy(case, batch, ENERGY_SECONDS)
        end = time.time()
        self._alone[case.row.name] = begin, end, calls * batch / (end - begin)

    def _keep_busy(self, case: _Case, batch: int, seconds: float) -> int:
        """The number of calls."""
        calls, begin = 0, time.monotonic()
        while (left := begin + seconds - time.monotonic()) > 0:
            if self._plan.is_generator:
                calls += len(case.child.ask("generate", batch=batch, calls=1)["ms"])
            else:
                calls += len(case.child.ask("round", batch=batch, seconds=left, most=MOST_CALLS, skipped=0)["ms"])
        return calls

    def add_energy(self, rows: list[MeasuredVariant], power: ReadPower) -> list[MeasuredVariant]:
        """Joules per item of each row whose GPU was read often enough while it had that for itself."""
        found = []
        for row in rows:
            begin, end, rate = self._alone.get(row.name, (0.0, 0.0, 0.0))
            watts = power(begin, end) if rate and row.items_per_second else None
            found.append(replace(row, joules_per_item=watts / rate) if watts is not None else row)
        return found

    def _read_sizes(self, case: _Case) -> None:
        if case.row.state == MEASURED:
            case.row = replace(case.row, memory=replace(case.row.memory, **case.child.ask("memory")))
        disk = case.child.ask("disk")["disk_bytes"]
        case.row = replace(case.row, disk_mb=disk / MB if disk is not None else None)

    def _summarize(self, case: _Case) -> None:
        batch = case.row.batch
        found = timings.summarize([value for part in case.rounds for value in part])
        between = timings.process_interval(medians_of(case.processes))
        interval = between.including(found.median) if between is not None else found.interval
        latency = replace(
            case.row.latency,
            calls=found.calls,
            median=found.median,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            p90=found.percentiles.get(90),
            p95=found.percentiles.get(95),
            p99=found.percentiles.get(99),
            lowest=found.lowest,
            mean=found.mean,
            jitter=found.jitter,
            outliers=found.outliers,
            drift=found.drift,
            cpu_share=float(np.median(case.cpu)) if case.cpu else None,
        )
        case.row = replace(
            case.row,
            latency=latency,
            items_per_second=batch * 1000 / found.median if found.median else None,
            rounds=tuple(case.rounds),
            processes=tuple(map(len, case.processes)),
            generation=self._describe_generation(case, batch) if case.first_tokens else None,
        )

    def _describe_generation(self, case: _Case, batch: int) -> Generation:
        first = float(np.median(case.first_tokens))
        each = float(np.median(case.between_tokens)) if case.between_tokens else None
        prompt = self.specs[0].shape[1]
        return Generation(
            prompt=prompt,
            generated=self._plan.generate,
            first_token=first,
            per_token=each,
            prefill_tokens_per_second=batch * prompt * 1000 / first,
            decode_tokens_per_second=batch * 1000 / each if each else None,
        )

    # -- the largest batch

    def find_largest_batches(self) -> dict[str, int]:
        """Of each variant, doubling and then halving the step, in a process that may die of it."""
        found = {}
        for name in self._plan.variants:
            if name == AHEAD_OF_TIME:
                continue  # it compiles for minutes for each batch
            with contextlib.suppress(ChildFailure):
                found[name] = self._find_largest_batch(name)
        return found

    def _find_largest_batch(self, variant: str) -> int:
        limit = read_available_mb() * MEMORY_SHARE
        good, bad, candidate = 0, MOST_BATCH + 1, 1
        with contextlib.ExitStack() as stack:
            child: ModelProcess | None = None
            while good < candidate < bad:
                self._show(f"{variant}: trying a batch of {candidate:,}")
                try:
                    if child is None:
                        child = stack.enter_context(self._start(variant, max(self._plan.threads)))
                        child.load()
                        child.ask("limit_memory", mb=limit)
                    seconds = child.ask("try_batch", batch=candidate)["seconds"]
                except ChildFailure as failure:
                    if not candidate or failure.unavailable:
                        raise
                    seconds = SLOWEST_BATCH
                    child = child if child is not None and child.is_alive else None
                if seconds < SLOWEST_BATCH:
                    good = candidate
                else:
                    bad = candidate
                if bad - good <= max(good // 16, 1):
                    break
                candidate = min(good * 2, MOST_BATCH) if bad > MOST_BATCH else (good + bad) // 2
        if not good:
            raise ChildFailure("not even a batch of 1 runs")
        return good

    # --

    def _note(self, remarks: Sequence[str]) -> None:
        self.checks += [text for text in remarks if text not in self.checks]

    def _show(self, what: str, left: float | None = None) -> None:
        batches = max(len(self._plan.batches), 1)
        one = self._plan.seconds / self._plan.processes * len(self._names) * batches + self._seconds_to_load
        self._report(what, left + one * max(self._processes_left - 1, 0) if left is not None else None)


@contextlib.contextmanager
def _failing(case: _Case) -> Iterator[None]:
    """What a variant cannot do ends its case and nothing else."""
    try:
        yield
    except ChildFailure as failure:
        case.fail(failure)


def _bytes_moved(row: MeasuredVariant, inputs_and_outputs: int) -> int | None:
    """None where the weights are not known."""
    return sum(row.bytes_by_dtype.values()) + inputs_and_outputs if row.parameters is not None else None


def judge(row: MeasuredVariant, reference: MeasuredVariant) -> MeasuredVariant:
    """With its verdict against the reference: speed with its interval, and size."""
    if row.reference:
        return replace(row, verdict="reference" if row.state == MEASURED else "")
    if not row.is_ranked or not reference.is_ranked:
        return row
    ratio = compare_rows(reference, row)
    verdict = [str(ratio) if ratio is not None else too_few_processes(reference, row)]
    if row.disk_mb and reference.disk_mb and reference.disk_mb / row.disk_mb >= 1.1:
        verdict.append(f"{reference.disk_mb / row.disk_mb:.1f}x smaller")
    row = replace(row, verdict=", ".join(verdict))
    if ratio is None:
        return row
    return replace(row, ratio=ratio.value, ratio_low=ratio.low, ratio_high=ratio.high)


def compare_rows(baseline: MeasuredVariant, row: MeasuredVariant, *, paired: bool = True) -> timings.Ratio | None:
    """How many times as long `row` takes; `paired` if both were timed in the same rounds."""
    return timings.compare_processes(*(medians_of(item.rounds_by_process) for item in (baseline, row)), paired=paired)


def too_few_processes(*rows: MeasuredVariant) -> str:
    fewest = min(len(row.rounds_by_process) for row in rows)
    return f"not compared ({count_of(fewest, 'process', 'processes')}, takes {timings.FEWEST_PROCESSES})"


def medians_of(processes: Iterable[Sequence[Sequence[float]]]) -> list[list[float]]:
    """Of each process the median of each round."""
    return [[float(np.median(part)) for part in process if part] for process in processes if any(process)]


def find_knee(rows: Sequence[MeasuredVariant], share: float = 0.9) -> Mapping[str, int]:
    """By variant: the smallest batch with 90 % of its highest throughput, where a larger one only waits longer. Absent
    where that is the largest: the knee may lie beyond."""
    found: dict[str, int] = {}
    for variant in dict.fromkeys(row.variant for row in rows if row.is_ranked):
        rates = {r.batch: r.items_per_second or 0.0 for r in rows if r.variant == variant and r.is_ranked}
        if len(rates) > 1:
            best = max(rates.values())
            knee = min(batch for batch, rate in rates.items() if rate >= share * best)
            if knee < max(rates):
                found[variant] = knee
    return found


def read_available_mb(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Memory that is free for a new process."""
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    return 0.0

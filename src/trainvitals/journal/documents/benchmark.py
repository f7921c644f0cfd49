"""benchmarks/*.json: how fast, large and exact a model is, measured once, with everything that was timed.

One file per measurement: that of `trainvitals bench`, or those of a training's checkpoints, by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from trainvitals.journal.documents.fields import (
    Document,
    document,
    entry,
    finite,
    flag,
    list_of,
    mapping,
    mapping_of,
    real,
    text,
    texts,
    whole,
)
from trainvitals.journal.encoding import format_time

FORMAT = 1

MEASURED = "measured"
NOT_RANKED = "not ranked"
"""It ran, and its speed or its answers say nothing about the method: `reason` has why."""
FAILED = "failed"
UNAVAILABLE = "unavailable"
"""Not to be had on this machine: a library, a compiler, a device is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency(Document):
    """Milliseconds of one call."""

    calls: int = entry(whole, 0)
    median: float | None = entry(finite, None)
    low: float | None = entry(finite, None)
    high: float | None = entry(finite, None)
    """The 95 % interval of the median."""
    p90: float | None = entry(finite, None)
    p95: float | None = entry(finite, None)
    p99: float | None = entry(finite, None)
    lowest: float | None = entry(finite, None)
    mean: float | None = entry(finite, None)
    jitter: float | None = entry(finite, None)
    outliers: int = entry(whole, 0)
    drift: float | None = entry(finite, None)
    first: float | None = entry(finite, None)
    """The first call of all, in a new process."""
    warm_up: int = entry(whole, 0)
    """Calls before the times were steady, which are not counted."""
    steady: bool = entry(flag, False)
    cpu_share: float | None = entry(finite, None)
    """CPU time by wall time, of all threads: 1 is one busy core. Well below the number of threads, the calls waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement(Document):
    """How far the answers are from those of the reference, for the same inputs."""

    max_error: float | None = entry(real, None)
    relative_error: float | None = entry(real, None)
    """The L2 norm of the difference by that of the reference."""
    cosine: float | None = entry(real, None)
    kl: float | None = entry(real, None)
    """Mean Kullback-Leibler divergence of the softmax over the last axis, in nats."""
    top1: float | None = entry(real, None)
    """Share of rows with the same largest value."""
    metric: float | None = entry(real, None)
    """What the user's own function returned."""
    within: bool = entry(flag, False)
    """Within the tolerance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMemory(Document):
    """MB. Of a process, above what it held before the model was loaded: the libraries are not the model's."""

    weights: float | None = entry(finite, None)
    load_peak: float | None = entry(finite, None)
    peak: float | None = entry(finite, None)
    """During inference."""
    private: float | None = entry(finite, None)
    """Not shared with any other process, after inference."""
    device_allocated: float | None = entry(finite, None)
    device_reserved: float | None = entry(finite, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation(Document):
    """A model that makes one token after the other; milliseconds, medians over the calls."""

    prompt: int | None = entry(whole, None)
    generated: int | None = entry(whole, None)
    first_token: float | None = entry(finite, None)
    per_token: float | None = entry(finite, None)
    prefill_tokens_per_second: float | None = entry(finite, None)
    decode_tokens_per_second: float | None = entry(finite, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredVariant(Document):
    """One variant with one batch size and number of threads."""

    variant: str = entry(text, "")
    batch: int = entry(whole, 1)
    threads: int | None = entry(whole, None)
    state: str = entry(text, MEASURED)
    reason: str = entry(text, "")
    reference: bool = entry(flag, False)
    latency: Latency = entry(document(Latency), Latency())
    items_per_second: float | None = entry(finite, None)
    ratio: float | None = entry(finite, None)
    """How many times as long it takes as the reference, with the 99 % interval."""
    ratio_low: float | None = entry(finite, None)
    ratio_high: float | None = entry(finite, None)
    verdict: str = entry(text, "")
    memory: ModelMemory = entry(document(ModelMemory), ModelMemory())
    disk_mb: float | None = entry(finite, None)
    parameters: int | None = entry(whole, None)
    bytes_by_dtype: Mapping[str, int] = entry(mapping_of(whole), {})
    flops: int | None = entry(whole, None)
    """Of one call: matrix products, convolutions and attention; others are not counted."""
    bytes_moved: int | None = entry(whole, None)
    """The least that a call must move: its weights, inputs and answers once each."""
    load_seconds: float | None = entry(finite, None)
    convert_seconds: float | None = entry(finite, None)
    compile_seconds: float | None = entry(finite, None)
    """Of the first call, where that compiles."""
    agreement: Agreement | None = entry(document(Agreement), None)
    generation: Generation | None = entry(document(Generation), None)
    joules_per_item: float | None = entry(finite, None)
    rounds: tuple[tuple[float, ...], ...] = entry(list_of(list_of(finite)), ())
    """Every call that was timed, in milliseconds, by round."""
    processes: tuple[int, ...] = entry(list_of(whole), ())
    """How many of these rounds each process made, one after the other; absent where there was one."""

    @property
    def name(self) -> str:
        """What tells the rows of one measurement apart: `int8-ort/b8/t2`."""
        threads = f"/t{self.threads}" if self.threads is not None else ""
        return f"{self.variant}/b{self.batch}{threads}"

    @property
    def rounds_by_process(self) -> list[tuple[tuple[float, ...], ...]]:
        ends = list(accumulate(self.processes or (len(self.rounds),)))
        return [self.rounds[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]

    @property
    def is_ranked(self) -> bool:
        return self.state == MEASURED and self.latency.median is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak(Document):
    """The most that this machine does with so many threads, measured: what a model is held against."""

    threads: int | None = entry(whole, None)
    flops_per_second: float | None = entry(finite, None)
    """A product of two large matrices in 32 bits."""
    bytes_per_second: float | None = entry(finite, None)
    """A copy of what no cache holds, read and written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Document):
    """One measurement of one model."""

    format: int | None = entry(whole, None)
    started: str | None = entry(text, None)
    seconds: float | None = entry(finite, None)
    model: str = entry(text, "")
    """The file, folder or factory, or the class of a model in memory."""
    inputs: str = entry(text, "")
    device: str = entry(text, "cpu")
    step: int | None = entry(whole, None)
    """Of the training, where it is one of its checkpoints."""
    machine: Mapping[str, Any] = entry(mapping, {})
    """CPU, governor, cores, versions, load before and after."""
    results: tuple[MeasuredVariant, ...] = entry(list_of(document(MeasuredVariant)), ())
    largest_batch: Mapping[str, int] = entry(mapping_of(whole), {})
    """By variant: the largest batch that ran before memory or the limit of the search ended it."""
    peaks: tuple[Peak, ...] = entry(list_of(document(Peak)), ())
    checks: tuple[str, ...] = entry(texts, ())
    """What is wrong with the model's answers, whatever its speed: NaN, batches that change an answer."""
    sensitivity: float | None = entry(finite, None)
    """By how much the answers change for inputs that are a little different, both relative: 1 is as much."""
    warnings: tuple[str, ...] = entry(texts, ())
    """What makes these figures less sure, and what to do."""

    @property
    def reference(self) -> MeasuredVariant | None:
        return next((row for row in self.results if row.reference), None)


def new_benchmark(model: str, **more: Any) -> Benchmark:
    """One that begins now."""
    return Benchmark(format=FORMAT, started=format_time(), model=model, **more)

"""Benchmarks as tables and plain values: the command, the page and the report show the same.
Tested in tests/views/cli/test_bench.py."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainvitals.analysis.comparison import SURE, Verdict
from trainvitals.analysis.robust import scale_of
from trainvitals.analysis.timings import OUTLIER_SCALES
from trainvitals.analysis.wording import percent
from trainvitals.bench.measuring import compare_rows, find_knee, too_few_processes
from trainvitals.bench.plan import MOST_BATCH
from trainvitals.journal.contracts import Reader
from trainvitals.journal.documents.benchmark import (
    FAILED,
    MEASURED,
    UNAVAILABLE,
    Benchmark,
    Generation,
    MeasuredVariant,
)
from trainvitals.journal.encoding import spell_all
from trainvitals.safe_text import csv_cell
from trainvitals.views.data.quantities import NONE, format_value
from trainvitals.views.data.shapes import BenchmarkRowJson, BenchmarksJson, DistributionJson, ShownBenchmarkJson

LATENCY = "latency_ms/"
"""How the names of a benchmark's rows of metrics begin, one for each variant and batch."""
SMALLEST_ERROR = 1e-5
"""That is shown: below it are the roundings of 32 bits."""
BINS = 40
MOST_SHOWN = 50
"""The newest benchmarks of a run that a view shows; the history of all is a metric of the run."""


class ResultColumn(NamedTuple):
    """One column of the table of results."""

    title: str
    show: Callable[[MeasuredVariant], str]
    is_shown: Callable[[MeasuredVariant], bool] = lambda row: True
    """A column that no row needs is left out."""


def _ms(value: float | None) -> str:
    """`0.62 ms`, `31 µs`, `1.4 s`."""
    if value is None:
        return NONE
    number, unit = (value * 1000, "µs") if value < 0.1 else (value, "ms") if value < 1000 else (value / 1000, "s")
    return f"{format_value(number, 3)} {unit}"


def _interval(row: MeasuredVariant) -> str:
    latency = row.latency
    if latency.low is None or latency.high is None:
        return _ms(latency.median)
    middle, unit = _ms(latency.median).split(" ")
    scale = {"µs": 1000.0, "ms": 1.0, "s": 0.001}[unit]
    low, high = (format_value(value * scale, 3) for value in (latency.low, latency.high))
    return f"{middle} {unit} [{low}, {high}]"


def _rounded(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _error(row: MeasuredVariant) -> str:
    error = row.agreement.relative_error if row.agreement is not None else None
    if error is None:
        return NONE
    if error >= 0.0005 or not error:
        return percent(error)
    return f"{error * 100:.1g} %" if error >= SMALLEST_ERROR else f"< {percent(SMALLEST_ERROR, 3)}"


def _share(share: float) -> str:
    return percent(share) if share >= 0.001 else "less than 0.1 %"


def _generation(row: MeasuredVariant) -> Generation:
    return row.generation or Generation()


COLUMNS = (
    ResultColumn("variant", lambda row: row.variant),
    ResultColumn("batch", lambda row: str(row.batch)),
    ResultColumn("threads", lambda row: str(row.threads or NONE)),
    ResultColumn("latency (95 %)", _interval),
    ResultColumn("p99", lambda row: _ms(row.latency.p99)),
    ResultColumn("first token", lambda row: _ms(_generation(row).first_token), lambda row: bool(row.generation)),
    ResultColumn("per token", lambda row: _ms(_generation(row).per_token), lambda row: bool(row.generation)),
    ResultColumn(
        "tokens/s", lambda row: _rounded(_generation(row).decode_tokens_per_second), lambda row: bool(row.generation)
    ),
    ResultColumn("items/s", lambda row: _rounded(row.items_per_second)),
    ResultColumn("peak MB", lambda row: _rounded(row.memory.peak)),
    ResultColumn("disk MB", lambda row: _rounded(row.disk_mb)),
    ResultColumn("J/item", lambda row: format_value(row.joules_per_item), lambda row: row.joules_per_item is not None),
    ResultColumn("metric", lambda row: format_value(_metric(row)), lambda row: _metric(row) is not None),
    ResultColumn("error", _error),
    ResultColumn("verdict", lambda row: row.verdict),
)
KEYS = 3
"""Columns that name a row: variant, batch, threads."""


def _metric(row: MeasuredVariant) -> float | None:
    return row.agreement.metric if row.agreement is not None else None


def choose_columns(rows: Sequence[MeasuredVariant]) -> list[ResultColumn]:
    """Those that have something to show; threads only where they differ."""
    threads = len({row.threads for row in rows}) > 1
    return [
        column
        for column in COLUMNS
        if (column.title != "threads" or threads) and any(column.is_shown(row) for row in rows)
    ]


def explain_unranked(row: MeasuredVariant) -> str:
    """`not ranked: eager torchao kernels on CPU; size 1.1 MB, error 0.5 %`."""
    known = [f"size {_rounded(row.disk_mb)} MB"] if row.disk_mb is not None else []
    known += [f"error {_error(row)}"] if row.agreement is not None else []
    known += [f"{row.parameters:,} parameters"] if row.parameters and row.agreement is None else []
    sizes = {} if row.agreement else row.bytes_by_dtype
    known += [f"{_rounded(size / (1 << 20))} MB of {name}" for name, size in sizes.items()]
    more = f"; {', '.join(known)}" if known and row.state not in (FAILED, UNAVAILABLE) else ""
    return f"{row.state}: {row.reason}{more}"


def remarks_of(found: Benchmark) -> list[str]:
    """What is worth knowing beside the table."""
    baseline = found.machine.get("baseline")
    lines = [f"the baseline is {baseline}"] if baseline else []
    lines += [
        f"{names}: 90 % of the best throughput from batch {batch} on"
        for batch, names in _by_value(find_knee(found.results)).items()
    ]
    for batch, names in _by_value(found.largest_batch).items():
        ends = ", where the search ends" if batch == MOST_BATCH else ""
        lines.append(f"{names}: the largest batch that ran is {batch:,}{ends}")
    if found.sensitivity is not None:
        changed = found.sensitivity / 1000
        change = f"by {percent(changed, 2)}" if changed >= 0.00005 or not changed else "by less than 0.01 %"
        lines.append(f"inputs that are 0.1 % different change the answers {change}")
    reference = found.reference
    if reference is not None and reference.flops and reference.latency.median:
        rate = _flops_per_second(reference) or 0.0
        what = "prompt" if reference.generation is not None else "call"
        share = _share_of_peak(reference, found)
        more = f", {_share(share)} of what a large matrix product reaches here" if share is not None else ""
        lines.append(f"{reference.name}: {_flop(reference.flops)} per {what}, {_flop(rate)}/s{more}")
    return lines


def _by_value(numbers: Mapping[str, int]) -> dict[int, str]:
    """Names that have the same number beside each other."""
    return {value: ", ".join(k for k, v in numbers.items() if v == value) for value in dict.fromkeys(numbers.values())}


def _flop(count: float) -> str:
    """`16 FLOP`, `2.11 MFLOP`."""
    at = min(max(int(math.log10(count) // 3), 0), 5) if count >= 1 else 0
    return f"{count / 1000**at:.3g} {('', 'k', 'M', 'G', 'T', 'P')[at]}FLOP"


def _flops_per_second(row: MeasuredVariant) -> float | None:
    """Of a generator while it reads the prompt: one call of the model, which is what was counted."""
    took = row.generation.first_token if row.generation is not None else row.latency.median
    return row.flops * 1000 / took if row.flops and took else None


def _share_of_peak(row: MeasuredVariant, found: Benchmark) -> float | None:
    """Of the arithmetic that this machine does at most with these threads."""
    rate = _flops_per_second(row)
    peak = next((item.flops_per_second for item in found.peaks if item.threads == row.threads), None)
    return rate / peak if rate and peak else None


def warnings_of(found: Benchmark) -> list[str]:
    return [*found.checks, *found.warnings]


def make_markdown(found: Benchmark) -> str:
    """A table for a README."""
    columns = choose_columns(found.results)
    titles = [column.title for column in columns]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for row in found.results:
        if row.state == MEASURED:
            cells = [column.show(row).replace("|", "\\|") for column in columns]
        else:
            names = [column.show(row) for column in columns[: len(key_columns(columns))]]
            cells = [*names, *[""] * (len(columns) - len(names) - 1), explain_unranked(row).replace("|", "\\|")]
        lines.append(f"| {' | '.join(cells)} |")
    notes = [*remarks_of(found), *(f"**{text}**" for text in warnings_of(found))]
    return "\n".join([*lines, *([""] if notes else []), *(f"- {text}" for text in notes)]) + "\n"


def key_columns(columns: Iterable[ResultColumn]) -> list[ResultColumn]:
    return [column for column in columns if column in COLUMNS[:KEYS]]


_CSV = (
    *("variant", "batch", "threads", "state", "reason", "calls", "median_ms", "low_ms", "high_ms", "p90_ms", "p95_ms"),
    *("p99_ms", "min_ms", "mean_ms", "jitter_ms", "outliers", "first_call_ms", "items_per_second", "first_token_ms"),
    *("per_token_ms", "peak_mb", "weights_mb", "disk_mb", "parameters", "load_seconds", "convert_seconds"),
    *("compile_seconds", "max_error", "relative_error", "cosine", "kl", "top1", "metric", "ratio", "ratio_low"),
    *("ratio_high", "verdict", "flops", "flops_per_second", "peak_share", "joules_per_item"),
)


def make_csv(found: Benchmark) -> str:
    """One line per row, with every figure."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _CSV, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for row in found.results:
        latency = {f"{'min' if key == 'lowest' else key}_ms": value for key, value in row.latency.as_json().items()}
        memory = {f"{key}_mb": value for key, value in row.memory.as_json().items()}
        generation = {f"{key}_ms": value for key, value in (row.generation.as_json() if row.generation else {}).items()}
        agreement = row.agreement.as_json() if row.agreement is not None else {}
        counts = {"calls": row.latency.calls, "outliers": row.latency.outliers, "first_call_ms": row.latency.first}
        work = {"flops_per_second": _flops_per_second(row), "peak_share": _share_of_peak(row, found)}
        figures = {**latency, **memory, **generation, **agreement, **row.as_json(), **counts, **work}
        writer.writerow({key: csv_cell(item) if isinstance(item, str) else item for key, item in figures.items()})
    return text.getvalue()


# -- two runs


def compare_benchmarks(baseline: Sequence[Benchmark], other: Sequence[Benchmark]) -> list[Verdict]:
    """The newest of each: every variant and batch that both have, by the interval of the ratio."""
    if not baseline or not other:
        return []
    before = {row.name: row for row in baseline[-1].results if row.is_ranked}
    found = []
    for row in other[-1].results:
        if not row.is_ranked or row.name not in before:
            continue
        ratio = compare_rows(before[row.name], row, paired=False)
        values = before[row.name].latency.median, row.latency.median
        if ratio is None:
            why = too_few_processes(before[row.name], row)
            found.append(Verdict(f"{LATENCY}{row.name}", "uncertain", *values, None, None, why))
            continue
        word = {"faster": "better", "slower": "worse", "no difference": "same", "unsure": "uncertain"}[ratio.word]
        is_sure = SURE if word in ("better", "worse") else None
        reason = f"{ratio}, of {ratio.processes} processes each"
        found.append(Verdict(f"{LATENCY}{row.name}", word, *values, ratio.value - 1, is_sure, reason))  # type: ignore[arg-type]
    return found


# -- the page and the report


def describe_benchmarks(reader: Reader) -> BenchmarksJson:
    """All benchmarks of a run, oldest first."""
    return {"benchmarks": [describe_benchmark(item) for item in reader.benchmarks()[-MOST_SHOWN:]]}


def describe_benchmark(found: Benchmark) -> ShownBenchmarkJson:
    """With the table as every view shows it, and the distribution of the calls in place of each of them."""
    columns = choose_columns(found.results)
    slim = replace(found, results=tuple(replace(row, rounds=()) for row in found.results))
    return {
        "document": spell_all(slim.as_json()),
        "titles": [column.title for column in columns],
        "rows": [_describe_row(row, columns) for row in found.results],
        "remarks": remarks_of(found),
        "warnings": warnings_of(found),
    }


def _describe_row(row: MeasuredVariant, columns: Sequence[ResultColumn]) -> BenchmarkRowJson:
    is_timed = row.state == MEASURED
    keys = len(key_columns(columns))
    return {
        "name": row.name,
        "cells": [column.show(row) if is_timed or at < keys else "" for at, column in enumerate(columns)],
        "text": row.verdict if is_timed else explain_unranked(row),
        "distribution": _describe_distribution(row) if is_timed else None,
    }


def _describe_distribution(row: MeasuredVariant) -> DistributionJson | None:
    """Around the median: a few slow calls would flatten all others. They are counted in `outliers`."""
    calls = np.array([value for part in row.rounds for value in part])
    if len(calls) < BINS:
        return None
    high = min(float(np.percentile(calls, 99)), float(np.median(calls)) + OUTLIER_SCALES * scale_of(calls))
    counts, edges = np.histogram(calls, bins=BINS, range=(float(calls.min()), high))
    middles = (edges[1:] + edges[:-1]) / 2
    return {"ms": [round(float(value), 6) for value in middles], "percent": (100 * counts / len(calls)).tolist()}

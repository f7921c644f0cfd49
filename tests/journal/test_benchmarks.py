"""The benchmarks of a run folder."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from trainvitals.journal.benchmarks import read_benchmarks, write_benchmark
from trainvitals.journal.documents.benchmark import Agreement, Benchmark, Latency, MeasuredVariant, new_benchmark

ROW = MeasuredVariant(
    variant="int8",
    latency=Latency(calls=3, median=1.5),
    agreement=Agreement(max_error=math.inf, within=False),
    rounds=((1.0, 1.5), (2.0,)),
    bytes_by_dtype={"int8": 10},
)


def test_what_is_written_is_read_in_order_of_steps(tmp_path: Path) -> None:
    later, first = new_benchmark("m", step=200, results=(ROW,)), new_benchmark("m", step=30, results=(ROW,))
    for found in (later, first, replace(first, inputs="1x3")):
        write_benchmark(tmp_path, found)
    assert read_benchmarks(tmp_path) == [first, replace(first, inputs="1x3"), later]


def test_a_damaged_file_hides_no_other(tmp_path: Path) -> None:
    write_benchmark(tmp_path, new_benchmark("m"))
    (tmp_path / "benchmarks" / "000000000-x.json").write_text("{")
    assert len(read_benchmarks(tmp_path)) == 1
    assert read_benchmarks(tmp_path / "elsewhere") == []


def test_nonsense_is_an_empty_document() -> None:
    found = Benchmark.parse({"results": [{"latency": 3, "rounds": [["a", 1.0], 5]}, 7], "machine": []})
    assert found.results[0].rounds == ((1.0,),)
    assert found.results[0].latency == Latency()
    assert not found.results[0].is_ranked

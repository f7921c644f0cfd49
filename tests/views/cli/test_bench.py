"""`trainvitals bench`: the command as a whole, and how its results are shown."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

from trainvitals.journal import folder as run_folder
from trainvitals.journal.benchmarks import write_benchmark, write_rows
from trainvitals.journal.documents.benchmark import (
    NOT_RANKED,
    UNAVAILABLE,
    Agreement,
    Benchmark,
    Generation,
    Latency,
    MeasuredVariant,
    ModelMemory,
    Peak,
    new_benchmark,
)
from trainvitals.journal.documents.run import BENCHMARK, new_run
from trainvitals.journal.reader import RunReader
from trainvitals.views.cli.bench import draw_benchmark
from trainvitals.views.cli.main import main
from trainvitals.views.cli.terminal import Paint
from trainvitals.views.data.benchmark import compare_benchmarks, describe_benchmark, make_csv, make_markdown

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Linear(8, 4)

def slow():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 2048), torch.nn.Linear(2048, 2048), torch.nn.Linear(2048, 4))
"""

QUICK = ("--time", "0.2", "--processes", "1")

REFERENCE = MeasuredVariant(
    variant="fp32",
    threads=1,
    reference=True,
    latency=Latency(calls=2000, median=0.62, low=0.61, high=0.64, p99=0.71, lowest=0.6, outliers=14),
    items_per_second=1610.0,
    memory=ModelMemory(peak=41.2),
    disk_mb=4.2,
    verdict="reference",
    rounds=((0.62, 0.63),) * 12,
    processes=(4, 4, 4),
)
RESULT = new_benchmark(
    "model.pt2",
    results=(
        REFERENCE,
        replace(
            REFERENCE,
            variant="int8-ort",
            reference=False,
            latency=Latency(calls=2000, median=0.041, low=0.04, high=0.042),
            agreement=Agreement(relative_error=0.012, max_error=0.1, within=True),
            verdict="1.51x faster [1.48, 1.55], 3.9x smaller",
        ),
        MeasuredVariant(
            variant="int8-ao",
            threads=1,
            state=NOT_RANKED,
            reason="eager torchao kernels on CPU",
            disk_mb=1.1,
            agreement=Agreement(relative_error=0.005, within=True),
        ),
        MeasuredVariant(variant="compile", threads=1, state=UNAVAILABLE, reason="no C++ compiler: install g++"),
    ),
    largest_batch={"fp32": 512},
    checks=("training mode was on and has been turned off",),
    warnings=("the machine's load was 3.1: repeat on a quiet machine",),
)


def test_the_table_has_intervals_errors_and_the_reason_of_what_has_no_figures(capsys: Any) -> None:
    import sys

    assert draw_benchmark(RESULT, Paint(sys.stdout), None).splitlines() == [
        " variant   batch  latency (95 %)            p99  items/s  peak MB  disk MB  error  verdict",
        " fp32          1  0.62 ms [0.61, 0.64]  0.71 ms    1,610       41      4.2      -  reference",
        " int8-ort      1  41 µs [40, 42]              -    1,610       41      4.2  1.2 %  "
        "1.51x faster [1.48, 1.55], 3.9x smaller",
        " int8-ao       1  not ranked: eager torchao kernels on CPU; size 1.1 MB, error 0.5 %",
        " compile       1  unavailable: no C++ compiler: install g++",
        " fp32: the largest batch that ran is 512",
        " ! training mode was on and has been turned off",
        " ! the machine's load was 3.1: repeat on a quiet machine",
    ]


def test_a_narrow_terminal_loses_columns_and_no_word_of_a_verdict() -> None:
    import sys

    assert draw_benchmark(RESULT, Paint(sys.stdout), 76).splitlines()[:5] == [
        " variant   batch  latency (95 %)        error  verdict",
        " fp32          1  0.62 ms [0.61, 0.64]      -  reference",
        " int8-ort      1  41 µs [40, 42]        1.2 %  1.51x faster [1.48, 1.55],",
        "                                               3.9x smaller",
        " int8-ao       1  not ranked: eager torchao kernels on CPU; size 1.1 MB, error 0.5 %",
    ]
    wide = draw_benchmark(RESULT, Paint(sys.stdout), 100).splitlines()
    assert "items/s" in wide[0] and "peak MB" not in wide[0]
    assert wide[2].endswith("1.51x faster [1.48, 1.55], 3.9x smaller")


def test_numbers_have_three_digits_and_no_exponents() -> None:
    row = replace(REFERENCE, latency=Latency(calls=9, median=402.4, low=118.26, high=2068.0))
    text = make_markdown(new_benchmark("model.pt2", results=(row,), sensitivity=0.01))
    assert "402 ms [118, 2,068]" in text
    assert "change the answers by less than 0.01 %" in text


def test_generators_have_their_own_columns() -> None:
    import sys

    row = replace(REFERENCE, generation=Generation(first_token=25.0, per_token=5.0, decode_tokens_per_second=200.0))
    text = draw_benchmark(new_benchmark("llm", results=(row,)), Paint(sys.stdout), None)
    assert "first token" in text
    assert "25 ms" in text
    assert "200" in text


@pytest.mark.parametrize(
    ("error", "text"),
    [(0.12, "12 %"), (0.004, "0.4 %"), (4e-4, "0.04 %"), (2e-5, "0.002 %"), (5e-7, "< 0.001 %"), (0.0, "0.0 %")],
)
def test_errors_are_in_percent_however_small(error: float, text: str) -> None:
    row = replace(REFERENCE, agreement=Agreement(relative_error=error, within=True))
    assert f"| {text} |" in make_markdown(new_benchmark("model.pt2", results=(row,)))


def test_a_share_of_the_peak_is_never_shown_as_none() -> None:
    row, peak = replace(REFERENCE, flops=128), Peak(threads=1, flops_per_second=1e11, bytes_per_second=1e10)
    assert "less than 0.1 % of what" in make_markdown(new_benchmark("tiny", results=(row,), peaks=(peak,)))


def test_markdown_is_a_table_with_every_row() -> None:
    lines = make_markdown(RESULT).splitlines()
    assert lines[0].startswith("| variant | batch | latency (95 %) |")
    assert {line.count("|") for line in lines[:6]} == {10}
    assert "not ranked: eager torchao" in lines[4]


def test_csv_has_every_figure_by_name() -> None:
    rows = list(csv.DictReader(io.StringIO(make_csv(RESULT))))
    assert rows[0]["median_ms"] == "0.62"
    assert rows[0]["min_ms"] == "0.6"
    assert rows[0]["peak_mb"] == "41.2"
    assert rows[0]["calls"] == "2000"
    assert rows[1]["relative_error"] == "0.012"
    assert rows[3]["reason"] == "no C++ compiler: install g++"


def slower(found: Benchmark, factor: float) -> Benchmark:
    rows = [
        replace(
            row,
            rounds=tuple(tuple(value * factor for value in part) for part in row.rounds),
            latency=replace(row.latency, median=(row.latency.median or 0) * factor or None),
        )
        for row in found.results
    ]
    return replace(found, results=tuple(rows))


def test_two_results_are_compared_by_the_ratio_of_their_rounds() -> None:
    worse, same = compare_benchmarks([RESULT], [slower(RESULT, 1.5)]), compare_benchmarks([RESULT], [RESULT])
    assert [(item.metric, item.word) for item in worse] == [
        ("latency_ms/fp32/b1/t1", "worse"),
        ("latency_ms/int8-ort/b1/t1", "worse"),
    ]
    assert "1.50x slower" in worse[0].reason
    assert {item.word for item in same} == {"same"}
    assert compare_benchmarks([], [RESULT]) == []


def test_the_page_gets_the_same_table_and_the_distribution_in_place_of_every_call() -> None:
    calls = tuple(0.6 + 0.001 * at for at in range(50))
    shown = describe_benchmark(
        replace(RESULT, results=(replace(REFERENCE, rounds=(calls, (9.0,))), *RESULT.results[1:]))
    )
    assert shown["titles"][:3] == ["variant", "batch", "latency (95 %)"]
    assert shown["rows"][0]["cells"][2] == "0.62 ms [0.61, 0.64]"
    assert shown["rows"][2]["cells"][2] == ""
    assert shown["rows"][2]["text"].startswith("not ranked: eager torchao")
    assert "rounds" not in shown["document"]["results"][0]
    found = shown["rows"][0]["distribution"]
    assert found is not None
    assert sum(found["percent"]) == pytest.approx(100 * 50 / 51)
    assert max(found["ms"]) < 1
    assert shown["rows"][1]["distribution"] is None  # too few calls


def write_run(folder: Path, found: Benchmark) -> None:
    folder.mkdir(parents=True)
    now = {"facts": {}, "pid": None}
    run_folder.write_run(
        folder, new_run(folder.name, kind=BENCHMARK, project="bench", name=folder.name, **now).end("finished")
    )
    write_benchmark(folder, found)
    write_rows(folder, found)


def test_compare_and_the_report_show_benchmarks(tmp_path: Path, capsys: Any) -> None:
    write_run(tmp_path / "before", RESULT)
    write_run(tmp_path / "after", slower(RESULT, 1.5))
    names = [str(tmp_path / name) for name in ("before", "after")]
    assert main(["compare", *names, "--fail-on-regression"]) == 3
    text = capsys.readouterr().out
    assert "latency_ms/fp32/b1/t1" in text
    assert "1.50x slower" in text
    assert main(["report", names[0], "-o", "-", "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert "## Benchmark" in text
    assert "1.51x faster" in text


# -- the program


@pytest.fixture
def bench_machine(machine: Any) -> Any:
    (machine.folder / "tiny.py").write_text(MODEL)
    return machine


def test_a_benchmark_is_a_run_with_all_its_values(bench_machine: Any) -> None:
    done = bench_machine.run("bench", "tiny:make", "--input", "1x8", "--batch", "1,4", *QUICK, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [row["batch"] for row in found["results"]] == [1, 4]
    (folder,) = (bench_machine.root / "bench").iterdir()
    reader = RunReader(folder)
    assert (reader.info.file.kind, reader.info.status) == ("benchmark", "finished")
    (kept,) = reader.benchmarks()
    assert [row.latency.median for row in kept.results] == [row["latency"]["median"] for row in found["results"]]
    (series,) = reader.series(["latency_ms/fp32/b1/t1"])
    assert len(series.y) == len(kept.results[0].rounds)


def test_a_slower_model_fails_against_a_faster_one_and_not_the_other_way_round(bench_machine: Any) -> None:
    common = ("--input", "1x8", "--time", "0.5", "--processes", "3", "--fail-on-regression")
    done = bench_machine.run("bench", "tiny:slow", "--against", "tiny:make", *common)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "slower" in done.stdout
    (first,) = (bench_machine.root / "bench").iterdir()
    done = bench_machine.run("bench", "tiny:make", "--against", first.name, *common)
    assert done.returncode == 0, done.stderr
    assert "against the earlier run" in done.stderr


def test_one_that_is_ended_from_outside_leaves_no_files_behind(bench_machine: Any, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "trainvitals",
            "bench",
            "tiny:make",
            "--input",
            "1x8",
            "--time",
            "600",
            "--precision",
            "0.0001",
        ],
        env={**bench_machine.environ, "TMPDIR": str(temporary)},
        cwd=bench_machine.folder,
    )
    wait_until(lambda: list(temporary.glob("trainvitals-bench-*")), "the files of a benchmark")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    assert list(temporary.glob("trainvitals-*")) == []
    (folder,) = (bench_machine.root / "bench").iterdir()
    assert RunReader(folder).info.status == "failed"


def test_a_file_that_is_not_there_leaves_no_run(bench_machine: Any) -> None:
    before = set(bench_machine.root.glob("*/*/run.json"))
    done = bench_machine.run("bench", "nothing.pt2")
    assert done.returncode == 1 and "no such file or folder: nothing.pt2" in done.stderr
    assert set(bench_machine.root.glob("*/*/run.json")) == before


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("nowhere.pt2",), "no such file"),
        (("tiny:make",), "--input"),
        (("tiny:make", "--input", "8by3"), "is not an input"),
        (("tiny:make", "--input", "1x9", *QUICK), "it was called with --input 1x9"),
        (("tiny:make", "--input", "1x8", "--variants", "fp31"), "did you mean"),
        (("tiny:make", "--input", "1x8", "--fail-on-regression"), "needs --against"),
        (("tiny:make", "--input", "1x8", "--against", "nothing"), "no run 'nothing'"),
        (("tiny:make", "--input", "1x8", "--against-commit", "HEAD"), "needs a git repository"),
        (("tiny:make", "--batch", "0"), "not a list of positive integers"),
        (("tiny:make", "--json", "--csv"), "use one of"),
    ],
)
def test_what_cannot_be_measured_is_an_error_that_says_what_to_do(
    bench_machine: Any, arguments: tuple[str, ...], text: str
) -> None:
    done = bench_machine.run("bench", *arguments)
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr

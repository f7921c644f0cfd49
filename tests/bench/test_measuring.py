"""A benchmark as a whole, with real children."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainvitals.bench import measuring
from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.measuring import find_knee, judge, measure
from trainvitals.bench.plan import Plan
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.benchmark import (
    FAILED,
    MEASURED,
    NOT_RANKED,
    UNAVAILABLE,
    Benchmark,
    Latency,
    MeasuredVariant,
)

QUICK = {"seconds": 0.3, "processes": 1}


def plan(target: str, inputs: str, **more: Any) -> Plan:
    return Plan(target, inputs=parse_inputs(inputs), **{**QUICK, **more})


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    """A small model with the variants that differ most, two batches, and a metric of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(Path(__file__).parent)
        return measure(
            plan(
                "some_models:mlp",
                "1x64",
                batches=(1, 8),
                variants=("fp32", "onnx", "int8-ort", "int8-ao"),
                metric="some_models:mean_answer",
                processes=3,
            )
        )


def row_of(found: Benchmark, variant: str, batch: int = 1) -> MeasuredVariant:
    return next(row for row in found.results if (row.variant, row.batch) == (variant, batch))


def test_every_variant_and_batch_has_a_row_in_order(found: Benchmark) -> None:
    names = [(row.batch, row.variant) for row in found.results]
    assert names == [(batch, name) for batch in (1, 8) for name in ("fp32", "onnx", "int8-ort", "int8-ao")]
    assert found.reference is found.results[0]


def test_latency_has_its_interval_and_all_calls_are_kept(found: Benchmark) -> None:
    for variant in ("fp32", "onnx", "int8-ort"):
        row = row_of(found, variant)
        assert row.state == MEASURED
        calls = [value for part in row.rounds for value in part]
        assert row.latency.calls == len(calls)
        assert row.latency.median == pytest.approx(np.median(calls))
        assert row.latency.lowest == min(calls)
        assert row.items_per_second == pytest.approx(1000 / np.median(calls))
        assert len(row.processes) == 3
        assert [len(process) for process in row.rounds_by_process] == list(row.processes)
        assert row.latency.low is not None
        assert row.latency.high is not None
        assert row.latency.low <= row.latency.median <= row.latency.high
        assert row.ratio is not None or variant == "fp32"


def test_onnxruntime_gives_the_same_answers_and_int8_nearly(found: Benchmark) -> None:
    exact, rough = row_of(found, "onnx").agreement, row_of(found, "int8-ort").agreement
    assert exact is not None
    assert rough is not None
    assert exact.relative_error is not None
    assert rough.relative_error is not None
    assert exact.relative_error < 1e-5 < rough.relative_error < 0.05
    assert exact.metric == pytest.approx(rough.metric, abs=0.02)


def test_int8_is_smaller_and_its_conversion_is_timed_apart(found: Benchmark) -> None:
    plain, small = row_of(found, "fp32"), row_of(found, "int8-ort")
    assert plain.disk_mb is not None
    assert small.disk_mb is not None
    assert small.disk_mb < plain.disk_mb / 1.5
    assert "smaller" in small.verdict
    assert small.convert_seconds is not None
    assert row_of(found, "onnx").convert_seconds is not None
    assert small.convert_seconds > 0.1
    assert plain.convert_seconds is None


def test_eager_torchao_is_not_ranked_and_its_size_and_error_are_known(found: Benchmark) -> None:
    row = row_of(found, "int8-ao", 8)
    assert (row.state, row.reason) == (NOT_RANKED, "eager torchao kernels on CPU")
    assert row.latency.median is None
    assert row.verdict == ""
    assert row.disk_mb is not None
    assert row.agreement is not None
    assert row.agreement.within


def test_the_machine_and_the_versions_are_recorded(found: Benchmark) -> None:
    assert found.machine["cores"] >= 1
    assert {"torch", "onnxruntime", "torchao"} <= found.machine["versions"].keys()
    assert found.inputs == "1x64"
    assert found.sensitivity is not None
    assert 0.1 < found.sensitivity < 10
    flops = 2 * (64 * 128 + 128 * 16)
    assert [row_of(found, name).flops for name in ("fp32", "onnx")] == [flops, flops]
    (peak,) = found.peaks
    assert peak.threads == 1
    assert peak.flops_per_second is not None
    assert peak.flops_per_second > 1e8
    assert peak.bytes_per_second is not None
    assert peak.bytes_per_second > 1e7
    parameters = 64 * 128 + 128 + 128 * 16 + 16
    assert row_of(found, "fp32", 8).bytes_moved == 4 * (parameters + 8 * (64 + 16))


def test_it_is_the_same_after_writing_and_reading(found: Benchmark) -> None:
    assert Benchmark.parse(found.as_json()) == found


def test_a_batch_that_raises_is_a_row_with_the_reason_and_the_others_are_measured() -> None:
    found = measure(plan("some_models:SmallBatches", "1x4", batches=(2, 8), variants=("fp32", "bf16")))
    states = [(row.batch, row.variant, row.state) for row in found.results]
    assert states[:2] == [(2, "fp32", MEASURED), (2, "bf16", MEASURED)]
    assert [state for *_, state in states[2:]] == [FAILED, FAILED]
    assert "no more than 4 at a time" in found.results[2].reason


def test_more_threads_than_cores_and_a_variant_over_tolerance_are_rows_with_reasons() -> None:
    found = measure(plan("some_models:mlp", "1x64", threads=(1, 999), variants=("fp32", "bf16"), tolerance=1e-9))
    assert row_reasons(found)[0] == ("fp32", MEASURED, "")
    assert row_reasons(found)[1][1] == NOT_RANKED
    assert "its answers are off by" in row_reasons(found)[1][2]
    assert {state for _, state, reason in row_reasons(found)[2:] if "999 threads" in reason} == {UNAVAILABLE}


def row_reasons(found: Benchmark) -> list[tuple[str, str, str]]:
    return [(row.variant, row.state, row.reason) for row in found.results]


def test_a_model_that_cannot_be_loaded_is_an_error() -> None:
    with pytest.raises(TrainvitalsError, match=r"cannot measure nowhere\.pt2: no such file"):
        measure(plan("nowhere.pt2", "1x4"))


def test_an_unknown_variant_suggests_the_right_one() -> None:
    with pytest.raises(TrainvitalsError, match="did you mean 'bf16'"):
        Plan("some_models:mlp", variants=("fp32", "bf61"))


def test_an_onnx_file_needs_no_torch_and_knows_its_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import some_models

    path = tmp_path / "model.onnx"
    torch.onnx.export(some_models.mlp().eval(), (torch.zeros(1, 64),), str(path), external_data=False, verbose=False)
    (tmp_path / "torch.py").write_text("raise ImportError('there is no torch')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2] / 'src'}")
    found = measure(Plan(str(path), variants=("onnx", "fp32"), **QUICK))
    assert [(row.variant, row.state) for row in found.results] == [("onnx", MEASURED), ("fp32", UNAVAILABLE)]
    assert "torch" not in found.machine["versions"]
    assert found.results[0].parameters == 64 * 128 + 128 + 128 * 16 + 16


def test_weights_alone_are_sized_and_not_timed(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1 << 18)}, tmp_path / "model.safetensors")
    (row,) = measure(Plan(str(tmp_path / "model.safetensors"))).results
    assert (row.state, row.parameters, row.bytes_by_dtype) == (NOT_RANKED, 1 << 18, {"F32": 1 << 20})


def make_row(variant: str, batch: int, rate: float) -> MeasuredVariant:
    return MeasuredVariant(variant=variant, batch=batch, latency=Latency(median=1.0), items_per_second=rate)


def test_the_knee_is_the_smallest_batch_that_is_nearly_as_good_as_the_best() -> None:
    rates = {1: 100.0, 8: 600.0, 32: 950.0, 64: 1000.0}
    rows = [make_row("fp32", batch, rate) for batch, rate in rates.items()] + [make_row("onnx", 1, 5.0)]
    assert find_knee(rows) == {"fp32": 32}


def test_a_row_without_times_gets_no_verdict() -> None:
    timed = replace(make_row("fp32", 1, 1.0), rounds=((1.0,),) * 6, processes=(2, 2, 2))
    assert judge(MeasuredVariant(variant="x", state=FAILED), timed).verdict == ""
    assert judge(replace(timed, processes=()), timed).verdict == "not compared (1 process, takes 3)"
    assert judge(replace(timed, rounds=((2.0,),) * 6), timed).verdict.startswith("2.00x slower")


def test_the_largest_batch_is_searched_in_children_that_may_fail() -> None:
    found = measure(plan("some_models:SmallBatches", "1x4", largest_batch=True, seconds=0.05))
    assert found.largest_batch == {"fp32": 4}


def test_energy_of_a_variant_is_what_the_gpu_drew_while_it_ran_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "ENERGY_LEAD", 0.0)
    monkeypatch.setattr(measuring, "ENERGY_SECONDS", 0.2)
    asked: list[tuple[float, float]] = []

    def read_power(start: float, end: float) -> float | None:
        asked.append((start, end))
        return 100.0 if len(asked) == 1 else None

    sleeping = plan("some_models:Sleeper", "1x4", variants=("fp32", "bf16"))
    (row,) = measure(replace(sleeping, variants=("fp32",)), power=read_power).results
    assert row.latency.median is not None and row.joules_per_item is None
    assert not asked, "on a CPU, the power of a GPU says nothing"
    monkeypatch.setattr(measuring, "is_on_gpu", lambda plan: True)
    first, second = measure(sleeping, power=read_power).results
    (begin, end), (next_begin, _) = asked
    assert begin < end <= next_begin
    # A call sleeps for 4 ms, and no call is cut off.
    assert first.joules_per_item is not None and 0.4 <= first.joules_per_item <= 100.0 * (end - begin)
    assert second.joules_per_item is None, "the agent has not read it often enough"

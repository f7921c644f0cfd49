"""What each GPU of a run did, from the status files or from the series."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from made_runs import START, make_run, write

from trainvitals.analysis.gpu_use import GpuUse, GpuUses
from trainvitals.journal.documents.status import Status
from trainvitals.journal.reader import RunReader
from trainvitals.views.data.gpus import is_of_many_hosts, read_gpus

ROWS = [
    {"gpu_index": index, "gpu_uuid": f"GPU-{index}", "gpu_name": "H100", "host": "node7",
     "utilization_percent": use, "memory_percent": 50.0, "memory_used_mb": 400 + use, "memory_total_mb": 1000,
     "temperature_celsius": 60, "power_draw_watts": 100.0 + use}
    for use in (10.0, 90.0, 50.0)
    for index in (1, 0)
]  # fmt: skip


@pytest.fixture
def reader(tmp_path: Path) -> RunReader:
    folder = make_run(tmp_path / "p" / "run")
    write(folder, ROWS, "gpu_metrics_20260101_000000")
    return RunReader(folder)


def status() -> Status:
    """As an agent makes it that saw the same rows."""
    uses = GpuUses()
    for at, row in enumerate(ROWS):
        uses.add(row, row, START + at)
    return Status(host="node7", gpu_summary=uses.as_json())


def values(gpu: GpuUse) -> dict[str, Any]:
    return {
        "title": gpu.title(),
        "total": gpu.memory_total_mb,
        "joules": gpu.energy.joules,
        **{name: {**asdict(spread), "last": None} for name, spread in gpu.spreads.items()},
    }


def test_the_agents_count_and_the_recorded_series_agree(reader: RunReader) -> None:
    counted, recorded = read_gpus(reader, [status()]), read_gpus(reader, [])
    assert [values(gpu) for gpu in counted] == [values(gpu) for gpu in recorded]
    assert [gpu.title() for gpu in counted] == ["GPU 0", "GPU 1"]
    use = counted[0].spreads["utilization_percent"]
    assert (use.low, use.mean, use.high) == (10, 50, 90)
    assert counted[0].energy.joules == pytest.approx(2 * (110 + 190) / 2 + 2 * (190 + 150) / 2)


def test_a_status_file_that_knows_less_is_not_used(reader: RunReader) -> None:
    one_gpu = Status(host="node7", gpu_summary={"GPU-0": status().gpu_summary["GPU-0"]})
    assert len(read_gpus(reader, [one_gpu])) == 2
    older = {"GPU-0": {"gpu_index": 0, "memory_used_mb_max": 7.0}, "GPU-1": {"gpu_index": 1}}
    assert read_gpus(reader, [Status(gpu_summary=older)])[0].spreads["memory_used_mb"].high == 490


def test_gpus_of_several_hosts_are_told_apart_by_the_host(reader: RunReader) -> None:
    gpus = read_gpus(reader, [status(), replace(status(), host="node8")])
    assert is_of_many_hosts(gpus) and not is_of_many_hosts(gpus[:2])
    assert [gpu.title(with_host=True) for gpu in gpus] == ["node7 GPU 0", "node7 GPU 1", "node8 GPU 0", "node8 GPU 1"]

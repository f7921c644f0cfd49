"""What the agent writes into a run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_contexts import make_context

from trainvitals.agent.reading import Reading
from trainvitals.agent.run_files import RunLines, read_rank_events
from trainvitals.analysis.gpu_use import GpuUses
from trainvitals.journal.documents.latest import SourceHealth
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader
from trainvitals.sources import Notice, Sample

CATALOG_TIME = 1_700_000_000.0


def make(folder: Path, **given: Any) -> RunLines:
    return RunLines(make_context(folder, **given), 1, GpuUses())


def gpu(index: int, **more: Any) -> Sample:
    labels = {"gpu_index": index, "gpu_uuid": f"GPU-{index}abc", **more}
    return Sample("gpu", labels, {"utilization_percent": 50.0}, CATALOG_TIME)


def reading(*items: Sample | Notice, source: str = "nvidia", **more: Any) -> Reading:
    given: dict[str, Any] = {"unit": "u", "moment": 0.0, "duration": 0.0, "interval": 1.0, **more}
    return Reading(source=source, items=items, **given)


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    return list(RunReader(folder).rows(table))


def test_a_sample_is_a_line_with_its_own_time_labels_and_host(tmp_path: Path) -> None:
    make(tmp_path).take(reading(gpu(3)))
    assert rows(tmp_path, "gpu") == [
        {
            "timestamp": "2023-11-14T22:13:20.000000Z",
            "gpu_index": 3,
            "gpu_uuid": "GPU-3abc",
            "host": "here",
            "utilization_percent": 50.0,
        }
    ]


def test_a_late_sample_says_how_late(tmp_path: Path) -> None:
    make(tmp_path).take(reading(gpu(0), duration=4.5, late=True))
    assert rows(tmp_path, "gpu")[0]["late_seconds"] == 4.5


def test_what_is_sampled_after_the_end_of_the_run_is_not_the_runs(tmp_path: Path) -> None:
    lines = make(tmp_path)
    for until in (CATALOG_TIME, CATALOG_TIME - 0.001):
        lines.until = until
        lines.take(reading(gpu(0)))
    assert len(rows(tmp_path, "gpu")) == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, [0, 1, 2]),
        ([1], [1]),
        (["GPU-2abc"], [2]),
        (["GPU-2"], [2]),
        ([0, "GPU-1abc"], [0, 1]),
        ([7], []),
    ],
)
def test_gpus_are_chosen_by_number_or_uuid(tmp_path: Path, wanted: Any, found: list[int]) -> None:
    lines = make(tmp_path, gpus=wanted)
    for index in range(3):
        notices = lines.take(reading(gpu(index), Notice("xid", "!", data=gpu(index).labels), unit=str(index)))
        assert bool(notices) == (index in found)
    assert [row["gpu_index"] for row in rows(tmp_path, "gpu")] == found


def test_a_slice_of_a_gpu_goes_with_it(tmp_path: Path) -> None:
    lines = make(tmp_path, gpus=["GPU-1abc"])
    lines.take(reading(Sample("gpu", {"gpu_uuid": "MIG-7", "mig_parent": "GPU-1abc"}, {}, CATALOG_TIME)))
    assert len(rows(tmp_path, "gpu")) == 1


def test_what_belongs_to_another_run_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE", "http://user:secret@a:1/metrics")
    lines = make(tmp_path, simulate_gpus=1, openmetrics=["env:PAGE"])
    lines.take(reading(Sample("process", {"run_id": "other", "rank": 0}, {}, CATALOG_TIME), source="process"))
    lines.take(reading(Sample("process", {"run_id": "r", "rank": 0}, {}, CATALOG_TIME), source="process"))
    for index in range(3):
        lines.take(reading(gpu(index, simulated=1), source="simulated", unit=str(index)))
    for target in ("http://a:1/metrics", "http://b:1/metrics"):
        sample = Sample("openmetrics", {"target": target}, {"up": 1}, CATALOG_TIME)
        lines.take(reading(sample, source="openmetrics", unit=target))
    assert [row["run_id"] for row in rows(tmp_path, "process")] == ["r"]
    assert [row["gpu_index"] for row in rows(tmp_path, "gpu")] == [0]
    assert [row["target"] for row in rows(tmp_path, "openmetrics")] == ["http://a:1/metrics"]


def test_sources_that_the_run_does_not_want_are_not_written(tmp_path: Path) -> None:
    lines = make(tmp_path, sources=["system"])
    assert lines.take(reading(gpu(0), Notice("xid", "!"))) == []
    lines.write_health({"u": SourceHealth(source="nvidia", up=True, age=0.1, duration=0.1)})
    assert not list(tmp_path.iterdir())


def test_a_run_that_wants_fewer_samples_gets_every_nth_however_they_jitter(tmp_path: Path) -> None:
    lines = make(tmp_path, interval=1.0)
    jitter = (0.0, 0.004, -0.003, 0.002)
    for number in range(101):
        lines.take(reading(gpu(0), interval=0.1, moment=50.0 + number * 0.1 + jitter[number % 4]))
    assert len(rows(tmp_path, "gpu")) == 11


def test_a_run_that_wants_as_many_gets_all_however_they_jitter(tmp_path: Path) -> None:
    lines = make(tmp_path, interval=0.1)
    for number in range(50):
        lines.take(reading(gpu(0), interval=0.1, moment=number * 0.1 - (0.04 if number % 2 else 0)))
    assert len(rows(tmp_path, "gpu")) == 50


def test_notices_are_never_left_out_for_the_interval(tmp_path: Path) -> None:
    lines = make(tmp_path, interval=10.0)
    found = [lines.take(reading(gpu(0), Notice("xid", "!"), interval=0.1, moment=n * 0.1)) for n in range(5)]
    assert [len(notices) for notices in found] == [1] * 5 and len(rows(tmp_path, "gpu")) == 1


def test_health_is_a_line_per_unit_without_what_is_unknown(tmp_path: Path) -> None:
    lines = make(tmp_path)
    lines.write_health(
        {
            "nvidia:GPU-1": SourceHealth(source="nvidia", up=False, errors=3, reason="broken"),
            "process:r:0": SourceHealth(source="process", up=True, age=0.5, duration=0.001, skipped=2),
            "process:other:0": SourceHealth(source="process", up=True, age=0.5, duration=0.001),
        }
    )
    first, second = rows(tmp_path, "source")
    assert first["source_up"] == 0 and first["source_errors_total"] == 3 and "source_age_seconds" not in first
    assert second["unit"] == "process:r:0" and second["source_skipped_total"] == 2


def test_events_have_the_correlation_id_and_tell_the_next_agent_what_was_told(tmp_path: Path) -> None:
    lines = make(tmp_path)
    lines.write_event("rank_started", "hello", about=Participant(rank=1), data={"pid": 42})
    lines.write_event(
        "rank_lost", "bye", about=Participant("rollout", 1), data={"pid": 42}, severity="critical", when=CATALOG_TIME
    )
    lines.write_event("damage", "no rank", data={"torn": 1})
    events = RunReader(tmp_path).events()
    assert {row.correlation_id for row in events} == {"abc"}
    assert events[0].timestamp.startswith("2023-11-14") and events[-1].rank is None
    assert read_rank_events(tmp_path, "here") == {
        ("rank_started", Participant(rank=1), 42),
        ("rank_ended", Participant("rollout", 1), 42),
    }
    assert read_rank_events(tmp_path, "elsewhere") == set()


def test_another_attempt_writes_other_files(tmp_path: Path) -> None:
    lines = make(tmp_path)
    lines.take(reading(gpu(0)))
    lines.begin_attempt(2)
    lines.take(reading(gpu(0), moment=5.0))
    assert [row.get("attempt", 1) for row in rows(tmp_path, "gpu")] == [1, 2]
    lines.close()
    assert lines.dropped == 0

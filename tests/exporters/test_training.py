"""Counters of a training: they survive a resume and the death of the agent, and every step is counted once."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from trainvitals.exporters.store import RunView
from trainvitals.exporters.training import BUCKETS, RankTraining, Trainings
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.layout import FileName

RANK0 = frozenset((0,))


def line(step: int | None, time: float = 0.0, **values: object) -> dict[str, object]:
    row: dict[str, object] = {"timestamp": format_time(1_700_000_000 + time)}
    return row | ({"step": step} if step is not None else {}) | values


def take(training: RankTraining, *rows: dict[str, object]) -> RankTraining:
    for row in rows:
        training.take(row)
    return training


def test_steps_go_on_after_a_resume_from_an_earlier_checkpoint() -> None:
    training = take(RankTraining(), *(line(step) for step in range(101)))
    assert training.steps_total == 100
    take(training, *(line(step) for step in range(50, 61)))
    assert training.steps_total == 110


def test_several_lines_of_one_step_are_one_step() -> None:
    training = take(RankTraining(), line(1, loss=1.0), line(1, accuracy=0.5), line(None, other=1.0), line(2, loss=0.9))
    assert training.steps_total == 2
    assert training.values == {"loss": 0.9, "accuracy": 0.5}


def test_a_step_duration_that_is_logged_is_counted_as_it_is() -> None:
    training = take(RankTraining(), line(1, 0.0, batch_time=0.2), line(2, 5.0, batch_time=0.3))
    assert training.duration_sum == pytest.approx(0.5)
    assert sum(training.buckets) == 2


def test_without_one_it_is_the_time_between_two_lines_for_every_step_between() -> None:
    training = take(RankTraining(), line(10, 0.0), line(20, 5.0))
    assert sum(training.buckets) == 10
    assert training.duration_sum == pytest.approx(5.0)
    assert training.buckets[BUCKETS.index(0.5)] == 10
    example = training.exemplars[BUCKETS.index(0.5)]
    assert (example.step, example.value) == (20, 0.5)


def test_nan_and_infinity_are_values() -> None:
    training = take(RankTraining(), line(1, loss="NaN", mine="-Infinity"))
    assert math.isnan(training.values["loss"]) and training.metrics["mine"] == -math.inf


def test_aliases_are_the_metric_they_mean() -> None:
    training = take(RankTraining(), line(1, lr=0.1, **{"train/loss": 2.0}))
    assert training.values == {"learning_rate": 0.1, "loss": 2.0} and training.metrics == {}


class Run:
    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project" / "run"
        self.folder.mkdir(parents=True)
        self.view = RunView("run", self.folder, "project", "run", "running", RANK0)
        self.state = folder / "exporter.json"

    def write(
        self, *rows: dict[str, object], attempt: int = 1, stamp: str = "20260101_000000", table: str = "training"
    ) -> None:
        with open(self.folder / FileName(table, attempt, stamp).jsonl, "ab") as file:
            file.writelines(encode_line(row) for row in rows)

    def follow(self) -> Trainings:
        """As a new agent does."""
        return Trainings(self.state, "box")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_an_agent_that_was_killed_is_followed_by_one_that_counts_on(run: Run) -> None:
    run.write(*(line(step, step, batch_time=0.1, memory_allocated_mb=10.0) for step in range(50)))
    first = run.follow()
    first.poll([run.view])
    first.save(1000.0)
    run.write(*(line(step, step, batch_time=0.1, memory_allocated_mb=10.0) for step in range(50, 80)))
    first.poll([run.view])  # and it dies before it has saved this
    second = run.follow()
    second.poll([run.view])
    found = second.look(run.view)[1][0]
    assert found.steps_total == 79
    assert sum(found.buckets) == 80 and found.memory_count == 80


def test_a_run_that_is_resumed_later_goes_on_from_its_counters(run: Run) -> None:
    run.write(*(line(step) for step in range(101)))
    trainings = run.follow()
    trainings.poll([run.view])
    trainings.poll([])  # it has ended
    trainings.save(1000.0, force=True)
    run.write(*(line(step) for step in range(40, 51)), attempt=2, stamp="20260102_000000")
    again = run.follow()
    again.poll([run.view])
    assert again.look(run.view)[1][0].steps_total == 110


def test_only_the_ranks_of_this_machine_are_followed(run: Run) -> None:
    run.write(line(1, loss=1.0))
    with open(run.folder / FileName("training", 1, "20260101_000000", rank=3).jsonl, "ab") as file:
        file.write(encode_line(line(7, loss=3.0)))
    trainings = run.follow()
    trainings.poll([run.view])
    assert set(trainings.look(run.view)[1]) == {0}


def test_a_state_file_of_another_version_or_cut_short_is_no_obstacle(run: Run) -> None:
    run.write(line(5))
    for content in (b"", b"{", b'{"runs": {"%s": {"ranks": {"0": {}}}}}' % str(run.folder).encode(), b"[]"):
        run.state.write_bytes(content)
        trainings = run.follow()
        trainings.poll([run.view])
        assert trainings.look(run.view)[1][0].last_step == 5


def test_alerts_fire_and_end_as_the_run_folder_says(run: Run) -> None:
    alert = {"rule": "gpu_hot", "severity": "warning", "labels": {"gpu_index": 1}}
    run.write({**line(None), "state": "firing", **alert}, table="alerts")
    trainings = run.follow()
    trainings.poll([run.view])
    assert [item.rule for item in trainings.look(run.view)[0].alerts] == ["gpu_hot"]
    run.write({**line(None), "outgoing": "x"}, {**line(None), "state": "resolved", **alert}, table="alerts")
    trainings.poll([run.view])
    assert trainings.look(run.view)[0].alerts == ()


def test_more_metrics_than_can_be_remembered_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.training.MOST_METRICS", 10)
    training = take(RankTraining(), *(line(step, **{f"m{n}": 1.0 for n in range(15)}) for step in range(3)))
    assert len(training.metrics) == 10 and training.left_out == 5

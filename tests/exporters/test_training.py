"""Counters of a training: they survive a resume and the death of the agent, and every step is counted once."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trainvitals.exporters.training import BUCKETS, FIRST, RankTraining, Trainings
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Relay
from trainvitals.journal.identity import Participant
from trainvitals.journal.layout import FileName
from trainvitals.journal.segment_writer import seal


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
    assert training.count_durations()[-1] == 2


def test_without_one_it_is_the_time_between_two_lines_for_every_step_between() -> None:
    training = take(RankTraining(), line(10, 0.0), line(20, 5.0))
    place = BUCKETS.index(0.5)
    counts = training.count_durations()
    assert (counts[place - 1], counts[place], counts[-1]) == (0, 10, 10)
    assert training.duration_sum == pytest.approx(5.0)
    example = training.exemplars[FIRST + place]
    assert (example.step, example.value) == (20, 0.5)


@pytest.mark.parametrize("seconds", [0.0015, 0.02, 0.2, 0.3, 1.0, 7.7, 200.0])
def test_the_median_of_a_steady_step_is_known_to_five_percent(seconds: float) -> None:
    training = take(RankTraining(), *(line(step, float(step), batch_time=seconds) for step in range(9)))
    counts = training.count_durations()
    place = next(place for place, count in enumerate(counts) if count)
    median = (BUCKETS[place - 1] + BUCKETS[place]) / 2  # as histogram_quantile has it
    assert counts[place] == 9 and median == pytest.approx(seconds, rel=0.05)


def test_durations_beyond_the_buckets_are_counted() -> None:
    training = take(RankTraining(), line(1, 0.0, batch_time=1e-5), line(2, 1.0, batch_time=5000.0))
    counts = training.count_durations()
    assert (counts[0], counts[-2], counts[-1]) == (1, 1, 2)
    assert {example.value for example in training.exemplars.values()} == {1e-5, 5000.0}


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
        self.state = folder / "exporter.json"

    def path(self, attempt: int = 1, stamp: str = "20260101_000000") -> Path:
        return self.folder / FileName("training", attempt, stamp).jsonl

    def write(self, *rows: dict[str, object], attempt: int = 1, stamp: str = "20260101_000000") -> None:
        with open(self.path(attempt, stamp), "ab") as file:
            file.writelines(encode_line(row) for row in rows)

    def follow(self) -> Agent:
        return Agent(self)


class Agent:
    """A new agent that serves the run."""

    def __init__(self, run: Run) -> None:
        self.trainings = Trainings(run.state)
        self.folder = run.folder
        self.relay = Relay(run.folder)
        self.relay.add(self.trainings.listen_to(run.folder))

    def poll(self) -> RankTraining:
        self.relay.poll()
        return self.trainings.look(self.folder)[Participant()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_an_agent_that_was_killed_is_followed_by_one_that_counts_on(run: Run) -> None:
    run.write(*(line(step, step, batch_time=0.1, memory_allocated_mb=10.0) for step in range(50)))
    first = run.follow()
    first.poll()
    first.trainings.save(1000.0)
    run.write(*(line(step, step, batch_time=0.1, memory_allocated_mb=10.0) for step in range(50, 80)))
    first.poll()  # and it dies before it has saved this
    found = run.follow().poll()
    assert found.steps_total == 79
    assert found.count_durations()[-1] == 80 and found.memory_count == 80


def test_a_run_that_is_resumed_later_goes_on_from_its_counters(run: Run) -> None:
    run.write(*(line(step) for step in range(101)))
    first = run.follow()
    first.poll()
    first.trainings.keep([])  # it has ended
    first.trainings.save(1000.0, force=True)
    seal(run.path())
    run.write(*(line(step) for step in range(40, 51)), attempt=2, stamp="20260102_000000")
    assert run.follow().poll().steps_total == 110


def test_what_an_exporter_of_the_version_before_has_counted_is_not_counted_again(run: Run) -> None:
    run.write(*(line(step, step, batch_time=0.1) for step in range(50)))
    first = run.follow()
    first.poll()
    first.trainings.save(1000.0)
    known = json.loads(run.state.read_text())
    entry = known["runs"][str(run.folder)]
    entry["offsets"] = {name: offset for name, (offset, _) in entry.pop("positions").items()}
    run.state.write_text(json.dumps(known))
    run.write(*(line(step, step, batch_time=0.1) for step in range(50, 60)))
    found = run.follow().poll()
    assert (found.steps_total, found.count_durations()[-1]) == (59, 60)


def test_what_was_sealed_before_anybody_wanted_it_is_counted_once(run: Run) -> None:
    stamps = [f"20260101_00000{number}" for number in range(4)]
    for number, stamp in enumerate(stamps):
        run.write(*(line(step, step, batch_time=0.1) for step in range(number * 10, number * 10 + 10)), stamp=stamp)
    for stamp in stamps[:2]:
        seal(run.path(stamp=stamp))
    agent = run.follow()
    assert agent.poll().count_durations()[-1] == 40
    agent.trainings.save(1000.0)
    for stamp in stamps[2:]:
        seal(run.path(stamp=stamp))
    run.write(line(40, 40, batch_time=0.1), stamp="20260101_000009")
    found = run.follow().poll()
    assert (found.steps_total, found.count_durations()[-1]) == (40, 41)


def test_rows_are_acknowledged_when_they_are_saved(run: Run) -> None:
    run.write(line(5))
    agent = run.follow()
    training = agent.trainings.listen_to(run.folder)
    agent.poll()
    agent.poll()
    file = FileName("training", 1, "20260101_000000")
    assert agent.relay.behind(file) == [training]
    agent.trainings.save(1000.0)
    assert agent.relay.behind(file) == []
    seal(run.path())
    again = run.follow()
    again.relay.poll()
    assert again.trainings.look(run.folder)[Participant()].last_step == 5 and again.relay.behind(file) == []


def test_a_state_file_of_another_version_or_cut_short_is_no_obstacle(run: Run) -> None:
    run.write(line(5))
    for content in (b"", b"{", b'{"runs": {"%s": {"ranks": {"0": {}}}}}' % str(run.folder).encode(), b"[]"):
        run.state.write_bytes(content)
        assert run.follow().poll().last_step == 5


def test_more_metrics_than_can_be_remembered_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.exporters.training.MOST_METRICS", 10)
    training = take(RankTraining(), *(line(step, **{f"m{n}": 1.0 for n in range(15)}) for step in range(3)))
    assert len(training.metrics) == 10 and training.left_out == 5

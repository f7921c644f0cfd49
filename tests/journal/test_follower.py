"""Following a run while it is written, rotated and sealed: every listener gets every row once, and in order."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainvitals.journal.cursor import count_parsed
from trainvitals.journal.encoding import encode_line, format_time
from trainvitals.journal.follower import Follower, Relay, read_table
from trainvitals.journal.layout import FileName
from trainvitals.journal.listening import Batch, Listener, Positions
from trainvitals.journal.segment_writer import seal


def line(number: int) -> bytes:
    return encode_line({"timestamp": format_time(), "step": number, "loss": 1 / (number + 1)})


def test_a_follower_sees_new_files_and_may_start_at_the_end(tmp_path: Path) -> None:
    first = tmp_path / "training_metrics_20260101_000000.rank0.jsonl"
    first.write_bytes(line(0))
    follower = Follower(tmp_path, ("training",), from_end=True)
    assert follower.poll() == []
    with open(first, "ab") as file:
        file.write(line(1))
    (tmp_path / "training_metrics_20260101_000001.rank1.jsonl").write_bytes(line(2))
    (tmp_path / "gpu_metrics_20260101_000001.jsonl").write_bytes(line(3))
    assert sorted((name.rank, row["step"]) for name, row in follower.poll()) == [(0, 1), (1, 2)]
    assert follower.poll() == []


def seal_next(folder: Path, keep: bool = False) -> None:
    """Seal the oldest file that is not sealed."""
    seal(min(folder.glob("training_*.jsonl")), keep=keep)


def write_files(folder: Path, first: int, count: int, lines: int = 100) -> None:
    """Files of one writer, each with its `lines`, the steps going on from one to the next."""
    for number in range(first, first + count):
        path = folder / f"training_metrics_20260101_{number:06d}.rank0.jsonl"
        path.write_bytes(b"".join(line(number * lines + place) for place in range(lines)))


def steps(follower: Follower, limit: int | None = None) -> list[int]:
    return [row["step"] for _, row in follower.poll(limit)]


def test_a_follower_gives_what_was_sealed_before_it_came_and_each_line_once(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 4)
    seal_next(tmp_path)
    seal_next(tmp_path, keep=True)
    follower = Follower(tmp_path, ("training",))
    found = follower.poll()
    assert [row["step"] for _, row in found] == list(range(400))
    assert found[0][0].rank == 0 and found[0][1] == {"timestamp": found[0][1]["timestamp"], "step": 0, "loss": 1.0}
    for _ in range(3):
        seal_next(tmp_path)
        assert steps(follower) == []
    write_files(tmp_path, 4, 1)
    assert steps(follower) == list(range(400, 500))
    seal_next(tmp_path)
    assert steps(Follower(tmp_path, ("training",))) == list(range(500))
    assert steps(Follower(tmp_path, ("gpu",))) == []


@pytest.mark.parametrize("from_end", [False, True])
def test_lines_that_are_sealed_between_two_looks_are_given_from_the_segment(tmp_path: Path, from_end: bool) -> None:
    write_files(tmp_path, 0, 2)
    seal_next(tmp_path)
    follower = Follower(tmp_path, ("training",), from_end=from_end)
    assert steps(follower) == ([] if from_end else list(range(200)))
    with open(tmp_path / "training_metrics_20260101_000001.rank0.jsonl", "ab") as file:
        file.write(b"torn\n" + line(200) + line(201))
    write_files(tmp_path, 10, 2)
    for _ in range(3):
        seal_next(tmp_path)
    assert steps(follower) == [200, 201, *range(1000, 1200)]
    assert steps(follower) == []


def test_a_limit_bounds_what_is_taken_from_a_segment_and_the_order_stays(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 3)
    seal_next(tmp_path)
    follower = Follower(tmp_path, ("training",))
    looks = []
    while look := steps(follower, limit=30 * 128):
        looks.append(look)
    assert [step for look in looks for step in look] == list(range(300))
    assert looks[0] == list(range(30)) and len(looks) > 4


def test_a_follower_of_a_run_that_is_sealed_meanwhile_gives_every_line_once(tmp_path: Path) -> None:
    follower = Follower(tmp_path, ("training",))
    found: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while not done.is_set():
            found.extend(steps(follower))

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(12):
        write_files(tmp_path, number, 1)
        if number % 3:
            seal_next(tmp_path)
    done.set()
    thread.join()
    found.extend(steps(follower))
    assert found == list(range(1200))


def test_a_segment_that_cannot_be_read_is_counted_and_the_rest_is_given(tmp_path: Path) -> None:
    write_files(tmp_path, 0, 2)
    seal_next(tmp_path)
    (tmp_path / "segments" / "training_metrics_20260101_000000.rank0.parquet").write_bytes(b"no Parquet")
    follower = Follower(tmp_path, ("training",))
    assert steps(follower) == list(range(100, 200))
    assert follower.damage.files == 1 and steps(follower) == []


# -- many listeners


class Steps:
    """A listener that saves how far it is only in `save`, as one that may be killed."""

    name = "steps"

    def __init__(self, known: object = None) -> None:
        self.positions = Positions.parse(known)
        self.acknowledged = self.positions.copy()
        self.steps: list[int] = []

    def wants(self, file: FileName) -> bool:
        return file.table == "training"

    def see(self, batch: Batch) -> None:
        self.positions.advance(batch.file, batch.end)
        self.steps += [row["step"] for row in batch.rows]

    def save(self) -> None:
        self.acknowledged = self.positions.copy()


def drain(relay: Relay, limit: int = 1000) -> int:
    """Read all there is. Returns how many lines were parsed for that."""
    before = count_parsed().get("training", 0)
    while relay.poll(limit):
        continue
    return count_parsed().get("training", 0) - before


def test_a_line_is_parsed_once_for_all_who_listen(tmp_path: Path) -> None:
    relay, listeners, parsed = Relay(tmp_path), [Steps(), Steps(), Steps()], 0
    for listener in listeners:
        relay.add(listener)
    for number in range(4):
        write_files(tmp_path, number, 1)
        parsed += drain(relay)
        if number % 2:
            seal_next(tmp_path)
    parsed += drain(relay)
    assert [listener.steps for listener in listeners] == [list(range(400))] * 3
    assert parsed == 400


def test_who_comes_late_gets_all_from_the_oldest_segment_on_and_then_reads_with_the_others(tmp_path: Path) -> None:
    relay, first, late = Relay(tmp_path), Steps(), Steps()
    relay.add(first)
    write_files(tmp_path, 0, 4)
    drain(relay)
    seal_next(tmp_path)
    seal_next(tmp_path)
    relay.add(late)
    write_files(tmp_path, 4, 1)
    drain(relay)
    assert first.steps == late.steps == list(range(500))
    write_files(tmp_path, 5, 1)
    assert drain(relay) == 100 and first.steps == late.steps == list(range(600))


def test_who_comes_late_catches_up_with_those_who_read_on_all_the_while(tmp_path: Path) -> None:
    relay, first, late = Relay(tmp_path), Steps(), Steps()
    relay.add(first)
    write_files(tmp_path, 0, 1)
    drain(relay)
    relay.add(late)
    path, parsed = tmp_path / "training_metrics_20260101_000000.rank0.jsonl", count_parsed()["training"]
    for number in range(100, 120):
        with open(path, "ab") as opened:
            opened.write(line(number))
        relay.poll()
    assert first.steps == late.steps == list(range(120))
    assert count_parsed()["training"] == parsed + 100 + 20


def test_who_has_no_room_holds_up_nobody_and_reads_on_from_the_files(tmp_path: Path) -> None:
    relay, first, full = Relay(tmp_path), Steps(), Steps()
    room = [True]
    relay.add(first)
    relay.add(full, lambda: room[0])
    write_files(tmp_path, 0, 1)
    drain(relay)
    room[0] = False
    write_files(tmp_path, 1, 3)
    drain(relay)
    assert (len(first.steps), len(full.steps)) == (400, 100)
    seal_next(tmp_path)
    seal_next(tmp_path)
    room[0] = True
    drain(relay)
    assert first.steps == full.steps == list(range(400))
    write_files(tmp_path, 4, 1)
    assert drain(relay) == 100 and first.steps == full.steps == list(range(500))


def test_who_has_room_only_now_and_then_gets_all_in_order(tmp_path: Path) -> None:
    relay, listener, room = Relay(tmp_path), Steps(), [True]
    relay.add(listener, lambda: room[0])
    write_files(tmp_path, 0, 5)
    for look in range(100):
        room[0] = look % 3 == 0
        relay.poll(1000)
    assert listener.steps == list(range(500))


def test_who_is_removed_gets_nothing_more_and_is_not_waited_for(tmp_path: Path) -> None:
    relay, first, other = Relay(tmp_path), Steps(), Steps()
    relay.add(first)
    relay.add(other)
    write_files(tmp_path, 0, 1)
    drain(relay)
    file = FileName("training", 1, "20260101_000000", rank=0)
    assert relay.behind(file) == [first, other]
    first.save()
    assert relay.behind(file) == [other]
    relay.remove(other)
    assert relay.behind(file) == []
    write_files(tmp_path, 1, 1)
    drain(relay)
    assert (len(first.steps), len(other.steps)) == (200, 100)


def test_who_has_acknowledged_the_end_of_a_file_never_looks_into_its_segment(tmp_path: Path) -> None:
    opened: list[Path] = []

    def read_sealed(path: Path, first: int) -> None:
        opened.append(path)

    relay, listener = Relay(tmp_path, read_sealed=read_sealed), Steps()
    relay.add(listener)
    write_files(tmp_path, 0, 1)
    drain(relay)
    file = FileName("training", 1, "20260101_000000", rank=0)
    assert relay.behind(file) == [listener]
    listener.save()
    assert relay.behind(file) == []
    seal_next(tmp_path)
    again = Relay(tmp_path, read_sealed=read_sealed)
    again.add(Steps(listener.acknowledged.as_json()))
    write_files(tmp_path, 1, 1)
    assert drain(again) == 100 and opened == []


def test_a_listener_that_raises_is_reported_and_the_others_get_their_rows(tmp_path: Path) -> None:
    class Broken(Steps):
        def see(self, batch: Batch) -> None:
            raise ValueError("broken")

    troubles: list[tuple[Listener, Exception]] = []
    relay = Relay(tmp_path, on_error=lambda listener, error: troubles.append((listener, error)))
    broken, good = Broken(), Steps()
    relay.add(broken)
    relay.add(good)
    write_files(tmp_path, 0, 1)
    drain(relay)
    assert good.steps == list(range(100)) and troubles[0][0] is broken


def test_what_is_wanted_may_change(tmp_path: Path) -> None:
    wanted: set[int] = set()
    relay, listener = Relay(tmp_path, lambda file: file.rank in wanted), Steps()
    relay.add(listener)
    write_files(tmp_path, 0, 1)
    drain(relay)
    assert listener.steps == []
    wanted.add(0)
    relay.ask_again()
    drain(relay)
    assert listener.steps == list(range(100))


def test_a_file_that_somebody_removed_does_not_hold_up_the_next_one(tmp_path: Path) -> None:
    follower = Follower(tmp_path, ("training",))
    write_files(tmp_path, 0, 1)
    assert len(steps(follower)) == 100
    (tmp_path / "training_metrics_20260101_000000.rank0.jsonl").unlink()
    write_files(tmp_path, 1, 1)
    assert steps(follower) == list(range(100, 200))


def test_a_small_table_is_read_in_order_of_time_from_the_files_that_are_wanted(tmp_path: Path) -> None:
    for rank, numbers in ((0, (3, 1)), (1, (2,))):
        rows = [encode_line({"timestamp": format_time(1.7e9 + number), "number": number}) for number in numbers]
        (tmp_path / f"events_20260101_000000.rank{rank}.jsonl").write_bytes(b"".join(rows))
    assert [row["number"] for _, row in read_table(tmp_path, "events")] == [1, 2, 3]
    assert [row["number"] for _, row in read_table(tmp_path, "events", lambda file: file.rank == 1)] == [2]


ACTS = st.lists(
    st.sampled_from(["write", "write", "rotate", "seal", "poll", "poll", "save", "save other", "die", "late"]),
    max_size=40,
)


@settings(max_examples=60)
@given(acts=ACTS, limit=st.sampled_from([1, 700, 100_000]))
def test_everybody_gets_everything_once_and_in_order_whatever_happens(
    acts: list[str], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What was seen and not saved before a death is seen again, and nothing else."""
    folder = tmp_path_factory.mktemp("run")
    listeners = [Steps(), Steps()]
    saved = [0, 0]  # how many steps each had seen when it was saved
    written, file = 0, 0

    def begin() -> Relay:
        relay = Relay(folder)
        for listener in listeners:
            relay.add(listener)
        return relay

    def save(place: int) -> None:
        listeners[place].save()
        saved[place] = len(listeners[place].steps)

    relay = begin()
    for act in acts:
        if act == "write":
            with open(folder / f"training_metrics_20260101_{file:06d}.rank0.jsonl", "ab") as opened:
                opened.writelines(line(number) for number in range(written, written + 10))
            written += 10
        elif act == "rotate":
            file += 1
        elif act == "poll":
            relay.poll(limit)
        elif act == "seal":
            closed = [path for path in sorted(folder.glob("*.jsonl")) if int(path.name[26:32]) < file]
            if closed:
                seal(closed[0])
        elif act.startswith("save") and len(listeners) > 1:
            save(act == "save other")
        elif act == "die":
            steps_before = [listener.steps[:count] for listener, count in zip(listeners, saved, strict=True)]
            listeners = [Steps(listener.acknowledged.as_json()) for listener in listeners]
            for listener, seen in zip(listeners, steps_before, strict=True):
                listener.steps = seen
            relay = begin()
        elif act == "late" and len(listeners) < 4:
            listeners.append(Steps())
            saved.append(0)
            relay.add(listeners[-1])
    drain(relay, limit)
    for listener in listeners:
        assert listener.steps == list(range(written))

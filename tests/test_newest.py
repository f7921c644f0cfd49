"""What holds for how long: the newest of each value, slow ones between two looks, and nothing that is overdue."""

from __future__ import annotations

from typing import Any

from trainvitals.journal.documents.latest import Latest
from trainvitals.journal.encoding import format_time
from trainvitals.newest import FIRST_SECONDS, LEAST_SECONDS, MOST_SAMPLES, Newest, Thing, holds_for, is_late
from trainvitals.sources import Sample, Value

GPU: dict[str, Value] = {"gpu_index": 0, "gpu_uuid": "GPU-1"}


class Machine:
    """Units that are read every second, on a clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.newest = Newest(lambda: self.now)

    def read(self, unit: str = "nvidia:a", **values: Value) -> None:
        self.now += 1.0
        self.take(unit, Sample("gpu", GPU, values, self.now))

    def take(self, unit: str, *samples: Sample, interval: float = 1.0) -> None:
        self.newest.take(unit.partition(":")[0], unit, samples, self.now, interval)

    @property
    def values(self) -> dict[str, Any]:
        """By latest.json and by what Prometheus is served, which must be the same."""
        shown = [item.values for item in self.newest.describe().values()]
        assert [dict(thing.values) for thing in self.newest.things("gpu")] == shown
        return dict(shown[0]) if shown else {}


def test_a_value_of_every_fifth_sample_stays_in_between_with_its_newest_number() -> None:
    machine = Machine()
    for number in range(40):
        slow: dict[str, Value] = {"process_count": number} if number % 5 == 0 else {}
        machine.read(utilization_percent=number, **slow)
        assert machine.values == {"utilization_percent": number, "process_count": number - number % 5}


def test_a_value_whose_next_turn_is_overdue_disappears() -> None:
    machine = Machine()
    for number in range(11):
        slow: dict[str, Value] = {"process_count": 3} if number % 5 == 0 else {}
        machine.read(utilization_percent=number, **slow)
    for _ in range(3 * 5):
        machine.read(utilization_percent=1)
        assert "process_count" in machine.values
    machine.read(utilization_percent=1)
    assert machine.values == {"utilization_percent": 1}


def test_a_value_of_every_sample_that_no_longer_comes_is_gone_though_the_gpu_is_not() -> None:
    machine = Machine()
    for _ in range(3):
        machine.read(utilization_percent=50.0, fan_speed_percent=30.0)
    for _ in range(int(LEAST_SECONDS)):
        machine.read(utilization_percent=50.0)
    assert "fan_speed_percent" in machine.values
    machine.read(utilization_percent=50.0)
    assert machine.values == {"utilization_percent": 50.0}


def test_a_value_that_came_once_holds_until_it_could_have_come_again() -> None:
    machine = Machine()
    machine.read(utilization_percent=1.0, pcie_link_width=16)
    for _ in range(int(FIRST_SECONDS)):
        machine.read(utilization_percent=1.0)
    assert machine.values["pcie_link_width"] == 16
    machine.read(utilization_percent=1.0)
    assert "pcie_link_width" not in machine.values


def test_all_of_a_unit_that_gives_no_samples_ends_and_that_is_news() -> None:
    machine = Machine()
    machine.read(utilization_percent=50.0)
    count = machine.newest.count
    machine.now += LEAST_SECONDS
    assert machine.values == {"utilization_percent": 50.0} and machine.newest.count == count
    machine.now += 0.1
    assert machine.newest.count != count and machine.values == {}


def test_a_unit_that_is_read_rarely_or_answers_rarely_holds_for_longer() -> None:
    machine = Machine()
    machine.take("slow:a", Sample("gpu", GPU, {"power_draw_watts": 1.0}, machine.now), interval=60.0)
    machine.now += 180.0
    assert machine.values == {"power_draw_watts": 1.0}
    machine.now += 1.0
    assert machine.values == {}
    for _ in range(5):
        machine.now += 8.0
        machine.take("rare:a", Sample("gpu", GPU, {"power_draw_watts": 2.0}, machine.now))
    machine.now += 24.0
    assert machine.values == {"power_draw_watts": 2.0}
    machine.now += 0.1
    assert machine.values == {}


def test_one_long_pause_does_not_make_a_slow_value() -> None:
    machine = Machine()
    for number in range(10):
        slow: dict[str, Value] = {"encoder_percent": 1} if number % 2 == 0 else {}
        machine.read(utilization_percent=number, **slow)
    machine.now += 600.0
    machine.read(utilization_percent=1, encoder_percent=1)
    for _ in range(13):
        machine.read(utilization_percent=1)
    assert machine.values == {"utilization_percent": 1}


def test_what_a_gpu_said_before_it_was_lost_is_not_shown() -> None:
    machine = Machine()
    machine.read(state="ok", utilization_percent=50, process_count=2)
    machine.read(state="ok", utilization_percent=50)
    assert machine.values["process_count"] == 2
    machine.read(state="lost")
    assert machine.values == {"state": "lost"}
    machine.read(state="ok", utilization_percent=1)
    assert machine.values == {"state": "ok", "utilization_percent": 1}


def test_the_samples_of_a_unit_are_kept_apart_and_forgotten_with_it() -> None:
    machine = Machine()

    def sample(index: int, **values: Value) -> Sample:
        return Sample("gpu", {"gpu_uuid": f"MIG-{index}"}, values, machine.now)

    machine.take("nvidia:a", sample(0, process_count=1), sample(1, process_count=2))
    machine.take("nvidia:a", sample(1, utilization_percent=5), sample(0, utilization_percent=4))
    assert {item.labels["gpu_uuid"]: item.values for item in machine.newest.describe().values()} == {
        "MIG-0": {"utilization_percent": 4, "process_count": 1},
        "MIG-1": {"utilization_percent": 5, "process_count": 2},
    }
    count = machine.newest.count
    machine.newest.forget("nvidia:a")
    assert machine.newest.describe() == {} and machine.newest.count != count


def test_the_parts_in_which_the_host_is_read_are_one_thing_for_prometheus() -> None:
    machine = Machine()
    counters = {"disk_read_bytes_total": {"sda": 5}}
    machine.take("system:host", Sample("system", {}, {"cpu_usage_percent": 5.0}, machine.now, counters))
    machine.take("system:disk", Sample("system", {}, {"disk_usage_percent": 7.0}, machine.now))
    assert set(machine.newest.describe()) == {"system:host", "system:disk"}
    host = Thing("system", {}, {"cpu_usage_percent": 5.0, "disk_usage_percent": 7.0}, counters)
    assert machine.newest.things("gpu", "system") == [host]


def test_of_a_large_page_the_first_samples_are_kept_and_not_served_again() -> None:
    machine = Machine()
    machine.take("openmetrics:x")
    assert machine.newest.count == 0 and machine.newest.describe() == {}
    page = [Sample("openmetrics", {"series": number}, {"value": number}, machine.now) for number in range(1000)]
    machine.take("openmetrics:x", *page)
    assert machine.newest.count == 1 and len(machine.newest.describe()) == MOST_SAMPLES
    assert machine.newest.things("gpu", "system", "process") == []


def test_what_is_late_is_shown_with_its_age_until_it_expires() -> None:
    for interval in (0.1, 1.0, 30.0):
        assert not is_late(interval, interval) and not is_late(3 * interval, interval)
        assert is_late(holds_for(interval) + 1, interval)
    assert is_late(3.1, 0.1) and not is_late(29.0, 10.0)


def test_a_file_that_its_agent_no_longer_writes_is_not_current() -> None:
    now = 1_800_000_000.0
    written = Latest(written=format_time(now))
    assert written.is_current(now + 4, 1.0) and written.is_current(now - 4, 1.0)
    assert not written.is_current(now + 6, 1.0) and written.is_current(now + 6, 10.0)
    assert not written.is_current(now - 3600, 1.0), "the clock was set back: the file is older than it looks"
    assert not Latest().is_current(now, 1.0)

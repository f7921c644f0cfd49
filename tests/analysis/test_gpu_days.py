"""What a GPU did on each day."""

from __future__ import annotations

import json

import pytest

from trainvitals.analysis.gpu_days import MOST_DAYS, GpuDay, GpuDays, date_of
from trainvitals.analysis.gpu_use import GpuUse, GpuUses, kept_gpus
from trainvitals.journal.documents.status import Status

MIDNIGHT = 20_000 * 86_400.0
LABELS = {"gpu_index": 0, "gpu_uuid": "GPU-1"}


def test_a_sample_counts_for_the_time_since_the_one_before_on_its_day() -> None:
    use = GpuUse(LABELS, idle_percent=5.0)
    for second in range(-10, 11):
        busy = second <= 0
        values = {"utilization_percent": 80.0 if busy else 1.0, "power_draw_watts": 300.0 if busy else 100.0}
        use.add({**values, "temperature_celsius": 60.0 - second, "memory_percent": 50.0}, MIDNIGHT + second)
    before, after = use.days.days.values()
    assert list(use.days.days) == [date_of(MIDNIGHT - 1), date_of(MIDNIGHT)] == ["2024-10-03", "2024-10-04"]
    assert (before.seconds, before.use_percent, before.idle_seconds) == (9.0, pytest.approx(80.0), 0.0)
    assert (before.watts, before.hottest_celsius) == (300.0, 70.0)
    assert after.seconds == 11.0 and after.idle_seconds == 10.0 and after.idle_joules == 1100.0
    together = use.days.between("2024-10-03", "2024-10-04")
    assert together is not None and together.seconds == 20.0
    assert together.joules == use.energy.joules
    assert use.days.between("2024-10-05", "2024-10-09") is None


def test_what_is_not_measured_is_missing_and_a_pause_is_not_counted() -> None:
    days = GpuDays()
    for second in (0, 1, 500, 501):
        days.add(MIDNIGHT + second, {"temperature_celsius": 50.0}, None, 5.0)
    day = days.days["2024-10-04"]
    assert day == GpuDay(seconds=2.0, hottest_celsius=50.0)
    assert day.use_percent is None and day.watts is None
    days.add(None, {"utilization_percent": 3.0}, 5.0, 5.0)
    assert len(days.days) == 1


def test_the_next_agent_goes_on_and_old_days_are_forgotten() -> None:
    use = GpuUses()
    for day in range(MOST_DAYS + 5):
        for second in (0, 10):
            use.add(LABELS, {"utilization_percent": 50.0, "power_draw_watts": 100.0}, MIDNIGHT + day * 86_400 + second)
    kept = json.loads(json.dumps(use.as_json()))
    assert len(kept["GPU-1"]["days"]) == MOST_DAYS
    again = next(kept_gpus(Status.parse({"gpu_summary": kept}))).as_use()
    assert again.as_json() == kept["GPU-1"]
    assert again.days.days[date_of(MIDNIGHT + 6 * 86_400)].used_seconds == 5.0


def test_what_is_no_day_is_left_out() -> None:
    assert GpuDays.parse("nonsense").days == {} == GpuDays.parse({"2024-10-04": [1.0], 3: [], "x": None}).days
    odd = GpuDays.parse({"2024-10-04": ["?", None, float("nan"), 1, 2, 3, True]})
    assert odd.days["2024-10-04"] == GpuDay(0.0, None, None, 1, 2, 3, None)

from __future__ import annotations

import itertools

import pytest

from trainvitals import catalog
from trainvitals.sources import Sample, SourceUnavailable, World, create
from trainvitals.sources.simulated import (
    MEMORY_TOTAL_MB,
    POWER_LIMIT,
    TEMPERATURE_LIMIT,
    TICK,
    SimulatedCard,
    SimulatedUnit,
)


def story(clock, index: int = 0, seconds: float = 300, every: float = 1.0, seed: int = 1) -> list[Sample]:
    """What a card tells when it is read again and again."""
    unit = SimulatedUnit(index, seed, clock)
    samples = []
    for _ in range(int(seconds / every)):
        clock.advance(every)
        (sample,) = unit.read()
        assert isinstance(sample, Sample)
        samples.append(sample)
    return samples


def column(samples: list[Sample], name: str) -> list[float]:
    return [float(sample.values[name]) for sample in samples]


def test_as_many_gpus_as_asked_for():
    units = create("simulated", World(simulated_gpus=3)).discover()

    assert len({unit.key for unit in units}) == 3
    assert [unit.read()[0].labels["gpu_index"] for unit in units] == [0, 1, 2]


def test_none_unless_asked_for():
    with pytest.raises(SourceUnavailable):
        create("simulated", World()).discover()
    assert create("simulated", World()).describe() == {}


def test_every_line_says_that_it_is_simulated(clock):
    for index in range(4):
        for sample in story(clock, index, seconds=5):
            assert sample.table == "gpu"
            assert sample.labels["simulated"] == 1
            assert sample.labels["vendor"] == "simulated"
            assert sample.labels["gpu_name"] == "Simulated GPU"
            assert str(sample.labels["gpu_uuid"]).startswith("SIM-")


def test_every_name_is_in_the_catalog(clock):
    names = story(clock, seconds=1)[0].values

    assert [name for name in names if catalog.find("gpu", name) is None] == []
    fixed = {
        "utilization_percent",
        "memory_used_mb",
        "memory_total_mb",
        "memory_percent",
        "temperature_celsius",
    }
    assert fixed | {"power_draw_watts", "fan_speed_percent", "energy_joules"} <= set(names)


def test_the_same_card_tells_the_same_story_however_often_it_is_read():
    often, seldom = SimulatedCard(2, 7), SimulatedCard(2, 7)
    for tick in range(1, 2000):
        often.advance(tick * 0.11)
    seldom.advance(1999 * 0.11)

    assert often.values() == seldom.values()


def test_cards_and_seeds_differ(clock):
    one, other, reseeded = (
        column(story(clock, index, 60, seed=seed), "utilization_percent") for index, seed in ((0, 1), (1, 1), (0, 2))
    )

    assert one != other
    assert one != reseeded


def test_use_has_a_start_a_plateau_and_dips(clock):
    use = column(story(clock, seconds=300), "utilization_percent")

    assert float(SimulatedUnit(0, 1, clock).read()[0].values["utilization_percent"]) > 40, "at work when first read"
    assert min(use[:8]) > 40
    assert sum(value > 90 for value in use) > 150
    assert sum(10 < value < 40 for value in use[20:]) > 5
    assert all(0 <= value <= 100 for value in use)


def test_memory_fills_and_stays_within_the_card(clock):
    used = column(story(clock, seconds=100), "memory_used_mb")

    assert used[0] < 0.3 * MEMORY_TOTAL_MB
    assert all(before < after for before, after in itertools.pairwise(used[:4]))
    assert 0.6 * MEMORY_TOTAL_MB < used[40] < 0.9 * MEMORY_TOTAL_MB


def test_temperature_follows_power_with_inertia(clock):
    samples = story(clock, seconds=200, every=TICK)
    power, heat = column(samples, "power_draw_watts"), column(samples, "temperature_celsius")

    jump = max(abs(after - before) for before, after in itertools.pairwise(power))
    warm = max(abs(after - before) for before, after in itertools.pairwise(heat))
    assert jump > 50
    assert warm < 2
    assert heat[-1] - heat[0] > 20
    assert max(power) <= POWER_LIMIT


def test_energy_is_the_integral_of_power(clock):
    samples = story(clock, seconds=120, every=TICK)

    integral = sum(column(samples, "power_draw_watts")) * TICK
    assert column(samples, "energy_joules")[-1] == pytest.approx(integral, rel=1e-3)


def test_the_card_in_the_hot_place_slows_down_and_says_why(clock):
    hot, cool = story(clock, 3, 300), story(clock, 0, 300)

    assert any("thermal slowdown" in str(sample.values["throttle_reasons"]) for sample in hot)
    assert column(hot, "throttle_thermal_seconds")[-1] > 0
    assert column(cool, "throttle_thermal_seconds")[-1] == 0
    slowed = [s for s in hot if s.values["throttle_reasons"] == "thermal slowdown"]
    free = [s for s in hot if s.values["throttle_reasons"] == "none" and s.values["utilization_percent"] > 90]
    assert max(column(slowed, "graphics_clock_mhz")) < max(column(free, "graphics_clock_mhz"))
    assert max(column(hot, "temperature_celsius")) < TEMPERATURE_LIMIT + 6


def test_the_power_cap_holds_now_and_then(clock):
    reasons = [str(sample.values["throttle_reasons"]) for sample in story(clock, 0, 300)]

    assert 0 < sum("power cap" in reason for reason in reasons) < 0.6 * len(reasons)


def test_the_fan_follows_the_temperature(clock):
    samples = story(clock, seconds=120)

    assert column(samples, "fan_speed_percent")[-1] > column(samples, "fan_speed_percent")[0] + 10


def test_a_long_pause_is_not_acted_out_for_ever(clock):
    unit = SimulatedUnit(0, 1, clock)
    clock.advance(30 * 86400)

    (sample,) = unit.read()

    assert 20 < float(sample.values["temperature_celsius"]) < 100

from __future__ import annotations

import time

import pytest

from trainvitals import catalog
from trainvitals.sources import Sample, SourceUnavailable, UnitGone, World, create
from trainvitals.sources.drm import read_cards
from trainvitals.sources.intel import IntelCardMeter, IntelSource

I915, XE = 0, 1
"""Place of the two cards in PCI order."""


def meter(fake_sys, which: int, clock) -> IntelCardMeter:
    return IntelCardMeter(read_cards(fake_sys.root, "0x8086")[which], clock)


def test_every_card_is_a_unit_keyed_by_its_address(fake_sys):
    units = create("intel", World(sysfs_root=fake_sys.root)).discover()

    assert [unit.key for unit in units] == ["intel:0000:03:00.0", "intel:0000:04:00.0"]
    labels = [unit.read()[0].labels for unit in units]
    assert [label["gpu_index"] for label in labels] == [0, 1]
    assert [label["vendor"] for label in labels] == ["intel", "intel"]
    assert labels[1]["gpu_uuid"] == "0000:04:00.0"
    assert labels[0]["gpu_name"]


def test_the_first_reading_of_an_i915_card(fake_sys, clock):
    assert meter(fake_sys, I915, clock).read() == {
        "memory_total_mb": 16384,
        "memory_used_mb": 1024,
        "memory_percent": 6.25,
        "energy_joules": 123.456789,
        "power_limit_watts": 190,
        "fan_speed_rpm": 1200,
        "graphics_clock_mhz": 2000,
        "graphics_clock_max_mhz": 2400,
        "throttle_reasons": "none",
    }


def test_the_first_reading_of_an_xe_card(fake_sys, clock):
    assert meter(fake_sys, XE, clock).read() == {
        "temperature_celsius": 52,
        "memory_temperature_celsius": 60,
        "energy_joules": 223.456789,
        "power_limit_watts": 190,
        "fan_speed_rpm": 900,
        "graphics_clock_mhz": 2350,
        "graphics_clock_max_mhz": 2850,
        "throttle_reasons": "none",
    }


@pytest.mark.parametrize(
    ("which", "idle", "energy"),
    [
        (I915, "card2/gt/gt0/rc6_residency_ms", "card2/device/hwmon/energy1_input"),
        (XE, "card3/device/tile0/gt0/gtidle/idle_residency_ms", "card3/device/hwmon/energy1_input"),
    ],
)
def test_use_and_power_come_from_the_difference_of_two_readings(fake_sys, clock, which, idle, energy):
    card = meter(fake_sys, which, clock)
    slept, joules = int(fake_sys.sensor(idle).read_text()), int(fake_sys.sensor(energy).read_text())
    card.read()

    clock.advance(2)
    fake_sys.put(idle, slept + 500)
    fake_sys.put(energy, joules + 300_000_000)
    values = card.read()
    assert values["utilization_percent"] == pytest.approx(75)
    assert values["power_draw_watts"] == pytest.approx(150)

    clock.advance(1)
    fake_sys.put(idle, slept + 1510)  # a little more than the time that passed: fully asleep
    assert card.read()["utilization_percent"] == 0

    clock.advance(1)
    assert card.read()["utilization_percent"] == 100


@pytest.mark.parametrize("after", ["17", "", "words", "-5", "99999999999"])
def test_a_sleep_counter_that_jumps_gives_no_use(fake_sys, clock, after):
    card = meter(fake_sys, XE, clock)
    card.read()

    clock.advance(1)
    fake_sys.put("card3/device/tile0/gt0/gtidle/idle_residency_ms", after)
    values = card.read()

    assert "utilization_percent" not in values
    assert values["temperature_celsius"] == 52


@pytest.mark.parametrize("after", ["1", "", "words", "9000000000000000"])
def test_an_energy_counter_that_jumps_gives_no_power(fake_sys, clock, after):
    card = meter(fake_sys, XE, clock)
    card.read()

    clock.advance(1)
    fake_sys.put("card3/device/hwmon/energy1_input", after)

    assert "power_draw_watts" not in card.read()


def test_a_counter_that_never_moved_is_no_counter(fake_sys, clock):
    fake_sys.put("card3/device/tile0/gt0/gtidle/idle_residency_ms", 0)
    card = meter(fake_sys, XE, clock)
    card.read()
    clock.advance(1)

    assert "utilization_percent" not in card.read()


def test_a_card_whose_sleep_state_is_switched_off_shows_no_use(fake_sys, clock):
    fake_sys.put("card2/gt/gt0/rc6_enable", 0)
    card = meter(fake_sys, I915, clock)
    card.read()
    clock.advance(1)

    assert "utilization_percent" not in card.read()


def test_two_readings_at_the_same_moment_are_no_division_by_zero(fake_sys, clock):
    card = meter(fake_sys, XE, clock)

    assert card.read() == card.read()


def test_use_is_the_mean_over_tiles_and_leaves_out_the_media_unit(fake_sys, clock):
    fake_sys.put("card3/device/tile0/gt1/gtidle/idle_residency_ms", 777)
    fake_sys.put("card3/device/tile1/gt2/gtidle/idle_residency_ms", 1000)
    card = meter(fake_sys, XE, clock)
    card.read()

    clock.advance(1)
    fake_sys.put("card3/device/tile1/gt2/gtidle/idle_residency_ms", 2000)

    assert card.read()["utilization_percent"] == pytest.approx(50)


def test_the_reasons_for_a_lower_clock_in_words(fake_sys, clock):
    folder = "card3/device/tile0/gt0/freq0/throttle"
    fake_sys.put(f"{folder}/status", 1)
    for reason, on in {"pl1": 1, "pl2": 1, "thermal": 1, "prochot": 0, "new_thing": 1}.items():
        fake_sys.put(f"{folder}/reason_{reason}", on)
    fake_sys.put("card2/gt/gt0/throttle_reason_status", 1)
    fake_sys.put("card2/gt/gt0/throttle_reason_vr_thermalert", 1)

    assert meter(fake_sys, XE, clock).read()["throttle_reasons"] == "new thing, power cap, thermal slowdown"
    assert meter(fake_sys, I915, clock).read()["throttle_reasons"] == "regulator thermal slowdown"


def test_a_power_limit_of_zero_is_none(fake_sys, clock):
    fake_sys.put("card2/device/hwmon/power1_max", 0)

    assert "power_limit_watts" not in meter(fake_sys, I915, clock).read()


@pytest.mark.parametrize(
    ("file", "nonsense", "name"),
    [
        ("device/hwmon/temp2_input", "16383000", "temperature_celsius"),
        ("device/hwmon/temp2_input", "0", "temperature_celsius"),
        ("device/hwmon/temp3_input", "hot", "memory_temperature_celsius"),
        ("device/hwmon/fan1_input", "-1", "fan_speed_rpm"),
        ("device/hwmon/power1_max", "", "power_limit_watts"),
        ("device/tile0/gt0/freq0/act_freq", "4294967295", "graphics_clock_mhz"),
        ("device/tile0/gt0/freq0/throttle/status", "?", "throttle_reasons"),
    ],
)
def test_a_value_that_cannot_be_true_is_absent_and_the_others_stay(fake_sys, clock, file, nonsense, name):
    fake_sys.put(f"card3/{file}", nonsense)

    values = meter(fake_sys, XE, clock).read()

    assert name not in values
    assert values["energy_joules"] == 223.456789


def test_every_name_is_in_the_catalog(fake_sys):
    for unit in IntelSource(World(sysfs_root=fake_sys.root)).discover():
        unit.read()
        time.sleep(0.01)
        (sample,) = unit.read()
        assert isinstance(sample, Sample)
        assert [name for name in sample.values if catalog.find("gpu", name) is None] == []


def test_a_sleeping_card_is_not_touched(fake_sys, by_kind, opened):
    fake_sys.put("card3/device/power/runtime_status", "suspended")
    unit = IntelSource(World(sysfs_root=fake_sys.root)).discover()[XE]
    opened.clear()

    given = by_kind(unit.read())

    assert [sample.values for sample in given.samples] == [{"state": "asleep"}]
    assert [notice.event for notice in given.notices] == ["gpu_asleep"]
    assert {path.rsplit("/", 1)[1] for path in opened} == {"runtime_status"}


def test_a_card_that_vanishes_is_gone(fake_sys):
    unit = IntelSource(World(sysfs_root=fake_sys.root)).discover()[I915]

    fake_sys.path("card2").unlink()

    with pytest.raises(UnitGone):
        unit.read()


def test_without_a_card_the_source_says_so(tmp_path):
    with pytest.raises(SourceUnavailable, match="no Intel GPU"):
        IntelSource(World(sysfs_root=str(tmp_path))).discover()
    assert IntelSource(World(sysfs_root=str(tmp_path))).describe() == {}


def test_node_exporter_sees_the_same_sensors(fake_sys, node_exporter):
    fake_sys.put("card3/device/hwmon/temp2_input", 71000)
    url = node_exporter(f"--path.sysfs={fake_sys.root}", "--collector.disable-defaults", "--collector.hwmon")

    theirs: dict[tuple[str, str, str], float] = {}
    for sample in create("openmetrics", World(openmetrics_urls=(url,))).discover()[0].read():
        assert isinstance(sample, Sample)
        for name, value in sample.values.items():
            place = str(sample.labels.get("chip", "")), str(sample.labels.get("sensor", ""))
            theirs[name, *place] = float(value)

    ours = [unit.read()[0].values for unit in IntelSource(World(sysfs_root=fake_sys.root)).discover()]
    chips = ["pci0000:00_0000:03:00_0", "pci0000:00_0000:04:00_0"]
    for chip, values in zip(chips, ours, strict=True):
        assert theirs["node_hwmon_energy_joule_total", chip, "energy1"] == values["energy_joules"]
        assert theirs["node_hwmon_fan_rpm", chip, "fan1"] == values["fan_speed_rpm"]
        assert theirs["node_hwmon_power_max_watt", chip, "power1"] == values["power_limit_watts"]
    assert theirs["node_hwmon_temp_celsius", chips[1], "temp2"] == ours[1]["temperature_celsius"] == 71

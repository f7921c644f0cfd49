from __future__ import annotations

import json
import re
import struct
import subprocess
from pathlib import Path

import pytest

from trainvitals import catalog
from trainvitals.agent.exporter_bridge import describe_gpus
from trainvitals.exporters.families import FamilyOptions, MetricsSnapshot, build
from trainvitals.exporters.page import render
from trainvitals.newest import Thing
from trainvitals.sources import Notice, Sample, SourceUnavailable, UnitGone, World, create
from trainvitals.sources.amd import AmdCardMeter, AmdSource, parse_clocks
from trainvitals.sources.amd_metrics import parse_gpu_metrics, parse_throttle_bits
from trainvitals.sources.drm import CardUnit, parse_link_generation, read_cards
from trainvitals.sources.sysfs import parse_pci_name

FIRST, SECOND = "719d230578348e80", "719d230578348e81"


def read_first(fake_sys) -> Sample:
    (sample,) = AmdSource(World(sysfs_root=fake_sys.root)).discover()[0].read()
    return sample


def table_1_3(energy: int, throttle_bits: int) -> bytes:
    raw = bytearray(120)
    struct.pack_into("<HBB", raw, 0, len(raw), 1, 3)
    struct.pack_into("<Q", raw, 24, energy)
    struct.pack_into("<Q", raw, 112, throttle_bits)
    return bytes(raw)


def table_1_7(energy: int, *residencies: int) -> bytes:
    raw = bytearray(2208)
    struct.pack_into("<HBB", raw, 0, len(raw), 1, 7)
    struct.pack_into("<Q", raw, 24, energy)
    struct.pack_into("<5I", raw, 44, *residencies)
    return bytes(raw)


def test_every_card_is_a_unit_keyed_by_its_unique_id(fake_sys):
    source = create("amd", World(sysfs_root=fake_sys.root))

    units = source.discover()

    assert [unit.key for unit in units] == [f"amd:{FIRST}", f"amd:{SECOND}"]
    labels = [unit.read()[0].labels for unit in units]
    assert labels == [
        {"gpu_index": 0, "gpu_uuid": FIRST, "gpu_name": "AMD Instinct MI210", "vendor": "amd"},
        {"gpu_index": 1, "gpu_uuid": SECOND, "gpu_name": "AMD Instinct MI210", "vendor": "amd"},
    ]


def test_a_reading_has_the_values_of_the_files_in_catalog_units(fake_sys):
    sample = read_first(fake_sys)

    assert sample.table == "gpu"
    assert sample.values == {
        "utilization_percent": 37,
        "memory_utilization_percent": 12,
        "memory_used_mb": 10737418240 / 2**20,
        "memory_total_mb": 68702699520 / 2**20,
        "memory_percent": pytest.approx(15.629, abs=0.001),
        "shared_memory_used_mb": 12345678 / 2**20,
        "temperature_celsius": 41.0,
        "hotspot_temperature_celsius": 55.0,
        "memory_temperature_celsius": 61.0,
        "temperature_limit_celsius": 100.0,
        "power_draw_watts": 181.0,
        "power_limit_watts": 300.0,
        "graphics_clock_mhz": 1700.0,
        "graphics_clock_max_mhz": 1700.0,
        "memory_clock_mhz": 1600.0,
        "memory_clock_max_mhz": 1600.0,
        "fan_speed_rpm": 0,
        "fan_speed_percent": 0.0,
        "pcie_link_generation": 4,
        "pcie_link_width": 16,
        "pcie_replay_total": 0,
        "ecc_corrected_total": 2,
        "ecc_uncorrected_total": 0,
        "state": "ok",
    }


def test_every_name_is_in_the_catalog(fake_sys):
    fake_sys.put("card0/device/gpu_metrics", table_1_3(1 << 20, 1))

    assert [name for name in read_first(fake_sys).values if catalog.find("gpu", name) is None] == []


def test_new_values_are_seen_by_the_next_reading(fake_sys):
    unit = AmdSource(World(sysfs_root=fake_sys.root)).discover()[1]
    unit.read()

    fake_sys.put("card1/device/gpu_busy_percent", 91)
    fake_sys.put("card1/device/hwmon/temp1_input", 78500)
    fake_sys.put("card1/device/hwmon/pwm1", 51)
    values = unit.read()[0].values

    assert values["utilization_percent"] == 91
    assert values["temperature_celsius"] == 78.5
    assert values["fan_speed_percent"] == 20


def test_what_hardly_changes_is_read_every_ten_seconds_but_limits_stand_on_every_line(fake_sys, clock):
    meter = AmdCardMeter(read_cards(fake_sys.root, "0x1002")[0], clock)
    assert meter.read()["ecc_corrected_total"] == 2

    clock.advance(1)
    values = meter.read()
    assert "ecc_corrected_total" not in values
    assert values["power_limit_watts"] == 300

    fake_sys.put("card0/device/ras/gfx_err_count", "ue: 1\nce: 3")
    fake_sys.put("card0/device/hwmon/power1_cap", 250_000_000)
    clock.advance(10)
    values = meter.read()
    assert (values["ecc_uncorrected_total"], values["ecc_corrected_total"]) == (1, 5)
    assert values["power_limit_watts"] == 250


@pytest.mark.parametrize(
    ("file", "nonsense", "name"),
    [
        ("gpu_busy_percent", "655", "utilization_percent"),
        ("gpu_busy_percent", "-1", "utilization_percent"),
        ("gpu_busy_percent", "", "utilization_percent"),
        ("gpu_busy_percent", "busy", "utilization_percent"),
        ("gpu_busy_percent", b"\xff\xfe\x00", "utilization_percent"),
        ("mem_busy_percent", "65535", "memory_utilization_percent"),
        ("mem_info_vram_used", "-4096", "memory_used_mb"),
        ("mem_info_vram_used", "99999999999999", "memory_percent"),
        ("mem_info_vram_total", "0", "memory_percent"),
        ("hwmon/temp1_input", "16383000", "temperature_celsius"),
        ("hwmon/temp2_input", "16383000", "hotspot_temperature_celsius"),
        ("hwmon/temp3_input", "0", "memory_temperature_celsius"),
        ("hwmon/temp3_input", "-273000", "memory_temperature_celsius"),
        ("hwmon/power1_average", "4294967295000000", "power_draw_watts"),
        ("hwmon/power1_average", "-1", "power_draw_watts"),
        ("hwmon/fan1_input", "4294967295", "fan_speed_rpm"),
        ("hwmon/pwm1", "999", "fan_speed_percent"),
        ("current_link_speed", "Unknown", "pcie_link_generation"),
        ("current_link_width", "255", "pcie_link_width"),
    ],
)
def test_a_value_that_cannot_be_true_is_absent_and_the_others_stay(fake_sys, file, nonsense, name):
    fake_sys.put(f"card0/device/{file}", nonsense)

    values = read_first(fake_sys).values

    assert name not in values
    assert values["memory_clock_mhz"] == 1600
    assert values["state"] == "ok"


@pytest.mark.parametrize("file", ["gpu_busy_percent", "hwmon", "ras", "mem_info_vram_used", "product_name"])
def test_a_missing_file_costs_only_its_own_value(fake_sys, file):
    fake_sys.remove(f"card0/device/{file}")

    sample = read_first(fake_sys)

    assert sample.values["memory_utilization_percent"] == 12
    assert sample.values["state"] == "ok"
    assert sample.labels["gpu_name"]


def test_a_file_that_cannot_be_read_is_like_a_missing_one(fake_sys):
    path = fake_sys.path("card0/device/gpu_busy_percent")
    path.unlink()
    path.mkdir()  # reading a folder fails for root too, which a mode of 000 does not

    values = read_first(fake_sys).values

    assert "utilization_percent" not in values
    assert values["temperature_celsius"] == 41


def test_a_card_without_an_edge_sensor_shows_its_junction(fake_sys):
    fake_sys.remove("card0/device/hwmon/temp1_input")

    values = read_first(fake_sys).values

    assert values["temperature_celsius"] == values["hotspot_temperature_celsius"] == 55
    assert values["temperature_limit_celsius"] == 105


def test_a_newer_kernel_tells_power_as_input(fake_sys):
    fake_sys.remove("card0/device/hwmon/power1_average")
    fake_sys.put("card0/device/hwmon/power1_input", 93_000_000)

    assert read_first(fake_sys).values["power_draw_watts"] == 93


def test_clocks_come_from_the_level_table_where_there_is_no_sensor(fake_sys):
    fake_sys.remove("card0/device/hwmon/freq1_input")
    fake_sys.put("card0/device/pp_dpm_sclk", "0: 500Mhz *\n1: 1700Mhz")

    values = read_first(fake_sys).values

    assert (values["graphics_clock_mhz"], values["graphics_clock_max_mhz"]) == (500, 1700)


def test_an_integrated_gpu_counts_the_system_memory_it_uses(fake_sys):
    fake_sys.put("card0/device/hwmon/in1_label", "vddnb")
    fake_sys.put("card0/device/mem_info_vram_total", 512 << 20)
    fake_sys.put("card0/device/mem_info_vram_used", 100 << 20)
    fake_sys.put("card0/device/mem_info_gtt_total", 7680 << 20)
    fake_sys.put("card0/device/mem_info_gtt_used", 1948 << 20)

    sample = read_first(fake_sys)

    assert sample.values["memory_total_mb"] == 8192
    assert sample.values["memory_used_mb"] == 2048
    assert sample.values["memory_percent"] == 25
    assert sample.values["shared_memory_used_mb"] == 1948
    assert sample.labels["memory_kind"] == "unified"


@pytest.mark.parametrize("useless", [None, "0", "0000000000000000", ""])
def test_a_card_without_a_unique_id_is_keyed_by_its_address(fake_sys, useless):
    if useless is None:
        fake_sys.remove("card0/device/unique_id")
    else:
        fake_sys.put("card0/device/unique_id", useless)

    assert AmdSource(World(sysfs_root=fake_sys.root)).discover()[0].key == "amd:0000:43:00.0"


def test_partitions_that_share_an_id_are_told_apart(fake_sys):
    fake_sys.put("card1/device/unique_id", FIRST)

    keys = [unit.key for unit in AmdSource(World(sysfs_root=fake_sys.root)).discover()]

    assert keys == [f"amd:{FIRST}", "amd:0000:53:00.0"]


def test_a_sleeping_card_is_not_touched_and_is_said_to_sleep_once(fake_sys, by_kind, opened):
    fake_sys.put("card0/device/power/runtime_status", "suspended")
    unit = AmdSource(World(sysfs_root=fake_sys.root)).discover()[0]
    opened.clear()

    first, second = by_kind(unit.read()), by_kind(unit.read())

    assert [sample.values for sample in first.samples + second.samples] == [{"state": "asleep"}] * 2
    assert [notice.event for notice in first.notices + second.notices] == ["gpu_asleep"]
    assert "AMD Instinct MI210" in first.notices[0].message
    assert {path.rsplit("/", 1)[1] for path in opened} == {"runtime_status"}

    fake_sys.put("card0/device/power/runtime_status", "active")
    assert by_kind(unit.read()).samples[0].values["utilization_percent"] == 37


def test_an_idle_card_that_could_sleep_is_left_alone_until_it_may_have_fallen_asleep(fake_sys, clock):
    card = read_cards(fake_sys.root, "0x1002")[0]
    fake_sys.put("card0/device/power/control", "auto")
    fake_sys.put("card0/device/power/autosuspend_delay_ms", 20_000)
    fake_sys.put("card0/device/gpu_busy_percent", 0)
    unit = CardUnit("k", {"gpu_index": 0, "gpu_name": "x"}, card, AmdCardMeter(card, clock).read, clock)

    for _ in range(3):
        assert unit.read()
        clock.advance(1)

    assert unit.read() == []
    clock.advance(38)
    assert unit.read() == []
    clock.advance(1)
    assert unit.read()[0].values["utilization_percent"] == 0


@pytest.mark.parametrize(("control", "busy"), [("on", 0), ("auto", 40)])
def test_a_card_that_cannot_sleep_or_works_is_read_every_time(fake_sys, clock, control, busy):
    card = read_cards(fake_sys.root, "0x1002")[0]
    fake_sys.put("card0/device/power/control", control)
    fake_sys.put("card0/device/gpu_busy_percent", busy)
    unit = CardUnit("k", {"gpu_index": 0, "gpu_name": "x"}, card, AmdCardMeter(card, clock).read, clock)

    given = [unit.read() for _ in range(8)]

    assert all(samples[0].values["utilization_percent"] == busy for samples in given)


def test_the_file_that_sleeps_a_second_is_never_opened(fake_sys, opened):
    fake_sys.put("card0/device/pcie_bw", "1 2 3")
    opened.clear()

    read_first(fake_sys)

    assert any(path.endswith("gpu_busy_percent") for path in opened)
    assert not any(path.endswith("pcie_bw") for path in opened)


def test_a_card_that_vanishes_is_gone(fake_sys):
    unit = AmdSource(World(sysfs_root=fake_sys.root)).discover()[0]
    unit.read()

    fake_sys.path("card0").unlink()

    with pytest.raises(UnitGone, match=r"0000:43:00\.0"):
        unit.read()
    assert len(AmdSource(World(sysfs_root=fake_sys.root)).discover()) == 1


def test_a_card_that_answers_nothing_is_lost_and_recovers(fake_sys, by_kind):
    unit = AmdSource(World(sysfs_root=fake_sys.root)).discover()[0]
    files = [path for path in fake_sys.path("card0/device").resolve().rglob("*") if path.is_file()]
    files = [path for path in files if path.name not in ("vendor", "runtime_status")]
    for path in files:
        path.rename(f"{path}.away")

    lost = by_kind(unit.read())
    again = by_kind(unit.read())

    assert lost.samples[0].values == {"state": "lost"}
    assert [(notice.event, notice.severity) for notice in lost.notices] == [("gpu_lost", "critical")]
    assert again.notices == []

    for path in files:
        Path(f"{path}.away").rename(path)
    back = by_kind(unit.read())
    assert back.samples[0].values["state"] == "ok"
    assert [notice.event for notice in back.notices] == ["gpu_recovered"]


def test_files_that_vanish_between_two_readings_are_survived(fake_sys):
    unit = AmdSource(World(sysfs_root=fake_sys.root)).discover()[0]
    files = [path for path in fake_sys.path("card0/device").resolve().rglob("*") if path.is_file()]
    given: list[Sample | Notice] = []
    for path in files:
        if path.name != "vendor":
            path.unlink()
            given += unit.read()
    assert given[-1].values == {"state": "lost"}
    assert [item.event for item in given if isinstance(item, Notice)] == ["gpu_lost"]


def test_without_a_card_the_source_says_so(tmp_path):
    with pytest.raises(SourceUnavailable, match="no AMD GPU"):
        AmdSource(World(sysfs_root=str(tmp_path))).discover()
    assert AmdSource(World(sysfs_root=str(tmp_path))).describe() == {}


def test_the_description_names_the_cards(fake_sys):
    facts = AmdSource(World(sysfs_root=fake_sys.root)).describe()

    assert [gpu["gpu_uuid"] for gpu in facts["gpus"]] == [FIRST, SECOND]
    assert facts["gpus"][0]["pci_address"] == "0000:43:00.0"
    assert facts["gpus"][0]["vbios_version"] == "113-D67301V-073"


def test_prometheus_gets_what_the_kernel_says_of_the_cards_and_their_driver(fake_sys):
    version = Path(fake_sys.root, "module/amdgpu/version")
    version.parent.mkdir(parents=True, exist_ok=True)
    version.write_text("6.10.5\n")
    source = AmdSource(World(sysfs_root=fake_sys.root))
    facts = describe_gpus({"amd": source.describe(), "system": {"cpu_count": 8}})

    samples = [unit.read()[0] for unit in source.discover()]
    things = tuple(Thing("gpu", sample.labels, dict(sample.values)) for sample in samples)
    text = render(build(MetricsSnapshot("box", 1.0, things, gpu_facts=facts), FamilyOptions()), "")[0].decode()
    about = dict(re.findall(r'(\w+)="([^"]*)"', next(row for row in text.splitlines() if row.startswith("gpu_info{"))))
    assert about["uuid"] == FIRST and about["vendor"] == "amd" and about["driver_version"] == "6.10.5"
    assert about["vbios_version"] == "113-D67301V-073" and about["pci_bus_id"] == "0000:43:00.0"
    assert about["cuda_version"] == about["serial"] == "", "nobody says"


def test_energy_and_throttling_come_from_the_firmware_table(fake_sys):
    fake_sys.put("card0/device/gpu_metrics", table_1_3(1000 << 16, 1 << 0 | 1 << 36))

    values = read_first(fake_sys).values

    assert values["energy_joules"] == 1000
    assert values["throttle_reasons"] == "power cap, thermal slowdown"


def test_the_energy_unit_of_a_consumer_card_is_not_known(fake_sys):
    fake_sys.put("card0/device/device", "0x744c")
    fake_sys.put("card0/device/gpu_metrics", table_1_3(1000 << 16, 0))

    values = read_first(fake_sys).values

    assert "energy_joules" not in values
    assert values["throttle_reasons"] == "none"


def test_on_newer_cards_a_counter_that_grows_is_the_reason(fake_sys, clock):
    meter = AmdCardMeter(read_cards(fake_sys.root, "0x1002")[0], clock)
    fake_sys.put("card0/device/gpu_metrics", table_1_7(5 << 16, 0, 100, 7, 0, 0))
    first = meter.read()
    assert first["energy_joules"] == 5
    assert "throttle_reasons" not in first

    clock.advance(1)
    fake_sys.put("card0/device/gpu_metrics", table_1_7(6 << 16, 0, 150, 7, 0, 1))
    assert meter.read()["throttle_reasons"] == "power cap, memory thermal slowdown"

    clock.advance(1)
    assert meter.read()["throttle_reasons"] == "none"


@pytest.mark.parametrize("length", [0, 1, 3, 4, 20, 31, 119])
def test_a_table_cut_short_says_nothing(length):
    table = parse_gpu_metrics(table_1_3(1 << 16, 1)[:length])

    assert (table.energy_joules, table.throttle_reasons) == (None, None)


def test_a_table_of_an_unknown_version_says_nothing():
    raw = bytearray(table_1_3(1 << 16, 1))
    raw[2:4] = b"\x09\x01"

    assert parse_gpu_metrics(bytes(raw)).energy_joules is None


def test_all_ones_mean_not_supported():
    table = parse_gpu_metrics(table_1_3((1 << 64) - 1, (1 << 64) - 1))

    assert (table.energy_joules, table.throttle_reasons) == (None, None)


def test_every_throttle_bit_has_a_word():
    assert parse_throttle_bits((1 << 64) - 1) == (
        "power cap",
        "current limit",
        "thermal slowdown",
        "memory thermal slowdown",
        "regulator thermal slowdown",
        "hardware slowdown",
        "other",
    )


@pytest.mark.parametrize(
    ("text", "clocks"),
    [
        ("0: 500Mhz\n1: 1700Mhz *", (1700, 1700)),
        ("S: 19Mhz *\n0: 615Mhz\n1: 2482Mhz", (19, 2482)),
        ("", (None, None)),
        ("nonsense", (None, None)),
        ("0: 99999999Mhz *", (None, None)),
    ],
)
def test_level_tables(text, clocks):
    assert parse_clocks(text) == clocks


def test_link_generations():
    assert [parse_link_generation(f"{speed} GT/s PCIe") for speed in ("2.5", "8.0", "16.0", "32.0")] == [
        1,
        3,
        4,
        5,
    ]
    assert parse_link_generation("Unknown") is None


def test_a_name_out_of_the_list_of_pci_names():
    text = (
        "# list\n1001  Other\n\t744c  Wrong\n"
        "1002  Advanced Micro Devices, Inc. [AMD/ATI]\n\t740f  Aldebaran/MI200 [Instinct MI210]\n"
        "\t\t1002 0c34  Sub\n\t744c  Plain Name\n1003  Next\n\t9999  No\n"
    )

    assert parse_pci_name(text, "1002", "740f") == "Instinct MI210"
    assert parse_pci_name(text, "1002", "744c") == "Plain Name"
    assert parse_pci_name(text, "1002", "9999") is None
    assert parse_pci_name("", "1002", "740f") is None


def test_rocm_smi_sees_the_same_numbers_in_the_same_tree(fake_sys, program):
    program("rocm-smi")
    fake_sys.put("card0/device/gpu_busy_percent", 83)
    fake_sys.put("card1/device/mem_busy_percent", 44)
    fake_sys.put("card1/device/hwmon/temp2_input", 88000)
    fake_sys.put("card0/device/hwmon/power1_average", 222_000_000)
    fake_sys.put("card1/device/mem_info_vram_used", 30 << 30)
    fake_sys.put("card1/device/hwmon/freq1_input", 500_000_000)
    fake_sys.put("card1/device/pp_dpm_sclk", "0: 500Mhz *\n1: 1700Mhz")
    fake_sys.put("card0/device/gpu_metrics", table_1_3(123_456_789, 0))
    script = 'mount --bind "$0" /sys && exec rocm-smi -a --showmeminfo vram --showenergycounter --json'
    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, fake_sys.root],
        capture_output=True,
        text=True,
        check=False,  # it answers 2 when a card has not everything it asked for
    )
    theirs = json.loads(answer.stdout[answer.stdout.index("{") :])

    units = AmdSource(World(sysfs_root=fake_sys.root)).discover()
    for index, unit in enumerate(units):
        (ours,) = unit.read()
        card = theirs[f"card{index}"]
        values = ours.values
        assert int(card["Unique ID"], 16) == int(str(ours.labels["gpu_uuid"]), 16)
        assert float(card["GPU use (%)"]) == values["utilization_percent"]
        assert float(card["GPU memory use (%)"]) == values["memory_utilization_percent"]
        assert float(card["Temperature (Sensor edge) (C)"]) == values["temperature_celsius"]
        assert float(card["Temperature (Sensor junction) (C)"]) == values["hotspot_temperature_celsius"]
        assert float(card["Temperature (Sensor memory) (C)"]) == values["memory_temperature_celsius"]
        assert float(card["Average Graphics Package Power (W)"]) == values["power_draw_watts"]
        assert float(card["Max Graphics Package Power (W)"]) == values["power_limit_watts"]
        assert card["sclk clock speed:"] == f"({values['graphics_clock_mhz']:.0f}Mhz)"
        assert card["mclk clock speed:"] == f"({values['memory_clock_mhz']:.0f}Mhz)"
        assert int(card["VRAM Total Memory (B)"]) == values["memory_total_mb"] * 2**20
        assert int(card["VRAM Total Used Memory (B)"]) == values["memory_used_mb"] * 2**20
        if index == 0:  # it rounds the unit of the counter to 15.3 uJ
            energy = pytest.approx(float(card["Accumulated Energy (uJ)"]) / 1e6, rel=0.005)
            assert values["energy_joules"] == energy
        assert int(card["PCIe Replay Count"]) == values["pcie_replay_total"]


def test_node_exporter_sees_the_same_numbers_in_the_same_tree(fake_sys, node_exporter):
    fake_sys.put("card1/device/gpu_busy_percent", 59)
    fake_sys.put("card1/device/hwmon/temp1_input", 66000)
    url = node_exporter(
        f"--path.sysfs={fake_sys.root}",
        "--collector.disable-defaults",
        "--collector.drm",
        "--collector.hwmon",
    )

    theirs: dict[tuple[str, str], float] = {}
    for sample in create("openmetrics", World(openmetrics_urls=(url,))).discover()[0].read():
        assert isinstance(sample, Sample)
        for name, value in sample.values.items():
            chip = sample.labels.get("card", sample.labels.get("chip", ""))
            theirs[name, f"{chip}/{sample.labels.get('sensor', '')}"] = float(value)

    ours = [unit.read()[0].values for unit in AmdSource(World(sysfs_root=fake_sys.root)).discover()]
    for index, values in enumerate(ours):
        assert theirs["node_drm_gpu_busy_percent", f"card{index}/"] == values["utilization_percent"]
        assert theirs["node_drm_memory_vram_used_bytes", f"card{index}/"] == values["memory_used_mb"] * 2**20
        assert theirs["node_drm_memory_vram_size_bytes", f"card{index}/"] == values["memory_total_mb"] * 2**20
    degrees = {place: value for (name, place), value in theirs.items() if name == "node_hwmon_temp_celsius"}
    assert [value for place, value in sorted(degrees.items()) if place.endswith("/temp1")] == [
        values["temperature_celsius"] for values in ours
    ]

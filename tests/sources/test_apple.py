from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from waiting import PATIENCE

from trainvitals import catalog
from trainvitals.sources import Sample, SourceUnavailable, World, apple, create
from trainvitals.sources.apple import AppleUnit, parse_macmon

OLD = {
    "temp": {"cpu_temp_avg": 43.5, "gpu_temp_avg": 36.5},
    "memory": {"ram_total": 24 << 30, "ram_usage": 6 << 30, "swap_total": 0, "swap_usage": 0},
    "ecpu_usage": [1181, 0.08],
    "pcpu_usage": [1974, 0.01],
    "gpu_usage": [461, 0.25],
    "cpu_power": 0.2,
    "gpu_power": 12.5,
    "ane_power": 0.0,
    "all_power": 12.7,
    "sys_power": 17.5,
}
"""What macmon 0.4 to 0.7 print."""

NEW = {
    "timestamp": "2026-07-31T02:28:40.726672+00:00",
    "temp": {"cpu_temp_avg": 50.0, "gpu_temp_avg": 47.25},
    "memory": {"ram_total": 64 << 30, "ram_usage": 16 << 30, "swap_total": 0, "swap_usage": 0},
    "fans": [{"name": "fan0", "rpm": 1700, "max_rpm": 5800}, {"name": "fan1", "rpm": 1850, "max_rpm": 5800}],
    "gpu_freq_mhz": 1338,
    "gpu_scaled_ratio": 0.4,
    "gpu_active_ratio": 0.75,
    "gpu_power": 21.5,
}
"""What macmon 0.8 prints."""


class FakeMacmon:
    """A program called macmon that prints what the test says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "macmon"
        self.starts = folder / "starts"
        self.starts.touch()

    def write(self, body: str) -> AppleUnit:
        """Python code with `say(object or text)` and `arguments`; gives a unit that runs it."""
        self.path.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys, time\n"
            f"open({str(self.starts)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            "arguments = sys.argv[1:]\n"
            "def say(what):\n"
            "    print(what if isinstance(what, str) else json.dumps(what), flush=True)\n"
            f"old, new = {OLD!r}, {NEW!r}\n"
            f"{body}\n"
        )
        self.path.chmod(0o755)
        (unit,) = create("apple", World(macmon_command=(str(self.path),))).discover()
        assert isinstance(unit, AppleUnit)
        return unit

    def pids(self) -> list[int]:
        return [int(line) for line in self.starts.read_text().split()]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine starts a program late."""
    monkeypatch.setattr(apple, "PATIENCE", PATIENCE)


@pytest.fixture
def macmon(tmp_path: Path) -> Iterator[FakeMacmon]:
    fake = FakeMacmon(tmp_path)
    yield fake
    for pid in fake.pids():
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "a macmon was left behind"


FOREVER = "while True:\n    say({})\n    time.sleep(0.01)"


def read(unit: AppleUnit) -> Sample:
    (sample,) = unit.read()
    assert isinstance(sample, Sample)
    return sample


def test_a_line_of_the_older_macmon():
    assert parse_macmon(json.dumps(OLD)) == {
        "utilization_percent": 25,
        "graphics_clock_mhz": 461,
        "power_draw_watts": 12.5,
        "temperature_celsius": 36.5,
        "memory_used_mb": 6144,
        "memory_total_mb": 24576,
        "memory_percent": 25,
    }


def test_a_line_of_the_newer_macmon():
    assert parse_macmon(json.dumps(NEW)) == {
        "utilization_percent": 75,
        "graphics_clock_mhz": 1338,
        "power_draw_watts": 21.5,
        "temperature_celsius": 47.25,
        "memory_used_mb": 16384,
        "memory_total_mb": 65536,
        "memory_percent": 25,
        "fan_speed_rpm": 1850,
    }


def test_every_name_is_in_the_catalog():
    assert [name for name in parse_macmon(json.dumps(NEW)) if catalog.find("gpu", name) is None] == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"temp": {"gpu_temp_avg": 0.0}}, "temperature_celsius"),
        ({"temp": {"gpu_temp_avg": 4096.0}}, "temperature_celsius"),
        ({"temp": None}, "temperature_celsius"),
        ({"temp": "warm"}, "temperature_celsius"),
        ({"gpu_power": -3}, "power_draw_watts"),
        ({"gpu_power": None}, "power_draw_watts"),
        ({"gpu_active_ratio": 6.55}, "utilization_percent"),
        ({"gpu_active_ratio": True}, "utilization_percent"),
        ({"gpu_freq_mhz": "fast"}, "graphics_clock_mhz"),
        ({"memory": {"ram_total": 0, "ram_usage": 5}}, "memory_percent"),
        ({"memory": []}, "memory_used_mb"),
        ({"fans": [1, {"rpm": None}]}, "fan_speed_rpm"),
        ({"fans": None}, "fan_speed_rpm"),
    ],
)
def test_a_value_that_cannot_be_true_is_absent_and_the_others_stay(change, name):
    values = parse_macmon(json.dumps({**NEW, **change}))

    assert name not in values
    assert len(values) >= 5


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", '"x"', "Error: no such chip", "\x00", '{"temp": {}}'])
def test_a_line_that_is_no_reading_says_nothing(text):
    assert parse_macmon(text) == {}


def test_the_gpu_is_read_from_a_macmon_that_is_kept_open(macmon):
    unit = macmon.write(FOREVER.format("new"))

    first, second = read(unit), read(unit)
    unit.close()

    assert unit.key == "apple:0"
    assert first.table == "gpu"
    assert first.labels["vendor"] == "apple"
    assert first.labels["memory_kind"] == "unified"
    assert first.values["utilization_percent"] == second.values["utilization_percent"] == 75
    assert first.values["state"] == "ok"
    assert second.time > first.time
    assert len(macmon.pids()) == 1


def test_macmon_is_asked_to_go_on_for_ever(macmon):
    right = "assert arguments == ['pipe', '-s', '0', '-i', '500'], arguments\n"
    unit = macmon.write(right + FOREVER.format("new"))

    assert read(unit).values["power_draw_watts"] == 21.5
    unit.close()


def test_a_slow_reader_gets_the_newest_line(macmon):
    unit = macmon.write("for power in range(200):\n    say({**new, 'gpu_power': power})\nsay(new)\ntime.sleep(600)")
    for _ in range(600):
        sample = read(unit)
        if sample.values["power_draw_watts"] == 21.5:
            break
    unit.close()

    assert sample.values["power_draw_watts"] == 21.5


def test_a_line_is_never_given_twice(macmon, monkeypatch):
    unit = macmon.write("say(new)\ntime.sleep(600)")
    read(unit)
    monkeypatch.setattr(apple, "PATIENCE", 0.3)

    with pytest.raises(SourceUnavailable, match="macmon returned nothing"):
        unit.read()


def test_words_between_the_lines_are_passed_over(macmon):
    unit = macmon.write("say('warming up')\nsay('{\"half\": ')\nsay('')\n" + FOREVER.format("old"))

    assert read(unit).values["power_draw_watts"] == 12.5
    unit.close()


def test_a_macmon_that_dies_is_started_again(macmon):
    unit = macmon.write("say(new)")
    samples = [read(unit) for _ in range(5)]
    unit.close()

    assert [sample.values["power_draw_watts"] for sample in samples] == [21.5] * 5
    assert len(macmon.pids()) == 5


def test_a_macmon_that_is_killed_is_started_again(macmon):
    unit = macmon.write(FOREVER.format("new"))
    read(unit)
    os.kill(macmon.pids()[0], 9)
    while psutil.pid_exists(macmon.pids()[0]) and psutil.Process(macmon.pids()[0]).status() != "zombie":
        time.sleep(0.01)

    for _ in range(600):
        read(unit)
        if len(macmon.pids()) == 2:
            break
        time.sleep(0.05)
    unit.close()

    assert len(macmon.pids()) == 2


def test_a_macmon_that_refuses_is_quoted_and_tried_again_later(macmon):
    unit = macmon.write("sys.exit('Error: unsupported chip')")

    with pytest.raises(SourceUnavailable, match=r"unsupported chip \(exit code 1\)"):
        unit.read()

    macmon.write(FOREVER.format("new")).close()
    assert read(unit).values["power_draw_watts"] == 21.5
    unit.close()


def test_a_macmon_that_cannot_be_executed_is_said(macmon):
    unit = macmon.write("say(new)")
    macmon.path.write_text("not a program")
    macmon.path.chmod(0o644)

    with pytest.raises(SourceUnavailable, match="cannot start macmon"):
        unit.read()


def test_a_macmon_that_will_not_go_is_made_to(macmon):
    unit = macmon.write("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER.format("new"))
    read(unit)

    unit.close()

    assert not psutil.pid_exists(macmon.pids()[0])


def test_without_macmon_the_source_says_how_to_get_it(tmp_path):
    with pytest.raises(SourceUnavailable, match="brew install macmon"):
        create("apple", World(macmon_command=(str(tmp_path / "nothing"),))).discover()


@pytest.mark.skipif(sys.platform == "darwin", reason="there is a GPU here")
def test_elsewhere_than_on_a_mac_a_program_that_happens_to_be_called_macmon_is_not_run(macmon, monkeypatch):
    macmon.write("say(new)")
    monkeypatch.setenv("PATH", f"{macmon.path.parent}:{os.environ['PATH']}")

    with pytest.raises(SourceUnavailable, match="macOS"):
        create("apple", World()).discover()
    assert macmon.pids() == []

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from waiting import wait_until

from trainvitals import catalog
from trainvitals.sources import Sample, World, create
from trainvitals.sources.cgroup import parse_cgroups, read_cgroup, read_cpu_quota, read_memory_limit
from trainvitals.sources.system import (
    MOST_CORES,
    CpuTimes,
    DiskSpaceUnit,
    HostMemory,
    HostUnit,
    core_shares,
    cpu_times,
    parse_cpu_list,
    parse_meminfo,
    parse_oom_kills,
    parse_pressure,
    read_cpu_temperature,
    since,
)

MIB = 1 << 20


class FakeHost:
    """/proc and /sys of a machine; what psutil tells is still real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World(
            procfs_root=str(folder / "proc"), sysfs_root=str(folder / "sys"), disk_path=lambda: str(folder)
        )

    def put(self, path: str, text: object) -> None:
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(f"{text}\n")

    def version_2(self, path: str = "/job") -> None:
        self.put("sys/fs/cgroup/cgroup.controllers", "cpu memory")
        self.put("proc/self/cgroup", f"0::{path}")
        (self.folder / f"sys/fs/cgroup{path}").mkdir(parents=True, exist_ok=True)

    def version_1(self, path: str = "/job") -> None:
        self.put("proc/self/cgroup", f"4:memory:{path}\n3:cpuset:/\n2:cpu,cpuacct:{path}\n0::/")
        for controller in ("memory", "cpu", "cpuacct"):
            (self.folder / f"sys/fs/cgroup/{controller}{path}").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


def read(unit: HostUnit) -> dict[str, float]:
    (sample,) = unit.read()
    assert isinstance(sample, Sample)
    assert sample.table == "system"
    return {name: float(value) for name, value in sample.values.items()}


def read_twice(unit: HostUnit, clock) -> dict[str, float]:
    read(unit)
    clock.advance(1)
    return read(unit)


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core that is kept busy by a child."""
    core = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code])
    yield core
    child.kill()
    child.wait()


def test_the_host_and_the_space_on_disk_are_units_of_their_own():
    assert [unit.key for unit in create("system", World()).discover()] == ["system:host", "system:disk"]


def test_the_first_reading_has_no_rates():
    values = read(HostUnit(World()))

    assert "memory_usage_percent" in values
    assert [name for name in values if name.endswith(("_mb_s", "_iops")) or name.startswith("cpu_usage")] == []


def test_every_name_is_in_the_catalog():
    unit = HostUnit(World())
    first = read(unit)
    time.sleep(0.05)
    names = [*first, *read(unit), *DiskSpaceUnit(World()).read()[0].values]

    assert [name for name in names if catalog.find("system", name) is None] == []
    assert {"cpu_usage_percent", "disk_read_mb_s", "network_send_mb_s", "load_5m", "cpu0_percent"} <= set(names)


def test_a_busy_core_is_seen_as_busy(busy_core):
    unit = HostUnit(World())
    read(unit)
    values: dict[str, float] = {}

    def is_busy() -> bool:
        time.sleep(0.5)
        values.update(read(unit))
        return values[f"cpu{busy_core}_percent"] > 90

    wait_until(is_busy, lambda: f"a busy core; it is {values}")
    assert values["cpu_max_core_percent"] >= values[f"cpu{busy_core}_percent"]
    cores = len(os.sched_getaffinity(0))
    assert values["cpu_usage_percent"] > 85 / cores
    assert values["cpu_count"] == cores


@pytest.mark.parametrize("bare", [False, True], ids=["from /proc", "without /proc"])
def test_memory_is_what_psutil_says(host, bare):
    values: dict[str, float] = {}

    def is_what_psutil_says() -> bool:
        """In a moment in which nobody else takes much memory, or gives it back."""
        before, swap = psutil.virtual_memory(), psutil.swap_memory()
        values.update(read(HostUnit(host.world if bare else World())))
        after = psutil.virtual_memory()
        low, high = sorted((before.available / MIB, after.available / MIB))
        return low - 512 <= values["memory_available_mb"] <= high + 512 and values["swap_used_mb"] == pytest.approx(
            swap.used / MIB, abs=64
        )

    wait_until(is_what_psutil_says, lambda: f"what psutil says; it is {values}")
    assert values["memory_total_mb"] == psutil.virtual_memory().total / MIB
    assert values["memory_used_mb"] == pytest.approx(values["memory_total_mb"] - values["memory_available_mb"])
    expected = values["memory_used_mb"] / values["memory_total_mb"] * 100
    assert values["memory_usage_percent"] == pytest.approx(expected)
    assert "memory_limit_mb" not in values


MEMINFO = b"""MemTotal:       16384000 kB
MemFree:          100000 kB
MemAvailable:    8192000 kB
SwapCached:          512 kB
SwapTotal:       2048000 kB
SwapFree:        1024000 kB
HugePages_Total:       0
"""


def test_memory_and_swap_come_out_of_one_file():
    assert parse_meminfo(MEMINFO) == HostMemory(16384000 << 10, 8192000 << 10, 2048000 << 10, 1024000 << 10)


def test_no_more_is_available_than_there_is():
    raised = MEMINFO.replace(b"MemAvailable:    8192000", b"MemAvailable:   99999999")
    assert parse_meminfo(raised) == HostMemory(16384000 << 10, 16384000 << 10, 2048000 << 10, 1024000 << 10)


@pytest.mark.parametrize("text", [b"", b"MemTotal: much", MEMINFO.replace(b"MemAvailable", b"MemUnknown")])
def test_a_file_that_does_not_say_enough_says_nothing(text):
    assert parse_meminfo(text) is None


def test_what_the_kernel_averages_is_read_once_a_second_at_most(host, clock):
    unit = HostUnit(host.world, clock)
    first = read(unit)
    clock.advance(0.1)
    second = read(unit)
    clock.advance(0.9)
    assert "load_1m" in first and "load_1m" not in second and "load_1m" in read(unit)
    assert "memory_used_mb" in second and "cpu_count" in second


def test_what_is_written_to_disk_is_counted_once(clock, tmp_path):
    def written() -> float:
        disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
        whole = [name for name in disks if Path("/sys/block", name).exists()]
        return sum(disks[name].write_bytes for name in whole if not name.startswith(("loop", "zram", "dm-"))) / MIB

    unit = HostUnit(World(), clock)
    outer = written()
    read(unit)
    inner = written()
    with open(tmp_path / "file", "wb") as file:
        file.write(os.urandom(4 * MIB))
        file.flush()
        os.fsync(file.fileno())
    inner = written() - inner
    clock.advance(1)
    values = read(unit)
    outer = written() - outer

    assert inner <= values["disk_write_mb_s"] <= outer
    assert values["disk_write_iops"] >= 0
    assert 0 <= values["disk_busy_percent"] <= 100


def test_what_disks_and_interfaces_moved_so_far_is_counted_by_device(clock):
    unit = HostUnit(World(), clock)
    before, (sample,), after = _moved(), unit.read(), _moved()

    assert sample.counters.keys() == {counter.name for counter in catalog.COUNTERS["system"]}
    for name, counts in sample.counters.items():
        assert counts, name
        for device, count in counts.items():
            assert before[name][device] <= count <= after[name][device]
    assert "lo" not in sample.counters["network_receive_bytes_total"]
    assert not sample.counters.keys() & sample.values.keys()


def _moved() -> dict[str, dict[str, float]]:
    disks, interfaces = psutil.disk_io_counters(perdisk=True), psutil.net_io_counters(pernic=True)
    return {
        "disk_read_bytes_total": {name: disk.read_bytes for name, disk in disks.items()},
        "disk_write_bytes_total": {name: disk.write_bytes for name, disk in disks.items()},
        "disk_reads_total": {name: disk.read_count for name, disk in disks.items()},
        "disk_writes_total": {name: disk.write_count for name, disk in disks.items()},
        "disk_busy_seconds_total": {name: disk.busy_time / 1000 for name, disk in disks.items()},
        "network_receive_bytes_total": {name: nic.bytes_recv for name, nic in interfaces.items()},
        "network_send_bytes_total": {name: nic.bytes_sent for name, nic in interfaces.items()},
    }


def test_loopback_traffic_is_not_network_traffic(clock):
    import socket

    unit = HostUnit(World(), clock)
    read(unit)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
    ):
        other, _ = server.accept()
        sent = 0
        with other:
            for _ in range(64):
                one.sendall(bytes(MIB))
                while sent < MIB:
                    sent += len(other.recv(1 << 20))
                sent -= MIB
    clock.advance(1)
    values = read(unit)

    assert values["network_receive_mb_s"] < 64
    assert values["network_send_mb_s"] < 64


def test_with_a_physical_interface_the_virtual_ones_would_count_twice(host, clock):
    names = [name for name in psutil.net_io_counters(pernic=True) if not name.startswith("lo")]
    (host.folder / f"sys/class/net/{names[0]}/device").mkdir(parents=True)
    unit = HostUnit(host.world, clock)

    counters = psutil.net_io_counters(pernic=True)[names[0]]
    expected = counters.errin + counters.errout + counters.dropin + counters.dropout

    assert read(unit)["network_errors_total"] == pytest.approx(expected, abs=2)


def test_load_is_the_systems_own():
    assert read(HostUnit(World()))["load_15m"] == pytest.approx(os.getloadavg()[2], abs=0.5)


def test_pressure_is_the_kernels_ten_second_average(host, clock):
    text = "some avg10=12.34 avg60=1.00 avg300=0.10 total=99\nfull avg10=5.00 avg60=0 avg300=0 total=1"
    for resource in ("cpu", "memory", "io"):
        host.put(f"proc/pressure/{resource}", text)

    values = read(HostUnit(host.world, clock))

    assert [values[f"pressure_{name}_percent"] for name in ("cpu", "memory", "io")] == [12.34] * 3


@pytest.mark.parametrize("text", ["", "some", "some avg10=", "full avg10=1.0", "some avg10=-1", "\x00\xff"])
def test_pressure_that_cannot_be_understood_is_absent(host, text):
    host.put("proc/pressure/cpu", text)

    assert parse_pressure(text) is None
    assert "pressure_cpu_percent" not in read(HostUnit(host.world))


def test_kills_for_memory_are_counted():
    assert parse_oom_kills(b"pgfault 1\noom_kill 3\noom_kill_other 9\n") == 3
    assert parse_oom_kills(b"pgfault 1\n") is None
    expected = [line for line in Path("/proc/vmstat").read_text().splitlines() if line.startswith("oom_kill ")]
    assert read(HostUnit(World()))["oom_kills_total"] >= int(expected[0].split()[1])


def test_without_any_file_of_its_own_the_host_is_still_measured(host, clock):
    values = read_twice(HostUnit(host.world, clock), clock)

    assert values["memory_total_mb"] > 0
    assert not any(name.startswith(("pressure", "oom", "cgroup", "cpu_throttled")) for name in values)


def test_a_limit_of_version_2_is_what_memory_is_held_against(host):
    host.version_2("/pod/job")
    host.put("sys/fs/cgroup/pod/memory.max", "max")
    host.put("sys/fs/cgroup/pod/job/memory.max", 512 * MIB)
    host.put("sys/fs/cgroup/pod/job/memory.current", 300 * MIB)
    host.put("sys/fs/cgroup/pod/job/memory.stat", f"anon 5\ninactive_file {44 * MIB}\nactive_file 7")
    host.put("sys/fs/cgroup/pod/job/memory.events", "low 0\nhigh 0\nmax 4\noom 3\noom_kill 2")

    values = read(HostUnit(host.world))

    assert values["memory_limit_mb"] == values["memory_total_mb"] == 512
    assert values["memory_used_mb"] == 256
    assert values["memory_usage_percent"] == 50
    assert values["memory_available_mb"] <= 256
    assert values["cgroup_oom_kills_total"] == 2


def test_a_limit_of_version_1_is_what_memory_is_held_against(host):
    host.version_1()
    host.put("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712)
    host.put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", 256 * MIB)
    host.put("sys/fs/cgroup/memory/job/memory.usage_in_bytes", 200 * MIB)
    host.put("sys/fs/cgroup/memory/job/memory.stat", f"inactive_file 1\ntotal_inactive_file {8 * MIB}")
    host.put("sys/fs/cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5")

    values = read(HostUnit(host.world))

    assert values["memory_limit_mb"] == 256
    assert values["memory_used_mb"] == 192
    assert values["memory_usage_percent"] == 75
    assert values["cgroup_oom_kills_total"] == 5


def test_the_smallest_limit_above_counts(host):
    host.version_2("/slice/pod/job")
    host.put("sys/fs/cgroup/slice/memory.max", 100 * MIB)
    host.put("sys/fs/cgroup/slice/pod/memory.max", 100 * MIB)
    host.put("sys/fs/cgroup/slice/pod/job/memory.max", 900 * MIB)
    group = read_cgroup(host.world.procfs_root, host.world.sysfs_root)
    assert group is not None

    limit = read_memory_limit(group)

    assert limit == (100 * MIB, f"{host.world.sysfs_root}/fs/cgroup/slice")


def test_a_limit_larger_than_the_machine_is_no_limit(host):
    host.version_2()
    host.put("sys/fs/cgroup/job/memory.max", 1 << 55)
    host.put("sys/fs/cgroup/job/memory.current", 5 * MIB)

    values = read(HostUnit(host.world))

    assert values["memory_total_mb"] == psutil.virtual_memory().total / MIB
    assert "memory_limit_mb" not in values


@pytest.mark.parametrize("path", ["/docker/0123", "/../..", "/"])
def test_inside_a_container_the_mount_is_the_group(host, path):
    host.put("proc/self/cgroup", f"0::{path}")
    host.put("sys/fs/cgroup/cgroup.controllers", "cpu memory")
    host.put("sys/fs/cgroup/memory.max", 64 * MIB)
    host.put("sys/fs/cgroup/memory.current", 16 * MIB)

    assert read(HostUnit(host.world))["memory_usage_percent"] == 25


def test_under_a_quota_cpu_use_is_a_share_of_the_quota(host, clock):
    host.version_2()
    host.put("sys/fs/cgroup/job/cpu.max", "50000 100000")
    host.put("sys/fs/cgroup/job/cpu.stat", "usage_usec 1000000\nthrottled_usec 250000")
    unit = HostUnit(host.world, clock)
    read(unit)

    clock.advance(2)
    host.put("sys/fs/cgroup/job/cpu.stat", "usage_usec 1600000\nthrottled_usec 750000")
    values = read(unit)

    assert values["cpu_count"] == 0.5
    assert values["cpu_usage_percent"] == pytest.approx(60)
    assert values["cpu_throttled_seconds"] == 0.75


def test_a_quota_of_version_1(host, clock):
    host.version_1()
    host.put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", 25000)
    host.put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", 100000)
    host.put("sys/fs/cgroup/cpu/job/cpu.stat", "nr_periods 3\nnr_throttled 1\nthrottled_time 1500000000")
    host.put("sys/fs/cgroup/cpuacct/job/cpuacct.usage", 10**9)
    unit = HostUnit(host.world, clock)
    read(unit)

    clock.advance(1)
    host.put("sys/fs/cgroup/cpuacct/job/cpuacct.usage", 11 * 10**8)
    values = read(unit)

    assert values["cpu_count"] == 0.25
    assert values["cpu_usage_percent"] == pytest.approx(40)
    assert values["cpu_throttled_seconds"] == 1.5


@pytest.mark.parametrize("quota", ["max 100000", "", "-1", "50000", "50000 0", "x y", "5 5 5"])
def test_a_quota_that_is_none(host, quota):
    host.version_2()
    host.put("sys/fs/cgroup/job/cpu.max", quota)
    group = read_cgroup(host.world.procfs_root, host.world.sysfs_root)
    assert group is not None

    assert read_cpu_quota(group) is None


@pytest.mark.parametrize("nonsense", ["", "many", "-5", "0", "\x00"])
@pytest.mark.parametrize("file", ["memory.max", "memory.current", "memory.stat", "memory.events", "cpu.stat"])
def test_a_broken_file_of_the_group_costs_only_itself(host, clock, file, nonsense):
    host.version_2()
    host.put("sys/fs/cgroup/job/memory.max", 512 * MIB)
    host.put("sys/fs/cgroup/job/memory.current", 300 * MIB)
    host.put(f"sys/fs/cgroup/job/{file}", nonsense)

    values = read_twice(HostUnit(host.world, clock), clock)

    assert values["load_1m"] >= 0
    assert 0 <= values["memory_usage_percent"] <= 100


def test_a_group_that_vanishes_is_survived(host, clock):
    host.version_2()
    host.put("sys/fs/cgroup/job/memory.max", 512 * MIB)
    host.put("sys/fs/cgroup/job/memory.current", 256 * MIB)
    unit = HostUnit(host.world, clock)
    assert read(unit)["memory_total_mb"] == 512

    for file in (host.folder / "sys/fs/cgroup/job").iterdir():
        file.unlink()
    clock.advance(1)

    assert read(unit)["memory_total_mb"] == psutil.virtual_memory().total / MIB


def test_lines_of_both_versions():
    assert parse_cgroups("4:memory:/a\n2:cpu,cpuacct:/b:c\n0::/\nnonsense\n") == {
        "memory": "/a",
        "cpu": "/b:c",
        "cpuacct": "/b:c",
        "": "/",
    }


class RealCgroup:
    """A memory group of the kernel of this machine, version 1 or 2."""

    def __init__(self, limit: int) -> None:
        root = Path("/sys/fs/cgroup")
        first = (root / "memory").is_dir()
        self.folder = (root / "memory" if first else root) / f"trainvitals-test-{os.getpid()}"
        self.folder.mkdir()
        try:
            (self.folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        except OSError:
            self.folder.rmdir()
            raise

    def run(self, code: str) -> subprocess.CompletedProcess[str]:
        command = f'echo $$ > {self.folder}/cgroup.procs && exec "$0" -c "$1"'
        return subprocess.run(["sh", "-c", command, sys.executable, code], capture_output=True, text=True, check=False)

    def remove(self) -> None:
        self.folder.rmdir()


@pytest.fixture
def real_cgroup() -> Iterator[RealCgroup]:
    try:
        group = RealCgroup(96 * MIB)
    except OSError as error:
        missing = f"no memory group can be made here: {error}"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    yield group
    group.remove()


def test_the_limit_of_a_real_group_and_a_real_kill_are_seen_from_inside(real_cgroup):
    code = """
import json, subprocess, sys
from trainvitals.sources import World
from trainvitals.sources.system import HostUnit
unit = HostUnit(World())
before = dict(unit.read()[0].values)
greedy = subprocess.run([sys.executable, "-c", "bytearray(200 << 20).count(1)"], stderr=subprocess.DEVNULL)
after = dict(HostUnit(World()).read()[0].values)
print(json.dumps([before, after, greedy.returncode]))
"""
    answer = real_cgroup.run(code)
    before, after, code = json.loads(answer.stdout)

    assert code == -9
    assert before["memory_limit_mb"] == before["memory_total_mb"] == 96
    assert 1 < before["memory_used_mb"] < 96
    assert after["cgroup_oom_kills_total"] == before["cgroup_oom_kills_total"] + 1
    assert after["oom_kills_total"] >= before["oom_kills_total"] + 1


def test_shares_of_cores():
    spent = {
        0: CpuTimes(busy=1.0, total=2.0, iowait=0.5, steal=0.0),
        1: CpuTimes(busy=2.0, total=2.0, iowait=0.0, steal=0.2),
        2: CpuTimes(busy=0.0, total=2.0, iowait=0.0, steal=0.0),
    }

    assert core_shares(spent, [0, 1]) == {
        "cpu_usage_percent": 75,
        "cpu_iowait_percent": 12.5,
        "cpu_steal_percent": pytest.approx(5),
        "cpu_max_core_percent": 100,
        "cpu0_percent": 50,
        "cpu1_percent": 100,
        "cpu2_percent": 0,
    }


def test_a_machine_with_very_many_cores_has_no_column_for_each():
    spent = {number: CpuTimes(1.0, 2.0, 0.0, 0.0) for number in range(MOST_CORES + 1)}

    values = core_shares(spent, list(spent))

    assert values["cpu_usage_percent"] == 50
    assert len(values) == 4


def test_no_time_passed_is_no_share():
    assert core_shares({0: CpuTimes(0.0, 0.0, 0.0, 0.0)}, [0]) == {}


def test_counters_that_go_back_are_not_negative_use():
    assert since(CpuTimes(5, 9, 4, 1), CpuTimes(6, 10, 3, 1)) == CpuTimes(1, 1, 0, 0)


def test_time_of_guests_is_not_counted_twice():
    class Core(SimpleNamespace):
        def __iter__(self):
            return iter(vars(self).values())

    core = Core(user=10, nice=0, system=2, idle=80, iowait=5, irq=0, softirq=1, steal=2, guest=4, guest_nice=0)

    assert cpu_times(core) == CpuTimes(busy=15, total=100, iowait=5, steal=2)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("0-3,8", [0, 1, 2, 3, 8]), ("0", [0]), ("", []), ("a-b", []), ("0-", []), ("0-1\n", [0, 1])],
)
def test_lists_of_cores(text, numbers):
    assert parse_cpu_list(text) == numbers


def test_cores_that_are_switched_off_do_not_shift_the_numbers(host, clock):
    count = len(psutil.cpu_times(percpu=True))
    host.put("sys/devices/system/cpu/online", ",".join(str(2 * number) for number in range(count)))
    unit = HostUnit(host.world, clock)
    read(unit)
    time.sleep(0.1)
    clock.advance(1)

    cores = [name for name in read(unit) if name[3:-8].isdecimal() and name.startswith("cpu")]

    assert cores == [f"cpu{2 * number}_percent" for number in range(count)]


def test_the_processor_is_as_hot_as_its_package_and_no_other_sensor_is_woken(host, opened):
    sensors = {
        "hwmon0": {"name": "coretemp", "temp1_label": "Package id 0", "temp1_input": 61000},
        "hwmon1": {"name": "coretemp", "temp1_label": "Package id 1", "temp1_input": 64000},
        "hwmon2": {"name": "amdgpu", "temp1_label": "edge", "temp1_input": 90000},
        "hwmon3": {"name": "drivetemp", "temp1_input": 33000},
    }
    for folder, files in sensors.items():
        for name, value in files.items():
            host.put(f"sys/class/hwmon/{folder}/{name}", value)
    host.put("sys/class/hwmon/hwmon0/temp2_label", "Core 0")
    host.put("sys/class/hwmon/hwmon0/temp2_input", 99000)
    opened.clear()

    assert read_cpu_temperature(host.world.sysfs_root) == {"cpu_temperature_celsius": 64}
    asleep = ("hwmon2/temp1_input", "hwmon3/temp1_input")
    assert [path for path in opened if path.endswith(asleep)] == []


def test_a_thermal_zone_is_the_last_resort(host):
    host.put("sys/class/thermal/thermal_zone0/type", "acpitz")
    host.put("sys/class/thermal/thermal_zone0/temp", 20000)
    host.put("sys/class/thermal/thermal_zone1/type", "cpu-thermal")
    host.put("sys/class/thermal/thermal_zone1/temp", 47250)

    assert read_cpu_temperature(host.world.sysfs_root) == {"cpu_temperature_celsius": 47.25}


@pytest.mark.parametrize("nonsense", ["", "hot", "-40000", "0", "4000000"])
def test_an_impossible_temperature_is_absent(host, nonsense):
    host.put("sys/class/hwmon/hwmon0/name", "k10temp")
    host.put("sys/class/hwmon/hwmon0/temp1_input", nonsense)

    assert read_cpu_temperature(host.world.sysfs_root) == {}


def test_space_on_disk_is_that_of_the_run_folder(tmp_path, clock):
    unit = DiskSpaceUnit(World(disk_path=lambda: str(tmp_path)), clock)

    (sample,) = unit.read()
    assert isinstance(sample, Sample)

    usage = psutil.disk_usage(str(tmp_path))
    assert sample.values["disk_free_gb"] == pytest.approx(usage.free / 2**30, abs=1)
    assert sample.values["disk_usage_percent"] == pytest.approx(usage.percent, abs=2)

    clock.advance(4.9)
    assert unit.read() == []
    clock.advance(0.1)
    assert len(unit.read()) == 1


def test_a_run_folder_that_was_removed_has_no_space(tmp_path):
    assert DiskSpaceUnit(World(disk_path=lambda: str(tmp_path / "gone"))).read() == []


def test_the_description_names_the_machine(host):
    host.put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Imaginary 9000\n")
    host.version_2()
    host.put("sys/fs/cgroup/job/memory.max", 512 * MIB)
    host.put("sys/fs/cgroup/job/cpu.max", "150000 100000")

    facts = create("system", host.world).describe()

    assert facts["cpu_model"] == "Imaginary 9000"
    assert facts["cpu_count"] == psutil.cpu_count()
    assert facts["cpu_quota_cores"] == 1.5
    assert facts["memory_limit_mb"] == 512

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from waiting import wait_until

from trainvitals import catalog
from trainvitals.journal.identity import Participant
from trainvitals.sources import GpuProcess, RankProcess, Sample, SourceUnavailable, UnitGone, World, create
from trainvitals.sources.process import (
    PSS_INTERVAL,
    PSS_LARGEST,
    ProcessReading,
    ProcfsReader,
    PsutilReader,
    RankUnit,
)
from trainvitals.sources.procfs import TICKS_PER_SECOND, parse_stat, read_stat

MIB = 1 << 20


class Child:
    """A real Python process that runs one statement after another on request."""

    LOOP = "import sys\nfor line in sys.stdin:\n    exec(line)\n    print('done', flush=True)\n"

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def do(self, statement: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def kill(self) -> None:
        for process in psutil.Process(self.pid).children(recursive=True) if self.process.poll() is None else ():
            process.kill()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def child() -> Iterator[Child]:
    process = Child()
    process.do("import os, subprocess, threading, time")
    yield process
    process.kill()


def world(*pids: int, **roots: str) -> World:
    return World(
        ranks=lambda: [RankProcess("run-1", Participant(rank=rank), pid) for rank, pid in enumerate(pids)], **roots
    )


def discover(pid: int) -> RankUnit:
    (unit,) = create("process", world(pid)).discover()
    assert isinstance(unit, RankUnit)
    return unit


def watch(child: Child, clock) -> RankUnit:
    """A unit of the real process on a clock that the test moves."""
    stat = read_stat("/proc", child.pid)
    assert stat is not None
    return RankUnit(RankProcess("run-1", Participant(), child.pid), stat.started, ProcfsReader(World()), clock)


def read(unit: RankUnit) -> dict[str, float | int | str]:
    (sample,) = unit.read()
    assert isinstance(sample, Sample)
    assert sample.table == "process"
    return dict(sample.values)


def test_each_rank_is_a_unit_of_its_own(child):
    units = create("process", world(child.pid, os.getpid())).discover()

    assert [unit.key for unit in units] == ["process:run-1:0", "process:run-1:1"]
    assert [unit.read()[0].labels for unit in units] == [
        {"run_id": "run-1", "rank": 0, "pid": child.pid},
        {"run_id": "run-1", "rank": 1, "pid": os.getpid()},
    ]


def test_a_rank_that_says_who_it_is_is_no_longer_all_that_its_launcher_started(child):
    ranks = [RankProcess("run-1", Participant(), os.getpid())]
    source = create("process", World(ranks=lambda: ranks))
    (unit,) = source.discover()
    assert unit.read()[0].labels["pid"] == os.getpid()
    ranks[:] = [RankProcess("run-1", Participant(), child.pid)]
    assert source.discover() == [unit]
    (sample,) = unit.read()
    assert sample.labels["pid"] == child.pid
    assert sample.values["process_count"] == 1
    assert "cpu_percent" not in sample.values, "the difference of two processes is nobody's use"


def test_a_single_process_is_what_psutil_says(child, clock):
    wait_until(lambda: psutil.Process(child.pid).status() == "sleeping")
    values = read(watch(child, clock))
    oracle = psutil.Process(child.pid)

    assert values["process_count"] == 1
    assert values["thread_count"] == oracle.num_threads() == 1
    assert values["fd_count"] == oracle.num_fds()
    assert values["rss_mb"] == pytest.approx(oracle.memory_info().rss / MIB, abs=2)
    assert values["process_state"] == "sleeping"


def test_every_name_is_in_the_catalog(child, clock):
    unit = watch(child, clock)
    names = set(read(unit))
    clock.advance(PSS_INTERVAL)
    names |= set(read(unit))

    assert [name for name in names if catalog.find("process", name) is None] == []
    assert {"cpu_percent", "write_mb_s", "pss_mb", "fd_limit", "process_state"} <= names


def test_the_first_reading_has_no_rates(child, clock):
    assert {"cpu_percent", "main_cpu_percent", "read_mb_s", "write_mb_s"}.isdisjoint(read(watch(child, clock)))


def test_a_busy_process_is_seen_as_busy(child):
    child.do("threading.Thread(target=lambda: exec('while True: pass'), daemon=True).start()")
    unit = discover(child.pid)
    seen: list[float] = []

    def busy() -> bool:
        seen.append(float(read(unit).get("cpu_percent", 0)))
        return seen[-1] > 50

    wait_until(busy)

    values = {}
    wait_until(lambda: values.update(read(unit)) or "main_cpu_percent" in values)
    assert values["thread_count"] == 2


def test_cpu_time_of_a_worker_counts_for_the_tree_but_not_for_the_main_process(child):
    child.do("p = subprocess.Popen(['sh', '-c', 'while :; do :; done'])")
    unit = discover(child.pid)
    read(unit)
    values: dict[str, float | int | str] = {}

    def busy() -> bool:
        values.update(read(unit))
        return float(values.get("cpu_percent", 0)) > 30

    wait_until(busy)

    assert float(values["main_cpu_percent"]) < float(values["cpu_percent"])
    assert values["process_count"] == 2


def test_cpu_use_is_time_over_time(child, clock):
    unit = watch(child, clock)
    read(unit)
    before = psutil.Process(child.pid).cpu_times()
    child.do(r"exec('end = time.process_time() + 0.3\nwhile time.process_time() < end: pass')")
    after = psutil.Process(child.pid).cpu_times()
    clock.advance(2)

    used = after.user + after.system - before.user - before.system
    assert used >= 0.28
    assert read(unit)["cpu_percent"] == pytest.approx(used / 2 * 100, abs=1.5)


def test_memory_that_a_process_takes_is_seen(child, clock):
    unit = watch(child, clock)
    before = float(read(unit)["rss_mb"])

    child.do("x = bytearray(os.urandom(1 << 20)) * 96")

    assert float(read(unit)["rss_mb"]) - before >= 90


def test_grandchildren_are_part_of_the_tree(child, clock):
    unit = watch(child, clock)
    child.do("p = subprocess.Popen(['sh', '-c', 'sh -c \"sleep 600 & sleep 600\" & wait'])")
    wait_until(lambda: len(psutil.Process(child.pid).children(recursive=True)) == 4)

    values = read(unit)

    assert values["process_count"] == 5
    assert values["thread_count"] == 5


def test_a_child_of_another_thread_is_found_at_the_next_search(child, clock):
    unit = watch(child, clock)
    read(unit)
    child.do("stay = threading.Event()")
    child.do(
        "t = threading.Thread(target=lambda: (subprocess.Popen(['sleep', '600']), stay.wait()), daemon=True); t.start()"
    )
    wait_until(lambda: len(psutil.Process(child.pid).children()) == 1)

    assert read(unit)["process_count"] == 1
    clock.advance(5)
    assert read(unit)["process_count"] == 2
    clock.advance(1)
    assert read(unit)["process_count"] == 2


def test_a_worker_that_ends_leaves_the_tree(child, clock):
    unit = watch(child, clock)
    child.do("p = subprocess.Popen(['sleep', '600'])")
    assert read(unit)["process_count"] == 2

    child.do("p.kill()")
    wait_until(lambda: psutil.Process(child.pid).children()[0].status() == "zombie")
    assert read(unit)["process_count"] == 1
    child.do("p.wait()")
    assert read(unit)["process_count"] == 1


def test_open_files_are_counted(child, clock):
    unit = watch(child, clock)
    before = int(read(unit)["fd_count"])

    child.do("files = [open(os.devnull) for _ in range(40)]")
    clock.advance(1)

    assert read(unit)["fd_count"] == before + 40


def test_open_files_and_input_are_asked_once_a_second_at_most(child, clock):
    unit = watch(child, clock)
    read(unit)
    clock.advance(0.1)

    assert {"fd_count", "write_mb_s"}.isdisjoint(read(unit))


def test_what_is_written_is_what_psutil_says(child, clock, tmp_path):
    unit = watch(child, clock)
    read(unit)
    before = psutil.Process(child.pid).io_counters()
    child.do(f"f = open({str(tmp_path / 'f')!r}, 'wb'); f.write(bytes(6 << 20)); f.flush(); os.fsync(f.fileno())")
    after = psutil.Process(child.pid).io_counters()
    clock.advance(2)
    values = read(unit)

    assert values["write_mb_s"] == pytest.approx((after.write_bytes - before.write_bytes) / 2 / MIB)
    assert values["read_mb_s"] == pytest.approx((after.read_bytes - before.read_bytes) / 2 / MIB)


def test_what_a_tree_moved_is_counted_beyond_the_end_of_its_workers(child, clock, tmp_path):
    unit = watch(child, clock)

    def moved() -> float:
        clock.advance(1)
        (sample,) = unit.read()
        return sample.counters["write_bytes_total"][""]

    assert moved() == psutil.Process(child.pid).io_counters().write_bytes
    code = (
        f"f = open({str(tmp_path / 'f')!r}, 'wb'); f.write(bytes(6 << 20)); f.flush(); import os; os.fsync(f.fileno());"
        " print('written', flush=True); input()"
    )
    child.do(
        f"p = subprocess.Popen([sys.executable, '-c', {code!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE);"
        " p.stdout.readline()"
    )
    own = psutil.Process(child.pid).io_counters().write_bytes
    (worker,) = psutil.Process(child.pid).children()
    with_worker = moved()
    assert with_worker >= own + worker.io_counters().write_bytes >= 6 << 20
    child.do("p.stdin.close(); p.wait()")
    assert moved() >= with_worker


def test_proportional_memory_is_asked_seldom_and_is_what_psutil_says(child, clock):
    unit = watch(child, clock)
    assert "pss_mb" not in read(unit)
    clock.advance(PSS_INTERVAL / 10)
    values = read(unit)

    assert values["pss_mb"] == pytest.approx(psutil.Process(child.pid).memory_full_info().pss / MIB, abs=2)
    assert float(values["pss_mb"]) <= float(values["rss_mb"]) + 1
    clock.advance(PSS_INTERVAL - 0.1)
    assert "pss_mb" not in read(unit)
    clock.advance(0.1)
    assert "pss_mb" in read(unit)


def test_a_slow_answer_is_asked_for_less_often(child, clock):
    class SlowKernel(ProcfsReader):
        def read_pss(self, pid: int) -> int | None:
            clock.advance(0.2)
            return super().read_pss(pid)

    stat = read_stat("/proc", child.pid)
    assert stat is not None
    unit = RankUnit(RankProcess("run-1", Participant(), child.pid), stat.started, SlowKernel(World()), clock)
    clock.advance(PSS_INTERVAL)
    assert "pss_mb" in read(unit)

    clock.advance(399)
    assert "pss_mb" not in read(unit)
    clock.advance(2)
    assert "pss_mb" in read(unit)


def test_a_huge_process_is_never_asked(clock):
    asked = []

    class HugeProcess:
        def read(self, pid: int) -> ProcessReading:
            return ProcessReading("running", 1.0, 1, PSS_LARGEST + 1, 5.0)

        def read_pss(self, pid: int) -> int | None:
            asked.append(pid)
            return 1

        def find_descendants(self, pids, thorough):
            return ()

        def __getattr__(self, name: str):
            return lambda pid: None

    unit = RankUnit(RankProcess("run-1", Participant(), 7), 5.0, HugeProcess(), clock)  # type: ignore[arg-type]
    clock.advance(PSS_INTERVAL)

    assert "pss_mb" not in read(unit)
    assert asked == []


def test_a_stopped_process_is_said_to_be_stopped(child, clock):
    unit = watch(child, clock)
    os.kill(child.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(child.pid).status() == "stopped")

    assert read(unit)["process_state"] == "stopped"
    os.kill(child.pid, signal.SIGCONT)


def test_a_process_that_ended_is_gone(child):
    unit = discover(child.pid)
    child.kill()

    with pytest.raises(UnitGone, match=str(child.pid)):
        unit.read()
    with pytest.raises(SourceUnavailable, match="no rank"):
        create("process", world(child.pid)).discover()


def test_a_process_that_nobody_has_buried_yet_is_gone_too(child):
    unit = discover(child.pid)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: psutil.Process(child.pid).status() == "zombie")

    with pytest.raises(UnitGone):
        unit.read()
    with pytest.raises(SourceUnavailable):
        create("process", world(child.pid)).discover()


def test_another_process_with_the_same_number_is_not_the_rank(child, clock):
    stat = read_stat("/proc", child.pid)
    assert stat is not None
    unit = RankUnit(RankProcess("run-1", Participant(), child.pid), stat.started - 1, ProcfsReader(World()), clock)

    with pytest.raises(UnitGone):
        unit.read()


def test_ranks_that_do_not_run_here_are_left_out(child):
    units = create("process", world(2**22 + 1, child.pid)).discover()

    assert [unit.key for unit in units] == ["process:run-1:1"]


def test_no_ranks_at_all():
    with pytest.raises(SourceUnavailable):
        create("process", World()).discover()


def test_psutil_and_proc_agree(child):
    child.do("p = subprocess.Popen(['sh', '-c', 'sleep 600 & wait'])")
    wait_until(lambda: len(psutil.Process(child.pid).children(recursive=True)) == 2)
    wait_until(lambda: psutil.Process(child.pid).status() == "sleeping")
    ours, theirs = ProcfsReader(World()), PsutilReader()

    assert sorted(ours.find_descendants([child.pid], True)) == sorted(theirs.find_descendants([child.pid], True))
    assert ours.find_descendants([child.pid], False) == ours.find_descendants([child.pid], True)
    one, two = ours.read(child.pid), theirs.read(child.pid)
    assert one is not None
    assert two is not None
    assert (one.state, one.threads) == (two.state, two.threads)
    assert one.cpu_seconds == pytest.approx(two.cpu_seconds, abs=0.1)
    assert one.rss_bytes == pytest.approx(two.rss_bytes, abs=2 * MIB)
    assert ours.read_io(child.pid) == theirs.read_io(child.pid)
    assert ours.count_descriptors(child.pid) == theirs.count_descriptors(child.pid)


def test_psutil_has_no_answer_for_a_process_that_is_not_there():
    reader = PsutilReader()

    assert reader.read(2**22 + 1) is None
    assert reader.read_io(2**22 + 1) is None
    assert reader.count_descriptors(2**22 + 1) is None
    assert reader.find_descendants([2**22 + 1], True) == ()


class FakeProc:
    """A /proc with processes that are not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"
        self.world = World(procfs_root=str(self.folder), sysfs_root=str(folder / "sys"))
        self.put("self/stat", "")

    def put(self, path: str, text: str) -> None:
        full = self.folder / path
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text)

    def process(
        self,
        pid: int,
        *,
        children: str = "",
        started: int = 100,
        ticks: int = 0,
        rss: int = 256,
        state: str = "S",
    ) -> None:
        fields = [state, "1", *"0" * 9, str(ticks), "0", *"0" * 4, "1", "0", str(started), "0", str(rss)]
        self.put(f"{pid}/stat", f"{pid} (python) {' '.join(fields)}\n")
        self.put(f"{pid}/task/{pid}/children", children)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def fake_unit(proc: FakeProc, clock, started: int = 100, gpus: Sequence[GpuProcess] = ()) -> RankUnit:
    rank = RankProcess("run-1", Participant(), 10)
    return RankUnit(rank, started / TICKS_PER_SECOND, ProcfsReader(proc.world), clock, lambda: gpus)


def test_a_worker_whose_number_is_used_again_is_not_mistaken_for_it(proc, clock):
    proc.process(10, children="11 ")
    proc.process(11, started=200, ticks=5000)
    unit = fake_unit(proc, clock)
    assert read(unit)["process_count"] == 2

    clock.advance(1)
    proc.process(10, children="")
    proc.process(11, started=900, ticks=7000)  # somebody else's process now

    values = read(unit)
    assert values["process_count"] == 1
    assert values["cpu_percent"] == 0


def test_a_worker_whose_parent_died_still_belongs_to_the_rank(proc, clock):
    proc.process(10, children="11 ")
    proc.process(11, children="12 ")
    proc.process(12)
    unit = fake_unit(proc, clock)
    assert read(unit)["process_count"] == 3

    (proc.folder / "11/stat").unlink()
    proc.process(10, children="")

    assert read(unit)["process_count"] == 2


def test_a_new_worker_cannot_have_used_more_time_than_there_was(proc, clock):
    proc.process(10)
    unit = fake_unit(proc, clock)
    read(unit)

    clock.advance(2)
    proc.process(10, children="11 ")
    proc.process(11, ticks=600 * TICKS_PER_SECOND)

    assert read(unit)["cpu_percent"] == 100


def test_time_that_goes_back_is_not_negative_use(proc, clock):
    proc.process(10, ticks=500)
    unit = fake_unit(proc, clock)
    read(unit)

    clock.advance(1)
    proc.process(10, ticks=400)

    assert read(unit)["cpu_percent"] == 0


def test_a_main_thread_that_ended_before_the_others_is_not_the_end(proc, clock):
    proc.process(10)
    stat = (proc.folder / "10/stat").read_text().replace(") S ", ") Z ").split()
    stat[19] = "4"
    proc.put("10/stat", " ".join(stat))

    values = read(fake_unit(proc, clock))

    assert (values["process_state"], values["thread_count"]) == ("zombie", 4)


def test_a_circle_of_children_is_not_followed_for_ever(proc, clock):
    proc.process(10, children="11 10 ")
    proc.process(11, children="10 11 ")

    assert read(fake_unit(proc, clock))["process_count"] == 2


@pytest.mark.parametrize("text", ["", "nonsense", "10 (python", "10 (python) S 1 2 3", "10 (x) S " + "x " * 40])
def test_a_broken_file_of_the_rank_is_like_its_end(proc, clock, text):
    proc.process(10)
    unit = fake_unit(proc, clock)
    read(unit)
    proc.put("10/stat", text)

    with pytest.raises(UnitGone):
        unit.read()


@pytest.mark.parametrize("text", ["", "nonsense", "11 (python) S 1 2 3", "\x00"])
def test_a_broken_file_of_a_worker_costs_only_that_worker(proc, clock, text):
    proc.process(10, children="11 12 words -5 ")
    proc.process(11)
    proc.process(12)
    proc.put("11/stat", text)

    assert read(fake_unit(proc, clock))["process_count"] == 2


def test_what_may_not_be_read_is_absent(proc, clock):
    proc.process(10)
    unit = fake_unit(proc, clock)
    read(unit)
    clock.advance(PSS_INTERVAL)
    values = read(unit)

    assert {"fd_count", "read_mb_s", "pss_mb", "fd_limit", "gpu_memory_mb"}.isdisjoint(values)
    assert values["rss_mb"] == 1


@pytest.mark.parametrize("text", ["", "read_bytes: x\nwrite_bytes: y\n", "rchar: 1\n", "write_bytes: 5\n"])
def test_a_broken_account_of_input_is_absent(proc, clock, text):
    proc.process(10)
    proc.put("10/io", text)
    unit = fake_unit(proc, clock)
    read(unit)
    clock.advance(1)

    assert "read_mb_s" not in read(unit)


def test_memory_on_amd_gpus_is_added_up(proc, clock, tmp_path):
    proc.process(10, children="11 ")
    proc.process(11)
    for pid, gpu, size in ((10, 4711, 3 << 30), (10, 4712, 1 << 30), (11, 4711, 512 << 20)):
        folder = tmp_path / f"sys/class/kfd/kfd/proc/{pid}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"vram_{gpu}").write_text(f"{size}\n")
        (folder / f"sdma_{gpu}").write_text("7\n")

    assert read(fake_unit(proc, clock))["gpu_memory_mb"] == 4608


def test_what_a_tree_holds_and_does_on_all_gpus_is_added_up(proc, clock):
    proc.process(10, children="11 ")
    proc.process(11)
    gpus = [GpuProcess(10, 1024.0, 30), GpuProcess(10, 512.0, 20), GpuProcess(11, 256.0), GpuProcess(99, 4096.0, 90)]

    values = read(fake_unit(proc, clock, gpus=gpus))

    assert (values["gpu_memory_mb"], values["gpu_sm_percent"]) == (1792, 50)
    assert {"gpu_memory_mb", "gpu_sm_percent"} <= {metric.name for metric in catalog.PROCESS}


def test_a_tree_that_uses_no_gpu_has_no_gpu_memory(proc, clock):
    proc.process(10)
    values = read(fake_unit(proc, clock, gpus=[GpuProcess(99, 4096.0, 90)]))
    assert {"gpu_memory_mb", "gpu_sm_percent"}.isdisjoint(values)


def test_a_sum_that_a_driver_does_not_tell_in_full_is_absent(proc, clock):
    proc.process(10)
    values = read(fake_unit(proc, clock, gpus=[GpuProcess(10, 1024.0, 30), GpuProcess(10, None)]))
    assert "gpu_memory_mb" not in values and values["gpu_sm_percent"] == 30


def test_a_name_with_parentheses_and_spaces_is_no_trouble(tmp_path):
    program = tmp_path / "a) R 1 (b"
    program.symlink_to(subprocess.run(["which", "sleep"], capture_output=True, text=True).stdout.strip())
    process = subprocess.Popen([str(program), "600"])
    try:
        wait_until(lambda: psutil.Process(process.pid).name() == "a) R 1 (b")
        wait_until(lambda: psutil.Process(process.pid).status() == "sleeping")
        stat = read_stat("/proc", process.pid)
        assert stat is not None
        assert stat.parent == os.getpid()
        assert stat.state == "sleeping"
    finally:
        process.kill()
        process.wait()


def test_no_bytes_are_no_process():
    assert parse_stat(b"") is None


def test_the_gpus_of_a_rank_wait_for_as_long_as_nothing_runs_on_them(child: Child) -> None:
    rank = RankProcess("run-1", Participant("rollout", 2), child.pid, frozenset({"GPU-a", "GPU-b", "GPU-lost"}))
    world = World(ranks=lambda: [rank], gpu_utilization=lambda: {"GPU-a": 30.0, "GPU-b": 90.0, "GPU-c": 0.0})
    (unit,) = create("process", world).discover()
    (sample,) = unit.read()
    assert isinstance(sample, Sample) and sample.values["gpu_waiting_percent"] == 40.0
    (unit,) = create("process", replace(world, gpu_utilization=dict)).discover()
    (sample,) = unit.read()
    assert isinstance(sample, Sample) and "gpu_waiting_percent" not in sample.values

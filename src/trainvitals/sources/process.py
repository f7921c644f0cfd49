"""The processes of each rank: the training itself and everything it started, data loader workers included.

On Linux straight from /proc, elsewhere through psutil. Nothing here may disturb the training: the one
question that holds a lock of the process asked (proportional memory) is put every 30 seconds at most, less
often the longer it takes, and never to a process so large that it would take long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainvitals.sources import (
    GpuProcess,
    Notice,
    RankProcess,
    Sample,
    SourceUnavailable,
    Unit,
    UnitGone,
    Value,
    World,
)
from trainvitals.sources.procfs import (
    count_descriptors,
    read_children,
    read_descriptor_limit,
    read_io,
    read_pss,
    read_stat,
)
from trainvitals.sources.sysfs import list_folder, read_int

MIB = 1 << 20
DETAIL_INTERVAL = 1.0
"""Seconds between readings of open files and I/O, which cost a system call per process each."""
SEARCH_INTERVAL = 5.0
"""Seconds between searches of all threads for children; main threads are asked every time."""
PSS_INTERVAL = 30.0
PSS_SHARE = 0.0005
"""At most this share of time is spent in the kernel's walk of the pages."""
PSS_LARGEST = 32 << 30
"""Bytes of resident memory above which a process is not asked for its proportional memory."""


def create(world: World) -> ProcessSource:
    return ProcessSource(world)


class ProcessSource:
    """One unit per participant that runs on this machine, keyed by run and participant."""

    name = "process"

    def __init__(self, world: World) -> None:
        self._world = world
        self._units: dict[str, RankUnit] = {}

    def discover(self) -> Sequence[Unit]:
        reader = process_reader(self._world)
        found: dict[str, RankUnit] = {}
        for rank in self._world.ranks():
            root = reader.read(rank.pid)
            if root is not None and not root.ended:
                unit = RankUnit(
                    rank,
                    root.started,
                    reader,
                    gpu_processes=self._world.gpu_processes,
                    gpu_utilization=self._world.gpu_utilization,
                )
                # Under a launcher, rank 0 is first all that was launched and then, once it says so, itself.
                known = self._units.get(unit.key, unit)
                known.follow(rank, root.started)
                found[unit.key] = known
        self._units = found
        if not found:
            raise SourceUnavailable("no rank is running on this machine")
        return list(found.values())

    def describe(self) -> Mapping[str, object]:
        return {}


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """One process at one moment."""

    state: str
    cpu_seconds: float
    threads: int
    rss_bytes: int
    started: float
    """Tells a process from a later one with the same pid"""

    @property
    def ended(self) -> bool:
        """Dead and waiting to be buried. With threads left it is only the main thread that has ended."""
        return self.state in ("zombie", "dead") and self.threads <= 1


class ProcessReader(Protocol):
    """A way to ask the system about processes. Every answer may be None: gone, or not ours to know."""

    def read(self, pid: int) -> ProcessReading | None: ...

    def find_descendants(self, pids: Sequence[int], thorough: bool) -> Sequence[int]:
        """Processes below `pids` that are not among them; without `thorough` only what is cheap to find."""

    def read_io(self, pid: int) -> tuple[int, int] | None: ...

    def count_descriptors(self, pid: int) -> int | None: ...

    def read_descriptor_limit(self, pid: int) -> int | None: ...

    def read_pss(self, pid: int) -> int | None: ...

    def read_gpu_memory(self, pid: int) -> int | None: ...


def process_reader(world: World) -> ProcessReader:
    """/proc where there is one, else psutil."""
    if Path(world.procfs_root, "self/stat").exists():
        return ProcfsReader(world)
    return PsutilReader()


class ProcfsReader:
    """Linux."""

    def __init__(self, world: World) -> None:
        self._proc = world.procfs_root
        self._kfd = f"{world.sysfs_root}/class/kfd/kfd/proc"

    def read(self, pid: int) -> ProcessReading | None:
        stat = read_stat(self._proc, pid)
        if stat is None:
            return None
        return ProcessReading(stat.state, stat.cpu_seconds, stat.threads, stat.rss_bytes, stat.started)

    def find_descendants(self, pids: Sequence[int], thorough: bool) -> Sequence[int]:
        found = dict.fromkeys(pids)
        waiting = list(pids)
        for pid in waiting:
            children = read_children(self._proc, pid, None if thorough else (pid,))
            if children is None and thorough and pid == pids[0]:
                # A kernel that does not list children: only a search of all processes is left.
                return PsutilReader().find_descendants(pids, thorough)
            new = [child for child in children or () if child not in found]
            found.update(dict.fromkeys(new))
            waiting.extend(new)
        return waiting[len(pids) :]

    def read_io(self, pid: int) -> tuple[int, int] | None:
        return read_io(self._proc, pid)

    def count_descriptors(self, pid: int) -> int | None:
        return count_descriptors(self._proc, pid)

    def read_descriptor_limit(self, pid: int) -> int | None:
        return read_descriptor_limit(self._proc, pid)

    def read_pss(self, pid: int) -> int | None:
        return read_pss(self._proc, pid)

    def read_gpu_memory(self, pid: int) -> int | None:
        """Bytes on AMD GPUs; None for a process that does not use one."""
        sizes = [
            read_int(f"{self._kfd}/{pid}/{name}")
            for name in list_folder(f"{self._kfd}/{pid}")
            if name.startswith("vram_")
        ]
        known = [size for size in sizes if size is not None]
        return sum(known) if known else None


class PsutilReader:
    """macOS, Windows and the BSDs."""

    def read(self, pid: int) -> ProcessReading | None:
        import psutil

        try:
            process = psutil.Process(pid)
            with process.oneshot():
                times = process.cpu_times()
                return ProcessReading(
                    state=process.status().replace("-", " "),
                    cpu_seconds=times.user + times.system,
                    threads=process.num_threads(),
                    rss_bytes=process.memory_info().rss,
                    started=process.create_time(),
                )
        except psutil.ZombieProcess:
            return ProcessReading("zombie", 0.0, 0, 0, 0.0)
        except psutil.Error:
            return None

    def find_descendants(self, pids: Sequence[int], thorough: bool) -> Sequence[int]:
        import psutil

        if not thorough:
            return ()  # here every search looks at every process of the machine
        try:
            children = psutil.Process(pids[0]).children(recursive=True)
        except psutil.Error:
            return ()
        return [child.pid for child in children if child.pid not in pids]

    def read_io(self, pid: int) -> tuple[int, int] | None:
        import psutil

        try:
            counters = psutil.Process(pid).io_counters()
        except (psutil.Error, AttributeError):  # macOS has none
            return None
        return counters.read_bytes, counters.write_bytes

    def count_descriptors(self, pid: int) -> int | None:
        import psutil

        try:
            process: Any = psutil.Process(pid)  # Windows has handles instead of descriptors
            count: int = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
        except psutil.Error:
            return None
        return count

    def read_descriptor_limit(self, pid: int) -> int | None:
        return None

    def read_pss(self, pid: int) -> int | None:
        return None

    def read_gpu_memory(self, pid: int) -> int | None:
        return None


class RankUnit:
    """The process tree of one rank, added up."""

    def __init__(
        self,
        rank: RankProcess,
        started: float,
        reader: ProcessReader,
        clock: Callable[[], float] = time.monotonic,
        gpu_processes: Callable[[], Sequence[GpuProcess]] = lambda: (),
        gpu_utilization: Callable[[], Mapping[str, float]] = dict,
    ) -> None:
        self.key = f"process:{rank.run_id}:{rank.participant}"
        self._rank = rank
        self._reader = reader
        self._clock = clock
        self._gpu_processes = gpu_processes
        self._gpu_utilization = gpu_utilization
        self._assigned = (rank.pid, started)
        self._begin(*self._assigned)

    def follow(self, rank: RankProcess, started: float) -> None:
        """From the next reading on the rank is this process. Called from the thread of the source."""
        self._rank = rank
        self._assigned = (rank.pid, started)

    def _begin(self, pid: int, started: float) -> None:
        self._pid = pid
        self._started = started
        self._labels: dict[str, Value] = {"run_id": self._rank.run_id, **self._rank.participant.labels, "pid": pid}
        self._before: tuple[float, dict[int, ProcessReading]] | None = None
        self._io_before: tuple[float, dict[int, tuple[int, int]]] | None = None
        self._moved: dict[str, dict[str, float]] = {}
        """Bytes so far, also by processes of the tree that have ended."""
        self._moved_by: dict[int, tuple[int, int]] = {}
        """What each living process had moved when it could last be asked."""
        self._members: dict[int, float] = {}
        self._next_detail = float("-inf")
        self._next_search = float("-inf")
        self._next_pss = self._clock() + PSS_INTERVAL / 10

    def read(self) -> Sequence[Sample | Notice]:
        if self._assigned != (self._pid, self._started):
            self._begin(*self._assigned)
        began, now = time.time(), self._clock()
        tree = self._read_tree(now)
        values: dict[str, Value] = {
            "process_count": len(tree),
            "rss_mb": sum(process.rss_bytes for process in tree.values()) / MIB,
            "thread_count": sum(process.threads for process in tree.values()),
            "process_state": tree[self._pid].state,
        }
        if self._before is not None and now > self._before[0]:
            values |= self._cpu_use(*self._before, now, tree)
        self._before = (now, tree)
        if now >= self._next_detail:
            self._next_detail = now + DETAIL_INTERVAL
            values |= self._read_details(now, tree)
        if now >= self._next_pss:
            values |= self._read_slow(tree)
        return [Sample("process", self._labels, values, began, self._moved)]

    def close(self) -> None:
        """Nothing is kept open."""

    def _read_tree(self, now: float) -> dict[int, ProcessReading]:
        """The living processes of the tree, the rank's own first. Who was in it stays in it until it ends."""
        root = self._reader.read(self._pid)
        if root is None or root.started != self._started or root.ended:
            raise UnitGone(f"process {self._pid} has ended")
        tree = {self._pid: root}
        for pid, started in self._members.items():
            reading = self._reader.read(pid)
            if reading is not None and reading.started == started and not reading.ended:
                tree[pid] = reading
        thorough = now >= self._next_search
        if thorough:
            self._next_search = now + SEARCH_INTERVAL
        for pid in self._reader.find_descendants(list(tree), thorough):
            reading = self._reader.read(pid)
            if reading is not None and not reading.ended:
                tree[pid] = reading
        self._members = {pid: reading.started for pid, reading in tree.items() if pid != self._pid}
        return tree

    def _cpu_use(
        self, then: float, before: dict[int, ProcessReading], now: float, tree: dict[int, ProcessReading]
    ) -> dict[str, Value]:
        elapsed = now - then
        used = {}
        for pid, process in tree.items():
            earlier = before.get(pid)
            if earlier is not None and earlier.started == process.started:
                used[pid] = max(process.cpu_seconds - earlier.cpu_seconds, 0.0)
            else:
                # New since then, or found late: it cannot have used more than its threads could in this time.
                used[pid] = min(process.cpu_seconds, elapsed * process.threads)
        return {
            "cpu_percent": sum(used.values()) / elapsed * 100,
            "main_cpu_percent": used[self._pid] / elapsed * 100,
        }

    def _read_details(self, now: float, tree: dict[int, ProcessReading]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        counts = [count for pid in tree if (count := self._reader.count_descriptors(pid)) is not None]
        if len(counts) == len(tree):
            values["fd_count"] = sum(counts)
        moved = {pid: io for pid in tree if (io := self._reader.read_io(pid)) is not None}
        if self._io_before is not None and now > self._io_before[0] and self._pid in moved:
            then, before = self._io_before
            for index, name in enumerate(("read_mb_s", "write_mb_s")):
                grown = sum(max(io[index] - before[pid][index], 0) for pid, io in moved.items() if pid in before)
                values[name] = grown / (now - then) / MIB
        if self._pid in moved:
            self._moved = {
                name: {"": self._moved.get(name, {}).get("", 0) + _sum_growth(moved, self._moved_by, index)}
                for index, name in enumerate(("read_bytes_total", "write_bytes_total"))
            }
            self._moved_by = {pid: io for pid, io in (self._moved_by | moved).items() if pid in tree}
        self._io_before = (now, moved)
        return values | self._gpu_use(tree)

    def _gpu_use(self, tree: Mapping[int, ProcessReading]) -> dict[str, Value]:
        """What the tree holds and does on all GPUs; absent if it uses none, or if a driver does not report it."""
        users = [process for process in self._gpu_processes() if process.pid in tree]
        asked = [self._reader.read_gpu_memory(pid) for pid in tree]
        sizes = [process.memory_mb for process in users] + [size / MIB for size in asked if size is not None]
        known = [size for size in sizes if size is not None]
        values: dict[str, Value] = {}
        if known and len(known) == len(sizes):
            values["gpu_memory_mb"] = sum(known)
        shares = [process.sm_percent for process in users if process.sm_percent is not None]
        if shares:
            values["gpu_sm_percent"] = sum(shares)
        used = self._gpu_utilization() if self._rank.gpus else {}
        busy = [used[key] for key in self._rank.gpus if key in used]
        if busy:
            values["gpu_waiting_percent"] = 100.0 - sum(busy) / len(busy)
        return values

    def _read_slow(self, tree: dict[int, ProcessReading]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        limit = self._reader.read_descriptor_limit(self._pid)
        if limit is not None:
            values["fd_limit"] = limit
        longest, sizes = 0.0, []
        for pid, process in tree.items():
            if process.rss_bytes > PSS_LARGEST:
                break
            asked = self._clock()
            size = self._reader.read_pss(pid)
            longest = max(longest, self._clock() - asked)
            if size is None:
                break
            sizes.append(size)
        if len(sizes) == len(tree):
            values["pss_mb"] = sum(sizes) / MIB
        self._next_pss = self._clock() + max(PSS_INTERVAL, longest / PSS_SHARE)
        return values


def _sum_growth(moved: Mapping[int, tuple[int, int]], earlier: Mapping[int, tuple[int, int]], index: int) -> int:
    """Of a process that was not there before, all it moved: the kernel counts from its start."""
    return sum(max(io[index] - earlier.get(pid, (0, 0))[index], 0) for pid, io in moved.items())

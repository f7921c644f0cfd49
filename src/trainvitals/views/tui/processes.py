"""Processes that use GPUs or belong to a run, otherwise the busiest ones. Read only while they are shown."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from trainvitals import runtime, sources
from trainvitals.errors import TrainvitalsError
from trainvitals.journal.documents.registration import Registration
from trainvitals.journal.identity import Participant
from trainvitals.sources import BusyUnit, World
from trainvitals.sources.process_owner import read_owner
from trainvitals.views.data.quantities import format_driver
from trainvitals.views.tui.snapshot import ProcessRow

BUSIEST = 40
GPU_SECONDS = 2.0
FIRST_LOOK_SECONDS = 0.15


class ProcessList:
    """Remembers the processes between readings, for their CPU use. Used by one thread."""

    def __init__(self, world: World) -> None:
        self._known: dict[int, psutil.Process] = {}
        self._has_read = False
        self._jobs: dict[int, str] = {}
        self._root = world.procfs_root
        self._gpus = GpuProcesses(world)

    @property
    def driver(self) -> str:
        """Versions of the driver that names the processes; empty until it is known."""
        return self._gpus.driver

    def read_on_gpus(self) -> tuple[ProcessRow, ...]:
        """Only those on GPUs, by GPU and then by memory, the most first."""
        on_gpus = self._gpus.read()
        found = [process for pid, gpu in on_gpus.items() if (process := self._read_one(pid, gpu, None)) is not None]
        return tuple(sorted(found, key=lambda row: (*map(int, row.gpus[:1]), -(row.gpu_memory_mb or 0.0), row.pid)))

    def read(self, runs: Sequence[Registration], *, with_gpus: bool = True) -> tuple[ProcessRow, ...]:
        """Processes of GPUs and runs, including the runs' children; the busiest of the machine if there are none."""
        on_gpus = self._gpus.read() if with_gpus else {}
        of_runs: dict[int, tuple[str, Participant]] = {}
        for entry in runs:
            if runtime.is_same_process(entry.pid, entry.pid_start):
                of_runs[entry.pid] = (entry.run_id, entry.participant)
                for child in self._children(entry.pid):
                    of_runs.setdefault(child, (entry.run_id, entry.participant))
        wanted = sorted({*on_gpus, *of_runs}) or self._everybody()
        if not self._has_read:
            self._has_read = True
            # CPU usage is known from the second reading on: take the first one now.
            for pid in wanted:
                self._read_one(pid, None, None)
            time.sleep(FIRST_LOOK_SECONDS)
        found = [
            process
            for pid in wanted
            if (process := self._read_one(pid, on_gpus.get(pid), of_runs.get(pid))) is not None
        ]
        self._known = {pid: known for pid, known in self._known.items() if pid in set(wanted)}
        self._jobs = {pid: job for pid, job in self._jobs.items() if pid in self._known}
        if not on_gpus and not of_runs:
            found = sorted(found, key=lambda process: -(process.cpu_percent or 0.0))[:BUSIEST]
        return tuple(found)

    def _everybody(self) -> list[int]:
        try:
            return psutil.pids()
        except psutil.Error:
            return []

    def _children(self, pid: int) -> list[int]:
        try:
            return [child.pid for child in psutil.Process(pid).children(recursive=True)]
        except psutil.Error:
            return []

    def _read_one(
        self, pid: int, gpu: Mapping[str, Any] | None, run: tuple[str, Participant] | None
    ) -> ProcessRow | None:
        try:
            known = self._known.get(pid)
            if known is None or not known.is_running():
                known = self._known[pid] = psutil.Process(pid)
                self._jobs[pid] = str(read_owner(self._root, pid).job)
            with known.oneshot():
                words = known.cmdline()
                return ProcessRow(
                    pid=pid,
                    command=" ".join(words) if words else known.name(),
                    user=_user(known),
                    job=self._jobs[pid],
                    gpus=tuple(gpu["gpus"]) if gpu else (),
                    run=run[0] if run else "",
                    participant=run[1] if run else None,
                    cpu_percent=known.cpu_percent(None),
                    rss_mb=known.memory_info().rss / (1 << 20),
                    gpu_memory_mb=gpu["memory_mb"] if gpu else None,
                    sm_percent=gpu["sm_percent"] if gpu else None,
                    threads=known.num_threads(),
                    state=known.status(),
                    age=time.time() - known.create_time(),
                    start=runtime.process_start(pid),
                )
        except psutil.Error:
            if gpu is None:
                return None
            # In a container the driver reports the host's pids, which mean nothing here; the usage is still real.
            return ProcessRow(
                pid=pid,
                command="(in another container, or not visible)",
                gpus=tuple(gpu["gpus"]),
                gpu_memory_mb=gpu["memory_mb"],
                sm_percent=gpu["sm_percent"],
            )


def _user(process: psutil.Process) -> str:
    try:
        return process.username()
    except (psutil.Error, KeyError):
        return ""


class GpuProcesses:
    """Which processes have a context on which GPU, if the driver reports them. A thread per GPU: one that hangs delays
    no other."""

    def __init__(self, world: World) -> None:
        self.driver = ""
        self._world = world
        self._units: dict[str, BusyUnit] = {}
        self._asked = 0.0
        self._busy: set[str] = set()
        self._looking = False

    def read(self) -> dict[int, dict[str, Any]]:
        """Pid -> GPUs, memory in MB and SM percent, as of the last reading; reads again in the background."""
        now = time.monotonic()
        if now - self._asked >= GPU_SECONDS:
            self._asked = now
            if not self._units and not self._looking:
                self._looking = True
                threading.Thread(target=self._look, name="top-gpu-processes", daemon=True).start()
            self._ask_all()
        found: dict[int, dict[str, Any]] = {}
        for unit in list(self._units.values()):
            for process in unit.processes:
                entry = found.setdefault(process.pid, {"gpus": [], "memory_mb": None, "sm_percent": None})
                entry["gpus"].append(str(unit.gpu_index))
                for name in ("memory_mb", "sm_percent"):
                    value = getattr(process, name)
                    if value is not None:
                        entry[name] = (entry[name] or 0.0) + value
        return found

    def _ask_all(self) -> None:
        for key, unit in list(self._units.items()):
            if key not in self._busy:
                self._busy.add(key)
                threading.Thread(target=self._ask, args=(key, unit), daemon=True).start()

    def _look(self) -> None:
        try:
            for row in sources.REGISTRY:
                if row.names_processes:
                    self._units |= {unit.key: unit for unit in self._find_units(row.name)}
            self._ask_all()
        finally:
            self._looking = False

    def _find_units(self, name: str) -> list[BusyUnit]:
        try:
            source = sources.create(name, self._world)
            units = source.discover()
            self.driver = format_driver(source.describe()) or self.driver
        except Exception:  # noqa: BLE001 - the boundary around a source: no GPU of this vendor, so nobody uses one
            return []
        return [unit for unit in units if hasattr(unit, "processes")]  # type: ignore[misc]

    def _ask(self, key: str, unit: BusyUnit) -> None:
        try:
            unit.read()
        except Exception:  # noqa: BLE001 - the boundary around a source; the GPU's line shows what is wrong
            self._units.pop(key, None)
        finally:
            self._busy.discard(key)


def send(process: ProcessRow, name: str) -> str:
    """Send a signal to a process if it is still the one that was shown. Returns the result as a sentence."""
    number = getattr(signal, name, None)
    if number is None:
        raise TrainvitalsError(f"{name} does not exist on this system")
    if process.pid in (0, 1, os.getpid(), os.getppid()):
        raise TrainvitalsError(f"{name} not sent to process {process.pid}: it belongs to this program or the system")
    if not runtime.is_same_process(process.pid, process.start):
        raise TrainvitalsError(f"process {process.pid} has already exited")
    try:
        os.kill(process.pid, number)
    except PermissionError:
        raise TrainvitalsError(f"no permission to signal process {process.pid} of {process.user}") from None
    except ProcessLookupError:
        raise TrainvitalsError(f"process {process.pid} has already exited") from None
    return f"sent {name} to {process.pid}"

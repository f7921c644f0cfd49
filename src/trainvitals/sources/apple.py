"""The GPU of an Apple Silicon machine, read by macmon, which needs no sudo.

See https://github.com/vladkens/macmon (the program of that name on PyPI is another one). One `macmon pipe`
is kept open and prints a line of JSON per interval; it is started again when it dies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.sources import Notice, Sample, SourceUnavailable, Unit, Value, World
from trainvitals.sources.sysfs import within

INTERVAL_MS = 500
PATIENCE = 10.0
"""Seconds to wait for a line; macmon needs one or two to start."""
MIB = 1 << 20


def create(world: World) -> AppleSource:
    return AppleSource(world)


class AppleSource:
    """One unit, when macmon is installed. A command set on purpose is used on any system, for tests."""

    name = "apple"

    def __init__(self, world: World) -> None:
        self._command = world.macmon_command
        self._chosen = world.macmon_command != World().macmon_command

    def discover(self) -> Sequence[Unit]:
        if sys.platform != "darwin" and not self._chosen:
            raise SourceUnavailable("Apple GPUs are only available on macOS")
        program = shutil.which(self._command[0])
        if program is None:
            command = "brew install macmon"
            text = f"macmon is not installed: {command}"
            raise SourceUnavailable(text, kind="incomplete", command=command)
        return [AppleUnit([program, *self._command[1:]], read_chip_name())]

    def describe(self) -> Mapping[str, object]:
        if sys.platform != "darwin":
            return {}
        return {"gpu_name": read_chip_name(), "macmon": shutil.which(self._command[0])}


def read_chip_name() -> str:
    """`Apple M3 Pro`; `Apple GPU` if the system does not report it."""
    if sys.platform != "darwin":
        return "Apple GPU"
    question = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        answer = subprocess.run(question, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return "Apple GPU"
    return answer.stdout.strip() or "Apple GPU"


class AppleUnit:
    """The GPU. Its memory is the machine's memory: label `memory_kind` is `unified`."""

    key = "apple:0"

    def __init__(self, command: Sequence[str], name: str) -> None:
        self._command = [*command, "pipe", "-s", "0", "-i", str(INTERVAL_MS)]
        self._stream: LineStream | None = None
        self._worked = False
        self._labels: dict[str, Value] = {
            "gpu_index": 0,
            "gpu_uuid": "apple-0",
            "gpu_name": name,
            "vendor": "apple",
            "memory_kind": "unified",
        }

    def read(self) -> Sequence[Sample | Notice]:
        stream = self._open()
        sample = self._wait(stream)
        if sample is None and stream.ended and self._worked:
            # It died between two lines. One that dies without a reading is not worth another try now.
            stream = self._open()
            sample = self._wait(stream)
        if sample is None:
            words = stream.last_words()
            self.close()
            raise SourceUnavailable(f"macmon returned nothing{': ' + words if words else ''}; try: macmon pipe -s 1")
        return [sample]

    def _open(self) -> LineStream:
        if self._stream is None or self._stream.ended:
            self.close()
            self._worked = False
            try:
                self._stream = LineStream(self._command)
            except OSError as error:
                raise SourceUnavailable(f"cannot start macmon: {error}") from error
        return self._stream

    def _wait(self, stream: LineStream) -> Sample | None:
        deadline = time.monotonic() + PATIENCE
        while (line := stream.newest(deadline - time.monotonic())) is not None:
            values = parse_macmon(line[1])
            if values:
                self._worked = True
                return Sample("gpu", self._labels, {**values, "state": "ok"}, line[0])
        return None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class LineStream:
    """A child process whose newest line is kept, so that a slow reader never sees an old one as new."""

    def __init__(self, command: Sequence[str]) -> None:
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._changed = threading.Condition()
        self._line: tuple[float, str] | None = None
        self._last = ""
        self._done = False
        threading.Thread(target=self._pump, name="trainvitals-macmon", daemon=True).start()

    @property
    def ended(self) -> bool:
        """The child has closed its output and all of it was read."""
        return self._done and self._line is None

    def newest(self, seconds: float) -> tuple[float, str] | None:
        """(when it came, the line) not given out before; None when the child ended or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._line is not None or self._done, max(seconds, 0))
            line, self._line = self._line, None
            return line

    def last_words(self) -> str:
        """The child's output besides its readings, and how it ended; empty if it just runs."""
        code = self._child.poll()
        return " ".join(part for part in (self._last[-200:], f"(exit code {code})" if code else "") if part)

    def close(self) -> None:
        """End the child. Its output closes with it, and so the thread ends."""
        self._child.terminate()
        try:
            self._child.wait(2)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _pump(self) -> None:
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                with self._changed:
                    if not line.startswith("{"):
                        self._last = line.strip()
                    self._line = (time.time(), line)
                    self._changed.notify_all()
        self._child.wait()
        with self._changed:
            self._done = True
            self._changed.notify_all()


def parse_macmon(text: str) -> dict[str, Value]:
    """Catalog values out of one line of macmon 0.4 to 0.8; empty for any other line."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(line, dict):
        return {}
    memory, temperature, usage = _object(line, "memory"), _object(line, "temp"), line.get("gpu_usage")
    clock_then, share_then = usage if isinstance(usage, list) and len(usage) == 2 else (None, None)
    share = _number(line.get("gpu_active_ratio"))
    share = share if share is not None else _number(share_then)
    clock = _number(line.get("gpu_freq_mhz"))
    used, total = _number(memory.get("ram_usage")), _number(memory.get("ram_total"))
    fans = [fan for fan in line.get("fans") or () if isinstance(fan, dict)]
    speeds = [speed for fan in fans if (speed := _number(fan.get("rpm"))) is not None]
    values = {
        "utilization_percent": within(share * 100, 0, 100) if share is not None else None,
        "graphics_clock_mhz": within(clock if clock is not None else _number(clock_then), 0, 10_000),
        "power_draw_watts": within(_number(line.get("gpu_power")), 0, 5000),
        # 0 is macmon's value for a missing sensor.
        "temperature_celsius": within(_number(temperature.get("gpu_temp_avg")), 1, 150),
        "memory_used_mb": used / MIB if used is not None else None,
        "memory_total_mb": total / MIB if total is not None else None,
        "memory_percent": within(used / total * 100, 0, 100) if used is not None and total else None,
        "fan_speed_rpm": within(max(speeds, default=None), 0, 100_000),
    }
    return {name: value for name, value in values.items() if value is not None}


def _object(line: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = line.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None

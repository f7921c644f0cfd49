"""GPUs that are not there, for demos, screenshots and tests on machines without one. Always labelled so.

A training is acted out: work from the first moment while memory fills, then steady with noise, a dip now and then
for data, a longer one for evaluation, a checkpoint now and then. Power follows the work, temperature follows power with
inertia, the fan follows temperature, clocks give way to the power cap and to heat, energy is the integral of
power. The same index and seed give the same story, however often it is read.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from trainvitals.sources import Notice, Sample, SourceUnavailable, Unit, Value, World

SEED = 20240
TICK = 0.25
"""Seconds of one step of the simulation."""
LONGEST_CATCH_UP = 3600.0
"""Seconds acted out at most between two readings; after a longer pause the story continues from there."""

MEMORY_TOTAL_MB = 81_920.0
POWER_IDLE = 62.0
POWER_FULL = 680.0
POWER_LIMIT = 660.0
CLOCK_MAX = 1980.0
CLOCK_IDLE = 345.0
CLOCK_MEMORY = 2619.0
TEMPERATURE_LIMIT = 83.0
HEAT_SECONDS = 22.0
"""Time constant of the cooler."""


def create(world: World) -> SimulatedSource:
    return SimulatedSource(world)


class SimulatedSource:
    """As many GPUs as the setting asks for."""

    name = "simulated"

    def __init__(self, world: World) -> None:
        self._count = world.simulated_gpus

    def discover(self) -> Sequence[Unit]:
        if self._count <= 0:
            raise SourceUnavailable("simulated GPUs are off")
        return [SimulatedUnit(index) for index in range(self._count)]

    def describe(self) -> Mapping[str, object]:
        return {"simulated_gpus": self._count} if self._count > 0 else {}


class SimulatedUnit:
    """One GPU that is not there."""

    def __init__(self, index: int, seed: int = SEED, clock: Callable[[], float] = time.monotonic) -> None:
        uuid = f"SIM-{random.Random(f'{seed} {index}').getrandbits(64):016x}"
        self.key = f"simulated:{uuid}"
        self._labels: dict[str, Value] = {
            "gpu_index": index,
            "gpu_uuid": uuid,
            "gpu_name": "Simulated GPU",
            "vendor": "simulated",
            "simulated": 1,
        }
        self._card = SimulatedCard(index, seed)
        self._clock = clock
        self._started = clock()

    def read(self) -> Sequence[Sample | Notice]:
        self._card.advance(self._clock() - self._started)
        return [Sample("gpu", self._labels, self._card.values(), time.time())]

    def close(self) -> None:
        """Nothing is kept open."""


@dataclass(frozen=True, slots=True)
class Act:
    """What a card does at one moment of the story, in shares of what it can do."""

    work: float
    memory: float


def act_at(seconds: float, index: int) -> Act:
    """The story without its noise: all cards of a machine start together and wait for each other."""
    filled = 0.06 + 0.7 * min(seconds / 4, 1)
    if seconds < 1:  # the first steps, slowed by start-up
        return Act(work=0.55, memory=filled)
    if seconds % 120 > 114:  # a checkpoint: the first card writes, the others wait
        return Act(work=0.12 if index == 0 else 0.03, memory=filled)
    if seconds % 60 > 54:  # evaluation: no backward pass, less memory
        return Act(work=0.62, memory=filled * 0.82)
    if seconds % 11 > 10.2:  # waiting for data
        return Act(work=0.2, memory=filled)
    return Act(work=0.97, memory=filled)


class SimulatedCard:
    """Physics in steps of a quarter of a second, so that the state does not depend on when it is read."""

    def __init__(self, index: int, seed: int) -> None:
        self._index = index
        self._random = random.Random(f"{seed} {index} noise")
        self._ambient = 31.0 + 1.5 * (index % 4)
        # Every fourth card sits in a hot place: it reaches its limit and slows down.
        self._resistance = 0.083 if index % 4 == 3 else 0.064
        self._ticks = 0
        self._utilization = act_at(0.0, index).work * 100
        self._memory = act_at(0.0, index).memory
        self._power = POWER_IDLE
        self._temperature = self._ambient + 4
        self._memory_temperature = self._ambient + 6
        self._fan = 30.0
        self._clock = CLOCK_IDLE
        self._energy = 0.0
        self._reasons: tuple[str, ...] = ()
        self._held = {"power": 0.0, "thermal": 0.0}

    def advance(self, seconds: float) -> None:
        """Act out everything up to `seconds` after the start."""
        ticks = int(seconds / TICK)
        self._ticks = max(self._ticks, ticks - int(LONGEST_CATCH_UP / TICK))
        while self._ticks < ticks:
            self._ticks += 1
            self._step(act_at(self._ticks * TICK, self._index))

    def _step(self, act: Act) -> None:
        noise = self._random.gauss(0, 1)
        work = min(max(act.work + (0.015 * noise if act.work else 0.0), 0.0), 1.0)
        self._utilization = work * 100
        self._memory = act.memory + (0.002 * math.sin(self._ticks / 7) if act.memory > 0.1 else 0.0)
        slow = 1.0
        wanted = POWER_IDLE + (POWER_FULL - POWER_IDLE) * work**1.3
        reasons = []
        if self._temperature >= TEMPERATURE_LIMIT:
            slow = max(0.6, 1 - 0.06 * (self._temperature - TEMPERATURE_LIMIT + 1))
            reasons.append("thermal slowdown")
            self._held["thermal"] += TICK
        power = POWER_IDLE + (wanted - POWER_IDLE) * slow**2
        if power > POWER_LIMIT:
            slow *= math.sqrt(POWER_LIMIT / power)
            power = POWER_LIMIT
            reasons.append("power cap")
            self._held["power"] += TICK
        self._reasons = tuple(reasons)
        self._clock = CLOCK_IDLE + (CLOCK_MAX * slow - CLOCK_IDLE) * min(work * 4, 1.0)
        self._power += (power - self._power) * 0.6
        self._energy += self._power * TICK
        share = 1 - math.exp(-TICK / HEAT_SECONDS)
        self._temperature += (self._ambient + self._power * self._resistance - self._temperature) * share
        hbm = self._ambient + 6 + self._power * self._resistance * 1.12
        self._memory_temperature += (hbm - self._memory_temperature) * share * 0.8
        fan = min(max(30 + (self._temperature - 45) * 1.8, 30), 100)
        self._fan += (fan - self._fan) * 0.1

    def values(self) -> dict[str, Value]:
        """The state in catalog names."""
        used = self._memory * MEMORY_TOTAL_MB
        return {
            "utilization_percent": round(self._utilization, 1),
            "memory_utilization_percent": round(self._utilization * 0.58, 1),
            "memory_used_mb": round(used, 1),
            "memory_total_mb": MEMORY_TOTAL_MB,
            "memory_percent": round(used / MEMORY_TOTAL_MB * 100, 2),
            "temperature_celsius": round(self._temperature, 1),
            "memory_temperature_celsius": round(self._memory_temperature, 1),
            "temperature_limit_celsius": TEMPERATURE_LIMIT,
            "power_draw_watts": round(self._power, 1),
            "power_limit_watts": POWER_LIMIT,
            "energy_joules": round(self._energy, 2),
            "graphics_clock_mhz": round(self._clock),
            "memory_clock_mhz": CLOCK_MEMORY,
            "fan_speed_percent": round(self._fan, 1),
            "throttle_reasons": ", ".join(self._reasons) or "none",
            "throttle_power_seconds": self._held["power"],
            "throttle_thermal_seconds": self._held["thermal"],
            "state": "ok",
        }

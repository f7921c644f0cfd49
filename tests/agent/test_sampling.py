"""Reading sources on schedule: each unit in a thread of its own, whatever it does."""

from __future__ import annotations

import math
import sys
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from waiting import PATIENCE, wait_until

from trainvitals import sources
from trainvitals.agent import sampling
from trainvitals.agent.log import BoundLog, Log
from trainvitals.agent.reading import Reading
from trainvitals.agent.sampling import Owner, Sampler, UnitThread
from trainvitals.agent.wanted import Demand
from trainvitals.sources import GpuProcess, Notice, Sample, SourceUnavailable, Unit, UnitGone, World

FAST = Demand(sources=("probe",), intervals={"gpu": 0.02}, default_interval=0.02)


class Probe:
    """A unit that does what its script says."""

    def __init__(self, key: str = "probe:0") -> None:
        self.key = key
        self.trouble: Exception | None = None
        self.gate = threading.Event()  # a closed gate is a driver that does not answer
        self.gate.set()
        self.hangs = False
        self.reads = 0
        self.closed = False
        self.threads: set[int] = set()

    def read(self) -> Sequence[Sample | Notice]:
        self.threads.add(threading.get_ident())
        self.reads += 1
        self.hangs = False
        while not self.gate.wait(0.01):
            self.hangs = True
        if self.trouble is not None:
            raise self.trouble
        return [Sample("gpu", {"gpu_index": 0}, {"utilization_percent": float(self.reads)}, time.time())]

    def close(self) -> None:
        self.closed = True


class ProbeSource:
    """A source whose units the test chooses."""

    name = "probe"

    def __init__(self) -> None:
        self.units: list[Probe] = [Probe()]
        self.unavailable: str | None = None
        self.searches = 0

    def discover(self) -> Sequence[Unit]:
        self.searches += 1
        if self.unavailable:
            raise SourceUnavailable(self.unavailable)
        return self.units

    def describe(self) -> Mapping[str, object]:
        return {"units": len(self.units)}


class Inbox:
    """Keeps what is delivered."""

    def __init__(self) -> None:
        self.readings: list[Reading] = []

    def __call__(self, reading: Reading) -> None:
        self.readings.append(reading)

    def samples(self, unit: str = "probe:0") -> list[Reading]:
        return [item for item in self.readings if item.unit == unit and isinstance(item.items[0], Sample)]

    def notices(self) -> list[Notice]:
        return [item for reading in self.readings for item in reading.items if isinstance(item, Notice)]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reading is late because the machine is busy, unless a test is about that."""
    monkeypatch.setattr(sampling, "STALE_SECONDS", PATIENCE)


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def log(tmp_path: Path) -> BoundLog:
    return Log(tmp_path / "agent.log").bind(correlation_id="test")


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> ProbeSource:
    """A source registered like any other: one module, one line."""
    probe = ProbeSource()
    module = types.ModuleType("probe_source")
    module.create = lambda world: probe  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "probe_source", module)
    row = sources.SourceRow("probe", "probe_source", "gpu")
    monkeypatch.setattr(sources.REGISTRY, "own", (*sources.REGISTRY.own, row))
    return probe


@pytest.fixture
def sampler(log: BoundLog, inbox: Inbox, source: ProbeSource) -> Iterator[Sampler]:
    found = Sampler(log, inbox)
    yield found
    for unit in source.units:
        unit.gate.set()
    found.end()


@pytest.fixture
def threads() -> Iterator[list[UnitThread]]:
    started: list[UnitThread] = []
    yield started
    for thread in started:
        thread.end()


def run_unit(threads: list[UnitThread], probe: Probe, inbox: Inbox, demand: Demand = FAST, **more: Any) -> UnitThread:
    thread = UnitThread("probe", probe, Owner(lambda: demand, inbox, more.pop("on_gone", lambda key: None)), **more)
    threads.append(thread)
    return thread


# -- one unit


def test_readings_keep_to_their_slots_and_leave_out_those_they_missed(threads: list[UnitThread], inbox: Inbox) -> None:
    probe = Probe()
    thread = run_unit(threads, probe, inbox)
    wait_until(lambda: len(inbox.samples()) > 20, "some readings")
    probe.gate.clear()
    wait_until(lambda: probe.hangs, "the reading that hangs")
    time.sleep(0.2)  # ten slots pass meanwhile
    probe.gate.set()
    count = len(inbox.samples())
    wait_until(lambda: len(inbox.samples()) > count + 20, "more readings")
    # The first reading begins at once; each one after it in a slot of its own, however long the one before took.
    slots = [math.floor(item.moment / 0.02) for item in inbox.samples()[1:]]
    assert slots == sorted(set(slots))
    assert slots[-1] - slots[0] + 1 > len(slots)
    skipped = thread.health(time.monotonic()).skipped
    assert skipped >= 5


def test_a_gpu_whose_driver_does_not_return_is_unresponsive_until_it_does(
    threads: list[UnitThread], inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainvitals.agent.sampling.holds_for", lambda interval: 0.05)
    probe = Probe()
    thread = run_unit(threads, probe, inbox)
    wait_until(lambda: inbox.samples(), "a reading")
    probe.gate.clear()
    wait_until(lambda: probe.hangs, "the reading that hangs")

    def newest() -> Sample:
        return next(item for item in inbox.samples()[-1].items if isinstance(item, Sample))

    wait_until(lambda: thread.check(time.monotonic()) or "state" in newest().values, "its state")
    assert newest().labels == {"gpu_index": 0} and newest().values == {"state": "unresponsive"}
    probe.gate.set()
    wait_until(lambda: "utilization_percent" in newest().values, "its values")
    answered = len(inbox.samples())
    wait_until(lambda: len(inbox.samples()) > answered, "the reading after it")
    thread.check(inbox.samples()[-1].moment)  # not now: on a busy machine the one after it may have begun long ago
    assert not any("state" in item.values for reading in inbox.samples()[answered:] for item in reading.items)  # type: ignore[union-attr]


def test_another_interval_is_kept_from_then_on(threads: list[UnitThread], inbox: Inbox) -> None:
    demands = [Demand(default_interval=600.0)]
    thread = UnitThread("probe", Probe(), Owner(lambda: demands[-1], inbox, lambda key: None))
    threads.append(thread)
    wait_until(lambda: len(inbox.samples()) == 1, "the first reading")
    demands.append(FAST)
    thread.reschedule()
    wait_until(lambda: len(inbox.samples()) > 5, "readings at the new interval")


def test_a_unit_that_raises_is_told_once_backs_off_and_is_told_again_when_it_answers(
    threads: list[UnitThread], inbox: Inbox
) -> None:
    probe = Probe()
    probe.trouble = RuntimeError("no such register")
    thread = run_unit(threads, probe, inbox)
    wait_until(lambda: probe.reads >= 4, "a few tries")
    (trouble,) = inbox.notices()
    assert trouble.event == "source_trouble" and "RuntimeError: no such register" in trouble.message
    health = thread.health(time.monotonic())
    assert not health.up and health.errors >= 3 and health.age is None and "no such register" in (health.reason or "")
    probe.trouble = None
    wait_until(lambda: len(inbox.notices()) == 2, "the recovery")
    assert inbox.notices()[1].event == "source_recovered"
    assert thread.health(time.monotonic()).up


def test_a_unit_that_works_now_and_then_is_one_trouble_not_a_hundred(threads: list[UnitThread], inbox: Inbox) -> None:
    class Flapping(Probe):
        def read(self) -> Sequence[Sample | Notice]:
            self.trouble = RuntimeError("flaky") if self.reads % 2 else None
            return super().read()

    probe = Flapping()
    run_unit(threads, probe, inbox)
    wait_until(lambda: probe.reads > 12, "readings")
    assert len(inbox.notices()) == 1


def test_a_hung_unit_is_stale_and_its_late_answer_is_marked(
    threads: list[UnitThread], inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "STALE_SECONDS", 0.1)
    probe, other = Probe(), Probe("probe:1")
    thread = run_unit(threads, probe, inbox)
    run_unit(threads, other, inbox)
    wait_until(lambda: inbox.samples(), "a reading")
    probe.gate.clear()
    wait_until(lambda: probe.hangs, "the reading that hangs")
    wait_until(lambda: not thread.health(time.monotonic()).up, "it to be stale")
    thread.check(time.monotonic())
    assert "has not responded" in inbox.notices()[0].message
    count, others = len(inbox.samples()), len(inbox.samples("probe:1"))
    wait_until(lambda: len(inbox.samples("probe:1")) > others + 10, "readings of the other")
    assert len(inbox.samples()) == count  # nothing old is repeated
    probe.gate.set()
    wait_until(lambda: len(inbox.samples()) > count, "the late answer")
    late = inbox.samples()[count]
    assert late.late and late.duration > 0.1
    wait_until(lambda: not inbox.samples()[-1].late, "answers in time")
    wait_until(lambda: inbox.notices()[-1].event == "source_recovered", "the recovery")


def test_a_unit_that_is_gone_ends_and_asks_for_a_search(threads: list[UnitThread], inbox: Inbox) -> None:
    lost: list[str] = []
    probe = Probe()
    probe.trouble = UnitGone("it fell off the bus")
    thread = run_unit(threads, probe, inbox, on_gone=lost.append)
    wait_until(lambda: thread.ended, "the thread to end")
    assert lost == ["probe:0"] and probe.closed and probe.reads == 1
    assert "fell off the bus" in inbox.notices()[0].message


def test_a_unit_that_cannot_be_closed_ends_all_the_same(threads: list[UnitThread], inbox: Inbox) -> None:
    class Stubborn(Probe):
        def close(self) -> None:
            raise RuntimeError("no")

    thread = run_unit(threads, Stubborn(), inbox)
    wait_until(lambda: inbox.samples(), "a reading")
    thread.end()
    wait_until(lambda: thread.ended, "the thread to end")


# -- all sources


def test_units_come_and_go_with_the_search(sampler: Sampler, source: ProbeSource, inbox: Inbox) -> None:
    sampler.want(FAST, World())
    wait_until(lambda: inbox.samples(), "a reading")
    wait_until(lambda: sampler.states() == {"probe": "ok"}, "the source to be up")
    assert sampler.describe() == {"probe": {"units": 1}}
    first = source.units[0]
    source.units = [Probe("probe:1")]
    sampler.rediscover("probe")
    wait_until(lambda: inbox.samples("probe:1") and first.closed, "the new unit instead of the old one")
    assert "probe:1" in sampler.newest.describe()
    sampler.rediscover("probe")
    wait_until(lambda: "probe:0" not in sampler.newest.describe(), "the old one to be forgotten")


def test_a_known_unit_is_kept_as_it_is(sampler: Sampler, source: ProbeSource, inbox: Inbox) -> None:
    sampler.want(FAST, World())
    wait_until(lambda: inbox.samples(), "a reading")
    first, searches = source.units[0], source.searches
    source.units = [Probe()]  # the same key
    sampler.rediscover("probe")
    wait_until(lambda: source.searches > searches, "another search")
    count = first.reads
    wait_until(lambda: first.reads > count + 3, "more readings of the first")
    assert source.units[0].reads == 0 and len(first.threads) == 1


def test_a_source_that_is_not_there_says_why_and_is_found_when_it_comes(
    sampler: Sampler, source: ProbeSource, inbox: Inbox, tmp_path: Path
) -> None:
    source.unavailable = "no driver: install one"
    sampler.want(FAST, World())
    wait_until(lambda: sampler.states() == {"probe": "no driver: install one"}, "the reason")
    for _ in range(3):
        searches = source.searches
        sampler.rediscover("probe")
        wait_until(lambda searches=searches: source.searches > searches, "another search")
    source.unavailable = None
    sampler.rediscover("probe")
    wait_until(lambda: inbox.samples(), "a reading")
    assert (tmp_path / "agent.log").read_text().count("no driver") == 1


def test_a_hung_unit_is_given_up_and_started_again_only_after_its_thread_has_returned(
    sampler: Sampler, source: ProbeSource, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "STALE_SECONDS", 0.05)
    monkeypatch.setattr(sampling, "ABANDON_SECONDS", 0.2)
    monkeypatch.setattr(sampling, "REDISCOVER_PAUSE", 0.0)
    hung = source.units[0]
    hung.gate.clear()
    sampler.want(FAST, World())
    wait_until(lambda: hung.reads == 1, "the reading that hangs")
    wait_until(lambda: (sampler.check(), len(inbox.notices()))[1] >= 1, "it to be told")
    time.sleep(0.3)
    sampler.check()
    fresh = Probe()
    fresh.reads = 100  # so that its values differ from those of the other
    source.units = [fresh]
    for _ in range(3):
        searches = source.searches
        sampler.rediscover("probe")
        wait_until(lambda searches=searches: source.searches > searches, "another search")
    assert fresh.reads == 100 and [health.up for health in sampler.health().values()] == [False]
    hung.gate.set()
    wait_until(lambda: hung.closed, "the hung one to come back")
    sampler.rediscover("probe")
    wait_until(lambda: fresh.reads > 103, "readings of the fresh one")
    assert not [item for item in inbox.samples() if item.items[0].values["utilization_percent"] == 1.0]  # type: ignore[union-attr]
    wait_until(lambda: inbox.notices()[-1].event == "source_recovered", "the recovery")


def test_a_driver_that_hangs_while_it_is_looked_for_is_said_to_and_holds_up_nobody(
    sampler: Sampler, source: ProbeSource, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "STALE_SECONDS", 0.1)
    gate = threading.Event()
    find = source.discover
    monkeypatch.setattr(source, "discover", lambda: (gate.wait(), find())[1])
    sampler.want(
        Demand(sources=("probe", "simulated"), default_interval=0.02, simulated_gpus=1), World(simulated_gpus=1)
    )
    wait_until(lambda: "no response for" in sampler.states().get("probe", ""), "a source that is known to hang")
    wait_until(lambda: any(reading.source == "simulated" for reading in inbox.readings), "readings of the other")
    gate.set()
    wait_until(lambda: sampler.states()["probe"] == "ok", "the source to be up")


def test_nothing_runs_when_nobody_wants_it(sampler: Sampler, source: ProbeSource, inbox: Inbox) -> None:
    sampler.want(FAST, World())
    wait_until(lambda: inbox.samples(), "a reading")
    sampler.want(Demand(), World())
    wait_until(lambda: (sampler.check(), not sampler.states())[1], "everything to end")
    assert source.units[0].closed and sampler.newest.describe() == {} and sampler.health() == {}


def test_another_number_of_simulated_gpus_makes_another_source(log: BoundLog, inbox: Inbox) -> None:
    sampler = Sampler(log, inbox)
    for count in (2, 3, 1):
        demand = Demand(sources=("simulated",), default_interval=0.05, simulated_gpus=count)
        sampler.want(demand, World(simulated_gpus=count))
        wait_until(lambda count=count: (sampler.check(), len(sampler.newest.describe()) == count)[1], f"{count} GPUs")
    sampler.end()


# -- who uses a GPU


def test_of_a_gpu_that_does_not_answer_it_is_known_who_uses_it_but_not_how_much(
    sampler: Sampler, source: ProbeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "STALE_SECONDS", 0.05)
    probe = source.units[0]
    probe.processes = (GpuProcess(7, 1024.0, 30),)  # type: ignore[attr-defined]
    source.units.append(Probe("probe:1"))  # one without processes, as most units are
    sampler.want(FAST, World())
    wait_until(lambda: sampler.gpu_processes() == [GpuProcess(7, 1024.0, 30)], "who uses the GPU")
    probe.gate.clear()
    wait_until(lambda: sampler.gpu_processes() == [GpuProcess(7)], "numbers that are not known any more")

"""`--host` and `--store`: the runs and the hardware of other machines, and the runs of a fleet, for every command that
shows any."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainvitals.errors import TrainvitalsError
from trainvitals.safe_text import one_line
from trainvitals.settings import Settings
from trainvitals.settings.secrets import is_reference, read_secret
from trainvitals.stderr import print_below, print_line
from trainvitals.views.cli.arguments import Parser, UsageError
from trainvitals.views.data.run_search import MAX_COMPARED

if TYPE_CHECKING:
    from trainvitals.fleet.store_runs import StoreRuns
    from trainvitals.journal.contracts import Reader, Runs
    from trainvitals.lab.runs import MachineRuns
    from trainvitals.views.tui.own_sampling import OwnSampling

HELP = "machine to show: an SSH host or server URL; 'local' is this machine; may be repeated"
SAMPLING_SECONDS = 1.0


def add_hosts(parser: Parser) -> None:
    parser.add_argument("--host", metavar="MACHINE", action="append", default=[], help=HELP)
    parser.add_settings("store")


def find_store(arguments: argparse.Namespace, settings: Settings) -> StoreRuns | None:
    """The runs of a fleet, if a store is set and no machines are asked for instead."""
    if settings.store is None or arguments.host:
        return None
    return open_settings_store(settings)


def open_settings_store(settings: Settings) -> StoreRuns:
    """Of settings that name one."""
    assert settings.store is not None
    from trainvitals.fleet.store_runs import open_store

    return open_store(read_secret(settings.store) if is_reference(settings.store) else settings.store)


def find_machines(arguments: argparse.Namespace, settings: Settings, *, patient: bool = False) -> MachineRuns | None:
    """Those of the flags, else of the settings; None if that is only this machine, which needs nobody in between, or a
    store. `patient` is a command that prints something once."""
    named: Sequence[str] = arguments.host or (settings.hosts if settings.store is None else ())
    if not named or list(named) == ["local"]:
        return None
    from trainvitals.lab.places import parse_places
    from trainvitals.lab.runs import open_machines

    places = parse_places(named)
    hardware = HardwareHere()
    runs = open_machines(places, settings.remote_command, Path(settings.dir), hardware.read, patient=patient)
    runs.start()
    return runs


def is_elsewhere(arguments: argparse.Namespace, settings: Settings) -> bool:
    """Whether runs of other machines, or of a store, are asked for."""
    return bool(arguments.host) or settings.store is not None


def open_elsewhere(arguments: argparse.Namespace, settings: Settings) -> Runs:
    """The runs of these machines, once they have answered, or those of the store."""
    store = find_store(arguments, settings)
    if store is not None:
        return store
    machines = find_machines(arguments, settings, patient=True)
    if machines is None:  # `--host local`
        raise UsageError("--host local is the default")
    wait_for(machines)
    return machines


def wait_for(machines: MachineRuns) -> None:
    """For who prints something once: until each has answered or is known not to, which is said if it takes long."""
    from trainvitals.lab.machines import SLOW_SECONDS

    machines.wait(SLOW_SECONDS)
    late = [machine.name for machine in machines.machines if not machine.wait(0)]
    if late:
        print_line(f"waiting for {', '.join(late)} to answer")
        machines.wait()


def open_far_runs(
    references: Sequence[str], arguments: argparse.Namespace, settings: Settings
) -> list[tuple[str, Reader]]:
    """Runs from elsewhere, each under its key; raises RunNotFound, with the machines that cannot be asked."""
    runs = open_elsewhere(arguments, settings)
    return open_keys(runs, [runs.find(reference) for reference in references])


def open_keys(runs: Runs, keys: Sequence[str]) -> list[tuple[str, Reader]]:
    if len(keys) > MAX_COMPARED:
        raise UsageError(f"cannot compare more than {MAX_COMPARED} runs, got {len(keys)}")
    if len(set(keys)) < len(keys):
        raise UsageError("the same run is given twice")
    return [(key, runs.open(key)) for key in keys]


def print_trouble(runs: MachineRuns) -> None:
    """On standard error, of each machine that cannot be asked: why, and what to do."""
    from trainvitals.lab.runs import summarize_trouble

    for error in summarize_trouble(runs.states):
        print_line(one_line(error.message))
        if error.hint:
            print_below(error.hint)


class HardwareHere:
    """The hardware of this machine now: what the agent measured, or where none runs, what is measured here from the
    first question on."""

    def __init__(self, *, samples: bool = True) -> None:
        """Without `samples`, nothing is measured where no agent runs."""
        self._samples = samples
        self._own: OwnSampling | None = None
        self._lock = threading.Lock()

    def read(self) -> Mapping[str, Any]:
        with self._lock:
            return self._read()

    def _read(self) -> Mapping[str, Any]:
        from trainvitals.journal.documents.latest import read_agent, read_latest

        agent = latest = None
        try:
            agent = read_agent()
            latest = read_latest(agent) if agent is not None else None
        except TrainvitalsError:
            pass  # no runtime folder, so no agent
        about = agent.as_json() if agent is not None else None
        now = time.time()
        if latest is not None and latest.is_current(now, SAMPLING_SECONDS):
            self.end()
            samples = {unit: sample.as_json() for unit, sample in latest.samples.items()}
            reasons = {unit: health.reason for unit, health in latest.sources.items() if health.reason}
            age = max(latest.age(now), 0.0)
            return {"origin": "agent", "age": age, "agent": about, "samples": samples, "reasons": reasons}
        if not self._samples:
            return {"origin": "", "age": None, "agent": about}
        own = self._own = self._own or _make_sampling()
        found, missing = own.read(SAMPLING_SECONDS)
        samples = {unit: sample.as_json() for unit, sample in found.items()}
        return {"origin": "own sampling", "age": 0.0, "agent": about, "samples": samples, "reasons": missing}

    def end(self) -> None:
        if self._own is not None:
            self._own.end()
            self._own = None


def _make_sampling() -> OwnSampling:
    from trainvitals.sources import World
    from trainvitals.views.tui.options import TopOptions
    from trainvitals.views.tui.own_sampling import OwnSampling

    return OwnSampling(TopOptions(), World())

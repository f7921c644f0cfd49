"""The runs of several machines as one `contracts.Runs`: keys are `machine:key`. A run that two machines see, because
they share a file system, is one run."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from trainvitals.errors import MachineError, RunNotFound
from trainvitals.journal import folder as run_folder
from trainvitals.journal.alert_tallies import tally
from trainvitals.journal.contracts import AlertTally, Reader
from trainvitals.journal.documents.findings import FindingsFile
from trainvitals.journal.documents.rows import AlertRow
from trainvitals.journal.documents.status import Status
from trainvitals.journal.documents.view import ViewFile
from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.journal.row_cache import MakeRow, Row
from trainvitals.journal.run_info import RunInfo
from trainvitals.lab.channels import Channel, open_channel
from trainvitals.lab.far import FarSide, ReadHardware
from trainvitals.lab.machines import SOON, Entry, Machine, MachineState
from trainvitals.lab.places import Place, machine_of

FIRST_SECONDS = 30.0
"""For which a view waits for all machines to be known."""
PATIENT_SECONDS = 120.0
"""The same for a command that prints something once; a machine that does not answer at all is known sooner."""


class _Seen(NamedTuple):
    machine: Machine
    key: str


class MachineRuns:
    """Implements `contracts.Runs`. Everything but `open` and what a reader is asked comes from memory."""

    def __init__(self, machines: Sequence[Machine], first_seconds: float = FIRST_SECONDS) -> None:
        self.machines = tuple(machines)
        self._first_seconds = first_seconds
        self._seen: dict[str, tuple[_Seen, ...]] = {}

    @property
    def place(self) -> str:
        return ", ".join(machine.name for machine in self.machines)

    @property
    def states(self) -> list[MachineState]:
        """One per machine, in the order in which they were given."""
        return [machine.state for machine in self.machines]

    @property
    def answering(self) -> list[str]:
        """The names of those that can be asked now."""
        return [state.name for state in self.states if state.word == "up"]

    def start(self) -> None:
        for machine in self.machines:
            machine.start()

    def stop(self) -> None:
        for machine in self.machines:
            machine.stop()

    def wait(self, seconds: float | None = None) -> None:
        """Until each machine has answered or is known not to."""
        until = time.monotonic() + (self._first_seconds if seconds is None else seconds)
        for machine in self.machines:
            machine.wait(max(until - time.monotonic(), 0.0))

    def wait_for_hardware(self, seconds: float = FIRST_SECONDS) -> None:
        """Until the numbers are there of each machine that answers: those that are only measured because we ask take
        a moment."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and any(
            machine.state.word in ("up", "slow", "connecting") and machine.answers <= SOON for machine in self.machines
        ):
            time.sleep(0.05)

    def list_keys(self) -> list[str]:
        """Every run, oldest first."""
        by_identity: dict[tuple[str, str, str], list[_Seen]] = {}
        created: dict[tuple[str, str, str], str] = {}
        for machine in self.machines:
            before = ""
            for key, entry in machine.entries.items():
                before = max(entry.created, before)  # those of one machine stay in its order
                # Who has no id, or no time, is nobody else.
                alone = not entry.identity[0] or not entry.created
                identity = (machine.name, key, "") if alone else entry.identity
                by_identity.setdefault(identity, []).append(_Seen(machine, key))
                created.setdefault(identity, before)
        found = [by_identity[identity] for identity in sorted(by_identity, key=created.__getitem__)]
        self._seen = {f"{seen[0].machine.name}:{seen[0].key}": tuple(seen) for seen in found}
        return list(self._seen)

    def find(self, reference: str) -> str:
        """The key of a run by key, id, name, unique part of either, or `latest`, all of them also behind `machine:`;
        raises RunNotFound."""
        keys = self.list_keys()
        if reference in self._seen:
            return reference
        machine = machine_of(reference, (item.name for item in self.machines))
        text = reference
        if machine:
            text = reference.removeprefix(f"{machine}:")
            keys = [key for key in keys if any(seen.machine.name == machine for seen in self._seen[key])]
        answering = self.answering
        silent = [machine.name for machine in self.machines if machine.name not in answering]
        missing = f" ({', '.join(silent)} cannot be asked now)" if silent else ""
        ids = {key: self._seen[key][0].key for key in keys}
        shown = {key: key for key in keys}
        names = functools.partial(self._read_names, keys)
        return run_folder.choose(text, ids, names, f"{self.place}{missing}", shown=shown)

    def _read_names(self, keys: Sequence[str]) -> dict[str, str]:
        return {key: self.describe(key).name for key in keys}

    def describe(self, key: str) -> RunInfo:
        return self._entry(key).info()

    def statuses(self, key: str) -> list[Status]:
        return self._entry(key).statuses()

    def alerts(self, key: str) -> list[AlertRow]:
        return self._entry(key).alerts()

    def tally_alerts(self, rules: Collection[str], start: float, end: float) -> list[AlertTally]:
        return tally(self.list_keys(), self.alerts, rules, start, end)

    def findings(self, key: str) -> FindingsFile | None:
        return self._entry(key).findings()

    def has_values(self, key: str) -> bool:
        """Only where they are here already: a list waits for no machine."""
        return self._entry(key).summary() is not None

    def recall(self, key: str, make: MakeRow) -> Row:
        return self._entry(key).recall(make)

    def has_folder(self, project: str) -> bool:
        return False

    def find_view(self, project: str) -> ViewFile | None:
        """How a machine shows a project is its own."""
        return None

    def keep_rows(self) -> None:
        """They are kept as long as the machine says nothing else."""

    def open(self, key: str) -> Reader:
        seen = self._find(key)
        # On a file system that several share any of them can read it.
        chosen = next((item for item in seen if item.machine.state.word == "up"), seen[0])
        return chosen.machine.open(chosen.key)

    def _entry(self, key: str) -> Entry:
        for item in self._find(key):
            entry = item.machine.entries.get(item.key)
            if entry is not None:
                return entry
        raise RunNotFound(f"run {key} was removed")

    def _find(self, key: str) -> tuple[_Seen, ...]:
        if key not in self._seen:
            self.list_keys()
        if key not in self._seen:
            raise RunNotFound(f"no run '{key}'", hint="list them: trainvitals runs --host ...")
        return self._seen[key]


def open_machines(
    places: Sequence[Place], command: str, root: Path, read_hardware: ReadHardware, *, patient: bool = False
) -> MachineRuns:
    """`root` and `read_hardware` are of this machine, in case it is one of them; `patient` is who prints something once
    and waits for machines that are slow."""

    def connect(place: Place) -> Callable[[], Channel]:
        # Two far sides, as elsewhere: one remembers what was listed, one reads.
        return lambda: open_channel(place, command, FarSide(FolderRuns(root), read_hardware))

    machines = [Machine(place, connect(place), patient=patient) for place in places]
    return MachineRuns(machines, PATIENT_SECONDS if patient else FIRST_SECONDS)


def summarize_trouble(states: Sequence[MachineState]) -> list[MachineError]:
    """Of each machine that cannot be asked, why."""
    return [
        MachineError(f"{state.name} is {state.word}{f': {state.detail}' if state.detail else ''}", hint=state.hint)
        for state in states
        if state.word != "up"
    ]

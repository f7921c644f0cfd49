"""The result of a detector: a finding with its evidence and what to do, or which input is missing.
Tested in tests/analysis/test_diagnosis.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trainvitals.conditions import Severity
from trainvitals.journal.documents.cause import Cause
from trainvitals.journal.encoding import Real
from trainvitals.journal.identity import Participant
from trainvitals.prices import NO_PRICES, Prices

Floats = NDArray[np.float64]
INTERVALS = "step_interval"
"""A training curve, where step times are not logged, or not of every step: seconds of a step by the clock, averaged
since the line before."""
ORDER: tuple[Severity, ...] = ("critical", "warning", "info")


class Curve(NamedTuple):
    """Values over steps or seconds, ascending in x. NaN and infinity are values."""

    x: Floats
    y: Floats

    def finite(self) -> Curve:
        """Without what is NaN or infinite."""
        keep = np.isfinite(self.y)
        return self if keep.all() else Curve(self.x[keep], self.y[keep])


class RankPlace(NamedTuple):
    """Where a participant ran, as far as is known."""

    host: str = ""
    gpus: frozenset[str] = frozenset()
    """Titles of those that it computed on."""


class Finding(NamedTuple):
    """One thing that was found. `step` or `time` (seconds since 1970) is where it began, if known."""

    rule: str
    """One of the `findings` of a condition."""
    severity: Severity
    title: str
    evidence: tuple[str, ...]
    advice: str
    subject: str = ""
    """Which GPU, host or participant; empty for the whole run."""
    step: int | None = None
    time: float | None = None
    named_at: int | None = None
    """The step at which it was known, judged by what came before only; None where the whole run is judged at once."""
    until: int | None = None
    """The step at which it was over, if it is."""
    cause: str | None = None
    """The rule of the finding that explains it."""
    values: Mapping[str, Real] = {}
    """The numbers of the evidence, for programs."""
    about: tuple[str, ...] = ()
    """The titles of all that it is about, where `subject` is not just one: of many it names a few."""

    @property
    def headline(self) -> str:
        """The title, with where it is if that is not in it."""
        is_named = not self.subject or self.subject.lower() in self.title.lower()
        return self.title if is_named else f"{self.title} ({self.subject})"

    @property
    def titles(self) -> frozenset[str]:
        """Of the GPUs, hosts or participants that it is about; empty for the whole run."""
        return frozenset(self.about or ((self.subject,) if self.subject else ()))


class NotJudged(Exception):
    """A detector lacks an input; `needs` completes the sentence 'skipped: needs ...'."""

    def __init__(self, needs: str) -> None:
        super().__init__(needs)
        self.needs = needs


class Curves(Protocol):
    """Curves by the catalog's names; read when asked for."""

    def get(self, name: str) -> Curve | None:
        """None where it was never logged."""

    def names(self) -> Sequence[str]:
        """Everything there is, under its own name."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU, a host or the processes of a participant: its curves over seconds since 1970."""

    title: str
    curves: Mapping[str, Curve]
    simulated: bool = False
    model: str = ""
    """Of a GPU, as its driver names it."""
    index: str = ""
    """Of a GPU, the number under which its driver's tools know it."""
    host: str = ""
    """Of a GPU, where it is."""
    key: str = ""
    """Of a GPU, who it is on its host."""
    states: Sequence[tuple[float, str]] = ()
    """Of a GPU, what its driver says of it, and since when: `ok`, `lost`."""


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended, or that it hangs; of one that lives or ended well, the status."""

    status: str
    cause: Cause = field(default_factory=Cause)
    traceback: str = ""
    """Of the exception behind it."""
    printed: str = ""
    """The last lines that the program printed."""
    stall: Cause | None = None
    """Why it had stopped stepping before it ended, if it had hung."""
    stacks: Mapping[Participant, Sequence[str]] = field(default_factory=dict)
    """Where each participant was then: frames of its main thread, innermost first."""
    raised: frozenset[Participant] = frozenset()
    """Those that ended with an exception of their own."""
    flight_records: Sequence[str] = ()
    """What PyTorch's flight recorder kept of the last collectives, or where it is."""
    oom_kills: int = 0
    """How often the kernel killed a process of the run, but not the training itself, for memory."""
    stopped_by: str = ""
    """Who sent it SIGTERM, if that is known."""
    job: str = ""
    """The job of a scheduler it ran in: `Slurm job 7`."""
    host: str = ""
    """Where it happened, if the run has several hosts."""
    step: int | None = None
    """The last that was logged."""
    time: float | None = None
    """Seconds since 1970."""
    seconds: float | None = None
    """After the start of the attempt."""
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class Measurements:
    """Everything a diagnosis looks at, of one run."""

    training: Curves
    """Of the lowest participant, over steps."""
    rank_steps: Mapping[Participant, Curve] = field(default_factory=dict)
    """`batch_time` of every participant, or what is closest to its own work in it, over steps."""
    gpus: Sequence[Device] = ()
    hosts: Sequence[Device] = ()
    processes: Sequence[Device] = ()
    is_live: bool = False
    ending: RunEnding | None = None
    prices: Prices = NO_PRICES
    rank_weights: Mapping[str, Mapping[Participant, Curve]] = field(default_factory=dict)
    """Norms of the weights of some layers, by layer and participant."""
    moments: Mapping[str, Floats] = field(default_factory=dict)
    """Steps at which something was done besides training: checkpoints, evaluations, by what it was."""
    resumes: Sequence[int] = ()
    """The first steps of the attempts after the first, where they went on from a step that was there."""
    from_step: int | None = None
    """The first step that is looked at, of a run too long for all; else None."""
    rank_phases: Mapping[Participant, Mapping[str, float]] = field(default_factory=dict)
    """Of those whose own work is known by its phases, the median seconds of each."""
    places: Mapping[str, RankPlace] = field(default_factory=dict)
    """Where each participant ran, by its title."""

    def need(self, name: str, points: int = 1) -> Curve:
        """A training curve with at least that many finite values; raises NotJudged."""
        found = self.training.get(name)
        if found is None:
            raise NotJudged(f"'{name}' (not logged)")
        count = int(np.isfinite(found.y).sum())
        if count < points:
            raise NotJudged(f"{points} values of '{name}' (found {count})")
        return found

    def find_resume(self, after: float, until: float) -> int | None:
        """The last step behind `after`, and not behind `until`, at which the run was resumed."""
        return next((step for step in reversed(self.resumes) if after < step <= until), None)

    def with_curve(self, devices: Sequence[Device], name: str, of: str, points: int = 30) -> Iterator[Device]:
        """The devices that have `name` with at least that many finite values; raises NotJudged if none has."""
        found = [d for d in devices if name in d.curves and int(np.isfinite(d.curves[name].y).sum()) >= points]
        if not devices:
            raise NotJudged(f"{of} samples (none found)")
        if not found:
            have = max((len(d.curves[name].y) for d in devices if name in d.curves), default=0)
            raise NotJudged(
                f"{points} {of} samples of '{name}' (found {have})" if have else f"{of} samples of '{name}'"
            )
        return iter(found)

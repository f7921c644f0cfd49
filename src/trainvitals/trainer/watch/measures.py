"""What is looked at around an optimizer step besides its time: when each look is due, and what it found."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trainvitals.conditions import Conditions
from trainvitals.handlers import is_from_handler
from trainvitals.journal.encoding import format_time
from trainvitals.journal.histograms import append_rows
from trainvitals.journal.identity import Participant
from trainvitals.leaks import LEAST_STEPS, LeakJudge
from trainvitals.trainer.watch import histograms, memory
from trainvitals.trainer.watch.activations import ActivationSample
from trainvitals.trainer.watch.budget import Budget
from trainvitals.trainer.watch.device import Arrival
from trainvitals.trainer.watch.gradients import LayerSample, Unseen, norms, plain, total_norm
from trainvitals.trainer.watch.health import LayerHealth
from trainvitals.trainer.watch.layers import LayerPlan
from trainvitals.trainer.watch.losses import LossSum
from trainvitals.trainer.watch.options import Options

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

Tell = Callable[[str, str], None]
"""(topic, text): said once per topic, as an event of the run."""


class Watched(Protocol):
    """Whose layers and modules are looked at."""

    @property
    def models(self) -> list[Any]: ...


class Part(Protocol):
    """Numbers of one step that may still be on their way."""

    def ready(self) -> bool: ...
    def numbers(self) -> dict[str, float]: ...


class Scalars(NamedTuple):
    """Single values, as numbers or tensors: norms of several optimizers are one norm, losses of several backwards one
    loss."""

    norm_name: str
    norms: Sequence[Any]
    losses: Mapping[str, LossSum]

    def tensors(self) -> list[Any]:
        return [*self.norms, *(value for loss in self.losses.values() for value in loss.losses)]

    def add_to(self, values: dict[str, float]) -> Sequence[Part]:
        """What is in host memory is added to `values`; else a part is returned that has them when they have come."""
        tensors = self.tensors()
        if not all(isinstance(tensor, float) or tensor.is_cpu for tensor in tensors):
            return [ArrivingScalars(self)]
        values |= self.named(map(float, tensors))
        return ()

    def named(self, numbers: Iterable[float]) -> dict[str, float]:
        """`numbers` in the order of the tensors."""
        taken = iter(numbers)
        norms = list(islice(taken, len(self.norms)))
        found = {}
        if norms:
            found[self.norm_name] = norms[0] if len(norms) == 1 else math.sqrt(sum(norm * norm for norm in norms))
        for name, loss in self.losses.items():
            found[name] = sum(islice(taken, len(loss.losses))) * loss.factor
        return found


class ArrivingScalars:
    """Single values that are on a device, sent to the host at once: a later change of them does not count."""

    def __init__(self, scalars: Scalars) -> None:
        import torch

        tensors = [torch.as_tensor(scalar) for scalar in scalars.tensors()]
        device = next(tensor.device for tensor in tensors if not tensor.is_cpu)
        flat = [tensor.reshape(()).to(device, torch.float32, non_blocking=True) for tensor in tensors]
        self._scalars = scalars
        self._arrival = Arrival(torch.stack(flat))

    def ready(self) -> bool:
        return self._arrival.ready()

    def numbers(self) -> dict[str, float]:
        return self._scalars.named(self._arrival.values())


class Layers:
    """A look at every layer, judged when it has come."""

    def __init__(self, sample: LayerSample, judge: Callable[[dict[str, Any]], None]) -> None:
        self._sample = sample
        self._judge = judge

    def ready(self) -> bool:
        return self._sample.ready()

    def numbers(self) -> dict[str, float]:
        layers = self._sample.numbers()
        self._judge(layers)
        found: dict[str, float] = {}
        for name, layer in layers.items():
            for key in ("gradient_norm", "gradient_max", "weight_norm", "update_ratio"):
                value = getattr(layer, key)
                if value is not None:
                    found[f"{key}/{name}"] = value
            if layer.nan:
                found[f"gradient_nan/{name}"] = layer.nan
            if layer.infinite:
                found[f"gradient_inf/{name}"] = layer.infinite
        return found


class Collected(NamedTuple):
    """What was measured in one iteration, some of it still on its way."""

    values: dict[str, float]
    parts: Sequence[Part]
    norms: Sequence[Any]
    sharded: bool
    """A rank that holds only its shard of the gradients knows only its share of the norm."""

    def joined(self, later: Collected) -> Collected:
        return Collected(
            self.values | later.values,
            [*self.parts, *later.parts],
            [*self.norms, *later.norms],
            self.sharded or later.sharded,
        )

    def scalars(self, losses: Mapping[str, LossSum]) -> Scalars:
        return Scalars("gradient_norm_shard" if self.sharded else "gradient_norm", self.norms, losses)

    @property
    def seconds(self) -> float:
        """What the looks took."""
        return sum(value for name, value in self.values.items() if name.startswith("watch_time/"))


class Histograms:
    """Histograms go into a file of their own."""

    def __init__(self, sample: histograms.HistogramSample, folder: Path, participant: Participant, step: int) -> None:
        self._sample = sample
        self._place = (folder, participant)
        self._when = (format_time(), step)

    def ready(self) -> bool:
        return self._sample.ready()

    def numbers(self) -> dict[str, float]:
        append_rows(*self._place, self._sample.rows(*self._when))
        return {}


class Measures:
    """The looks of one training. `watch` calls it at fixed moments of every step."""

    def __init__(
        self, options: Options, conditions: Conditions, budget: Budget, tell: Tell, report: Callable[[Any], None]
    ) -> None:
        """`report` gets every finding about a layer's health."""
        import torch

        self.options = options
        self._no_grad = torch.no_grad
        self.costs: dict[str, float] = {}
        """Seconds each look took in this step."""
        self._tell = tell
        self._report = report
        self._budget = budget
        self._asked, self._allowed = -1, False
        """The step for which the budget was asked, and what it said."""
        self._conditions = conditions
        self._health = LayerHealth(conditions)
        self._growth = {
            "memory_allocated_mb": LeakJudge(conditions.thresholds["gpu_leak_percent"] / 100, LEAST_STEPS),
            "host_memory_mb": LeakJudge(conditions.thresholds["host_leak_percent"] / 100, LEAST_STEPS),
        }
        self.step = 0
        """Steps that were made."""
        # The step at which each is due; the first step is not typical, so what costs more waits for the second.
        self._next: dict[str, float] = {
            "gradients": 0,
            "layers": 1,
            "histograms": 1,
            "activations": 1,
            "memory": 0,
        }
        self._next |= {name: math.inf for name in self._next if not getattr(options, f"{name}_every")}
        self._norms: list[Any] = []
        self._clipped: list[Any] = []
        self._sharded = False
        self._layers: list[LayerSample] = []
        self._open_layers: LayerSample | None = None
        self._histograms: list[histograms.HistogramSample] = []
        self._plan = LayerPlan(options.track_layers, options.max_layers)
        self._lengths: dict[int, Any] = {}
        self._activations: ActivationSample | None = None
        self._memory: dict[str, float] = {}

    # -- moments of a step

    def norm_is_known(self, norm: Any) -> None:
        """The training computed the norm itself, before clipping: nothing to measure."""
        self._clipped.append(norm)

    def use_known_norms(self) -> bool:
        """Those that the training computed since the last update; whether there were any."""
        known, self._clipped = self._clipped, []
        self.take_norms(known)
        return bool(known)

    def take_norms(self, known: Sequence[Any]) -> None:
        self._norms += [plain(norm.detach()) for norm in known]
        self._sharded = self._are_shards(known)

    def before_optimizer(self, optimizer: Any, watched: Watched) -> None:
        if not self.use_known_norms() and (self._norms or self._is_due("gradients")):
            # A second optimizer of a step that is looked at belongs to the same norm.
            self._look("gradients", lambda: self._read_norm(optimizer, watched.models))
        self._drop_open_layers()
        if self._layers or self._is_due("layers"):
            self._look("layers", lambda: self._begin_layers(optimizer, watched.models))
        self._lengths = {}
        if self._histograms or self._is_due("histograms"):
            self._look("histograms", lambda: self._read_histograms(optimizer, watched.models))

    def after_optimizer(self, device: Any) -> None:
        if self._open_layers is not None:
            self._look("layers", self._open_layers.end)
            self._open_layers = None
        if self._activations is not None and not self._activations.collected:
            self._look("activations", self._activations.collect)
            self._pay("activations", self._activations.seconds)
        if not self._memory and self._is_due("memory"):
            self._look("memory", lambda: self._read_memory(device))

    def before_forward(self, watched: Watched) -> None:
        if self.options.activations and self._activations is None and self._is_due("activations"):
            self._look("activations", lambda: self._place_activations(watched.models))

    def after_forward(self) -> None:
        if self._activations is not None:
            self._activations.remove()

    def collect(self, run: Run, number: int) -> Collected:
        """The step is over: what is known of it, and what will be."""
        self.step += 1
        self._clipped = []
        if not self.costs and not self._norms:
            return Collected({}, (), (), sharded=False)
        parts: list[Part] = []
        self._drop_open_layers()
        for sample in self._layers:
            for text in sorted(sample.unseen):
                self._tell("layers", f"not measured: {text}")
            parts.append(Layers(sample, self._judge))
        if self._activations is not None:
            self._activations.remove()
            for text in sorted(self._activations.unseen):
                self._tell("activations", f"not measured: {text}")
            parts.append(self._activations)
        parts += [Histograms(sample, run.folder, run.participant, number) for sample in self._histograms]
        values = self._memory
        if values:
            for name, growth in self._growth.items():
                if name in values:
                    self._judge_growth(name, growth, number)
        for name, seconds in self.costs.items():
            values[f"watch_time/{name}"] = round(seconds, 7)
        norms, self._norms, self._memory, self.costs = self._norms, [], {}, {}
        self._activations = self._open_layers = None
        self._layers, self._histograms = [], []
        return Collected(values, parts, norms, self._sharded)

    def collect_known(self, values: dict[str, float], norms: Sequence[Any]) -> Collected:
        """Of a step in which nothing was looked at: what the training computed itself."""
        sharded = self._are_shards(norms)
        return Collected(values, (), [plain(norm.detach()) for norm in norms], sharded)

    def _are_shards(self, norms: Sequence[Any]) -> bool:
        """Of shards of the gradients; those that clipping with FSDP computes are of all of them, on every rank."""
        placed = [norm.placements for norm in norms if hasattr(norm, "placements")]
        if not placed:
            return self._sharded
        return not all(placement.is_replicate() for placements in placed for placement in placements)

    def update_is_skipped(self) -> None:
        """GradScaler threw the gradients away: they were scaled too high, and their norm says nothing."""
        self._clipped = []

    def drop(self) -> None:
        """Take everything off the model."""
        if self._activations is not None:
            self._activations.remove()

    # -- when

    def _is_due(self, name: str) -> bool:
        if self.step < self._next[name]:
            return False
        # Once for the whole step: else the first look of each would take what is there, and the others never came.
        if self._asked != self.step:
            self._asked, self._allowed = self.step, self._budget.allows()
        return self._allowed

    def _look(self, name: str, look: Callable[[], None]) -> None:
        if self._next[name] <= self.step:
            self._next[name] = self.step + getattr(self.options, f"{name}_every")
        began = time.perf_counter()
        try:
            with self._no_grad():
                look()
        except Exception as error:
            if is_from_handler(error):
                raise
            # The boundary around the user's loop: a look that fails is the last.
            self._next[name] = math.inf
            self._tell(name, f"{name} are not measured any more: {error!r:.300}")
        self._pay(name, time.perf_counter() - began)

    def _pay(self, name: str, seconds: float) -> None:
        self._budget.spend(seconds)
        self.costs[name] = self.costs.get(name, 0.0) + seconds

    # -- the looks

    def _read_norm(self, optimizer: Any, models: Iterable[Any]) -> None:
        # FSDP1 shards plain tensors, so only its wrapper tells.
        self._sharded |= any(type(model).__name__ == "FullyShardedDataParallel" for model in models)
        owners, gradients = [], []
        for parameters in optimizer.param_groups:
            for parameter in parameters["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                try:
                    local = plain(gradient)
                except Unseen as reason:
                    self._tell("gradients", f"left out of gradient_norm: {reason}")
                    continue
                owners.append(id(parameter))
                gradients.append(local)
                self._sharded |= local is not gradient and hasattr(gradient, "to_local")
        if not gradients:
            return
        each = norms(gradients)
        self._lengths = dict(zip(owners, each, strict=True))
        norm = total_norm(each)
        scale = getattr(optimizer, "grad_scale", None)
        if scale is not None:  # GradScaler leaves unscaling to this optimizer's own kernel
            norm = norm / scale.to(norm.device, non_blocking=True)
        self._norms.append(norm)

    def _begin_layers(self, optimizer: Any, models: Sequence[Any]) -> None:
        layers = self._plan.layers(optimizer, models)
        if layers:
            sample = LayerSample(layers)
            sample.begin(self._lengths)
            self._open_layers = sample
            self._layers.append(sample)
        elif models and not self.options.track_layers:  # a number outside of every module: the look is another's
            self._next["layers"] = self.step
        elif not self._layers:
            wanted = ", ".join(self.options.track_layers)
            self._tell("layers", f"no layers to look at{f' match {wanted}' if wanted else ': no model is known'}")

    def _drop_open_layers(self) -> None:
        if self._open_layers is not None:  # the optimizer raised: there is no after to compare with
            self._layers.remove(self._open_layers)
            self._open_layers = None

    def _read_histograms(self, optimizer: Any, models: Sequence[Any]) -> None:
        self._histograms.append(histograms.HistogramSample(self._plan.layers(optimizer, models)))

    def _place_activations(self, models: Iterable[Any]) -> None:
        # A model that is a single layer has no name for it but its own.
        modules = [
            (name or ("" if any(True for _ in model.children()) else type(model).__name__), module)
            for model in models
            for name, module in model.named_modules()
        ]
        sample = ActivationSample(modules, self.options.activations)
        if not sample.found:
            self._tell("activations", f"no module matches {', '.join(self.options.activations)}")
            self._next["activations"] = math.inf
            return
        sample.place()
        self._activations = sample

    def _read_memory(self, device: Any) -> None:
        self._memory = {**memory.read_allocator(device), **memory.read_host()}

    def _judge(self, layers: dict[str, Any]) -> None:
        for finding in self._health.judge(layers):
            self._report(finding)

    def _judge_growth(self, name: str, growth: LeakJudge, number: int) -> None:
        growth.add(number, self._memory[name])
        if growth.lasting is None:
            return
        is_host = name == "host_memory_mb"
        advice = self._conditions["host_memory_leak" if is_host else "gpu_memory_leak"].advice
        where = "host memory" if is_host else "device memory"
        self._tell(f"growth {name}", f"{where} grows by {growth.rate:.3g} MB per step. {advice}")

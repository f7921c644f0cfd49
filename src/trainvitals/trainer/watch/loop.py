"""A training loop, watched: what is watched, what is looked at in each iteration, and one line per iteration.

`Moments` follows the loop; this is its observer. Lines are written when an iteration is over and 100 ms have passed
since the last time, so short ones are handled many at once, which is several times cheaper than one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trainvitals.conditions import Conditions
from trainvitals.trainer.watch import device, flops, memory, taps
from trainvitals.trainer.watch.batches import Batches
from trainvitals.trainer.watch.budget import Budget
from trainvitals.trainer.watch.clock import PHASES, StepClock, StepMarks
from trainvitals.trainer.watch.iteration import Iteration, Timing
from trainvitals.trainer.watch.light_steps import LightStep
from trainvitals.trainer.watch.losses import Backward, LossNames, LossSum
from trainvitals.trainer.watch.measures import Measures, Part
from trainvitals.trainer.watch.moments import Moments
from trainvitals.trainer.watch.options import Options
from trainvitals.trainer.watch.stalls import StallWriter
from trainvitals.trainer.watch.step_writer import FinishedStep, StepLines, wall_offset
from trainvitals.trainer.watch.subjects import Subjects

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

FLOPS_STEP = 2
"""The step whose forward is counted: the first ones may still compile or allocate."""
FIRST_STEPS = 100
"""Steps whose phases are measured whatever that takes: a short training has them all."""
WITHOUT_BACKWARD = 3
"""Updates in a row without a backward after which it is said that there is none to see."""
WRITE_EVERY = 100_000_000
"""Nanoseconds between two times that finished steps are written. A step longer than that is written as it ends."""


class Watch:
    """Made by `Run.watch`. Ends with the run, or with `remove()`."""

    def __init__(self, run: Run, options: Options, moments: Moments | None = None) -> None:
        """`moments` that have been followed already, in a program that did not ask for it."""
        self.options = options
        self.automatic = False
        """Started by `trainvitals run`, so an explicit `watch()` takes its place."""
        self.steps = 0
        """Steps seen to their end."""
        self._run = run
        self._warned: set[str] = set()
        conditions = Conditions(run.settings.alerts_thresholds)
        self._budget = Budget(options.budget_percent)
        self._is_chosen = False
        """The step under way has its phases because there was time for them; else they cost what they cost."""
        self._measures = Measures(options, conditions, self._budget, self._tell, self._report)
        self._device: Any = None
        self._elsewhere = False
        self._timer: device.DeviceTimer | None = None
        self._lines = StepLines(run, self._tell)
        self._lines.flops = options.flops_per_step
        self._lines.peak = options.peak_flops
        self._counter: Any = None
        self._counting = False
        self._losses = LossNames()
        self._light: list[LightStep] = []
        self._stalls = StallWriter(self)
        self._last = run.step
        self._seen = run.step
        self._written = 0
        self._named: int | None = None
        self._named_epoch: float | None = None
        self._learning_rate: Any = None
        self._has_source = False
        self._without_backward = 0
        self.moments = moments or Moments(self)
        self.moments.observer = self
        self._subjects = Subjects(self.moments, self._tell)
        self.is_for_training = self._subjects.is_for_training
        if moments is None:
            for refused in taps.listen(self.moments):
                self._tell(refused, f"not seen by the phases: {refused}")

    @property
    def alive(self) -> bool:
        """False after `remove()`, after the run ended, or after something of ours failed."""
        return self.moments.alive

    @property
    def clock(self) -> StepClock:
        return self.moments.clock

    @property
    def reports(self) -> bool:
        return self.options.report

    @property
    def models(self) -> list[Any]:
        """The models that are watched and still alive."""
        return self._subjects.models

    def add(self, models: Iterable[Any], optimizers: Iterable[Any], loader: Any) -> None:
        """Watch these too. Whatever is already watched stays as it is."""
        self._subjects.add(models, optimizers, loader)
        self._find_device()

    def discover(self, *, optimizers: bool, models: bool) -> None:
        """Watch every optimizer of this process, and the models they train, found as each makes its first step."""
        self._subjects.discover(optimizers=optimizers, models=models)

    def _find_device(self, optimizer: Any = None) -> None:
        """Where the model is now; it may have been moved."""
        found = self._subjects.find_device(optimizer)
        if found is None or found == self._device:
            return
        self._device = found
        self._elsewhere = found.type != "cpu"
        self._timer = device.find_timer(found)
        self.clock.time_device(None if self._timer is None else self._timer.mark)
        if self._lines.peak is None:
            self._lines.peak = flops.peak_flops(flops.read_device_name(found))

    # -- for loops and callbacks that mark their phases themselves

    def name_step(self, number: int, epoch: float | None = None) -> None:
        """The framework's own number of the step under way, and its epoch: a resumed training goes back."""
        self._named = number
        if epoch is not None:
            self._named_epoch = epoch

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """`with watch.phase("transfer"):` around a part of the loop that no hook can see."""
        if name not in PHASES:
            self._tell("phase", f"phase '{name}' is not one of {', '.join(PHASES)}: counted as other")
            name = "other"
        self._has_source |= name in ("data", "transfer")
        self.clock.enter(PHASES.index(name))
        try:
            yield
        finally:
            self.clock.leave()

    def batches(self, loader: Iterable[Any]) -> Batches:
        """`for batch in watch.batches(generator):` times any source of batches."""
        return Batches(self.moments, loader)

    def end_step(self) -> None:
        """End the step here: for loops whose steps have no torch optimizer."""
        self.moments.end_step()

    def pause(self) -> None:
        """The loop has ended or was interrupted, and may go on later, as in a notebook: write what there is. A step
        that was not finished is dropped, and the time until it goes on belongs to no step."""
        self.moments.pause()

    # -- the observer of `Moments`

    def is_elsewhere(self) -> bool:
        """The model is on another device than a CPU."""
        return self._elsewhere

    def before_forward(self) -> None:
        self._measures.before_forward(self._subjects)
        if self.options.count_flops and self._lines.flops is None and self.steps == FLOPS_STEP:
            self._counter = self._counter or flops.make_counter()
            self._counting = True
            self._counter.__enter__()

    def after_forward(self) -> None:
        self._stop_counting()
        self._measures.after_forward()

    def before_optimizer(self, optimizer: Any) -> None:
        if not self._losses.knows(optimizer):
            with self.clock.left_out():
                self._subjects.meet(optimizer)
                self._find_device(optimizer)
                self._losses.name(optimizer, self._subjects.name_trained(optimizer))
        self._measures.before_optimizer(optimizer, self._subjects)

    def after_optimizer(self, optimizer: Any, *, skipped: bool) -> None:
        if skipped:
            self._measures.update_is_skipped()
        else:
            self._measures.after_optimizer(self._device)
        if self.options.report and len(self.moments.iterations.current.updated) == 1:
            self._learning_rate = optimizer.param_groups[0].get("lr")

    def norm_is_known(self, norm: Any) -> None:
        self._measures.norm_is_known(norm)

    def wants_phases(self) -> bool:
        """The step that begins now is to be measured in full: our measurements have not had their share of the time."""
        if self.steps < FIRST_STEPS:
            return True
        self._is_chosen = self._budget.allows()
        return self._is_chosen

    def measure(self, iteration: Iteration) -> None:
        """An iteration ends, for all that is known yet."""
        iteration.number = self._choose_number()
        if not iteration.updated:
            self._measures.use_known_norms()
        measured = self._measures.collect(self._run, iteration.number)
        iteration.measured = measured if iteration.measured is None else iteration.measured.joined(measured)

    def _choose_number(self) -> int:
        """The framework's own, or that of the user's lines of this iteration, else one more than the last."""
        if self._named is not None:
            return self._named
        logged = self._run.step
        return logged if logged != self._seen and logged > self._last else self._last + 1

    def write(self, iteration: Iteration) -> None:
        """It is over: its line follows when all its numbers have come."""
        if iteration.number is None or iteration.measured is None:
            self.measure(iteration)
        assert iteration.number is not None and iteration.measured is not None and iteration.marks is not None
        measured = iteration.measured
        if iteration.clip_norm is not None:
            measured.values["gradient_clip_norm"] = iteration.clip_norm
        self._has_source |= iteration.batches > 0
        if self._counter is not None:
            self._close_counter()
        # Without a loader, several optimizers' forwards are not micro-batches.
        together = self.moments.iterations.several and not iteration.batches
        with self._stalls.lock:
            self._read_light()
            if iteration.timing is not Timing.NOTHING:
                self._budget.earn(iteration.marks.whole())
            if self._is_chosen:
                self._is_chosen = False
                self._budget.spend(max(iteration.cost / 1e9 - measured.seconds, 0.0))
            losses = self._add_up(iteration.losses or {0: iteration.backwards}, together=together)
            self._add_line(
                iteration.number,
                iteration.timing,
                iteration.marks,
                measured.values,
                [*measured.scalars(losses).add_to(measured.values), *measured.parts],
                iteration.sizes,
                iteration.cost,
                self._learning_rate,
                self.moments.epoch,
                with_backward=iteration.trained,
                with_update=bool(iteration.updated),
            )
        self._judge_backward(iteration)
        self._count_step(iteration.number)
        if iteration.marks.host_end - self._written > WRITE_EVERY:
            self._find_device()
        self._write_if_due(iteration.marks)

    def end_light(
        self,
        marks: StepMarks,
        epoch: int | None,
        learning_rate: Any,
        loss: float | None,
        backwards: Sequence[Backward],
        norms: Sequence[Any],
        cost: int,
    ) -> bool:
        """A step without phases is over. Whether the one that begins now is to be measured in full, which is asked as
        often as steps are written. On a CPU its numbers stay as they are and are read then, with many others; a device
        may compute the next ones in the same place."""
        number = self._last + 1
        seen = self._run.advance_from(self._seen, number)
        if seen is None or self._named is not None:
            number, self._named = self._choose_number(), None
            seen = self._run.advance(number)
        self._last, self._seen = number, seen
        self.steps += 1
        # What the class itself would call is a function of Python's.
        self._light.append(
            tuple.__new__(LightStep, (number, marks, epoch, learning_rate, loss, backwards, norms, cost))
        )
        if self._elsewhere:
            with self._stalls.lock:
                self._read_light()
        elif marks.host_end - self._written <= WRITE_EVERY and self._stalls.is_started:
            return False
        self._write_if_due(marks)
        self._is_chosen = self._budget.allows()
        return self._is_chosen

    def go_on(self, learning_rate: Any, norms: Sequence[Any]) -> None:
        """A step that began without phases has made its update and is followed in full from here on."""
        self._learning_rate = learning_rate
        self._measures.take_norms(norms)

    def _read_light(self) -> None:
        # The loop may add a step meanwhile, without the lock: the list stays the same one.
        steps = self._light[:]
        del self._light[: len(steps)]
        if not steps:
            return
        self._measures.step += len(steps)
        times = [step.marks.whole() for step in steps]
        self._budget.earn(*times)
        key, offset = self.moments.light.key, wall_offset()
        is_plain = self._is_plain(key)
        for step, seconds in zip(steps, times, strict=True):
            if is_plain and step.loss is not None and not step.norms:
                values = {"loss": step.loss, "batch_time": seconds}
                self._add_state(values, step.learning_rate, step.epoch)
                self._lines.add_whole(step.number, values, step.marks.host_end + offset, step.cost)
                continue
            backwards = step.backwards if step.loss is None else [Backward(step.loss, 1, None)]
            losses = self._add_up({key: backwards})
            values = {}
            parts = self._measures.collect_known(values, step.norms).scalars(losses).add_to(values)
            self._add_line(
                step.number, Timing.WHOLE, step.marks, values, parts, (), step.cost, step.learning_rate, step.epoch
            )
            is_plain = self._is_plain(key)

    def _is_plain(self, optimizer: int) -> bool:
        """The line of a step without phases has nothing that is to be added up, and no device's clock to wait for."""
        return self._timer is None and self.options.report and self._losses.is_plain(optimizer)

    def _add_up(self, losses: Mapping[int, Sequence[Backward]], *, together: bool = False) -> dict[str, LossSum]:
        if not self.options.report:
            return {}
        found = self._losses.add_up(losses, together=together)
        self.moments.accumulates = self._losses.accumulates
        return found

    def _add_line(
        self,
        number: int,
        timing: Timing,
        marks: StepMarks,
        values: dict[str, float],
        parts: Sequence[Part],
        shapes: Sequence[tuple[Any, Any]],
        cost: int,
        learning_rate: Any,
        epoch: float | None,
        *,
        with_backward: bool = True,
        with_update: bool = True,
    ) -> None:
        if self.options.report:
            self._add_state(values, learning_rate, epoch)
        timer = self._timer if self._timer is not None and self._timer.is_complete(marks) else None
        source = self._has_source
        self._lines.add(
            FinishedStep(number, timing, marks, timer, values, parts, shapes, cost, source, with_backward, with_update)
        )

    def _add_state(self, values: dict[str, float], learning_rate: Any, epoch: float | None) -> None:
        if isinstance(learning_rate, (int, float)):
            values["learning_rate"] = float(learning_rate)
        epoch = epoch if self._named_epoch is None else self._named_epoch
        if epoch is not None:
            values["epoch"] = epoch

    def _judge_backward(self, iteration: Iteration) -> None:
        self._without_backward = self._without_backward + 1 if iteration.updated and not iteration.trained else 0
        if self._without_backward == WITHOUT_BACKWARD and self.options.report:
            self._tell(
                "backward",
                "the optimizer steps, but no backward is seen (torch.func, or gradients set by hand): loss and "
                'backward_time are missing. Log the loss: run = trainvitals.init(), then run.log({"loss": loss})',
            )

    def _count_step(self, number: int) -> None:
        self._named = None
        self._last = number
        self.steps += 1
        if self.steps == FIRST_STEPS:
            self._budget.settle()
        self._seen = self._run.advance(number)

    def _write_if_due(self, marks: StepMarks) -> None:
        if marks.host_end - self._written > WRITE_EVERY:
            self._written = marks.host_end
            self._write_out()
        else:
            self._stalls.start()

    def _write_out(self) -> None:
        """Write what has come; nothing is waited for."""
        with self._stalls.lock:
            self._read_light()
            self._lines.write_ready()

    def write_stalled(self) -> None:
        """No step has followed for a while."""
        try:
            self._write_out()
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program, in a thread of ours too
            self._tell("stalled", f"the last steps could not be written while nothing followed: {error!r:.300}")

    def forget_unwritten(self) -> None:
        """This process was forked: its parent writes them."""
        self._light.clear()
        self._lines.forget()

    def moment_failed(self, where: str, error: Exception) -> None:
        # The hooks stay where they are until the end: torch goes through its list of them at this very moment.
        self._tell("failed", f"the training is not watched any more, {where} failed: {error!r:.300}")

    def interrupted(self) -> None:
        """The loop has ended or was interrupted."""
        self._stop_counting()
        self._measures.drop()
        self._write_out()

    def save_memory_summary(self, error: BaseException) -> None:
        """If memory ran out on the device, keep the allocator's state in `reports/`."""
        if type(error).__name__ != "OutOfMemoryError" or "oom" in self._warned:
            return
        self._warned.add("oom")
        path = memory.save_summary(
            self._run.folder, f"{self._run.participant.file_part}.step{self._last + 1}", error, self._device
        )
        if path is not None:
            self._run.event("out_of_memory", f"allocator state saved: reports/{path.name}", severity="critical")

    def _stop_counting(self) -> None:
        if self._counting:
            self._counting = False
            self._counter.__exit__(None, None, None)

    def _close_counter(self) -> None:
        self._lines.flops = float(self._counter.flops * flops.BACKWARD_FACTOR) or None
        self._counter = None
        if self._lines.flops is None:
            self._tell("flops", "no operation that the FLOP counter knows: give flops_per_step=")

    # -- the end of watching

    def remove(self) -> None:
        """Take every hook off the optimizers and torch. What was measured is kept."""
        self.moments.alive = False
        self.moments.light.end()
        taps.stop(self.moments)
        self._subjects.release()
        self._measures.drop()

    def close(self, exception: BaseException | None = None) -> None:
        """The run ends: write the last step, and what arrives from the device within a few seconds."""
        try:
            if exception is not None:
                self.save_memory_summary(exception)
            if self.alive:
                self.moments.finish()
            with self._stalls.lock:
                self._read_light()
                self._lines.finish()
        except Exception as error:  # noqa: BLE001 - the boundary around the user's program, at its end
            self._tell("close", f"the last steps could not be written: {error!r:.300}")
        self.remove()

    # -- telling

    def _tell(self, topic: str, text: str) -> None:
        """Once per topic, as an event of the run."""
        if topic not in self._warned:
            self._warned.add(topic)
            self._run.event("watch", text, severity="warning")

    def _report(self, finding: Any) -> None:
        self._run.event(finding.event, finding.message, severity=finding.severity, layer=finding.layer)

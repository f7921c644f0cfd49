"""Every detector, run over the measurements of one run. Adding one is a function, a row here and the name of its
finding in a row of the catalogue of conditions, from which it takes its thresholds and its advice."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from trainvitals.analysis import (
    endings,
    gpu_pace,
    gradients,
    hardware,
    learning,
    learning_rate,
    loss,
    memory,
    rl,
    speed,
    waste,
)
from trainvitals.analysis.findings import Finding, Measurements, NotJudged
from trainvitals.analysis.story import link
from trainvitals.conditions import Conditions
from trainvitals.conditions.rl import ROWS as RL_ROWS


class Detector(NamedTuple):
    """`rule` is the usual name of its findings."""

    rule: str
    detect: Callable[[Measurements, Conditions], list[Finding]]
    title: str = ""
    """What it looks for, where that is more than one condition."""
    applies: Callable[[Measurements], bool] = lambda measured: True
    """Whether it has anything to do with this run; of another one it is not even reported what is missing."""

    def title_in(self, conditions: Conditions) -> str:
        return self.title or next(row.title for row in conditions if self.rule in row.findings)


def _applies(bound: speed.Bound) -> Callable[[Measurements], bool]:
    """What only some loops time is missing in no other; other time in reinforcement learning is generation."""
    if bound.with_data is not None:
        return rl.is_ordinary
    always = bound in (speed.DATA, speed.TRANSFER)
    return lambda measured: always or bound.is_logged(measured)


DETECTORS: tuple[Detector, ...] = (
    Detector("end.hang", endings.detect_ending, "failures and hangs"),
    Detector("loss.nonfinite", loss.detect_nonfinite),
    Detector("loss.divergence", loss.detect_divergence),
    Detector("loss.spike", loss.detect_spikes),
    Detector("loss.resume", loss.detect_jump_at_resume, applies=lambda measured: bool(measured.resumes)),
    Detector("loss.plateau", loss.detect_plateau),
    Detector("loss.overfit", loss.detect_overfit),
    Detector("loss.never_learns", learning.detect_never_learns),
    Detector("loss.oscillation", learning.detect_oscillation),
    Detector("lr.jump", learning_rate.detect_jump),
    Detector("lr.too_high", learning.detect_update_size, "a learning rate too high or too low for the weights"),
    Detector("grad.explode", gradients.detect_explosion),
    Detector("grad.vanish", gradients.detect_vanishing),
    Detector("units.dead", learning.detect_dead_units),
    Detector("amp.scale_collapse", learning.detect_scale_collapse),
    Detector("replica.mismatch", learning.detect_replicas),
    Detector("cpu.contended", hardware.detect_contention),
    *(Detector(bound.rule, partial(speed.detect_bound, bound), applies=_applies(bound)) for bound in speed.BOUNDS),
    Detector("step.outlier", speed.detect_outliers),
    Detector("step.fail_slow", speed.detect_fail_slow),
    Detector("straggler.rank", speed.detect_stragglers),
    Detector("gpu.low_use", hardware.detect_low_use),
    Detector("cpu.bound", hardware.detect_cpu_bound),
    Detector("io.bound", hardware.detect_io_bound),
    Detector("launch.bound", gpu_pace.detect_small_kernels),
    Detector("gpu.link", gpu_pace.detect_narrow_link),
    Detector("gpu.clock", gpu_pace.detect_low_clocks),
    Detector("gpu.precision", gpu_pace.detect_idle_tensor_cores),
    Detector("batch.small", gpu_pace.detect_small_batches),
    Detector("gpu.throttle", hardware.detect_throttling, "GPU throttling"),
    Detector("gpu.hot", hardware.detect_hot),
    Detector("gpu.lost", hardware.detect_lost, "lost or unresponsive GPUs"),
    Detector("gpu.error", hardware.detect_errors, "GPU errors"),
    Detector("gpu.memory_leak", memory.detect_device_leak),
    Detector("gpu.fragmentation", memory.detect_fragmentation),
    Detector("gpu.memory_full", memory.detect_device_full, "GPU memory full, or about to be"),
    Detector("host.memory_leak", memory.detect_host_leak),
    Detector("disk.full", memory.detect_disk_full),
    Detector("gpu.waste", waste.detect_waste),
    Detector("gpu.oversized", waste.detect_oversized),
    *(Detector(row.findings[0], partial(rl.detect, row), applies=rl.is_rl) for row in RL_ROWS),
)


class Gap(NamedTuple):
    """Something that was not judged."""

    rule: str
    title: str
    needs: str


class Diagnosis(NamedTuple):
    """What was found, the worst first and what explains it before it; what is fine; what could not be judged."""

    findings: tuple[Finding, ...]
    fine: tuple[str, ...]
    not_judged: tuple[Gap, ...]


def diagnose(measured: Measurements, conditions: Conditions) -> Diagnosis:
    """Run every detector with the thresholds in force."""
    findings: list[Finding] = []
    fine: list[str] = []
    gaps: list[Gap] = []
    for detector in DETECTORS:
        if not detector.applies(measured):
            continue
        try:
            # Near the largest number there is: infinity compares as it should.
            with np.errstate(over="ignore", invalid="ignore"):
                found = detector.detect(measured, conditions)
        except NotJudged as missing:
            gaps.append(Gap(detector.rule, detector.title_in(conditions), missing.needs))
            continue
        if found:
            findings += found
        else:
            fine.append(detector.title_in(conditions))
    return Diagnosis(link(findings, measured.places), tuple(fine), tuple(gaps))

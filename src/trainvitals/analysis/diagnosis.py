"""Every detector, run over the measurements of one run. Adding one is a function and a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from trainvitals.analysis import gradients, hardware, loss, memory, speed, waste
from trainvitals.analysis.findings import ORDER, Finding, Measurements, NotJudged


class Detector(NamedTuple):
    """`rule` is the usual name of its findings; `title` what it looks for."""

    rule: str
    title: str
    detect: Callable[[Measurements], list[Finding]]


DETECTORS: tuple[Detector, ...] = (
    Detector("loss.nonfinite", "NaN or infinity in the loss", loss.detect_nonfinite),
    Detector("loss.divergence", "a loss that rises and stays there", loss.detect_divergence),
    Detector("loss.spike", "spikes in the loss", loss.detect_spikes),
    Detector("loss.plateau", "no progress for half of the run", loss.detect_plateau),
    Detector("loss.overfit", "over-fitting", loss.detect_overfit),
    Detector("grad.explode", "exploding gradients", gradients.detect_explosion),
    Detector("grad.vanish", "layers that learn nothing", gradients.detect_vanishing),
    Detector("data.bound", "waiting for data", speed.detect_data_bound),
    Detector("step.other", "time outside of data and model", speed.detect_other_work),
    Detector("step.outlier", "slow steps, and whether they are regular", speed.detect_outliers),
    Detector("step.fail_slow", "steps that became slower", speed.detect_fail_slow),
    Detector("straggler.rank", "a rank that is slower than the others", speed.detect_stragglers),
    Detector("gpu.low_use", "GPUs with little to do, and why", hardware.detect_low_use),
    Detector("cpu.bound", "CPUs at their limit while GPUs wait", hardware.detect_cpu_bound),
    Detector("io.bound", "storage at its limit while GPUs wait", hardware.detect_io_bound),
    Detector("gpu.throttle", "GPUs that slow themselves down", hardware.detect_throttling),
    Detector("gpu.hot", "GPUs close to their temperature limit", hardware.detect_hot),
    Detector("gpu.error", "errors reported by the GPUs", hardware.detect_errors),
    Detector("gpu.memory_leak", "tensors that are never freed", memory.detect_device_leak),
    Detector("gpu.fragmentation", "fragmented device memory", memory.detect_fragmentation),
    Detector("gpu.memory_full", "device memory that is full, or soon", memory.detect_device_full),
    Detector("host.memory_leak", "processes that grow", memory.detect_host_leak),
    Detector("disk.full", "a disk that is full soon", memory.detect_disk_full),
    Detector("gpu.waste", "idle GPUs and what they cost", waste.detect_waste),
)


class Gap(NamedTuple):
    """Something that was not judged."""

    rule: str
    title: str
    needs: str


class Diagnosis(NamedTuple):
    """What was found, the worst first; what was looked at and is fine; what could not be judged."""

    findings: tuple[Finding, ...]
    fine: tuple[str, ...]
    not_judged: tuple[Gap, ...]


def diagnose(measured: Measurements) -> Diagnosis:
    """Run every detector."""
    findings: list[Finding] = []
    fine: list[str] = []
    gaps: list[Gap] = []
    for detector in DETECTORS:
        try:
            found = detector.detect(measured)
        except NotJudged as missing:
            gaps.append(Gap(detector.rule, detector.title, missing.needs))
            continue
        if found:
            findings += found
        else:
            fine.append(detector.title)
    findings.sort(key=lambda finding: ORDER.index(finding.severity))
    return Diagnosis(tuple(findings), tuple(fine), tuple(gaps))

"""Which finding explains which: the cause is shown first, what followed from it below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainvitals.analysis.findings import ORDER, Finding

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "gpu.throttle": ("gpu.hot",),
    "step.other": ("cpu.contended", "step.periodic"),
    "step.outlier": ("cpu.contended",),
    "cpu.bound": ("cpu.contended",),
    "data.bound": ("io.bound", "cpu.contended", "cpu.bound"),
    "data.unseen": ("cpu.contended",),
    "gpu.low_use": (
        "cpu.contended",
        "data.bound",
        "cpu.bound",
        "io.bound",
        "straggler.rank",
        "step.periodic",
        "step.other",
        "data.unseen",
    ),
    "gpu.waste": ("gpu.low_use", "data.bound"),
    "step.fail_slow": ("gpu.throttle", "straggler.rank", "host.memory_leak", "cpu.contended"),
    "straggler.rank": ("gpu.throttle", "gpu.error"),
    "gpu.memory_full": ("gpu.memory_leak", "gpu.fragmentation"),
    "gpu.memory_forecast": ("gpu.memory_leak", "gpu.fragmentation"),
    "grad.explode": ("lr.jump", "lr.too_high"),
    "grad.nonfinite": ("loss.nonfinite", "amp.scale_collapse"),
    "grad.vanish": ("units.dead", "lr.too_high"),
    "units.dead": ("lr.jump", "lr.too_high"),
    "amp.scale_collapse": ("lr.jump", "grad.explode"),
    "loss.spike": ("data.bad_batch", "grad.explode", "lr.jump", "lr.too_high"),
    "loss.divergence": ("lr.jump", "lr.too_high", "units.dead", "grad.explode", "replica.mismatch"),
    "loss.never_learns": ("lr.too_high", "lr.too_low", "units.dead", "grad.vanish"),
    "loss.plateau": ("loss.never_learns", "lr.too_high", "lr.too_low", "units.dead", "grad.vanish"),
    "loss.oscillation": ("lr.jump", "lr.too_high"),
    "end.gpu_memory": ("gpu.memory_leak", "gpu.memory_forecast", "gpu.memory_full"),
    "end.gpu_fragmented": ("gpu.fragmentation",),
    "end.host_memory": ("host.memory_leak",),
    "end.disk_full": ("disk.full",),
    "end.gpu_error": ("gpu.error",),
    "end.gpu_illegal_access": ("gpu.error",),
    "end.collective_timeout": ("gpu.error",),
    "end.hang": ("gpu.error",),
    "end.loader_worker": ("host.memory_leak",),
    "loss.nonfinite": ("lr.jump", "amp.scale_collapse", "lr.too_high", "grad.explode", "loss.divergence"),
}
"""What each follows from, the likeliest first."""
SLACK = 100
"""Steps by which a cause may be noticed after what it explains."""


def link(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The same findings, each with the rule of the one that explains it: a cause, what follows from it, the next; the
    worst first, and of equally bad ones first what is not over."""
    found = list(findings)
    linked = [finding._replace(cause=_explain(finding, found)) for finding in found]
    roots = [finding for finding in linked if finding.cause is None]
    stories = [[root, *_following(root.rule, linked)] for root in roots]
    stories.sort(key=lambda story: min((ORDER.index(item.severity), item.until is not None) for item in story))
    ordered: list[Finding] = []
    for story in stories:
        ordered += [finding for finding in story if all(finding is not other for other in ordered)]
    return tuple(ordered)


def _explain(finding: Finding, found: Sequence[Finding]) -> str | None:
    for rule in EXPLAINED_BY.get(finding.rule, ()):
        if any(other.rule == rule and _may_explain(other, finding) for other in found):
            return rule
    return None


def _may_explain(cause: Finding, effect: Finding) -> bool:
    """A cause comes first, and is about the same thing."""
    if cause.step is not None and effect.step is not None and cause.step > effect.step + SLACK:
        return False
    if cause.until is not None and effect.step is not None and cause.until < effect.step - SLACK:
        return False
    return not (cause.subject and effect.subject) or cause.subject == effect.subject


def _following(rule: str, found: Sequence[Finding]) -> list[Finding]:
    following = []
    for finding in found:
        if finding.cause == rule:
            following += [finding, *_following(finding.rule, found)]
    return following

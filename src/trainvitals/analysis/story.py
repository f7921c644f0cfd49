"""Which finding explains which: the cause is shown first, what followed from it below."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from trainvitals.analysis.findings import ORDER, Finding, RankPlace
from trainvitals.conditions.catalogue import ROWS

EXPLAINED_BY: dict[str, tuple[str, ...]] = {
    "gpu.throttle": ("gpu.hot",),
    "gpu.lost": ("gpu.error",),
    "step.other": ("cpu.contended", "checkpoint.bound", "evaluation.bound", "logging.bound", "step.periodic"),
    "step.periodic": ("checkpoint.bound", "evaluation.bound", "logging.bound"),
    "comm.bound": ("straggler.host", "straggler.rank", "gpu.link"),
    "transfer.bound": ("gpu.link",),
    "gpu.oversized": ("launch.bound",),
    "checkpoint.bound": ("io.bound",),
    "step.outlier": ("cpu.contended",),
    "cpu.bound": ("cpu.contended",),
    "data.bound": ("io.bound", "cpu.contended", "cpu.bound"),
    "data.unseen": ("cpu.contended",),
    "gpu.low_use": (
        "cpu.contended",
        "data.bound",
        "transfer.bound",
        "comm.bound",
        "checkpoint.bound",
        "evaluation.bound",
        "logging.bound",
        "cpu.bound",
        "io.bound",
        "straggler.host",
        "straggler.rank",
        "step.periodic",
        "step.other",
        "data.unseen",
    ),
    "gpu.waste": ("gpu.low_use", "data.bound", "transfer.bound", "gpu.lost"),
    "step.fail_slow": ("gpu.throttle", "straggler.host", "straggler.rank", "host.memory_leak", "cpu.contended"),
    "straggler.host": ("gpu.throttle", "gpu.clock", "gpu.link", "cpu.contended", "io.bound"),
    "straggler.rank": ("gpu.throttle", "gpu.error", "gpu.clock", "gpu.link"),
    "gpu.memory_full": ("gpu.memory_leak", "gpu.fragmentation"),
    "gpu.memory_forecast": ("gpu.memory_leak", "gpu.fragmentation"),
    "grad.explode": ("lr.jump", "lr.too_high"),
    "grad.nonfinite": ("loss.nonfinite", "amp.scale_collapse"),
    "grad.vanish": ("units.dead", "lr.too_high"),
    "units.dead": ("lr.jump", "lr.too_high"),
    "amp.scale_collapse": ("lr.jump", "grad.explode"),
    "loss.resume": ("lr.jump",),
    "loss.spike": ("loss.resume", "data.bad_batch", "grad.explode", "lr.jump", "lr.too_high", "loss.divergence"),
    "loss.divergence": ("loss.resume", "lr.jump", "lr.too_high", "units.dead", "grad.explode", "replica.mismatch"),
    "loss.never_learns": ("lr.too_high", "lr.too_low", "units.dead", "grad.vanish"),
    "loss.plateau": ("loss.never_learns", "lr.too_high", "lr.too_low", "units.dead", "grad.vanish"),
    "loss.oscillation": ("lr.jump", "lr.too_high"),
    "end.gpu_memory": ("gpu.memory_leak", "gpu.memory_forecast", "gpu.memory_full"),
    "end.gpu_fragmented": ("gpu.fragmentation",),
    "end.host_memory": ("host.memory_leak",),
    "end.disk_full": ("disk.full",),
    "end.gpu_error": ("gpu.lost", "gpu.error"),
    "end.gpu_illegal_access": ("gpu.lost", "gpu.error"),
    "end.collective_timeout": ("gpu.lost", "gpu.error"),
    "end.peer_lost": ("gpu.lost", "gpu.error"),
    "end.hang": ("gpu.lost", "gpu.error"),
    "end.loader_worker": ("host.memory_leak",),
    "loss.nonfinite": ("lr.jump", "amp.scale_collapse", "lr.too_high", "grad.explode", "loss.divergence"),
}
"""What each follows from, the likeliest first."""
STOPS_ALL = frozenset({"end.hang", "end.collective_timeout", "end.peer_lost"})
"""Those in which one rank, and whatever it ran on, takes all others with it: any of them may be named."""
KINDS = {rule: row.subject for row in ROWS for rule in row.findings}
"""What each is about."""
SLACK = 100
"""Steps by which a cause may be noticed after what it explains."""


def link(findings: Iterable[Finding], places: Mapping[str, RankPlace] = {}) -> tuple[Finding, ...]:
    """The same findings, each with the rule of the one that explains it: a cause, what follows from it, the next; the
    worst first, and of equally bad ones first what is not over. `places` tell where each participant ran."""
    found = list(findings)
    linked = [finding._replace(cause=_explain(finding, found, places)) for finding in found]
    roots = [finding for finding in linked if finding.cause is None]
    stories = [[root, *_following(root.rule, linked)] for root in roots]
    stories.sort(key=lambda story: min((ORDER.index(item.severity), item.until is not None) for item in story))
    ordered: list[Finding] = []
    for story in stories:
        ordered += [finding for finding in story if all(finding is not other for other in ordered)]
    return tuple(ordered)


def _explain(finding: Finding, found: Sequence[Finding], places: Mapping[str, RankPlace]) -> str | None:
    for rule in EXPLAINED_BY.get(finding.rule, ()):
        if any(other.rule == rule and _may_explain(other, finding, places) for other in found):
            return rule
    return None


def _may_explain(cause: Finding, effect: Finding, places: Mapping[str, RankPlace]) -> bool:
    """A cause comes first, and is about the same thing."""
    if cause.step is not None and effect.step is not None and cause.step > effect.step + SLACK:
        return False
    if cause.until is not None and effect.step is not None and cause.until < effect.step - SLACK:
        return False
    return not (cause.titles and effect.titles) or effect.rule in STOPS_ALL or _may_meet(cause, effect, places)


def _may_meet(cause: Finding, effect: Finding, places: Mapping[str, RankPlace]) -> bool:
    """Whether the cause is about what the effect is about, or where that runs, as far as this is known."""
    kind, other = KINDS[cause.rule], KINDS[effect.rule]
    if kind == other:
        return not cause.titles.isdisjoint(effect.titles)
    if kind == "rank" and other == "gpu":
        return True  # the others wait for a rank that is slow, on their own GPUs
    ran = [places[title] for title in effect.titles if title in places]
    if kind == "gpu":
        return _share(cause.titles, (gpu for place in ran for gpu in place.gpus))
    hosts = cause.titles if kind == "host" else {places[title].host for title in cause.titles if title in places}
    return not any(hosts) or _share(hosts, (place.host for place in ran if place.host))


def _share(some: Iterable[str], known: Iterable[str]) -> bool:
    """Whether one is among the others, or these are not known."""
    others = frozenset(known)
    return not others or not others.isdisjoint(some)


def _following(rule: str, found: Sequence[Finding]) -> list[Finding]:
    following = []
    for finding in found:
        if finding.cause == rule:
            following += [finding, *_following(finding.rule, found)]
    return following

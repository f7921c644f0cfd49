"""What each GPU of a run did: as its agents counted it, else from the recorded series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.analysis.energy import Energy
from trainvitals.analysis.gpu_use import METRICS, GpuUse, is_own, kept_gpus
from trainvitals.analysis.spread import spread_of
from trainvitals.journal.contracts import Reader, Series
from trainvitals.journal.documents.status import Status
from trainvitals.journal.identity import gpu_key


def read_gpus(reader: Reader, statuses: Sequence[Status]) -> list[GpuUse]:
    """Every GPU of the run, in order of host and index."""
    found = [gpu.as_use() for status in statuses for gpu in kept_gpus(status)]
    # An agent of an earlier version kept less; a folder that was copied by halves has fewer status files.
    if len(found) < len(reader.labels("gpu")) or not all(map(_is_whole, found)):
        found = _read_series(reader)
    for use in found:
        use.is_own = is_own_gpu(use.labels, statuses)
    return sorted(found, key=lambda use: use.order)


def own_labels(reader: Reader) -> list[dict[str, Any]]:
    """Of the run's own GPUs."""
    statuses = reader.statuses()
    return [labels for labels in reader.labels("gpu") if is_own_gpu(labels, statuses)]


def is_own_gpu(labels: Mapping[str, Any], statuses: Sequence[Status]) -> bool:
    """Whether the GPU with these labels is the run's; all are, where no agent knows which."""
    host = labels.get("host")
    known = [status.own_gpus for status in statuses if host is None or status.host == host]
    return not known or any(is_own(gpu_key(labels), labels, own) for own in known)


def is_of_many_hosts(gpus: Sequence[GpuUse]) -> bool:
    """Whether a title needs the host to be understood."""
    return len({gpu.labels.get("host") for gpu in gpus}) > 1


def _is_whole(use: GpuUse) -> bool:
    return all(spread.low is not None and spread.count for spread in use.spreads.values() if spread.high is not None)


def _read_series(reader: Reader) -> list[GpuUse]:
    found: dict[tuple[str, str], dict[str, Series]] = {}
    for series in reader.series((*METRICS, "memory_total_mb", "energy_joules"), table="gpu", x="time"):
        found.setdefault((str(series.labels.get("host", "")), gpu_key(series.labels)), {})[series.name] = series
    return [_read_use(series) for series in found.values()]


def _read_use(series: Mapping[str, Series]) -> GpuUse:
    use = GpuUse(next(iter(series.values())).labels)
    for name in METRICS:
        if name in series:
            use.spreads[name] = spread_of(series[name].y)
    if "memory_total_mb" in series:
        use.memory_total_mb = spread_of(series["memory_total_mb"].y).high
    use.energy = _energy_used(series.get("energy_joules"), series.get("power_draw_watts"))
    return use


def _energy_used(counter: Series | None, power: Series | None) -> Energy:
    energy = Energy()
    if counter is not None:
        for moment, joules in zip(counter.x.tolist(), counter.y.tolist(), strict=True):
            energy.add(moment, joules)
    if power is not None:
        for moment, watts in zip(power.x.tolist(), power.y.tolist(), strict=True):
            energy.add(moment, None, watts)
    return energy

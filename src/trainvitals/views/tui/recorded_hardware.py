"""The last recorded state of the hardware, for a run that has ended or runs on another machine.
Tested in tests/views/tui/test_shown_run.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainvitals.journal.identity import gpu_number
from trainvitals.views.tui.curves import ReadSeries, RunCurves
from trainvitals.views.tui.hardware import HISTORY, HardwareNow
from trainvitals.views.tui.snapshot import Gpu, Value
from trainvitals.views.tui.tracks import TrackOwner, owner_of

NEWEST_POINTS = 8
"""Of a whole curve; the last of them is its newest."""


@dataclass(slots=True)
class _SeenGpu:
    owner: TrackOwner
    labels: Mapping[str, Any]
    values: dict[str, Any]
    moment: float


class RecordedHardware:
    """Read from the files at the first request, and kept up to date with each new line."""

    def __init__(self, curves: RunCurves, read: ReadSeries) -> None:
        self._curves = curves
        self._read = read
        self._gpus: dict[str, _SeenGpu] = {}
        self._system: dict[str, Any] = {}

    def add(self, table: str, row: Mapping[str, Any], moment: float) -> None:
        """Take in a new line."""
        if table == "gpu":
            owner = owner_of(table, row)
            self._gpus[owner.key] = _SeenGpu(owner, row, dict(row), moment)
        elif table == "system":
            self._system.update(row)

    def read(self) -> HardwareNow:
        if not self._gpus:
            self._load_gpus()
        if not self._system:
            self._load_system()
        histories = {
            track.owner.key: track.last(HISTORY) for track in self._curves.tracks("gpu", "utilization_percent", "time")
        }
        seen = sorted(self._gpus.values(), key=lambda gpu: gpu.owner.order)
        gpus = tuple(_make_gpu(gpu, histories.get(gpu.owner.key, ())) for gpu in seen)
        return HardwareNow("run folder", gpus, _plain_values(self._system))

    def _load_gpus(self) -> None:
        names = sorted(self._curves.names("gpu"))
        for series in self._read(names, table="gpu", x="time", max_points=NEWEST_POINTS):
            if not len(series.y):
                continue
            owner = owner_of("gpu", series.labels)
            gpu = self._gpus.setdefault(owner.key, _SeenGpu(owner, series.labels, {}, 0.0))
            gpu.values[series.name] = float(series.y[-1])
            gpu.moment = max(gpu.moment, float(series.x[-1]))

    def _load_system(self) -> None:
        names = sorted(self._curves.names("system"))
        for series in self._read(names, table="system", x="time", max_points=NEWEST_POINTS):
            if len(series.y):
                self._system[series.name] = float(series.y[-1])


def _make_gpu(gpu: _SeenGpu, history: tuple[float, ...]) -> Gpu:
    labels = gpu.labels
    return Gpu(
        key=gpu.owner.key,
        index=gpu_number(labels),
        name=str(labels.get("gpu_name") or ""),
        uuid=str(labels.get("gpu_uuid") or ""),
        values=_plain_values(gpu.values),
        time=gpu.moment,
        simulated=bool(labels.get("simulated")),
        host=str(labels.get("host") or ""),
        history=history,
    )


def _plain_values(values: Mapping[str, Any]) -> dict[str, Value]:
    return {name: value for name, value in values.items() if isinstance(value, (int, float, str))}

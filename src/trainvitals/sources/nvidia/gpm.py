"""GPM, the activity counters of Hopper and later: how busy SMs, tensor cores and memory really are.

A metric needs two samples at least 100 ms apart. The last one is kept, so a reading never sleeps.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from trainvitals.sources.nvidia.nvml import NvmlDevice, NvmlRefused

GRAPHICS_ACTIVE = 1
PCIE_TX, PCIE_RX = 20, 21
NVLINK_RX, NVLINK_TX = 60, 61

PERCENTAGES = {
    2: "sm_active_percent",
    3: "sm_occupancy_percent",
    5: "tensor_active_percent",
    10: "dram_active_percent",
    11: "fp64_active_percent",
    12: "fp32_active_percent",
    13: "fp16_active_percent",
}
_METRICS = (GRAPHICS_ACTIVE, *PERCENTAGES, PCIE_TX, PCIE_RX, NVLINK_RX, NVLINK_TX)
_METRIC = struct.Struct("=Iid24x")  # id, return code, value, three pointers to names
_SHORTEST = 0.5  # seconds between two samples


class Gpm:
    """The GPM metrics of one GPU, or of one MIG slice of it when `gpu_instance` is given."""

    def __init__(self, device: NvmlDevice, gpu_instance: int | None = None) -> None:
        self._device = device
        self._gpu_instance = gpu_instance
        self._samples: list[Any] = []  # the older one first
        self._taken: float | None = None
        self._request: Any = None
        support = device.ask("nvmlGpmQueryDeviceSupport")
        self._supported = support is not None and bool(support.isSupportedDevice)

    def read(self, now: float) -> dict[int, float]:
        """Metric id to value (percent, or MB/s for traffic) since the last reading; empty at first, on cards
        without GPM, and when the last reading is too fresh."""
        if not self._supported or (self._taken is not None and now - self._taken < _SHORTEST):
            return {}
        if self._request is None and not self._prepare():
            return {}
        if not self._sample(self._samples[1]):
            self._taken = None  # a gap: the kept sample is too old to compare with
            return {}
        found = self._compare() if self._taken is not None else {}
        self._samples.reverse()
        self._taken = now
        return found

    def _prepare(self) -> bool:
        driver = self._device.driver
        try:
            while len(self._samples) < 2:
                self._samples.append(driver.ask("nvmlGpmSampleAlloc"))
        except NvmlRefused:
            self._supported = False
            return False
        request = driver.binding.c_nvmlGpmMetricsGet_t()  # 19 KB, so it is kept
        request.version, request.numMetrics = 1, len(_METRICS)
        for slot, metric in zip(request.metrics, _METRICS, strict=False):
            slot.metricId = metric
        self._request = request
        return True

    def _sample(self, sample: Any) -> bool:
        if self._gpu_instance is None:
            answer = self._device.fill(("gpm",), "nvmlGpmSampleGet", sample)
        else:
            answer = self._device.fill(("gpm", self._gpu_instance), "nvmlGpmMigSampleGet", self._gpu_instance, sample)
        return answer is not None

    def _compare(self) -> dict[int, float]:
        request = self._request
        request.sample1, request.sample2 = self._samples
        try:
            self._device.driver.ask("nvmlGpmMetricsGet", request)
        except NvmlRefused:
            return {}
        size = _METRIC.size * len(_METRICS)
        start = ctypes.addressof(request) + type(request).metrics.offset
        return {
            metric: value
            for metric, code, value in _METRIC.iter_unpack(ctypes.string_at(start, size))
            if code == 0 and value == value  # NaN: nothing was counted between the two samples
        }

    def close(self) -> None:
        """Give the samples back, unless the driver that made them is gone."""
        if self._device.generation == self._device.driver.generation:
            for sample in self._samples:
                try:
                    self._device.driver.ask("nvmlGpmSampleFree", sample)
                except NvmlRefused:
                    pass  # a lost GPU; the driver takes its memory back by itself
        self._samples, self._request, self._supported = [], None, False

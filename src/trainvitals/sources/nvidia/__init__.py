"""NVIDIA GPUs through NVML: no subprocess, no root rights, no DCGM.

`source` finds the GPUs, `gpu` reads one of them, `events` listens for Xid errors; every question to the
driver goes through `nvml`.
"""

from __future__ import annotations

from trainvitals.sources.nvidia.source import create
from trainvitals.sources.nvidia.visible import visible_devices

__all__ = ["create", "visible_devices"]

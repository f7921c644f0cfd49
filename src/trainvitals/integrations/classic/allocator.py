"""What PyTorch's allocator holds in this process, where there is torch with a device that is in use.

Neither torch nor a device is ever set up for this. Tested in tests/integrations/test_classic.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from trainvitals.trainer.watch.memory import read_allocator


def read_current_device() -> dict[str, float]:
    """`memory_allocated_mb` and `memory_reserved_mb` of the device that the program uses now; empty without one."""
    cuda = _find_cuda()
    if cuda is None:
        return {}
    return _read(cuda.current_device())


def read_gpus(labels: Iterable[Mapping[str, Any]]) -> dict[int, dict[str, float]]:
    """The same for each of these GPUs that the program can see, by index."""
    cuda = _find_cuda()
    if cuda is None:
        return {}
    # torch counts the GPUs that it may see: what they have in common with ours is the UUID.
    uuids = {_uuid_of(cuda, place): place for place in range(cuda.device_count())}
    found: dict[int, dict[str, float]] = {}
    for gpu in labels:
        place = uuids.get(str(gpu.get("gpu_uuid", "")).removeprefix("GPU-"))
        if place is not None:
            found[gpu["gpu_index"]] = _read(place)
    return found


def _find_cuda() -> Any:
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_available() and cuda.is_initialized() else None


def _uuid_of(cuda: Any, place: int) -> str:
    return str(getattr(cuda.get_device_properties(place), "uuid", "")).removeprefix("GPU-")


def _read(place: int) -> dict[str, float]:
    found = read_allocator(sys.modules["torch"].device("cuda", place))
    return {name: found[name] for name in ("memory_allocated_mb", "memory_reserved_mb") if name in found}

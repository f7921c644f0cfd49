"""Which GPUs a program sees under CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def visible_devices(environment: Mapping[str, str], gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    """UUIDs in the order in which the program counts them; `gpus` is `describe()["gpus"]`.

    Unset is every GPU, an empty text is none, an entry that fits nothing hides itself and everything
    after it, and a GPU named twice hides all, as in CUDA. Numbers are taken in PCI order, which is CUDA's
    order for equal GPUs and with CUDA_DEVICE_ORDER=PCI_BUS_ID; with unequal GPUs ask the framework.
    """
    ordered = sorted((gpu for gpu in gpus if "uuid" in gpu), key=lambda gpu: int(gpu["index"]))
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return [_whole(gpu) for gpu in ordered]
    seen: list[str] = []
    for entry in text.split(","):
        uuid = _find(entry.strip(), ordered)
        if uuid is None:
            break
        if uuid in seen:
            return []
        seen.append(uuid)
    return seen


def _whole(gpu: Mapping[str, Any]) -> str:
    """A GPU in MIG mode is seen as its first slice."""
    slices = gpu.get("mig", ())
    return str(slices[0]["uuid"] if slices else gpu["uuid"])


def _find(entry: str, gpus: Sequence[Mapping[str, Any]]) -> str | None:
    if entry.isdecimal():
        return _whole(gpus[int(entry)]) if int(entry) < len(gpus) else None
    if entry.startswith("MIG-GPU-"):  # the older form: MIG-GPU-<uuid>/<gpu instance>/<compute instance>
        return _find_instance(entry, gpus)
    uuids = [str(gpu["uuid"]) for gpu in gpus]
    if entry.startswith("MIG-"):
        uuids = [str(part["uuid"]) for gpu in gpus for part in gpu.get("mig", ())]
    elif not entry.startswith("GPU-"):
        return None
    matches = [uuid for uuid in uuids if uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _find_instance(entry: str, gpus: Sequence[Mapping[str, Any]]) -> str | None:
    prefix, _, instances = entry.removeprefix("MIG-").partition("/")
    matches = [
        str(part["uuid"])
        for gpu in gpus
        if str(gpu["uuid"]).startswith(prefix)
        for part in gpu.get("mig", ())
        if f"{part.get('gpu_instance')}/{part.get('compute_instance')}" == instances
    ]
    return matches[0] if len(matches) == 1 else None

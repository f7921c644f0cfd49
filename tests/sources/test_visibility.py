"""Which GPUs a program sees, for the vendors whose variables are plain lists."""

from __future__ import annotations

from typing import Any

import pytest

from trainvitals.sources import REGISTRY

CARDS: list[dict[str, Any]] = [{"gpu_uuid": "a1"}, {"gpu_uuid": "b2"}, {"gpu_uuid": "c3"}]


@pytest.mark.parametrize(
    ("vendor", "environment", "seen"),
    [
        ("amd", {}, ["a1", "b2", "c3"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "2,0"}, ["c3", "a1"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "GPU-b2"}, ["b2"]),
        ("amd", {"HIP_VISIBLE_DEVICES": "1"}, ["b2"]),
        ("amd", {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ["c3"]),  # HIP counts what ROCr leaves
        ("amd", {"HIP_VISIBLE_DEVICES": ""}, []),
        ("amd", {"HIP_VISIBLE_DEVICES": "0,-1,1"}, ["a1"]),
        ("amd", {"CUDA_VISIBLE_DEVICES": "0"}, ["a1", "b2", "c3"]),
        ("intel", {"ZE_AFFINITY_MASK": "0.1,2"}, ["a1", "c3"]),
        ("intel", {"ZE_AFFINITY_MASK": "0.0,0.1"}, ["a1"]),
        ("intel", {"ZE_AFFINITY_MASK": "7"}, []),
        ("apple", {}, ["a1", "b2", "c3"]),
    ],
)
def test_what_a_program_sees(vendor: str, environment: dict[str, str], seen: list[str]) -> None:
    row = REGISTRY[vendor]
    assert row.visible_devices(environment, CARDS) == seen
    assert row.hides_gpus(environment) == (bool(environment) and "CUDA_VISIBLE_DEVICES" not in environment)

"""CUDA_VISIBLE_DEVICES, as CUDA understands it."""

from __future__ import annotations

import pytest

from trainvitals.sources.nvidia import visible_devices

A, B, C = "GPU-aaaa1111-0", "GPU-aaaa2222-0", "GPU-bbbb3333-0"
GPUS = [
    {"index": 1, "uuid": B},
    {"index": 0, "uuid": A},
    {
        "index": 2,
        "uuid": C,
        "mig": [
            {"index": 0, "uuid": "MIG-1111", "gpu_instance": 7, "compute_instance": 0},
            {"index": 1, "uuid": "MIG-2222", "gpu_instance": 8, "compute_instance": 0},
        ],
    },
]


@pytest.mark.parametrize(
    ("text", "uuids"),
    [
        (None, [A, B, "MIG-1111"]),
        ("", []),
        ("1,0", [B, A]),
        (" 1 , 0 ", [B, A]),
        (B, [B]),
        ("GPU-aaaa1,GPU-aaaa2222", [A, B]),
        ("GPU-aaaa", []),  # fits two
        ("2", ["MIG-1111"]),
        ("MIG-2222", ["MIG-2222"]),
        ("MIG-GPU-bbbb3333-0/8/0", ["MIG-2222"]),
        ("MIG-GPU-bbbb/8/1", []),
        ("0,9,1", [A]),  # what follows a bad entry is hidden
        ("0,-1,1", [A]),
        ("-1", []),
        ("NoDevFiles", []),
        ("0,0", []),
        ("0,GPU-aaaa1", []),
    ],
)
def test_what_a_program_sees(text: str | None, uuids: list[str]) -> None:
    environment = {} if text is None else {"CUDA_VISIBLE_DEVICES": text}
    assert visible_devices(environment, GPUS) == uuids

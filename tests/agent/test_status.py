"""Which GPUs status.json lists as visible to the ranks."""

from __future__ import annotations

from typing import Any

from trainvitals.agent.status import visible_gpus
from trainvitals.journal.documents.registration import Registration

HARDWARE: dict[str, Any] = {
    "nvidia": {"gpus": [{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}]},
    "amd": {"gpus": [{"gpu_uuid": "a1"}, {"gpu_uuid": "b2"}]},
    "system": {"cpu_count": 2},
}


def rank(**environment: str) -> Registration:
    return Registration(run_id="r", folder="/x", pid=1, host="h", visible_devices=environment)


def test_without_a_variable_every_gpu_counts_whose_driver_names_its_processes() -> None:
    assert visible_gpus(HARDWARE, [rank()]) == ("GPU-a", "GPU-b")
    assert visible_gpus({"amd": HARDWARE["amd"]}, [rank()]) is None  # it may be there for the screen alone
    assert visible_gpus({}, [rank()]) is None


def test_a_gpu_counts_that_was_given_to_a_rank() -> None:
    assert visible_gpus({"amd": HARDWARE["amd"]}, [rank(HIP_VISIBLE_DEVICES="1")]) == ("b2",)
    ranks = [rank(CUDA_VISIBLE_DEVICES="1"), rank(CUDA_VISIBLE_DEVICES="0", ROCR_VISIBLE_DEVICES="0")]
    assert visible_gpus(HARDWARE, ranks) == ("GPU-b", "GPU-a", "a1")

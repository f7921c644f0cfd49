"""What each GPU did during a run."""

from __future__ import annotations

import json
import math

from trainvitals.analysis.gpu_use import GpuUse, GpuUses, kept_energy, kept_gpus
from trainvitals.journal.documents.status import Status

LABELS = {"gpu_index": 0, "gpu_uuid": "GPU-1", "gpu_name": "H100"}


def read_kept(kept: object) -> list[GpuUse]:
    """As the next agent and the views read what is in a status file."""
    return [gpu.as_use() for gpu in kept_gpus(Status.parse({"gpu_summary": json.loads(json.dumps(kept))}))]


def energy_of(kept: object, held: list[str] | None) -> float | None:
    return kept_energy(Status.parse({"gpu_summary": kept, "held_gpus": held}))


def test_means_maxima_and_energy_are_kept_by_gpu() -> None:
    use = GpuUses()
    for utilization, memory, energy in ((10.0, 100, 1000.0), (90.0, 300, 1500.0), (50.0, 200, 1600.0)):
        use.add(LABELS, {"utilization_percent": utilization, "memory_used_mb": memory, "energy_joules": energy}, 0.0)
    use.add({**LABELS, "gpu_uuid": "GPU-2"}, {"utilization_percent": 1.0}, 0.0)
    gpu = use.as_json()["GPU-1"]
    assert (gpu["utilization_percent_mean"], gpu["utilization_percent_max"], gpu["memory_used_mb_max"]) == (
        50,
        90,
        300,
    )
    assert gpu["energy_used_joules"] == 600 and gpu["gpu_name"] == "H100"
    assert set(use.as_json()) == {"GPU-1", "GPU-2"} and "energy_used_joules" not in use.as_json()["GPU-2"]


def test_a_counter_that_begins_again_loses_no_energy() -> None:
    use = GpuUses()
    for energy in (1000.0, 1200.0, 30.0, 50.0):
        use.add(LABELS, {"energy_joules": energy}, 0.0)
    assert use.as_json()["GPU-1"]["energy_used_joules"] == 250.0


def test_the_next_agent_goes_on_from_the_status_file() -> None:
    use = GpuUses()
    use.add(LABELS, {"utilization_percent": 10.0, "energy_joules": 100.0}, 0.0)
    again = GpuUses(read_kept(use.as_json()))
    again.add(LABELS, {"utilization_percent": 30.0, "energy_joules": 160.0}, 0.0)
    gpu = again.as_json()["GPU-1"]
    assert gpu["utilization_percent_mean"] == 20.0 and gpu["energy_used_joules"] == 60.0
    assert read_kept("nonsense") == []


def test_a_card_without_a_counter_has_used_its_power_over_time() -> None:
    use = GpuUses()
    use.add(LABELS, {"power_draw_watts": 100.0}, 10.0)
    again = GpuUses(read_kept(use.as_json()))
    again.add(LABELS, {"power_draw_watts": 300.0}, 12.0)
    assert again.as_json()["GPU-1"]["energy_used_joules"] == 400.0


def test_what_is_no_finite_number_is_not_counted() -> None:
    use = GpuUses()
    use.add(LABELS, {"utilization_percent": math.nan, "energy_joules": math.inf, "memory_used_mb": "?"}, 0.0)
    assert use.as_json()["GPU-1"] == {"gpu_index": 0, "gpu_name": "H100"}


def test_a_status_file_of_an_earlier_version_is_gone_on_from() -> None:
    """It kept no lowest values, and of memory and temperature only the highest."""
    kept = {"gpu_index": 3, "utilization_percent_mean": 10.0, "utilization_percent_count": 1, "memory_used_mb_max": 500}
    again = GpuUses(read_kept({"GPU-1": kept}))
    again.add(LABELS, {"utilization_percent": 30.0, "memory_used_mb": 100}, 0.0)
    gpu = again.as_json()["GPU-1"]
    assert (gpu["utilization_percent_mean"], gpu["memory_used_mb_max"], gpu["gpu_index"]) == (20.0, 500, 3)


def test_a_gpu_without_a_uuid_is_found_again_by_its_index() -> None:
    use = GpuUses()
    use.add({"gpu_index": 1}, {"utilization_percent": 10.0}, 0.0)
    again = GpuUses(read_kept(use.as_json()))
    again.add({"gpu_index": 1}, {"utilization_percent": 20.0}, 0.0)
    assert again.as_json()["1"]["utilization_percent_mean"] == 15.0 and len(again.as_json()) == 1


def test_the_energy_of_a_run_is_that_of_the_gpus_it_holds() -> None:
    kept = {f"GPU-{number}": {"energy_used_joules": 10.0**number} for number in range(4)}
    assert energy_of(kept, ["GPU-1", "GPU-3"]) == 1010.0
    assert energy_of(kept, None) == 1111.0  # nobody knows which
    assert energy_of(kept, []) is None
    assert energy_of({"0": {"energy_used_joules": 5.0, "simulated": True}}, []) == 5.0

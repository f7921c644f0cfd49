"""Who a GPU is, and of what a row speaks."""

from __future__ import annotations

import pytest

from trainvitals.journal.identity import gpu_key, gpu_key_across_hosts, gpu_number, is_gpu_named, subject_of

ROW = {
    "timestamp": "t",
    "host": "a",
    "gpu_index": 1,
    "gpu_uuid": "GPU-1",
    "gpu_name": "H100",
    "temperature_celsius": 70,
}


def test_a_gpu_is_its_uuid_wherever_it_is_seen() -> None:
    assert gpu_key(ROW) == gpu_key_across_hosts(ROW) == "GPU-1"


def test_a_gpu_without_a_uuid_is_its_index_on_its_host() -> None:
    here, there = {"gpu_index": 1, "host": "a"}, {"gpu_index": 1, "host": "b"}
    assert gpu_key(here) == gpu_key(there) == "1"
    assert gpu_key_across_hosts(here) != gpu_key_across_hosts(there)


def test_a_slice_has_a_number_of_its_gpu_and_its_own() -> None:
    assert gpu_number(ROW) == "1"
    assert gpu_number({**ROW, "mig_index": 2}) == "1:2"
    assert gpu_number({}, "0000:01:00.0") == "0000:01:00.0"


@pytest.mark.parametrize("wanted", [1, "GPU-1", "GPU", "MIG-p"])
def test_a_gpu_is_named_by_its_index_or_the_beginning_of_a_uuid(wanted: int | str) -> None:
    assert is_gpu_named(wanted, {**ROW, "mig_parent": "MIG-parent"})
    assert not is_gpu_named(wanted, {"gpu_index": 7, "gpu_uuid": "other"})


def test_what_may_change_about_a_thing_does_not_identify_it() -> None:
    assert subject_of("gpu", ROW) == {"gpu_index": 1, "gpu_uuid": "GPU-1"}
    assert subject_of("system", {"host": "a", "load_1m": 1.0}) == {}
    assert subject_of("process", {"pid": 7, "rss_mb": 1.0}) == {"rank": 0}
    scraped = {"timestamp": "t", "host": "a", "target": "http://x", "loss": "NaN", "value": 1.0}
    assert subject_of("openmetrics", scraped) == {"target": "http://x"}

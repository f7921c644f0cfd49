"""Who a participant and a GPU are, and of what a row speaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainvitals.journal.identity import (
    TRAINER,
    Participant,
    clean_role,
    gpu_key,
    gpu_key_across_hosts,
    gpu_number,
    gpu_title,
    is_gpu_named,
    role_of_class,
    subject_of,
)

TITLES = Path(__file__).parents[1] / "data" / "gpu_titles.json"
"""Read by the page's tests as well."""
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


@pytest.mark.parametrize(("labels", "title"), json.loads(TITLES.read_text()))
def test_a_gpu_is_called_the_same_here_and_on_the_page(labels: dict[str, object], title: str) -> None:
    assert gpu_title(labels) == title


@pytest.mark.parametrize("wanted", [1, "GPU-1", "GPU", "MIG-p"])
def test_a_gpu_is_named_by_its_index_or_the_beginning_of_a_uuid(wanted: int | str) -> None:
    assert is_gpu_named(wanted, {**ROW, "mig_parent": "MIG-parent"})
    assert not is_gpu_named(wanted, {"gpu_index": 7, "gpu_uuid": "other"})


def test_what_may_change_about_a_thing_does_not_identify_it() -> None:
    assert subject_of("gpu", ROW) == {"gpu_index": 1, "gpu_uuid": "GPU-1"}
    assert subject_of("gpu", {**ROW, "mig_index": 2}) == {"gpu_index": 1, "gpu_uuid": "GPU-1", "mig_index": 2}
    assert subject_of("system", {"host": "a", "load_1m": 1.0}) == {}
    assert subject_of("process", {"pid": 7, "rss_mb": 1.0}) == {"rank": 0}
    assert subject_of("process", {"pid": 7, "role": "rollout", "rank": 2}) == {"role": "rollout", "rank": 2}
    scraped = {"timestamp": "t", "host": "a", "target": "http://x", "loss": "NaN", "value": 1.0}
    assert subject_of("openmetrics", scraped) == {"target": "http://x"}


def test_trainers_come_before_all_other_roles_and_each_role_counts_by_itself() -> None:
    mixed = [Participant("rollout", 0), Participant("actor", 10), Participant(rank=10), Participant("actor", 2)]
    found = sorted([*mixed, Participant(rank=2)])
    assert [str(item) for item in found] == ["2", "10", "actor.2", "actor.10", "rollout.0"]


@pytest.mark.parametrize(
    ("participant", "key", "title", "labels", "part"),
    [
        (Participant(), "0", "rank 0", {"rank": 0}, "rank0"),
        (Participant("rollout", 3), "rollout.3", "rollout 3", {"role": "rollout", "rank": 3}, "role-rollout.rank3"),
    ],
)
def test_a_trainer_is_called_as_before_there_were_roles(
    participant: Participant, key: str, title: str, labels: dict[str, object], part: str
) -> None:
    assert (str(participant), participant.title, participant.labels) == (key, title, labels)
    assert participant.file_part == part
    assert Participant.parse(key) == Participant.of(labels) == participant


@pytest.mark.parametrize("text", ["", "command0", "monitor0", "rollout", "rollout.", ".3", "-1", "a.b.3", "9" * 20])
def test_what_is_no_key_of_a_participant_is_none(text: str) -> None:
    assert Participant.parse(text) is None


def test_any_text_is_a_role() -> None:
    assert clean_role("Rollout Worker") == clean_role("rollout-worker") == "rollout_worker"
    assert clean_role("") == clean_role("../") == clean_role("Trainer") == TRAINER
    assert len(clean_role("x" * 500)) == 40


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("RolloutWorker", "rollout_worker"),
        ("vLLMHttpServer", "v_llm_http_server"),
        ("TaskRunnerV1", "task_runner_v1"),
        ("judge", "judge"),
    ],
)
def test_the_role_of_an_actor_is_the_name_of_its_class(name: str, role: str) -> None:
    assert role_of_class(name) == role

"""Names say who wrote what, and sort in the order of writing."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trainvitals.journal.identity import TRAINER, clean_role
from trainvitals.journal.layout import FileName, host_token, next_stamp, parse_name, safe_name


@given(
    table=st.sampled_from(["training", "gpu", "system", "process", "events", "alerts"]),
    attempt=st.integers(1, 99),
    rank=st.none() | st.integers(0, 100_000),
    pid=st.none() | st.integers(1, 4_000_000),
    host=st.none() | st.text(min_size=1).map(host_token),
    role=st.just(TRAINER) | st.text(min_size=1).map(clean_role),
)
def test_a_name_says_what_went_into_it(
    table: str, attempt: int, rank: int | None, pid: int | None, host: str | None, role: str
) -> None:
    role = role if rank is not None else TRAINER
    name = FileName(table, attempt, "20261115_223601", rank, pid, host, role)
    assert parse_name(name.jsonl) == (name, ".jsonl")
    assert parse_name(f"{name.stem}.minmax.parquet") == (name, ".minmax.parquet")


def test_the_names_of_the_design_are_kept() -> None:
    assert FileName("training", 1, "20261115_223601").jsonl == "training_metrics_20261115_223601.jsonl"
    assert FileName("training", 1, "20261115_223601", rank=3).jsonl == "training_metrics_20261115_223601.rank3.jsonl"
    rollout = FileName("training", 1, "20261115_223601", rank=3, role="rollout")
    assert rollout.jsonl == "training_metrics_20261115_223601.role-rollout.rank3.jsonl"
    assert FileName("gpu", 1, "20261115_223601").jsonl == "gpu_metrics_20261115_223601.jsonl"
    assert FileName("events", 2, "20261115_223601").jsonl == "events_20261115_223601.attempt2.jsonl"


def test_other_files_are_not_ours() -> None:
    for name in ("run.json", "gpu_metrics.jsonl", "notes.txt", "training_metrics_2026_1.jsonl", ".x.tmp"):
        assert parse_name(name) is None


def test_two_names_of_users_are_never_one_name_of_a_file() -> None:
    long = "the validation loss of the second half of the epoch, averaged over the last ten of them"
    names = ("loss_spike", "loss spike", "a/b", "a_b", "", "..", "Übel > 3", "损失过高", "温度过高", long, f"{long}!")
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names) and all(re.fullmatch(r"[\w-]{1,100}", name, re.ASCII) for name in safe)
    assert safe[0] == "loss_spike"


def test_stamps_never_go_back() -> None:
    noon = 1_800_000_000.0
    first = next_stamp([], noon)
    second = next_stamp([first], noon)
    assert first < second < next_stamp([first, second], noon - 3600)
    assert next_stamp(["20261231_235959"], noon - 1e7) == "20270101_000000"

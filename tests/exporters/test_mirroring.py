"""What mirrors share: which rows are written, who holds the lock, names and numbers of rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from mirrored import FILE, make_rows, make_run

from trainvitals.exporters.mirroring import (
    MirrorBusy,
    MirrorState,
    RunNews,
    read_numbers,
    read_step,
    read_subject,
    read_time,
)
from trainvitals.exporters.rows import RunRow
from trainvitals.journal.flat_config import flatten


def test_rows_that_were_saved_as_written_are_not_new_for_the_next_process(tmp_path: Path) -> None:
    rows = make_rows([{"loss": 1.0}] * 10)
    state = MirrorState(tmp_path, "probe", "here")
    assert state.select_new(rows) == rows
    state.mark_written(rows[:4])
    state.values["id"] = "abc"
    state.save()
    state.mark_written(rows)  # and not saved
    state.close()
    again = MirrorState(tmp_path, "probe", "here")
    assert again.select_new(rows) == rows[4:] and again.values == {"id": "abc"}
    later = make_rows([{"loss": 2.0}], file=FILE.replace("000000", "010000"))
    assert again.select_new([*rows[:1], *later]) == later
    again.close()


def test_rows_that_come_again_or_without_a_number_do_not_make_others_new(tmp_path: Path) -> None:
    rows = make_rows([{"loss": 1.0}] * 10)
    state = MirrorState(tmp_path, "probe", "here")
    state.mark_written(rows)
    late = rows[0]._replace(line=0)
    assert state.select_new([late]) == [late]
    state.mark_written([late])
    state.mark_written(rows[:3])
    assert state.select_new(rows) == []
    state.close()


def test_each_target_has_a_state_of_its_own_which_one_process_holds_at_a_time(tmp_path: Path) -> None:
    state = MirrorState(tmp_path, "probe", "http://user:hunter2hunter2@one")
    with pytest.raises(MirrorBusy):
        MirrorState(tmp_path, "probe", "http://user:hunter2hunter2@one")
    other = MirrorState(tmp_path, "probe", "two")
    state.save()
    other.close()
    state.close()
    assert not any("hunter2" in path.name + path.read_text() for path in (tmp_path / "exports").iterdir())
    MirrorState(tmp_path, "probe", "http://user:hunter2hunter2@one").close()


def test_a_damaged_state_is_an_empty_one(tmp_path: Path) -> None:
    state = MirrorState(tmp_path, "probe", "here")
    state.save()
    state.close()
    (path,) = (tmp_path / "exports").glob("*.json")
    for content in (b'{"values": 3, "writ', b'{"values": 3, "written": []}'):
        path.write_bytes(content)
        again = MirrorState(tmp_path, "probe", "here")
        assert again.values == {} and len(again.select_new(make_rows([{}]))) == 1
        again.close()


def test_what_a_row_measured_is_its_numbers_without_labels_and_texts() -> None:
    gpu = {
        "gpu_index": 1,
        "gpu_uuid": "GPU-1",
        "gpu_name": "x",
        "utilization_percent": 50,
        "state": "ok",
        "power": "NaN",
    }
    (row,) = make_rows([gpu], "gpu")
    found = read_numbers(row)
    assert found.keys() == {"utilization_percent", "power"} and math.isnan(found["power"])
    (logged,) = make_rows([{"loss": 0.5, "note": "text", "done": True}])
    assert read_numbers(logged) == {"loss": 0.5, "done": 1.0}
    assert (read_step(logged), read_time(logged)) == (0, 1_800_000_000.0)


@pytest.mark.parametrize(
    ("row", "subject"),
    [
        (RunRow("training", 0, {}), ""),
        (RunRow("training", 3, {}), "rank3"),
        (RunRow("training", 0, {}, "rollout"), "rollout.rank0"),
        (RunRow("gpu", None, {"gpu_index": 2}), "gpu2"),
        (RunRow("gpu", None, {"gpu_index": 2, "mig_index": 1}), "gpu2.1"),
        (RunRow("process", None, {"rank": 1}), "rank1"),
        (RunRow("system", None, {"host": "box"}), ""),
    ],
)
def test_whom_a_row_is_about_is_part_of_a_name(row: RunRow, subject: str) -> None:
    assert read_subject(row) == subject


def test_a_nested_config_becomes_one_mapping() -> None:
    nested = {"lr": 0.1, "optimizer": {"name": "adam", "betas": [0.9, 0.99], "more": {}}}
    assert flatten(nested) == {
        "lr": 0.1,
        "optimizer.name": "adam",
        "optimizer.betas": [0.9, 0.99],
        "optimizer.more": {},
    }


def test_run_json_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", notes="first")
    news = RunNews(run)
    first = news.look()
    assert first is not None and first.notes == "first"
    assert news.look() is None
    make_run(tmp_path / "r", notes="second")
    second = news.look()
    assert second is not None and second.notes == "second"

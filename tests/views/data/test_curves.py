"""Curves of many runs in one answer, read from their folders."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_runs
import numpy as np
import pytest
from made_sweep import make_sweep

from trainvitals.journal.folder_runs import FolderRuns
from trainvitals.views.data.comparison import decisive
from trainvitals.views.data.curves import CurveCache, describe_curves, group_rows
from trainvitals.views.data.run_details import describe_row
from trainvitals.views.data.run_rows import list_rows
from trainvitals.views.data.shapes import RowJson

Ask = Callable[..., Any]


@pytest.fixture
def sweep(tmp_path: Path) -> FolderRuns:
    """Twelve runs of four configurations, three seeds of each."""
    make_sweep(tmp_path, 12, steps=50, seeds=3)
    return FolderRuns(tmp_path)


def rows_of(runs: FolderRuns) -> list[RowJson]:
    return [describe_row(row) for row in list_rows(runs)]


def test_every_run_is_a_line_of_its_own_values(sweep: FolderRuns) -> None:
    found = describe_curves(rows_of(sweep), sweep.open, CurveCache(), names=["train/loss"])
    assert (found["total"], found["left_out"], len(found["lines"])) == (12, 0, 12)
    assert [series["line"] for series in found["series"]] == list(range(12))
    first = found["series"][0]
    (logged,) = sweep.open(found["lines"][0]["runs"][0]).series(["train/loss"])
    assert list(first["x"]) == list(logged.x) and list(first["y"]) == list(logged.y) and "low" not in first


def test_the_seeds_of_an_experiment_are_one_line_with_their_mean(sweep: FolderRuns) -> None:
    found = describe_curves(rows_of(sweep), sweep.open, CurveCache(), names=["train/loss"], group="experiment")
    assert len(found["lines"]) == 4 and all(len(line["runs"]) == 3 for line in found["lines"])
    assert all("lr=" in line["title"] and "seed" not in line["title"] for line in found["lines"])
    series, line = found["series"][0], found["lines"][0]
    logged = [sweep.open(key).series(["train/loss"])[0].y for key in line["runs"]]
    assert list(series["y"]) == pytest.approx(list(np.mean(logged, axis=0)))
    assert list(series["low"]) == list(np.min(logged, axis=0)) and list(series["counts"]) == [3] * 50
    assert series["members"] == 3


def test_without_names_the_decisive_metrics_are_chosen(sweep: FolderRuns) -> None:
    found = describe_curves(rows_of(sweep), sweep.open, CurveCache())
    assert set(found["names"]) == {"train/loss", "val/acc"} and len(found["series"]) == 24


@pytest.mark.parametrize("loss", ["loss", "train/loss", "train_loss"])
def test_the_training_loss_comes_first_whatever_it_is_called(loss: str) -> None:
    assert decisive(["val/loss", "val/acc", "grad_norm", loss])[0] == loss


def test_a_metric_of_a_run_is_read_again_only_when_its_files_changed(
    sweep: FolderRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, cache = rows_of(sweep), CurveCache()
    read: list[tuple[str, list[str]]] = []
    original = type(sweep.open(rows[0]["key"])).series

    def count(reader: Any, names: Any, **more: Any) -> Any:
        read.append((reader.info.id, list(names)))
        return original(reader, names, **more)

    monkeypatch.setattr(type(sweep.open(rows[0]["key"])), "series", count)

    def ask(*names: str, **more: Any) -> list[tuple[str, list[str]]]:
        read.clear()
        describe_curves(rows, sweep.open, cache, names=names, **more)
        return sorted(read)

    ids = sorted(row["id"] for row in rows)
    everything = ["train/loss", "val/acc", "epoch"]
    assert ask("train/loss", group="config.lr") == [(run, everything) for run in ids], "what comes next is read along"
    for more in ({"group": "config.lr"}, {"group": "experiment", "band": "std"}, {}, {"points": 10}):
        assert ask("train/loss", **more) == []
    assert ask("train/loss", "val/acc") == [] and ask("train/loss", axis="epoch") == []
    assert ask("train/loss", "never") == [(run, ["never"]) for run in ids]
    assert ask("val/acc", "never") == [], "that it was never logged is known as well"
    made_runs.write(sweep.folder(rows[3]["key"]), [{"step": 50, "train/loss": 9.0}])
    assert ask("train/loss") == [(rows[3]["id"], everything)]


def test_fewer_points_keep_what_stands_out(tmp_path: Path) -> None:
    folder = made_runs.make_run(tmp_path / "p" / "a", name="a", project="p")
    made_runs.write(folder, ({"step": at, "loss": 50.0 if at == 321 else 1.0} for at in range(1000)))
    runs = FolderRuns(tmp_path)
    (series,) = describe_curves(rows_of(runs), runs.open, CurveCache(), names=["loss"], points=20)["series"]
    assert len(series["x"]) <= 20 and series["total"] == 1000
    assert dict(zip(series["x"], series["y"], strict=True))[321] == 50.0


def test_seeds_are_one_line_without_being_asked_where_most_runs_are_seeds(sweep: FolderRuns) -> None:
    rows = rows_of(sweep)
    auto = describe_curves(rows, sweep.open, CurveCache(), names=["train/loss"], group="auto")
    assert auto["group"] == "experiment" and len(auto["lines"]) == 4
    first = {row["key"] for row in rows if row["config"]["seed"] == 0}
    alone = [row for row in rows if row["key"] in first]
    plain = describe_curves(alone, sweep.open, CurveCache(), names=["train/loss"], group="auto")
    assert plain["group"] == "" and len(plain["lines"]) == 4
    again = [{**row, "config": {**row["config"], "seed": 0}} for row in rows]
    same = describe_curves(again, sweep.open, CurveCache(), group="auto")  # type: ignore[arg-type]
    assert same["group"] == "", "the same seed again is no other seed"


def test_any_metric_is_the_axis_also_within_a_range(sweep: FolderRuns) -> None:
    rows, cache = rows_of(sweep), CurveCache()
    (logged,) = sweep.open(rows[0]["key"]).series(["train/loss"])
    whole = describe_curves(rows, sweep.open, cache, names=["train/loss"], axis="epoch")["series"][0]
    assert list(whole["x"]) == pytest.approx([at / 10 for at in range(50)]) and list(whole["y"]) == list(logged.y)
    some = describe_curves(rows, sweep.open, cache, names=["train/loss"], axis="epoch", within=(1.0, 2.0))
    assert list(some["series"][0]["x"]) == pytest.approx([at / 10 for at in range(10, 21)])
    assert list(some["series"][0]["y"]) == list(logged.y[10:21])
    grouped = describe_curves(rows, sweep.open, cache, names=["train/loss"], axis="epoch", group="experiment")
    assert list(grouped["series"][0]["x"]) == pytest.approx([at / 10 for at in range(50)])
    assert describe_curves(rows, sweep.open, cache, names=["train/loss"], axis="tokens")["series"] == []


def test_what_is_kept_stays_within_its_bytes(sweep: FolderRuns) -> None:
    rows, cache = rows_of(sweep), CurveCache(most_bytes=3 * 50 * 16)
    describe_curves(rows, sweep.open, cache, names=["train/loss"])
    assert 0 < cache._bytes <= 3 * 50 * 16


def test_a_run_that_was_removed_meanwhile_is_a_line_without_a_curve(sweep: FolderRuns) -> None:
    rows = rows_of(sweep)
    (sweep.folder(rows[0]["key"]) / "run.json").unlink()
    found = describe_curves(rows, sweep.open, CurveCache(), names=["train/loss"])
    assert {series["line"] for series in found["series"]} == set(range(1, 12))


def row(key: str, tags: list[str], **config: Any) -> RowJson:
    return {"key": key, "name": key, "tags": tags, "config": config, "attempt": 1}  # type: ignore[typeddict-item]


def test_groups_are_in_the_order_of_their_values_and_what_is_missing_comes_last() -> None:
    rows = [row("a", ["x", "y"], width=128), row("b", [], width=64), row("c", ["y"])]
    keys = lambda found: [(group.title, [item["key"] for item in group.rows]) for group in found]  # noqa: E731
    assert keys(group_rows(rows, "config.width")) == [("64", ["b"]), ("128", ["a"]), ("none", ["c"])]
    assert keys(group_rows(rows, "tags")) == [("x", ["a"]), ("y", ["a", "c"]), ("none", ["b"])]
    assert keys(group_rows(rows, "attempt")) == [("1", ["a", "b", "c"])]
    bare = [row("a", []), row("b", [])]
    assert keys(group_rows(bare, "experiment")) == [("a", ["a"]), ("b", ["b"])], "nothing says that they are the same"


def test_experiments_that_differ_beyond_the_first_keys_are_told_apart() -> None:
    grid = itertools.product((1, 2), repeat=6)
    configs = [dict(zip("abcdef", values, strict=True)) for values in grid]
    rows = [row(f"{at}-{seed}", [], seed=seed, **config) for at, config in enumerate(configs) for seed in (0, 1)]
    groups = group_rows(rows, "experiment")
    assert len(groups) == 64 and {len(group.rows) for group in groups} == {2}
    assert len({group.title for group in groups}) == len({group.id for group in groups}) == 64
    assert groups[0].title == "a=1, b=1, c=1, d=1, e=1, f=1"
    known = {group.rows[0]["key"]: group.id for group in groups}
    fewer = group_rows(rows[:6], "experiment")
    assert [group.title for group in fewer] == ["e=1, f=1", "e=1, f=2", "e=2, f=1"]
    assert [group.id for group in fewer] == [known[group.rows[0]["key"]] for group in fewer]


def test_a_title_of_an_experiment_has_no_key_that_tells_it_from_nothing() -> None:
    rows = [row(str(at), [], a=at, b=at, c=at, d=at, e=at, f=0) for at in range(3)]
    assert [group.title for group in group_rows(rows, "experiment")] == [
        f"a={at}, b={at}, c={at}, d={at}, …" for at in range(3)
    ]
    rows += [row("other", [], a=0, b=0, c=0, d=0, e=0, f=1)]
    assert [group.title for group in group_rows(rows, "experiment")][:2] == [
        "a=0, b=0, c=0, d=0, f=0, …",
        "a=0, b=0, c=0, d=0, f=1, …",
    ]

"""log_image, log_table, log_text, log_histogram: what is kept, what is refused, and that the loop goes on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
from trainvitals.errors import MetricError
from trainvitals.journal.contracts import MediaItem
from trainvitals.journal.reader import RunReader
from trainvitals.trainer import media
from trainvitals.trainer.media import count
from trainvitals.trainer.run import Run


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    yield
    trainvitals.finish()


@pytest.fixture
def run() -> Run:
    return trainvitals.init(project="p")


def kept(run: Run) -> list[MediaItem]:
    return RunReader(run.folder).media()


def table_of(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kept(run)[-1].read())
    return found


def test_media_belong_to_the_last_step_unless_another_is_named(run: Run) -> None:
    run.log_text("answer", "before the first")
    run.log({"loss": 1.0}, step=7)
    run.log_text("answer", "seven")
    run.log_text("answer", "three", step=3)
    run.log_text("answer", "numpy", step=np.int64(4))  # type: ignore[arg-type]
    assert [(item.step, item.read()) for item in kept(run)] == [
        (None, b"before the first"), (7, b"seven"), (3, b"three"), (4, b"numpy"),
    ]  # fmt: skip
    run.log({"loss": 1.0})
    assert run.step == 8


def test_nothing_is_imported_for_a_program_that_has_no_arrays(tmp_path: Path) -> None:
    script = """
    import sys, trainvitals
    run = trainvitals.init(project="p")
    run.log_image("a", [[0, 255], [255, 0]])
    run.log_image("b", [[[1.0, 0.0, 0.5]]])
    run.log_table("t", [{"x": 1}])
    run.log_histogram("h", [1, 2, 2.5])
    run.log_text("s", "hello")
    run.finish()
    found = {"numpy", "PIL", "matplotlib", "torch", "pandas"} & set(sys.modules)
    print(run.media_left_out, sorted(found), run.folder)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, env=os.environ
    )
    left_out, found, folder = done.stdout.split()
    assert (left_out, found) == ("0", "[]")
    assert [item.kind for item in RunReader(Path(folder)).media()] == ["image", "image", "table", "histogram", "text"]


def test_a_kept_text_has_no_secrets(run: Run) -> None:
    run.log_text("prompt", "use hf_abcdefghijklmnopqrstuvwxyzABCDEFGH as the token")
    run.log_image("a", [[0]], caption="password=hunter2secret")
    run.log_table("t", {"user": ["ann"], "api_key": ["abcdefghijklmnop"], "note": ["password=hunter2secret"]})
    text = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file())
    assert b"hf_abcdef" not in text and b"hunter2" not in text and b"abcdefghijklmnop" not in text
    assert table_of(run)["data"][0][0] == "ann"


@pytest.mark.parametrize(
    ("table", "columns", "expected"),
    [
        ([[1, "a"], [2, "b"]], ["x", "y"], (["x", "y"], [[1, "a"], [2, "b"]])),
        ([{"x": 1}, {"y": True, "x": None}], None, (["x", "y"], [[1, None], [None, True]])),
        ({"x": [1, 2], "y": np.array([0.5, np.nan])}, None, (["x", "y"], [[1, 0.5], [2, "NaN"]])),
        (np.eye(2), None, (["0", "1"], [[1.0, 0.0], [0.0, 1.0]])),
        ([[1], [2, 3]], None, (["0", "1"], [[1, None], [2, 3]])),
        ([[1, 2]], ["x", "x"], (["x", "x (2)"], [[1, 2]])),
        ([[np.float32(0.5), np.int64(3), 2**70, (1, 2)]], None, None),
        ([], ["x"], (["x"], [])),
    ],
)
def test_a_table_may_have_any_usual_form(run: Run, table: Any, columns: Any, expected: Any) -> None:
    run.log_table("t", table, columns=columns)
    found = table_of(run)
    if expected is None:
        assert found["data"] == [[0.5, 3, hex(2**70), [1, 2]]]
    else:
        assert (found["columns"], found["data"]) == expected


def test_a_frame_is_a_table(run: Run) -> None:
    pandas = pytest.importorskip("pandas")
    run.log_table("t", pandas.DataFrame({"epoch": [1, 2], "when": pandas.to_datetime(["2026-01-01", "2026-01-02"])}))
    assert table_of(run) == {
        "columns": ["epoch", "when"],
        "data": [[1, "2026-01-01T00:00:00"], [2, "2026-01-02T00:00:00"]],
    }


def test_a_long_table_keeps_its_first_rows_and_counts_the_others(run: Run) -> None:
    run.log_table("t", [[n] for n in range(10_050)])
    assert len(table_of(run)["data"]) == 10_000
    assert kept(run)[0].facts["rows"] == 10_050
    assert run.media_left_out == 50


@pytest.mark.parametrize(
    "values",
    [[1, 2, 2, 3], np.array([[1, 2], [2, 3]]), [[1.0], (2, 2), [3]], (np.array([1, 2, 1]), np.array([1, 1.5, 2.5, 3]))],
)
def test_a_histogram_counts_every_number(run: Run, values: Any) -> None:
    run.log_histogram("h", values, step=2, bins=4)
    reader = RunReader(run.folder)
    (row,) = reader.histograms("h")
    assert reader.histogram_names() == ["h"]
    assert (row["step"], row["low"], row["high"], sum(row["counts"])) == (2, 1, 3, 4)


def test_the_bins_of_a_list_are_those_of_numpy() -> None:
    numbers = np.random.default_rng(0).normal(size=1000)
    assert count(numbers.tolist(), 16).counts == np.histogram(numbers, 16)[0].tolist() == count(numbers, 16).counts


def test_what_is_not_finite_is_counted_apart() -> None:
    assert count([1.0, float("nan"), float("inf"), 1.0]) == (1.0, 1.0, [2], 2)
    assert count(np.array([1.0, np.nan, -np.inf, 1.0])) == (1.0, 1.0, [2], 2)


def test_a_histogram_that_comes_late_is_found_behind_many_others(run: Run) -> None:
    run.log_histogram("early", [1, 2], step=0)
    rows = b"".join(
        b'{"timestamp":"2026-01-01T00:00:00.000Z","step":%d,"name":"early","low":0,"high":1,"counts":[%s],"nonfinite":0}\n'
        % (step, b",".join([b"10"] * 64))
        for step in range(9000)
    )
    with open(run.folder / "media/histograms.rank0.jsonl", "ab") as file:
        file.write(rows)
    run.log_histogram("late", [1, 2], step=9001)
    assert RunReader(run.folder).histogram_names() == ["early", "late"]
    assert len(RunReader(run.folder).histograms("late")) == 1


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("image", np.zeros((5, 6, 7))),
        ("image", np.zeros((0, 3))),
        ("image", object()),
        ("image", [[1, 2], [3]]),
        ("image", "/nowhere/at/all.png"),
        ("image", b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"),
        ("image", np.array([["a", "b"]])),
        ("image", [np.zeros((2, 2))] * 65),
        ("table", "text"),
        ("table", 3),
        ("table", {"a": [1], "b": [1, 2]}),
        ("table", [[1, 2], {"a": 1}]),
        ("histogram", ["a"]),
        ("histogram", []),
        ("histogram", [float("nan")]),
        ("histogram", None),
    ],
)
def test_what_cannot_be_shown_is_counted_and_warned_about_once(
    run: Run, kind: str, value: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        getattr(run, f"log_{kind}")("x", value)
    assert (run.media_left_out, kept(run)) == (2, [])
    assert capfd.readouterr().err.count("not kept") == 1
    run.finish()
    assert [row.event for row in RunReader(run.folder).events() if row.event == "media_left_out"] == ["media_left_out"]


class Hostile:
    shape = (2, 2)

    def __array__(self, *args: Any, **more: Any) -> Any:
        raise RuntimeError("no")


def test_an_object_that_raises_does_not_stop_the_loop(run: Run) -> None:
    run.log_image("x", Hostile())
    run.log_text("x", "fine")
    assert [item.kind for item in kept(run)] == ["text"]
    assert run.refused == 1


def test_strict_mode_raises_what_cannot_be_shown() -> None:
    run = trainvitals.init(project="p", strict=True)
    with pytest.raises(MetricError, match="log_image"):
        run.log_image("x", object())


def test_limits_of_a_file_and_of_a_run_are_kept(capfd: pytest.CaptureFixture[str]) -> None:
    run = trainvitals.init(project="p", media_file_mb=0.01, media_size_mb=0.1)
    run.log_text("large", "x" * 20_000)
    for step in range(20):
        run.log_text("small", f"{step} " + "x" * 9_000, step=step)
    assert len(kept(run)) == 11
    assert run.media_left_out == 10
    assert capfd.readouterr().err.count("not kept") == 2


def test_more_than_the_rate_is_left_out(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(media.time, "monotonic", lambda: 100.0)
    for step in range(media.BURST + 5):
        run.log_text("t", str(step), step=step)
    assert (len(kept(run)), run.media_left_out) == (media.BURST, 5)
    monkeypatch.setattr(media.time, "monotonic", lambda: 101.0)
    run.log_text("t", "later")
    assert len(kept(run)) == media.BURST + 1


@pytest.mark.promise("media/ of the run folder cannot be written", "media are skipped and counted; the loop continues")
def test_a_folder_that_cannot_be_written_costs_only_the_media(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (run.folder / "media").write_text("in the way")
    for _ in range(3):
        run.log_image("x", [[0]])
        run.log_histogram("h", [1])
    run.log({"loss": 1.0})
    assert run.media_left_out == 6 and run.step == 0
    assert capfd.readouterr().err.count("not kept") == 2


@pytest.mark.promise("the disk is full", "a media file that does not fit is removed and counted")
def test_a_file_that_does_not_fit_leaves_nothing(run: Run) -> None:
    run.log_text("t", "small", step=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        run.log_text("t", "x" * 100_000, step=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    run.log_text("t", "again", step=2)
    assert [item.step for item in kept(run)] == [0, 2]
    assert sorted(path.name for path in (run.folder / "media/text/t").iterdir()) == ["0.txt", "2.txt"]
    assert run.media_left_out == 1


def test_a_forked_worker_and_its_parent_log_side_by_side(run: Run) -> None:
    run.log_text("t", "parent", step=0)
    child = os.fork()
    if child == 0:
        try:
            run.log_text("t", "child", step=0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert sorted(item.read() for item in kept(run)) == [b"child", b"parent"]


def test_other_ranks_are_named(tmp_path: Path) -> None:
    run = trainvitals.init(project="p", rank=2, world_size=4, dir=str(tmp_path / "r"))
    run.log_text("t", "two")
    run.log_histogram("h", [1, 2], step=1)
    assert {item.participant.rank for item in kept(run)} == {2}
    assert len(RunReader(run.folder).histograms("h")) == 1


def test_after_the_end_nothing_is_kept(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run.finish()
    run.log_text("t", "late")
    assert kept(run) == []
    assert "after finish()" in capfd.readouterr().err

"""init, log, finish: as a training uses them, in a process of its own."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainvitals
from trainvitals.errors import JournalError, MetricError, RunNotFound, SettingError, TrainvitalsError
from trainvitals.journal import folder as run_folder
from trainvitals.journal import registrations
from trainvitals.journal.damage import Damage
from trainvitals.journal.documents.cause import CUT_OFF, Cause
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.identity import Participant
from trainvitals.journal.reader import RunReader, open_run
from trainvitals.journal.run_info import list_runs
from trainvitals.trainer.refusals import MAX_NAMES
from trainvitals.trainer.run import Run


@pytest.fixture(autouse=True)
def quiet_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No agent, folders of our own, no launcher's variables."""
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    yield
    trainvitals.finish()


def training(script: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False,
    )  # fmt: skip


def values(run: Run | RunReader, name: str) -> list[float]:
    series = RunReader(run.folder).series([name])
    return series[0].y.tolist() if series else []


def read_run(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "run.json").read_text()))


# -- what a user does


def test_the_readme_example_leaves_every_number_and_a_finished_run() -> None:
    run = trainvitals.init(project="mnist", name="baseline", config={"lr": 1e-3})
    for step in range(1000):
        run.log({"loss": 1 / (step + 1), "learning_rate": 1e-3}, step=step)
    run.finish()
    assert values(run, "loss") == [1 / (step + 1) for step in range(1000)]
    details = read_run(run.folder)
    assert details["status"] == "finished" and details["config"] == {"lr": 1e-3}
    assert details["name"] == "baseline" and details["project"] == "mnist" and details["last_step"] == 999
    assert run.folder.parent.name == "mnist" and run.folder.name.endswith(run.id)


def test_module_level_log_and_finish_use_the_current_run() -> None:
    run = trainvitals.init()
    trainvitals.log({"loss": 1.0})
    trainvitals.log(loss=2.0)
    trainvitals.finish()
    assert values(run, "loss") == [1.0, 2.0]
    assert trainvitals.current_run() is None


def test_without_a_step_each_call_is_one_more() -> None:
    with trainvitals.init() as run:
        run.log({"a": 1})
        run.log({"a": 2})
        run.log({"a": 3}, step=10)
        run.log({"a": 4})
    (series,) = RunReader(run.folder).series(["a"])
    assert series.x.tolist() == [0, 1, 10, 11]


def test_a_step_inside_the_metrics_is_the_step() -> None:
    with trainvitals.init() as run:
        run.log({"step": 7, "loss": 1.0})
        run.log({"step": 9, "loss": 2.0}, step=8)
    (series,) = RunReader(run.folder).series(["loss"])
    assert series.x.tolist() == [7, 8]


def test_nested_mappings_are_flattened_and_keyword_arguments_join() -> None:
    with trainvitals.init() as run:
        run.log({"val": {"loss": 1.0, "top": {"5": 0.9}}, "loss": 2.0}, accuracy=0.5)
    assert RunReader(run.folder).names() == ["accuracy", "loss", "val/loss", "val/top/5"]


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 1e308, -0.0, 5e-324, 2**53, -(2**63), 2**64, 10**400, True, 0.1]
)
def test_hard_numbers_survive(value: float) -> None:
    with trainvitals.init() as run:
        run.log({"x": value, "y": 1.0}, step=0)
    (back,) = values(run, "x")
    expected = float(value) if not isinstance(value, int) or abs(value) < 10**300 else math.inf
    assert math.isnan(back) if math.isnan(expected) else (back == expected and str(back) == str(expected))


def test_numpy_scalars_and_arrays_of_one_value_are_numbers() -> None:
    with trainvitals.init() as run:
        run.log(
            {
                "a": np.float32(0.1),
                "b": np.int64(3),
                "c": np.array(2.5),
                "d": np.array([4.0]),
                "e": np.bool_(True),
            }
        )
    assert [values(run, name) for name in "abcde"] == [[float(np.float32(0.1))], [3.0], [2.5], [4.0], [1.0]]
    assert run.refused == 0


class DeviceArray:
    """An array that a device has not finished yet, with the interface that JAX arrays have."""

    shape = ()

    def __init__(self, value: float) -> None:
        self._value = value
        self.done = False
        self.waited = 0

    def is_ready(self) -> bool:
        return self.done

    def item(self) -> float:
        if not self.done:
            self.waited += 1
        return self._value

    def __radd__(self, other: object) -> DeviceArray:
        return self  # queued on the device: nobody waits yet

    __sub__ = __radd__

    def __eq__(self, other: object) -> bool:
        self.waited += 1  # the answer must come from the device
        return False

    __hash__ = None  # type: ignore[assignment]


def test_a_value_on_a_device_is_never_waited_for_and_comes_when_it_is_ready() -> None:
    slow = DeviceArray(3.5)
    with trainvitals.init() as run:
        run.log({"loss": slow, "lr": 0.1}, step=0)
        run.log({"lr": 0.2}, step=1)
        assert values(run, "lr") == [0.1, 0.2] and values(run, "loss") == []
        slow.done = True
        run.log({"lr": 0.3}, step=2)
        (series,) = RunReader(run.folder).series(["loss"])
        assert series.x.tolist() == [0] and series.y.tolist() == [3.5]
    assert slow.waited == 0
    assert values(run, "lr") == [0.1, 0.2, 0.3]


@pytest.mark.promise("a value on a GPU never becomes ready", "`finish()` does not hang; the value is counted")
def test_a_value_that_never_gets_ready_is_counted_and_finish_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trainvitals.trainer.logging_run.DEVICE_WAIT_SECONDS", 0.1)
    run = trainvitals.init()
    run.log({"loss": DeviceArray(1.0)})
    run.finish()
    assert run.refused == 1


def test_values_behind_one_that_never_gets_ready_are_kept(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr("trainvitals.trainer.logging_run.DEVICE_WAIT_SECONDS", 0.1)
    ready = DeviceArray(2.0)
    with trainvitals.init() as run:
        run.log({"loss": DeviceArray(1.0), "other": ready}, step=0)
        run.log({"loss": ready}, step=1)
        ready.done = True
    assert values(run, "loss") == [2.0] and values(run, "other") == [2.0] and run.refused == 1
    assert "never arrived from the device, not logged: 1" in capfd.readouterr().err


def test_more_values_on_a_device_than_are_kept_do_not_make_the_loop_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainvitals.trainer.pending.LIMIT", 3)
    arrays = [DeviceArray(float(step)) for step in range(5)]
    with trainvitals.init() as run:
        for step, array in enumerate(arrays):
            run.log({"loss": array}, step=step)
        assert [array.waited for array in arrays] == [0] * 5
        for array in arrays:
            array.done = True
    assert values(run, "loss") == [2.0, 3.0, 4.0] and run.refused == 2


@pytest.mark.parametrize("value", ["text", "x" * 5_000_000, [1, 2], (1,), {1}, np.zeros(3), 1j, object(), b"bytes"])
def test_what_is_no_number_is_refused_in_strict_mode_and_counted_otherwise(value: object, capfd: Any) -> None:
    with trainvitals.init() as run:
        for step in range(3):
            run.log({"odd": value, "loss": 1.0}, step=step)
    assert run.refused == 3
    assert values(run, "loss") == [1.0, 1.0, 1.0] and values(run, "odd") == []
    assert capfd.readouterr().err.count("not a number") == 1
    strict = trainvitals.init(strict=True)
    with pytest.raises(MetricError, match="odd"):
        strict.log({"odd": value})


def test_every_refused_name_is_told_of_once_but_not_without_end(capfd: Any) -> None:
    with trainvitals.init() as run:
        for step in range(3):
            run.log({"prompt": "text", "image": [1, 2], "loss": 1.0}, step=step)
        told = capfd.readouterr().err
        assert told.count("'prompt' is") == 1 and told.count("'image' is") == 1
        for step in range(3, 1000):
            run.log({f"text_{step}": "text"}, step=step)
    assert capfd.readouterr().err.count("not a number") == MAX_NAMES - 2
    assert run.refused == 6 + 997


def test_what_is_no_mapping_is_refused_and_none_is_nothing() -> None:
    with trainvitals.init() as run:
        run.log(3.0)  # type: ignore[arg-type]
        run.log(None)
        run.log({})
        run.log({"loss": None, "lr": 1.0})
        run.log({"timestamp": 5.0, "lr": 2.0})
        run.log({"lr": 3.0}, step="ten")  # type: ignore[arg-type]
    assert run.refused == 3
    assert values(run, "lr") == [1.0, 2.0, 3.0] and RunReader(run.folder).damage().foreign == 0


def test_the_last_step_in_run_json_is_the_one_logged_last_and_absent_where_there_was_none() -> None:
    with trainvitals.init() as run:
        run.log({"loss": 1.0}, step=102)
        run.log({"loss": 0.5}, step=8)
    assert read_run(run.folder)["last_step"] == 8
    with trainvitals.init() as idle:
        pass
    assert "last_step" not in read_run(idle.folder)


def test_an_empty_mapping_leaves_no_line_whatever_its_step() -> None:
    with trainvitals.init() as run:
        for step in range(3):
            run.log({"loss": 1.0}, step=step)
            run.log({}, step=step)
    assert RunReader(run.folder).damage().foreign == 0
    assert sum(1 for _ in RunReader(run.folder).rows()) == 3


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, 1.0),
        (Decimal("0.125"), 0.125),
        (Fraction(1, 4), 0.25),
        (2**64 - 1, 2.0**64),
        (10**400, math.inf),
        pytest.param(-(10**5000), -math.inf, id="5001 digits"),
        (5e-324, 5e-324),
        (np.float16(0.5), 0.5),
        (np.longdouble(1.5), 1.5),
    ],
)
def test_numbers_of_every_kind_are_numbers(value: Any, expected: float) -> None:
    with trainvitals.init() as run:
        run.log({"x": 0.0}, step=0)
        run.log({"x": value}, step=1)
    assert values(run, "x") == [0.0, expected] and run.refused == 0


@pytest.mark.parametrize(
    "step", [pytest.param(10**5000, id="5001 digits"), -(2**64), math.nan, math.inf, np.uint64(2**64 - 1), "ten", [1]]
)
def test_a_step_that_is_none_is_said_and_the_line_kept(step: Any, capfd: Any) -> None:
    with trainvitals.init() as run:
        run.log({"loss": 1.0}, step=6)
        run.log({"loss": 2.0}, step=step)
    (series,) = RunReader(run.folder).series(["loss"])
    assert series.x.tolist() == [6, 7] and series.y.tolist() == [1.0, 2.0]
    assert run.refused == 1 and "logged as step 7" in capfd.readouterr().err


@pytest.mark.parametrize("step", [-5, 0, 2**61, np.int32(4), np.int64(-3), 2.0, True])
def test_negative_large_and_numpy_steps_are_steps(step: Any) -> None:
    with trainvitals.init() as run:
        run.log({"loss": 1.0}, step=step)
    assert RunReader(run.folder).series(["loss"])[0].x.tolist() == [int(step)] and run.refused == 0


def test_a_key_from_an_enumeration_of_texts_is_its_text() -> None:
    class Name(str, Enum):  # noqa: UP042 - as much code still has it
        LOSS = "loss"

    with trainvitals.init() as run:
        run.log({Name.LOSS: 1.0}, step=0)
    assert values(run, "loss") == [1.0]


def test_keys_of_every_kind_are_kept() -> None:
    keys = ["a\nb", 'q"uote', "😀", "", "null", "x" * 1000, "\ud800", "\x00"]
    with trainvitals.init() as run:
        run.log({**dict.fromkeys(keys, 1.0), 5: 2.0}, step=0)  # type: ignore[dict-item]
    names = RunReader(run.folder).names()
    assert len(names) == len(keys) + 1 and {"a\nb", "😀", "", "5", "\x00", "\\ud800"} <= set(names)


@pytest.mark.promise("a logged object raises when it is converted", "the training goes on")
def test_an_object_that_raises_does_not_stop_the_training() -> None:
    class Bomb:
        def __radd__(self, other: object) -> object:
            raise RuntimeError("boom")

        shape = property(lambda self: (_ for _ in ()).throw(RuntimeError("boom")))

    with trainvitals.init() as run:
        run.log({"bomb": Bomb(), "loss": 1.0}, step=0)
    assert values(run, "loss") == [1.0] and run.refused == 1


def test_logging_after_the_end_is_counted_and_said_once(capfd: Any) -> None:
    run = trainvitals.init()
    run.finish()
    run.log({"loss": 1.0}, step=0)
    run.log({"loss": 1.0}, step=1)
    run.finish()
    assert run.refused == 2 and capfd.readouterr().err.count("has ended") == 1


@pytest.mark.promise("eight threads log at once", "every line is complete and written once")
def test_eight_threads_may_log_at_once() -> None:
    with trainvitals.init(rotate_size_mb=0.05) as run:

        def work(start: int) -> None:
            for step in range(start, start + 2000):
                run.log({"loss": float(step)}, step=step)

        threads = [threading.Thread(target=work, args=(k * 2000,)) for k in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    reader = RunReader(run.folder)
    assert reader.series(["loss"])[0].y.tolist() == [float(step) for step in range(16_000)]
    assert reader.damage().torn == 0


@pytest.mark.promise("the training forks", "the child logs to a separate file and does not end the run")
def test_a_forked_child_logs_into_a_file_of_its_own_and_does_not_end_the_run() -> None:
    run = trainvitals.init()
    run.log({"loss": 0.0}, step=0)
    child = os.fork()
    if child == 0:
        run.log({"worker": 1.0}, step=0)
        run.finish()
        os._exit(0)
    os.waitpid(child, 0)
    run.log({"loss": 1.0}, step=1)
    assert RunReader(run.folder).info.is_live
    run.finish()
    (worker,) = RunReader(run.folder).series(["worker"])
    assert worker.labels["pid"] == child and values(run, "loss") == [0.0, 1.0]


def test_a_forked_child_may_begin_a_run_of_its_own_and_leaves_its_parents_alone(capfd: Any) -> None:
    run = trainvitals.init(name="parent")
    child = os.fork()
    if child == 0:
        with trainvitals.init(name="child") as other:
            other.log({"loss": 1.0}, step=0)
        os._exit(0)
    os.waitpid(child, 0)
    assert RunReader(run.folder).info.is_live and "was still active" not in capfd.readouterr().err
    run.log({"loss": 2.0}, step=0)
    run.finish()
    assert values(run, "loss") == [2.0] and open_run("child").info.status == "finished"


def test_a_copied_model_that_holds_the_run_holds_the_same_run() -> None:
    with trainvitals.init() as run:
        assert copy.deepcopy({"run": run})["run"] is run and copy.copy(run) is run
        assert pickle.loads(pickle.dumps(run)) is run


def test_a_spawned_worker_that_is_handed_the_run_logs_into_a_file_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing, os
            import trainvitals

            def work(run):
                run.log({"worker": float(os.getpid())}, step=3)
                run.finish()             # not the worker's to end
                trainvitals.log({"x": 1.0})  # there is no run of its own: said, not raised

            if __name__ == "__main__":
                run = trainvitals.init(name="spawning")
                run.log({"loss": 1.0}, step=0)
                for _ in range(2):
                    worker = multiprocessing.get_context("spawn").Process(target=work, args=(run,))
                    worker.start()
                    worker.join()
                    assert worker.exitcode == 0
                run.log({"loss": 2.0}, step=1)
                run.finish()
        """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reader = open_run("spawning")
    assert values(reader, "loss") == [1.0, 2.0] and reader.info.status == "finished"
    workers = reader.series(["worker"])
    assert [item.y.tolist() for item in workers] == [[float(item.labels["pid"])] for item in workers]
    assert len(workers) == 2 and done.stderr.count("a worker process without a run") == 2


def test_module_level_log_after_the_end_is_said_and_not_raised(capfd: Any) -> None:
    run = trainvitals.init()
    trainvitals.finish()
    trainvitals.log({"loss": 1.0})
    trainvitals.log({"loss": 1.0})
    assert capfd.readouterr().err.count("has ended") == 1 and run.refused == 2


def test_module_level_log_without_init_is_an_error() -> None:
    done = training("import trainvitals; trainvitals.log({'loss': 1.0})")
    assert done.returncode == 1 and "log() called before init()" in done.stderr


@pytest.mark.promise("`log()` while the interpreter shuts down", "no crash and no changed exit code")
def test_logging_while_the_interpreter_goes_down_harms_nothing() -> None:
    done = training(
        """
        import trainvitals
        run = trainvitals.init(name="late")

        class Model:
            def __del__(self):
                run.log({"loss": 3.0}, step=2)
                log({"loss": 3.0}, step=3)

        log = trainvitals.log
        run.log({"loss": 1.0}, step=0)
        model = Model()
        model.itself = model    # freed by the last collection, when most of the interpreter is gone
        """
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert values(open_run("late"), "loss")[0] == 1.0


def test_a_program_that_leaves_without_saying_so_loses_nothing() -> None:
    training(
        """
        import os, trainvitals
        run = trainvitals.init(name="gone")
        for step in range(100):
            run.log({"loss": float(step)}, step=step)
        os._exit(3)
        """
    )
    assert values(open_run("gone"), "loss") == [float(step) for step in range(100)]


def test_a_run_folder_may_have_any_name(tmp_path: Path) -> None:
    root = tmp_path / "two words\nand a line" / "😀 'quoted' \"twice\""
    with trainvitals.init(dir=root, project="p") as run:
        run.log({"loss": 1.0}, step=0)
    assert run.folder.is_relative_to(root) and values(run, "loss") == [1.0]


@pytest.mark.promise("the disk fills up and is freed again", "no line is lost, duplicated or reordered")
def test_a_disk_that_fills_up_and_has_room_again_costs_no_line(small_disk: Path, capfd: Any) -> None:
    with trainvitals.init(dir=small_disk, capture_git=False) as run:
        run.log({"loss": 0.0}, step=0)
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"x" * 150_000)
        for step in range(1, 3000):
            run.log({"loss": float(step)}, step=step)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert values(run, "loss") == [float(step) for step in range(3000)]
    assert RunReader(run.folder).damage() == Damage(), "nothing was lost"
    said = capfd.readouterr().err
    assert said.count("No space left") == 1 and said.count("is writable again") == 1


@pytest.mark.promise("the disk stays full", "the training continues; lost lines are counted and reported")
def test_a_disk_that_stays_full_is_survived_and_what_is_lost_is_said(small_disk: Path, capfd: Any) -> None:
    run = trainvitals.init(dir=small_disk, capture_git=False)
    (small_disk / "ballast").write_bytes(b"x" * 150_000)
    for step in range(3000):
        run.log({"loss": float(step)}, step=step)
    run.finish()
    kept = values(run, "loss")
    assert kept == [float(step) for step in range(len(kept))]
    assert f"{3000 - len(kept)} lines could not be written" in capfd.readouterr().err


def remount(place: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(place)], check=True)


@pytest.mark.parametrize("ranks", [{}, {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}])
@pytest.mark.promise("a read-only disk", "one warning; the training continues; lost lines are counted")
def test_a_read_only_disk_is_said_once_the_training_goes_on_and_what_is_lost_is_counted(
    small_disk: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch, ranks: dict[str, str]
) -> None:
    for key, value in ranks.items():
        monkeypatch.setenv(key, value)
    remount(small_disk, "ro")
    with trainvitals.init(dir=small_disk, project="p") as run:
        said = capfd.readouterr().err
        assert said.count("Read-only") == 1 and "Training continues" in said and "TRAINVITALS_DIR" in said
        for step in range(100):
            run.log({"loss": 1.0}, step=step)
        run.event("checkpoint")
        run.add_config({"lr": 1})
        assert run.dropped == 0 and capfd.readouterr().err == ""
    assert run.dropped == 101
    assert "100 lines could not be written" in (said := capfd.readouterr().err) and said.count("\n") == 1
    with pytest.raises(JournalError, match="Read-only"):
        trainvitals.init(dir=small_disk, project="p", strict=True)


@pytest.mark.promise("a run starts on a read-only disk", "it is complete once the disk is writable")
def test_a_run_that_began_on_a_read_only_disk_is_whole_once_it_can_be_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = itertools.count(time.time_ns(), 1_000_000_000)
    monkeypatch.setattr("trainvitals.trainer.logging_run._time_ns", lambda: next(seconds))
    monkeypatch.setattr("trainvitals.journal.writer.RETRY_SECONDS", 0.0)
    remount(small_disk, "ro")
    with trainvitals.init(dir=small_disk, name="late", capture_git=False, config={"lr": 1}) as run:
        run.log({"loss": 0.0}, step=0)
        remount(small_disk, "rw")
        run.log({"loss": 1.0}, step=1)
        assert values(run, "loss") == [0.0, 1.0] and read_run(run.folder)["config"] == {"lr": 1}
        assert [item.run_id for _, item in registrations.read_all()] == [run.id], "the agent is told"
    assert read_run(run.folder)["status"] == "finished" and run.dropped == 0


def test_a_run_that_ends_just_as_the_disk_can_be_written_is_whole(small_disk: Path) -> None:
    remount(small_disk, "ro")
    with trainvitals.init(dir=small_disk, capture_git=False) as run:
        run.log({"loss": 0.0}, step=0)
        remount(small_disk, "rw")
    assert values(run, "loss") == [0.0] and read_run(run.folder)["status"] == "finished"


@pytest.mark.promise("the folder of a live run is removed", "one warning; later lines are counted as lost")
def test_a_run_folder_that_is_removed_is_said_once_and_the_lines_after_it_are_counted(
    capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainvitals.init()
    run.log({"loss": 0.0}, step=0)
    run.event("checkpoint")
    shutil.rmtree(run.folder)
    seconds = itertools.count(time.time_ns() + 2_000_000_000, 1_000_000_000)
    monkeypatch.setattr("trainvitals.trainer.logging_run._time_ns", lambda: next(seconds))
    monkeypatch.setattr("trainvitals.trainer.run.CLOSE_SECONDS", 0.0)
    for step in range(1, 4):
        run.log({"loss": 1.0}, step=step)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and f"{run.folder} was removed" in said
    run.finish()
    assert run.dropped == 3 and "3 lines could not be written" in capfd.readouterr().err
    assert not run.folder.exists()


def test_a_run_folder_that_is_removed_just_before_the_end_is_said(capfd: Any) -> None:
    run = trainvitals.init()
    run.log({"loss": 0.0}, step=0)
    shutil.rmtree(run.folder)
    run.finish()
    assert "was removed" in capfd.readouterr().err


@pytest.mark.promise("the clock is set back by an hour", "every line is kept, in order")
def test_a_clock_set_back_an_hour_keeps_every_line_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    hour = 3_600_000_000_000
    clock = itertools.chain([now, now + 5_000_000, now - hour], itertools.count(now - hour + 5_000_000, 400_000_000))
    monkeypatch.setattr("trainvitals.trainer.logging_run._time_ns", lambda: next(clock))
    with trainvitals.init() as run:
        for step in range(50):
            run.log({"loss": float(step)}, step=step)
    assert values(run, "loss") == [float(step) for step in range(50)]
    stamps = [row["timestamp"] for row in RunReader(run.folder).rows()]
    assert len(stamps) == 50 and stamps[-1] < stamps[0]


def test_a_hundred_thousand_names_at_once() -> None:
    with trainvitals.init() as run:
        run.log({f"layer.{number}": float(number) for number in range(100_000)}, step=0)
        run.log({"loss": 1.0}, step=1)
    assert len(RunReader(run.folder).names()) == 100_001 and values(run, "loss") == [1.0]


def test_two_runs_of_one_name_are_two_runs() -> None:
    folders = []
    for value in (1.0, 2.0):
        with trainvitals.init(name="twin") as run:
            run.log({"loss": value}, step=0)
        folders.append(run.folder)
    assert len(set(folders)) == 2 and values(RunReader(folders[0]), "loss") == [1.0]


def test_a_run_that_another_process_still_writes_can_be_resumed_and_both_keep_their_lines() -> None:
    run = trainvitals.init(name="shared")
    run.log({"loss": 1.0}, step=0)
    script = """
        import trainvitals
        with trainvitals.init(resume="shared") as run:
            run.log({"loss": 10.0}, step=1)
    """
    done = training(script)
    assert done.returncode == 0, done.stderr
    run.log({"loss": 2.0}, step=1)
    run.log({"late": 3.0}, step=2)
    run.finish()
    details = read_run(run.folder)
    assert (details["attempt"], details["status"]) == (2, "finished")
    reader = RunReader(run.folder)
    assert [(row["step"], row["loss"]) for row in reader.rows() if "loss" in row] == [(0, 1.0), (1, 2.0), (1, 10.0)]
    assert reader.damage().torn == 0


@pytest.mark.promise("two processes resume one run at the same time", "neither loses a line")
def test_two_processes_that_resume_one_run_at_once_lose_nothing() -> None:
    with trainvitals.init(name="both") as run:
        run.log({"loss": 0.0}, step=0)
    script = """
        import sys, trainvitals
        with trainvitals.init(resume="both") as run:
            for step in range(1, 300):
                run.log({sys.argv[1]: float(step)}, step=step)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    workers = [subprocess.Popen([*command, name]) for name in ("one", "other")]
    assert [worker.wait() for worker in workers] == [0, 0]
    rows = list(RunReader(run.folder).rows())
    for name in ("one", "other"):
        assert [row[name] for row in rows if name in row] == [float(step) for step in range(1, 300)]


def test_a_second_init_ends_the_first_run() -> None:
    first = trainvitals.init(name="same")
    second = trainvitals.init(name="same")
    assert first.id != second.id
    assert read_run(first.folder)["status"] == "finished"


def test_summary_gives_last_lowest_and_highest_with_their_steps_and_the_mean() -> None:
    with trainvitals.init() as run:
        for step, loss in enumerate([3.0, 1.0, float("nan"), 3.5, 2.5]):
            run.log({"loss": loss}, step=step)
        summary = run.summary["loss"]
    assert (summary.last, summary.low, summary.low_step, summary.high, summary.high_step) == (2.5, 1.0, 1, 3.5, 3)
    assert (summary.mean, summary.count, summary.nonfinite) == (2.5, 5, 1)


def test_lines_have_the_correlation_id_on_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    for asked in (False, True):
        with trainvitals.init(correlation_ids=asked) as run:
            run.log({"loss": 1.0}, step=5)
            run.log({"loss": float("nan")})
            run.write_row(6, {"batch_time": 0.5}, time.time_ns() // 1000)
        lines = [json.loads(line) for path in run.folder.glob("training_*.jsonl") for line in path.open()]
        expected = {"0af7651916cd43dd8448eb211c80319c"} if asked else {None}
        assert len(lines) == 3 and {row.get("correlation_id") for row in lines} == expected
        assert list(lines[0])[:2] == ["timestamp", "step"]
        reader = trainvitals.open_run(run.folder)
        assert list(reader.names()) == ["batch_time", "loss"]
        assert [row.get("correlation_id") for row in reader.rows()] == [row.get("correlation_id") for row in lines]


def test_events_carry_the_correlation_id_and_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with trainvitals.init() as run:
        run.log({"loss": 1.0}, step=5)
        run.event("checkpoint", "saved", path=Path("model.pt"))
    (event,) = RunReader(run.folder).events()
    assert event.event == "checkpoint" and event.step == 5 and event.data == {"path": "model.pt"}
    assert event.correlation_id == "0af7651916cd43dd8448eb211c80319c" == read_run(run.folder)["correlation_id"]


# -- resume


def test_resume_appends_an_attempt_and_overwrites_nothing() -> None:
    with trainvitals.init(project="p", name="r") as first:
        for step in range(10):
            first.log({"loss": float(step)}, step=step)
    with trainvitals.init(project="p", resume=first.id) as second:
        assert second.folder == first.folder and second.attempt == 2
        second.log({"loss": 100.0}, step=5)
        second.log({"loss": 101.0})
    assert values(second, "loss") == [0, 1, 2, 3, 4, 100, 101]
    details = read_run(first.folder)
    assert [item["number"] for item in details["attempts"]] == [1, 2]
    assert [item["status"] for item in details["attempts"]] == ["finished", "finished"]
    with trainvitals.init(project="p", name="r", resume=True) as third:
        third.log({"loss": 1.0})
        assert third.attempt == 3 and third.step == 7


def test_the_newest_of_several_runs_of_one_second_is_the_one_that_was_begun_last() -> None:
    names = ["zeta", "middle", "alpha"]
    for name in names:
        trainvitals.init(name=name).finish()
    assert [info.name for info in list_runs(os.environ["TRAINVITALS_DIR"])] == names
    assert open_run("latest", os.environ["TRAINVITALS_DIR"]).info.name == "alpha"
    with trainvitals.init(resume=True) as resumed:
        assert resumed.name == "alpha"


def test_resume_of_nothing_starts_anew_or_says_what_is_missing(capfd: Any) -> None:
    run = trainvitals.init(resume=True)
    assert run.attempt == 1 and "no earlier run" in capfd.readouterr().err
    with pytest.raises(RunNotFound):
        trainvitals.init(resume="no-such-run")


# -- how it ends


@pytest.mark.parametrize(
    ("ending", "status", "cause"),
    [
        ("run.finish()", "finished", None),
        ("pass", "finished", None),
        ("raise ValueError('bad batch')", "failed", "ValueError: bad batch"),
        ("run.finish('failed')", "failed", None),
        ("raise KeyboardInterrupt", "killed", "interrupted"),
    ],
)
def test_the_end_is_recorded_as_it_was(ending: str, status: str, cause: str | None) -> None:
    done = training(f"import trainvitals\nrun = trainvitals.init(name='r')\nrun.log({{'loss': 1.0}})\n{ending}\n")
    details = read_run(open_run("r", os.environ["TRAINVITALS_DIR"]).folder)
    assert details["status"] == status
    assert details["attempts"][-1]["status"] == status
    assert cause is None or cause in details["cause"]
    expected = {
        "pass": 0,
        "run.finish()": 0,
        "run.finish('failed')": 0,
        "raise KeyboardInterrupt": -signal.SIGINT,
    }
    assert done.returncode == expected.get(ending, 1)


def test_a_with_block_records_the_exception_and_lets_it_through() -> None:
    run = trainvitals.init()
    with pytest.raises(ZeroDivisionError), run:
        _ = 1 / 0
    details = read_run(run.folder)
    assert details["status"] == "failed" and "ZeroDivisionError" in details["cause"]
    (event,) = RunReader(run.folder).events()
    assert "1 / 0" in event.data["traceback"]


@pytest.mark.promise("`kill -9` of the training", "every line for which `log()` returned is read back")
def test_a_killed_training_loses_nothing_it_logged() -> None:
    script = """
        import os, trainvitals
        run = trainvitals.init(name="r", rotate_size_mb=0.1)
        for step in range(10**9):
            run.log({"loss": float(step), "nan": float("nan")}, step=step)
            os.write(1, b"%d\\n" % step)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(2000):
        process.stdout.readline()
    process.kill()
    rest = process.stdout.read().splitlines()
    last = int(rest[-1]) if rest else 1999
    process.wait()
    run = open_run("r", os.environ["TRAINVITALS_DIR"])
    assert values(run, "loss")[: last + 1] == [float(step) for step in range(last + 1)]
    assert len(values(run, "nan")) >= last + 1
    assert run.info.status == "crashed"


@pytest.mark.promise(
    "a program with handlers, hooks and logging set up", "signals, hooks, logging and streams are left as they were"
)
def test_nothing_of_the_host_is_changed() -> None:
    done = training("""
        import logging, signal, sys, threading, warnings
        def state():
            return ([signal.getsignal(n) for n in signal.valid_signals()], sys.excepthook, sys.displayhook, sys.stdout,
                    sys.stderr, logging.root.handlers[:], logging.root.level, warnings.filters[:],
                    threading.active_count(), threading.excepthook, sys.gettrace(), sys.getprofile())
        before = state()
        import trainvitals
        run = trainvitals.init()
        run.log({"loss": 1.0})
        during = state()
        run.finish()
        assert before == during == state()
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_importing_imports_no_third_party_module() -> None:
    done = training("""
        import sys
        before = set(sys.modules)
        import trainvitals
        dir(trainvitals)
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        print(sorted(new - set(sys.stdlib_module_names)))
    """)
    assert done.stdout.strip() == "['trainvitals']"


def test_a_training_imports_nothing_heavy() -> None:
    done = training("""
        import sys, trainvitals
        ours = ("journal.follower", "settings.docs_page")
        heavy = ["numpy", "duckdb", "psutil", "pynvml", "torch", "yaml", "difflib", *(f"trainvitals.{n}" for n in ours)]
        with trainvitals.init() as run:
            run.log({"loss": 1.0})
            print([name for name in heavy if name in sys.modules])
    """)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_folder_that_cannot_be_made_is_an_error_at_the_start_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainvitalsError, match="TRAINVITALS_DIR"):
        trainvitals.init(dir=tmp_path / "file" / "runs")


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(SettingError, match="did you mean 'interval'"):
        trainvitals.init(intervall=2)


@pytest.mark.promise(
    "secrets in the config, the environment and the command", "they are redacted before anything is written"
)
def test_secrets_do_not_reach_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz012345")
    done = training(
        "import trainvitals; trainvitals.init(name='r', config={'api_key': 'plain-secret', 'lr': 1}).finish()",
        "--token", "sk-1234567890abcdefghijklmnop",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    folder = open_run("r", os.environ["TRAINVITALS_DIR"]).folder
    text = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    for secret in ("hf_abcdefghijkl", "plain-secret", "sk-1234567890"):
        assert secret not in text
    assert read_run(folder)["config"]["lr"] == 1


def text_of(folder: Path) -> str:
    """Everything that stands in the folder, the names of its files and its own included."""
    return str(folder) + "".join(f"{path}{path.read_text()}" for path in folder.rglob("*") if path.is_file())


def test_secrets_in_what_a_program_says_do_not_reach_the_folder() -> None:
    token = "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"
    run = trainvitals.init(name=f"try {token}", notes=f"with {token}", tags=["small", token], redact=["house_*"])
    run.event("login", f"as {token}", api_key="abc123secret", house_number="number 17", path="a.pt")
    with pytest.raises(RuntimeError), run:
        raise RuntimeError(f"no login with {token} at https://bob:pw123@host/x" + "." * 500 + token)
    text = text_of(run.folder)
    for secret in (token, token[:12], token.replace("_", "-").lower(), "abc123secret", "pw123", "number 17"):
        assert secret not in text
    details = read_run(run.folder)
    assert details["tags"] == ["[redacted]", "small"] and details["notes"] == "with [redacted]"
    assert details["cause"].startswith("RuntimeError: no login with [redacted] at https://[redacted]@host/x...")
    login, failed = RunReader(run.folder).events()
    assert login.message == "as [redacted]" and login.data["path"] == "a.pt"
    assert failed.data["traceback"].rstrip().endswith(".[redacted]")


def test_a_program_that_ends_itself_with_a_secret_in_its_last_words_does_not_leave_it_in_the_folder() -> None:
    done = training("""
        import sys, trainvitals
        with trainvitals.init(name="r"):
            sys.exit("no login with ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789")
    """)
    assert done.returncode == 1
    folder = open_run("r", os.environ["TRAINVITALS_DIR"]).folder
    assert "ghp_aBc" not in text_of(folder)
    assert read_run(folder)["cause"] == "exit code 1: no login with [redacted]"


def test_the_end_of_a_long_traceback_is_kept_and_an_exception_that_cannot_be_told_is_survived() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError("not even this")

    with pytest.raises(Odd), trainvitals.init(name="odd") as run:
        raise Odd from ValueError("x" * 50_000)
    assert read_run(run.folder)["status"] == "failed" and read_run(run.folder)["cause"].startswith("Odd")
    (failed,) = RunReader(run.folder).events()
    assert "raise Odd from" in failed.data["traceback"]


# -- many ranks

RANKS = """
    import os, sys, time, trainvitals
    run = trainvitals.init(project="p", name="many")
    for step in range(5):
        run.log({"loss": float(run.rank * 100 + step)}, step=step)
    all_ranks = 1 if "TRAINVITALS_RANK_ZERO_ONLY" in os.environ else int(os.environ["WORLD_SIZE"])
    for _ in range(60_000):  # nobody ends before all have come: a run that has ended is not joined for ever
        if len(list(run.folder.glob("training_metrics_*"))) >= all_ranks:
            break
        time.sleep(0.01)
    run.finish()
    print(run.folder)
"""


def launch(size: int, program: str = RANKS, **more: str) -> list[str]:
    """All ranks at once, as a launcher starts them: children of one parent with its variables."""
    script = textwrap.dedent(f"""
        import os, subprocess, sys
        jobs = []
        for rank in range({size}):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="{size}", LOCAL_WORLD_SIZE="{size}",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
            env.update({more!r})
            jobs.append(subprocess.Popen([sys.executable, "-c", {textwrap.dedent(program)!r}], env=env,
                                         stdout=subprocess.PIPE, text=True))
        for job in jobs:
            print(job.communicate()[0].strip())
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_all_ranks_of_a_launch_share_one_run_with_a_file_each() -> None:
    folders = launch(4)
    assert len(folders) == 4 and len(set(folders)) == 1
    run = RunReader(folders[0])
    assert [series.rank for series in run.series(["loss"])] == [0, 1, 2, 3]
    assert run.series(["loss"], participants=[Participant(rank=3)])[0].y.tolist() == [300, 301, 302, 303, 304]
    assert run.info.file.world_size == 4 and run.info.status == "finished"


def test_ranks_whose_launcher_does_not_say_how_many_are_here_share_one_run() -> None:
    folders = launch(4, LOCAL_WORLD_SIZE="", MASTER_ADDR="10.0.0.1")
    assert len(folders) == 4 and len(set(folders)) == 1


def test_ranks_that_a_script_numbers_below_run_share_its_run(tmp_path: Path) -> None:
    program = tmp_path / "rank.py"
    program.write_text(textwrap.dedent(RANKS))
    script = f'for r in 0 1 2; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 "{sys.executable}" "{program}" & done; wait'
    command = [sys.executable, "-m", "trainvitals", "run", "--", "sh", "-c", script]
    subprocess.run(command, capture_output=True, check=True)
    (folder,) = (path.parent for path in (tmp_path / "runs").glob("*/*/run.json"))
    assert [series.rank for series in RunReader(folder).series(["loss"])] == [0, 1, 2]


def test_a_second_launch_with_the_same_address_is_a_run_of_its_own() -> None:
    assert launch(2)[0] != launch(2)[0]


def test_runs_that_ranks_begin_one_after_the_other_are_each_shared_and_never_mixed() -> None:
    program = """
        import os, time, trainvitals
        if os.environ["RANK"] == "1":
            trainvitals.init(project="of its own", rank=0, world_size=1).finish()
        for number in range(3):
            with trainvitals.init(project="p", name="sweep") as run:
                run.log({"loss": float(number)}, step=0)
            print(run.folder, flush=True)
            time.sleep(0.2 * run.rank)
    """
    folders = launch(2, program)
    first, second = folders[:3], folders[3:]
    assert first == second and len(set(first)) == 3
    for number, folder in enumerate(first):
        assert [series.y.tolist() for series in RunReader(folder).series(["loss"])] == [[number], [number]]


@pytest.mark.parametrize(("first", "cause"), [(1, "rank 1: ValueError: bad"), (0, "ValueError: bad")])
def test_the_rank_that_failed_first_tells_why(first: int, cause: str) -> None:
    program = f"""
        import time, trainvitals
        try:
            with trainvitals.init(project="p") as run:
                print(run.folder, flush=True)
                run.event("failed", "an event of the program's own")
                while run.rank != {first} and "bad" not in "".join(
                    path.read_text() for path in run.folder.glob("events_*.rank{first}.jsonl")
                ):
                    time.sleep(0.01)
                raise ValueError("bad") if run.rank == {first} else RuntimeError("connection closed by peer")
        except (ValueError, RuntimeError):
            pass
    """
    folders = launch(2, program)
    assert len(set(folders)) == 1
    details = read_run(Path(folders[0]))
    assert (details["status"], details["cause"]) == ("failed", cause)
    assert details["attempts"][-1]["cause"] == cause


def test_rank_zero_only_leaves_the_other_ranks_silent() -> None:
    folders = launch(3, TRAINVITALS_RANK_ZERO_ONLY="1")
    assert [series.rank for series in RunReader(folders[0]).series(["loss"])] == [0]


def test_init_under_trainvitals_run_joins_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainvitals.journal import folder as run_folder

    made = tmp_path / "runs" / "default" / "wrapped"
    run_folder.create(made)
    run_folder.write_run(made, RunFile.parse({"id": "wrapped", "project": "default", "name": "w", "kind": "command",
                                "status": "running", "attempt": 1, "command": "python train.py"}))  # fmt: skip
    monkeypatch.setenv("TRAINVITALS_RUN_DIR", str(made))
    with trainvitals.init(config={"lr": 1}) as run:
        run.log({"loss": 1.0})
    assert run.folder == made and run.id == "wrapped"
    details = read_run(made)
    assert details["command"] == "python train.py" and details["config"] == {"lr": 1}
    assert details["status"] == "finished" and details["kind"] == "training"
    with trainvitals.init() as another:  # a second training under the same command is a run of its own
        assert another.folder != made


def test_a_process_that_its_supervisor_ends_says_so_and_the_run_goes_on(tmp_path: Path) -> None:
    run = trainvitals.init(dir=tmp_path, agent=False)
    run.leave()
    ((_, found),) = registrations.read_all(run.id)
    assert found.goodbye == "finished"
    assert run_folder.read_run(run.folder).status == "running"
    run.finish()
    run.leave()  # too late to say anything
    assert run_folder.read_run(run.folder).status == "finished"


def test_attempts_that_nobody_ended_are_ended_and_the_newest_is_not() -> None:
    attempts = [{"number": 1, "status": "failed"}, {"number": 2, "status": "running"}, {"number": 3}]
    found = RunFile.parse({"attempt": 3, "attempts": attempts}).end_earlier("killed", Cause(kind=CUT_OFF), 0.0)
    assert [item.status for item in found.attempts] == ["failed", "killed", "running"]
    assert found.attempts[1].ended == "1970-01-01T00:00:00.000000Z" and found.attempts[0].ended is None

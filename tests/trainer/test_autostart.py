"""Trainings that never heard of us, under `trainvitals run`; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from waiting import GENTLE_EXIT

from trainvitals.journal.reader import RunReader
from trainvitals.trainer import autostart

PLAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(32, 4)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for epoch in range(2):
    for batch, target in DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8):
        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(losses)
"""


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINVITALS_AGENT", "0")
    monkeypatch.setenv("TRAINVITALS_SUMMARY", "0")
    # A look that a busy machine interrupts uses the budget up, and the steps after it would go without their norm.
    monkeypatch.setenv("TRAINVITALS_WATCH_BUDGET_PERCENT", "0")
    monkeypatch.setenv("TRAINVITALS_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("TRAINVITALS_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TRAINVITALS_RUN_DIR", "TRAINVITALS_ROLE"):
        monkeypatch.delenv(name, raising=False)


def trainvitals_run(tmp_path: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainvitals", "run", "--", *command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **env},
        check=False,
    )


def write(path: Path, text: str) -> Path:
    path.write_text(textwrap.dedent(text))
    return path


def folders(tmp_path: Path) -> list[Path]:
    return sorted(path.parent for path in (tmp_path / "runs").glob("*/*/run.json"))


def read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob(pattern)) for line in path.read_text().splitlines()]


def test_a_plain_loop_is_watched_without_a_change(tmp_path: Path) -> None:
    script = write(tmp_path / "train.py", PLAIN)
    alone = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == alone.stdout  # the training gave the same numbers
    (folder,) = folders(tmp_path)
    lines = read(folder, "training_metrics_*.jsonl")
    assert [line["step"] for line in lines] == list(range(8))
    assert [line["loss"] for line in lines] == pytest.approx(json.loads(done.stdout))
    assert [line["epoch"] for line in lines] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert all(line["learning_rate"] == 0.01 and line["gradient_norm"] > 0 for line in lines)
    for line in lines:
        assert min(line[f"{phase}_time"] for phase in ("batch", "data", "forward", "backward", "optimizer")) > 0
    run = json.loads((folder / "run.json").read_text())
    assert (run["status"], run["exit_code"]) == ("finished", 0)


def test_it_goes_through_torchrun_modules_and_subprocesses(tmp_path: Path) -> None:
    write(
        tmp_path / "trainer_module.py",
        """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        dist.destroy_process_group()
        """,
    )
    write(
        tmp_path / "start.py",
        """
        import subprocess, sys
        sys.exit(subprocess.call([sys.executable, "-m", "torch.distributed.run", "--standalone",
                                  "--nproc-per-node=2", "-m", "trainer_module"]))
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "start.py", **GENTLE_EXIT)
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    for rank in (0, 1):
        lines = read(folder, f"training_metrics_*.rank{rank}.jsonl")
        assert [line["step"] for line in lines] == [0, 1, 2, 3]
        assert all("loss" in line and "gradient_norm" in line for line in lines)


def test_a_program_that_saves_scripts_and_sends_its_model_works_as_before(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch, torch.multiprocessing as mp

        def use(index, model):
            assert model(torch.ones(1, 4)).shape == (1, 1)

        if __name__ == "__main__":
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                model(torch.ones(2, 4)).mean().backward()
                optimizer.step()
            torch.save(model, "model.pt")
            with torch.serialization.safe_globals([torch.nn.Linear]):
                torch.load("model.pt", weights_only=True)
            torch.jit.script(model)
            mp.spawn(use, (model,), nprocs=1)
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    assert [line["step"] for line in read(folder, "training_metrics_*")] == [0, 1, 2]


def test_a_script_that_logs_itself_gets_the_phases_into_its_own_run_and_keeps_its_loss(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch, trainvitals
        run = trainvitals.init(project="mine", config={"lr": 0.1})
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            optimizer.step()
            run.log({"loss": 42.0}, step=step)
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    lines = read(folder, "training_metrics_*.jsonl")
    assert [line["loss"] for line in lines if "loss" in line] == [42.0] * 4
    assert [line["step"] for line in lines if "watch_time" in line] == [0, 1, 2, 3]


def test_a_first_step_that_is_clipped_has_its_norm_before_clipping_and_an_evaluation_after_it_is_its_own(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "train.py",
        """
        import time, torch
        generator, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.001) for m in (generator, critic)]
        norms, moments = [], []
        for step in range(4):
            moments.append(time.perf_counter())
            for model, optimizer in zip((generator, critic), optimizers):
                optimizer.zero_grad()
                (100 * critic(generator(torch.ones(2, 4))).square().mean() + 100).backward()
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).item())
                optimizer.step()
            if not step:
                time.sleep(0.5)
        print([[(a * a + b * b) ** 0.5 for a, b in zip(norms[::2], norms[1::2])], moments[3] - moments[1]])
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    norms, two_steps = json.loads(done.stdout)
    (folder,) = folders(tmp_path)
    lines = read(folder, "training_metrics_*.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert [line["gradient_norm"] for line in lines] == pytest.approx(norms)
    assert all(line["loss/generator"] > 100 and line["loss/critic"] > 100 for line in lines)
    assert lines[0]["other_time"] >= 0.5 and lines[1]["batch_time"] < two_steps
    assert not read(folder, "events_*.jsonl")


def test_weights_updated_by_hand_are_a_training_too(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch
        model = torch.nn.Linear(4, 1)
        losses = []
        for _ in range(5):
            model.zero_grad()
            loss = (model(torch.ones(2, 4)) - 1).square().mean()
            loss.backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
            losses.append(loss.item())
        print(losses)
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    lines = read(folder, "training_metrics_*.jsonl")
    assert [line["loss"] for line in lines] == pytest.approx(json.loads(done.stdout))


def test_an_explicit_watch_takes_the_place_of_ours(tmp_path: Path) -> None:
    write(
        tmp_path / "train.py",
        """
        import torch, trainvitals
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(count):
            for _ in range(count):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
        train(2)                               # before it asks for anything
        run = trainvitals.init(project="mine")
        run.watch(model, optimizer, flops_per_step=1e6)
        train(3)
        """,
    )
    done = trainvitals_run(tmp_path, sys.executable, "train.py")
    assert done.returncode == 0, done.stderr
    assert "was still active" not in done.stderr
    (folder,) = folders(tmp_path)
    lines = read(folder, "training_metrics_*.jsonl")
    assert [("loss" in line, "flops_per_sec" in line) for line in lines] == [(True, False)] * 2 + [(False, True)] * 3


def test_a_program_that_trains_nothing_is_left_alone(tmp_path: Path) -> None:
    code = "import sys; print(sorted(m for m in sys.modules if m.startswith('trainvitals')), sys.meta_path[0])"
    done = trainvitals_run(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.partition("]")[0]
    assert "trainvitals.trainer.run" not in loaded
    (folder,) = folders(tmp_path)
    assert not list(folder.glob("training_metrics_*"))


def test_a_program_in_which_no_training_was_seen_is_told_so_once_and_one_that_trains_is_not(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PLAIN)
    said = []
    for arguments in (["-c", "import torch"], ["train.py"]):
        done = trainvitals_run(tmp_path, sys.executable, *arguments, TRAINVITALS_SUMMARY="1")
        assert done.returncode == 0, done.stderr
        said.append(done.stderr.count("no training was detected"))
    assert said == [1, 0]
    events = [[row["event"] for row in read(folder, "events_*.jsonl")] for folder in folders(tmp_path)]
    assert events == [["no_training"], []]


def test_the_setting_turns_it_off(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PLAIN)
    done = trainvitals_run(tmp_path, sys.executable, "train.py", TRAINVITALS_AUTOSTART="false")
    assert done.returncode == 0
    (folder,) = folders(tmp_path)
    assert not list(folder.glob("training_metrics_*"))


def test_exit_code_and_traceback_are_those_of_the_program(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PLAIN + "\nraise SystemExit(7)\n")
    assert trainvitals_run(tmp_path, sys.executable, "train.py").returncode == 7


# -- sitecustomize


def python(tmp_path: Path, *arguments: str, path: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "TRAINVITALS_RUN_DIR": str(tmp_path), **env}
    environ["PYTHONPATH"] = autostart.python_path(path or None)
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environ, check=False)


def test_the_users_own_sitecustomize_runs_as_before(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "sitecustomize.py", "import builtins\nbuiltins.mine = __name__, __file__\n")
    code = "import builtins, sys, sitecustomize; print(*builtins.mine, sitecustomize.__file__)"
    done = python(tmp_path, "-c", code, path=str(tmp_path / "mine"))
    assert done.stderr == ""
    name, *files = done.stdout.split()
    assert name == "sitecustomize"
    assert files == [str(tmp_path / "mine" / "sitecustomize.py")] * 2


def test_a_sitecustomize_that_fails_fails_as_before(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "sitecustomize.py", "1 / 0\n")
    done = python(tmp_path, "-c", "print('on it goes')", path=str(tmp_path / "mine"))
    assert done.stdout == "on it goes\n"
    assert "Error in sitecustomize" in done.stderr
    assert "ZeroDivisionError" in done.stderr


def test_usercustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "usercustomize.py", "print('hello from usercustomize')\n")
    done = python(tmp_path, "-c", "import site; import usercustomize", path=str(tmp_path / "mine"))
    assert done.stdout == "hello from usercustomize\n"


def test_an_environment_without_trainvitals_is_left_alone(tmp_path: Path) -> None:
    code = "import sys; print([name for name in sys.modules if 'trainvitals' in name])"
    environ = {**os.environ, "TRAINVITALS_RUN_DIR": str(tmp_path), "PYTHONPATH": str(autostart.SITE)}
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import torch; {code[len('import sys; ') :]}"
    write(tmp_path / "torch.py", "")
    outside = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    done = subprocess.run([outside, "-c", code], capture_output=True, text=True, env=environ, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_the_file_is_understood_by_pythons_older_than_ours() -> None:
    import ast

    tree = ast.parse((autostart.SITE / "sitecustomize.py").read_text(), feature_version=(3, 6))
    assert tree.body


# -- waiting for imports


def test_the_imported_module_looks_as_if_nobody_had_waited_for_it(tmp_path: Path) -> None:
    code = """
    import importlib.util, inspect, sys
    assert type(sys.meta_path[0]).__name__ == "Finder"
    assert "trainvitals" not in sys.modules
    assert importlib.util.find_spec("torch").name == "torch"      # asking is not importing
    import torch
    assert type(torch.__loader__).__name__ == "SourceFileLoader", torch.__loader__
    assert torch.__spec__.loader is torch.__loader__
    assert "Optimizer" in inspect.getsource(torch.optim.Optimizer)
    from torch.optim import optimizer
    print(len(optimizer._global_optimizer_pre_hooks), "trainvitals.trainer.run" in sys.modules)
    """
    done = python(tmp_path, "-c", textwrap.dedent(code))
    assert done.stderr == ""
    assert done.stdout == "1 False\n"  # the hook is placed; nothing else was loaded


def test_a_missing_module_is_missing_as_before(tmp_path: Path) -> None:
    code = "import sys\nsys.path[:] = []\ntry:\n import torch\nexcept ModuleNotFoundError as e:\n print(e)\n"
    assert python(tmp_path, "-c", code).stdout == "No module named 'torch'\n"


def test_an_import_that_fails_fails_the_same_and_may_be_tried_again(tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    write(tmp_path / "fake" / "torch.py", "raise OSError('libcudart is missing')\n")
    code = "for _ in range(2):\n try:\n  import torch\n except OSError as e:\n  print(e)\n"
    done = python(tmp_path, "-c", code, path=str(tmp_path / "fake"))
    assert done.stdout == "libcudart is missing\n" * 2


def test_a_hook_that_cannot_be_placed_is_an_event_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "fake").mkdir()
    write(tmp_path / "fake" / "torch.py", "version = 'from another age'\n")
    done = python(tmp_path, "-c", "import torch; print(torch.version)", path=str(tmp_path / "fake"))
    assert done.stdout == "from another age\n"
    assert done.stderr == ""
    (event,) = read(tmp_path, "events_*.jsonl")
    assert event["severity"] == "warning"
    assert "cannot hook into torch" in event["message"]


def test_a_run_that_cannot_begin_does_not_stop_the_training(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PLAIN)
    code = "import os; os.environ['TRAINVITALS_INTERVAL'] = 'fast'; exec(open('train.py').read())"
    done = trainvitals_run(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    (event,) = [event for event in read(folder, "events_*.jsonl") if event["event"] == "autostart"]
    assert "the training is not watched: SettingError" in event["message"]


def test_a_file_of_settings_that_breaks_meanwhile_is_ignored_and_the_training_watched(tmp_path: Path) -> None:
    write(tmp_path / "train.py", PLAIN)
    write(tmp_path / "trainvitals.yaml", "interval: 1s\n")
    code = "import pathlib; pathlib.Path('trainvitals.yaml').write_text('intervall: 1s'); exec(open('train.py').read())"
    done = trainvitals_run(tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0 and done.stderr.count("unknown setting 'intervall'") == 1, done.stderr
    (folder,) = folders(tmp_path)
    assert [line["step"] for line in read(folder, "training_metrics_*.jsonl")] == list(range(8))


HOGWILD = """
import sys, torch, torch.multiprocessing as mp

def train(number, barrier):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if "group" in sys.argv:
        torch.distributed.init_process_group("gloo", f"file://{sys.argv[2]}", rank=number, world_size=2)
    for step in range(5):
        loss = (model(torch.ones(1, 2)) * 0 + number).sum()
        loss.backward()
        barrier.wait()
        optimizer.step()

if __name__ == "__main__":
    context = mp.get_context("spawn")
    barrier = context.Barrier(2)
    jobs = [context.Process(target=train, args=(number, barrier)) for number in range(2)]
    [job.start() for job in jobs]
    sys.exit(sum(job.join() or job.exitcode for job in jobs))
"""


def test_spawned_processes_that_train_without_a_rank_are_workers_of_one_run(tmp_path: Path) -> None:
    write(tmp_path / "hogwild.py", HOGWILD)
    done = trainvitals_run(tmp_path, sys.executable, "hogwild.py")
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    series = RunReader(folder).series(["loss"])
    assert [item.participant.title for item in series] == ["worker 0", "worker 1"]
    assert sorted(tuple(item.y) for item in series) == [(0.0,) * 5, (1.0,) * 5]
    assert all(item.x.tolist() == list(range(5)) for item in series)
    details = json.loads((folder / "run.json").read_text())
    assert (details["kind"], details["status"]) == ("training", "finished")
    assert details["command"].endswith("hogwild.py")


def test_spawned_processes_of_one_process_group_are_its_ranks(tmp_path: Path) -> None:
    write(tmp_path / "spawned.py", HOGWILD)
    done = trainvitals_run(tmp_path, sys.executable, "spawned.py", "group", str(tmp_path / "meeting"), **GENTLE_EXIT)
    assert done.returncode == 0, done.stderr
    (folder,) = folders(tmp_path)
    series = RunReader(folder).series(["loss"])
    assert [(item.participant.title, set(item.y.tolist())) for item in series] == [("rank 0", {0.0}), ("rank 1", {1.0})]

"""AccelerateTracker with the real Accelerator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from programs import rows_of, run_automatically
from torch.utils.data import DataLoader, TensorDataset
from watching import lines, steps

import trainvitals

torch.set_num_threads(1)


def fit(accelerator: Accelerator, accumulate: int = 1) -> torch.nn.Module:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 4), torch.randn(16, 1))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=4))
    for number, (inputs, targets) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.log({"loss": loss.item()}, step=(number + 1) // accumulate)
    unwrapped: torch.nn.Module = accelerator.unwrap_model(model)
    return unwrapped


def train(tracker: Any, *, accumulate: int = 1) -> trainvitals.Run:
    accelerator = Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=accumulate)
    accelerator.init_trackers("ignored", config={"lr": 0.1})
    fit(accelerator, accumulate)
    run: trainvitals.Run = accelerator.get_tracker("trainvitals", unwrap=True)
    accelerator.end_training()
    return run


def options(folder: Path) -> dict[str, Any]:
    return {"dir": folder / "runs", "agent": False, "stack_dumps": False}


def test_what_the_program_logs_and_what_is_measured_have_the_same_steps(tmp_path: Path) -> None:
    run = train(trainvitals.AccelerateTracker(**options(tmp_path), project="accelerated"))
    assert [line["step"] for line in lines(run) if "loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in steps(run)] == [1, 2, 3, 4]
    assert all(line["gradient_norm"] > 0 for line in steps(run) if "gradient_norm" in line)
    saved = json.loads((run.folder / "run.json").read_text())
    assert saved["config"]["lr"] == 0.1
    assert saved["project"] == "accelerated"
    assert saved["status"] == "finished"


def test_gradient_accumulation_is_one_step(tmp_path: Path) -> None:
    run = train(trainvitals.AccelerateTracker(**options(tmp_path)), accumulate=2)
    assert [line["step"] for line in steps(run)] == [1, 2]


def test_a_run_that_the_program_began_stays_open(tmp_path: Path) -> None:
    with trainvitals.init(**options(tmp_path)) as mine:
        run = train(trainvitals.AccelerateTracker())
        assert run is mine
        assert trainvitals.current_run() is mine
    assert not (trainvitals.current_run())


def test_without_watching_only_the_programs_numbers_are_there(tmp_path: Path) -> None:
    run = train(trainvitals.AccelerateTracker(**options(tmp_path), watch=False))
    assert steps(run) == []
    assert len(lines(run)) == 4


def same_bits(one: torch.nn.Module, other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.state_dict().items())


def test_the_weights_are_bit_identical_with_and_without_the_tracker(tmp_path: Path) -> None:
    alone = fit(Accelerator(cpu=True))
    watch = {
        "layers_every": 1,
        "histograms_every": 1,
        "activations": ["*"],
        "activations_every": 1,
        "budget_percent": 0,
    }
    accelerator = Accelerator(cpu=True, log_with=trainvitals.AccelerateTracker(**options(tmp_path), watch=watch))
    accelerator.init_trackers("ignored")
    watched = fit(accelerator)
    run: trainvitals.Run = accelerator.get_tracker("trainvitals", unwrap=True)
    accelerator.end_training()
    assert same_bits(alone, watched.state_dict())
    assert any(name.startswith("activation_") for line in steps(run) for name in line)


def test_the_weights_are_bit_identical_under_accelerate_launch_where_nothing_asks_for_us(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parent.parent)!r}]
import torch
from accelerate import Accelerator
from test_accelerate import fit
torch.save(fit(Accelerator(cpu=True)).state_dict(), "weights.pt")
"""
    (tmp_path / "train.py").write_text(program)
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes=1", "--num_machines=1", "train.py")
    (folder,) = run_automatically(tmp_path, *launch)
    alone = fit(Accelerator(cpu=True))
    assert same_bits(alone, torch.load(tmp_path / "weights.pt"))
    assert [row["step"] for row in rows_of(folder, "training_metrics*") if "loss" in row] == [0, 1, 2, 3]


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Any:
    yield
    trainvitals.finish()

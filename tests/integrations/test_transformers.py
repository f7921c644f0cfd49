"""TransformersCallback with the real Trainer, on a tiny random model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from watching import PHASES, events, lines, messages, steps

import trainvitals
from trainvitals.errors import SettingError
from trainvitals.integrations.transformers import translate
from trainvitals.sources import World

torch.set_num_threads(1)


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def make_trainer(folder: Path, *callbacks: TrainerCallback, **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    settings: dict[str, Any] = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "logging_steps": 2,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **arguments,
    }
    args = TrainingArguments(str(folder / "out"), **settings)
    data = Sentences()
    return Trainer(GPT2LMHeadModel(config), args, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))


def callback(folder: Path, **options: Any) -> Any:
    return trainvitals.TransformersCallback(dir=folder / "runs", agent=False, stack_dumps=False, **options)


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Any:
    yield
    trainvitals.finish()


def test_every_step_has_the_trainers_number_its_loss_and_phases_that_add_up(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callback(tmp_path))
    trainer.train()
    run = trainvitals.current_run()
    assert run is not None
    measured = steps(run)
    assert [line["step"] for line in measured] == [1, 2, 3, 4]
    assert [line["epoch"] for line in measured] == [0.5, 1.0, 1.5, 2.0]
    for line in measured:
        assert {"loss", "learning_rate", "gradient_norm"} <= set(line)
        assert sum(line[phase] for phase in PHASES) == pytest.approx(line["batch_time"], rel=0.02)


def test_the_loss_of_a_step_is_the_one_the_trainer_logs(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, callback(tmp_path), logging_steps=1)
    trainer.train()
    run = trainvitals.current_run()
    assert run is not None
    ours = {line["step"]: line["loss"] for line in steps(run)}
    theirs = {row["step"]: row["loss"] for row in trainer.state.log_history if "loss" in row}
    assert ours == pytest.approx(theirs, rel=1e-5)
    norms = {row["step"]: row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row}
    assert {line["step"]: line["gradient_norm"] for line in steps(run)} == pytest.approx(norms, rel=1e-5)


def test_evaluation_best_value_checkpoints_and_hyperparameters_are_kept(tmp_path: Path) -> None:
    strategy = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer = make_trainer(tmp_path, callback(tmp_path, project="tiny"), **strategy)
    trainer.train()
    after = trainer.evaluate()
    run = trainvitals.current_run()
    assert run is not None
    assert run.project == "tiny"
    evaluated = [line["eval/loss"] for line in lines(run) if "eval/loss" in line]
    assert len(evaluated) == 3  # two epochs, and evaluate() after the training
    assert evaluated[-1] == after["eval_loss"]
    assert [line["best/eval/loss"] for line in lines(run) if "best/eval/loss" in line][-1] == trainer.state.best_metric
    saved = [event["data"]["path"] for event in events(run) if event["event"] == "checkpoint"]
    assert [Path(path).name for path in saved] == ["checkpoint-2", "checkpoint-4"]
    assert all(Path(path).is_dir() for path in saved)
    config = json.loads((run.folder / "run.json").read_text())["config"]
    assert config["training_arguments"]["per_device_train_batch_size"] == 2
    assert config["model"]["n_embd"] == 8
    assert config["parameters"] == sum(p.numel() for p in trainer.model.parameters())


def test_a_training_that_resumes_from_a_checkpoint_goes_on_with_its_run(tmp_path: Path) -> None:
    make_trainer(tmp_path, callback(tmp_path), save_strategy="steps", save_steps=2).train()
    first = trainvitals.current_run()
    assert first is not None
    first.finish()
    trainer = make_trainer(tmp_path, callback(tmp_path))
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    second = trainvitals.current_run()
    assert second is not None
    assert second.folder == first.folder
    assert second.attempt == 2
    again = [
        line["step"] for path in second.folder.glob("training*attempt2*") for line in _rows(path) if "loss" in line
    ]
    assert again == [3, 4]
    assert "from step 2" in messages(second)


def test_a_checkpoint_of_a_training_without_us_can_be_resumed_and_saved_again(tmp_path: Path) -> None:
    make_trainer(tmp_path, save_strategy="steps", save_steps=2).train()
    shutil.rmtree(tmp_path / "out" / "checkpoint-4")
    trainer = make_trainer(tmp_path, callback(tmp_path), save_strategy="steps", save_steps=2)
    trainer.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2"))
    assert trainer.state.global_step == 4
    assert (tmp_path / "out" / "checkpoint-4").is_dir()


def test_a_run_that_the_program_began_is_used_and_left_open(tmp_path: Path) -> None:
    with trainvitals.init(dir=tmp_path / "runs", agent=False, config={"mine": 1}) as run:
        make_trainer(tmp_path, callback(tmp_path), max_steps=1).train()
        assert trainvitals.current_run() is run
        run.log({"afterwards": 1})
    assert any("afterwards" in line for line in lines(run))
    assert run.config["mine"] == 1
    assert "training_arguments" in run.config


def test_the_next_training_is_another_run(tmp_path: Path) -> None:
    ours = callback(tmp_path)
    trainer = make_trainer(tmp_path, ours, max_steps=1)
    trainer.train()
    first = trainvitals.current_run()
    trainer.train()
    second = trainvitals.current_run()
    assert first is not None
    assert second is not None
    assert first.folder != second.folder


def test_a_failure_of_ours_is_said_once_and_does_not_stop_the_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ours = callback(tmp_path)
    trainer = make_trainer(tmp_path, ours)

    class Saboteur(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            ours.attachment.watching = object()

    trainer.add_callback(Saboteur())
    trainer.train()
    assert trainer.state.global_step == 4
    assert capfd.readouterr().err.count("training continues without it") == 1


def test_an_option_that_is_none_is_refused_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="gradient_every"):
        callback(tmp_path, watch={"gradient_every": 3})
    with pytest.raises(SettingError, match="intervall"):
        callback(tmp_path, intervall=3)


def test_watching_changes_nothing_about_the_training(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path)
    plain.train()
    watched = make_trainer(tmp_path, callback(tmp_path))
    watched.train()
    for one, other in zip(plain.model.parameters(), watched.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_without_watching_the_trainers_loss_is_the_loss() -> None:
    logs = {"loss": 1.0, "grad_norm": 2.0, "eval_loss": 3.0, "train_loss": 4.0, "rewards/mean": 5.0}
    assert dict(translate(logs, False)) == {
        "loss": 1.0,
        "gradient_norm": 2.0,
        "eval/loss": 3.0,
        "train_loss_mean": 4.0,
        "rewards/mean": 5.0,
    }
    assert dict(translate(logs, True)) == {
        "mean_loss": 1.0,
        "eval/loss": 3.0,
        "train_loss_mean": 4.0,
        "rewards/mean": 5.0,
    }


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_classic_callback_logs_the_gpu_beside_every_nth_step(tmp_path: Path) -> None:
    monitor = trainvitals.GPUMonitor(sample_interval=0.05, world=World(simulated_gpus=1))
    ours = trainvitals.GPUMonitoringCallback(monitor, log_interval=2, dir=tmp_path / "runs", agent=False)
    make_trainer(tmp_path, ours).train()
    run = trainvitals.current_run()
    assert run is not None
    assert [line["step"] for line in lines(run) if "gpu/power_draw_watts" in line] == [2, 4]
    assert [line["step"] for line in steps(run)] == [1, 2, 3, 4]

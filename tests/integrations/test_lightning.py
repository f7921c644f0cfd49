"""LightningCallback and LightningLogger with the real Trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from watching import PHASES, events, lines, messages, steps

import trainvitals

torch.set_num_threads(1)


class Classifier(L.LightningModule):
    def __init__(self, width: int = 4, log_as: str = "train_loss", fail_at: int = -1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    def training_step(self, batch: Any, index: int) -> Any:
        if index == self.hparams["fail_at"]:
            raise RuntimeError("the user's mistake")
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log(self.hparams["log_as"], loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", cross_entropy(self.net(batch[0]), batch[1]))

    def test_step(self, batch: Any, index: int) -> None:
        self.log("test_loss", cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def make_loader() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(16, 4, generator=generator), torch.randint(0, 2, (16,), generator=generator))
    return DataLoader(data, batch_size=4)


def make_trainer(folder: Path, *callbacks: Any, **options: Any) -> L.Trainer:
    L.seed_everything(0, verbose=False)
    settings: dict[str, Any] = {
        "max_epochs": 2,
        "accelerator": "cpu",
        "logger": False,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": any(isinstance(item, ModelCheckpoint) for item in callbacks),
        "default_root_dir": folder,
        **options,
    }
    return L.Trainer(callbacks=list(callbacks), **settings)


def options(folder: Path) -> dict[str, Any]:
    return {"dir": folder / "runs", "agent": False, "stack_dumps": False}


def current() -> trainvitals.Run:
    run = trainvitals.current_run()
    assert run is not None
    return run


@pytest.fixture(autouse=True)
def _no_run_is_left() -> Any:
    yield
    trainvitals.finish()


def test_every_step_has_lightnings_number_its_loss_and_phases_that_add_up(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)))
    trainer.fit(Classifier(), make_loader(), make_loader())
    measured = steps(current())
    assert [line["step"] for line in measured] == list(range(8))
    assert [line["epoch"] for line in measured] == [0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]
    logged = {line["step"]: line["train_loss"] for line in lines(current()) if "train_loss" in line}
    assert {line["step"]: line["loss"] for line in measured} == pytest.approx(logged, rel=1e-5)
    for line in measured:
        assert line["learning_rate"] == 0.1
        assert line["forward_time"] > 0
        assert line["backward_time"] > 0
        assert sum(line[phase] for phase in PHASES) == pytest.approx(line["batch_time"], rel=0.02)


def test_the_forward_is_not_counted_as_the_optimizer_whose_closure_it_runs_in(tmp_path: Path) -> None:
    class Slow(Classifier):
        def training_step(self, batch: Any, index: int) -> Any:
            import time

            time.sleep(0.05)
            return super().training_step(batch, index)

    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)), max_steps=3)
    trainer.fit(Slow(), make_loader())
    for line in steps(current()):
        assert line["forward_time"] > 0.05
        assert line["forward_time"] + line["optimizer_time"] <= line["batch_time"] * 1.001  # nothing is in both


def test_gradient_accumulation_is_one_step_and_logs_once(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)), accumulate_grad_batches=2)
    trainer.fit(Classifier(), make_loader())
    assert [line["step"] for line in steps(current())] == [0, 1, 2, 3]
    assert [line["step"] for line in lines(current()) if "train_loss" in line] == [0, 1, 2, 3]


def test_a_loss_that_the_program_logs_is_the_only_one(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)), max_epochs=1)
    trainer.fit(Classifier(log_as="loss"), make_loader())
    with_loss = [line["step"] for line in lines(current()) if "loss" in line]
    assert with_loss.count(2) == 1
    assert with_loss.count(3) == 1
    assert all("learning_rate" in line for line in lines(current()) if "loss" in line and "watch_time" not in line)


def test_evaluations_best_value_checkpoints_and_hyperparameters_are_kept(tmp_path: Path) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path / "kept", monitor="val_loss")
    trainer = make_trainer(tmp_path, keep, trainvitals.LightningCallback(**options(tmp_path)))
    model = Classifier(width=6)
    trainer.fit(model, make_loader(), make_loader())
    trainer.test(model, make_loader(), verbose=False)
    validated = [line["step"] for line in lines(current()) if "val_loss" in line]
    assert validated == [3, 7]
    assert [line["step"] for line in lines(current()) if "test_loss" in line] == [7]
    best = [line["best/val_loss"] for line in lines(current()) if "best/val_loss" in line]
    assert keep.best_model_score is not None
    assert best[-1] == pytest.approx(keep.best_model_score.item())
    kinds = [event["event"] for event in events(current())]
    assert kinds.count("checkpoint") == 2
    assert kinds.count("evaluation") == 3
    assert kinds.count("epoch") == 2
    assert current().config["width"] == 6
    assert current().config["parameters"] == sum(p.numel() for p in model.parameters())


def test_a_training_that_resumes_from_a_checkpoint_goes_on_with_its_run(tmp_path: Path) -> None:
    keep = ModelCheckpoint(dirpath=tmp_path / "kept", save_last=True)
    make_trainer(tmp_path, keep, trainvitals.LightningCallback(**options(tmp_path)), max_epochs=1).fit(
        Classifier(), make_loader()
    )
    first = current()
    first.finish()
    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)))
    trainer.fit(Classifier(), make_loader(), ckpt_path=str(tmp_path / "kept" / "last.ckpt"))
    assert current().folder == first.folder
    assert current().attempt == 2
    assert [line["step"] for line in steps(current())] == list(range(8))
    assert "from step 4" in messages(current())


def test_the_logger_alone_logs_what_lightning_hands_to_loggers(tmp_path: Path) -> None:
    logger = trainvitals.LightningLogger(**options(tmp_path), project="logged")
    keep = ModelCheckpoint(monitor="val_loss")
    trainer = make_trainer(tmp_path, keep, logger=logger)
    trainer.fit(Classifier(width=5), make_loader(), make_loader())
    run = logger.experiment
    assert run.project == "logged"
    assert [line["step"] for line in lines(run) if "train_loss" in line] == list(range(8))
    assert not steps(run)
    assert run.config["width"] == 5
    assert Path(keep.best_model_path).parent == run.folder / "checkpoints"
    assert [event["data"]["path"] for event in events(run) if event["event"] == "checkpoint"][-1].endswith(".ckpt")


def test_logger_and_callback_together_log_each_value_once(tmp_path: Path) -> None:
    logger = trainvitals.LightningLogger(**options(tmp_path))
    keep = ModelCheckpoint(monitor="val_loss")
    trainer = make_trainer(tmp_path, keep, trainvitals.LightningCallback(**options(tmp_path)), logger=logger)
    trainer.fit(Classifier(), make_loader(), make_loader())
    run = logger.experiment
    assert run is current()
    for name in ("train_loss", "val_loss", "best/val_loss"):
        found = [line["step"] for line in lines(run) if name in line]
        assert found
        assert len(found) == len(set(found))
    assert [line["step"] for line in steps(run)] == list(range(8))
    assert [event["event"] for event in events(run)].count("checkpoint") == 2


def test_an_exception_of_the_program_ends_the_run_as_failed_and_is_not_changed(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, trainvitals.LightningCallback(**options(tmp_path)))
    model = Classifier(fail_at=2)
    with pytest.raises(RuntimeError, match="the user's mistake"):
        trainer.fit(model, make_loader())
    assert "training_step" not in vars(model)
    (run,) = trainvitals.list_runs(tmp_path / "runs")
    assert json.loads((run.folder / "run.json").read_text())["status"] == "failed"


def test_watching_changes_nothing_about_the_training(tmp_path: Path) -> None:
    trained = []
    for callbacks in ([], [trainvitals.LightningCallback(**options(tmp_path))]):
        trainer = make_trainer(tmp_path, *callbacks)
        model = Classifier()
        trainer.fit(model, make_loader(), make_loader())
        trained.append(model)
    for one, other in zip(trained[0].parameters(), trained[1].parameters(), strict=True):
        assert torch.equal(one, other)

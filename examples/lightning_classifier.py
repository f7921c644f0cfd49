"""Lightning, with the callback. Nothing is downloaded.

pip install 'trainvitals[lightning]'
python examples/lightning_classifier.py
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trainvitals


class Rings(L.LightningModule):
    """Is a point inside the ring or outside?"""

    def __init__(self, width: int = 32, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 2))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        outputs = self.net(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(outputs, batch[1]))
        self.log("val_accuracy", (outputs.argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"])


def make_loader(points: int, *, shuffle: bool = False) -> DataLoader[Any]:
    place = torch.randn(points, 2)
    return DataLoader(TensorDataset(place, (place.norm(dim=1) > 1).long()), batch_size=32, shuffle=shuffle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="lightning_output")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    L.seed_everything(0)
    trainer = L.Trainer(
        max_epochs=args.epochs,
        default_root_dir=args.output_dir,
        logger=False,
        callbacks=[
            ModelCheckpoint(dirpath=args.output_dir, monitor="val_loss"),
            trainvitals.LightningCallback(project="rings"),
        ],
    )
    trainer.fit(Rings(), make_loader(1024, shuffle=True), make_loader(256))
    run = trainvitals.current_run()
    if run is not None:
        print(f"recorded in {run.folder}")


if __name__ == "__main__":
    main()

"""Keras 3, on whichever backend KERAS_BACKEND names: tensorflow, jax or torch. Nothing is downloaded.

pip install 'trainvitals[keras]' jax
KERAS_BACKEND=jax python examples/keras_classifier.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import keras
import numpy as np

import trainvitals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", default="keras_output")
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    keras.utils.set_random_seed(0)
    generator = np.random.default_rng(0)
    points = generator.normal(size=(1024, 2)).astype("float32")
    labels = (np.linalg.norm(points, axis=1) > 1).astype("int32")
    model = keras.Sequential(
        [keras.layers.Input((2,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(2)]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    model.fit(
        points,
        labels,
        epochs=args.epochs,
        batch_size=32,
        validation_split=0.2,
        verbose=2,
        callbacks=[
            trainvitals.KerasCallback(project="rings"),
            keras.callbacks.ModelCheckpoint(
                str(folder / "best.weights.h5"), save_best_only=True, save_weights_only=True
            ),
        ],
    )
    run = trainvitals.current_run()
    if run is not None:
        print(f"recorded in {run.folder}")


if __name__ == "__main__":
    main()

"""A small network, really trained, in numpy: three arms of a spiral classified by a perceptron with two hidden layers.

`train` is written as a user would write a training: a loop that calls `run.log` with what it measured.
Tested in tests/views/cli/test_demo.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trainvitals.trainer.run import Run

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

CLASSES = 3
TURNS = 1.25
NOISE = 0.33


class DemoConfig(NamedTuple):
    """What can be chosen about the training."""

    steps: int = 600
    seconds: float = 24.0
    """How long it takes, at least: the pace is held so that somebody can watch."""
    batch_size: int = 128
    hidden: int = 48
    learning_rate: float = 0.01
    warmup: float = 0.08
    samples: int = 3000
    seed: int = 7


class Step(NamedTuple):
    """What was measured in one step."""

    step: int
    loss: float
    accuracy: float
    learning_rate: float
    gradient_norm: float
    samples_per_second: float


def make_spirals(count: int, random: np.random.Generator) -> tuple[Floats, Integers]:
    """Points on three arms that wind around each other, with noise, and which arm each is on."""
    arm = random.integers(0, CLASSES, count)
    distance = np.sqrt(random.uniform(0.02, 1.0, count))
    angle = 2 * math.pi * (arm / CLASSES + distance * TURNS) + random.normal(0, NOISE, count)
    return np.stack([distance * np.cos(angle), distance * np.sin(angle)], axis=1) * 2, arm


class Network:
    """2 inputs, two hidden layers with tanh, a softmax; trained by Adam."""

    def __init__(self, hidden: int, random: np.random.Generator) -> None:
        sizes = (2, hidden, hidden, CLASSES)
        self.weights = [random.normal(0, math.sqrt(1 / a), (a, b)) for a, b in pairwise(sizes)]
        self.biases = [np.zeros(size) for size in sizes[1:]]
        self._means = [np.zeros_like(item) for item in (*self.weights, *self.biases)]
        self._squares = [np.zeros_like(item) for item in (*self.weights, *self.biases)]
        self._updates = 0

    def forward(self, x: Floats) -> list[Floats]:
        """The values of every layer; the last are probabilities."""
        layers = [x]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            layers.append(np.tanh(layers[-1] @ weight + bias))
        scores = layers[-1] @ self.weights[-1] + self.biases[-1]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        layers.append(scores / scores.sum(axis=1, keepdims=True))
        return layers

    def backward(self, layers: list[Floats], target: Integers) -> list[Floats]:
        """Gradients of the weights, then of the biases."""
        delta = layers[-1].copy()
        delta[np.arange(len(target)), target] -= 1
        delta /= len(target)
        weights: list[Floats] = []
        biases: list[Floats] = []
        for place in reversed(range(len(self.weights))):
            weights.insert(0, layers[place].T @ delta)
            biases.insert(0, delta.sum(axis=0))
            if place:
                delta = (delta @ self.weights[place].T) * (1 - layers[place] ** 2)
        return [*weights, *biases]

    def update(self, gradients: list[Floats], learning_rate: float) -> None:
        """One step of Adam."""
        self._updates += 1
        fast, slow = 1 - 0.9**self._updates, 1 - 0.999**self._updates
        parameters = (*self.weights, *self.biases)
        for value, mean, square, gradient in zip(parameters, self._means, self._squares, gradients, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient**2 - square)
            value -= learning_rate * (mean / fast) / (np.sqrt(square / slow) + 1e-8)


def rate_at(step: int, config: DemoConfig) -> float:
    """Warm-up in a straight line, then half a cosine down to a hundredth."""
    warmup = max(int(config.steps * config.warmup), 1)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    share = (step - warmup) / max(config.steps - warmup, 1)
    return config.learning_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * share)))


def train_steps(config: DemoConfig) -> Iterator[Step]:
    """The training itself, one step at a time, as fast as it goes."""
    random = np.random.default_rng(config.seed)
    points, arms = make_spirals(config.samples, random)
    network = Network(config.hidden, random)
    for step in range(config.steps):
        began = time.perf_counter()
        chosen = random.integers(0, len(points), config.batch_size)
        x, target = points[chosen], arms[chosen]
        layers = network.forward(x)
        loss = -float(np.log(layers[-1][np.arange(len(target)), target] + 1e-12).mean())
        accuracy = float((layers[-1].argmax(axis=1) == target).mean())
        gradients = network.backward(layers, target)
        norm = math.sqrt(sum(float((item**2).sum()) for item in gradients))
        rate = rate_at(step, config)
        network.update(gradients, rate)
        took = time.perf_counter() - began
        yield Step(step, loss, accuracy, rate, norm, config.batch_size / max(took, 1e-9))


def train(run: Run, config: DemoConfig, watch: Callable[[Step], None]) -> None:
    """Train, log every step, show it to `watch`, and hold the pace."""
    pace = config.seconds / config.steps
    due = time.monotonic()
    for step in train_steps(config):
        run.log(
            {
                "loss": step.loss,
                "accuracy": step.accuracy,
                "learning_rate": step.learning_rate,
                "gradient_norm": step.gradient_norm,
                "throughput_samples_per_sec": step.samples_per_second,
                "epoch": step.step * config.batch_size / config.samples,
            },
            step=step.step,
        )
        watch(step)
        # A step that is late makes up for nothing: many quick ones after it would look like a training that slows down.
        now = time.monotonic()
        due = max(due + pace, now)
        time.sleep(due - now)

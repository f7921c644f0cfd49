"""Small networks that are really trained, in numpy, in ways that differ from each other: what healthy runs look like.

Each gives the values of every step: loss, learning rate, gradient norm. None of them is faulty: each reaches what it is
trained for, or goes on as such trainings do (a game of two players, a noisy reward, a fine-tuning that hardly moves).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

Values = dict[str, float]
Arrays = list[np.ndarray]


class Optimizer:
    """SGD with momentum, Adam or RMSprop over a list of arrays; clips by the global norm."""

    def __init__(self, kind: str, weights: Arrays, clip: float = math.inf) -> None:
        self.kind, self.weights, self.clip = kind, weights, clip
        self.m = [np.zeros_like(w) for w in weights]
        self.v = [np.zeros_like(w) for w in weights]
        self.count = 0

    def step(self, gradients: Arrays, rate: float) -> float:
        """Returns the norm before clipping, as trainers log it."""
        norm = math.sqrt(sum(float(np.vdot(g, g)) for g in gradients))
        scale = min(1.0, self.clip / (norm + 1e-12))
        self.count += 1
        for w, g, m, v in zip(self.weights, gradients, self.m, self.v, strict=True):
            g = g * scale
            if self.kind == "sgd":
                m *= 0.9
                m += g
                w -= rate * m
            elif self.kind == "rmsprop":
                v *= 0.99
                v += 0.01 * g * g
                w -= rate * g / (np.sqrt(v) + 1e-8)
            else:
                m *= 0.9
                m += 0.1 * g
                v *= 0.999
                v += 0.001 * g * g
                w -= rate * (m / (1 - 0.9**self.count)) / (np.sqrt(v / (1 - 0.999**self.count)) + 1e-8)
        return norm


def softmax_loss(logits: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray]:
    """Mean cross entropy, and its gradient by the logits."""
    logits = logits - logits.max(1, keepdims=True)
    p = np.exp(logits)
    p /= p.sum(1, keepdims=True)
    rows = np.arange(len(target))
    loss = float(-np.log(p[rows, target] + 1e-12).mean())
    p[rows, target] -= 1
    return loss, p / len(target)


def recurrent(seed: int, steps: int = 4000, batch: int = 16) -> list[Values]:
    """An Elman network that tells which of two symbols came first in a noisy sequence; RMSprop, clipped."""
    random = np.random.default_rng(seed)
    hidden, length = 16, 10
    w = [
        random.normal(0, 0.3, (2, hidden)),
        np.linalg.qr(random.normal(0, 1, (hidden, hidden)))[0],
        random.normal(0, 0.3, (hidden, 2)),
    ]
    optimizer = Optimizer("rmsprop", w, clip=1.0)
    rows = []
    for _ in range(steps):
        target = random.integers(0, 2, batch)
        x = random.normal(0, 0.4, (length, batch, 2))
        x[1, np.arange(batch), target] += 2.0
        states = [np.zeros((batch, hidden))]
        for t in range(length):
            states.append(np.tanh(x[t] @ w[0] + states[-1] @ w[1]))
        loss, d = softmax_loss(states[-1] @ w[2], target)
        g = [np.zeros_like(w[0]), np.zeros_like(w[1]), states[-1].T @ d]
        dh = d @ w[2].T
        for t in reversed(range(length)):
            dz = dh * (1 - states[t + 1] ** 2)
            g[0] += x[t].T @ dz
            g[1] += states[t].T @ dz
            dh = dz @ w[1].T
        rows.append({"loss": loss, "learning_rate": 1e-3, "gradient_norm": optimizer.step(g, 1e-3)})
    return rows


def convolutional(seed: int, steps: int = 4000, batch: int = 24, cycle: int = 800) -> list[Values]:
    """One convolution and a linear layer on images of bars and crosses; SGD with warm restarts (cosine per cycle)."""
    random = np.random.default_rng(seed)
    side, kernel, filters = 10, 3, 6
    out = side - kernel + 1
    w = [
        random.normal(0, 0.3, (kernel * kernel, filters)),
        np.zeros(filters),
        random.normal(0, 0.05, (out * out * filters, 3)),
        np.zeros(3),
    ]
    optimizer = Optimizer("sgd", w)
    index = np.add.outer(np.arange(out), np.arange(kernel))
    patches = (index[:, None, :, None] * side + index[None, :, None, :]).reshape(out * out, kernel * kernel)
    rows = []
    for step in range(steps):
        rate = 0.02 * 0.5 * (1 + math.cos(math.pi * (step % cycle) / cycle)) + 1e-5
        target = random.integers(0, 3, batch)
        x = random.normal(0, 0.7, (batch, side, side))
        for n, kind in enumerate(target):
            place = random.integers(2, side - 2)
            if kind != 1:
                x[n, place, :] += 1.0
            if kind != 0:
                x[n, :, place] += 1.0
        columns = x.reshape(batch, -1)[:, patches]
        h = np.maximum(columns @ w[0] + w[1], 0)
        flat = h.reshape(batch, -1)
        loss, d = softmax_loss(flat @ w[2] + w[3], target)
        dh = ((d @ w[2].T).reshape(h.shape)) * (h > 0)
        g = [
            columns.reshape(-1, kernel * kernel).T @ dh.reshape(-1, filters),
            dh.sum((0, 1)),
            flat.T @ d,
            d.sum(0),
        ]
        rows.append({"loss": loss, "learning_rate": rate, "gradient_norm": optimizer.step(g, rate)})
    return rows


def _layers(random: np.random.Generator, *sizes: int) -> Arrays:
    w: Arrays = []
    for a, b in itertools.pairwise(sizes):
        w += [random.normal(0, (2 / a) ** 0.5, (a, b)), np.zeros(b)]
    return w


def _forward(w: Arrays, x: np.ndarray) -> Arrays:
    states = [x]
    for n in range(0, len(w), 2):
        z = states[-1] @ w[n] + w[n + 1]
        states.append(np.maximum(z, 0.1 * z) if n + 2 < len(w) else z)
    return states


def _backward(w: Arrays, states: Arrays, d: np.ndarray) -> tuple[Arrays, np.ndarray]:
    g: Arrays = [np.zeros(0)] * len(w)
    for n in range(len(w) - 2, -1, -2):
        layer = n // 2
        if n + 2 < len(w):
            d = d * np.where(states[layer + 1] > 0, 1.0, 0.1)
        g[n], g[n + 1] = states[layer].T @ d, d.sum(0)
        d = d @ w[n].T
    return g, d


def adversarial(seed: int, steps: int = 5000, batch: int = 32) -> list[Values]:
    """A generator and a discriminator on a ring of points; the loss is the generator's, which goes up and down."""
    random = np.random.default_rng(seed)
    made, told = _layers(random, 4, 24, 2), _layers(random, 2, 24, 1)
    first, second = Optimizer("adam", made), Optimizer("adam", told)
    rows = []

    def sigmoid(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip(z, -30, 30)))

    for _ in range(steps):
        angle = random.uniform(0, 2 * math.pi, batch)
        real = np.stack([np.cos(angle), np.sin(angle)], 1) + random.normal(0, 0.05, (batch, 2))
        g_states = _forward(made, random.normal(0, 1, (batch, 4)))
        d_states = _forward(told, np.concatenate([real, g_states[-1]]))
        label = np.repeat([1.0, 0.0], batch)[:, None]
        g, _unused = _backward(told, d_states, (sigmoid(d_states[-1]) - label) / (2 * batch))
        second.step(g, 1e-3)
        d_states = _forward(told, g_states[-1])
        p = sigmoid(d_states[-1])
        loss = float(-np.log(p + 1e-9).mean())
        _unused2, dx = _backward(told, d_states, (p - 1) / batch)
        g, _unused = _backward(made, g_states, dx)
        rows.append({"loss": loss, "learning_rate": 1e-3, "gradient_norm": first.step(g, 1e-3)})
    return rows


def policy(seed: int, steps: int = 4000, batch: int = 16) -> list[Values]:
    """REINFORCE on a contextual bandit with a noisy reward: a loss of both signs that means little, a reward that
    rises."""
    random = np.random.default_rng(seed)
    w = _layers(random, 6, 24, 4)
    truth = random.normal(0, 1, (6, 4))
    optimizer = Optimizer("adam", w)
    mean = 0.0
    rows = []
    for _ in range(steps):
        x = random.normal(0, 1, (batch, 6))
        states = _forward(w, x)
        z = states[-1] - states[-1].max(1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(1, keepdims=True)
        choice = (p.cumsum(1) > random.random((batch, 1))).argmax(1)
        lines = np.arange(batch)
        reward = (x @ truth)[lines, choice] + random.normal(0, 2, batch)
        advantage = reward - mean
        mean += 0.05 * (float(reward.mean()) - mean)
        loss = float(-(np.log(p[lines, choice] + 1e-12) * advantage).mean())
        d = p.copy()
        d[lines, choice] -= 1
        g, _unused = _backward(w, states, d * advantage[:, None] / batch)
        norm = optimizer.step(g, 7e-4)
        rows.append({"loss": loss, "learning_rate": 7e-4, "gradient_norm": norm, "reward": float(reward.mean())})
    return rows


def dense(
    seed: int,
    steps: int = 5000,
    *,
    batch: int = 32,
    rate: float = 2e-3,
    optimizer: str = "adam",
    accumulate: int = 1,
    levels: int = 1,
    pretrained: int = 0,
    points: int = 4000,
    noise: float = 0.1,
    decay: bool = False,
) -> list[Values]:
    """A classifier of points by angle. `accumulate`: the norm logged is that of the sum so far, which drops each time
    the optimizer has stepped. `levels`: a curriculum, each level with classes half as wide. `pretrained`: so many steps
    before the first that is logged. `points` few: it learns them by heart."""
    random = np.random.default_rng(seed)
    x = random.normal(0, 1, (points, 2))
    angle = np.arctan2(x[:, 1], x[:, 0])
    turned = (random.random(points) < noise) * random.integers(0, 4, points)
    w = _layers(random, 2, 48, 48, 4)
    best = Optimizer(optimizer, w, clip=5.0)
    rows: list[Values] = []
    summed: Arrays | None = None
    norm = 0.0
    for step in range(-pretrained, steps):
        level = 1 + max(0, step) * levels // steps
        kinds = ((np.floor(angle / math.pi * (1 + level)) + turned) % 4).astype(int)
        pick = random.integers(0, points, batch)
        states = _forward(w, x[pick])
        loss, d = softmax_loss(states[-1], kinds[pick])
        g, _unused = _backward(w, states, d)
        summed = g if summed is None else [a + b for a, b in zip(summed, g, strict=True)]
        now = 2e-3 if step < 0 else rate * (1 - step / steps if decay else 1.0)
        if (step + 1) % accumulate == 0:
            norm = best.step([a / accumulate for a in summed], now)
            summed = None
        else:
            norm = math.sqrt(sum(float(np.vdot(a, a)) for a in summed)) / accumulate
        if step >= 0:
            rows.append({"loss": loss, "learning_rate": now, "gradient_norm": norm})
    return rows


def annealed(seed: int, steps: int = 5000, batch: int = 32) -> list[Values]:
    """A linear autoencoder whose second term is switched on slowly: the loss rises on purpose while it grows."""
    random = np.random.default_rng(seed)
    mix = random.normal(0, 1, (3, 12))
    w = [random.normal(0, 0.2, (12, 3)), random.normal(0, 0.2, (3, 12))]
    optimizer = Optimizer("adam", w)
    rows = []
    for step in range(steps):
        weight = 2.0 * min(1.0, step / 2500)
        x = random.normal(0, 1, (batch, 3)) @ mix + random.normal(0, 0.8, (batch, 12))
        code = x @ w[0]
        difference = code @ w[1] - x
        loss = float((difference**2).mean() + weight * (code**2).mean())
        d = 2 * difference / difference.size
        dc = d @ w[1].T + weight * 2 * code / code.size
        g = [x.T @ dc, code.T @ d]
        rate = 3e-3 * min(1.0, (step + 1) / 300)
        rows.append({"loss": loss, "learning_rate": rate, "gradient_norm": optimizer.step(g, rate)})
    return rows


def single(seed: int, steps: int = 8000) -> list[Values]:
    """Logistic regression, one sample a step: a loss near zero most of the time and large now and then."""
    random = np.random.default_rng(seed)
    truth = random.normal(0, 1.5, 10)
    w = np.zeros(10)
    rows = []
    for step in range(steps):
        x = random.normal(0, 1, 10)
        label = float(random.random() < 1 / (1 + math.exp(-float(x @ truth))))
        p = 1 / (1 + math.exp(-float(np.clip(x @ w, -30, 30))))
        loss = -math.log((p if label else 1 - p) + 1e-12)
        g = (p - label) * x
        rate = 0.1 / (1 + step / 500)
        w -= rate * g
        rows.append({"loss": loss, "learning_rate": rate, "gradient_norm": float(np.linalg.norm(g))})
    return rows


def alternating(seed: int, steps: int = 4000) -> list[Values]:
    """Two tasks in turn, one with ten times the loss of the other."""
    easy, hard = dense(seed, steps // 2, rate=1e-3), recurrent(seed + 1, steps // 2)
    rows: list[Values] = []
    for a, b in zip(easy, hard, strict=True):
        rows += [a, {**b, "loss": 10 * b["loss"]}]
    return rows


def make_all(seed: int, share: float = 1.0) -> dict[str, Callable[[], list[Values]]]:
    """Every kind of training here, none with the numbers of another seed; `share` of their length."""
    random = np.random.default_rng(seed)

    def pick(*choices: float) -> float:
        return float(random.choice(choices))

    batch, rate = int(pick(8, 16, 48)), pick(5e-4, 1e-3, 3e-3)
    short, middle, long = int(4000 * share), int(5000 * share), int(6000 * share)
    return {
        "recurrent network, RMSprop, clipped": lambda: recurrent(seed, short, batch),
        "convolutions, SGD with warm restarts": lambda: convolutional(seed, short, cycle=200 * (3 + seed % 4)),
        "generator against discriminator": lambda: adversarial(seed, middle, 2 * batch),
        "policy gradient, noisy reward": lambda: policy(seed, short, batch),
        "fine-tuning at a rate of 1e-6": lambda: dense(seed, short, rate=1e-6, pretrained=1500, batch=batch),
        "curriculum of three levels": lambda: dense(seed + 1, long, levels=3, rate=rate, batch=batch),
        "gradients accumulated over 8": lambda: dense(seed + 2, long, accumulate=8, rate=rate, batch=8),
        "learnt by heart": lambda: dense(seed + 3, long, points=120, noise=0.0, rate=rate, batch=batch),
        "linear decay to zero, SGD": lambda: dense(
            seed + 4, long, optimizer="sgd", rate=0.02, decay=True, batch=batch, noise=0.3
        ),
        "a term annealed in": lambda: annealed(seed, middle, batch),
        "one sample a step": lambda: single(seed, int(8000 * share)),
        "two tasks in turn": lambda: alternating(seed, short),
    }

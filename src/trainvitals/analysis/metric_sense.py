"""Which way a metric is better, and on which data it is measured, from its name.
Tested in tests/analysis/test_comparison.py."""

from __future__ import annotations

import re
from typing import Literal

Direction = Literal["lower", "higher"]

_LOWER = ("loss", "perplexity", "ppl", "error", "err", "wer", "cer", "mse", "mae", "rmse", "nll", "latency")
_LOWER_TIMES = (
    "batch_time",
    "step_time",
    "data_time",
    "transfer_time",
    "forward_time",
    "backward_time",
    "optimizer_time",
)
_HIGHER = (
    "acc",
    "accuracy",
    "f1",
    "auc",
    "map",
    "ap",  # mAP
    "bleu",
    "rouge",
    "reward",
    "return",
    "score",
    "throughput",
    "mfu",
    "iou",
)
_HIGHER_PARTS = ("samples_per_sec", "tokens_per_sec", "throughput", "accuracy")
_EVALUATION = re.compile(r"(^|[^a-z])(val|valid|validation|eval|dev|test)([^a-z]|$)")
_REWARDS = ("reward", "rewards", "rew", "return", "returns")
_NO_REWARD = ("std", "var", "variance", "loss", "error", "kl", "time", "normalized")
_SHARES = ("acc", "accuracy", "f1", "auc", "map", "ap", "iou")


def is_held_out(name: str) -> bool:
    """Whether it is measured on data that is not trained on."""
    return _EVALUATION.search(name.lower()) is not None


def is_share(name: str) -> bool:
    """Whether it is a share of all cases, so that 1 is the best there can be and what is left to it are the errors."""
    return any(word in _SHARES for word in _words(name)) or "accuracy" in name.lower()


def is_reward(name: str) -> bool:
    """Whether it is what an agent earns, not how much that varies or how well it is predicted."""
    words = _words(name)
    return any(word in _REWARDS for word in words) and not any(word in _NO_REWARD for word in words)


def better(name: str) -> Direction | None:
    """None if the name does not imply it."""
    low, words = name.lower(), _words(name)
    if any(part in low for part in _HIGHER_PARTS) or any(word in _HIGHER for word in words):
        return "higher"
    if low.rpartition("/")[2] in _LOWER_TIMES or any(word in _LOWER for word in words):
        return "lower"
    return None


def _words(name: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # trainLoss
    words = re.split(r"[^a-z0-9]+", apart.lower())
    return [*words, *(word.rstrip("0123456789") for word in words if word[-1:].isdecimal())]  # rouge1, map50

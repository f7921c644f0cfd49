"""Models that the tests of benchmarks load by name, in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

not_a_model = 3


def mlp() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 16))


def cnn() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1)
    )


def classifier() -> torch.nn.Module:
    return torch.nn.Sequential(*cnn(), torch.nn.Flatten(), torch.nn.Linear(8, 64), torch.nn.Linear(64, 10)).eval()


class Sleeper(torch.nn.Module):
    """Takes at least this long, and notes how long it took by the same clock."""

    seconds = 0.004

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.perf_counter_ns()
        time.sleep(self.seconds)
        self.noted.append(time.perf_counter_ns() - begin)
        return x


class Spinner(torch.nn.Module):
    """Computes for at least this long, and notes how long it did, by a clock that stops while others have the CPU."""

    nanoseconds = 10_000_000
    """Long beside the clock itself, which asks the kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        begin = time.thread_time_ns()
        while time.thread_time_ns() - begin < self.nanoseconds:
            pass
        self.noted.append(time.thread_time_ns() - begin)
        return x


class Hoarder(torch.nn.Module):
    """Holds 64 MB while it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(16 << 20).mean()


class Insatiable(torch.nn.Module):
    """Asks for more memory than any machine has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones(1 << 50).mean()


class Nested(torch.nn.Module):
    """Several inputs, one of them by name; answers in a dict, a tuple and None."""

    def forward(self, a: torch.Tensor, b: torch.Tensor, *, mask: torch.Tensor) -> dict[str, Any]:
        return {"sum": a + b, "parts": (a * mask, None), "none": None}


@dataclass
class Answer:
    logits: torch.Tensor
    waves: torch.Tensor
    loss: None = None


class Structured(torch.nn.Module):
    """Answers in a dataclass, half of them complex numbers."""

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(x, torch.complex(x, 2 * x))


class Curious(torch.nn.Module):
    """As with a breakpoint that was left in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(input())


class Silent(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> None: ...


class Random(torch.nn.Module):
    """In training mode, though nobody trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.dropout(x), 0.5, training=True)


class Broken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 0.0


class AllInOne(torch.nn.Module):
    """The answer to an item depends on its neighbours."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(dim=0)


class SmallBatches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 4:
            raise ValueError("no more than 4 at a time")
        return x


class Deadly(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return x


def mean_answer(predict: Callable[..., Any]) -> float:
    import numpy as np

    return float(np.mean(predict(np.ones((2, 64), dtype=np.float32))))

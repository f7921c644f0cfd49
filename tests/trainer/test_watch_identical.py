"""A training with everything on gives the very same bits as one that nobody watches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watching import messages, running, steps

EVERYTHING = {
    "layers_every": 1,
    "histograms_every": 1,
    "activations": ["*"],
    "activations_every": 1,
    "memory_every": 1,
    "count_flops": True,
    "budget_percent": 0,
    "report": True,
}


pytestmark = pytest.mark.usefixtures("own_places")


Watch = Callable[[nn.Module, torch.optim.Optimizer, DataLoader], object]  # type: ignore[type-arg]


def train_convolutions(watch: Watch) -> list[torch.Tensor]:
    """Dropout, batch norm, shuffling, momentum, clipping."""
    torch.manual_seed(7)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data = TensorDataset(torch.randn(32, 1, 8, 8), torch.randint(0, 2, (32,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    watch(model, optimizer, loader)
    for _ in range(3):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return [*model.state_dict().values(), torch.get_rng_state(), torch.rand(4)]


def train_attention(watch: Watch) -> list[torch.Tensor]:
    """Attention, bf16 autocast, a scaler, accumulation, Adam."""
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.Sequential(nn.Embedding(50, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 50))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    loader = DataLoader(torch.randint(0, 50, (24, 10)), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    watch(model, optimizer, loader)
    for index, tokens in enumerate([batch for _ in range(2) for batch in loader], 1):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        scaler.scale(loss / 2).backward()
        if index % 2 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [*model.state_dict().values(), torch.get_rng_state(), torch.rand(4)]


@pytest.mark.parametrize("train", [train_convolutions, train_attention])
@pytest.mark.promise("a training with and without `watch`", "its results are bit-identical")
def test_the_results_are_bit_identical(tmp_path: Path, train: Callable[[Watch], list[torch.Tensor]]) -> None:
    alone = train(lambda *_: None)
    with running(tmp_path) as run:
        watched = train(lambda *parts: run.watch(*parts, **EVERYTHING))
    assert len(alone) == len(watched)
    for one, other in zip(alone, watched, strict=True):
        assert torch.equal(one, other)
    lines = steps(run)
    assert any(key.startswith("activation_") for line in lines for key in line)
    assert any(key.startswith("update_ratio/") for line in lines for key in line)
    assert all("gradient_norm" in line and "loss" in line for line in lines)
    assert "flops_per_sec" in lines[-1]
    assert "any more" not in messages(run)

"""A watched model is saved, copied, sent, scripted and compiled as one that is not."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter

import trainvitals
from trainvitals.trainer.run import Run
from trainvitals.trainer.watch.hooks import Guest


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return trainvitals.init(project="p", dir=tmp_path / "runs", agent=False)


def train(model: nn.Module, steps: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()


def watched(run: Run) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    run.watch(model, activations=["*"], layers_every=1, budget_percent=0)
    train(model)
    assert any(isinstance(hook, Guest) for hook in model._forward_hooks.values())
    return model


def guests(model: nn.Module) -> list[object]:
    return [
        hook
        for part in model.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks)
        for hook in hooks.values()
        if isinstance(hook, Guest)
    ]


def test_a_copy_is_not_watched_and_works(run: Run) -> None:
    model = watched(run)
    twin = copy.deepcopy(model)
    assert not guests(twin)
    assert torch.equal(twin(torch.ones(1, 4)), model(torch.ones(1, 4)))
    run.finish()
    pickle.dumps(twin)
    assert not guests(model)


def test_a_whole_model_is_saved_and_loaded_where_there_is_no_trainvitals(run: Run, tmp_path: Path) -> None:
    model = watched(run)
    torch.save(model, tmp_path / "model.pt")
    script = f"""
import sys
sys.modules["trainvitals"] = None
import torch
model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=False)
print(model(torch.ones(1, 4)).item())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model(torch.ones(1, 4)).item())


def test_a_model_of_a_look_under_way_is_saved_from_within_its_forward(run: Run) -> None:
    saved: list[bytes] = []

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            saved.append(pickle.dumps(self.inner))
            result: torch.Tensor = self.inner(x)
            return result

    model = Saving()
    run.watch(model, activations=["*"], layers_every=1, budget_percent=0)
    train(model)
    assert len(saved) == 3
    assert all(not guests(pickle.loads(one)) for one in saved)


def test_a_model_is_scripted_without_our_hooks_and_keeps_them(run: Run) -> None:
    model = watched(run)
    before = guests(model)
    scripted = torch.jit.script(model)
    assert torch.equal(scripted(torch.ones(1, 4)), model(torch.ones(1, 4)))
    assert guests(model) == before
    torch.jit.save(scripted, io.BytesIO())


def test_hooks_of_the_user_stay_in_their_order_when_a_model_is_scripted(run: Run) -> None:
    class Doubling(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    model = Doubling()
    seen: list[str] = []
    first = model.register_forward_pre_hook(lambda module, args: seen.append("first"))
    run.watch(model)
    second = model.register_forward_pre_hook(lambda module, args: seen.append("second"))
    order = list(model._forward_pre_hooks.values())
    with pytest.raises(Exception, match=r"Lambda|lambda|hook"):  # torch scripts no such hook, with us or without
        torch.jit.script(model)
    assert list(model._forward_pre_hooks.values()) == order
    model(torch.ones(1))
    assert seen == ["first", "second"]
    first.remove()
    second.remove()


def test_a_compiled_model_is_one_graph_with_our_hooks_on_it(run: Run) -> None:
    model = watched(run)
    torch.compiler.reset()
    count = CompileCounter()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2, 4)).mean().backward()
    assert count.frame_count == 1

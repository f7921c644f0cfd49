"""A watched model is saved, copied, sent, scripted, exported and compiled as one that is not: to the byte."""

from __future__ import annotations

import copy
import io
import pickle
import pickletools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
import torch.nn.utils.prune
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from watching import running, steps

from trainvitals.trainer.run import Run


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with running(tmp_path, project="p") as run:
        yield run


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def train(model: nn.Module, count: int = 3) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()


X = torch.ones(2, 4)


class Pickler(pickle.Pickler):
    """With the numbers of each tensor in its place: torch pickles a storage with bytes that differ every time."""

    def reducer_override(self, thing: Any) -> Any:
        return (list, (thing.tolist(),)) if isinstance(thing, torch.Tensor) else NotImplemented


def pickled(thing: Any, protocol: int | None = None) -> bytes:
    pickle.loads(pickle.dumps(thing))
    file = io.BytesIO()
    Pickler(file, protocol).dump(thing)
    return file.getvalue()


def saved(thing: Any) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def quantized(model: nn.Module) -> str:
    return str(torch.ao.quantization.quantize_dynamic(model, {nn.Linear}))


def scripted(model: nn.Module) -> str:
    module = torch.jit.script(model)
    torch.jit.save(module, io.BytesIO())
    return f"{module.code} {module.graph}"


def cloud_pickled(model: nn.Module) -> list[tuple[str, Any]]:
    """Each instruction of the pickle; of a tensor's bytes, which differ every time, that they are there."""
    steps = pickletools.genops(cloudpickle.dumps(model))
    return [(step.name, bytes if isinstance(value, bytes) else value) for step, value, _ in steps]


def onnx_exported(model: nn.Module) -> bytes:
    file = io.BytesIO()
    torch.onnx.export(model, (X,), file, dynamo=False)
    return file.getvalue()


def averaged(model: nn.Module) -> bytes:
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    return pickled(average.module)


def pruned(model: nn.Module) -> list[Any]:
    twin = copy.deepcopy(model)
    torch.nn.utils.prune.l1_unstructured(twin[0], "weight", 0.5)  # type: ignore[index]
    return [(name, values.tolist()) for name, values in twin.state_dict().items()]


WAYS: dict[str, Callable[[Any], Any]] = {
    "torch.save": saved,
    "torch.save of the state": lambda model: saved(model.state_dict()),
    "pickle": pickled,
    "pickle protocol 2": lambda model: pickled(model, 2),
    "cloudpickle": cloud_pickled,
    "copy.copy": lambda model: pickled(copy.copy(model)),
    "copy.deepcopy": lambda model: pickled(copy.deepcopy(model)),
    "the module's own dictionary": lambda model: [sorted(vars(part)) for part in model.modules()],
    "every hook": lambda model: [
        (name, list(value)) for part in model.modules() for name, value in vars(part).items() if name.endswith("_hooks")
    ],
    "jit.script": scripted,
    "jit.trace": lambda model: torch.jit.trace(model, X).code,
    "fx.symbolic_trace": lambda model: str(torch.fx.symbolic_trace(model).graph),
    "export": lambda model: str(torch.export.export(model, (X,)).graph),
    "export, strict": lambda model: str(torch.export.export(model, (X,), strict=True).graph),
    "onnx": onnx_exported,
    "quantize_dynamic": quantized,
    "prune": pruned,
    "averaged weights": averaged,
    "functional_call": lambda model: torch.func.functional_call(model, dict(model.named_parameters()), X).tolist(),
    "vmap": lambda model: torch.func.vmap(model)(X).tolist(),
    "repr": repr,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"activations": ["*"], "activations_every": 1}], ids=["phases", "activations"])
@pytest.mark.filterwarnings("ignore")
def test_what_torch_makes_of_a_watched_model_is_what_it_makes_of_any(
    run: Run, way: str, options: dict[str, Any]
) -> None:
    alone = make_model()
    train(alone)
    expected = WAYS[way](alone)
    train(alone, 1)
    later = WAYS[way](alone)
    model = make_model()
    run.watch(model, layers_every=1, budget_percent=0, **options)
    train(model)
    assert WAYS[way](model) == expected
    train(model, 1)
    assert WAYS[way](model) == later
    run.finish()
    assert [line["step"] for line in steps(run)] == [0, 1, 2, 3]


class Saving(nn.Module):
    """Saves itself from within its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 1)
        self.saved: list[bytes] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.saved.append(pickled({**vars(self), "saved": None}))
        result: torch.Tensor = self.inner(x)
        return result


def test_a_model_saved_from_within_its_forward_during_a_look_is_the_same_too(run: Run) -> None:
    def make() -> Saving:
        torch.manual_seed(0)
        return Saving()

    alone, model = make(), make()
    train(alone)
    run.watch(model, activations=["*"], activations_every=1, layers_every=1, budget_percent=0)
    train(model)
    assert model.saved == alone.saved


def test_a_saved_model_is_loaded_with_weights_only_where_there_is_no_trainvitals(run: Run, tmp_path: Path) -> None:
    model = make_model()
    run.watch(model, activations=["*"], activations_every=1, budget_percent=0)
    train(model)
    torch.save(model, tmp_path / "model.pt")
    script = f"""
import sys
sys.modules["trainvitals"] = None
import torch
import torch.nn.utils.prune
from torch import nn
with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU]):
    model = torch.load({str(tmp_path / "model.pt")!r}, weights_only=True)
print(model(torch.ones(1, 4)).item())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(model(torch.ones(1, 4)).item())


def test_hooks_of_the_user_run_in_their_order_and_may_all_be_removed(run: Run) -> None:
    model = nn.Linear(4, 1)
    seen: list[str] = []
    model.register_forward_pre_hook(lambda module, args: seen.append("first"))
    run.watch(model)
    model.register_forward_pre_hook(lambda module, args: seen.append("second"))
    train(model, 1)
    assert seen == ["first", "second"]
    model._forward_pre_hooks.clear()
    train(model, 1)
    run.finish()
    assert all(line["forward_time"] > 0 for line in steps(run))


# -- torch.compile


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x).relu()
        return out


def compile_whole(model: nn.Module, backend: Any) -> Any:
    return torch.compile(model, backend=backend, fullgraph=True)


def compile_in_place(model: nn.Module, backend: Any) -> Any:
    model.compile(backend=backend, fullgraph=True)
    return model


def compile_parts(model: nn.Module, backend: Any) -> Any:
    for part in model.children():
        part.compile(backend=backend)
    return model


def compile_function(model: nn.Module, backend: Any) -> Any:
    return torch.compile(lambda x: model(x) * 2, backend=backend, fullgraph=True)


def compile_with_break(model: nn.Module, backend: Any) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        torch._dynamo.graph_break()
        out: torch.Tensor = model(x)
        return out

    return torch.compile(step, backend=backend)


COMPILED = [compile_whole, compile_in_place, compile_parts, compile_function, compile_with_break]


def count_graphs(compiling: Callable[..., Any], watch: Callable[[nn.Module], Any], *, before: bool) -> list[Any]:
    """Graphs, operations and breaks of a model that is trained after and, last, no longer watched."""
    torch.compiler.reset()
    counters.clear()
    model = nn.Sequential(*(Block() for _ in range(10)))
    count = CompileCounter()
    watched = watch(model) if before else None
    called = compiling(model, count)
    if not before:
        called(X).mean().backward()
        watched = watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        called(X).mean().backward()
        optimizer.step()
    if watched is not None:
        watched.remove()
    called(X).mean().backward()
    return [count.frame_count, count.op_count, dict(counters["graph_break"]), dict(counters["stats"])]


@pytest.mark.parametrize("before", [True, False], ids=["watched, then compiled", "compiled, then watched"])
@pytest.mark.parametrize("compiling", COMPILED)
def test_a_compiled_model_has_the_same_graphs_no_more_breaks_and_is_not_compiled_again(
    run: Run, compiling: Callable[..., Any], before: bool
) -> None:
    alone = count_graphs(compiling, lambda _: None, before=before)
    options = {"activations": ["*"], "activations_every": 2, "layers_every": 1, "budget_percent": 0}
    assert count_graphs(compiling, lambda model: run.watch(model, **options), before=before) == alone

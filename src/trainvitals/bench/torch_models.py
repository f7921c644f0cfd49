"""Models that torch runs, and their variants. Imported in child processes only.
Tested in tests/bench/test_worker.py."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from trainvitals.bench.inputs import InputSpec, require_batch
from trainvitals.bench.plan import Plan
from trainvitals.bench.torch_loading import load
from trainvitals.bench.unavailable import Unavailable

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class TorchModel:
    """A module on its device, ready to be called."""

    def __init__(self, module: Any, device: str, *, dtype: torch.dtype | None = None, inference: bool = True) -> None:
        self.module = module
        self.device = device
        self.only_batch: int | None = None
        """The only batch size that the model's file allows."""
        self.convert_seconds: float | None = None
        self.compiles = False
        """Whether the first call of each shape compiles."""
        self._dtype = dtype
        self._guard = torch.inference_mode if inference else torch.no_grad

    def prepare(self, specs: Sequence[InputSpec], arrays: Sequence[NDArray[Any]]) -> Inputs:
        """The inputs on the device, in the variant's data type."""
        require_batch(len(arrays[0]), self.only_batch)
        tensors = [self._tensor(spec, array) for spec, array in zip(specs, arrays, strict=True)]
        named = {spec.name: tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name is not None}
        return tuple(tensor for spec, tensor in zip(specs, tensors, strict=True) if spec.name is None), named

    def _tensor(self, spec: InputSpec, array: NDArray[Any]) -> torch.Tensor:
        found = torch.from_numpy(array.copy())
        return self._take(found.to(torch.bfloat16) if spec.dtype == "bfloat16" else found)

    def predict(self, *positions: Any, **named: Any) -> Any:
        """The same for arrays or tensors of the caller's; arrays come back."""
        found = self.call((tuple(map(self._take, positions)), {key: self._take(item) for key, item in named.items()}))
        arrays = self.arrays_of(found)
        return arrays[0] if len(arrays) == 1 else arrays

    def _take(self, value: Any) -> torch.Tensor:
        found: torch.Tensor = torch.as_tensor(value).to(self.device)
        return found.to(self._dtype) if self._dtype is not None and found.is_floating_point() else found

    def call(self, inputs: Inputs) -> Any:
        with self._guard():
            return self.module(*inputs[0], **inputs[1])

    def caller(self, inputs: Inputs) -> Callable[[], Any]:
        """One call, with as little as possible around it."""
        module, positions, named = self.module, *inputs
        if self.device == "cpu":
            return lambda: module(*positions, **named)

        def call() -> Any:
            found = module(*positions, **named)
            self.synchronize()
            return found

        return call

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        """Around the timed calls, so that entering it is not timed."""
        return self._guard()

    def synchronize(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()

    def arrays_of(self, output: Any) -> list[NDArray[Any]]:
        """Every tensor of an answer, whatever it is nested in."""
        return [_real(tensor.detach()).float().cpu().numpy() for tensor in flatten(output)]

    def describe(self) -> dict[str, Any]:
        """Parameters and bytes by data type, buffers included."""
        module = self.module.module if isinstance(self.module, AheadOfTime) else self.module
        if not isinstance(module, torch.nn.Module):
            return {}
        total: Counter[str] = Counter()
        tensors = {id(item): item for item in (*module.parameters(), *module.buffers())}
        for tensor in tensors.values():
            for part in _parts_of(tensor):
                total[str(part.dtype).removeprefix("torch.")] += part.numel() * part.element_size()
        parameters = sum(item.numel() for item in module.parameters())
        for packed in _packed_parameters(module):
            total[str(packed.dtype).removeprefix("torch.")] += packed.numel() * packed.element_size()
            parameters += packed.numel()
        return {"parameters": parameters, "bytes_by_dtype": dict(total)}

    def why_unranked(self) -> str:
        """Why its time is not that of the method; empty if it is."""
        if not self.compiles or isinstance(self.module, AheadOfTime):
            return ""
        from torch._dynamo.utils import counters

        return "" if counters["stats"]["unique_graphs"] else "torch.compile compiled no part of this model"

    def count_flops(self, inputs: Inputs) -> int | None:
        from torch.utils.flop_counter import FlopCounterMode

        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            self.module(*inputs[0], **inputs[1])
        return int(counter.get_total_flops()) or None

    def find_culprit(self, inputs: Inputs) -> str | None:
        """The innermost module that was running when a call raised; None if it does not raise."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        names = {id(item): name for name, item in self.module.named_modules()}
        running: list[str] = []

        def leave(*_: Any) -> None:
            running.pop()

        hooks = (
            register_module_forward_pre_hook(
                lambda item, _: running.append(f"{names.get(id(item)) or 'the model'} ({type(item).__name__})")
            ),
            register_module_forward_hook(leave),
        )
        try:
            self.call(inputs)
        except Exception:  # noqa: BLE001 - the user's model may raise anything; the caller has the error already
            return running[-1] if running else None
        finally:
            for hook in hooks:
                hook.remove()
        return None

    def reset_device_peak(self) -> None:
        """The highest memory of the device is that of what follows."""
        if self.device.startswith("cuda"):
            torch.cuda.reset_peak_memory_stats()

    def device_memory(self) -> dict[str, float]:
        if not self.device.startswith("cuda"):
            return {}
        mb = 1 << 20
        return {
            "device_allocated": torch.cuda.max_memory_allocated() / mb,
            "device_reserved": torch.cuda.max_memory_reserved() / mb,
        }

    def disk_bytes(self, work: Path) -> int | None:
        """The size of the weights as a file, or of the package that they were compiled into."""
        if isinstance(self.module, AheadOfTime):
            return self.module.package_bytes()
        state = getattr(self.module, "state_dict", None)
        if state is None:
            return None
        path = work / f"weights.{os.getpid()}.pt"
        try:
            torch.save(state(), path)
            return path.stat().st_size
        finally:
            path.unlink(missing_ok=True)


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def flatten(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for item in output.values():
            yield from flatten(item)
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from flatten(item)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        for part in dataclasses.fields(output):
            yield from flatten(getattr(output, part.name))


def _parts_of(tensor: Any) -> Iterator[torch.Tensor]:
    """A quantized tensor of torchao is one of several."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is None:
        data = tensor.data if isinstance(tensor, torch.nn.Parameter) else tensor
        inner = getattr(data, "__tensor_flatten__", None) if type(data) is not torch.Tensor else None
        if inner is None:
            yield data
            return
        tensor = data
    for name in inner()[0]:
        yield from _parts_of(getattr(tensor, name))


def _packed_parameters(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Of torch.ao's quantized layers, whose weights and biases are not registered as such."""
    for item in module.modules():
        for name in ("weight", "bias"):
            packed = getattr(item, name, None)
            if callable(packed) and (found := packed()) is not None:
                yield found


# -- variants


def build(plan: Plan, variant: str, work: Path) -> tuple[TorchModel, tuple[InputSpec, ...], tuple[str, ...]]:
    """The model as this variant. Unavailable with the reason where that cannot be had here."""
    if plan.device.startswith("cuda") and not torch.cuda.is_available():
        raise Unavailable("torch sees no CUDA device")
    module, specs, only_batch, remarks = load(plan)
    with contextlib.suppress(AttributeError, NotImplementedError):
        module = module.to(plan.device)
    begin = time.perf_counter()
    model = _BUILDERS[variant](plan, module, plan.inputs or specs, work)
    model.only_batch = only_batch
    if variant != "fp32" and not model.compiles:
        model.convert_seconds = time.perf_counter() - begin
    return model, specs, remarks


def _as_is(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
    return TorchModel(module, plan.device)


def _cast(dtype: torch.dtype) -> Callable[..., TorchModel]:
    def build_cast(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
        return TorchModel(module.to(dtype), plan.device, dtype=dtype)

    return build_cast


def _compiled(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
    _need_compiler(plan)
    if isinstance(module, torch.jit.ScriptModule):
        raise Unavailable("torch.compile does not compile TorchScript: export it with torch.export, or give its code")
    if plan.is_generator:
        module.compile()  # in place: `generate` of what torch.compile returns calls the module as it was
    else:
        module = torch.compile(module)
    model = TorchModel(module, plan.device, inference=False)
    model.compiles = True
    return model


def _need_compiler(plan: Plan) -> None:
    if plan.device == "cpu" and not (os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")):
        raise Unavailable("no C++ compiler: install g++")


class AheadOfTime:
    """Compiled for one batch size after the other."""

    def __init__(self, module: Any, work: Path) -> None:
        self.module = module
        self._work = work
        self._loaded: dict[tuple[Any, ...], Any] = {}
        self._newest: Path | None = None

    def package_bytes(self) -> int | None:
        """Of the package that was loaded last; None before the first call."""
        return self._newest.stat().st_size if self._newest is not None else None

    def __call__(self, *positions: Any, **named: Any) -> Any:
        key = tuple(item.shape for item in (*positions, *named.values()))
        found = self._loaded.get(key)
        if found is None:
            from torch._inductor import aoti_compile_and_package, aoti_load_package

            # The first process of a benchmark compiles for the others, which load.
            path = self._work / f"aoti.{'.'.join('x'.join(map(str, shape)) for shape in key)}.pt2"
            if not path.exists():
                aoti_compile_and_package(torch.export.export(self.module, positions, named), package_path=str(path))
            found = self._loaded[key] = aoti_load_package(str(path))
            self._newest = path
        return found(*positions, **named)


def _ahead_of_time(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
    _need_compiler(plan)
    if plan.is_generator:
        raise Unavailable("not for text generation, whose shapes change with every token: use --variants compile")
    model = TorchModel(AheadOfTime(module, work), plan.device, inference=False)
    model.compiles = True
    return model


def _torchao(config_name: str, *, group: int = 1, **options: Any) -> Callable[..., TorchModel]:
    """`group` inputs of a layer share a scale; a layer whose inputs are no multiple of it stays as it is."""

    def fits(item: torch.nn.Module, name: str = "") -> bool:
        return isinstance(item, torch.nn.Linear) and item.in_features % group == 0

    def quantize(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
        try:
            quantization = importlib.import_module("torchao.quantization")
        except ImportError:
            raise Unavailable("needs: pip install torchao") from None
        config = getattr(quantization, config_name, None)
        if config is None:  # they are renamed between minor versions
            raise Unavailable(f"this version of torchao has no {config_name}")
        _restore_linear_layers(module)
        if not any(map(fits, module.modules())):
            raise Unavailable("the model has no linear layers that torchao can quantize")
        given = {key: make(quantization) for key, make in options.items()}
        quantization.quantize_(module, config(**given), filter_fn=fits)
        return TorchModel(module, plan.device, inference=False)  # its tensors cannot be inference tensors

    return quantize


def _restore_linear_layers(module: Any) -> None:
    """In an exported program linear layers are functions of weights. Make them layers again, which can be quantized;
    one whose weight is used otherwise too, such as that of an embedding, stays as it is."""
    if not isinstance(module, torch.fx.GraphModule):
        return
    linear = torch.ops.aten.linear.default
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target is not linear or node.kwargs:
            continue
        values, weight, *bias = node.args
        tensors = [item for item in (weight, *bias) if item is not None]
        name = str(getattr(weight, "target", "")).rpartition(".")[0]
        wanted = [f"{name}.weight", f"{name}.bias"][: len(tensors)]
        if [(item.op, item.target) for item in tensors] != [("get_attr", path) for path in wanted]:
            continue
        if not name or any(user.target is not linear for item in tensors for user in item.users):
            continue
        given = dict(module.get_submodule(name).named_parameters())
        if sorted(given) != sorted(path.rpartition(".")[2] for path in wanted):
            continue
        outputs, inputs = given["weight"].shape
        layer = torch.nn.Linear(inputs, outputs, bias="bias" in given, device="meta")
        layer.load_state_dict(given, assign=True)
        module.set_submodule(name, layer.requires_grad_(False))
        with module.graph.inserting_before(node):
            node.replace_all_uses_with(module.graph.call_module(name, (values,)))
        module.graph.erase_node(node)
    # The weights are read by their layers now.
    for node in [item for item in module.graph.nodes if item.op == "get_attr" and not item.users]:
        module.graph.erase_node(node)
    module.recompile()


def _legacy(plan: Plan, module: Any, specs: Sequence[InputSpec], work: Path) -> TorchModel:
    quantize = getattr(getattr(torch.ao, "quantization", None), "quantize_dynamic", None)
    if quantize is None or plan.device != "cpu":
        raise Unavailable("this torch has no dynamic quantization" if quantize is None else "for CPUs only")
    _restore_linear_layers(module)
    if not any(isinstance(item, torch.nn.Linear) for item in module.modules()):
        raise Unavailable("the model has no linear layers that torch can quantize")
    return TorchModel(quantize(module, {torch.nn.Linear}, dtype=torch.qint8), plan.device)


INT4_GROUP = 32
_BUILDERS: Mapping[str, Callable[..., TorchModel]] = {
    "fp32": _as_is,
    "bf16": _cast(torch.bfloat16),
    "fp16": _cast(torch.float16),
    "compile": _compiled,
    "aoti": _ahead_of_time,
    "int8-ao": _torchao("Int8WeightOnlyConfig"),
    "int4-ao": _torchao(
        "IntxWeightOnlyConfig",
        group=INT4_GROUP,
        weight_dtype=lambda _: vars(torch)["int4"],
        granularity=lambda room: room.PerGroup(INT4_GROUP),
    ),
    "fp8-ao": _torchao("Float8WeightOnlyConfig"),
    "int8-legacy": _legacy,
}


# -- the machine

PEAK_SIZE = {"cpu": 640, "cuda": 8192}
"""Rows and columns of the matrices whose product shows the peak: on a CPU one of some milliseconds, which a busy
scheduler leaves alone now and then."""
PEAK_BYTES = 256 << 20
"""Of what is copied, piece by piece: more than most caches hold."""
PEAK_PIECES = {"cpu": 32, "cuda": 1}
PEAK_SECONDS = 1.0
PEAK_TRIES = 4


def measure_peak(device: str) -> dict[str, float]:
    """The best of many tries: whatever disturbs one makes it slower."""
    kind = device.partition(":")[0]
    side, pieces = PEAK_SIZE.get(kind, 640), PEAK_PIECES.get(kind, 1)
    matrix = torch.rand(side, side, device=device)
    product = torch.empty_like(matrix)
    source = torch.rand(pieces, PEAK_BYTES // 4 // pieces, device=device)
    copy = torch.zeros_like(source)
    return {
        "flops_per_second": 2 * side**3 / _fastest(lambda _: torch.mm(matrix, matrix, out=product), device),
        "bytes_per_second": 2
        * PEAK_BYTES
        / pieces
        / _fastest(lambda at: copy[at % pieces].copy_(source[at % pieces]), device),
    }


def _fastest(call: Callable[[int], Any], device: str) -> float:
    """Seconds of the call with the number of the try."""
    times: list[float] = []
    deadline = time.perf_counter() + PEAK_SECONDS
    while len(times) < PEAK_TRIES or time.perf_counter() < deadline:
        begin = time.perf_counter()
        call(len(times))
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


# -- generation


class TokenClock:
    """A streamer that notes when each token came. `generate` hands it the prompt first."""

    def __init__(self) -> None:
        self.stamps: list[int] = []

    def put(self, value: Any) -> None:
        self.stamps.append(time.perf_counter_ns())

    def end(self) -> None: ...


def generate(model: TorchModel, ids: Any, count: int) -> tuple[int, list[int]]:
    """Make exactly `count` tokens after the prompt: when it began, and when each came, in nanoseconds."""
    clock = TokenClock()
    config = model.module.generation_config
    pad = config.pad_token_id if config.pad_token_id is not None else 0
    with model.guard():
        model.synchronize()
        begin = time.perf_counter_ns()
        model.module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            streamer=clock,
            do_sample=False,
            min_new_tokens=count,
            max_new_tokens=count,
            pad_token_id=pad,
        )
        model.synchronize()
    return begin, clock.stamps[1:]

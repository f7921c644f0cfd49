"""Models that onnxruntime runs: files, and exports of torch models. Imported in child processes only; torch only to
export. Tested in tests/bench/test_worker.py."""

from __future__ import annotations

import contextlib
import importlib.util
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainvitals.bench.inputs import InputSpec, require_batch
from trainvitals.bench.model_files import read_size
from trainvitals.bench.plan import Plan
from trainvitals.bench.unavailable import Unavailable

_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int8)": "int8",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}
SUFFIX = ".onnx"
_INTEGER_KERNELS = frozenset(
    {"MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "DynamicQuantizeLSTM", "QAttention"}
)

Feeds = dict[str, NDArray[Any]]


class OnnxModel:
    """Sessions of onnxruntime: one, or one for each batch size where the export has fixed ones."""

    def __init__(self, find_file: Callable[[int], Path], threads: int) -> None:
        self.convert_seconds: float | None = None
        self.compiles = False
        self._find_file = find_file
        self._threads = threads
        self._sessions: dict[Path, Any] = {}
        self._first: Path | None = None

    def session(self, batch: int) -> Any:
        """Made when it is first asked for."""
        path = self._find_file(batch)
        if not path.exists():
            raise ValueError(f"the model could be exported for fixed batch sizes only, and not for {batch}")
        self._first = self._first or path
        if path not in self._sessions:
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = self._threads
            options.inter_op_num_threads = 1
            options.log_severity_level = 4
            # A thread that spins between the calls would take the time of the other variants' rounds.
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            self._sessions[path] = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return self._sessions[path]

    def prepare(self, specs: Sequence[InputSpec], arrays: Sequence[NDArray[Any]]) -> tuple[Any, Feeds]:
        session = self.session(len(arrays[0]))
        first = session.get_inputs()[0].shape[:1]
        require_batch(len(arrays[0]), first[0] if first and isinstance(first[0], int) else None)
        wanted = [item.name for item in session.get_inputs()]
        if len(wanted) != len(arrays):
            raise ValueError(f"the model has {len(wanted)} inputs ({', '.join(wanted)}), not {len(arrays)}")
        by_name = {spec.name: array for spec, array in zip(specs, arrays, strict=True) if spec.name is not None}
        rest = iter([array for spec, array in zip(specs, arrays, strict=True) if spec.name not in wanted])
        return session, {name: by_name[name] if name in by_name else next(rest) for name in wanted}

    def predict(self, *positions: Any, **named: Any) -> Any:
        """The same for arrays or tensors of the caller's."""
        given = [np.asarray(item) for item in positions]
        session = self.session(len(given[0] if given else next(iter(named.values()))))
        rest = iter(given)
        feeds = {
            item.name: np.asarray(named[item.name]) if item.name in named else next(rest)
            for item in session.get_inputs()
        }
        return _unwrap(session.run(None, feeds))

    def call(self, inputs: tuple[Any, Feeds]) -> Any:
        session, feeds = inputs
        return session.run(None, feeds)

    def caller(self, inputs: tuple[Any, Feeds]) -> Callable[[], Any]:
        session, feeds = inputs
        return lambda: session.run(None, feeds)

    def guard(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def synchronize(self) -> None: ...

    def arrays_of(self, output: Any) -> list[NDArray[Any]]:
        return [item for item in output if isinstance(item, np.ndarray)]

    def describe(self) -> dict[str, Any]:
        """From the file's initializers."""
        if self._first is None:
            return {}
        found = read_size(self._first)
        return {"parameters": found.parameters, "bytes_by_dtype": found.bytes_by_dtype}

    def why_unranked(self) -> str:
        return ""

    def count_flops(self, inputs: Any) -> int | None:
        return None

    def find_culprit(self, inputs: Any) -> str | None:
        return None  # onnxruntime's own message names the node

    def reset_device_peak(self) -> None:
        pass

    def device_memory(self) -> dict[str, float]:
        return {}

    def disk_bytes(self, work: Path) -> int | None:
        return read_size(self._first).disk_bytes if self._first is not None else None


def _unwrap(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else arrays


def build(
    plan: Plan, variant: str, work: Path, threads: int
) -> tuple[OnnxModel, tuple[InputSpec, ...], tuple[str, ...]]:
    """The model from its file, or from the files that `convert` made. Unavailable with the reason where that cannot be
    had here."""
    _need("onnxruntime")
    if plan.device != "cpu":
        raise Unavailable("onnxruntime is supported on the CPU only")
    model = OnnxModel(lambda batch: _place(plan, variant, work, batch), threads)
    session = model.session(plan.batches[0] if plan.batches else 1)
    is_whole = plan.target.endswith(SUFFIX)
    return model, tuple(_spec_of(item) for item in session.get_inputs()) if is_whole else (), ()


def _place(plan: Plan, variant: str, work: Path, batch: int) -> Path:
    """The file of a variant: one for all batch sizes, else one for this."""
    if plan.target.endswith(SUFFIX):
        path = Path(plan.target)
        if not path.is_file():
            raise Unavailable(f"no such file: {path}")
        return path if variant == "onnx" else work / "model.int8.onnx"
    ending = ".int8.onnx" if variant == "int8-ort" else ".onnx"
    any_batch = work / f"export{ending}"
    return any_batch if (work / "export.onnx").exists() else work / f"export.b{batch}{ending}"


def _need(*names: str) -> None:
    if any(importlib.util.find_spec(name) is None for name in names):
        raise Unavailable("needs: pip install 'trainvitals[bench-model]'")


def _spec_of(item: Any) -> InputSpec:
    dtype = _DTYPES.get(item.type)
    if dtype is None:
        raise Unavailable(f"the input '{item.name}' is of type {item.type}, which cannot be generated")
    # A size with a name is free: 1.
    return InputSpec(tuple(size if isinstance(size, int) else 1 for size in item.shape) or (1,), dtype, item.name)


def convert(plan: Plan, variant: str, work: Path, batches: Sequence[int]) -> None:
    """Make the files of a variant, in a process that then ends: what a conversion needs is not the model's memory."""
    _need("onnxruntime", "onnx", "onnxscript")
    if not plan.target.endswith(SUFFIX) and not _place(plan, "onnx", work, batches[0]).exists():
        _export(plan, work, batches)
    for batch in batches:
        made = _place(plan, variant, work, batch)
        if not made.exists():
            _quantize(_place(plan, "onnx", work, batch), made)


def _export(plan: Plan, work: Path, batches: Sequence[int]) -> None:
    """One file with a free batch size; where the model does not allow that, one for each."""
    import torch

    from trainvitals.bench.inputs import make_arrays
    from trainvitals.bench.torch_loading import load
    from trainvitals.bench.torch_models import TorchModel

    if plan.is_generator:
        raise Unavailable("text generation models are not exported")
    module, specs, only_batch, _ = load(plan)
    specs = plan.inputs or specs
    model = TorchModel(module, "cpu")
    model.only_batch = only_batch

    def export(name: str, batch: int, **more: Any) -> None:
        positions, named = model.prepare(specs, make_arrays(specs, batch, plan.seed))
        given = {"kwargs": named or None, "dynamo": True, "external_data": False, "verbose": False, **more}
        torch.onnx.export(module, positions, str(work / name), **given)

    free = {0: torch.export.Dim.DYNAMIC}
    shapes: Any = tuple(free for spec in specs if spec.name is None)
    if any(spec.name is not None for spec in specs):
        shapes = {spec.name: free for spec in specs} if not shapes else None
    try:
        if shapes is None:
            raise ValueError("inputs by position and by name")
        export("export.onnx", 2, dynamic_shapes=shapes)  # a batch of 1 would be taken for a constant
    except Exception:  # noqa: BLE001 - torch.export raises dozens of kinds for a batch that is not free
        (work / "export.onnx").unlink(missing_ok=True)
        for batch in batches:
            try:
                export(f"export.b{batch}.onnx", batch)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 - as above, and nothing of it is our fault
                raise Unavailable(f"torch cannot export the model: {_root_of(error)}") from None


def _root_of(error: BaseException) -> str:
    """The first line of what came first: torch's own is where to find its instructions."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:300]


def _quantize(path: Path, made: Path) -> None:
    """8-bit weights per channel, activations as they come; 7 bits where 8 of both would overflow."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(str(path))
    # Shapes that torch's exporter notes contradict what onnxruntime infers after transposing weights.
    del model.graph.value_info[:]
    plain = made.with_suffix(".plain")
    onnx.save(model, str(plain))
    quantize_dynamic(str(plain), str(made), weight_type=QuantType.QInt8, per_channel=True, reduce_range=_overflows())
    if not any(node.op_type in _INTEGER_KERNELS for node in onnx.load(str(made)).graph.node):
        raise Unavailable("the model has no layers that onnxruntime can quantize")


def _overflows(cpuinfo: Path = Path("/proc/cpuinfo"), machine: str | None = None) -> bool:
    """Whether onnxruntime adds pairs of 8-bit products in 16 bits, as it does on x86 without VNNI: they do not fit, and
    the answers of a plain MLP are off by a fifth."""
    if (machine or platform.machine()) not in ("x86_64", "AMD64"):
        return False
    try:
        return "vnni" not in cpuinfo.read_text(errors="replace")
    except OSError:
        return True

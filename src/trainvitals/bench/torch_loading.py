"""Loading models that torch runs. Imported in child processes only. Tested in tests/bench/test_worker.py."""

from __future__ import annotations

import contextlib
import importlib
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from trainvitals.bench.inputs import InputSpec
from trainvitals.bench.plan import Plan
from trainvitals.bench.unavailable import Unavailable
from trainvitals.bench.user_code import import_callable
from trainvitals.errors import name_kind

PICKLE_BEGINS = b"\x80"
"""Every pickle since protocol 2, as the old format of torch.save has it."""


class LoadedModel(NamedTuple):
    """A model, and what its file knows."""

    module: Any
    specs: tuple[InputSpec, ...] = ()
    only_batch: int | None = None
    """The only batch size that it can be called with; None if any."""
    remarks: tuple[str, ...] = ()


def load(plan: Plan) -> LoadedModel:
    """The model. Unavailable with what to do."""
    target = plan.target
    path = Path(target)
    if ":" in target and not path.exists():
        return _use_factory(plan)
    if not path.exists():
        raise Unavailable(f"no such file or folder: {target}")
    if path.is_dir():
        return _load_transformers(plan)
    if path.suffix == ".pt2":
        if not zipfile.is_zipfile(path):
            raise Unavailable(f"{path} is damaged or not a torch.export program")
        exported = _guard_pickle(lambda: torch.export.load(path), path)
        return LoadedModel(exported.module(), _specs_of(exported), _only_batch(exported))
    if zipfile.is_zipfile(path) and _is_script(path):
        return LoadedModel(torch.jit.load(str(path), map_location="cpu").eval())  # type: ignore[no-untyped-call]
    with open(path, "rb") as file:
        begins = file.read(1)
    if not zipfile.is_zipfile(path) and begins != PICKLE_BEGINS:
        raise Unavailable(f"{path} is no model that torch can load: a .pt2, TorchScript, or a file of torch.save")
    return _load_pickle(plan, path)


def _is_script(path: Path) -> bool:
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name for name in archive.namelist())


def _guard_pickle(read: Callable[[], Any], path: Path) -> Any:
    """torch refuses to unpickle anything but tensors here (TORCH_FORCE_WEIGHTS_ONLY_LOAD)."""
    import pickle

    try:
        return read()
    except pickle.UnpicklingError:
        raise Unavailable(
            f"{path} contains a pickle, which can run arbitrary code when loaded; if you trust it: --trust"
        ) from None


def _load_pickle(plan: Plan, path: Path) -> LoadedModel:
    found = _guard_pickle(lambda: torch.load(path, map_location="cpu", weights_only=not plan.trust), path)
    if isinstance(found, Mapping):
        raise Unavailable(
            f"{path} has weights and no code: give the function that makes the model, "
            f"such as: my_models:make_model --weights {path}"
        )
    if not callable(found):
        raise Unavailable(f"{path} contains {name_kind(found)}, not a model")
    return _ready(found)


def _ready(module: Any) -> LoadedModel:
    if not isinstance(module, torch.nn.Module):
        return LoadedModel(module)
    remarks = ("training mode was on and has been turned off",) if module.training and _minds_training(module) else ()
    return LoadedModel(module.eval().requires_grad_(False), remarks=remarks)


def _minds_training(module: torch.nn.Module) -> bool:
    """Whether it has a layer that behaves differently while training; a new module is in that mode, harmlessly."""
    kinds = (torch.nn.modules.batchnorm._NormBase, torch.nn.modules.dropout._DropoutNd)
    return any(isinstance(item, kinds) for item in module.modules())


def _use_factory(plan: Plan) -> LoadedModel:
    found = import_callable(plan.target)
    torch.manual_seed(plan.seed)  # one that initializes its weights makes the same model in every child
    if not callable(found):
        raise Unavailable(f"{plan.target} is {name_kind(found)}, not a model or a function that makes one")
    module = found if isinstance(found, torch.nn.Module) else found()
    if plan.weights is not None:
        path = Path(plan.weights)
        if not path.is_file():
            raise Unavailable(f"no such file: --weights {path}")
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = _guard_pickle(lambda: torch.load(path, map_location="cpu", weights_only=not plan.trust), path)
            state = state.get("state_dict", state.get("model", state)) if isinstance(state, Mapping) else state
        try:
            module.load_state_dict(state)
        except (RuntimeError, TypeError) as error:
            raise Unavailable(f"{path} does not fit the model: {' '.join(str(error).split())[:300]}") from None
    if not callable(module):
        raise Unavailable(f"{plan.target} returned {name_kind(module)}, not a model")
    return _ready(module)


def _specs_of(exported: Any) -> tuple[InputSpec, ...]:
    """The example inputs that an exported program carries."""
    if exported.example_inputs is None:
        return ()
    positions, named = exported.example_inputs
    given = [(None, item) for item in positions] + list(named.items())
    if not all(isinstance(item, torch.Tensor) for _, item in given):
        return ()
    return tuple(InputSpec(tuple(item.shape), str(item.dtype).removeprefix("torch."), name) for name, item in given)


def _only_batch(exported: Any) -> int | None:
    """The first dimension of the first input, unless that was exported as free."""
    wanted = exported.graph_signature.user_inputs
    values = (node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder" and node.name in wanted)
    first = next((value for value in values if isinstance(value, torch.Tensor)), None)
    size = first.shape[0] if first is not None and first.dim() else None
    return size if isinstance(size, int) else None


def _load_transformers(plan: Plan) -> LoadedModel:
    folder = Path(plan.target)
    if not (folder / "config.json").is_file():
        raise Unavailable(f"{folder} has no config.json: not a Transformers model folder")
    model = _auto_class(folder).from_pretrained(
        folder, local_files_only=True, trust_remote_code=plan.trust, dtype=torch.float32
    )
    if not plan.is_generator:
        model.config.use_cache = False  # one call: nobody would use it, and torch cannot export it
    length = plan.prompt or 128
    return LoadedModel(model.eval(), (InputSpec((1, length), "int64", "input_ids", int(model.config.vocab_size)),))


def _auto_class(folder: Path) -> Any:
    """What Transformers makes the model of this folder with."""
    try:
        import transformers
    except ImportError:
        raise Unavailable("needs: pip install transformers") from None
    names = json.loads((folder / "config.json").read_text()).get("architectures") or []
    return transformers.AutoModelForCausalLM if any("LM" in name for name in names) else transformers.AutoModel


# -- libraries

LIBRARIES = {
    "compile": ("torch._inductor.compile_fx",),
    "aoti": ("torch._inductor.package", "torch.export.pt2_archive._package"),
    "int8-ao": ("torchao.quantization",),
    "int4-ao": ("torchao.quantization",),
    "fp8-ao": ("torchao.quantization",),
}
"""What a variant imports while it is made, where this version has it."""
PROGRAM_LIBRARIES = ("torch.export.pt2_archive._package", "torch._export.serde.serialize")


def import_libraries(plan: Plan, variant: str) -> bool:
    """Import what loading the model needs, so that the memory of libraries is not taken for the model's. False if the
    model itself came with it. What cannot be imported is reported by `load`."""
    path = Path(plan.target)
    names = [*LIBRARIES.get(variant, ()), *(PROGRAM_LIBRARIES if path.suffix == ".pt2" else ())]
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    found: Any = None
    with contextlib.suppress(Exception):
        if path.is_dir():
            _import_architecture(plan, path)
        elif ":" in plan.target and not path.exists():
            found = import_callable(plan.target)
    return not isinstance(found, torch.nn.Module)


def _import_architecture(plan: Plan, folder: Path) -> None:
    """The code of the model, by making one without weights."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=plan.trust)
    with torch.device("meta"):
        _auto_class(folder).from_config(config, trust_remote_code=plan.trust)

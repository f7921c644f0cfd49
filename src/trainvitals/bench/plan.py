"""What is to be measured, as plain values: the parent sends it to every child.
Tested in tests/bench/test_measuring.py."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from trainvitals.bench.commits import CodeTree
from trainvitals.bench.inputs import InputSpec
from trainvitals.errors import TrainvitalsError, nearest

MOST_SECONDS = 10.0
PROCESSES = 6
"""Of each variant. A ratio of six pairs whose processes differ by 1 % is known to about 2 %."""
PRECISION = 0.02
TOLERANCE = 0.05
MOST_BATCH = 4096


class Variant(NamedTuple):
    """One way to run a model."""

    name: str
    help: str
    unranked: str = ""
    """Why its time says nothing about the method on a CPU; empty where its kernels run."""


AHEAD_OF_TIME = "aoti"
EAGER_TORCHAO = "eager torchao kernels on CPU"
VARIANTS = (
    Variant("fp32", "as it is, in 32 bits"),
    Variant("bf16", "weights and activations in bfloat16"),
    Variant("fp16", "weights and activations in float16"),
    Variant("compile", "torch.compile"),
    Variant(AHEAD_OF_TIME, "compiled ahead of time by AOTInductor"),
    Variant("onnx", "exported to ONNX, run by onnxruntime"),
    Variant("int8-ort", "ONNX with 8-bit weights and activations, by onnxruntime"),
    Variant("int8-ao", "8-bit weights, by torchao", EAGER_TORCHAO),
    Variant("int4-ao", "4-bit weights, by torchao", EAGER_TORCHAO),
    Variant("fp8-ao", "8-bit floating point weights, by torchao", EAGER_TORCHAO),
    Variant("int8-legacy", "8-bit linear layers by torch.ao.quantization, where it still exists"),
)
ONNX_VARIANTS = ("onnx", "int8-ort")
BY_NAME = {variant.name: variant for variant in VARIANTS}


@dataclass(frozen=True, slots=True)
class Plan:
    """A model, its inputs, and how much to find out about it."""

    target: str
    """A file, a folder, or `module:callable`."""
    weights: str | None = None
    """State dict or safetensors for the model that a factory makes."""
    inputs: tuple[InputSpec, ...] = ()
    """Empty where the file knows them."""
    batches: tuple[int, ...] = ()
    """Empty: that of the inputs."""
    threads: tuple[int, ...] = (1,)
    cores: tuple[int, ...] = ()
    """Those that may be used; empty: all that this process may use."""
    variants: tuple[str, ...] = ("fp32",)
    """The first is the reference."""
    device: str = "cpu"
    seconds: float = MOST_SECONDS
    """At most this long for each variant and batch, in all processes."""
    processes: int = PROCESSES
    """Of each variant, one after the other."""
    precision: float = PRECISION
    """Enough calls were timed when the interval of the median is no wider than this share of it."""
    tolerance: float = TOLERANCE
    """Relative error above which a variant is not ranked."""
    metric: str | None = None
    """`module:callable`, called with each variant: the user's own measure of quality."""
    prompt: int | None = None
    generate: int | None = None
    """Tokens, of a model that generates."""
    trust: bool = False
    """Whether pickles in the model's files may be loaded, which can run any code."""
    largest_batch: bool = False
    only_size: bool = False
    """Read the file's headers; nothing is loaded or timed."""
    against: str | None = None
    """Another model, or other weights for that of the factory. It is the reference then, timed in the same rounds;
    its answers may be other ones."""
    against_code: CodeTree | None = None
    """Another commit of the code that makes the model, in place of another model."""
    code: CodeTree | None = None
    """Where a child imports from, if not from the checkout."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.variants:
            if name not in BY_NAME:
                known = ", ".join(BY_NAME)
                raise TrainvitalsError(f"unknown variant '{name}'{nearest(name, BY_NAME)}", hint=f"one of: {known}")
        if self.metric is not None and ":" not in self.metric:
            raise TrainvitalsError(f"'{self.metric}' is not module:callable", hint="such as: my_eval:accuracy")

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parse(cls, data: dict[str, Any]) -> Self:
        found: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        found["inputs"] = tuple(InputSpec(tuple(shape), *rest) for shape, *rest in found["inputs"])
        for name in ("against_code", "code"):
            if found.get(name) is not None:
                found[name] = CodeTree(*found[name])
        return cls(**found)

    @property
    def baseline(self) -> Plan:
        """The plan of what this model is compared with."""
        if (code := self.against_code) is not None:
            if ":" in self.target and not Path(self.target).exists():
                return replace(self, code=code)
            own = Path(self.target).absolute()
            if own.is_relative_to(code.checkout):
                own = Path(code.tree) / own.relative_to(code.checkout)
            return replace(self, target=str(own))
        assert self.against is not None
        is_weights = ":" in self.target and Path(self.against).suffix in (".pt", ".pth", ".bin", ".safetensors")
        return replace(self, weights=self.against) if is_weights else replace(self, target=self.against, weights=None)

    @property
    def has_baseline(self) -> bool:
        """Whether another model is the reference."""
        return self.against is not None or self.against_code is not None

    @property
    def baseline_name(self) -> str:
        """Empty if there is none."""
        code = self.against_code
        return f"{self.target} at commit {code.commit}" if code is not None else self.against or ""

    @property
    def is_generator(self) -> bool:
        return self.generate is not None

"""The child's side of a benchmark: real models, asked directly."""

from __future__ import annotations

import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from waiting import PATIENCE

from trainvitals.bench import onnx_models, process_memory
from trainvitals.bench.inputs import InputSpec, describe_inputs, parse_inputs
from trainvitals.bench.plan import VARIANTS, Plan
from trainvitals.bench.worker import Worker, answer

TORCH_VARIANTS = [item.name for item in VARIANTS if item.name not in ("onnx", "int8-ort", "compile", "aoti")]


def load(target: str, inputs: str = "1x64", variant: str = "fp32", work: Path = Path("/tmp"), **more: Any) -> Worker:
    worker = Worker()
    found = try_load(worker, target, inputs, variant, work, **more)
    assert not {"failed", "unavailable"} & found.keys(), found
    return worker


def try_load(
    worker: Worker, target: str, inputs: str = "", variant: str = "fp32", work: Path = Path("/tmp"), **more: Any
) -> dict[str, Any]:
    plan = Plan(target, inputs=parse_inputs(inputs) if inputs else (), variants=(variant,), **more)
    given = json.loads(json.dumps(plan.as_json()))
    return answer(worker, {"do": "load", "plan": given, "variant": variant, "threads": 1, "work": str(work)})


def outputs(worker: Worker, path: Path, batch: int = 1) -> list[np.ndarray]:
    worker.outputs(batch, str(path))
    with np.load(path) as found:
        return [found[name] for name in found.files]


# -- time


def time_calls(worker: Worker) -> tuple[list[float], list[float]]:
    """Milliseconds of each call as timed, and as the model noted them."""
    worker.warm_up(1, 0.2)
    module = worker._model.module
    module.noted.clear()
    found = worker.round(1, 0.3, 1000)["ms"]
    return found, [value / 1e6 for value in module.noted[-len(found) :]]  # without those that are not timed


def test_a_model_that_computes_is_timed_within_2_percent_of_its_own_clock() -> None:
    # By the time of this thread: on a busy machine others have the CPU between two looks at any other clock.
    worker = Worker(time.thread_time_ns)
    assert "failed" not in try_load(worker, "some_models:Spinner", "1x4")
    found, noted = time_calls(worker)
    assert len(found) >= 5
    assert np.median(found) == pytest.approx(np.median(noted), rel=0.02)


def test_the_time_that_a_model_sleeps_counts() -> None:
    found, noted = time_calls(load("some_models:Sleeper", "1x4"))
    assert found and all(timed >= own >= 4.0 for timed, own in zip(found, noted, strict=True))


def test_a_round_counts_every_call_and_stops_at_the_most() -> None:
    worker = load("some_models:mlp")
    assert len(worker.round(1, PATIENCE, 7)["ms"]) == 7
    assert len(worker.round(1, 0.0, 7)["ms"]) == 1


def test_a_warm_up_ends_when_the_times_are_steady_or_its_time_is_over() -> None:
    worker = load("some_models:Sleeper", "1x4")
    assert 1 <= worker.warm_up(1, 0.0)["calls"] < 5
    assert worker.warm_up(1, 20.0)["calls"] >= 20


# -- memory and size


def test_memory_that_a_call_holds_is_its_peak() -> None:
    if not process_memory.reset_peak():
        pytest.skip("this kernel does not reset the peak")
    small, large = load("some_models:mlp"), load("some_models:Hoarder", "1x4")
    small.warm_up(1, 0.0)
    before = process_memory.read_peak()
    large.warm_up(1, 0.0)
    after = process_memory.read_peak()
    assert before is not None
    assert after is not None
    assert 60 <= after - before <= 80
    assert large.memory()["peak"] >= 60


def test_parameters_bytes_and_flops_are_those_of_the_model(tmp_path: Path) -> None:
    worker = Worker()
    found = try_load(worker, "some_models:mlp", "1x64", work=tmp_path)
    parameters = 64 * 128 + 128 + 128 * 16 + 16
    assert found["parameters"] == parameters
    assert found["bytes_by_dtype"] == {"float32": 4 * parameters}
    assert worker.flops(8)["flops"] == 8 * 2 * (64 * 128 + 128 * 16)
    assert 4 * parameters < worker.disk()["disk_bytes"] < 4 * parameters + 10_000


# -- variants


def make_gpt(folder: Path) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=64, max_position_embeddings=32, **sizes)).save_pretrained(folder)
    return str(folder)


MODELS: dict[str, tuple[str, str, dict[str, int]]] = {
    "mlp": ("some_models:mlp", "1x64", {}),
    "cnn": ("some_models:classifier", "1x3x8x8", {}),
    "gpt": ("", "", {"prompt": 8}),
}


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any], np.ndarray]]:
    """The target of each model, what is known of it, and its answers to a batch of 4."""
    work, found = tmp_path_factory.mktemp("models"), {}
    for name, (target, inputs, more) in MODELS.items():
        target, worker = target or make_gpt(work / "gpt"), Worker()
        about = try_load(worker, target, inputs, work=work, **more)
        found[name] = target, about, outputs(worker, work / "answers.npz", batch=4)[0]
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("variant", TORCH_VARIANTS)
def test_every_variant_of_every_model_gives_its_answers(
    model: str, variant: str, references: dict[str, tuple[str, dict[str, Any], np.ndarray]], tmp_path: Path
) -> None:
    _, inputs, more = MODELS[model]
    target, about, expected = references[model]
    worker = Worker()
    found = try_load(worker, target, inputs, variant, tmp_path, **more)
    assert not {"failed", "unavailable"} & found.keys(), found
    assert found["parameters"] == about["parameters"]
    error = np.linalg.norm(outputs(worker, tmp_path / "b.npz", batch=4)[0] - expected) / np.linalg.norm(expected)
    assert error < (0.2 if "int4" in variant else 0.06)
    assert error > 0 or variant == "fp32"
    assert len(worker.round(4, 0.0, 3)["ms"]) == 1
    size = worker.disk()["disk_bytes"]
    assert abs(size - sum(found["bytes_by_dtype"].values())) < 15_000


@pytest.mark.parametrize(("variant", "model"), [("compile", "mlp"), ("compile", "cnn"), ("aoti", "mlp")])
def test_what_is_compiled_gives_the_answers_of_the_model(
    variant: str, model: str, references: dict[str, tuple[str, dict[str, Any], np.ndarray]], tmp_path: Path
) -> None:
    _, inputs, _ = MODELS[model]
    target, about, expected = references[model]
    worker = Worker()
    found = try_load(worker, target, inputs, variant, tmp_path)
    assert not {"failed", "unavailable"} & found.keys(), found
    assert (found["parameters"], found["bytes_by_dtype"]) == (about["parameters"], about["bytes_by_dtype"])
    told = worker.outputs(4, str(tmp_path / "a.npz"))
    assert (told["compiled"], told["unranked"]) == (True, "") and told["first_ms"] > 0
    with np.load(tmp_path / "a.npz") as answers:
        assert np.allclose(answers[answers.files[0]], expected, atol=1e-4)
    assert len(worker.round(4, 0.0, 3)["ms"]) == 1
    assert worker.disk()["disk_bytes"] >= sum(about["bytes_by_dtype"].values())
    if variant == "aoti":  # the next process of the benchmark loads what this one compiled
        packages = {path: path.stat().st_mtime_ns for path in tmp_path.glob("aoti.*.pt2")}
        assert np.allclose(
            outputs(load(target, inputs, variant, tmp_path), tmp_path / "b.npz", 4)[0], expected, atol=1e-4
        )
        assert packages and {path: path.stat().st_mtime_ns for path in tmp_path.glob("aoti.*.pt2")} == packages


@pytest.mark.parametrize("model", MODELS)
def test_onnxruntime_gives_the_answers_of_every_model_also_in_8_bits(
    model: str, references: dict[str, tuple[str, dict[str, Any], np.ndarray]], tmp_path: Path
) -> None:
    target, about, expected = references[model]
    specs = tuple(InputSpec(tuple(shape), *rest) for shape, *rest in about["inputs"])
    for variant, most in (("onnx", 1e-5), ("int8-ort", 0.03)):
        onnx_models.convert(Plan(target, inputs=specs), variant, tmp_path, [1, 4])
        worker = load(target, describe_inputs(specs), variant, tmp_path)
        found = outputs(worker, tmp_path / "b.npz", batch=4)[0]
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) < most


class TiedModel(torch.nn.Module):
    """Ends with the table of its embedding, as many language models do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.hidden = torch.nn.Embedding(10, 32), torch.nn.Linear(32, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.hidden(self.hidden(self.table(ids)).relu())
        return torch.nn.functional.linear(found, self.table.weight)


@pytest.mark.parametrize("variant", ["int8-ao", "int4-ao", "fp8-ao", "int8-legacy"])
def test_the_linear_layers_of_an_exported_program_are_quantized(variant: str, tmp_path: Path) -> None:
    path, example = tmp_path / "model.pt2", torch.zeros(2, 5, dtype=torch.int64)
    free = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(TiedModel().eval(), (example,), dynamic_shapes=free), path)
    plain, worker = load(str(path), ""), Worker()
    found = try_load(worker, str(path), "", variant, tmp_path)
    assert found["bytes_by_dtype"]["float32"] < 4 * (10 * 32 + 32 * 32), "the embedding stays, the layer does not"
    assert found["parameters"] == 10 * 32 + 32 * 32 + 32
    expected = outputs(plain, tmp_path / "a.npz", batch=4)[0]
    error = np.linalg.norm(outputs(worker, tmp_path / "b.npz", batch=4)[0] - expected) / np.linalg.norm(expected)
    assert 0 < error < (0.2 if "int4" in variant else 0.06)


def test_8_bits_of_weights_and_activations_overflow_on_x86_without_vnni(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("flags\t: fpu avx avx2 avx512f\n")
    new.write_text("flags\t: fpu avx avx2 avx_vnni\n")
    assert onnx_models._overflows(old, "x86_64") and onnx_models._overflows(tmp_path / "none", "AMD64")
    assert not onnx_models._overflows(new, "x86_64") and not onnx_models._overflows(old, "aarch64")


def test_a_variant_without_anything_to_quantize_is_not_to_be_had() -> None:
    assert "no linear layers" in try_load(Worker(), "some_models:cnn", "1x3x8x8", "int8-ao")["unavailable"]
    assert "--variants onnx" in try_load(Worker(), "model.onnx", "1x4")["unavailable"]


def test_without_a_compiler_compile_is_not_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    for variant in ("compile", "aoti"):
        assert "no C++ compiler" in try_load(Worker(), "some_models:mlp", "1x64", variant)["unavailable"]


def test_a_cuda_device_that_is_not_there_is_a_reason() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    assert "no CUDA" in try_load(Worker(), "some_models:mlp", "1x64", device="cuda")["unavailable"]


# -- files


def test_an_exported_program_knows_its_inputs(tmp_path: Path) -> None:
    import some_models

    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(some_models.mlp().eval(), (torch.zeros(2, 64),)), path)
    worker = Worker()
    found = try_load(worker, str(path))
    assert found["inputs"] == [((2, 64), "float32", None, 10)]
    assert outputs(worker, tmp_path / "a.npz", batch=2)[0].shape == (2, 16)


FIXED = "exported for batches of 2 only: use --batch 2"


def test_a_program_with_a_fixed_batch_says_which_one(tmp_path: Path) -> None:
    import some_models

    model, example = some_models.mlp().eval(), torch.zeros(2, 64)
    torch.export.save(torch.export.export(model, (example,)), tmp_path / "fixed.pt2")
    free = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=free), tmp_path / "free.pt2")
    torch.onnx.export(model, (example,), str(tmp_path / "fixed.onnx"), dynamo=True, verbose=False)
    target = str(tmp_path / "fixed.pt2")
    question = {"do": "outputs", "batch": 8, "path": str(tmp_path / "a.npz")}
    assert FIXED in answer(load(target, ""), question)["unavailable"]
    assert FIXED in answer(load(str(tmp_path / "fixed.onnx"), "", "onnx"), question)["unavailable"]
    plan = Plan(target, variants=("fp32", "onnx"), batches=(8,)).as_json()
    convert = {"do": "convert", "plan": plan, "variant": "onnx", "batches": [8], "work": str(tmp_path)}
    assert FIXED in answer(Worker(), convert)["unavailable"]
    assert outputs(load(str(tmp_path / "free.pt2"), ""), tmp_path / "a.npz", batch=8)[0].shape == (8, 16)


def test_torchscript_and_a_factory_with_weights_are_the_same_model(tmp_path: Path) -> None:
    import some_models
    from safetensors.torch import save_file

    model = some_models.mlp().eval()
    torch.nn.init.constant_(model[0].weight, 0.1)
    torch.jit.trace(model, torch.zeros(1, 64)).save(str(tmp_path / "model.ts"))
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    found = [
        outputs(load(str(tmp_path / "model.ts")), tmp_path / "a.npz")[0],
        *(
            outputs(load("some_models:mlp", weights=str(tmp_path / name)), tmp_path / "a.npz")[0]
            for name in ("weights.pt", "weights.safetensors")
        ),
    ]
    for other in found[1:]:
        assert np.allclose(found[0], other, atol=1e-6)


class Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.promise("a model file with a pickle in it", "it is not loaded without --trust, and no code in it runs")
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin"])
def test_a_pickle_is_never_loaded_without_trust(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    torch.save({"weights": Trap(tmp_path / "sprung")}, path)
    assert "--trust" in try_load(Worker(), str(path), "1x4")["unavailable"]
    path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    assert "--trust" in try_load(Worker(), str(path), "1x4")["unavailable"]
    assert not (tmp_path / "sprung").exists()


def test_a_whole_model_in_a_pickle_is_loaded_with_trust(tmp_path: Path) -> None:
    import some_models

    torch.save(some_models.mlp(), tmp_path / "model.pt")
    assert "--trust" in try_load(Worker(), str(tmp_path / "model.pt"), "1x64")["unavailable"]
    load(str(tmp_path / "model.pt"), trust=True)


def test_what_cannot_be_loaded_has_a_reason(tmp_path: Path) -> None:
    import some_models

    torch.save(some_models.cnn().state_dict(), tmp_path / "other.pt")
    torch.jit.trace(some_models.mlp().eval(), torch.zeros(1, 64)).save(str(tmp_path / "traced.ts"))
    cases = [
        ("nowhere.pt", {}, "no such file"),
        ("some_models:nothing", {}, "cannot import"),
        ("no_such_module:make", {}, "cannot import"),
        ("some_models:not_a_model", {}, "is an int, not a model"),
        (str(tmp_path / "other.pt"), {}, "weights and no code"),
        ("some_models:mlp", {"weights": str(tmp_path / "other.pt")}, "does not fit"),
        (str(tmp_path), {}, "no config.json"),
        (str(tmp_path / "garbage.pt"), {}, "no model that torch can load"),
        (str(tmp_path / "garbage.pt2"), {}, "damaged or not a torch.export program"),
        ("some_models:mlp", {"weights": "nowhere.pt"}, "no such file: --weights nowhere.pt"),
        ("some_models:mlp", {"generate": 4}, "--generate requires"),
        ("some_models:mlp", {"generate": 4, "variant": "aoti"}, "not for text generation"),
        (str(tmp_path / "traced.ts"), {"variant": "compile"}, "does not compile TorchScript"),
    ]
    for suffix in ("pt", "pt2"):
        (tmp_path / f"garbage.{suffix}").write_text("hello world")
    for target, more, reason in cases:
        assert reason in try_load(Worker(), target, "1x64", **more)["unavailable"]
    assert "--input" in try_load(Worker(), "some_models:mlp")["unavailable"]


# -- answers


def test_several_inputs_by_position_and_name_and_answers_in_any_nesting(tmp_path: Path) -> None:
    worker = load("some_models:Nested", "2x3,2x3,mask=bool:2x3")
    found = outputs(worker, tmp_path / "a.npz", batch=2)
    assert [item.shape for item in found] == [(2, 3), (2, 3)]


def test_answers_in_a_dataclass_count_and_so_do_imaginary_parts(tmp_path: Path) -> None:
    logits, waves = outputs(load("some_models:Structured", "1x3"), tmp_path / "a.npz", batch=2)
    assert logits.shape == (2, 3)
    assert np.array_equal(waves, np.stack([logits, 2 * logits], axis=-1))


def test_a_model_without_answers_has_no_sensitivity() -> None:
    assert load("some_models:Silent", "1x4").check(4)["sensitivity"] is None


@pytest.mark.parametrize(
    ("model", "text"),
    [
        ("Silent", "returns no tensors"),
        ("Random", "same input twice"),
        ("Broken", "NaN or infinite"),
        ("AllInOne", "an item alone and in a batch of 4"),
    ],
)
def test_what_is_wrong_with_the_answers_is_reported(model: str, text: str) -> None:
    assert text in " ".join(load(f"some_models:{model}", "1x4").check(4)["checks"])


def test_a_sound_model_passes_and_its_sensitivity_is_known() -> None:
    found = load("some_models:mlp").check(4)
    assert found["checks"] == []
    assert 0.1 < found["sensitivity"] < 10


def test_training_mode_left_on_is_reported() -> None:
    assert try_load(Worker(), "some_models:Random", "1x4")["remarks"] == [
        "training mode was on and has been turned off"
    ]
    assert try_load(Worker(), "some_models:mlp", "1x64")["remarks"] == []  # it makes no difference


def test_a_wrong_shape_names_the_module_that_complained() -> None:
    worker = load("some_models:mlp", "1x63")
    found = answer(worker, {"do": "outputs", "batch": 1, "path": "/tmp/x.npz"})
    assert found["failed"].startswith("in 0 (Linear): RuntimeError: mat1 and mat2")


def test_a_call_that_needs_more_memory_than_there_is_says_so() -> None:
    found = answer(load("some_models:Insatiable", "1x4"), {"do": "outputs", "batch": 1, "path": "/tmp/x.npz"})
    assert found["out_of_memory"]
    assert found["failed"].startswith("out of memory in the model (Insatiable): ")


def test_the_user_s_own_metric_gets_arrays_from_every_variant() -> None:
    plain = load("some_models:mlp").metric("some_models:mean_answer")["value"]
    half = load("some_models:mlp", variant="bf16").metric("some_models:mean_answer")["value"]
    assert plain == pytest.approx(half, abs=0.02)


# -- generation


def test_a_generator_s_first_token_and_the_others_are_timed_apart(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "llm")
    worker = load(str(tmp_path / "llm"), "", prompt=12, generate=5)
    found = worker.generate(2, 3)
    assert [len(found[key]) for key in ("first_ms", "each_ms", "ms")] == [3, 3, 3]
    for first, each, whole in zip(found["first_ms"], found["each_ms"], found["ms"], strict=True):
        assert first + 4 * each == pytest.approx(whole, rel=1e-6)


def test_text_is_generated_by_what_was_compiled(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    target = make_gpt(tmp_path / "gpt")
    worker = load(target, "", "compile", tmp_path, prompt=8, generate=4)
    found = worker.outputs(2, str(tmp_path / "a.npz"))
    graphs = counters["stats"]["unique_graphs"]
    assert (found["compiled"], found["unranked"]) == (True, "") and graphs >= 2, "the prompt, and the tokens after it"
    worker.warm_up(2, 0.0)
    assert len(worker.generate(2, 2)["ms"]) == 2
    assert counters["frames"]["total"] == counters["frames"]["ok"]
    plain = load(target, "", "fp32", tmp_path, prompt=8, generate=4)
    plain.outputs(2, str(tmp_path / "b.npz"))
    with np.load(tmp_path / "a.npz") as one, np.load(tmp_path / "b.npz") as other:
        assert all(np.allclose(one[name], other[name], atol=1e-4) for name in other.files)


def test_a_generator_of_which_nothing_was_compiled_has_no_rank(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    worker = load(make_gpt(tmp_path / "gpt"), "", "compile", tmp_path, prompt=8, generate=2)
    # Its own way: what pytest puts back is deleted there.
    with torch._dynamo.config.patch(disable=True):
        found = worker.outputs(1, str(tmp_path / "a.npz"))
    assert found["unranked"] == "torch.compile compiled no part of this model"

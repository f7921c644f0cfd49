"""What model files contain, from their headers."""

from __future__ import annotations

import struct
from pathlib import Path

import hypothesis
import pytest
import torch
from hypothesis import strategies
from safetensors.torch import save_file

from trainvitals.bench.model_files import read_size
from trainvitals.errors import TrainvitalsError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def make_gguf(kind: int = 12) -> bytes:
    """Two tensors, and metadata of several kinds, by the specification."""
    pairs = [
        text("general.architecture") + struct.pack("<I", 8) + text("llama"),
        text("general.alignment") + struct.pack("<II", 4, 32),
        text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        text("scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12),
    ]
    tensors = [
        text("norm") + struct.pack("<IQ", 1, 64) + struct.pack("<IQ", 0, 0),
        text("weight") + struct.pack("<IQQ", 2, 256, 4) + struct.pack("<IQ", kind, 256),
    ]
    return struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)) + b"".join(pairs + tensors)


def test_safetensors_by_data_type_without_loading(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(10, 3), "b": torch.zeros(7, dtype=torch.bfloat16)}, path)
    found = read_size(path)
    assert found.parameters == 37
    assert found.bytes_by_dtype == {"F32": 120, "BF16": 14}
    assert found.disk_bytes == path.stat().st_size


def test_a_folder_is_the_sum_of_its_shards(tmp_path: Path) -> None:
    for number in range(3):
        save_file({f"layer{number}": torch.zeros(100)}, tmp_path / f"model-{number}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert read_size(tmp_path).parameters == 300


def test_gguf_knows_its_quantized_blocks(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(make_gguf())
    found = read_size(path)
    assert found.parameters == 64 + 1024
    assert found.bytes_by_dtype == {"F32": 256, "Q4_K": 4 * 144}


@pytest.mark.parametrize(
    ("kind", "name", "size"),
    [(16, "IQ2_XXS", 4 * 66), (21, "IQ3_S", 4 * 110), (29, "IQ1_M", 4 * 56), (34, "TQ1_0", 4 * 54), (39, "MXFP4", 544)],
)
def test_gguf_of_few_bits_has_its_bytes(kind: int, name: str, size: int, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(make_gguf(kind))
    assert read_size(tmp_path / "model.gguf").bytes_by_dtype == {"F32": 256, name: size}


def test_gguf_of_a_type_that_is_not_known_has_parameters_and_no_bytes(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(make_gguf(199))
    for place in (tmp_path / "model.gguf", tmp_path):
        found = read_size(place)
        assert (found.parameters, found.bytes_by_dtype) == (64 + 1024, {})


def test_weights_that_are_in_a_folder_twice_count_once(tmp_path: Path) -> None:
    weights = {"a": torch.zeros(10, 3)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert read_size(tmp_path) == read_size(tmp_path / "model.safetensors")


def test_weights_beside_an_onnx_file_are_counted(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(bytes(10))
    (tmp_path / "model.onnx.data").write_bytes(bytes(1000))
    assert read_size(tmp_path / "model.onnx").disk_bytes == 1010


@pytest.mark.promise("a damaged or hostile model file", "an error that names the file; nothing is loaded or unpickled")
@pytest.mark.parametrize("suffix", [".safetensors", ".gguf"])
@hypothesis.given(data=strategies.binary(max_size=200), cut=strategies.integers(0, 300))
def test_damaged_files_are_an_error_and_never_more(
    suffix: str, data: bytes, cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / f"model{suffix}"
    for content in (data, make_gguf()[:cut] + data, struct.pack("<Q", 1 << 60) + data):
        path.write_bytes(content)
        try:
            read_size(path)
        except TrainvitalsError as error:
            assert str(path) in str(error)


@pytest.mark.parametrize("header", [b'{"a":' + b"[" * 990 + b"]" * 990 + b"}", b"[1]", b'{"a": 1}', b'{"a": []}'])
def test_a_header_that_is_json_of_something_else_is_an_error(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(TrainvitalsError, match="damaged or not a model"):
        read_size(path)


def test_exported_programs_and_onnx_files_by_data_type_without_loading(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4)).eval()
    exported = torch.export.export(model, (torch.zeros(2, 8),))
    torch.export.save(exported, tmp_path / "model.pt2")
    torch.onnx.export(exported, (), str(tmp_path / "model.onnx"), external_data=False, verbose=False)
    found = read_size(tmp_path / "model.pt2")
    assert (found.parameters, found.bytes_by_dtype) == (44, {"float32": 4 * (44 + 8), "int64": 8})
    found = read_size(tmp_path / "model.onnx")
    assert (found.parameters, found.bytes_by_dtype) == (36, {"float32": 4 * 36})  # the exporter folds normalization
    for name in ("model.pt2", "model.onnx"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / f"cut-{name}").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(TrainvitalsError, match="is damaged or not a model"):
            read_size(tmp_path / f"cut-{name}")

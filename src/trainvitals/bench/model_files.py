"""What a model file contains, read from its headers: parameters, bytes by data type, size on disk. Nothing is loaded
and nothing is unpickled."""

from __future__ import annotations

import io
import math
import mmap
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NamedTuple

from trainvitals.errors import TrainvitalsError
from trainvitals.plain_json import parse_object
from trainvitals.protobuf import BYTES, VARINT, find_fields
from trainvitals.varints import read_varint

MOST_HEADER = 100 << 20
"""Bytes of a safetensors header; its format allows no more."""
MOST_ITEMS = 1 << 20
MOST_TEXT = 64 << 20
DEEPEST = 4

_SAFETENSORS_BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "F32": 32,
    "I32": 32,
    "U32": 32,
    "F16": 16,
    "BF16": 16,
    "I16": 16,
    "U16": 16,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
}
# GGUF's types: name, elements of a block, bytes of a block (ggml's table).
_GGUF_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}
_GGUF_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_GGUF_STRING, _GGUF_ARRAY = 8, 9


class ModelSize(NamedTuple):
    """What is in a file or folder. None: the format does not show it without loading."""

    disk_bytes: int
    parameters: int | None = None
    bytes_by_dtype: Mapping[str, int] = {}


def read_size(path: Path) -> ModelSize:
    """The size of a model file, or of all weights in a folder. TrainvitalsError for one that is damaged."""
    try:
        return _read_size(path)
    except (ValueError, struct.error, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise TrainvitalsError(f"{path} is damaged or not a model: {error}") from None


def _read_size(path: Path) -> ModelSize:
    if path.is_dir():
        return _add(map(_read_size, _list_weights(path)))
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix == ".gguf":
        return _read_gguf(path)
    if path.suffix == ".onnx":
        return _read_onnx(path)
    if path.suffix == ".pt2":
        return _read_exported(path)
    return ModelSize(path.stat().st_size)


WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".onnx", ".pt2")


_BY_TORCH = (".bin", ".pt", ".pth")


def _list_weights(folder: Path) -> list[Path]:
    """Without what is there a second time, as Transformers' folders often have it for programs without safetensors."""
    found = [item for item in sorted(folder.iterdir()) if item.suffix in WEIGHTS]
    if any(item.suffix == ".safetensors" for item in found):
        found = [item for item in found if item.suffix not in _BY_TORCH]
    return found


def _add(sizes: Iterable[ModelSize]) -> ModelSize:
    found = list(sizes)
    total: Counter[str] = Counter()
    for size in found:
        total.update(size.bytes_by_dtype)
    counts = [size.parameters for size in found if size.parameters is not None]
    is_known = bool(found) and len(counts) == len(found)
    has_bytes = is_known and all(size.bytes_by_dtype or not size.parameters for size in found)
    disk = sum(size.disk_bytes for size in found)
    return ModelSize(disk, sum(counts) if is_known else None, dict(total) if has_bytes else {})


def _read_safetensors(path: Path) -> ModelSize:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", _read(file, 8))
        if length > MOST_HEADER:
            raise ValueError(f"its header claims to have {length:,} bytes")
        header = parse_object(_read(file, length))
    parameters, total = 0, Counter[str]()
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        parameters += math.prod(tensor["shape"])
        total[str(tensor["dtype"])] += end - begin
        bits = _SAFETENSORS_BITS.get(tensor["dtype"])
        if bits is not None and math.prod(tensor["shape"]) * bits != (end - begin) * 8:
            raise ValueError(f"the size of {name!r:.80} contradicts its shape")
    return ModelSize(path.stat().st_size, parameters, dict(total))


def _read(file: BinaryIO, count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise EOFError("it ends too early")
    return data


# -- torch.export

# Its numbers of data types, as far as weights have them: name, bytes of an element.
_TORCH_TYPES = {
    1: ("uint8", 1),
    2: ("int8", 1),
    3: ("int16", 2),
    4: ("int32", 4),
    5: ("int64", 8),
    6: ("float16", 2),
    7: ("float32", 4),
    8: ("float64", 8),
    12: ("bool", 1),
    13: ("bfloat16", 2),
    29: ("float8_e4m3fn", 1),
    30: ("float8_e5m2", 1),
}
_EXPORTED_WEIGHTS = "/data/weights/model_weights_config.json"


def _read_exported(path: Path) -> ModelSize:
    """Its list of weights. Older files have them in a pickle, which is not read."""
    size = path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        name = next((item for item in archive.namelist() if item.endswith(_EXPORTED_WEIGHTS)), None)
        if name is None or archive.getinfo(name).file_size > MOST_HEADER:
            return ModelSize(size)
        weights = parse_object(archive.read(name))["config"]
    parameters, total = 0, Counter[str]()
    for weight in weights.values():
        tensor = weight["tensor_meta"]
        count = math.prod(int(item["as_int"]) for item in tensor["sizes"])
        kind, width = _TORCH_TYPES.get(tensor["dtype"], (f"type {tensor['dtype']}", 0))
        parameters += count if weight["is_param"] else 0
        total[kind] += count * width
    return ModelSize(size, parameters, dict(total))


# -- ONNX

# Its data types: name, bits of an element.
_ONNX_TYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    19: ("float8_e5m2", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
}
_GRAPH, _INITIALIZER, _DIMS, _DATA_TYPE = 7, 5, 1, 2
"""Fields of ModelProto, GraphProto and TensorProto."""


def _read_onnx(path: Path) -> ModelSize:
    """Its initializers, of which only the heads are read; weights above 2 GB are in a file beside it."""
    beside = path.with_name(f"{path.name}.data")
    size = path.stat().st_size + (beside.stat().st_size if beside.is_file() else 0)
    parameters, total = 0, Counter[str]()
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for graph in _parts(data, 0, len(data), _GRAPH):
            for tensor in _parts(data, *graph, _INITIALIZER):
                count, (kind, bits) = _read_initializer(data, *tensor)
                parameters += count
                total[kind] += count * bits // 8
    return ModelSize(size, parameters, dict(total))


def _read_initializer(data: mmap.mmap, begin: int, end: int) -> tuple[int, tuple[str, int]]:
    count, kind = 1, 0
    for field, wire, value, stop in find_fields(data, begin, end):
        if field == _DIMS and wire == VARINT:
            count *= value
        elif field == _DIMS and wire == BYTES:
            while value < stop:
                size, value = read_varint(data, value)
                count *= size
        elif field == _DATA_TYPE:
            kind = value
    return count, _ONNX_TYPES.get(kind, (f"type {kind}", 0))


def _parts(data: mmap.mmap, begin: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Where the messages of this field begin and end."""
    for field, wire, value, stop in find_fields(data, begin, end):
        if field == wanted and wire == BYTES:
            yield value, stop


# -- GGUF


def _read_gguf(path: Path) -> ModelSize:
    with open(path, "rb") as file:
        magic, version, tensors, pairs = struct.unpack("<4sIQQ", _read(file, 24))
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError("no GGUF of version 2 or 3")
        if max(tensors, pairs) > MOST_ITEMS:
            raise ValueError(f"it claims to have {max(tensors, pairs):,} entries")
        for _ in range(pairs):
            _skip_text(file)
            _skip_value(file, _number(file, "<I"))
        parameters, total, is_known = 0, Counter[str](), True
        for _ in range(tensors):
            _skip_text(file)
            count = math.prod(_number(file, "<Q") for _ in range(_dimensions(file)))
            kind, _ = struct.unpack("<IQ", _read(file, 12))
            parameters += count
            if kind in _GGUF_TYPES:
                name, elements, size = _GGUF_TYPES[kind]
                total[name] += count // elements * size
            else:
                is_known = False
    return ModelSize(path.stat().st_size, parameters, dict(total) if is_known else {})


def _number(file: BinaryIO, form: str) -> int:
    return int(struct.unpack(form, _read(file, struct.calcsize(form)))[0])


def _dimensions(file: BinaryIO) -> int:
    count = _number(file, "<I")
    if count > 8:
        raise ValueError(f"a tensor with {count} dimensions")
    return count


def _skip(file: BinaryIO, count: int) -> None:
    if file.tell() + count > os.fstat(file.fileno()).st_size:
        raise EOFError("it ends too early")
    file.seek(count, io.SEEK_CUR)


def _skip_text(file: BinaryIO) -> None:
    length = _number(file, "<Q")
    if length > MOST_TEXT:
        raise ValueError(f"a text of {length:,} bytes")
    _skip(file, length)


def _skip_value(file: BinaryIO, kind: int, depth: int = 0) -> None:
    if kind == _GGUF_STRING:
        _skip_text(file)
    elif kind == _GGUF_ARRAY and depth < DEEPEST:
        inner, count = struct.unpack("<IQ", _read(file, 12))
        if inner in _GGUF_SCALARS:
            _skip(file, _GGUF_SCALARS[inner] * count)
            return
        if count > MOST_ITEMS:
            raise ValueError(f"a list of {count:,} entries")
        for _ in range(count):
            _skip_value(file, inner, depth + 1)
    elif kind in _GGUF_SCALARS:
        _skip(file, _GGUF_SCALARS[kind])
    else:
        raise ValueError(f"a value of unknown type {kind}")

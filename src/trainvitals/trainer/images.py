"""Pictures of a training as files that browsers draw, made without importing anybody's library.

Arrays of numpy, torch, JAX and TensorFlow, plain lists, PIL images, matplotlib figures, and files that are pictures
already. What makes an array into bytes is the numpy that the program has imported itself; a list needs none.
"""

from __future__ import annotations

import math
import os
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from trainvitals import runtime
from trainvitals.errors import name_kind
from trainvitals.journal.media import image_suffix

MOST_PIXELS = 64 << 20
MOST_AT_ONCE = 64
"""Pictures of one call."""
_COLOR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
"""PNG's number for so many channels."""
_LEVEL = 3
"""Of compression: half the time of zlib's default for a tenth more bytes."""


class NotAPicture(ValueError):
    """What was given cannot be shown; the text says why."""


class Picture(NamedTuple):
    """A file."""

    data: bytes
    suffix: str


class Pixels(NamedTuple):
    """Rows of bytes, channels last."""

    data: Any
    """`bytes`, or an array of them."""
    width: int
    height: int
    channels: int


def list_pictures(value: Any, most_bytes: int) -> list[Picture]:
    """One for a picture, several for a list or a batch of them. Raises NotAPicture, OSError, and what the foreign code
    raises that draws a figure or reads a tensor."""
    values = list(_split(value))
    if len(values) > MOST_AT_ONCE:
        raise NotAPicture(f"{len(values)} pictures in one call; at most {MOST_AT_ONCE} are kept")
    return [_convert(item, most_bytes) for item in values]


def _split(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)) and value and not isinstance(value[0], (list, tuple, int, float)):
        yield from value  # arrays, figures or files
    elif len(shape := _shape(value)) == 4:
        yield from (value[place] for place in range(shape[0]))
    else:
        yield value


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in value.shape) if hasattr(value, "shape") else ()


def _convert(value: Any, most_bytes: int) -> Picture:
    if isinstance(value, (str, os.PathLike)):
        return _check(runtime.read_regular(Path(value), most_bytes))
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _check(bytes(value))
    if isinstance(value, (list, tuple)):
        return encode_png(_read_lists(value))
    if hasattr(value, "shape"):
        return encode_png(_read_array(value))
    buffer = BytesIO()
    figure: Any = value if hasattr(value, "savefig") else getattr(value, "figure", None)  # axes have one
    if hasattr(figure, "savefig"):
        figure.savefig(buffer, format="png")
    elif hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "convert"):
        # What PNG has of PIL's modes; the others are for print and for measuring.
        known = value.mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
        (value if known else value.convert("RGB")).save(buffer, format="PNG")
    else:
        raise NotAPicture(f"{name_kind(value)} is not a picture")
    return _check(buffer.getvalue())


def _check(data: bytes) -> Picture:
    suffix = image_suffix(data)
    if suffix is None:
        raise NotAPicture("not a PNG, JPEG, GIF, WebP or BMP file")
    return Picture(data, suffix)


# -- arrays


def _read_array(value: Any) -> Pixels:
    shape = _shape(value)
    is_torch = type(value).__module__.partition(".")[0] == "torch" or hasattr(value, "detach")
    if math.prod(shape) > 4 * MOST_PIXELS:
        raise NotAPicture(f"an array of shape {shape} is larger than {MOST_PIXELS >> 20} million pixels")
    if is_torch:
        value = value.detach().cpu()
        value = (value if value.dtype.itemsize > 2 or not value.is_floating_point() else value.float()).numpy()
    numpy: Any = sys.modules.get("numpy")
    if numpy is None:
        raise NotAPicture(f"{name_kind(value)} cannot be read without numpy")
    array = numpy.asarray(value)
    place = _find_channels(shape, first=is_torch)
    if array.dtype.kind not in "buif":
        raise NotAPicture(f"an array of {array.dtype} is not a picture")
    array = array[..., None] if place is None else numpy.moveaxis(array, place, -1)
    if array.dtype.kind == "f":
        array = numpy.nan_to_num(array, nan=0.0, posinf=1.0, neginf=0.0)
        array = (array.clip(0.0, 1.0) * 255.0).round()
    elif array.dtype.kind == "b":
        array = array * 255
    height, width, channels = array.shape
    return Pixels(array.clip(0, 255).astype("uint8").reshape(height, width * channels), width, height, channels)


def _find_channels(shape: tuple[int, ...], *, first: bool) -> int | None:
    """Which axis has the channels; None if there is none. Where both ends could, torch means the first."""
    if len(shape) == 2 and all(shape):
        return None
    if len(shape) != 3 or not all(shape):
        raise NotAPicture(
            f"an array of shape {shape} is not a picture: use (height, width) or one with 1 to 4 channels"
        )
    ends = [place for place in ((0, -1) if first else (-1, 0)) if shape[place] in _COLOR_TYPES]
    if not ends:
        raise NotAPicture(f"an array of shape {shape} has neither 1, 2, 3 nor 4 channels first or last")
    return ends[0]


def _read_lists(rows: Sequence[Any]) -> Pixels:
    height = len(rows)
    width = len(rows[0]) if height and isinstance(rows[0], (list, tuple)) else 0
    if not width or any(not isinstance(row, (list, tuple)) or len(row) != width for row in rows):
        raise NotAPicture("a list is a picture if its rows are lists of the same length")
    cells = [cell if isinstance(cell, (list, tuple)) else (cell,) for row in rows for cell in row]
    channels = len(cells[0])
    if channels not in _COLOR_TYPES or any(len(cell) != channels for cell in cells):
        raise NotAPicture("each pixel of a list needs the same 1 to 4 numbers")
    values = [value for cell in cells for value in cell]
    scale = 255.0 if any(isinstance(value, float) for value in values) else 255 if _all_bool(values) else 1
    return Pixels(bytes(_byte(value * scale) for value in values), width, height, channels)


def _all_bool(values: Sequence[Any]) -> bool:
    return all(isinstance(value, bool) for value in values)


def _byte(value: float) -> int:
    return 0 if math.isnan(value) else round(min(max(value, 0), 255))


# -- PNG


def encode_png(pixels: Pixels) -> Picture:
    """The pixels as a PNG file of 8 bits per channel."""
    line = pixels.width * pixels.channels
    if isinstance(pixels.data, bytes):
        rows = b"".join(b"\0" + pixels.data[start : start + line] for start in range(0, line * pixels.height, line))
    else:
        # Each row as its difference to the one above, which makes pictures a third smaller.
        numpy: Any = sys.modules["numpy"]
        lines = numpy.empty((pixels.height, line + 1), dtype="uint8")
        lines[:, 0] = 2
        lines[:, 1:] = pixels.data
        lines[1:, 1:] -= pixels.data[:-1]
        rows = lines.tobytes()
    header = struct.pack(">IIBBBBB", pixels.width, pixels.height, 8, _COLOR_TYPES[pixels.channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, _LEVEL)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        for kind, content in chunks
    )
    return Picture(data, "png")

"""Pictures of every kind as files, read back by Pillow."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from trainvitals.trainer.images import NotAPicture, list_pictures

LIMIT = 1 << 20


def read(value: Any) -> Any:
    """The pixels, as Pillow sees them."""
    (picture,) = list_pictures(value, LIMIT)
    opened = Image.open(io.BytesIO(picture.data))
    opened.load()  # checks every checksum
    return np.asarray(opened)


NOISE = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_bytes_come_back_as_they_were(channels: int) -> None:
    pixels = np.random.default_rng(channels).integers(0, 256, (9, 11, channels), dtype=np.uint8)
    assert np.array_equal(read(pixels).reshape(pixels.shape), pixels)
    assert np.array_equal(read(pixels.tolist()).reshape(pixels.shape), pixels)


def test_channels_may_be_first_or_last() -> None:
    assert np.array_equal(read(NOISE), NOISE)
    assert np.array_equal(read(NOISE.transpose(2, 0, 1)), NOISE)
    assert np.array_equal(read(np.asfortranarray(NOISE)), NOISE)


def test_a_number_between_0_and_1_is_a_share_of_white() -> None:
    shades = np.array([[0.0, 0.5, 1.0, 2.0, -1.0, np.nan, np.inf, -np.inf]])
    expected = [[0, 128, 255, 255, 0, 0, 255, 0]]
    assert read(shades).tolist() == expected
    assert read(shades.astype(np.float16)).tolist() == expected
    assert read(shades[:, :5].tolist()).tolist() == [expected[0][:5]]


def test_whole_numbers_and_masks() -> None:
    assert read(np.array([[-5, 7, 300]])).tolist() == [[0, 7, 255]]
    assert read(np.array([[True, False]])).tolist() == [[255, 0]]
    assert read([[True, False]]).tolist() == [[255, 0]]


def test_tensors_have_their_channels_first() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(NOISE[:3, :3].copy())  # (3, 3, 3): only the library decides
    assert np.array_equal(read(tensor.permute(2, 0, 1)), NOISE[:3, :3])
    half = (torch.tensor([[0.0, 1.0]], requires_grad=True) * 1).to(torch.bfloat16)
    assert read(half).tolist() == [[0, 255]]


def test_a_batch_and_a_list_are_several_pictures() -> None:
    assert len(list_pictures(np.zeros((5, 3, 8, 8)), LIMIT)) == 5
    assert len(list_pictures([NOISE, Image.fromarray(NOISE)], LIMIT)) == 2


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "F", "I", "HSV", "LAB"])
def test_images_of_pillow_of_every_mode(mode: str) -> None:
    assert read(Image.new(mode, (4, 3))).shape[:2] == (3, 4)


def test_figures_and_axes_of_matplotlib() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1), dpi=50)
    axes = figure.subplots()
    axes.plot([1, 2])
    assert read(figure).shape == read(axes).shape == (50, 100, 4)


@pytest.mark.parametrize(
    ("format", "suffix"), [("PNG", "png"), ("JPEG", "jpg"), ("GIF", "gif"), ("WEBP", "webp"), ("BMP", "bmp")]
)
def test_a_file_is_kept_byte_by_byte(tmp_path: Path, format: str, suffix: str) -> None:
    path = tmp_path / "named.something"
    Image.fromarray(NOISE).save(path, format=format)
    for value in (path, str(path), path.read_bytes()):
        assert list_pictures(value, LIMIT) == [(path.read_bytes(), suffix)]


def test_a_file_that_is_no_picture_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"<svg onload='alert(1)'/>")
    with pytest.raises(NotAPicture):
        list_pictures(path, LIMIT)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(LIMIT))
    with pytest.raises(OSError, match="larger"):
        list_pictures(path, LIMIT)
    with pytest.raises(OSError, match="regular"):
        list_pictures("/dev/zero", LIMIT)

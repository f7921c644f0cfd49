"""What can be logged besides numbers, under the names that W&B gives it.
Tested in tests/wandb_drop_in/test_scripts.py."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from trainvitals.trackers.wandb_conventions import FILES
from trainvitals.trainer.run import Run
from trainvitals.wandb.artifacts import keep_file
from trainvitals.wandb.missing import Missing, report_missing, report_once


class Image:
    """An array, a tensor, a PIL image, a figure or a file."""

    def __init__(self, data_or_path: Any, mode: str | None = None, caption: str | None = None, **more: Any) -> None:
        for name in ("boxes", "masks"):
            if more.get(name):
                report_once(f"trainvitals.wandb.Image draws no {name}: only the image is kept")
        self.image: Any = data_or_path.image if isinstance(data_or_path, Image) else data_or_path
        self.caption: str = caption or (data_or_path.caption if isinstance(data_or_path, Image) else "")

    def keep(self, run: Run, name: str, step: int) -> None:
        run.log_image(name, _as_shades(self.image), step, caption=self.caption)

    def __str__(self) -> str:
        return self.caption or "image"


def _as_shades(image: Any) -> Any:
    """Floats between 0 and 1 where others were given, as W&B has them: negative ones are stretched from the lowest to
    the highest, and those beyond 1 are taken for 0 to 255."""
    if not hasattr(image, "shape") or "float" not in str(getattr(image, "dtype", "")):
        return image
    low, high = float(image.min()), float(image.max())
    if low < 0 and high > low:
        return (image - low) / (high - low)
    return image / 255 if high > 1 else image


class Table:
    """Columns and rows."""

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Any = None,
        rows: Any = None,
        dataframe: Any = None,
        **more: Any,
    ) -> None:
        data = data if data is not None else rows
        frame = dataframe if dataframe is not None else data if hasattr(data, "columns") else None
        if frame is not None:
            self.columns: list[Any] = list(frame.columns)
            self.data: list[list[Any]] = [list(row) for row in frame.itertuples(index=False, name=None)]
        else:
            data = data.tolist() if hasattr(data, "tolist") else data
            self.columns = list(columns) if columns is not None else ["Input", "Output", "Expected"]
            self.data = [list(row) for row in data or ()]

    def add_data(self, *row: Any) -> None:
        self.data.append(list(row))

    def add_row(self, *row: Any) -> None:
        self.add_data(*row)

    def add_column(self, name: Any, data: Any, optional: bool = False) -> None:
        cells = list(data)
        if not self.columns:
            self.data = [[] for _ in cells]
        self.columns.append(name)
        for row, cell in zip(self.data, cells, strict=False):
            row.append(cell)

    def get_column(self, name: Any, convert_to: str | None = None) -> Any:
        place = self.columns.index(name)
        found = [row[place] for row in self.data]
        if convert_to == "numpy":
            import numpy as np

            return np.array(found)
        return found

    def get_dataframe(self) -> Any:
        import pandas as pd  # type: ignore[import-untyped]

        return pd.DataFrame.from_records(self.data, columns=self.columns)

    def iterrows(self) -> Any:
        return enumerate(self.data)

    def keep(self, run: Run, name: str, step: int) -> None:
        rows = [[str(cell) if isinstance(cell, (Image, Html, Missing)) else cell for cell in row] for row in self.data]
        run.log_table(name, rows, step, columns=self.columns)


class Histogram:
    """Of numbers, or `numpy.histogram(...)`."""

    MAX_LENGTH = 512

    def __init__(self, sequence: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        self._values = tuple(np_histogram[:2]) if np_histogram is not None else sequence
        self._bins = num_bins

    def keep(self, run: Run, name: str, step: int) -> None:
        run.log_histogram(name, self._values, step, bins=self._bins)


class Html:
    """A page, kept as text."""

    def __init__(self, data: Any, inject: bool = True, data_is_not_path: bool = False, **more: Any) -> None:
        if hasattr(data, "read"):
            data = data.read()
        elif isinstance(data, (str, PathLike)) and not data_is_not_path and str(data).endswith(".html"):
            data = Path(data).read_text(encoding="utf-8", errors="replace")
        self.html = str(data)

    def keep(self, run: Run, name: str, step: int) -> None:
        run.log_text(name, self.html, step)

    def __str__(self) -> str:
        return self.html


class _Recording:
    """A file, kept as it is; of frames or samples none is made."""

    def __init__(self, data_or_path: Any, *options: Any, caption: str | None = None, **more: Any) -> None:
        self.path = Path(data_or_path) if isinstance(data_or_path, (str, PathLike)) else None
        self.caption = caption or ""

    def keep(self, run: Run, name: str, step: int) -> None:
        kind = type(self).__name__
        if self.path is None:
            report_missing(f"{kind}() of anything but a file")
            return
        try:
            target = f"{kind.lower()}/{name}_{step}{self.path.suffix}"
            keep_file(self.path, Path(run.folder), FILES, target)
        except OSError as error:
            report_once(f"not kept: {self.path}: {error.strerror or error}")


class Video(_Recording):
    """A film."""


class Audio(_Recording):
    """A sound."""


def find_medium(value: Any) -> Image | Table | Histogram | Html | Video | Audio | None:
    """What W&B would make of an object that is logged as it is; None if it is not media."""
    if isinstance(value, (Image, Table, Histogram, Html, Video, Audio)):
        return value
    if isinstance(value, (list, tuple)) and value and all(isinstance(item, Image) for item in value):
        return _Images(value)
    if hasattr(value, "savefig"):  # a figure, or pyplot itself
        return Image(value)
    if hasattr(value, "itertuples"):
        return Table(dataframe=value)
    return Histogram(value) if hasattr(value, "shape") else None


class _Images(Image):
    """Several of one name."""

    def __init__(self, images: Sequence[Image]) -> None:
        self._images = images

    def keep(self, run: Run, name: str, step: int) -> None:
        for image in self._images:
            image.keep(run, name, step)

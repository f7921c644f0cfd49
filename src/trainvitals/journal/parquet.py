"""DuckDB as it is used here: in memory, without extensions, and never shown a path of the user's.

DuckDB reads meaning into a path: `name=a` in it is a partition whose value takes the place of the column `name`, and
`*`, `?` and `[` are patterns that may match the files of another run. So a folder is opened, and its files are named
through the descriptor. Tested in tests/journal/test_segment_writer.py.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_DESCRIPTORS = Path("/proc/self/fd")


def connect(memory: str = "2GB") -> Any:
    """An in-memory DuckDB connection that leaves most of the machine to the training and loads nothing by itself."""
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 2,
        "memory_limit": memory,
        "max_temp_directory_size": "8GB",
        "temp_directory": f"{tempfile.gettempdir()}/trainvitals-spill-{os.getpid()}",  # else .tmp where the user works
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
    }
    connection = duckdb.connect(config=config)
    connection.execute("SET parquet_metadata_cache = true; SET lock_configuration = true")
    return connection


class OpenFolder:
    """A folder whose files DuckDB may be given by name: as long as this object lives, for then it is closed."""

    def __init__(self, folder: Path) -> None:
        if _DESCRIPTORS.exists():
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            weakref.finalize(self, os.close, descriptor)
            self._place = str(_DESCRIPTORS / str(descriptor))
        else:  # macOS has no names below a descriptor: a link with a harmless name does the same
            self._link = tempfile.TemporaryDirectory(prefix="trainvitals-", dir="/tmp")
            link = Path(self._link.name) / "folder"
            link.symlink_to(folder.absolute(), target_is_directory=True)
            self._place = str(link)

    def locate(self, name: str) -> str:
        """The file as DuckDB may open it."""
        return f"{self._place}/{name}"


def scan(files: Iterable[str], *options: str) -> str:
    """SQL that reads Parquet files, named by `OpenFolder.locate`, as one table."""
    listed = ", ".join(literal(file) for file in files)
    return f"read_parquet([{listed}], {', '.join(['hive_partitioning = false', *options])})"


def copy(connection: Any, query: str, target: str, metadata: Sequence[tuple[str, str]] = ()) -> None:
    """Write the rows of `query` as one Parquet file."""
    pairs = ", ".join(f"{key}: {literal(value)}" for key, value in metadata)
    connection.execute(
        f"COPY ({query}) TO {literal(target)} (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE 65536, "
        f"PARQUET_VERSION v2{f', KV_METADATA {{{pairs}}}' if pairs else ''})"
    )


def literal(text: str) -> str:
    """A string in SQL."""
    return "'" + text.replace("'", "''") + "'"

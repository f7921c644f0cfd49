"""Rows to one wide Parquet file: a column per name.

DuckDB does not distinguish `loss` and `Loss`, so of names that differ only in case the later ones get a number: `Loss`,
`loss_2`. Tested in tests/views/cli/test_export.py.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainvitals.journal.encoding import NONFINITE
from trainvitals.journal.parquet import OpenFolder, connect, literal

_NULL = "\\N"
CSV_SPELLING = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
"""What the journal spells, as programs that read CSV do."""


def write_parquet(types: dict[str, str], rows: Iterable[Mapping[str, Any]], file: BinaryIO) -> dict[str, str]:
    """`types` is what `find_types` found in the same rows. The names whose columns are called otherwise, and how."""
    names = distinct_names(list(types))
    with tempfile.TemporaryDirectory(prefix="trainvitals-export-") as workshop:
        middle, target = Path(workshop) / "rows.csv", Path(workshop) / "rows.parquet"
        if not types:
            types, names = {"timestamp": "TIMESTAMP"}, {"timestamp": "timestamp"}  # Parquet needs a column
        with open(middle, "w", encoding="utf-8", newline="") as text:
            table = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
            for row in rows:
                table.writerow([_cell(row.get(name), kind) for name, kind in types.items()])
        _convert(OpenFolder(Path(workshop)), middle.name, target.name, types, names)
        with open(target, "rb") as made:
            shutil.copyfileobj(made, file, 1 << 20)
    return {name: column for name, column in names.items() if column != name}


def find_types(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The SQL type of every name that occurs, in order of appearance: the narrowest that holds all its values."""
    seen: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            seen.setdefault(name, set()).add(_type_of(value))
    return {
        name: "TIMESTAMP" if name == "timestamp" and kinds == {"VARCHAR"} else _widest(kinds)
        for name, kinds in seen.items()
    }


def _type_of(value: object) -> str:
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
    if isinstance(value, float) or (isinstance(value, str) and value in NONFINITE):
        return "DOUBLE"
    return "VARCHAR"


def _widest(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "DOUBLE" if kinds <= {"BIGINT", "DOUBLE"} else "VARCHAR"


def distinct_names(names: list[str]) -> dict[str, str]:
    """Each name and the column it gets."""
    taken = {name.lower() for name in names}
    used: set[str] = set()
    given: dict[str, str] = {}
    for name in names:
        column, number = name, 2
        while column.lower() in used or (column != name and column.lower() in taken):
            column, number = f"{name}_{number}", number + 1
        used.add(column.lower())
        given[name] = column
    return given


def _cell(value: object, kind: str) -> object:
    if value is None:
        return _NULL
    if isinstance(value, str):
        return CSV_SPELLING.get(value, value) if kind == "DOUBLE" else value
    if isinstance(value, (dict, list, bool)):
        return json.dumps(value, ensure_ascii=False)
    return repr(value) if isinstance(value, float) else value


def _convert(folder: OpenFolder, middle: str, target: str, types: Mapping[str, str], names: Mapping[str, str]) -> None:
    columns = ", ".join(f"{literal(f'c{place}')}: {literal(kind)}" for place, kind in enumerate(types.values()))
    selected = ", ".join(f"c{place} AS {_identifier(names[name])}" for place, name in enumerate(types))
    source = literal(folder.locate(middle))
    connection = connect()
    try:
        connection.execute(
            f"COPY (SELECT {selected} FROM read_csv({source}, header = false, auto_detect = false, "
            f"delim = ',', quote = '\"', escape = '\"', nullstr = {literal(_NULL)}, strict_mode = true, "
            "hive_partitioning = false, "
            f"max_line_size = 134217728, buffer_size = 268435456, parallel = false, columns = {{{columns}}})) "
            f"TO {literal(folder.locate(target))} (FORMAT parquet, COMPRESSION zstd)"
        )
    finally:
        connection.close()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

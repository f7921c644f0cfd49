"""Tables of a training as columns and rows of plain values: lists, mappings, arrays, and frames of pandas and polars,
none of which is imported. Secrets are redacted. Tested in tests/trainer/test_media.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from trainvitals.errors import name_kind
from trainvitals.journal.encoding import dump_json, spell
from trainvitals.redaction import free_key, redact
from trainvitals.trainer.jsonable import make_jsonable

MOST_ROWS = 10_000
MOST_COLUMNS = 500


class NotATable(ValueError):
    """What was given is not one; the text says why."""


class LoggedTable(NamedTuple):
    """Plain values, without secrets."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    total: int
    """Rows before those over MOST_ROWS were cut."""

    def encode(self) -> bytes:
        """As W&B and pandas' `orient="split"` have it."""
        return dump_json({"columns": self.columns, "data": self.rows})


def read_table(value: Any, columns: Sequence[Any] | None, redacted: Iterable[str]) -> LoggedTable:
    """Rows as lists or mappings, columns as a mapping of lists, or a frame. Raises NotATable, and what the foreign code
    raises that reads a frame."""
    names, rows, total = _read(value)
    names = [str(name) for name in columns] if columns is not None else names
    width = max((len(row) for row in rows), default=len(names or ()))
    if names is None:
        names = [str(place) for place in range(width)]
    if width > len(names):
        raise NotATable(f"a row has {width} values, but there are {len(names)} columns")
    if len(names) > MOST_COLUMNS:
        raise NotATable(f"a table of {len(names)} columns; at most {MOST_COLUMNS} are kept")
    # By column, because the name of a column may make its cells secrets.
    unique: dict[str, list[Any]] = {}
    for place, name in enumerate(names):
        cells = [_plain(row[place]) if place < len(row) else None for row in rows]
        unique[free_key(name, unique)] = cells
    clean = {name: redact({name: cells}, extra=redacted) for name, cells in unique.items()}
    shown = [next(iter(item)) for item in clean.values()]
    lists = [next(iter(item.values())) for item in clean.values()]
    return LoggedTable(shown, [list(row) for row in zip(*lists, strict=True)], total)


def _read(value: Any) -> tuple[list[str] | None, list[Sequence[Any]], int]:
    """Names of the columns if they are known, at most MOST_ROWS rows, and how many there were."""
    iterate: Callable[[], Iterable[Sequence[Any]]] | None = None
    if hasattr(value, "columns") and hasattr(value, "itertuples"):  # pandas
        iterate = lambda: value.itertuples(index=False, name=None)  # noqa: E731
    elif hasattr(value, "columns") and hasattr(value, "iter_rows"):  # polars
        iterate = value.iter_rows
    if iterate is not None:
        return [str(name) for name in value.columns], list(islice(iterate(), MOST_ROWS)), len(value)
    if isinstance(value, Mapping):
        lists = {str(name): _list(cells) for name, cells in value.items()}
        total = max(map(len, lists.values()), default=0)
        if any(len(cells) != total for cells in lists.values()):
            raise NotATable("the columns differ in length")
        return list(lists), list(zip(*(cells[:MOST_ROWS] for cells in lists.values()), strict=True)), total
    items = _list(value)
    rows = items[:MOST_ROWS]
    if rows and all(isinstance(row, Mapping) for row in rows):
        names = list(dict.fromkeys(name for row in rows for name in row))
        return [str(name) for name in names], [[row.get(name) for name in names] for row in rows], len(items)
    if any(isinstance(row, (str, bytes, Mapping)) or not hasattr(row, "__len__") for row in rows):
        raise NotATable("a row is not a list, or some rows are mappings and some are not")
    return None, [list(row) for row in rows], len(items)


def _list(value: Any) -> Sequence[Any]:
    if hasattr(value, "tolist"):
        value = value.detach().tolist() if hasattr(value, "detach") else value.tolist()
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise NotATable(f"{name_kind(value)} is not a table")
    return value if isinstance(value, (list, tuple)) else list(value)


def _plain(cell: Any) -> Any:
    kind = type(cell)
    if cell is None or kind is bool or (kind is int and abs(cell) < 2**53):
        return cell
    return spell(cell) if kind is float else make_jsonable(cell)

"""What a gateway asks of the engine: how far the files of a run are, and to keep more of them.
Tested in tests/fleet/test_gateway.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainvitals.fleet.clickhouse import ClickHouse, literal
from trainvitals.fleet.intake import End
from trainvitals.fleet.schema import TABLES

_LAST = ("documents", "ends")
"""What says that other rows count is written after them."""


class Store:
    """The runs of one database."""

    def __init__(self, engine: ClickHouse) -> None:
        self.engine = engine

    def read_ends(self, project: str, run: str) -> dict[str, End]:
        """Of every file of the run, by path."""
        which = f"WHERE project = {literal(project)} AND run = {literal(run)} GROUP BY path"
        found: dict[str, End] = {}
        names = ("generation", "end", "rows", "sealed", "torn", "foreign", "first_step", "modified")
        newest = ", ".join(f"argMax({name}, version) AS newest_{name}" for name in names)
        for row in rows_of(self.engine.select(f"SELECT path, max(version) AS newest, {newest} FROM ends {which}")):
            found[text(row["path"])] = End(
                end=int(row["newest_end"]),
                rows=int(row["newest_rows"]),
                generation=text(row["newest_generation"]),
                sealed=bool(row["newest_sealed"]),
                torn=int(row["newest_torn"]),
                foreign=int(row["newest_foreign"]),
                first_step=int(row["newest_first_step"]),
                version=int(row["newest"]),
                modified=float(row["newest_modified"]),
            )
        query = (
            "SELECT path, max(version) AS newest, argMax(digest, version) AS newest_digest, "
            f"argMax(length(data), version) AS size FROM documents {which}"
        )
        for row in rows_of(self.engine.select(query)):
            digest, version = text(row["newest_digest"]), int(row["newest"])
            found[text(row["path"])] = End(end=int(row["size"]), digest=digest, version=version)
        return found

    def write(self, blocks: Mapping[str, Sequence[bytes]]) -> None:
        """Keep these rows. What says that they count comes last, so a failure on the way leaves rows that do not."""
        for table in sorted(blocks, key=lambda table: (table in _LAST, table == "ends")):
            self.engine.insert_blocks(table, TABLES[table].columns, blocks[table])


def text(data: bytes) -> str:
    """As it was before it was encoded."""
    return data.decode("utf-8", "surrogatepass")


def rows_of(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of an answer."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

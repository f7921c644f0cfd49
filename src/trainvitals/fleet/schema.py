"""The tables of the store: what they hold, and the statements that make them.

One set of statements for Debian's server of 2018 and for today's: plain types, times as microseconds since 1970, no
NULL (a missing step is `NO_STEP`). What only newer servers know (codecs, TTL) is added to that.

Every row has an identity: a value the number of its line in its file, a piece of a text its offset, a document its
version. Every table is a ReplacingMergeTree ordered by it. So it does no harm when rows come twice, which cannot be
prevented without state: a gateway may be killed between the rows and the word that they are there. Readers drop the
second ones, and the engine does so when it merges; queries by hand use FINAL. Which rows count is said by `ends`, which
is written last: rows behind it belong to a request that was not acknowledged.

Tested in tests/fleet/test_schema.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainvitals.fleet.clickhouse import ClickHouse, EngineError, literal
from trainvitals.journal.extremes import COLUMNS as EXTREMES
from trainvitals.journal.extremes import FLOAT_COLUMNS

VERSION = 1
"""Of the tables. Raised with every statement that is added to `MIGRATIONS`."""
CODECS_SINCE = (19, 15)
TTL_SINCE = (19, 11)

_RUN = {"project": "String", "run": "String"}
_FILE = {"tbl": "String", "stem": "String"}


@dataclass(frozen=True, slots=True)
class StoreTable:
    """One table."""

    name: str
    about: str
    columns: Mapping[str, str]
    order: tuple[str, ...]
    """What identifies a row, and how rows are sorted."""
    version: str = ""
    """Of rows with the same identity, the one with the highest counts; else they are the same."""
    by_month: bool = True
    """Whether old months can be removed by themselves."""
    codecs: Mapping[str, str] | None = None


TABLES = {
    table.name: table
    for table in (
        StoreTable(
            "points",
            "Every number that was logged or measured.",
            {
                **_RUN, "tbl": "String", "attempt": "UInt32", "name": "String", "role": "String", "rank": "Int32",
                "label": "String", "step": "Int64", "time": "Int64", "value": "Float64", "stem": "String",
                "row": "UInt64", "received": "UInt32",
            },
            ("project", "run", "tbl", "attempt", "name", "role", "rank", "label", "stem", "row"),
            codecs={
                **dict.fromkeys(("step", "row"), "Delta, ZSTD(1)"), "time": "DoubleDelta, ZSTD(1)", "value": "ZSTD(1)",
            },
        ),
        StoreTable(
            "words",
            "What was logged or measured and is not a number.",
            {
                **_RUN, **_FILE, "name": "String", "label": "String", "row": "UInt64", "step": "Int64", "time": "Int64",
                "text": "String", "received": "UInt32",
            },
            ("project", "run", "tbl", "name", "stem", "label", "row"),
        ),
        StoreTable(
            "extremes",
            "What every 1,000 values of a closed file come to: charts of long runs are drawn from it.",
            {
                **_RUN, **_FILE, "name": "String", "label": "String",
                **{name: "Float64" if name in FLOAT_COLUMNS else "Int64" for name in EXTREMES}, "received": "UInt32",
            },
            ("project", "run", "tbl", "name", "stem", "label", "bucket"),
        ),
        StoreTable(
            "lines",
            "Events and alerts, a line of JSON each.",
            {**_RUN, **_FILE, "row": "UInt64", "time": "Int64", "line": "String", "received": "UInt32"},
            ("project", "run", "tbl", "stem", "row"),
        ),
        StoreTable(
            "pieces",
            "Other files that grow: what the program printed, stacks, media.",
            {
                **_RUN, "path": "String", "generation": "String", "offset": "UInt64", "data": "String",
                "received": "UInt32",
            },
            ("project", "run", "path", "generation", "offset"),
        ),
        StoreTable(
            "documents",
            "run.json, status.json and other small files that are replaced.",
            {
                **_RUN, "path": "String", "version": "UInt64", "digest": "String", "modified": "Float64",
                "data": "String",
            },
            ("project", "run", "path"),
            version="version",
            by_month=False,
        ),
        StoreTable(
            "ends",
            "How far each file is here. Rows behind its end do not count.",
            {
                **_RUN, "path": "String", "version": "UInt64", "generation": "String", "end": "UInt64",
                "rows": "UInt64", "sealed": "UInt8", "torn": "UInt64", "foreign": "UInt64",
                "first_step": "Int64", "modified": "Float64",
            },
            ("project", "run", "path"),
            version="version",
            by_month=False,
        ),
        StoreTable(
            "usage",
            "How many bytes of a run each gateway took, by day and token: quotas are counted from it.",
            {**_RUN, "received": "UInt32", "token": "String", "gateway": "String", "bytes": "UInt64"},
            ("project", "run", "received", "token", "gateway"),
            version="bytes",
        ),
    )
}  # fmt: skip

_SCHEMA_TABLE = "schema_versions"


@dataclass(frozen=True, slots=True)
class TableChange:
    """A change of one table."""

    table: str
    change: str
    """What follows `ALTER TABLE` and the name."""
    of_columns: bool = True
    """Whether the table over all shards changes, too: it has the columns, and nothing else of its own."""

    def make_statements(self, database: str, cluster: str) -> Iterator[str]:
        """As often as it takes: on a cluster the rows are in tables of another name."""
        on = _on(cluster)
        yield f"ALTER TABLE {database}.{_stored(self.table, cluster)}{on} {self.change}"
        if cluster and self.of_columns:
            yield f"ALTER TABLE {database}.{self.table}{on} {self.change}"


MIGRATIONS: Mapping[int, tuple[TableChange, ...]] = {}
"""What brings the tables to a version from the one before."""


class SchemaError(EngineError):
    """The tables are of another version."""


def make_statements(database: str, version: tuple[int, ...], *, cluster: str = "", days: int = 0) -> Iterator[str]:
    """What makes the tables on a server of this version. With a cluster: replicated tables `<name>_local`, and one of
    the plain name over all shards. With `days`, rows received earlier are removed. New tables say of which version they
    are; tables that were there keep theirs."""
    on = _on(cluster)
    yield f"CREATE DATABASE IF NOT EXISTS {database}{on}"
    for table in TABLES.values():
        yield _make_table(table, database, version, cluster, on, days)
        if cluster:
            yield (
                f"CREATE TABLE IF NOT EXISTS {database}.{table.name}{on} AS {database}.{_stored(table.name, cluster)} "
                f"ENGINE = Distributed({literal(cluster)}, {literal(database)}, "
                f"{literal(_stored(table.name, cluster))}, "
                "cityHash64(project, run))"
            )
    engine = _engine(database, _SCHEMA_TABLE, cluster, "version", everywhere=True)
    yield (
        f"CREATE TABLE IF NOT EXISTS {database}.{_SCHEMA_TABLE}{on} (number UInt8, version UInt32) "
        f"ENGINE = {engine} ORDER BY number"
    )
    yield (
        f"INSERT INTO {database}.{_SCHEMA_TABLE} (number, version) SELECT 1, {VERSION} FROM system.one "
        f"WHERE (SELECT count() FROM {database}.{_SCHEMA_TABLE}) = 0"
    )


def _on(cluster: str) -> str:
    return f" ON CLUSTER {literal(cluster)}" if cluster else ""


def _stored(table: str, cluster: str) -> str:
    """The table that has the rows."""
    return f"{table}_local" if cluster else table


def _make_table(table: StoreTable, database: str, version: tuple[int, ...], cluster: str, on: str, days: int) -> str:
    codecs = (table.codecs or {}) if version >= CODECS_SINCE else {}
    columns = ", ".join(
        f"{name} {kind}" + (f" CODEC({codecs[name]})" if name in codecs else "") for name, kind in table.columns.items()
    )
    name = _stored(table.name, cluster)
    engine = _engine(database, table.name, cluster, table.version)
    # `received` is a day, as a number such as 20261118: a Date would be another type in Native.
    parts = " PARTITION BY intDiv(received, 100)" if table.by_month else ""
    ttl = ""
    if days and table.by_month and version >= TTL_SINCE:
        ttl = f" TTL parseDateTimeBestEffort(toString(received)) + INTERVAL {int(days)} DAY"
    return (
        f"CREATE TABLE IF NOT EXISTS {database}.{name}{on} ({columns}) ENGINE = {engine}{parts} "
        f"ORDER BY ({', '.join(table.order)}){ttl}"
    )


def _engine(database: str, name: str, cluster: str, version: str, *, everywhere: bool = False) -> str:
    kind = "ReplacingMergeTree"
    if not cluster:
        return f"{kind}({version})"
    # One path for all shards makes a table of which every server has all.
    path = f"/clickhouse/tables/{'all' if everywhere else '{shard}'}/{database}/{name}"
    replica = "{shard}-{replica}" if everywhere else "{replica}"
    return f"Replicated{kind}({literal(path)}, {literal(replica)}{', ' if version else ''}{version})"


def prepare(engine: ClickHouse, *, cluster: str = "", days: int = 0) -> None:
    """Make the tables, or bring them to this version. Raises SchemaError if they are of a newer one."""
    database = engine.address.database
    found = _connect_first(engine)
    for statement in make_statements(database, found, cluster=cluster, days=days):
        engine.execute_anywhere(statement)
    known = read_version(engine)
    if known > VERSION:
        raise _too_new(known)
    for number in range(known + 1, VERSION + 1):
        for migration in MIGRATIONS[number]:
            for statement in migration.make_statements(database, cluster):
                engine.execute(statement)
    if known != VERSION:
        engine.execute(f"INSERT INTO {_SCHEMA_TABLE} (number, version) VALUES (1, {VERSION})")


def check(engine: ClickHouse) -> None:
    """Whether the tables are those of this version; raises SchemaError."""
    try:
        known = read_version(engine)
    except EngineError as error:
        if "Code: 60" in error.message or "Code: 81" in error.message:  # no such table, no such database
            raise SchemaError(
                f"{engine.address.shown} has no trainvitals tables",
                hint=f"start a gateway with it: trainvitals gateway --store {engine.address.shown}",
            ) from None
        raise
    if known > VERSION:
        raise _too_new(known)
    if known < VERSION:
        raise SchemaError(
            f"the tables of {engine.address.shown} are of version {known}, this trainvitals needs {VERSION}",
            hint="start a gateway of this version to migrate them",
        )


def read_version(engine: ClickHouse) -> int:
    """Of the tables; 0 if nobody has written it."""
    answer = engine.execute(f"SELECT max(version) FROM {engine.address.database}.{_SCHEMA_TABLE}")
    return int(answer.decode().strip() or 0)


def _connect_first(engine: ClickHouse) -> tuple[int, ...]:
    # The database may not exist yet, and old servers then refuse every query that names it.
    answer = engine.execute_anywhere("SELECT version()").decode().strip()
    return tuple(int(part) for part in answer.split(".") if part.isdecimal())


def _too_new(known: int) -> SchemaError:
    return SchemaError(
        f"the tables are of version {known}, this trainvitals knows {VERSION}",
        hint="upgrade: pip install -U trainvitals",
    )

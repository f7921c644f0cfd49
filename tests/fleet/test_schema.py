"""The tables of the store."""

from __future__ import annotations

import pytest
from engines import Engine

from trainvitals.fleet import schema
from trainvitals.fleet.schema import SchemaError, TableChange


def test_tables_are_made_once_and_of_one_version(engine: Engine) -> None:
    opened = engine.open("schema_once")
    with pytest.raises(SchemaError, match="has no trainvitals tables"):
        schema.check(opened)
    schema.prepare(opened, days=30)
    schema.prepare(opened, days=30)
    schema.check(opened)
    made = set(opened.execute("SHOW TABLES").decode().split())
    assert made == {*schema.TABLES, "schema_versions"}


def test_tables_of_another_version_are_not_touched(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = engine.open("schema_newer")
    schema.prepare(opened)
    opened.execute(f"INSERT INTO schema_versions (number, version) VALUES (1, {schema.VERSION + 1})")
    for ask in (schema.check, schema.prepare):
        with pytest.raises(SchemaError, match="upgrade") as caught:
            ask(opened)
        assert "this trainvitals knows" in caught.value.message


def test_a_gateway_brings_older_tables_up_to_date(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = engine.open("schema_older")
    schema.prepare(opened)
    newer = schema.VERSION + 1
    monkeypatch.setattr(schema, "VERSION", newer)
    monkeypatch.setattr(schema, "MIGRATIONS", {newer: (TableChange("points", "ADD COLUMN note String"),)})
    with pytest.raises(SchemaError, match="to migrate them"):
        schema.check(opened)
    schema.prepare(opened)
    schema.check(opened)
    assert "note" in opened.execute("DESCRIBE TABLE points").decode()


def test_a_migration_reaches_the_rows_of_a_cluster() -> None:
    both = TableChange("points", "ADD COLUMN note String").make_statements("runs", "prod")
    assert list(both) == [
        "ALTER TABLE runs.points_local ON CLUSTER 'prod' ADD COLUMN note String",
        "ALTER TABLE runs.points ON CLUSTER 'prod' ADD COLUMN note String",
    ]
    rows = TableChange("points", "UPDATE value = 0 WHERE step < 0", of_columns=False).make_statements("runs", "prod")
    assert list(rows) == ["ALTER TABLE runs.points_local ON CLUSTER 'prod' UPDATE value = 0 WHERE step < 0"]


def test_statements_for_a_cluster_name_it_everywhere() -> None:
    found = list(schema.make_statements("runs", (26, 3), cluster="prod", days=90))
    *made, version = found
    assert all("ON CLUSTER 'prod'" in statement for statement in made)
    assert version.startswith("INSERT INTO runs.schema_versions")
    points = next(statement for statement in found if "points_local" in statement)
    assert "ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/runs/points', '{replica}')" in points
    assert "INTERVAL 90 DAY" in points and "CODEC" in points
    old = list(schema.make_statements("runs", (18, 16), cluster="prod", days=90))
    assert not any("CODEC" in statement or "TTL" in statement for statement in old)


def test_every_table_is_ordered_by_what_identifies_its_rows() -> None:
    for table in schema.TABLES.values():
        assert set(table.order) <= set(table.columns)
        assert table.order[:2] == ("project", "run"), "so that a run is read by itself"
        assert ("received" in table.columns) == table.by_month

"""Talking to an engine."""

from __future__ import annotations

import numpy as np
import pytest
from engines import Engine
from waiting import free_port

from trainvitals.fleet.clickhouse import ClickHouse, EngineAway, EngineError, literal, parse_address
from trainvitals.fleet.native import encode_block


def test_an_address_is_understood_and_shown_without_its_password() -> None:
    found = parse_address("clickhouses://me:p%40ss@ch.example/runs")
    assert (found.host, found.port, found.secure, found.database) == ("ch.example", 8443, True, "runs")
    assert (found.user, found.password) == ("me", "p@ss")
    assert found.shown == "clickhouses://me@ch.example:8443/runs"
    assert parse_address("clickhouse://h").database == "trainvitals"


@pytest.mark.parametrize("text", ["", "http://h:1/a", "clickhouse://", "clickhouse://h:x/a", "clickhouse://h/a;DROP"])
def test_any_other_address_is_refused(text: str) -> None:
    with pytest.raises(EngineError):
        parse_address(text)


NASTY = ["it's", "back\\slash", "'; DROP TABLE points; --", "zero\x00byte", "tab\tnew\nline", "größe 🚀", "\\'"]


def test_any_text_can_be_asked_for(engine: Engine) -> None:
    asked = ", ".join(f"{literal(text)} AS c{place}" for place, text in enumerate(NASTY))
    found = engine.open("default").select(f"SELECT {asked}")
    assert [found[f"c{place}"][0].decode() for place in range(len(NASTY))] == NASTY


def test_rows_come_back_to_the_bit(engine: Engine) -> None:
    opened = engine.open("default")
    opened.execute("DROP TABLE IF EXISTS bits")
    opened.execute("CREATE TABLE bits (name String, value Float64, step Int64) ENGINE = MergeTree ORDER BY step")
    values = np.array([0.1, -0.0, 5e-324, float("nan"), float("inf"), float("-inf"), 1e308])
    types = {"name": "String", "value": "Float64", "step": "Int64"}
    columns = {"name": NASTY, "value": values, "step": np.arange(len(values)) - 2**62}
    opened.insert_blocks("bits", types, [encode_block(types, columns)])
    found = opened.select("SELECT name, value, step FROM bits ORDER BY step")
    assert [item.decode() for item in found["name"]] == NASTY
    assert found["value"].tobytes() == values.tobytes()
    assert found["step"][0] == -(2**62)
    assert opened.select("SELECT name FROM bits WHERE step = 5") == {}


def test_what_the_engine_refuses_and_that_it_is_away_are_different_things(engine: Engine) -> None:
    with pytest.raises(EngineError) as caught:
        engine.open("default").execute("SELECT nonsense FROM nowhere")
    assert not isinstance(caught.value, EngineAway)
    with pytest.raises(EngineAway, match="cannot reach"):
        ClickHouse(parse_address(f"clickhouse://127.0.0.1:{free_port()}/x")).execute("SELECT 1")

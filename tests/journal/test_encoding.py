"""Every float and every key survives a line."""

from __future__ import annotations

import math
import struct

import orjson
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.journal.cursor import parse_line
from trainvitals.journal.damage import Damage
from trainvitals.journal.encoding import (
    LINE_START,
    MILLISECONDS,
    TimeParser,
    encode_line,
    format_time,
    is_complete,
    number,
    parse_time,
    start_lines,
)

floats = st.floats(allow_nan=True, allow_infinity=True, width=64)


def bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


@given(st.dictionaries(st.text(), floats))
def test_every_float_and_key_survives(values: dict[str, float]) -> None:
    stamp = format_time()
    line = encode_line({"timestamp": stamp, **{k: v for k, v in values.items() if k != "timestamp"}})
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    row = parse_line(line, Damage())
    assert row is not None and row.pop("timestamp") == stamp
    back = {key: number(item) for key, item in row.items()}
    assert {k: bits(v) for k, v in back.items() if v is not None} == {
        k: bits(v) for k, v in values.items() if k != "timestamp"
    }


@given(st.text(alphabet=st.characters(categories=["Cs"]), min_size=1), st.integers())
def test_keys_and_numbers_that_json_cannot_hold_stay_readable(key: str, value: int) -> None:
    row = orjson.loads(encode_line({key: value}))
    assert len(row) == 1
    (item,) = row.values()
    kept = number(item)
    assert kept is not None and (kept == value or abs(value) >= 2**53)


@given(st.binary())
def test_no_bytes_break_the_parser(line: bytes) -> None:
    damage = Damage()
    row = parse_line(line.replace(b"\n", b""), damage)
    assert row is None or isinstance(row["timestamp"], str)


@given(st.integers(min_value=0, max_value=4_102_444_800_000_000))
def test_times_survive_to_the_microsecond(micros: int) -> None:
    whole, rest = divmod(micros, 1_000_000)
    text = format_time(whole)[:-7] + f"{rest:06d}Z"
    parser = TimeParser()
    assert parser.parse(text) == micros
    assert parser.parse(text) == micros  # the second time from memory
    later = micros - micros % 60_000_000 + 59_000_001
    assert parser.parse(format_time(later // 1_000_000)[:-7] + "000001Z") == later  # of the same minute


def test_times_of_other_writers_are_understood() -> None:
    parser = TimeParser()
    assert parser.parse("2026-11-15T10:00:00Z") == parser.parse("2026-11-15T11:00:00+01:00")
    assert parser.parse("2026-11-15T10:00:00.5Z") == parser.parse("2026-11-15T10:00:00.500000Z")
    assert parser.parse("2026-11-15T10:00:00.123Z") == parser.parse("2026-11-15T10:00:00.123000Z")
    assert parser.parse("yesterday") is None
    assert parser.parse("") is None
    assert parser.parse("2026-11-15T10:00:60.000Z") is None, "no such second"
    assert parser.parse("2026-11-15T10:00:5x.000Z") is None


def test_a_single_time_is_read_in_seconds_and_anything_else_is_none() -> None:
    assert parse_time("1970-01-01T00:01:00.500000Z") == 60.5
    assert parse_time("1970-01-01T00:01:00") == 60
    assert parse_time("yesterday") is None
    assert parse_time(None) is None


def test_nan_is_spelled_so_that_duckdb_reads_it_as_a_number(tmp_path: object) -> None:
    import duckdb

    path = f"{tmp_path}/lines.jsonl"
    with open(path, "wb") as file:
        for value in (1.5, math.nan, math.inf, -math.inf):
            file.write(encode_line({"timestamp": format_time(), "loss": value}))
    rows = duckdb.sql(f"SELECT loss FROM read_json('{path}', columns={{loss: 'DOUBLE'}})").fetchall()
    assert rows[0] == (1.5,) and math.isnan(rows[1][0]) and rows[2:] == [(math.inf,), (-math.inf,)]


@given(st.integers(0, 2**32), st.integers(0, 999), st.integers(-(2**62), 2**62), st.floats(allow_nan=False, width=64))
def test_a_line_joined_from_the_template_is_the_line_that_would_be_encoded(
    second: int, millisecond: int, step: int, value: float
) -> None:
    metrics = {"loss": value if math.isfinite(value) else 0.0}
    joined = start_lines(second) + MILLISECONDS[millisecond] + orjson.dumps(step) + b"," + orjson.dumps(metrics)[1:]
    stamp = format_time(second + millisecond / 1000, digits=3)
    assert joined + b"\n" == encode_line({"timestamp": stamp, "step": step, **metrics})
    assert is_complete(joined) and joined.startswith(LINE_START)

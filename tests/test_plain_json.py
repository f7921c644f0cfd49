"""JSON of anybody: what is read is what can be written again."""

from __future__ import annotations

import math

import pytest

from trainvitals.journal.encoding import dump_json, spell_all
from trainvitals.plain_json import MOST_DEPTH, parse_json, parse_object


def nest(depth: int) -> str:
    return "[" * depth + "]" * depth


def test_what_is_found_in_documents_and_is_not_json() -> None:
    assert parse_json('{"a": NaN, "b": "\\ud800"}')["b"] == "\ud800"
    assert parse_json("[Infinity, " + "9" * 5000 + "]") == [math.inf, math.inf]
    for wrong in ("{", b"\xff", "", nest(100_000), '{"a":' * 1000 + "1" + "}" * 1000):
        with pytest.raises(ValueError):
            parse_json(wrong)


@pytest.mark.parametrize("pair", ["[]", "{}"])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_what_is_nested_too_deeply_is_refused(pair: str, as_bytes: bool) -> None:
    opening, inner = ("[", "") if pair == "[]" else ('{"a":', "1")

    def write(depth: int) -> str | bytes:
        text = opening * depth + inner + pair[1] * depth
        return text.encode() if as_bytes else text

    found = parse_json(write(MOST_DEPTH))
    assert dump_json({"rows": [spell_all(found)]}), "within an answer, too"
    for depth in (MOST_DEPTH + 1, 254, 260, 900, 1100):
        with pytest.raises(ValueError):
            parse_json(write(depth))


def test_many_brackets_are_not_deep() -> None:
    assert len(parse_json("[" + ",".join(["[[{}]]"] * 1000) + "]")) == 1000
    assert parse_json('["' + "[{" * 1000 + '"]') == ["[{" * 1000]


def test_an_object_is_asked_for() -> None:
    assert parse_object(b'{"a": 1}') == {"a": 1}
    with pytest.raises(ValueError, match="not a JSON object"):
        parse_object(b"[1]")

"""Blocks of ClickHouse's Native format."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.fleet.native import FormatError, Repeated, decode, encode_block

TYPES = {"name": "String", "count": "UInt64", "value": "Float64", "raw": "String"}


def columns(values: list[float]) -> dict[str, object]:
    return {
        "name": Repeated([("a", 1), ("größe", len(values) - 1)]),
        "count": np.arange(len(values)),
        "value": np.array(values),
        "raw": [b"\x00\xff" * place for place in range(len(values))],
    }


def test_what_was_encoded_is_decoded() -> None:
    values = [0.1, float("nan"), float("-inf"), -0.0]
    block = encode_block(TYPES, columns(values))  # type: ignore[arg-type]
    found = decode(block + block)
    assert found["name"] == [b"a", *["größe".encode()] * 3] * 2
    assert found["count"].tolist() == [0, 1, 2, 3] * 2
    assert found["value"].tobytes() == np.array(values * 2).tobytes()
    assert found["raw"][3] == b"\x00\xff" * 3
    assert decode(b"") == {}


def test_a_long_string_has_a_long_length() -> None:
    found = decode(encode_block({"text": "String"}, {"text": ["x" * 300, "y" * 20_000]}))
    assert [len(item) for item in found["text"]] == [300, 20_000]


def test_an_answer_that_was_cut_off_is_an_error() -> None:
    block = encode_block(TYPES, columns([1.0, 2.0]))  # type: ignore[arg-type]
    for length in range(1, len(block)):
        with pytest.raises(FormatError):
            decode(block[:length])


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="column count has 2 rows"):
        encode_block({"value": "Float64", "count": "UInt64"}, {"value": np.zeros(3), "count": np.zeros(2)})

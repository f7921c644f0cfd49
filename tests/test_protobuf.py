"""The wire format, against protobuf's own encoder; and bytes that are no message."""

from __future__ import annotations

import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.protobuf import (
    Malformed,
    as_bytes,
    as_double,
    as_int,
    as_text,
    double,
    field,
    number,
    read_fields,
    signed,
)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1))
def test_numbers_are_what_was_encoded(seconds: int, nanos: int) -> None:
    found = {
        number: signed(as_int(value))
        for number, _, value, _ in read_fields(Timestamp(seconds=seconds, nanos=nanos).SerializeToString())
    }
    assert (found.get(1, 0), found.get(2, 0)) == (seconds, nanos)


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=5))
def test_texts_and_doubles_are_what_was_encoded(values: dict[str, float]) -> None:
    message = Struct()
    message.update(values)
    found = {}
    for outer, _, entry, place in read_fields(message.SerializeToString()):
        assert outer == 1 and place > 0
        pair = {inner: item for inner, _, item, _ in read_fields(as_bytes(entry))}
        ((_, _, double, _),) = read_fields(as_bytes(pair[2]))
        found[as_text(pair.get(1, b""))] = as_double(double)
    assert found == values


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())
def test_what_is_written_is_read_by_others(whole: int, real: float, text: str) -> None:
    assert Timestamp.FromString(number(1, whole)).seconds == whole
    value = Struct.FromString(field(1, field(1, text.encode()) + field(2, double(2, real))))
    assert dict(value) == {text: real}


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_malformed(data: bytes) -> None:
    try:
        list(read_fields(data))
    except Malformed:
        pass


@pytest.mark.parametrize("data", [b"\x80" * 11, b"\x0a\x05ab", b"\x0b", b"\x09\x00", b"\x80"])
def test_what_is_cut_or_unknown_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        list(read_fields(data))

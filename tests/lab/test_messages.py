"""Messages are the same at the other end, and what is none is refused before it costs memory."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.lab import messages
from trainvitals.lab.messages import Message, MessageError
from trainvitals.plain_json import MOST_DEPTH

FINITE = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | FINITE | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), PLAIN, max_size=5), st.binary(max_size=100))
def test_a_message_is_the_same_at_the_other_end(json: dict[str, object], rest: bytes) -> None:
    assert messages.decode(messages.encode(Message(json, rest))) == (json, rest)


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        messages.decode(data)


def test_a_message_that_announces_too_much_is_refused_before_it_is_read() -> None:
    asked: list[int] = []

    def read_bytes(size: int) -> bytes:
        asked.append(size)
        return struct.pack(">4sII", b"tvr1", 100, 2**32 - 1)

    with pytest.raises(MessageError, match="larger than allowed"):
        messages.read(read_bytes)
    assert asked == [12]


@pytest.mark.parametrize("json", [b"[1]", b"{", b"null"])
def test_what_is_no_object_is_refused(json: bytes) -> None:
    with pytest.raises(MessageError, match=r"not (a )?JSON"):
        messages.decode(struct.pack(">4sII", b"tvr1", len(json), 0) + json)


def test_a_document_may_be_as_deep_as_any_and_a_message_no_deeper_than_can_be_written() -> None:
    def nest(depth: int) -> bytes:
        return b'{"runs":[{"config":%s}]}' % (b"[" * depth + b"]" * depth)

    def decode(json: bytes) -> Message:
        return messages.decode(struct.pack(">4sII", b"tvr1", len(json), 0) + json)

    assert messages.encode(decode(nest(MOST_DEPTH)))
    for depth in (messages.MOST_DEPTH, 260, 900, 100_000):
        with pytest.raises(MessageError, match="nested too deeply"):
            decode(nest(depth))


def test_what_is_cut_off_or_too_long_is_refused() -> None:
    whole = messages.encode(Message({"a": 1}, b"xyz"))
    with pytest.raises(MessageError, match="cut off"):
        messages.decode(whole[:-1])
    with pytest.raises(MessageError, match="more than one"):
        messages.decode(whole + b"x")

"""Numbers of any length come back, and bytes that are none are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainvitals.varints import Malformed, read_varint, varint


@given(st.integers(0, 2**64 - 1), st.binary(max_size=3))
def test_a_number_comes_back_with_the_place_behind_it(number: int, rest: bytes) -> None:
    written = varint(number)
    assert read_varint(b"?" + written + rest, 1) == (number, 1 + len(written))
    assert len(written) == max(-(-number.bit_length() // 7), 1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9, b"\xff" * 11])
def test_what_is_cut_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(Malformed):
        read_varint(data, 0)

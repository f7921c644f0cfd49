"""The inputs of a model, from what a person types."""

from __future__ import annotations

import numpy as np
import pytest

from trainvitals.bench.inputs import InputSpec, describe_inputs, make_arrays, parse_inputs
from trainvitals.errors import TrainvitalsError


def test_a_picture_is_its_sizes() -> None:
    assert parse_inputs("1x3x224x224") == (InputSpec((1, 3, 224, 224)),)


def test_several_inputs_types_names_and_limits() -> None:
    found = parse_inputs("fp16:2x8, ids=int64:2x16<50257,mask=bool:2x16")
    assert found == (
        InputSpec((2, 8), "float16"),
        InputSpec((2, 16), "int64", "ids", 50257),
        InputSpec((2, 16), "bool", "mask"),
    )
    assert parse_inputs(describe_inputs(found)) == found


@pytest.mark.parametrize("text", ["", "3x", "x3", "1x-3", "1x0", "float31:1x3", "a=1x3,1x3", "1x3<5x"])
def test_what_is_no_input_is_an_error(text: str) -> None:
    with pytest.raises(TrainvitalsError):
        parse_inputs(text)


def test_a_misspelled_type_suggests_the_right_one() -> None:
    with pytest.raises(TrainvitalsError, match="did you mean 'float32'"):
        parse_inputs("float23:1x3")


@pytest.mark.parametrize("text", ["1x5", "int64:1x7<100", "uint8:1x3", "bool:1x2", "bf16:1x4"])
def test_the_first_items_of_a_larger_batch_are_those_of_a_smaller_one(text: str) -> None:
    specs = parse_inputs(text)
    (small,), (large,) = make_arrays(specs, 2, seed=3), make_arrays(specs, 8, seed=3)
    assert large.shape[0] == 8
    assert np.array_equal(small, large[:2])


def test_integers_stay_below_their_limit() -> None:
    (found,) = make_arrays(parse_inputs("int64:64x64<7"), 64)
    assert set(np.unique(found)) == set(range(7))
    assert found.dtype == np.int64

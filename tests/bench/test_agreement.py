"""How far two sets of answers are apart."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainvitals.bench.agreement import compare_outputs

LOGITS = np.random.default_rng(0).standard_normal((50, 10)).astype(np.float32)


def test_equal_answers_agree_in_every_measure() -> None:
    found = compare_outputs([LOGITS], [LOGITS], 0.01)
    assert found is not None
    assert (found.max_error, found.relative_error, found.kl, found.top1, found.within) == (0, 0, 0, 1, True)
    assert found.cosine == pytest.approx(1)


def test_every_measure_of_a_known_difference() -> None:
    found = compare_outputs([LOGITS], [LOGITS * 1.1], 0.05)
    assert found is not None
    assert found.relative_error == pytest.approx(0.1, rel=1e-4)
    assert found.max_error == pytest.approx(0.1 * np.abs(LOGITS).max(), rel=1e-4)
    assert found.cosine == pytest.approx(1)
    assert found.top1 == 1
    assert found.kl is not None
    assert 0 < found.kl < 0.02
    assert not found.within


def test_the_divergence_is_that_of_the_definition() -> None:
    p, q = np.array([[0.7, 0.3]]), np.array([[0.5, 0.5]])
    found = compare_outputs([np.log(p)], [np.log(q)], 10)
    assert found is not None
    assert found.kl == pytest.approx(float((p * np.log(p / q)).sum()))


@pytest.mark.parametrize("other", [LOGITS[:10], np.where(LOGITS > 2, np.nan, LOGITS)])
def test_another_shape_or_a_new_nan_is_as_wrong_as_can_be(other: np.ndarray) -> None:
    found = compare_outputs([LOGITS], [other], 1.0)
    assert found is not None
    assert found.relative_error == math.inf
    assert not found.within


def test_the_same_nan_in_both_is_not_a_difference() -> None:
    broken = np.where(LOGITS > 2, np.nan, LOGITS)
    found = compare_outputs([broken], [broken], 0.0)
    assert found is not None
    assert found.within


def test_no_output_cannot_be_compared() -> None:
    assert compare_outputs([], [], 0.1) is None


def test_all_outputs_count_and_integers_have_no_logits() -> None:
    counts = np.arange(6).reshape(2, 3)
    found = compare_outputs([counts, LOGITS], [counts, LOGITS], 0.1)
    assert found is not None
    assert found.top1 == 1
    alone = compare_outputs([counts], [counts + 1], 0.1)
    assert alone is not None
    assert (alone.top1, alone.max_error, alone.within) == (None, 1, False)

from __future__ import annotations

import itertools

import pytest

from trainvitals.views.tui.paced import Paced


def test_a_value_is_read_again_when_it_is_due() -> None:
    count = itertools.count(1)
    paced = Paced(lambda: next(count), 3600.0, 0)
    assert (paced.last, paced.get(), paced.get()) == (0, 1, 1)
    paced.expire()
    assert (paced.last, paced.get()) == (1, 2)
    assert Paced(lambda: next(count), 0.0, 0).get() == 3


def test_a_read_that_fails_is_tried_again_and_keeps_the_value() -> None:
    answers = iter([OSError("not now"), 7])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    paced = Paced(read, 3600.0, 1)
    with pytest.raises(OSError, match="not now"):
        paced.get()
    assert paced.last == 1
    assert paced.get() == 7

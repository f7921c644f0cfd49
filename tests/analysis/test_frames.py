"""Which frames are the program's own, and who is not where the others are."""

from __future__ import annotations

from pathlib import Path

import trainvitals
from trainvitals.analysis.frames import find_collective, find_odd, find_own_frame, parse_traceback
from trainvitals.journal.identity import Participant

TORCH = "/venv/lib/python3.11/site-packages/torch"
OWN = 'File "/home/me/train.py", line 11 in <module>'
ALL_REDUCE = (f'File "{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce', OWN)
GATHER = (f'File "{TORCH}/distributed/distributed_c10d.py", line 9 in all_gather_object', OWN.replace("11", "20"))
BACKWARD = (f'File "{TORCH}/autograd/graph.py", line 1 in _engine_run_backward', OWN)
SLEEP = ('File "/home/me/train.py", line 7 in load', OWN)


def ranks(*stacks: tuple[str, ...]) -> dict[Participant, tuple[str, ...]]:
    return {Participant(rank=rank): frames for rank, frames in enumerate(stacks)}


def odd_ranks(*stacks: tuple[str, ...]) -> list[int]:
    return [participant.rank for participant in find_odd(ranks(*stacks))]


def test_frames_of_the_standard_library_torch_and_ours_are_not_the_programs_own() -> None:
    frames = (
        'File "/usr/lib/python3.11/selectors.py", line 415 in select',
        f'File "{TORCH}/utils/data/dataloader.py", line 1 in __next__',
        f'File "{Path(trainvitals.__file__).parent}/runtime.py", line 1 in anything',
        OWN,
    )
    assert find_own_frame(frames) == OWN and find_own_frame(frames[:3]) is None


def test_the_frames_of_the_last_traceback_are_read_innermost_first() -> None:
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in early\n    x\nKeyError: 1\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 2, in main\n    f()\n  File "c.py", line 3, in f\n'
    )
    assert parse_traceback(text) == ('File "c.py", line 3 in f', 'File "b.py", line 2 in main')
    assert parse_traceback("nothing") == ()


def test_a_collective_is_known_by_its_name_and_by_a_backward_pass() -> None:
    assert find_collective(ALL_REDUCE) == "all_reduce" and find_collective(GATHER) == "all_gather_object"
    assert find_collective(BACKWARD) == "backward" and find_collective(SLEEP) is None


def test_the_rank_that_is_in_no_collective_is_the_odd_one() -> None:
    assert odd_ranks(ALL_REDUCE, ALL_REDUCE, SLEEP) == [2]
    assert odd_ranks(SLEEP, ALL_REDUCE) == [0]
    assert odd_ranks(SLEEP, BACKWARD, BACKWARD) == [0]


def test_the_rank_in_another_collective_than_most_is_the_odd_one() -> None:
    assert odd_ranks(ALL_REDUCE, GATHER, ALL_REDUCE) == [1]
    assert odd_ranks(ALL_REDUCE, GATHER) == []


def test_nobody_is_odd_where_all_are_alike_or_nothing_is_known() -> None:
    assert odd_ranks(SLEEP, SLEEP) == odd_ranks(ALL_REDUCE, ALL_REDUCE) == odd_ranks() == odd_ranks((), ()) == []

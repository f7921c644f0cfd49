"""Frames of Python stacks as text, innermost first: `File "train.py", line 12 in step`. Imports nothing heavy, for the
agent reads them too."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainvitals.journal.identity import Participant

Frames = Sequence[str]

_FOREIGN = re.compile(
    r"<frozen |/lib(?:64)?/python3\.\d+/(?!(?:site|dist)-packages/)|/(?:site|dist)-packages/(?:torch|trainvitals)/|"
    + re.escape(f"{Path(__file__).parents[1]}{os.sep}")
)
"""Of the standard library, torch, or ours: every training is at such places."""
_COLLECTIVE = re.compile(
    r"/torch/distributed/.* in (?:\w+\.)*_?(\w*(?:reduce|gather|scatter|broadcast|barrier|all_to_all)\w*)$"
)
_BACKWARD = re.compile(r"/torch/autograd/.* in (?:\w+\.)?(_engine_run_backward|backward)$")
"""Where DDP waits for the gradients of the others, without a Python frame of its own."""
_TRACEBACK_FRAME = re.compile(
    r'^[\s|+]*File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE
)


def format_frame(file: str, line: int | str, function: str) -> str:
    return f'File "{file}", line {line} in {function}'


def parse_traceback(text: str) -> tuple[str, ...]:
    """The frames of the last traceback in the text, innermost first."""
    last = text[text.rfind("Traceback (most recent call last)") :] if "Traceback (" in text else text
    found = [format_frame(**match.groupdict()) for match in _TRACEBACK_FRAME.finditer(last)]
    return tuple(reversed(found))


def find_own_frame(frames: Frames) -> str | None:
    """The innermost frame that is not of the standard library, torch or trainvitals."""
    return next((frame for frame in frames if not _FOREIGN.search(frame)), None)


def find_collective(frames: Frames) -> str | None:
    """The collective in which the thread waits for other ranks, such as `all_reduce`; None if it is elsewhere."""
    found = (pattern.search(frame) for pattern in (_COLLECTIVE, _BACKWARD) for frame in frames)
    return next((match[1].removeprefix("_engine_run_") for match in found if match), None)


def find_odd(stacks: Mapping[Participant, Frames]) -> tuple[Participant, ...]:
    """Those for which the others wait: not in a collective while others are, or else not where most are."""
    known = {participant: frames for participant, frames in stacks.items() if frames}
    elsewhere = tuple(sorted(participant for participant, frames in known.items() if find_collective(frames) is None))
    if 0 < len(elsewhere) < len(known):
        return elsewhere
    places = {participant: find_own_frame(frames) or frames[0] for participant, frames in known.items()}
    usual, count = next(iter(Counter(places.values()).most_common(1)), ("", 0))
    if count * 2 <= len(places):
        return ()
    return tuple(sorted(participant for participant, place in places.items() if place != usual))

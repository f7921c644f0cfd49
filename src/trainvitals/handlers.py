"""Exceptions that a signal handler of the program raises while our code happens to run.

A program that gives a step a time limit raises from its handler, and Python raises it wherever the main thread is: in
our `log` too. It is meant for the program, so whatever catches errors in its process lets these through. Blocking
signals would not help: Python runs handlers in the main thread for signals that any other thread received.
Tested in tests/trainer/test_reentrancy.py.
"""

from __future__ import annotations

import functools
import signal
import threading
from types import CodeType
from typing import Any


def is_from_handler(error: BaseException) -> bool:
    """Whether one of the program's signal handlers raised it."""
    if threading.current_thread() is not threading.main_thread():
        return False  # handlers run in the main thread
    # The first frame is ours, which caught it. Most errors come from there, and the rest takes 0.2 ms: if the next
    # signal comes before a handler that logs has ended, none of them ever ends.
    place = error.__traceback__.tb_next if error.__traceback__ is not None else None
    codes = _handler_codes() if place is not None else set()
    while place is not None:
        if place.tb_frame.f_code in codes:
            return True
        place = place.tb_next
    return False


def _handler_codes() -> set[CodeType]:
    found = set()
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        while isinstance(handler, functools.partial):
            handler = handler.func
        for item in (handler, getattr(handler, "__func__", None), vars(type(handler)).get("__call__")):
            code = getattr(item, "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return found

"""The time of the rules: that of the points, kept from jumping with the clocks that stamp them.
Tested in tests/alerts/test_engine.py."""

from __future__ import annotations

FUTURE_SECONDS = 5.0
JUMP_SECONDS = 2.0


class RuleClock:
    """`now` never goes back. `offset` is what steps of the wall clock have put between it and that clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.offset = 0.0
        self._last_wall: float | None = None
        self._last_steady: float | None = None
        self._stream_times: dict[tuple[object, ...], float] = {}

    def see(self, moment: float, stream: tuple[object, ...]) -> None:
        """A line of that stream was written at `moment`."""
        time = moment + self.offset
        if self._last_steady is None:
            # No monotonic clock (a recorded run): a clock that goes back is seen in the lines themselves.
            last = self._stream_times.get(stream)
            if last is not None and time < last - JUMP_SECONDS:
                self.offset += last - time
                time = last
            self._stream_times[stream] = time
        # A line from the future (another host's clock) must not push everybody's time far beyond that of the ticks.
        future = self._last_wall is not None and time > self._last_wall + self.offset + FUTURE_SECONDS
        if time > self.now and (self._last_steady is None or not future):
            self.now = time

    def tick(self, wall: float, monotonic: float | None) -> float | None:
        """Time has passed. With `monotonic`, a step of the wall clock is noticed, which is no time: its seconds."""
        found = None
        if monotonic is not None and self._last_wall is not None and self._last_steady is not None:
            jump = (wall - self._last_wall) - (monotonic - self._last_steady)
            if abs(jump) > JUMP_SECONDS:
                self.offset -= jump
                found = jump
        self._last_wall, self._last_steady = wall, monotonic
        self.now = max(self.now, wall + self.offset)
        return found

"""The media of a run, on its side of the boundary around the user's loop: the code that converts them is loaded with
the first, and what it raises stays here. Tested in tests/trainer/test_media.py."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from trainvitals.errors import MetricError
from trainvitals.journal.identity import Participant
from trainvitals.settings import Settings
from trainvitals.trainer.refusals import Refusals
from trainvitals.trainer.row_values import choose_step

if TYPE_CHECKING:
    from trainvitals.trainer.media import RunMedia

LONGEST_NAME = 500
"""Characters of the name of an image, a table, a text or a histogram."""


class MediaLog:
    """Of one run in one process."""

    def __init__(self, folder: Path, participant: Participant, settings: Settings, refusals: Refusals) -> None:
        self._folder = folder
        self._participant = participant
        self._settings = settings
        self._refusals = refusals
        self._media: RunMedia | None = None

    @property
    def left_out(self) -> Counter[str]:
        """What was not kept, by reason."""
        return self._media.left_out if self._media is not None else Counter()

    def write(
        self, name: str, step: int | None, last_step: int, write: Callable[[RunMedia, str, int | None], None]
    ) -> None:
        """Give `write` the name and the step to use; without a step, the last one logged."""
        try:
            if self._media is None or self._media.process != os.getpid():
                from trainvitals.trainer.media import RunMedia

                self._media = RunMedia(self._folder, self._participant, self._settings, self._refusals)
            if step is None:
                step = last_step if last_step >= 0 else None
            else:
                step = choose_step(step, last_step, self._refusals)
            write(self._media, str(name)[:LONGEST_NAME], step)
        except MetricError:
            raise  # strict mode: asked for
        except Exception as error:  # noqa: BLE001 - the boundary around the user's loop
            self._refusals.survive(error)

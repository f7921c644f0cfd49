"""Responses with the scores they got: a table of the run, beside its other media, which the RL page shows
(`SAMPLES` in web/src/logic/media.ts).
Tested in tests/integrations/test_verl.py, test_nemo_rl.py and test_trl.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainvitals.redaction import redact_text
from trainvitals.trainer.jsonable import MAX_TEXT
from trainvitals.trainer.run import Run

NAME = "val/generations"
TRAINING = "train/completions"
COLUMNS = ("input", "output", "score")
MOST_CHARACTERS = 3_000_000
"""Of the samples of one validation. A file of media has room for them in any language."""
LONGEST_SECRET = 4_000


def log_samples(
    run: Run, samples: Sequence[Sequence[Any]], step: int, *, name: str = NAME, columns: Sequence[str] = COLUMNS
) -> None:
    """Prompt, response and score of each."""
    run.log_table(name, _fit(samples), step=step, columns=columns)


def _fit(samples: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """The samples, with the middle of texts left out that are too long for a table, or for all to be in it: the answer
    is at the end."""
    texts = sum(isinstance(cell, str) for row in samples for cell in row)
    half = min(MAX_TEXT - 100, MOST_CHARACTERS // max(texts, 1)) // 2

    def cut(cell: Any) -> Any:
        if not isinstance(cell, str) or len(cell) <= 2 * half:
            return cell
        # Half a secret does not look like one.
        begin, end = (redact_text(part) for part in (cell[: half + LONGEST_SECRET], cell[-half - LONGEST_SECRET :]))
        return f"{begin[:half]} … {len(cell) - 2 * half:,} characters … {end[-half:]}"

    return [[cut(cell) for cell in row] for row in samples]

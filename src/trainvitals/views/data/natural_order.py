"""Names as people order them: `run 9` before `run 10`, `a` beside `A`. Tested in tests/views/data/test_run_order.py."""

from __future__ import annotations

import re
import unicodedata

_SIGNS = " _-,;:!?.'\"()[]{}@*/\\&#%`^+<=>|~$"
"""In the order of the Unicode Collation Algorithm, which has them before digits, and those before letters."""
_PLACES = str.maketrans({sign: chr(place) for place, sign in enumerate(_SIGNS, start=1)})
_NUMBER = re.compile(r"[0-9]+")

SortKey = tuple[str, str, str]


def natural_key(text: str) -> SortKey:
    """To sort by: letters first, then their accents, then their case: lower before upper."""
    base, accents = text, ""
    if not text.isascii():
        plain = unicodedata.normalize("NFD", text)
        base = "".join(character for character in plain if not unicodedata.combining(character))
        accents = "".join(character if unicodedata.combining(character) else "\0" for character in plain).rstrip("\0")
    return _NUMBER.sub(_weigh, base.casefold().translate(_PLACES)), accents, base.swapcase()


def _weigh(found: re.Match[str]) -> str:
    """A number as a text among texts: of two, that with more digits is higher."""
    digits = found[0].lstrip("0")
    return f"0{chr(len(digits))}{digits}"

"""Lists of visible devices, such as `ROCR_VISIBLE_DEVICES=1,0`: what most vendors' variables have in common."""

from __future__ import annotations

from collections.abc import Sequence


def pick_visible(text: str | None, ids: Sequence[str]) -> list[str]:
    """Those of `ids` that a program sees, in its order.

    None (unset) is all of them and an empty text none. An entry is a number or an id, with or without `GPU-` before
    it; one that fits nothing hides itself and everything after it.
    """
    if text is None:
        return list(ids)
    seen: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        name = entry.removeprefix("GPU-")
        if entry.isdecimal() and int(entry) < len(ids):
            name = ids[int(entry)]
        elif name not in ids:
            break
        if name not in seen:
            seen.append(name)
    return seen

"""docs/arriving.md: every older name has a row, and what the rows name exists and works. `UPDATE_DOCS=1 pytest
tests/test_arriving.py` rewrites the table of configuration keys."""

from __future__ import annotations

import os
from pathlib import Path

from trainvitals.settings.older_names import KEYS, THRESHOLDS

PAGE = Path(__file__).parents[1] / "docs" / "arriving.md"


def draw_keys() -> str:
    lines = ["| key | setting | meaning |", "|---|---|---|"]
    for key in KEYS:
        sets = ", ".join(f"`{name}`" for name in key.sets) or "none"
        lines.append(f"| `{key.name}` | {sets} | {key.meaning} |")
    return "\n".join(lines)


def draw_thresholds() -> str:
    lines = ["| threshold | today |", "|---|---|"]
    lines += [f"| `{row.name}: 0.5` | `{row.becomes}: 50` |" for row in THRESHOLDS]
    return "\n".join(lines)


def test_the_page_has_every_key_and_threshold_as_they_are() -> None:
    text = PAGE.read_text()
    for name, wanted in (("older keys", draw_keys()), ("older thresholds", draw_thresholds())):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        found, _, after = rest.partition(end)
        if os.environ.get("UPDATE_DOCS"):
            text = f"{before}{begin}{wanted}\n{end}{after}"
            PAGE.write_text(text)
        else:
            assert found == f"{wanted}\n"

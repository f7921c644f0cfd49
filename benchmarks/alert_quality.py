"""How often the built-in rules speak of runs that are well: `python benchmarks/alert_quality.py SEED ...`.

Each seed makes 18 healthy runs (tests/alerts/judging.py): twelve small trainings and six noisy curves, each on a
machine of its own. A set is fresh as long as no rule was changed because of what was seen in it; docs/alerts.md tells
which were. About half a minute of CPU for a seed.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "alerts"))

import judging


def bench(seeds: list[int]) -> Table:
    """One row for every seed."""
    rows = []
    for seed in seeds:
        steps, wrong, right, notes, quiet = 0, Counter[str](), Counter[str](), Counter[str](), 0
        for kind in judging.make_set(seed):
            length, sent, noted = judging.judge_healthy(seed, kind)
            steps += length
            expected = judging.RIGHT.get(kind, set())
            wrong.update({name: count for name, count in sent.items() if name not in expected})
            right.update({name: count for name, count in sent.items() if name in expected})
            notes.update(noted)
            quiet += not sent
        rows.append(
            [seed, f"{quiet} of {len(judging.make_set(seed))}", f"{steps:,}", *map(_text, (wrong, right, notes))]
        )
    return Table(
        "Built-in rules on healthy runs",
        ["seed", "runs nobody was told about", "steps", "wrongly sent", "rightly sent", "noted (info)"],
        rows,
        goal="nothing wrongly sent",
    )


def _text(found: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in found.most_common()) or "none"


if __name__ == "__main__":
    print(bench([int(word) for word in sys.argv[1:]]).markdown())

"""Every table of docs/performance.md, printed; with --write, put into that page.

    python benchmarks/run_all.py [--write] [--quick]

These machines are noisy: trust ratios, not digits.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path

import agent_cost
import alert_delays
import alerts
import kill_loss
import log_cost
import many_ranks
import rl_cost
import startup
import storage
import top
import watch_overhead
import write_storm
from table import machine

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="smaller runs, for a first look")
    arguments = parser.parse_args()
    quick = arguments.quick
    tables = []
    for make in (
        lambda: log_cost.bench(1 if quick else 5),
        lambda: kill_loss.bench(1 if quick else 5),
        lambda: write_storm.bench(1 if quick else 10, Path(tempfile.gettempdir())),
        lambda: storage.bench([100_000] if quick else [100_000, 1_000_000, 10_000_000]),
        lambda: agent_cost.bench(5 if quick else 30),
        lambda: rl_cost.bench(8 if quick else 20),
        lambda: many_ranks.bench_agent(5 if quick else 30),
        lambda: many_ranks.bench_log(5 if quick else 20),
        lambda: alerts.bench_windows(),
        lambda: alerts.bench_cost(quick),
        lambda: alert_delays.bench(quick),
        lambda: watch_overhead.bench(2 if quick else 4, 5 if quick else 20),
        lambda: watch_overhead.bench_programs(1 if quick else 4, 10 if quick else 40),
        lambda: startup.bench(5 if quick else 25),
        lambda: top.bench_cost(5 if quick else 20),
        lambda: top.bench_keys(50 if quick else 300),
    ):
        table = make().markdown()
        print(table, flush=True)
        tables.append(table)
    if arguments.write:
        text = PAGE.read_text()
        body = f"Measured on {machine()}.\n\n" + "\n".join(tables)
        marked = re.compile(r"(<!-- tables -->\n).*?(<!-- end of tables -->)", re.DOTALL)
        PAGE.write_text(marked.sub(lambda match: match[1] + body + match[2], text))


if __name__ == "__main__":
    main()

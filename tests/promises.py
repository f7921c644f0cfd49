"""docs/reliability.md, made from the marks of the tests: `make reliability`.

    @pytest.mark.promise("the disk is full for a while", "lines wait in memory and are written in order")

stands on the test that shows it. The page is grouped by the room of the test; `area=` puts a row elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "reliability.md"
AREAS = {
    "The training process": ("trainer/", "integrations/"),
    "The run folder, and sealing": (
        "journal/",
        "test_consistency.py",
        "test_hostile_documents.py",
        "test_faulty_disks.py",
    ),
    "The agent, and what it samples": ("agent/", "sources/", "plugins/", "test_runtime.py"),
    "Alerts": ("alerts/",),
    "The fleet": ("fleet/",),
    "Exporters": ("exporters/", "test_http_client.py"),
    "Other trackers": ("trackers/",),
    "Benchmarks of models": ("bench/",),
    "The page": ("views/web/", "views/test_many_runs.py", "views/test_media.py"),
    "Terminal and commands": ("views/cli/", "views/tui/"),
    "Other machines": ("lab/",),
    "Settings": ("test_settings.py",),
    "Other users": ("test_rights.py", "test_redaction.py"),
}
HEAD = """\
<!-- Made by `make reliability` from the marks of the tests; do not edit. -->
# Reliability

Faults and attacks, what is promised in each case, and the test that proves it. Each row is a mark on that test, so the
page cannot promise anything untested. `make bench-faults` runs long storms of faults (kills, sealing, disks) and prints
how many rows were acknowledged, lost and duplicated; the last figures are in
[performance](performance.md#rows-in-storms-of-faults).
"""


class Promise(NamedTuple):
    """One row."""

    area: str
    fault: str
    promise: str
    test: str
    """Its path below the folder of tests, and its name."""


def read_promises() -> list[Promise]:
    """Of all tests, in the order of the page. Read, not imported: the marks are the same on every machine."""
    found = [promise for path in sorted(TESTS.rglob("test_*.py")) for promise in _read_file(path)]
    return sorted(found, key=lambda promise: list(AREAS).index(promise.area))


def _read_file(path: Path) -> Iterator[Promise]:
    name = path.relative_to(TESTS).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                    fault, promise = (ast.literal_eval(argument) for argument in mark.args)
                    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in mark.keywords}
                    yield Promise(named.get("area") or _find_area(name), fault, promise, f"{name}::{node.name}")


def _find_area(name: str) -> str:
    for area, places in AREAS.items():
        if name.startswith(places):
            return area
    raise ValueError(f"{name} is of no area: say which with area=, or add it to AREAS")


def render() -> str:
    """The page."""
    promises = read_promises()
    lines = [HEAD]
    for area in AREAS:
        lines += [f"## {area}", "", "| fault or attack | promise | test |", "|---|---|---|"]
        for row in promises:
            if row.area == area:
                file, _, test = row.test.partition("::")
                shown = test.removeprefix("test_").replace("_", " ")
                cells = (row.fault, row.promise, f"[{shown}](../tests/{file})")
                lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render())

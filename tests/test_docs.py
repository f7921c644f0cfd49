"""What the documentation says is true: paths exist, snippets run, generated pages are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)


def links(page: Path) -> list[str]:
    """Files of this repository that the page links to."""
    targets = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    return [target for target in targets if not target.startswith(("http:", "https:", "mailto:"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    for target in links(page):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [(page.parent / target).resolve() for target in links(page)]
    assert set(PAGES) - seen == set()


def test_the_metrics_page_is_up_to_date() -> None:
    from trainvitals.catalog import render_markdown

    command = "python -m trainvitals.catalog > docs/metrics.md"
    assert (ROOT / "docs" / "metrics.md").read_text() == render_markdown(), f"run: {command}"


def test_the_page_of_reliability_is_what_the_marks_of_the_tests_say() -> None:
    import promises

    found = promises.read_promises()
    assert len(found) >= 80
    assert len({(row.fault, row.promise) for row in found}) == len(found)
    assert promises.PAGE.read_text() == promises.render(), "run: make reliability"


def test_every_module_on_the_map_exists() -> None:
    from importlib.util import find_spec

    named = set(re.findall(r"`(trainvitals(?:\.[a-z_0-9]+)+)`", (ROOT / "docs" / "architecture.md").read_text()))
    assert len(named) > 40
    assert {name for name in named if find_spec(name) is None} == set()


def test_every_room_is_on_the_map() -> None:
    import trainvitals

    table = (ROOT / "docs" / "architecture.md").read_text().partition("## Rooms")[2].partition("\n## ")[0]
    folder = Path(trainvitals.__file__).parent
    rooms = {path.name for path in folder.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("__")}
    assert {name for name in rooms | modules if f"`trainvitals.{name}" not in table} == set()
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("src/trainvitals/\n")[2].partition("```")[0]
    listed = set(re.findall(r"^  (\w+)(?:/|\.py) ", tree, re.MULTILINE))
    assert listed - {"__init__"} == rooms | modules

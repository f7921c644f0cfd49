"""What the documentation says is true: paths exist, snippets run, generated pages are up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


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

"""`python -m trainvitals.views.deployment [DIR]`: write what is generated, by default into `deploy/` here."""

from __future__ import annotations

import argparse
from pathlib import Path

from trainvitals.conditions import Conditions
from trainvitals.exporters.names import SPELLINGS
from trainvitals.views.deployment import dashboards, kubernetes, rules
from trainvitals.views.deployment.files import folder_of, rules_file


def render_all() -> dict[str, str]:
    """Path inside `deploy/` -> content, of everything that is generated."""
    found = kubernetes.render_all()
    for spelling in SPELLINGS:
        made = {f"{folder_of(spelling)}/{name}": text for name, text in dashboards.build_all(spelling).items()}
        made[rules_file(spelling)] = rules.render(spelling, Conditions())
        found |= made
        # A chart has its files inside it.
        found |= {f"{kubernetes.CHART}/files/{name}": text for name, text in made.items()}
    return found


def main(root: Path) -> None:
    for name, text in render_all().items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m trainvitals.views.deployment", description="Write what is generated.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("deploy"), metavar="DIR")
    main(parser.parse_args().folder)

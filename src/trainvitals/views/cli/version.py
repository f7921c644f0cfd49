"""`trainvitals version`: what is installed. Tested in tests/views/cli/test_main.py."""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version

from trainvitals import __version__
from trainvitals.views.cli.arguments import Parser

EXAMPLES = """
trainvitals version
trainvitals version --json
"""

PACKAGES = ("orjson", "psutil", "nvidia-ml-py", "numpy", "duckdb", "pyyaml", "py-spy", "torch")


def add_arguments(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(arguments: argparse.Namespace) -> int:
    found = read_versions()
    if arguments.json:
        print(json.dumps(found, indent=2))
        return 0
    size = max(map(len, found))
    for name, text in found.items():
        print(f"{name:<{size}}  {text if text is not None else 'not installed'}")
    return 0


def read_versions() -> dict[str, str | None]:
    """trainvitals, Python, platform and the packages; None for one that is not installed."""
    found: dict[str, str | None] = {
        "trainvitals": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found

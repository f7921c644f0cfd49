"""Where is a module tested? In the file of its name, or where it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from long_files import LONG_FILES

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "trainvitals"
MODULES = sorted(path.relative_to(SOURCES) for path in SOURCES.rglob("*.py") if not path.name.startswith("__"))


def list_namesakes(module: Path) -> list[Path]:
    """Of `trainer/watch/clock.py`: trainer/watch/test_clock.py, trainer/test_watch_clock.py, trainer/test_watch.py."""
    *rooms, name = module.with_suffix("").parts
    places = [(rooms, name)]
    if rooms:
        places += [(rooms[:-1], f"{rooms[-1]}_{name}"), (rooms[:-1], rooms[-1])]
    return [Path("tests", *folder, f"test_{stem}.py") for folder, stem in places]


def read_claims(module: Path) -> list[str]:
    """The test files that the module names, or the package that it belongs to (a room is too large to say it)."""
    package = module.parent / "__init__.py"
    speakers = [module, package] if len(module.parts) > 2 and (SOURCES / package).is_file() else [module]
    said = [ast.get_docstring(ast.parse((SOURCES / path).read_text())) or "" for path in speakers]
    return re.findall(r"Tested\s+in\s+(tests/\S+?\.py)\b", " ".join(said))


def test_every_module_has_a_test_file_of_its_name_or_says_where_it_is_tested() -> None:
    lost = [
        str(module)
        for module in MODULES
        if not any((ROOT / path).is_file() for path in list_namesakes(module)) and not read_claims(module)
    ]
    assert lost == [], "add tests/<room>/test_<module>.py, or 'Tested in tests/...' to the docstring"


def test_what_a_module_says_is_true() -> None:
    for module in MODULES:
        for claim in read_claims(module):
            assert (ROOT / claim).is_file(), f"{module} names {claim}"


def test_the_long_files_that_are_to_begin_first_exist() -> None:
    assert [name for name in LONG_FILES if not (ROOT / "tests" / name).is_file()] == []

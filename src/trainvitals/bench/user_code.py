"""The user's own functions, by name. Tested in tests/bench/test_worker.py and tests/bench/test_commits.py."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from trainvitals.bench.commits import CodeTree
from trainvitals.bench.unavailable import Unavailable

_elsewhere: CodeTree | None = None


def import_callable(name: str) -> Any:
    """`module:callable`, looked up in the current folder first."""
    sys.path.insert(0, _find_place(Path.cwd()))
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Unavailable(f"cannot import {name}{_of_commit()}: {error}") from None
    _check_imports()
    return found


def import_from(code: CodeTree, name: str) -> None:
    """From now on import from this commit what would come from the checkout, also what is installed from there in
    place, as `pip install -e` does. `name` is what will be imported."""
    global _elsewhere
    top = name.partition(":")[0].partition(".")[0]
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    _elsewhere = code
    places = [*sys.path]
    if spec is not None:
        # Where an import hook finds it, its folder is on no path.
        places = [*(str(Path(place).parent) for place in spec.submodule_search_locations or ()), *places]
    sys.path[:] = dict.fromkeys(_find_place(Path(place)) for place in places)
    sys.path_importer_cache.clear()


def _find_place(folder: Path) -> str:
    """The same folder of the commit that is imported from, if it is one of the checkout."""
    if _elsewhere is None or not _is_own(folder):
        return str(folder)
    return str(Path(_elsewhere.tree) / folder.absolute().relative_to(_elsewhere.checkout))


def _is_own(path: Path) -> bool:
    """Whether it is code of the checkout, and not of an environment in it."""
    assert _elsewhere is not None
    absolute = path.absolute()
    return (
        absolute.is_relative_to(_elsewhere.checkout)
        and not absolute.is_relative_to(_elsewhere.tree)
        and not {"site-packages", "dist-packages"} & set(absolute.parts)
        and not absolute.is_relative_to(sys.prefix)
    )


def _check_imports() -> None:
    """Else the checkout would be compared with itself."""
    if _elsewhere is None:
        return
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        is_ours = name.partition(".")[0] == "trainvitals"
        # Some of torch's modules say that they are a file of the current folder.
        if file and not is_ours and Path(file).is_absolute() and _is_own(Path(file)):
            raise Unavailable(
                f"the module {name} came from {_elsewhere.checkout} and not from the commit {_elsewhere.commit}: "
                "is it in no commit, or imported by a hook?"
            )


def _of_commit() -> str:
    return f" at commit {_elsewhere.commit}" if _elsewhere is not None else ""

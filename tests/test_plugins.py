"""Registries: our rows first, and those of other packages one by one. What a real package adds: tests/plugins."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import NamedTuple

import pytest

from trainvitals import plugins
from trainvitals.plugins import Registry


class Row(NamedTuple):
    name: str
    number: int = 0


class _Dist(NamedTuple):
    name: str
    version: str = "1"


def entry(name: str, value: str, package: str = "other") -> EntryPoint:
    found = EntryPoint(name, value, "trainvitals.things")
    vars(found)["dist"] = _Dist(package)
    return found


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The module of another package."""
    made = types.ModuleType("things_of_others")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def registry(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> Registry[Row]:
    monkeypatch.setattr(plugins, "declared", lambda group: entries)
    return Registry("things", [Row("ours")], Row)


def test_rows_of_other_packages_come_after_ours(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    module.theirs = Row("theirs", 7)  # type: ignore[attr-defined]
    found = registry(monkeypatch, entry("theirs", "things_of_others:theirs"))
    assert [row.name for row in found] == ["ours", "theirs"]
    assert found["theirs"].number == 7 and found.get("nothing") is None
    with pytest.raises(KeyError, match="nothing is not one of the things: ours, theirs"):
        found["nothing"]


def test_the_first_package_with_a_name_keeps_it(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    module.first, module.second = Row("theirs", 1), Row("theirs", 2)  # type: ignore[attr-defined]
    found = registry(
        monkeypatch,
        entry("theirs", "things_of_others:first", "a"),
        entry("theirs", "things_of_others:second", "b"),
    )
    assert found["theirs"].number == 1
    assert found.error("theirs") == "the name 'theirs' is taken by a: rename the entry point"


def test_a_row_has_the_name_of_its_entry_point(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    module.theirs = Row("another")  # type: ignore[attr-defined]
    found = registry(monkeypatch, entry("theirs", "things_of_others:theirs"))
    assert found.error("theirs") == "ValueError: the entry point is called 'theirs', its Row 'another'"


def test_nothing_is_imported_for_a_name_that_nobody_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    found = registry(monkeypatch, entry("theirs", "a_module_that_is_not_there:row"))
    assert found.get("ours") == Row("ours") and found.get("nothing") is None
    assert found._plugins is None
    assert found.get("theirs") is None and "a_module_that_is_not_there" in str(found.error("theirs"))


def test_a_plugin_may_look_at_the_registry_while_it_is_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "curious_plugin.py").write_text(
        "from test_plugins_registry import REGISTRY, Row\nNAMES = list(REGISTRY)\nROW = Row('curious')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = registry(monkeypatch, entry("curious", "curious_plugin:ROW"))
    shared = types.ModuleType("test_plugins_registry")
    shared.REGISTRY, shared.Row = found, Row  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, shared.__name__, shared)
    assert [row.name for row in found] == ["ours", "curious"]


def test_packages_are_searched_wherever_python_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins._is_any_declared.cache_clear()
    about = tmp_path / "other-1.0.dist-info"
    about.mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "nothing")])
    assert not plugins._is_any_declared()
    plugins._is_any_declared.cache_clear()
    (about / "entry_points.txt").write_text("[trainvitals.sources]\nx = y:z\n")
    assert plugins._is_any_declared()
    plugins._is_any_declared.cache_clear()

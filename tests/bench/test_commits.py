"""A model against the code of another commit, in a repository with its code below a folder of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainvitals.bench.child import ChildFailure, ModelProcess
from trainvitals.bench.commits import check_out
from trainvitals.bench.inputs import parse_inputs
from trainvitals.bench.plan import Plan
from trainvitals.errors import TrainvitalsError

CODE = """import torch
from {package}.layers import make_layers

def make():
    return torch.nn.Sequential(*make_layers({layers}))
"""
LAYERS = "import torch\n\ndef make_layers(count):\n    return [torch.nn.Linear(8, 8) for _ in range(count)]\n"
ONE, SIX = (layers * (8 * 8 + 8) for layers in (1, 6))


def git(*words: str) -> str:
    who = ("-c", "user.email=a@example.com", "-c", "user.name=A")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One layer in its first commit, six in the files; a change that is staged, and a hook that must not run."""
    place = tmp_path / "project"
    package = place / "src" / "netcode"
    package.mkdir(parents=True)
    monkeypatch.chdir(place)
    git("init", "-q")
    (package / "__init__.py").touch()
    (package / "layers.py").write_text(LAYERS)
    (package / "models.py").write_text(CODE.format(package="netcode", layers=1))
    git("add", "--all")
    git("commit", "-q", "-m", "one layer")
    (package / "models.py").write_text(CODE.format(package="netcode", layers=6))
    (place / "notes.txt").write_text("staged\n")
    git("add", "notes.txt")
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'hooked'}\n")
    hook.chmod(0o700)
    return place


def count_parameters(plan: Plan, place: Path) -> Any:
    with ModelProcess(plan, "fp32", 1, (), place) as child:
        return child.load()["parameters"]


@pytest.mark.parametrize("installed", ["on the path", "in place"])
def test_the_code_of_a_commit_is_imported_and_the_checkout_stays_as_it_is(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: str
) -> None:
    if installed == "on the path":
        monkeypatch.setenv("PYTHONPATH", str(checkout / "src"))
    else:  # as setuptools does: by a hook that knows the folder
        site = tmp_path / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(
            "import importlib.util, sys\n"
            "class Finder:\n"
            "    @staticmethod\n"
            "    def find_spec(name, path=None, target=None):\n"
            f"        place = {str(checkout / 'src' / 'netcode')!r}\n"
            "        if name == 'netcode':\n"
            "            return importlib.util.spec_from_file_location(\n"
            "                name, place + '/__init__.py', submodule_search_locations=[place])\n"
            "sys.meta_path.append(Finder)\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(site))
    before = (checkout / ".git" / "index").read_bytes(), git("status", "--short"), git("worktree", "list")
    code = check_out("HEAD", tmp_path / "commit")
    plan = Plan("netcode.models:make", inputs=parse_inputs("1x8"), against_code=code)
    assert count_parameters(plan, tmp_path) == SIX
    assert count_parameters(plan.baseline, tmp_path) == ONE
    assert (Path(code.tree) / "src/netcode/models.py").read_text() == CODE.format(package="netcode", layers=1)
    assert not (Path(code.tree) / "notes.txt").exists()
    assert before == ((checkout / ".git" / "index").read_bytes(), git("status", "--short"), git("worktree", "list"))
    assert not (tmp_path / "hooked").exists()


def test_code_that_is_in_no_commit_is_not_compared_with_itself(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(checkout / "src"))
    (checkout / "src" / "netcode" / "new.py").write_text(CODE.format(package="netcode", layers=2))
    plan = Plan("netcode.new:make", inputs=parse_inputs("1x8"), against_code=check_out("HEAD", tmp_path / "commit"))
    with pytest.raises(ChildFailure, match=r"cannot import netcode\.new:make at commit"):
        count_parameters(plan.baseline, tmp_path)


def test_a_file_of_the_repository_is_that_of_the_commit(checkout: Path, tmp_path: Path) -> None:
    code = check_out("HEAD", tmp_path / "commit")
    inside, outside = checkout / "model.onnx", tmp_path / "model.onnx"
    for path in (inside, outside):
        path.touch()
    assert Plan("model.onnx", against_code=code).baseline.target == f"{code.tree}/model.onnx"
    assert Plan(str(outside), against_code=code).baseline.target == str(outside)


def test_what_is_no_commit_is_said(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nothing", "-x", "HEAD:src"):
        with pytest.raises(TrainvitalsError, match=f"no commit '{name}' in {checkout}"):
            check_out(name, tmp_path / "commit")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainvitalsError, match="--against-commit needs a git repository"):
        check_out("HEAD", tmp_path / "commit")

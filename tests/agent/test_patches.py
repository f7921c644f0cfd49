"""The git patch of a run: kept once per attempt, by the agent, of a real repository."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from made_contexts import make_context
from repositories import git, make_repository
from waiting import wait_until

from trainvitals.agent import patches as agent_patches
from trainvitals.agent.patches import MOST_UNPACKED, Patches, has_packed_secret, keep_patch
from trainvitals.agent.run_context import RunContext
from trainvitals.journal.contracts import Patch
from trainvitals.journal.documents.patch import PatchFile
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.encoding import format_time
from trainvitals.journal.patches import list_patches

READY = "print('ready', flush=True)\nsys.stdin.readline()\n"
SECRET = "ghp_aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
NOBODY = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


def keep(repository: Path, folder: Path, **about: Any) -> Patch:
    folder.mkdir(mode=0o700, exist_ok=True)
    commit = git(repository, "rev-parse", "HEAD")
    keep_patch(folder, PatchFile(**{"commit": commit, "limit_kb": 256, **about}), repository)
    return list_patches(folder)[-1]


def test_a_resumed_run_has_a_patch_of_each_attempt(machine: Any, repository: Path) -> None:
    (repository / "train.py").write_text(f"lr = 2\ntoken = '{SECRET}'\n")
    (repository / "new.py").write_text("x = 1\n")
    machine.start_agent(**NOBODY)
    chdir = f"os.chdir({str(repository)!r})"
    first = machine.train(READY, env=NOBODY, before=chdir)
    first.wait_until_ready()
    (found,) = wait_until(lambda: list_patches(first.folder), "the patch")
    assert b"-lr = 1\n+lr = 2\n+token = '[redacted]'\n" in found.read()
    assert (found.about.redacted, found.about.untracked) == (1, ("new.py",))
    assert found.about.commit == git(repository, "rev-parse", "HEAD")
    kept = found.read()
    first.go()
    first.wait_for_end()
    (repository / "train.py").write_text("lr = 3\n")
    second = machine.train(READY, env=NOBODY, before=chdir, resume=first.folder.name)
    second.wait_until_ready()
    assert second.folder == first.folder
    wait_until(lambda: len(list_patches(first.folder)) == 2, "the patch of the second attempt")
    assert list_patches(first.folder)[0].read() == kept
    assert b"+lr = 3\n" in list_patches(first.folder)[1].read()
    second.go()
    second.wait_for_end()


def test_a_patch_that_is_too_large_is_not_kept(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n" * 1000)
    (repository / "new.py").touch()
    found = keep(repository, tmp_path / "run", limit_kb=1)
    assert found.about.reason == "larger than 1 KB" and found.about.untracked == ("new.py",)
    assert [path.name for path in (tmp_path / "run" / "patches").iterdir()] == ["attempt1.json"]


def test_a_patch_with_changed_binary_files_applies(repository: Path, tmp_path: Path) -> None:
    data = bytes(range(256)) * 9
    (repository / "weights.bin").write_bytes(data)
    git(repository, "add", "weights.bin")
    found = keep(repository, tmp_path / "run")
    git(repository, "clone", "-q", str(repository), str(tmp_path / "clone"))
    (tmp_path / "patch").write_bytes(found.read())
    git(tmp_path / "clone", "apply", str(tmp_path / "patch"))
    assert (tmp_path / "clone" / "weights.bin").read_bytes() == data


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_secret_in_a_binary_file_is_not_kept(repository: Path, tmp_path: Path, encoding: str) -> None:
    (repository / "state.bin").write_bytes(b"\0\1" + SECRET.encode(encoding) + b"\0\2")
    git(repository, "add", "state.bin")
    found = keep(repository, tmp_path / "run")
    assert found.about.missing == "secret" and "a secret" in found.about.reason
    assert not (tmp_path / "run" / "patches" / "attempt1.diff").exists()


def test_a_binary_file_that_unpacks_to_very_much_is_not_looked_through(repository: Path, tmp_path: Path) -> None:
    (repository / "zeros.bin").write_bytes(bytes(MOST_UNPACKED + 1))
    git(repository, "add", "zeros.bin")
    assert keep(repository, tmp_path / "run").about.missing == "secret"
    assert has_packed_secret(b"GIT binary patch\nliteral 3\nCnot base85 ~~~~\n")


def look(context: RunContext, repository: Path, **about: Any) -> None:
    state = {"root": str(repository), "commit": git(repository, "rev-parse", "HEAD"), "dirty": True}
    run = {"attempt": 1, "git": state, "started": format_time(), "process": {"host": "here"}, **about}
    Patches(context).look(RunFile.parse(run), 1)


def test_nothing_is_kept_of_a_clean_tree_another_host_or_if_it_is_switched_off(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Path] = []
    monkeypatch.setattr(agent_patches, "keep_patch", lambda folder, *_: kept.append(folder))
    look(make_context(tmp_path / "off", git_patch_kb=0), repository)
    known = {"root": str(repository), "commit": git(repository, "rev-parse", "HEAD")}
    for place, about in {
        "elsewhere": {"process": {"host": "another"}},
        "clean": {"git": {**known, "dirty": False}},
        "unknown": {"git": known},
        "none": {"git": None},
        "before": {"attempt": 2},
    }.items():
        look(make_context(tmp_path / place), repository, **about)
    look(make_context(tmp_path / "changed"), repository)
    wait_until(lambda: tmp_path / "changed" in kept, "the one that is kept")
    assert kept == [tmp_path / "changed"]


def test_a_run_that_is_found_late_gets_no_patch_of_files_that_may_be_newer(repository: Path, tmp_path: Path) -> None:
    (repository / "train.py").write_text("lr = 2\n")
    context = make_context(tmp_path)
    look(context, repository, started="2020-01-01T00:00:00Z")
    (found,) = wait_until(lambda: list_patches(context.folder), "the reason")
    assert found.about.missing == "late"
    look(context, repository)  # another agent: what is known stays
    assert list_patches(context.folder)[0].about == found.about

"""What is read from git's files is what git itself says."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from repositories import ENVIRON, git, make_repository
from waiting import PATIENCE

from trainvitals import runtime
from trainvitals.trainer import git as git_facts
from trainvitals.trainer.git import find_repository, read_git, read_head


@pytest.fixture(autouse=True)
def time_for_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that is slow on a busy machine is not what these tests are about."""
    monkeypatch.setattr(git_facts, "STATUS_TIMEOUT", PATIENCE)
    monkeypatch.setattr(git_facts, "PATCH_TIMEOUT", PATIENCE)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return make_repository(tmp_path / "project")


def stand_in(folder: Path, script: str) -> dict[str, str]:
    """An environment whose git is this script."""
    folder.mkdir()
    program = folder / "git"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return ENVIRON | {"PATH": f"{folder}{os.pathsep}{ENVIRON['PATH']}"}


def test_a_clean_work_tree(repository: Path) -> None:
    assert read_git(repository, ENVIRON) == {
        "root": str(repository),
        "commit": git(repository, "rev-parse", "HEAD"),
        "branch": "main",
        "dirty": False,
    }


def test_a_folder_inside_the_work_tree(repository: Path) -> None:
    inner = repository / "a" / "b"
    inner.mkdir(parents=True)
    assert read_git(inner, ENVIRON)["root"] == str(repository)


def test_changed_and_staged_files_make_it_dirty_and_untracked_ones_do_not(repository: Path) -> None:
    (repository / "notes.txt").write_text("new")
    assert read_git(repository, ENVIRON)["dirty"] is False
    (repository / "train.py").write_text("lr = 2\n")
    assert read_git(repository, ENVIRON)["dirty"] is True
    git(repository, "add", "train.py")
    assert read_git(repository, ENVIRON)["dirty"] is True


def test_outside_a_repository_there_is_nothing(tmp_path: Path) -> None:
    assert read_git(tmp_path, ENVIRON) == {}
    (tmp_path / ".git").mkdir()
    assert read_git(tmp_path, ENVIRON) == {}, "an empty folder of that name is no repository"


def test_before_the_first_commit_there_is_only_a_branch(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    found = find_repository(tmp_path)
    assert found is not None
    assert read_head(found) == (None, "main")
    assert "commit" not in read_git(tmp_path, ENVIRON)


def test_a_detached_head_has_no_branch(repository: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    facts = read_git(repository, ENVIRON)
    assert facts["commit"] == git(repository, "rev-parse", "HEAD")
    assert "branch" not in facts


def test_packed_references_are_read(repository: Path) -> None:
    git(repository, "checkout", "-q", "-b", "topic/lr.1")
    git(repository, "branch", "topic-lr")
    git(repository, "pack-refs", "--all")
    shutil.rmtree(repository / ".git" / "refs" / "heads" / "topic", ignore_errors=True)
    found = find_repository(repository)
    assert found is not None
    assert read_head(found) == (git(repository, "rev-parse", "HEAD"), "topic/lr.1")


def test_a_linked_work_tree_has_its_own_head(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(repository, "worktree", "add", "-q", "-b", "experiment", str(other))
    (other / "train.py").write_text("lr = 3\n")
    git(other, "commit", "-q", "-a", "-m", "second")
    facts = read_git(other, ENVIRON)
    assert facts["commit"] == git(other, "rev-parse", "HEAD") != git(repository, "rev-parse", "HEAD")
    assert (facts["branch"], facts["root"], facts["dirty"]) == ("experiment", str(other), False)
    git(repository, "pack-refs", "--all")
    assert read_git(other, ENVIRON) == facts


def test_a_submodule_is_its_own_repository(repository: Path, tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(repository), "inner")
    facts = read_git(outer / "inner", ENVIRON)
    assert facts["commit"] == git(repository, "rev-parse", "HEAD")
    assert facts["root"] == str(outer / "inner")


def test_a_repository_with_sha256_names(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    commit = read_git(tmp_path, ENVIRON)["commit"]
    assert commit == git(tmp_path, "rev-parse", "HEAD")
    assert len(str(commit)) == 64


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:CANARY@github.com/a/b.git", "https://[redacted]@github.com/a/b.git"),
        ("https://ghp_CANARYabcdefghijklmnop@github.com/a/b", "https://[redacted]@github.com/a/b"),
        ("git@github.com:a/b.git", "git@github.com:a/b.git"),
        ("/srv/git/b.git", "/srv/git/b.git"),
    ],
)
def test_the_remote_comes_without_its_credentials(repository: Path, url: str, shown: str) -> None:
    git(repository, "remote", "add", "upstream", "https://example.com/up.git")
    git(repository, "remote", "add", "origin", url)
    assert read_git(repository, ENVIRON)["remote"] == shown


def test_the_first_remote_counts_where_none_is_called_origin(repository: Path) -> None:
    git(repository, "remote", "add", "upstream", "https://example.com/up.git")
    assert read_git(repository, ENVIRON)["remote"] == "https://example.com/up.git"


def test_without_the_program_all_but_dirty_is_known(repository: Path, tmp_path: Path) -> None:
    facts = read_git(repository, {"PATH": str(tmp_path)})
    assert set(facts) == {"root", "commit", "branch"}


def test_a_git_that_fails_leaves_dirty_unknown(repository: Path, tmp_path: Path) -> None:
    assert "dirty" not in read_git(repository, stand_in(tmp_path / "bin", "echo dirty; exit 128"))


@pytest.mark.promise("`git` hangs when a run starts", "it is killed; the run starts without git information")
def test_a_git_that_hangs_is_ended_and_leaves_dirty_unknown(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid_file = tmp_path / "pid"
    environ = stand_in(tmp_path / "bin", f"echo $$ > {pid_file}; exec sleep 6000")
    for seconds in (2.0, 20.0, 200.0):  # more where the shell was not even up in that time
        monkeypatch.setattr(git_facts, "STATUS_TIMEOUT", seconds)
        assert set(read_git(repository, environ)) == {"root", "commit", "branch"}
        if pid_file.exists() and pid_file.read_text():
            break
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_references_in_another_format_are_asked_of_git(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    # What a repository with the reftable format has in HEAD, for programs that read files.
    (repository / ".git" / "HEAD").write_text("ref: refs/heads/.invalid\n")
    script = f'case "$*" in *rev-parse*) printf "{commit}\\nmain\\n" ;; esac'
    facts = read_git(repository, stand_in(tmp_path / "bin", script))
    assert (facts["commit"], facts["branch"], facts["dirty"]) == (commit, "main", False)
    assert "branch" not in read_git(repository, {"PATH": str(tmp_path)})


def test_git_is_asked_without_locks_hooks_or_a_folder_from_elsewhere(repository: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    script = f'echo "$*" > {seen}; env >> {seen}; pwd >> {seen}'
    environ = stand_in(tmp_path / "bin", script) | {
        "GIT_DIR": "/elsewhere",
        "GIT_INDEX_FILE": "/elsewhere/index",
    }
    read_git(repository, environ)
    lines = seen.read_text().splitlines()
    safe = "-c core.fsmonitor=false -c core.hooksPath=/dev/null"
    assert lines[0] == f"-C {repository} {safe} status --porcelain --untracked-files=no"
    assert "GIT_OPTIONAL_LOCKS=0" in lines
    assert not any(line.startswith(("GIT_DIR=", "GIT_INDEX_FILE=")) for line in lines)


@pytest.mark.parametrize(
    "head",
    ["", "rubbish", "ref: ../../etc/passwd", "ref: refs/../../../etc/passwd", "ref: refs/heads/none", "\0"],
)
def test_an_odd_head_is_no_commit(repository: Path, tmp_path: Path, head: str) -> None:
    (repository / ".git" / "HEAD").write_text(head)
    assert "commit" not in read_git(repository, {"PATH": str(tmp_path)})


def test_references_that_go_round_in_circles_end(repository: Path, tmp_path: Path) -> None:
    (repository / ".git" / "refs" / "heads" / "main").write_text("ref: refs/heads/main\n")
    assert "commit" not in read_git(repository, {"PATH": str(tmp_path)})


def test_a_pointer_to_nowhere_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere/at/all\n")
    assert read_git(tmp_path, ENVIRON) == {}
    (tmp_path / ".git").write_text("something else\n")
    assert read_git(tmp_path, ENVIRON) == {}


def test_a_patch_makes_the_same_files_from_a_clean_checkout(repository: Path, tmp_path: Path) -> None:
    (repository / "gone.txt").write_text("x\n")
    (repository / "raw.bin").write_bytes(bytes(range(256)))
    (repository / "old.txt").write_bytes("größe\r\n".encode("latin-1"))
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    (repository / "train.py").write_text("lr = 2  # größer\n")
    (repository / "raw.bin").write_bytes(bytes(range(255, -1, -1)) * 3)
    (repository / "gone.txt").unlink()
    (repository / "staged file.py").write_text("new = True")
    git(repository, "add", "staged file.py")
    (repository / "untracked.py").write_text("no = True\n")
    for name in ("diff.noprefix", "diff.relative", "diff.mnemonicPrefix"):
        git(repository, "config", name, "true")
    (repository / "old.txt").write_bytes("grö\xdfer\r\n".encode("latin-1"))
    patch = git_facts.read_patch(repository, git(repository, "rev-parse", "HEAD"), ENVIRON, 100_000)
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "-q", str(repository), str(checkout))
    (tmp_path / "patch").write_bytes(patch)
    git(checkout, "apply", str(tmp_path / "patch"))

    def files(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    assert files(checkout) == {name: data for name, data in files(repository).items() if name != "untracked.py"}


def test_a_patch_is_of_the_commit_that_the_run_has_recorded(repository: Path) -> None:
    before = git(repository, "rev-parse", "HEAD")
    (repository / "train.py").write_text("lr = 2\n")
    git(repository, "commit", "-q", "-a", "-m", "second")
    assert b"+lr = 2" in git_facts.read_patch(repository, before, ENVIRON, 100_000)


def why_no_patch(root: Path, commit: str, environ: dict[str, str], most_bytes: int = 100_000) -> str:
    with pytest.raises(git_facts.NoPatch) as caught:
        git_facts.read_patch(root, commit, environ, most_bytes)
    return str(caught.value)


def test_why_there_is_no_patch(repository: Path, tmp_path: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert why_no_patch(repository, commit, ENVIRON) == "empty"
    (repository / "train.py").write_text("lr = 2\n" * 1000)
    size = len(git_facts.read_patch(repository, commit, ENVIRON, 100_000))
    assert len(git_facts.read_patch(repository, commit, ENVIRON, size)) == size
    assert why_no_patch(repository, commit, ENVIRON, size - 1) == "too_large"
    assert why_no_patch(tmp_path, commit, ENVIRON) == "failed"
    assert why_no_patch(tmp_path / "nowhere", commit, ENVIRON) == "failed"
    assert why_no_patch(repository, "--output=x", ENVIRON) == "failed"
    assert why_no_patch(repository, "0" * 40, ENVIRON) == "failed"
    assert why_no_patch(repository, commit, {**ENVIRON, "PATH": str(tmp_path)}) == "failed"


@pytest.mark.promise("an endless diff, or git hangs", "it is read up to the limit, and git is killed")
def test_git_that_prints_or_waits_without_end_is_ended(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = tmp_path / "pid"
    commit = git(repository, "rev-parse", "HEAD")
    answer = f'case "$*" in *config*) exit 0;; esac; echo $$ > {pid}; '
    endless = stand_in(tmp_path / "endless", answer + "exec cat /dev/zero")
    assert why_no_patch(repository, commit, endless) == "too_large"
    assert not runtime.is_same_process(int(pid.read_text()), None)
    hanging = stand_in(tmp_path / "hanging", answer + "exec sleep 600")
    monkeypatch.setattr(git_facts, "_list_filters", lambda *_: [])  # which may take longer than this on a busy machine
    monkeypatch.setattr(git_facts, "PATCH_TIMEOUT", 0.5)
    assert why_no_patch(repository, commit, hanging) == "timeout"
    assert not runtime.is_same_process(int(pid.read_text()), None)


def test_a_huge_changed_file_takes_no_memory(repository: Path) -> None:
    with open(repository / "huge.bin", "wb") as file:
        file.truncate(300 << 20)  # a hole: no disk either
    git(repository, "add", "-N", "huge.bin")
    assert why_no_patch(repository, git(repository, "rev-parse", "HEAD"), ENVIRON, 1000) in ("failed", "too_large")


def test_untracked_files_are_named_and_counted_up_to_a_limit(repository: Path) -> None:
    assert git_facts.read_untracked(repository, ENVIRON, 10) == ([], False)
    (repository / ".gitignore").write_text("*.log\n")
    (repository / "train.log").touch()
    (repository / "new.py").touch()
    (repository / "data").mkdir()
    (repository / "data" / "loop").symlink_to(repository)
    for number in range(50):
        (repository / "data" / f"{number}.csv").touch()
    assert git_facts.read_untracked(repository, ENVIRON, 10) == ([".gitignore", "data/", "new.py"], False)
    assert git_facts.read_untracked(repository, ENVIRON, 2) == ([".gitignore", "data/"], True)


@pytest.mark.promise("a repository configures programs (filters, hooks)", "reading its state runs none of them")
def test_a_hostile_repository_starts_no_program(repository: Path, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 $@ >> {mark}\ncat\n")
    program.chmod(0o755)
    for name in (
        *("core.fsmonitor", "diff.external", "diff.evil.command", "diff.evil.textconv", "core.pager", "pager.diff"),
        *("filter.evil.clean", "filter.evil.smudge", "filter.evil.process", "filter.a=b.clean", "core.sshCommand"),
    ):
        git(repository, "config", name, str(program))
    git(repository, "config", "filter.evil.required", "true")
    (repository / ".git" / "info").mkdir(exist_ok=True)
    (repository / ".git" / "info" / "attributes").write_text("*.py diff=evil filter=evil\n*.txt filter=a=b\n")
    for hook in ("post-index-change", "fsmonitor-watchman", "pre-commit"):
        shutil.copy(program, repository / ".git" / "hooks" / hook)
    commit = git(repository, "rev-parse", "HEAD")
    (repository / "train.py").write_text("lr = 3\n")
    (repository / ".gitattributes").write_text("*.txt diff=evil\n")
    assert read_git(repository, ENVIRON)["dirty"] is True
    patch = git_facts.read_patch(repository, commit, ENVIRON, 100_000)
    assert b"-lr = 1\n+lr = 3\n" in patch
    assert ".gitattributes" in git_facts.read_untracked(repository, ENVIRON, 10)[0]
    assert not mark.exists(), mark.read_text()
    for trap in ("status", "diff"):
        subprocess.run(["git", trap], cwd=repository, env=ENVIRON, capture_output=True, check=False)
        assert mark.exists(), "the trap works"
        mark.unlink()

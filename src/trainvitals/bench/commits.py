"""The files of a commit beside the user's checkout, which is left as it is: no branch is changed, no worktree is made,
no hook is run. Tested in tests/bench/test_commits.py."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from trainvitals.errors import TrainvitalsError


class CodeTree(NamedTuple):
    """A commit whose files are in a folder."""

    commit: str
    """The first digits of its name."""
    checkout: str
    """The top folder of the repository."""
    tree: str
    """Where its files are as they were in that commit."""


def check_out(commit: str, place: Path) -> CodeTree:
    """Write the files of this commit, of the repository of the current folder, into `place`. Raises
    TrainvitalsError."""
    try:
        checkout = _git("rev-parse", "--show-toplevel")
    except TrainvitalsError:
        raise TrainvitalsError(
            "--against-commit needs a git repository", hint=f"{Path.cwd()} is in none: change to the folder of the code"
        ) from None
    try:
        found = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    except TrainvitalsError:
        raise TrainvitalsError(f"no commit '{commit}' in {checkout}", hint="list them: git log --oneline") from None
    tree = place / "tree"
    tree.mkdir(parents=True)
    # An index of its own: that of the checkout has what the user has staged.
    index = {"GIT_INDEX_FILE": str(place / "index")}
    _git("read-tree", found, folder=checkout, **index)
    _git("checkout-index", "--all", "--quiet", f"--prefix={tree}/", folder=checkout, **index)
    return CodeTree(found[:12], checkout, str(tree))


def _git(*arguments: str, folder: str = ".", **environment: str) -> str:
    command = ["git", "-C", folder, "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *arguments]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise TrainvitalsError("git is not installed") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise TrainvitalsError(f"git {arguments[0]} failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return done.stdout.strip()

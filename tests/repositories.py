"""A git repository with one commit, of nobody and with no settings of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# Nobody's own configuration, and no repository around the test's folder.
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}


def git(folder: Path, *arguments: str) -> str:
    """What it prints."""
    done = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always", *arguments],
        cwd=folder,
        env=ENVIRON,
        capture_output=True,
        check=True,
        text=True,
    )
    return done.stdout.strip()


def make_repository(folder: Path) -> Path:
    """With `train.py` in its only commit."""
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "train.py").write_text("lr = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    return folder

"""The git state of the folder a training was started in.

Commit, branch and remote are read from git's own files: no process, no lock. Only whether tracked files were
changed needs the git command, and it gets two seconds. What was changed is read by the agent, which has more time.

A look at a repository starts none of the programs that its configuration names.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainvitals.redaction import redact_text

STATUS_TIMEOUT = 2.0
PATCH_TIMEOUT = 60.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAX_BYTES = 50_000_000
_MAX_NAMES_BYTES = 64 << 10
_MEMORY = {"GIT_ALLOC_LIMIT": "256m"}
"""The most that git may ask for at once: it packs a changed binary file, however large, in memory."""


class Repository(NamedTuple):
    """Where a work tree keeps its files: linked work trees share all but HEAD."""

    root: Path
    git_dir: Path
    common_dir: Path


def read_git(cwd: Path, environ: Mapping[str, str]) -> dict[str, object]:
    """`root`, `commit`, `branch`, `remote` (without credentials) and `dirty` of the repository around `cwd`.

    What is unknown is absent: the branch on a detached HEAD, the commit before the first, `dirty` if git
    is missing, refuses or takes too long, and everything outside a repository.
    """
    repository = find_repository(cwd)
    if repository is None:
        return {}
    commit, branch = read_head(repository)
    if commit is None:  # another format of references (reftable), which only git itself reads
        commit, branch = _ask_head(repository, environ)
    status = run_git(["status", "--porcelain", "--untracked-files=no"], repository.root, environ)
    found = {
        "root": str(repository.root),
        "commit": commit,
        "branch": branch,
        "remote": read_remote(repository),
        "dirty": None if status is None else bool(status.strip()),
    }
    return {name: value for name, value in found.items() if value is not None}


class NoPatch(Exception):
    """Why there is no patch: one of the reasons of `trainvitals.journal.documents.patch`."""


def read_patch(root: Path, commit: str, environ: Mapping[str, str], most_bytes: int) -> bytes:
    """What `git apply` needs to make the tracked files in `root` from `commit`. Raises NoPatch. Takes up to
    PATCH_TIMEOUT, and for ever on a file server that is gone."""
    flags = ["--patch", "--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"]
    flags += ["--no-relative", "--ignore-submodules=all", "--src-prefix=a/", "--dst-prefix=b/", "--unified=3"]
    if not _COMMIT.fullmatch(commit):
        raise NoPatch("failed")
    patch = _read_output(["diff", *flags, commit, "--"], root, environ, most_bytes + 1)
    if len(patch) > most_bytes:
        raise NoPatch("too_large")
    if not patch:
        raise NoPatch("empty")
    return patch


def read_untracked(root: Path, environ: Mapping[str, str], most: int) -> tuple[list[str], bool]:
    """The names of files that git does not know and is not told to ignore, a folder of them as one with a slash at its
    end; and whether there are more than `most`. Raises NoPatch."""
    arguments = ["ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory", "-z"]
    listed = _read_output(arguments, root, environ, _MAX_NAMES_BYTES)
    names = listed.decode("utf-8", "replace").split("\0")[:-1]  # what follows the last is empty, or was cut
    return names[:most], len(names) > most or len(listed) == _MAX_NAMES_BYTES


def find_repository(start: Path) -> Repository | None:
    """The repository around a folder."""
    for folder in (start, *start.parents):
        entry = folder / ".git"
        git_dir = entry
        pointer = _read(entry)
        if pointer is not None:  # a linked work tree or a submodule: a file that names the real place
            if not pointer.startswith("gitdir:"):
                continue
            git_dir = folder / pointer.removeprefix("gitdir:").strip()
        if _read(git_dir / "HEAD") is None:
            continue
        common = _read(git_dir / "commondir")
        return Repository(folder, git_dir, git_dir / common.strip() if common else git_dir)
    return None


def read_head(repository: Repository) -> tuple[str | None, str | None]:
    """(commit, branch)."""
    text = (_read(repository.git_dir / "HEAD") or "").strip()
    branch = None
    for _ in range(5):  # a reference may name another one
        if _COMMIT.fullmatch(text):
            return text, branch
        reference = text.removeprefix("ref:").strip()
        if reference == text or not reference.startswith("refs/") or ".." in reference:
            break
        branch = branch or reference.removeprefix("refs/heads/")
        text = _read_reference(repository, reference).strip()
    return None, branch if branch != ".invalid" else None


def _read_reference(repository: Repository, reference: str) -> str:
    for folder in (repository.git_dir, repository.common_dir):
        text = _read(folder / reference)
        if text is not None:
            return text
    packed = _read(repository.common_dir / "packed-refs") or ""
    match = re.search(rf"^([0-9a-f]+) {re.escape(reference)}$", packed, re.MULTILINE)
    return match[1] if match else ""


def read_remote(repository: Repository) -> str | None:
    """The address of `origin`, or of the first remote; None without one."""
    remotes: dict[str, str] = {}
    section = None
    for line in (_read(repository.common_dir / "config") or "").splitlines():
        if match := re.match(r'\s*\[\s*(\w+)(?:\s+"(.*)")?\s*\]', line):
            section = match[2] if match[1].lower() == "remote" else None
        elif section and (match := re.match(r"\s*url\s*=\s*(.+)", line, re.IGNORECASE)):
            remotes.setdefault(section, match[1].strip().strip('"'))
    url = remotes.get("origin", next(iter(remotes.values()), None))
    return None if url is None else redact_text(url)


def _read(path: Path) -> str | None:
    """The file's text; None if it is not a readable file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return None


def _ask_head(repository: Repository, environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    answer = run_git(["rev-parse", "HEAD", "--abbrev-ref", "HEAD"], repository.root, environ) or ""
    commit, _, branch = answer.strip().partition("\n")
    if not _COMMIT.fullmatch(commit):
        return None, None
    return commit, branch if branch != "HEAD" else None


def run_git(arguments: list[str], folder: Path, environ: Mapping[str, str]) -> str | None:
    """The output of a git command; None if it fails, is missing, or takes longer than STATUS_TIMEOUT."""
    filters = _list_filters(folder, environ, STATUS_TIMEOUT)
    return None if filters is None else _run_git(arguments, folder, environ, STATUS_TIMEOUT, filters)


def _list_filters(folder: Path, environ: Mapping[str, str], seconds: float) -> list[str] | None:
    """Those of the repository's own configuration; those of the user are the user's, such as git-lfs."""
    listed = _run_git(["config", "--list", "--show-scope", "--name-only", "-z"], folder, environ, seconds)
    if listed is None:
        return None
    words = listed.split("\0")
    own = [name for scope, name in zip(words[::2], words[1::2], strict=False) if scope in ("local", "worktree")]
    return sorted({name.rpartition(".")[0] for name in own if name.startswith("filter.")})


def _run_git(
    arguments: list[str], folder: Path, environ: Mapping[str, str], seconds: float, filters: Sequence[str] = ()
) -> str | None:
    try:
        process = _start_git(arguments, folder, environ, filters)
    except (OSError, ValueError):
        return None
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            process.communicate(timeout=STATUS_TIMEOUT)
        except subprocess.TimeoutExpired:
            pass  # it hangs in the kernel, on a dead file server; the training must not wait for it
        return None
    return output.decode("utf-8", "replace") if process.returncode == 0 else None


def _read_output(arguments: list[str], folder: Path, environ: Mapping[str, str], most: int) -> bytes:
    """At most this many bytes of the output of a git command, which is ended if it has more. Raises NoPatch."""
    filters = _list_filters(folder, environ, PATCH_TIMEOUT)
    try:
        if filters is None:
            raise NoPatch("failed")
        process = _start_git(arguments, folder, {**environ, **_MEMORY}, filters)
    except (OSError, ValueError) as error:
        raise NoPatch("failed") from error
    late = threading.Event()

    def end() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(PATCH_TIMEOUT, end)
    timer.daemon = True
    timer.start()
    with process:
        assert process.stdout is not None
        output = process.stdout.read(most)
        if len(output) == most:
            process.kill()
    timer.cancel()
    if len(output) < most and process.returncode:
        raise NoPatch("timeout" if late.is_set() else "failed")
    return output


def _start_git(
    arguments: list[str], folder: Path, environ: Mapping[str, str], filters: Sequence[str]
) -> subprocess.Popen[bytes]:
    """With these filters switched off. Raises OSError and ValueError."""
    elsewhere = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_DIFF_OPTS")
    environment = {name: value for name, value in environ.items() if name not in elsewhere}
    # Nothing is fetched either: the configuration of a partial clone names the program that would do it.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    # A filter that is empty is none. As variables: the name of one may contain what separates an argument.
    off = {"clean": "", "smudge": "", "process": "", "required": "false"}
    settings = [(f"{name}.{key}", value) for name in filters for key, value in off.items()]
    count = environ.get("GIT_CONFIG_COUNT", "")
    first = int(count) if count.isdecimal() else 0
    for place, (name, value) in enumerate(settings, first):
        environment |= {f"GIT_CONFIG_KEY_{place}": name, f"GIT_CONFIG_VALUE_{place}": value}
    if settings:
        environment["GIT_CONFIG_COUNT"] = str(first + len(settings))
    return subprocess.Popen(
        # A repository's configuration may name programs for fsmonitor and hooks: a look must not start them. The folder
        # is entered by git itself: a file server that is gone would otherwise hold up all threads of this process.
        ["git", "-C", str(folder), "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

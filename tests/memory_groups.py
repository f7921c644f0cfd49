"""Control groups with a memory limit, version 1 or 2, where this user may make them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import wait_until


@contextmanager
def memory_group(limit: int) -> Iterator[Path]:
    """A group of this many bytes, removed once it is empty."""
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    parent = old if (old / "memory.limit_in_bytes").exists() else new
    if not os.access(parent, os.W_OK) or not (parent is old or (parent / "cgroup.controllers").exists()):
        message = "no right to make a control group here"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    group = parent / f"trainvitals-test-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if parent is old else "memory.max")).write_text(str(limit))
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "an empty control group")
    group.rmdir()

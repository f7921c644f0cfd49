"""Whose process it is, out of a made-up /proc: users, Slurm jobs, containers and pods."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from trainvitals.journal.documents.job import Job
from trainvitals.sources.process_owner import ProcessOwner, read_owner

CONTAINER = "4f" * 32


def make(root: Path, group: str, environment: dict[str, str] | None = None) -> None:
    folder = root / "7"
    folder.mkdir()
    (folder / "cgroup").write_text(group)
    (folder / "comm").write_text("python train\n")
    if environment is not None:
        (folder / "environ").write_bytes(b"".join(f"{name}={text}\0".encode() for name, text in environment.items()))


@pytest.mark.parametrize(
    ("group", "environment", "expected"),
    [
        ("0::/user.slice/user-1000.slice/session-2.scope\n", {"HOME": "/root"}, {}),
        ("0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n", None, {"slurm": "4711"}),
        ("3:memory:/slurm/uid_1000/job_12/step_batch\n1:name=systemd:/\n", None, {"slurm": "12"}),
        ("0::/init.scope\n", {"SLURM_JOB_ID": "99"}, {"slurm": "99"}),
        (f"0::/system.slice/docker-{CONTAINER}.scope\n", {"HOSTNAME": "box"}, {"container": CONTAINER[:12]}),
        (f"4:devices:/docker/{CONTAINER}\n", None, {"container": CONTAINER[:12]}),
        (f"0::/machine.slice/libpod-{CONTAINER}.scope/container\n", None, {"container": CONTAINER[:12]}),
        (
            f"0::/kubepods.slice/kubepods-pod0a1b.slice/cri-containerd-{CONTAINER}.scope\n",
            {"HOSTNAME": "trainer-0", "POD_NAMESPACE": "research"},
            {"container": CONTAINER[:12], "pod": "trainer-0", "namespace": "research"},
        ),
        (
            f"0::/kubepods/burstable/pod0a1b/{CONTAINER}\n",
            {"HOSTNAME": "x", "POD_NAME": "trainer-1"},
            {"container": CONTAINER[:12], "pod": "trainer-1"},
        ),
    ],
)
def test_the_owner_is_read_from_group_and_environment(
    group: str, environment: dict[str, str] | None, expected: dict[str, str], tmp_path: Path
) -> None:
    make(tmp_path, group, environment)
    found = read_owner(str(tmp_path), 7)
    assert found == ProcessOwner(getpass.getuser(), "python train", Job(**expected))


def test_of_a_process_that_is_gone_nothing_is_known(tmp_path: Path) -> None:
    assert read_owner(str(tmp_path), 8) == ProcessOwner()

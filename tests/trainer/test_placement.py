"""What a pod says of itself: variables and files of the downward API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from trainvitals.journal.documents.job import Job
from trainvitals.trainer import placement
from trainvitals.trainer.placement import MOST_LABELS

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "trainer-0"}


def read_job(environ: dict[str, str], folder: Path) -> Job:
    return Job.parse(placement.read_job(environ, folder))


def test_files_of_the_downward_api_are_read_and_variables_win(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('team="vision"\nqueue="gold"\n')
    (tmp_path / "namespace").write_text("research")
    job = read_job(IN_POD | {"POD_LABELS": "queue=silver"}, tmp_path)
    assert (job.pod, job.namespace, job.labels) == ("trainer-0", "research", {"team": "vision", "queue": "silver"})
    assert read_job(IN_POD | {"POD_NAMESPACE": "mine"}, tmp_path).namespace == "mine"
    (tmp_path / "name").write_text("trainer-1\n")
    assert read_job({"HOSTNAME": ""}, tmp_path).full_pod == "research/trainer-1"


def test_there_are_no_more_labels_than_can_be_shown(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text("\n".join(f'l{number}="{number}"' for number in range(1000)))
    assert len(read_job(IN_POD, tmp_path).labels) == MOST_LABELS
    assert not read_job({}, tmp_path / "none")


def test_run_json_has_the_job_and_the_pod(tmp_path: Path) -> None:
    (tmp_path / "labels").write_text('team="vision"\n')
    environ = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SLURM_", "POD_", "CONTAINER_", "NODE_"))
    }
    environ |= IN_POD | {
        "SLURM_JOB_ID": "4711",
        "POD_NAMESPACE": "research",
        "TRAINVITALS_POD_INFO": str(tmp_path),
        "TRAINVITALS_DIR": str(tmp_path / "runs"),
        "TRAINVITALS_RUNTIME_DIR": str(tmp_path / "runtime"),
        "TRAINVITALS_AGENT": "off",
    }
    program = "import trainvitals; print(trainvitals.init().folder)"
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    run = json.loads(Path(done.stdout.strip(), "run.json").read_text())
    assert run["job"] == {
        "slurm": "4711",
        "pod": "trainer-0",
        "namespace": "research",
        "labels": {"team": "vision"},
    }

"""Jobs of schedulers: found in environments as these set them, told, and found again in runs of earlier versions."""

from __future__ import annotations

from trainvitals.journal.documents.job import LABELS, Job, find_job
from trainvitals.journal.documents.run import RunFile
from trainvitals.journal.job_variables import LONGEST, parse_pairs

TASK = {
    "SLURM_JOB_ID": "4711",
    "SLURM_ARRAY_JOB_ID": "4700",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_NAME": "sweep",
    "SLURM_JOB_PARTITION": "gpu",
    "SLURM_JOB_ACCOUNT": "vision",
    "SLURM_JOB_NODELIST": "gpu[01-02]",
    "SLURM_RESTART_COUNT": "1",
}
POD = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "trainer-0",
    "POD_NAMESPACE": "vision",
    "NODE_NAME": "gke-1",
    "CONTAINER_NAME": "training",
    "POD_LABELS": "team=vision,queue=gold",
}


def test_a_task_of_an_array_is_told_with_all_that_slurm_says() -> None:
    job = find_job(TASK)
    assert (job.slurm, job.array, job.restarts, str(job)) == ("4711", "4700_3", 1, "Slurm job 4711")
    assert job.facts() == [
        ("Slurm job", "4711, task 4700_3, partition gpu, account vision, name sweep, step 0, requeued 1 time"),
        ("Slurm nodes", "gpu[01-02]"),
    ]
    assert Job.parse(job.as_json()) == job


def test_a_pod_is_told_with_its_namespace_node_and_labels() -> None:
    job = find_job(POD)
    assert str(job) == "pod vision/trainer-0"
    assert job.facts() == [
        ("pod", "vision/trainer-0, container training"),
        ("Kubernetes node", "gke-1"),
        ("pod labels", "team=vision, queue=gold"),
    ]
    assert find_job(POD | {"POD_NAME": "better"}).pod == "better"


def test_a_job_in_a_pod_is_both() -> None:
    job = find_job(TASK | POD)
    assert str(job) == "Slurm job 4711, pod vision/trainer-0"
    assert tuple(job.label_values()) == LABELS
    assert job.label_values() == {
        "slurm_job_id": "4711",
        "slurm_array": "4700_3",
        "slurm_partition": "gpu",
        "slurm_account": "vision",
        "ray_job_id": "",
        "pod": "trainer-0",
        "namespace": "vision",
        "container": "training",
        "node": "gke-1",
    }


def test_without_a_scheduler_there_is_nothing() -> None:
    job = find_job({"HOSTNAME": "box", "SLURM_RESTART_COUNT": "x", "CONTAINER_NAME": "of somebody", "NODE_NAME": "js"})
    assert not job and job.as_json() == {} and job.facts() == [] and str(job) == ""
    assert (
        str(find_job({"PBS_JOBID": "7.head"})) == "PBS job 7.head" and str(find_job({"LSB_JOBID": "8"})) == "LSF job 8"
    )


def test_labels_are_read_as_kubernetes_writes_them_and_none_is_endless() -> None:
    lines = ['batch.kubernetes.io/job-name="sweep"', "", "no sign", 'empty=""', "long=" + "x" * 1000]
    found = parse_pairs(lines)
    assert found["batch.kubernetes.io/job-name"] == "sweep" and found["empty"] == "" and len(found["long"]) == LONGEST
    assert len(found) == 3


def test_a_run_of_an_earlier_version_has_its_job_among_its_variables() -> None:
    assert RunFile.parse({"environment": {"SLURM_JOB_ID": "7", "RANK": 0}}).placed == Job(slurm="7")
    assert RunFile.parse({"job": {"slurm": "8"}, "environment": {"SLURM_JOB_ID": "7"}}).placed == Job(slurm="8")

"""Every bad ending has a finding, named by what PyTorch, the kernel and schedulers really print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trainings import CONDITIONS, SECONDS, find, gpu, healthy, host, process, rules

from trainvitals.analysis.diagnosis import diagnose
from trainvitals.analysis.endings import FAMILIES, parse_figures, recognise
from trainvitals.analysis.findings import Finding, RunEnding
from trainvitals.journal.documents.cause import (
    CPU_LIMIT,
    EXCEPTION,
    EXIT_CODE,
    GONE,
    INTERRUPTED,
    OUT_OF_MEMORY,
    SIGNAL,
    STALLED,
    UNKNOWN,
    UNWATCHED,
    Cause,
)
from trainvitals.journal.identity import Participant

CUDA = (
    "CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a total capacity of 31.47 GiB of which 12.73 GiB is "
    "free. Including non-PyTorch memory, this process has 18.73 GiB memory in use. Of the allocated memory 9.08 GiB is "
    "allocated by PyTorch, and 9.35 GiB is reserved by PyTorch but unallocated."
)
FRAGMENTED = CUDA.replace("22.78 GiB", "512.00 MiB").replace("12.73 GiB", "0 bytes")
OLDER = (
    "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; "
    "2.88 MiB free; 1.25 GiB reserved in total by PyTorch)"
)
HINTS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1 Compile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions."
)
"""Below every error of CUDA."""
NCCL = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94,"
WATCHDOG = (
    "[rank{0}]:[E321 02:07:08.408 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={1}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600060 milliseconds "
    "before timing out."
)
GLOO = "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete"
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/train.py", line 40, in <module>
    main()
  File "/home/me/train.py", line 31, in main
    loss = model(batch)  # CUDA out of memory is not the reason here
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1, in _call_impl
    return forward_call(*args)
{0}
"""
SLEEPING = ('File "/home/me/train.py", line 12 in load',)
WAITING = (
    'File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 9 in all_reduce',
    'File "/home/me/train.py", line 30 in step',
)


def raised(exception: str, text: str, **more: Any) -> RunEnding:
    cause = Cause(kind=EXCEPTION, exception=exception, detail=f"{exception}: {text}")
    return RunEnding(
        "failed", cause, traceback=TRACEBACK.format(cause.detail), **{"step": 120, "seconds": 90.0, **more}
    )


def killed(name: str, **more: Any) -> RunEnding:
    return RunEnding("killed", Cause(kind=SIGNAL, signal=name), **more)


def find_ending(ending: RunEnding, **changed: Any) -> Finding:
    (found,) = [
        item
        for item in diagnose(healthy(ending=ending, **changed), CONDITIONS).findings
        if item.rule.startswith("end.")
    ]
    return found


@pytest.mark.parametrize(
    ("finding", "ending"),
    [
        ("end.gpu_memory", raised("OutOfMemoryError", CUDA)),
        ("end.gpu_memory", raised("RuntimeError", OLDER)),
        ("end.gpu_memory", raised("RuntimeError", "CUDA error: out of memory")),
        ("end.gpu_fragmented", raised("OutOfMemoryError", FRAGMENTED)),
        ("end.gpu_memory", raised("RuntimeError", f"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling it {HINTS}")),
        ("end.gpu_memory", raised("RuntimeError", "CUDA driver error: out of memory")),
        ("end.gpu_memory", raised("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 123 bytes.")),
        (
            "end.gpu_memory",
            raised("ResourceExhaustedError", "OOM when allocating tensor with shape[1,2] on /job:a/device:GPU:0 by b"),
        ),
        (
            "end.python_memory",
            raised("ResourceExhaustedError", "OOM when allocating tensor with shape[1,2] on /job:a/device:CPU:0 by b"),
        ),
        (
            "end.gpu_memory",
            raised(
                "DistBackendError",
                f"{NCCL} unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5 "
                "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 2 'out of memory'",
            ),
        ),
        (
            "end.gpu_error",
            raised(
                "DistBackendError",
                f"{NCCL} unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5 "
                "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 'launch failure'",
            ),
        ),
        (
            "end.gpu_shared",
            raised(
                "DistBackendError",
                f"{NCCL} invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.3 ncclInvalidUsage: "
                "This usually reflects invalid usage of NCCL library. Last error: Duplicate GPU detected : rank 1 and "
                "rank 0 both on CUDA device 1000",
            ),
        ),
        ("end.exception", raised("DistBackendError", f"{NCCL} invalid usage, NCCL version 2.27.3 ncclInvalidUsage")),
        (
            "end.port_in_use",
            raised(
                "DistNetworkError",
                "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, "
                "code: -98, name: EADDRINUSE, message: address already in use",
            ),
        ),
        (
            "end.open_files",
            raised(
                "RuntimeError",
                "unable to open shared memory object </torch_1_5> in read-write mode: Too many open files (24)",
            ),
        ),
        ("end.open_files", raised("OSError", "[Errno 24] Too many open files: 'x'")),
        ("end.open_files", raised("RuntimeError", "received 0 items of ancdata")),
        ("end.recursion", raised("RecursionError", "maximum recursion depth exceeded")),
        (
            "end.gpu_illegal_access",
            raised("AcceleratorError", f"CUDA error: an illegal memory access was encountered {HINTS}"),
        ),
        ("end.gpu_error", raised("AcceleratorError", f"CUDA error: unspecified launch failure {HINTS}")),
        ("end.gpu_assert", raised("RuntimeError", "CUDA error: device-side assert triggered")),
        ("end.gpu_illegal_access", raised("AcceleratorError", "CUDA error: an illegal memory access was encountered")),
        ("end.gpu_error", raised("RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED")),
        ("end.gpu_error", raised("AssertionError", "Torch not compiled with CUDA enabled")),
        ("end.collective_timeout", raised("RuntimeError", GLOO)),
        ("end.collective_timeout", raised("RuntimeError", "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 2 ms")),
        ("end.collective_timeout", killed("SIGABRT", printed=WATCHDOG.format(0, 7))),
        ("end.peer_lost", raised("RuntimeError", "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer")),
        ("end.peer_lost", raised("DistBackendError", "NCCL error in: x.cpp:1, remote process exited")),
        ("end.shape_mismatch", raised("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)")),
        ("end.shape_mismatch", raised("ValueError", "Expected input batch_size (4) to match target batch_size (5).")),
        ("end.shape_mismatch", raised("RuntimeError", "shape '[4, 2]' is invalid for input of size 6")),
        (
            "end.tensor_mismatch",
            raised("RuntimeError", "mat1 and mat2 must have the same dtype, but got Float and Half"),
        ),
        ("end.tensor_mismatch", raised("RuntimeError", "Expected all tensors to be on the same device, but found two")),
        (
            "end.tensor_mismatch",
            raised("RuntimeError", "Input type (float) and bias type (c10::Half) should be the same"),
        ),
        ("end.loader_worker", raised("RuntimeError", "DataLoader worker (pid 4711) is killed by signal: Killed. ")),
        ("end.loader_worker", raised("RuntimeError", "DataLoader worker (pid(s) 1, 2) exited unexpectedly")),
        (
            "end.shared_memory",
            raised(
                "RuntimeError",
                "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that dataloader's workers "
                "are out of shared memory. Please try to raise your shared memory limit.",
            ),
        ),
        ("end.shared_memory", killed("SIGBUS")),
        ("end.disk_full", raised("OSError", "[Errno 28] No space left on device: 'model.pt'")),
        (
            "end.disk_full",
            raised("RuntimeError", "[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598"),
        ),
        ("end.host_memory", RunEnding("killed", Cause(kind=OUT_OF_MEMORY, memory="group", signal="SIGKILL"))),
        ("end.python_memory", raised("MemoryError", "")),
        ("end.python_memory", raised("_ArrayMemoryError", "Unable to allocate 7 TiB for an array")),
        ("end.python_memory", raised("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried")),
        ("end.missing_file", raised("FileNotFoundError", "[Errno 2] No such file or directory: 'data.bin'")),
        ("end.missing_module", raised("ModuleNotFoundError", "No module named 'einops'")),
        ("end.permission", raised("PermissionError", "[Errno 13] Permission denied: '/out'")),
        ("end.interrupted", RunEnding("killed", Cause(kind=INTERRUPTED))),
        ("end.interrupted", killed("SIGINT")),
        ("end.terminated", killed("SIGTERM")),
        ("end.terminated", RunEnding("failed", Cause(kind=EXIT_CODE, exit_code=143))),
        (
            "end.time_limit",
            killed("SIGTERM", printed="slurmstepd: error: *** JOB 7 ON n CANCELLED DUE TO TIME LIMIT ***"),
        ),
        ("end.time_limit", RunEnding("killed", Cause(kind=CPU_LIMIT, signal="SIGKILL"))),
        ("end.preempted", killed("SIGKILL", printed="slurmstepd: error: *** STEP 7.0 CANCELLED DUE TO PREEMPTION ***")),
        ("end.killed", killed("SIGKILL")),
        ("end.native_crash", RunEnding("crashed", Cause(kind=SIGNAL, signal="SIGSEGV"))),
        ("end.native_crash", RunEnding("failed", Cause(kind=EXIT_CODE, exit_code=139))),
        ("end.exception", raised("KeyError", "'labels'")),
        ("end.exception", raised("AssertionError", "")),
        ("end.unexplained", RunEnding("failed", Cause(kind=EXIT_CODE, exit_code=3))),
        ("end.unexplained", RunEnding("crashed", Cause(kind=UNKNOWN))),
        ("end.unexplained", RunEnding("crashed", Cause(kind=UNWATCHED))),
        ("end.unexplained", RunEnding("crashed", Cause(kind=GONE))),
        ("end.unexplained", RunEnding("failed")),
        ("end.hang", RunEnding("hung", Cause(kind=STALLED, seconds=50.0))),
    ],
)
def test_every_bad_ending_is_named_with_evidence_and_advice(finding: str, ending: RunEnding) -> None:
    found = find_ending(ending)
    assert found.rule == finding
    assert found.severity == ("info" if finding == "end.interrupted" else "critical")
    assert found.evidence and found.advice and found.title


def test_every_family_has_a_condition() -> None:
    known = {finding for row in CONDITIONS for finding in row.findings}
    assert {family.finding for family in FAMILIES} <= known


@pytest.mark.parametrize("status", ["running", "stalled", "finished"])
def test_a_run_that_lives_or_ended_well_has_none(status: str) -> None:
    found = diagnose(healthy(ending=RunEnding(status)), CONDITIONS)
    assert not [rule for rule in rules(found) if rule.startswith("end.")] and "failures and hangs" in found.fine


def test_the_figures_of_the_allocator_are_evidence() -> None:
    found = find(healthy(ending=raised("OutOfMemoryError", CUDA), gpus=[gpu(0)]), "end.gpu_memory")
    assert found.title == "GPU out of memory at step 120"
    assert "tried to allocate 22.78 GiB, 12.73 GiB free, of 31.47 GiB" in found.evidence[3]
    assert "9.35 GiB reserved but unallocated" in found.evidence[3]
    assert found.evidence[4] == "memory in the last sample: GPU 0 at 70 %"
    assert found.values["requested_gib"] == 22.78 and found.values["unallocated_gib"] == 9.35
    assert parse_figures(OLDER) == pytest.approx(
        {"requested_gib": 20 / 1024, "free_gib": 2.88 / 1024, "total_gib": 1.96, "allocated_gib": 1.24}
    )
    assert parse_figures("out of luck") == {}


def test_memory_that_was_there_but_in_pieces_has_its_own_advice() -> None:
    assert "expandable_segments" in find_ending(raised("OutOfMemoryError", FRAGMENTED)).advice


def test_it_says_where_in_the_users_code_and_when() -> None:
    found = find_ending(raised("KeyError", "'labels'", world_size=4, host="node7"))
    assert found.evidence == (
        "KeyError: 'labels'",
        'raised below File "/home/me/train.py", line 31 in main',
        "last step logged: 120, 1.5 min after the start",
    )
    assert found.subject == "rank 0, node7" and found.step == 120
    early = find_ending(raised("KeyError", "'x'", step=None, seconds=None))
    assert early.evidence[-1] == "no step was logged" and early.title == "Exception"


def test_a_wrong_shape_at_the_first_step_differs_from_one_later() -> None:
    text = "mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)"
    assert "at the first step" in find_ending(raised("RuntimeError", text, step=None)).evidence
    assert "after 120 steps that went well" in find_ending(raised("RuntimeError", text)).evidence


def test_the_rank_that_did_not_come_is_named() -> None:
    printed = "\n".join(WATCHDOG.format(rank, 1580) for rank in (0, 1, 3))
    found = find_ending(killed("SIGABRT", printed=printed, world_size=4))
    assert "missing: rank 2" in found.evidence
    assert "in ALLREDUCE, for which rank 0, rank 1, rank 3 waited" in found.evidence
    behind = "\n".join((WATCHDOG.format(0, 1580), WATCHDOG.format(1, 1402)))
    assert "missing: rank 1" in find_ending(killed("SIGABRT", printed=behind, world_size=2)).evidence
    barrier = raised("RuntimeError", "[Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 2000 ms", world_size=4)
    assert "missing: rank 1, rank 3" in find_ending(barrier).evidence
    stacks = {Participant(rank=0): WAITING, Participant(rank=1): SLEEPING, Participant(rank=2): WAITING}
    assert "missing: rank 1" in find_ending(raised("RuntimeError", GLOO, stacks=stacks, world_size=3)).evidence


def test_the_only_rank_that_raised_nothing_may_be_the_missing_one() -> None:
    def gave_up(*ranks: int, world_size: int = 4) -> tuple[str, ...]:
        complained = frozenset(Participant(rank=rank) for rank in ranks)
        return find_ending(raised("RuntimeError", GLOO, world_size=world_size, raised=complained)).evidence

    suspected = "missing, as far as is known: rank 2, which raised nothing while the others gave up waiting"
    assert suspected in gave_up(0, 1, 3)
    # One gave up and the launcher ended all others; or all gave up.
    assert not [line for line in (*gave_up(0), *gave_up(0, 1, 2, 3)) if line.startswith("missing")]


def test_of_an_end_without_a_reason_the_last_lines_are_told() -> None:
    ending = RunEnding("failed", Cause(kind=EXIT_CODE, exit_code=3), printed="step 20\nstep 30\n\n  bad shard\n bye\n")
    found = find_ending(ending)
    assert found.rule == "end.unexplained" and found.evidence[-1] == "printed last: step 30 / bad shard / bye"


def test_a_hang_names_the_odd_rank_also_after_it_was_killed() -> None:
    stacks = {Participant(rank=0): WAITING, Participant(rank=1): WAITING, Participant(rank=2): SLEEPING}
    stall = Cause(kind=STALLED, seconds=12.0, detail="the main thread is elsewhere", rank=2)
    hung = find_ending(RunEnding("hung", stall, stall=stall, stacks=stacks, flight_records=["/tmp/trace_0"]))
    assert 'rank 2 was at File "/home/me/train.py", line 12 in load' in hung.evidence
    assert "rank 0, rank 1 waited in all_reduce" in hung.evidence
    assert "flight recorder: /tmp/trace_0" in hung.evidence and hung.subject == "rank 2"
    for end in (Cause(kind=INTERRUPTED), Cause(kind=SIGNAL, signal="SIGKILL")):
        after = find_ending(RunEnding("killed", end, stall=stall, stacks=stacks))
        assert after.rule == "end.hang" and f"before: {stall}" in after.evidence


def test_what_was_printed_and_survived_does_not_explain_another_exception() -> None:
    survived = raised("KeyError", "'labels'", printed=f"skipping a batch: {CUDA}")
    assert recognise(survived)[0].finding == "end.exception"
    silent = RunEnding("failed", Cause(kind=EXIT_CODE, exit_code=1), printed=CUDA)
    assert recognise(silent)[0].finding == "end.gpu_memory"


def test_an_exception_that_came_from_another_is_explained_by_the_first() -> None:
    ending = raised("RuntimeError", "training failed")
    chained = f"OSError: [Errno 28] No space left on device\n\nThe above exception was the cause\n\n{ending.traceback}"
    both = RunEnding("failed", ending.cause, traceback=chained)
    assert recognise(both)[0].finding == "end.disk_full"


def test_a_connection_lost_inside_a_loader_is_its_worker_and_elsewhere_is_not() -> None:
    lost = raised("ConnectionResetError", "[Errno 104] Connection reset by peer")
    assert recognise(lost)[0].finding == "end.exception"
    frame = '  File "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1, in __next__\n'
    loading = RunEnding(
        "failed", lost.cause, traceback=f"Traceback (most recent call last):\n{frame}{lost.cause.detail}"
    )
    assert recognise(loading)[0].finding == "end.loader_worker"


def test_who_sent_the_signal_is_named_where_it_is_known() -> None:
    by_rule = find_ending(
        killed("SIGTERM", stopped_by="the action of the alert rule loss_not_finite", job="Slurm job 7")
    )
    assert "SIGTERM was sent by the action of the alert rule loss_not_finite" in by_rule.evidence
    by_job = find_ending(killed("SIGTERM", job="Slurm job 7"))
    assert "it ran in Slurm job 7, which ends jobs in this way" in by_job.evidence
    launcher = find_ending(killed("SIGTERM", printed="W1117 Sending process 7 closing signal SIGTERM"))
    assert "the launcher ended it because another rank failed" in launcher.evidence


def test_memory_at_the_end_is_evidence_of_a_kill_for_memory() -> None:
    ending = RunEnding("killed", Cause(kind=OUT_OF_MEMORY, memory="machine", signal="SIGKILL"))
    found = find_ending(
        ending,
        hosts=[host(memory_usage_percent=np.full(SECONDS, 99.0))],
        processes=[process(rss_mb=np.full(SECONDS, 2048.0))],
    )
    assert "memory of box at 99 % in the last sample" in found.evidence
    assert "rank 0 and its children held 2 GiB in the last sample" in found.evidence

"""How a run ended, where it did not end well. `analysis.endings` recognises each."""

from __future__ import annotations

from trainvitals.conditions.row import Condition, Severity


def _row(id: str, finding: str, title: str, advice: str, severity: Severity = "critical") -> Condition:
    return Condition(id, "run", title, severity, advice, findings=(finding,))


ROWS: tuple[Condition, ...] = (
    _row(
        "end_hang",
        "end.hang",
        "run hung",
        "Look at the rank or process named here: the others are waiting for it. The stacks of all threads are in the "
        "run folder under stacks/. Fix it and resume from the last checkpoint.",
    ),
    _row(
        "end_gpu_memory",
        "end.gpu_memory",
        "GPU out of memory",
        "Use a smaller batch with gradient accumulation, activation checkpointing, bf16, or shard the model (FSDP). At "
        "a later step: keep no tensors between steps (loss.item()), and limit the longest sample.",
    ),
    _row(
        "end_gpu_fragmented",
        "end.gpu_fragmented",
        "GPU memory fragmented",
        "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: the memory was there, but not in one piece. Pad samples "
        "to a few lengths.",
    ),
    _row(
        "end_gpu_assert",
        "end.gpu_assert",
        "device-side assert",
        "Usually an index out of range: a label that is not below the number of classes, or a token that is not in the "
        "embedding. Run a few steps on the CPU, or with CUDA_LAUNCH_BLOCKING=1, to see where.",
    ),
    _row(
        "end_gpu_illegal_access",
        "end.gpu_illegal_access",
        "illegal GPU memory access",
        "A kernel, often a custom or compiled one, read memory that is not its own. Run with CUDA_LAUNCH_BLOCKING=1 or "
        "under compute-sanitizer; update the extension. If it moves with the GPU, check its Xid errors.",
    ),
    _row(
        "end_gpu_error",
        "end.gpu_error",
        "GPU or driver error",
        "Run trainvitals doctor, and look for Xid errors of the GPU (dmesg). Check that driver, CUDA and PyTorch "
        "versions are compatible, then reset the GPU or use another one.",
    ),
    _row(
        "end_collective_timeout",
        "end.collective_timeout",
        "collective timed out",
        "Look at the missing rank: it died, is slower, or called another collective. Check that all ranks do "
        "the same number of steps; raise the timeout of init_process_group only for work that takes this long.",
    ),
    _row(
        "end_peer_lost",
        "end.peer_lost",
        "connection to another rank lost",
        "Another rank or its machine failed first: read its last lines. If none did, check the network between the "
        "machines (NCCL_DEBUG=INFO).",
    ),
    _row(
        "end_gpu_shared",
        "end.gpu_shared",
        "two ranks on one GPU",
        "Give every rank a GPU of its own: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
        "init_process_group, and no more ranks per machine than it has GPUs (CUDA_VISIBLE_DEVICES, --nproc-per-node).",
    ),
    _row(
        "end_port_in_use",
        "end.port_in_use",
        "port already in use",
        "Another program has it, often an earlier run that still lives: end that one, or take another port "
        "(torchrun --standalone, --master-port, MASTER_PORT).",
    ),
    _row(
        "end_open_files",
        "end.open_files",
        "too many open files",
        "Raise the limit (ulimit -n) or call torch.multiprocessing.set_sharing_strategy('file_system'). If it comes "
        "after hours, look for files or sockets that are never closed.",
    ),
    _row(
        "end_shared_memory",
        "end.shared_memory",
        "shared memory too small",
        "Give the container more shared memory (docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir of "
        "medium Memory at /dev/shm), or use fewer loader workers.",
    ),
    _row(
        "end_loader_worker",
        "end.loader_worker",
        "DataLoader worker died",
        "Killed: most often for memory, so use fewer workers, a smaller prefetch_factor or more memory. Otherwise run "
        "with num_workers=0 to see its exception.",
    ),
    _row(
        "end_disk_full",
        "end.disk_full",
        "disk full",
        "Remove old checkpoints, keep fewer of them, or save elsewhere. Check that the last checkpoint is complete "
        "before you resume from it.",
    ),
    _row(
        "end_host_memory",
        "end.host_memory",
        "killed by the kernel for memory",
        "Use fewer loader workers or a smaller cache, or raise the memory limit of the container or job.",
    ),
    _row(
        "end_python_memory",
        "end.python_memory",
        "host memory allocation failed",
        "Something asked for more memory than the machine or its limit (ulimit -v, cgroup) has. Check the size it "
        "asked for; load data in parts or memory-map it.",
    ),
    _row(
        "end_shape_mismatch",
        "end.shape_mismatch",
        "tensor shapes do not match",
        "At the first step: the layer and the batch do not fit, so print both shapes at the line shown. Later: "
        "often the last, smaller batch (drop_last=True) or one odd sample.",
    ),
    _row(
        "end_tensor_mismatch",
        "end.tensor_mismatch",
        "tensors on different devices or of different types",
        "Move model, batch and targets to the same device and type: model.to(device), batch.to(device), "
        "x.to(weight.dtype) or torch.autocast.",
    ),
    _row(
        "end_missing_module",
        "end.missing_module",
        "missing module",
        "Install it in the environment of the run, on every machine, and check the version: "
        "trainvitals runs show lists the packages that were there.",
    ),
    _row(
        "end_missing_file",
        "end.missing_file",
        "missing file",
        "Check the path, the working folder, and that the file is on every machine of the run.",
    ),
    _row(
        "end_permission",
        "end.permission",
        "permission denied",
        "Check who owns the file or device and which user the run ran as (containers often use a different one).",
    ),
    _row(
        "end_time_limit",
        "end.time_limit",
        "time limit reached",
        "Resume from the last checkpoint: init(resume=True). Ask for more time, or save when the scheduler warns "
        "(sbatch --signal=USR1@120).",
    ),
    _row(
        "end_preempted",
        "end.preempted",
        "preempted by the scheduler",
        "Resume from the last checkpoint: init(resume=True). Save on SIGTERM and let the scheduler requeue the job.",
    ),
    _row(
        "end_interrupted",
        "end.interrupted",
        "interrupted",
        "Nothing to do if you wanted it to end. To continue: init(resume=True).",
        severity="info",
    ),
    _row(
        "end_terminated",
        "end.terminated",
        "terminated from outside",
        "Find out who ended it: a scheduler, a launcher whose other rank failed, a closed terminal (use tmux or "
        "nohup), or a person. Then resume from the last checkpoint: init(resume=True).",
    ),
    _row(
        "end_killed",
        "end.killed",
        "killed",
        "SIGKILL cannot be caught: look for a memory or time limit of the scheduler or container, or somebody's "
        "kill -9. Then resume from the last checkpoint: init(resume=True).",
    ),
    _row(
        "end_native_crash",
        "end.native_crash",
        "crash in native code",
        "Run with python -X faulthandler to see where. Suspect compiled extensions and mixed versions of libraries; "
        "reinstall them in a fresh environment.",
    ),
    _row(
        "end_recursion",
        "end.recursion",
        "endless recursion",
        "The function at the line shown calls itself without an end, often a __getattr__ or a property that reads "
        "itself, or a cycle in nested data. Raise sys.setrecursionlimit only for data that is really nested so deep.",
    ),
    _row(
        "end_exception",
        "end.exception",
        "exception",
        "Fix the line shown; the full traceback is in the run's `failed` event.",
    ),
    _row(
        "end_unexplained",
        "end.unexplained",
        "ended with an error",
        "Read the last lines that the program printed (console.*.log in the run folder, if it was started with "
        "trainvitals run), and look for os._exit() and sys.exit() in it and in its libraries.",
    ),
)

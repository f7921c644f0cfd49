"""Every metric once: its name in the files, unit, kind and meaning.

Exporters, axis labels, documentation and dashboards come from these rows. A name is unique inside its table; a
table is one kind of file in the run folder (`gpu` rows are the lines of `gpu_metrics_*.jsonl`).

MB is 1,048,576 bytes everywhere, as nvidia-smi and PyTorch count it. A value that could not be read is a missing
key, never 0 or a placeholder. `<N>` in a name is a number: a family of columns.
Tested in tests/exporters/test_families.py.
"""

from __future__ import annotations

import functools
import re
from typing import Literal, NamedTuple

Table = Literal["training", "gpu", "system", "process", "source"]
Kind = Literal["gauge", "counter", "text"]


class Metric(NamedTuple):
    """One column of one table."""

    name: str
    unit: str
    help: str
    kind: Kind = "gauge"
    aliases: tuple[str, ...] = ()


TRAINING: tuple[Metric, ...] = (
    Metric("step", "", "Optimizer step, counted by the training or by log()", "counter"),
    Metric("epoch", "", "Epoch, may be fractional"),
    Metric("loss", "", "Training loss", aliases=("train_loss", "train/loss", "training_loss")),
    Metric(
        "learning_rate",
        "",
        "Learning rate of the first parameter group",
        aliases=("lr", "train/learning_rate"),
    ),
    Metric("gradient_norm", "", "Global L2 norm of the gradients", aliases=("grad_norm", "train/grad_norm")),
    Metric("gradient_clip_norm", "", "Norm that clip_grad_norm_ clips the gradients to"),
    Metric("accuracy", "", "Training accuracy", aliases=("acc", "train/accuracy")),
    Metric("throughput_samples_per_sec", "samples/s", "Samples processed per second", aliases=("throughput",)),
    Metric("batch_time", "s", "Duration of one step; its phases add up to it", aliases=("step_time",)),
    Metric("data_time", "s", "Waiting for the next batch"),
    Metric("transfer_time", "s", "Copying the batch to the device"),
    Metric("forward_time", "s", "Forward pass"),
    Metric("backward_time", "s", "Backward pass"),
    Metric("optimizer_time", "s", "Optimizer step"),
    Metric("other_time", "s", "Rest of the step: logging, evaluation, checkpoints"),
    Metric("memory_allocated_mb", "MB", "Device memory held by tensors of this process"),
    Metric("memory_reserved_mb", "MB", "Device memory held by the framework's allocator"),
    Metric("memory_peak_allocated_mb", "MB", "Highest memory_allocated_mb so far"),
    Metric("memory_peak_reserved_mb", "MB", "Highest memory_reserved_mb so far"),
    Metric("memory_fragmentation_percent", "%", "Reserved memory in free parts of partly used blocks (fragmentation)"),
    Metric("memory_alloc_retries", "", "Allocations that succeeded only after the cache was flushed", "counter"),
    Metric("memory_ooms", "", "Allocations that failed", "counter"),
    Metric("host_memory_mb", "MB", "Resident memory of the training process"),
    Metric("throughput_tokens_per_sec", "tokens/s", "Tokens processed per second"),
    Metric("flops_per_sec", "FLOP/s", "Floating point operations of the model per second, forward and backward"),
    Metric("mfu_percent", "%", "flops_per_sec as a share of the GPU's peak"),
    Metric("gradient_norm_shard", "", "L2 norm of this rank's shard of the gradients"),
    Metric("watch_time", "s", "Total overhead of watch in this step"),
)

GPU: tuple[Metric, ...] = (
    Metric("utilization_percent", "%", "Share of time in which at least one kernel ran"),
    Metric("memory_utilization_percent", "%", "Share of time in which device memory was read or written"),
    Metric("memory_used_mb", "MB", "Device memory in use, excluding what the driver reserves"),
    Metric("memory_reserved_mb", "MB", "Device memory reserved by the driver"),
    Metric("memory_total_mb", "MB", "Total device memory"),
    Metric("memory_percent", "%", "memory_used_mb as a share of memory_total_mb"),
    Metric("shared_memory_used_mb", "MB", "System memory used by the GPU (integrated GPUs, GTT)"),
    Metric("temperature_celsius", "°C", "Core temperature"),
    Metric("memory_temperature_celsius", "°C", "Memory temperature"),
    Metric("hotspot_temperature_celsius", "°C", "Hottest point of the chip (AMD junction)"),
    Metric("temperature_limit_celsius", "°C", "Temperature at which the GPU throttles"),
    Metric("power_draw_watts", "W", "Power drawn by the board"),
    Metric("power_limit_watts", "W", "Current power limit"),
    Metric("energy_joules", "J", "Energy since the driver was loaded, from the GPU's counter", "counter"),
    Metric("graphics_clock_mhz", "MHz", "Graphics clock"),
    Metric("sm_clock_mhz", "MHz", "Streaming multiprocessor clock"),
    Metric("memory_clock_mhz", "MHz", "Memory clock"),
    Metric("graphics_clock_max_mhz", "MHz", "Maximum graphics clock of this GPU"),
    Metric("memory_clock_max_mhz", "MHz", "Maximum memory clock of this GPU"),
    Metric("fan_speed_percent", "%", "Fan speed; absent on cards without a fan"),
    Metric("fan_speed_rpm", "rpm", "Fan speed in revolutions per minute"),
    Metric("performance_state", "", "P-state (0 is the fastest)"),
    Metric("throttle_reasons", "", "Throttle reasons, comma-separated", "text"),
    Metric("throttle_power_seconds", "s", "Time throttled by a power limit", "counter"),
    Metric("throttle_thermal_seconds", "s", "Time throttled by temperature (software or hardware)", "counter"),
    Metric("throttle_hardware_seconds", "s", "Time throttled by the hardware (slowdown, power brake)", "counter"),
    Metric("ecc_corrected_total", "errors", "Corrected memory errors since the driver was loaded", "counter"),
    Metric("ecc_uncorrected_total", "errors", "Uncorrected memory errors since the driver was loaded", "counter"),
    Metric("remapped_rows_corrected_total", "rows", "Memory rows remapped after correctable errors", "counter"),
    Metric(
        "remapped_rows_uncorrected_total",
        "rows",
        "Memory rows remapped after uncorrectable errors",
        "counter",
    ),
    Metric("row_remap_pending", "", "1 if a remapped row is waiting for a GPU reset"),
    Metric("row_remap_failed", "", "1 if a row could not be remapped: replace the GPU"),
    Metric("recovery_action", "", "Recovery action requested by the driver: none, reset, reboot, drain", "text"),
    Metric("xid_errors_total", "errors", "Xid errors seen since the agent started", "counter"),
    Metric("xid_last", "", "Most recent Xid error"),
    Metric("pcie_rx_mb_s", "MB/s", "Received over PCIe"),
    Metric("pcie_tx_mb_s", "MB/s", "Sent over PCIe"),
    Metric("pcie_replay_total", "", "PCIe replays: retransmissions on the link", "counter"),
    Metric("pcie_link_generation", "", "PCIe generation in use; falls while idle"),
    Metric("pcie_link_width", "lanes", "PCIe lanes in use"),
    Metric("nvlink_rx_mb_s", "MB/s", "Received over NVLink, all links"),
    Metric("nvlink_tx_mb_s", "MB/s", "Sent over NVLink, all links"),
    Metric("encoder_percent", "%", "Video encoder utilization"),
    Metric("decoder_percent", "%", "Video decoder utilization"),
    Metric("sm_active_percent", "%", "Share of SMs with at least one warp, averaged (Hopper and later)"),
    Metric("sm_occupancy_percent", "%", "Resident warps as a share of the maximum (Hopper and later)"),
    Metric("tensor_active_percent", "%", "Tensor core activity (Hopper and later)"),
    Metric("dram_active_percent", "%", "Device memory activity (Hopper and later)"),
    Metric("fp16_active_percent", "%", "FP16 pipe activity (Hopper and later)"),
    Metric("fp32_active_percent", "%", "FP32 pipe activity (Hopper and later)"),
    Metric("fp64_active_percent", "%", "FP64 pipe activity (Hopper and later)"),
    Metric("process_count", "", "Processes that hold a context on this GPU"),
    Metric("state", "", "ok, lost, asleep, reset required, failing (not responding)", "text"),
    Metric("late_seconds", "s", "Duration of a reading that exceeded its time limit; absent otherwise"),
)

SYSTEM: tuple[Metric, ...] = (
    Metric("cpu_usage_percent", "%", "CPU usage of the cores available to this process, or of its CPU quota"),
    Metric("cpu_max_core_percent", "%", "Usage of the busiest core"),
    Metric("cpu<N>_percent", "%", "Usage of core N: one column per core, on machines with up to 256 cores"),
    Metric("cpu_iowait_percent", "%", "Time spent waiting for storage"),
    Metric("cpu_steal_percent", "%", "Time stolen by other virtual machines on the same hardware"),
    Metric("cpu_count", "", "Cores available to this process (affinity and cgroup quota)"),
    Metric("cpu_temperature_celsius", "°C", "Hottest CPU sensor"),
    Metric("cpu_throttled_seconds", "s", "Time the cgroup was throttled by its CPU quota", "counter"),
    Metric("load_1m", "", "Load average over one minute"),
    Metric("load_5m", "", "Load average over five minutes"),
    Metric("load_15m", "", "Load average over fifteen minutes"),
    Metric("memory_usage_percent", "%", "Memory in use as a share of the limit (cgroup or RAM)"),
    Metric("memory_used_mb", "MB", "Memory in use"),
    Metric("memory_available_mb", "MB", "Memory available without swapping"),
    Metric("memory_total_mb", "MB", "Memory limit: the cgroup limit, or RAM without one"),
    Metric("memory_limit_mb", "MB", "Memory limit of the cgroup; absent without one"),
    Metric("swap_used_mb", "MB", "Swap in use"),
    Metric("swap_usage_percent", "%", "Swap in use as a share of all swap"),
    Metric("disk_read_mb_s", "MB/s", "Read from all disks"),
    Metric("disk_write_mb_s", "MB/s", "Written to all disks"),
    Metric("disk_read_iops", "1/s", "Reads per second"),
    Metric("disk_write_iops", "1/s", "Writes per second"),
    Metric("disk_busy_percent", "%", "Busiest disk: share of time with a request in flight"),
    Metric("disk_usage_percent", "%", "Space used on the file system of the run folder"),
    Metric("disk_free_gb", "GB", "Space left on the file system of the run folder"),
    Metric(
        "network_receive_mb_s",
        "MB/s",
        "Received on the physical interfaces (in a container: on all but loopback)",
    ),
    Metric("network_send_mb_s", "MB/s", "Sent on the physical interfaces (in a container: on all but loopback)"),
    Metric("network_errors_total", "errors", "Errors and drops on the same interfaces", "counter"),
    Metric("pressure_cpu_percent", "%", "Time some task waited for a CPU (10 s average)"),
    Metric("pressure_memory_percent", "%", "Time some task waited for memory (10 s average)"),
    Metric("pressure_io_percent", "%", "Time some task waited for storage (10 s average)"),
    Metric("oom_kills_total", "", "Processes killed by the kernel's OOM killer since boot", "counter"),
    Metric("cgroup_oom_kills_total", "", "Processes killed because the cgroup reached its memory limit", "counter"),
    Metric("late_seconds", "s", "Duration of a reading that exceeded its time limit; absent otherwise"),
)

PROCESS: tuple[Metric, ...] = (
    Metric("process_count", "", "Processes in the rank's tree, data loader workers included"),
    Metric("cpu_percent", "%", "CPU usage of the tree; 100 is one core"),
    Metric("main_cpu_percent", "%", "CPU usage of the rank's own process"),
    Metric("rss_mb", "MB", "Resident memory of the tree; shared pages count in each process"),
    Metric("pss_mb", "MB", "Proportional memory of the tree: shared pages counted once"),
    Metric("thread_count", "", "Threads of the tree"),
    Metric("fd_count", "", "Open file descriptors of the tree"),
    Metric("fd_limit", "", "Soft limit on file descriptors of the rank's own process"),
    Metric("read_mb_s", "MB/s", "Read from storage by the tree"),
    Metric("write_mb_s", "MB/s", "Written to storage by the tree"),
    Metric("gpu_memory_mb", "MB", "GPU memory held by the tree, all GPUs; absent where the driver does not report it"),
    Metric("gpu_sm_percent", "%", "SM utilization by the tree; 100 is one GPU"),
    Metric(
        "process_state",
        "",
        "State of the rank's own process: running, sleeping, disk sleep, stopped, zombie",
        "text",
    ),
    Metric("late_seconds", "s", "Duration of a reading that exceeded its time limit; absent otherwise"),
)

SOURCE: tuple[Metric, ...] = (
    Metric("source_up", "", "1 if the latest reading of this unit succeeded in time, else 0"),
    Metric("source_age_seconds", "s", "Time since the last successful reading began"),
    Metric("source_duration_seconds", "s", "Duration of the last successful reading"),
    Metric("source_errors_total", "errors", "Readings that failed, since the agent started", "counter"),
    Metric("source_skipped_total", "", "Readings skipped because an earlier one took too long", "counter"),
)

TABLES: dict[str, tuple[Metric, ...]] = {
    "training": TRAINING,
    "gpu": GPU,
    "system": SYSTEM,
    "process": PROCESS,
    "source": SOURCE,
}


@functools.lru_cache(maxsize=1 << 14)
def find(table: str, name: str) -> Metric | None:
    """The row for `name`, also by alias or as one of a family; None for a metric of the user's own."""
    family = re.sub(r"\d+", "<N>", name)
    for metric in TABLES.get(table, ()):
        if metric.name in (name, family) or name in metric.aliases:
            return metric
    return None


_TITLES = {
    "training": "Training: `training_metrics_*.jsonl`, one line per `log()` call, plus your own names",
    "gpu": "GPU: `gpu_metrics_*.jsonl`, one line per GPU and sample",
    "system": "Host: `system_metrics_*.jsonl`",
    "process": "Ranks' processes: `process_metrics_*.jsonl`, one line per rank, its whole tree",
    "source": "Sources: `source_metrics_*.jsonl`",
}


def render_markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made from `src/trainvitals/catalog.py` by `python -m trainvitals.catalog > docs/metrics.md`. MB is 1,048,576",
        "bytes. A value that could not be read is a missing key, never 0 or a placeholder.",
    ]
    for table, metrics in TABLES.items():
        lines += ["", f"## {_TITLES[table]}", "", "| name | unit | kind | meaning |", "|---|---|---|---|"]
        for metric in metrics:
            also = f" (also read from {', '.join(f'`{name}`' for name in metric.aliases)})" if metric.aliases else ""
            lines.append(f"| `{metric.name}` | {metric.unit} | {metric.kind} | {metric.help}{also} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render_markdown())

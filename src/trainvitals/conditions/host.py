"""The machine and the processes on it: CPU, memory, disk."""

from __future__ import annotations

from trainvitals.conditions.gpu import OOM_CORRELATION, OOM_STEPS, OOM_WINDOW
from trainvitals.conditions.promql import RANK, correlation, known_for
from trainvitals.conditions.row import Colour, Condition, LiveRule, PrometheusRule, Threshold

DISK_WINDOW, DISK_CORRELATION = "30m", 0.9
"""Over half an hour, and (`disk_full_hours`) no further ahead than twice that: the first checkpoints of a run that
keeps a few of them fill the disk as steadily as those of one that keeps all."""
_GROWTH = "slope(process[*].rss_mb, 30m)"

ROWS: tuple[Condition, ...] = (
    Condition(
        "cpu_high",
        "host",
        "CPUs at full load",
        "info",
        "Fine if the GPUs are busy too. If they wait, data loading is the bottleneck: use fewer transforms, or store "
        "decoded data.",
        thresholds=(
            Threshold("cpu_usage_percent", 85, "%", "CPU usage above this is full load"),
            Threshold("cpu_usage_critical_percent", 97, "%", "CPU usage above this is critical"),
        ),
        live=LiveRule(
            "mean(system.cpu_usage_percent, 5m) > $cpu_usage_percent",
            "CPU at {cpu_usage_percent:.0f} % on {host}",
            wait="60s",
            clear="mean(system.cpu_usage_percent, 5m) < $cpu_usage_percent - 10",
        ),
        prometheus=PrometheusRule(
            "avg_over_time(<system.cpu_usage_percent>[5m]) > ~system.cpu_usage_percent:$cpu_usage_percent",
            "CPU at full load on {{ $labels.host }}",
        ),
        colours=(Colour("system", "cpu_usage_percent", "cpu_usage_percent", "cpu_usage_critical_percent"),),
    ),
    Condition(
        "cpu_bound",
        "host",
        "CPU-bound: GPUs wait for the CPU",
        "warning",
        "Do less on the main thread: tokenize and augment in loader workers or beforehand; compile the model or use "
        "CUDA graphs; or use more cores.",
        thresholds=(Threshold("main_thread_percent", 95, "%", "main thread's use of its core while GPUs wait"),),
        findings=("cpu.bound",),
    ),
    Condition(
        "cpu_contended",
        "host",
        "CPUs busy with other programs",
        "warning",
        "Find them with top, and stop or move them; or give the training cores of its own (taskset, a container's or "
        "job's CPU request).",
        thresholds=(
            Threshold("other_programs_percent", 50, "%", "share of all CPUs that other programs use"),
            Threshold("cpu_pressure_percent", 50, "%", "share of time in which a task waits for a CPU, meanwhile"),
        ),
        findings=("cpu.contended",),
    ),
    Condition(
        "io_bound",
        "host",
        "storage-bound: GPUs wait for storage",
        "warning",
        "Move the data to a local disk, cache it in memory, or read larger files sequentially.",
        thresholds=(
            Threshold("io_wait_percent", 50, "%", "I/O wait of the CPUs while GPUs wait"),
            Threshold("io_pressure_percent", 20, "%", "I/O pressure while GPUs wait"),
        ),
        findings=("io.bound",),
    ),
    Condition(
        "io_pressure_high",
        "host",
        "tasks waiting for storage",
        "warning",
        "Fine if the GPUs are busy. If they wait: use a local disk, a cache in memory, or larger files read "
        "sequentially.",
        thresholds=(
            # Loader workers that read data wait for it at times, and nothing is wrong with that.
            Threshold("io_pressure_high_percent", 40, "%", "share of time in which a task waits for storage"),
            Threshold("io_pressure_critical_percent", 80, "%", "the same, critical"),
        ),
        colours=(Colour("system", "pressure_io_percent", "io_pressure_high_percent", "io_pressure_critical_percent"),),
    ),
    Condition(
        "memory_pressure_high",
        "host",
        "tasks waiting for memory",
        "warning",
        "Free memory: use fewer loader workers or a smaller cache.",
        thresholds=(
            Threshold("memory_pressure_percent", 10, "%", "share of time in which a task waits for memory"),
            Threshold("memory_pressure_critical_percent", 40, "%", "the same, critical"),
        ),
        colours=(
            Colour("system", "pressure_memory_percent", "memory_pressure_percent", "memory_pressure_critical_percent"),
        ),
    ),
    Condition(
        "memory_high",
        "host",
        "host memory nearly full",
        "warning",
        "At 100 % the kernel kills the largest process. Use fewer loader workers or a smaller cache.",
        thresholds=(
            Threshold("memory_usage_percent", 90, "%", "host memory above this is nearly full"),
            Threshold("memory_usage_critical_percent", 97, "%", "host memory above this is full"),
        ),
        live=LiveRule(
            "system.memory_usage_percent > $memory_usage_percent",
            "{host}: memory usage is {memory_usage_percent:.0f} %",
            wait="30s",
            clear="system.memory_usage_percent < $memory_usage_percent - 5",
        ),
        prometheus=PrometheusRule(
            "<system.memory_usage_percent> > ~system.memory_usage_percent:$memory_usage_percent",
            "Memory on {{ $labels.host }} is nearly full",
        ),
        colours=(Colour("system", "memory_usage_percent", "memory_usage_percent", "memory_usage_critical_percent"),),
    ),
    Condition(
        "memory_oom_soon",
        "host",
        "host memory about to run out",
        "critical",
        "Save a checkpoint now. Then find the process that grows: trainvitals top.",
        live=LiveRule(
            f"correlation(system.memory_available_mb, {OOM_WINDOW}) < -{OOM_CORRELATION} "
            f"and slope(system.memory_available_mb, {OOM_WINDOW}) < 0 and "
            f"system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) < $oom_minutes * 60 "
            # A cache that fills with each pass over the data falls as steadily, and is given back long before the end.
            "and (system.memory_available_mb < 0.25 * system.memory_total_mb "
            f"or system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) < 600) "
            f"and max(rank[*].step) > {OOM_STEPS}",
            "{host} will run out of memory in about {minutes:.0f} minutes at this rate ({memory_available_mb:.0f} MB "
            "left)",
            wait="60s",
            clear=f"correlation(system.memory_available_mb, {OOM_WINDOW}) > -0.5",
            let={"minutes": f"system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) / 60"},
        ),
    ),
    Condition(
        "swap_used",
        "host",
        "swapping hosts",
        "warning",
        "Swapping can make training a hundred times slower. Free memory: use fewer loader workers or a smaller cache.",
        thresholds=(
            Threshold("swap_usage_percent", 50, "%", "swap usage above this, and growing"),
            Threshold("swap_usage_critical_percent", 90, "%", "swap usage above this is nearly full"),
        ),
        live=LiveRule(
            "system.swap_usage_percent > $swap_usage_percent and change(system.swap_used_mb, 5m) > 0",
            "{host} is swapping: {swap_used_mb:.0f} MB, and growing",
            wait="60s",
            clear="system.swap_usage_percent < $swap_usage_percent - 10 or change(system.swap_used_mb, 5m) <= 0",
            clear_wait="60s",
        ),
        prometheus=PrometheusRule(
            "<system.swap_usage_percent> > ~system.swap_usage_percent:$swap_usage_percent"
            " and delta(<system.swap_used_mb>[5m]) > 0",
            "{{ $labels.host }} is swapping",
        ),
        colours=(Colour("system", "swap_usage_percent", "swap_usage_percent", "swap_usage_critical_percent"),),
    ),
    Condition(
        "disk_space_low",
        "host",
        "disks nearly full",
        "warning",
        "A checkpoint that does not fit can end the run. Remove old checkpoints, or save elsewhere.",
        thresholds=(
            Threshold("disk_usage_percent", 95, "%", "disk usage above this is nearly full"),
            Threshold("disk_usage_critical_percent", 98, "%", "disk usage above this is full"),
            Threshold("disk_free_gb", 2, "GB", "free space below this is low", below=True),
            Threshold("disk_free_critical_gb", 0.5, "GB", "free space below this is critical", below=True),
        ),
        live=LiveRule(
            "system.disk_usage_percent > $disk_usage_percent or system.disk_free_gb < $disk_free_gb",
            "Run folder disk: {disk_free_gb:.1f} GB left",
            wait="10s",
            clear="system.disk_usage_percent < $disk_usage_percent - 2 and system.disk_free_gb > $disk_free_gb * 1.5",
        ),
        prometheus=PrometheusRule(
            "<system.disk_usage_percent> > ~system.disk_usage_percent:$disk_usage_percent"
            " or <system.disk_free_gb> < ~system.disk_free_gb:$disk_free_gb",
            "Run folder disk on {{ $labels.host }} is nearly full",
        ),
        colours=(
            Colour("system", "disk_usage_percent", "disk_usage_percent", "disk_usage_critical_percent"),
            Colour("system", "disk_free_gb", "disk_free_gb", "disk_free_critical_gb"),
        ),
    ),
    Condition(
        "disk_full_soon",
        "host",
        "disks about to fill up",
        "warning",
        "Find what is being written; remove old checkpoints, or keep fewer.",
        thresholds=(
            Threshold("disk_full_hours", 1, "h", "a disk that will be full within this time is about to fill up"),
        ),
        live=LiveRule(
            f"correlation(system.disk_free_gb, {DISK_WINDOW}) < -{DISK_CORRELATION} "
            f"and slope(system.disk_free_gb, {DISK_WINDOW}) < 0 and "
            f"system.disk_free_gb / -slope(system.disk_free_gb, {DISK_WINDOW}) < $disk_full_hours * 3600",
            "Run folder disk will be full in about {minutes:.0f} minutes at this rate",
            wait="60s",
            clear=f"correlation(system.disk_free_gb, {DISK_WINDOW}) > -0.5",
            let={"minutes": f"system.disk_free_gb / -slope(system.disk_free_gb, {DISK_WINDOW}) / 60"},
        ),
        prometheus=PrometheusRule(
            f"deriv(<system.disk_free_gb>[{DISK_WINDOW}]) < - <system.disk_free_gb> / (3600 * $disk_full_hours)"
            f" and {known_for('<system.disk_free_gb>', '15m')}"
            f" and {correlation('<system.disk_free_gb>', DISK_WINDOW)} < -{DISK_CORRELATION}",
            "Run folder disk on {{ $labels.host }} will soon be full at this rate",
        ),
        findings=("disk.full",),
    ),
    Condition(
        "file_descriptors_high",
        "rank",
        "processes low on file descriptors",
        "warning",
        "Raise the limit before the run starts (ulimit -n), or use "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        thresholds=(Threshold("file_descriptor_percent", 80, "%", "open files, as a share of the process's limit"),),
        live=LiveRule(
            # The count is that of the rank and its workers, the limit that of each: their mean is compared.
            "process[*].fd_count / process[*].process_count > process[*].fd_limit * $file_descriptor_percent / 100",
            "{Participant} has {fd_count:.0f} open files (limit {fd_limit:.0f} per process)",
            wait="10s",
        ),
        prometheus=PrometheusRule(
            "<process.fd_count> / <process.process_count> > <process.fd_limit> * $file_descriptor_percent / 100",
            RANK + " is low on file descriptors",
        ),
    ),
    Condition(
        "host_memory_leak",
        "rank",
        "host memory leaks",
        "warning",
        "Common causes: lists of Python objects shared with loader workers (use arrays), unbounded caches, losses "
        "kept without .item().",
        thresholds=(
            Threshold("leak_hours", 6, "h", "processes that fill host memory within this time leak"),
            Threshold("leak_critical_hours", 1, "h", "the same, critical"),
            Threshold("host_leak_percent_per_hour", 1, "%", "so does growth by this share of host memory per hour"),
            Threshold("host_leak_percent", 5, "%", "smaller growth is not a leak"),
        ),
        live=LiveRule(
            f"leaking(process[*].rss_mb, $host_leak_percent / 100) > 0 and ({_GROWTH} * 3600 * $leak_hours > "
            f"system.memory_available_mb or {_GROWTH} * 3600 > system.memory_total_mb * "
            "$host_leak_percent_per_hour / 100)",
            "{Participant}: memory grows by {per_hour:.0f} MB per hour, host full in about {hours:.1f} hours",
            clear="leaking(process[*].rss_mb, $host_leak_percent / 100) == 0",
            let={"per_hour": f"{_GROWTH} * 3600", "hours": f"system.memory_available_mb / {_GROWTH} / 3600"},
        ),
        findings=("host.memory_leak",),
        noticed_by_watch=True,
    ),
)

"""The machine and the processes on it: CPU, memory, disk."""

from __future__ import annotations

from trainvitals.conditions.gpu import OOM_CORRELATION, OOM_STEPS, OOM_WINDOW
from trainvitals.conditions.promql import RANK, correlation
from trainvitals.conditions.row import Colour, Condition, LiveRule, PrometheusRule, Threshold

DISK_WINDOW, DISK_CORRELATION = "30m", 0.9
"""Over half an hour, and (`disk_full_hours`) no further ahead than twice that: the first checkpoints of a run that
keeps a few of them fill the disk as steadily as those of one that keeps all."""

ROWS: tuple[Condition, ...] = (
    Condition(
        "cpu_high",
        "host",
        "CPUs that are fully used",
        "info",
        "Fine if the GPUs are busy too. If they wait, data loading is the limit: fewer transforms, or decoded data on "
        "disk.",
        thresholds=(
            Threshold("cpu_usage_percent", 85, "%", "the CPUs are fully used"),
            Threshold("cpu_usage_critical_percent", 97, "%", "the CPUs are at their limit"),
        ),
        live=LiveRule(
            "mean(system.cpu_usage_percent, 5m) > $cpu_usage_percent",
            "The CPU is used {cpu_usage_percent:.0f} % on {host}",
            wait="60s",
            clear="mean(system.cpu_usage_percent, 5m) < $cpu_usage_percent - 10",
        ),
        prometheus=PrometheusRule(
            "avg_over_time(<system.cpu_usage_percent>[5m]) > ~system.cpu_usage_percent:$cpu_usage_percent",
            "The CPU of {{ $labels.host }} is fully used",
        ),
        colours=(Colour("system", "cpu_usage_percent", "cpu_usage_percent", "cpu_usage_critical_percent"),),
    ),
    Condition(
        "cpu_bound",
        "host",
        "CPUs at their limit while GPUs wait",
        "warning",
        "Fewer things on the main thread: tokenise and augment in loader workers or beforehand; compile the model or "
        "use CUDA graphs; or ask for more cores.",
        thresholds=(
            Threshold("main_thread_percent", 95, "%", "the main thread is at the limit of its core while GPUs wait"),
        ),
        findings=("cpu.bound",),
    ),
    Condition(
        "io_bound",
        "host",
        "storage at its limit while GPUs wait",
        "warning",
        "Move the data to a local disk, cache it in memory, or read larger files in order.",
        thresholds=(
            Threshold("io_wait_percent", 50, "%", "the CPUs wait for storage while GPUs wait"),
            Threshold("io_pressure_percent", 20, "%", "tasks wait for storage while GPUs wait"),
        ),
        findings=("io.bound",),
    ),
    Condition(
        "io_pressure_high",
        "host",
        "tasks that wait for storage",
        "warning",
        "Fine if the GPUs are busy. If they wait: a local disk, a cache in memory, larger files read in order.",
        thresholds=(
            # Loader workers that read data wait for it at times, and nothing is wrong with that.
            Threshold("io_pressure_high_percent", 40, "%", "share of the time in which a task waits for storage"),
            Threshold("io_pressure_critical_percent", 80, "%", "the same, critical"),
        ),
        colours=(Colour("system", "pressure_io_percent", "io_pressure_high_percent", "io_pressure_critical_percent"),),
    ),
    Condition(
        "memory_pressure_high",
        "host",
        "tasks that wait for memory",
        "warning",
        "Free memory: fewer loader workers, a smaller cache.",
        thresholds=(
            Threshold("memory_pressure_percent", 10, "%", "share of the time in which a task waits for memory"),
            Threshold("memory_pressure_critical_percent", 40, "%", "the same, critical"),
        ),
        colours=(
            Colour("system", "pressure_memory_percent", "memory_pressure_percent", "memory_pressure_critical_percent"),
        ),
    ),
    Condition(
        "memory_high",
        "host",
        "host memory that is nearly full",
        "warning",
        "Over 100 % the kernel kills the largest process. Fewer loader workers, or a smaller cache.",
        thresholds=(
            Threshold("memory_usage_percent", 90, "%", "memory of the host is nearly full"),
            Threshold("memory_usage_critical_percent", 97, "%", "memory of the host is full"),
        ),
        live=LiveRule(
            "system.memory_usage_percent > $memory_usage_percent",
            "Memory of {host} is used {memory_usage_percent:.0f} %",
            wait="30s",
            clear="system.memory_usage_percent < $memory_usage_percent - 5",
        ),
        prometheus=PrometheusRule(
            "<system.memory_usage_percent> > ~system.memory_usage_percent:$memory_usage_percent",
            "Memory of {{ $labels.host }} is nearly full",
        ),
        colours=(Colour("system", "memory_usage_percent", "memory_usage_percent", "memory_usage_critical_percent"),),
    ),
    Condition(
        "memory_oom_soon",
        "host",
        "host memory that is full soon",
        "critical",
        "Save a checkpoint now. Then see which process grows: trainvitals top.",
        live=LiveRule(
            f"correlation(system.memory_available_mb, {OOM_WINDOW}) < -{OOM_CORRELATION} "
            f"and slope(system.memory_available_mb, {OOM_WINDOW}) < 0 and "
            f"system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) < $oom_minutes * 60 "
            # A cache that fills with each pass over the data falls as steadily, and is given back long before the end.
            "and (system.memory_available_mb < 0.25 * system.memory_total_mb "
            f"or system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) < 600) "
            f"and max(rank[*].step) > {OOM_STEPS}",
            "{host} runs out of memory in about {minutes:.0f} minutes at this rate ({memory_available_mb:.0f} MB left)",
            wait="60s",
            clear=f"correlation(system.memory_available_mb, {OOM_WINDOW}) > -0.5",
            let={"minutes": f"system.memory_available_mb / -slope(system.memory_available_mb, {OOM_WINDOW}) / 60"},
        ),
    ),
    Condition(
        "swap_used",
        "host",
        "a host that swaps",
        "warning",
        "A training that swaps may be a hundred times slower. Free memory: fewer workers, smaller cache.",
        thresholds=(
            Threshold("swap_usage_percent", 50, "%", "swap is used more than that, and its use grows"),
            Threshold("swap_usage_critical_percent", 90, "%", "swap is nearly full"),
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
        "a disk that is nearly full",
        "warning",
        "A checkpoint that does not fit ends many trainings. Remove old checkpoints, or save elsewhere.",
        thresholds=(
            Threshold("disk_usage_percent", 95, "%", "the disk is nearly full"),
            Threshold("disk_usage_critical_percent", 98, "%", "the disk is full"),
            Threshold("disk_free_gb", 2, "GB", "little space is left on the disk", below=True),
            Threshold("disk_free_critical_gb", 0.5, "GB", "no space is left on the disk", below=True),
        ),
        live=LiveRule(
            "system.disk_usage_percent > $disk_usage_percent or system.disk_free_gb < $disk_free_gb",
            "The disk of the run folder has {disk_free_gb:.1f} GB left",
            wait="10s",
            clear="system.disk_usage_percent < $disk_usage_percent - 2 and system.disk_free_gb > $disk_free_gb * 1.5",
        ),
        prometheus=PrometheusRule(
            "<system.disk_usage_percent> > ~system.disk_usage_percent:$disk_usage_percent"
            " or <system.disk_free_gb> < ~system.disk_free_gb:$disk_free_gb",
            "The disk of the run folders of {{ $labels.host }} is nearly full",
        ),
        colours=(
            Colour("system", "disk_usage_percent", "disk_usage_percent", "disk_usage_critical_percent"),
            Colour("system", "disk_free_gb", "disk_free_gb", "disk_free_critical_gb"),
        ),
    ),
    Condition(
        "disk_full_soon",
        "host",
        "a disk that is full soon",
        "warning",
        "See what is being written; remove old checkpoints, or keep fewer of them.",
        thresholds=(Threshold("disk_full_hours", 1, "h", "a disk that is full within this time is full soon"),),
        live=LiveRule(
            f"correlation(system.disk_free_gb, {DISK_WINDOW}) < -{DISK_CORRELATION} "
            f"and slope(system.disk_free_gb, {DISK_WINDOW}) < 0 and "
            f"system.disk_free_gb / -slope(system.disk_free_gb, {DISK_WINDOW}) < $disk_full_hours * 3600",
            "The disk of the run folder is full in about {minutes:.0f} minutes at this rate",
            wait="60s",
            clear=f"correlation(system.disk_free_gb, {DISK_WINDOW}) > -0.5",
            let={"minutes": f"system.disk_free_gb / -slope(system.disk_free_gb, {DISK_WINDOW}) / 60"},
        ),
        prometheus=PrometheusRule(
            f"deriv(<system.disk_free_gb>[{DISK_WINDOW}]) < - <system.disk_free_gb> / (3600 * $disk_full_hours)"
            f" and {correlation('<system.disk_free_gb>', DISK_WINDOW)} < -{DISK_CORRELATION}",
            "The disk of the run folders of {{ $labels.host }} is full soon at this rate",
        ),
        findings=("disk.full",),
    ),
    Condition(
        "file_descriptors_high",
        "rank",
        "processes short of file descriptors",
        "warning",
        "Raise it before the start (ulimit -n), or use torch.multiprocessing.set_sharing_strategy('file_system').",
        thresholds=(
            Threshold("file_descriptor_percent", 80, "%", "share of the files a process may open that are open"),
        ),
        live=LiveRule(
            # The count is that of the rank and its workers, the limit that of each: their mean is compared.
            "process[*].fd_count / process[*].process_count > process[*].fd_limit * $file_descriptor_percent / 100",
            "Rank {rank} has {fd_count:.0f} files open; a process may open {fd_limit:.0f}",
            wait="10s",
        ),
        prometheus=PrometheusRule(
            "<process.fd_count> / <process.process_count> > <process.fd_limit> * $file_descriptor_percent / 100",
            RANK + " is short of file descriptors",
        ),
    ),
    Condition(
        "host_memory_leak",
        "rank",
        "processes that grow",
        "warning",
        "Usual causes: lists of Python objects shared with loader workers (use arrays), caches without a limit, losses "
        "kept without .item().",
        thresholds=(
            Threshold("leak_hours", 6, "h", "processes that fill the host within this time leak"),
            Threshold("leak_critical_hours", 1, "h", "the same, critical"),
            Threshold("host_leak_percent_per_hour", 1, "%", "a leak is also this share of the host's memory an hour"),
            Threshold("host_leak_percent", 5, "%", "a process that grew by less does not leak"),
        ),
        live=LiveRule(
            "correlation(process[*].rss_mb, 30m) > 0.95 and "
            "slope(process[*].rss_mb, 30m) * $leak_hours * 3600 > system.memory_available_mb",
            "Memory of rank {rank} grows by {per_hour:.0f} MB per hour; full in about {hours:.1f} hours",
            wait="5m",
            clear="correlation(process[*].rss_mb, 30m) < 0.5",
            let={
                "per_hour": "slope(process[*].rss_mb, 30m) * 3600",
                "hours": "system.memory_available_mb / slope(process[*].rss_mb, 30m) / 3600",
            },
        ),
        findings=("host.memory_leak",),
        noticed_by_watch=True,
    ),
)

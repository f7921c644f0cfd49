"""The rules that are on by default, as data, in the language of the user's own rules.

`THRESHOLDS` are the numbers that `alerts.thresholds` can change. Every rule waits (`for`), has a threshold to clear
that is lower than the one to fire (`clear`), and says what to do (`advice`). They are judged on healthy and faulty runs
by tests/alerts/test_quality.py; docs/rules.md is written from this table.

Rules of severity `info` are recorded and shown; by default nobody is sent a message for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trainvitals.alerts.language import RuleError
from trainvitals.alerts.rules import ACTIONS, Rule, assemble
from trainvitals.errors import nearest
from trainvitals.settings import Settings

THRESHOLDS: dict[str, float] = {
    "gpu_temperature_celsius": 80,
    "gpu_memory_percent": 90,
    "gpu_idle_percent": 5,
    "gpu_low_use_percent": 30,
    "gpu_price_per_hour": 2.0,
    "cpu_usage_percent": 85,
    "memory_usage_percent": 90,
    "swap_usage_percent": 50,
    "disk_usage_percent": 95,
    "disk_free_gb": 2,
    "disk_full_hours": 1,
    "file_descriptor_percent": 80,
    "loss_spike_deviations": 8,
    "loss_divergence_percent": 50,
    "loss_up_percent": 10,
    "loss_plateau_steps": 2000,
    "grad_norm_exploded": 10,
    "grad_norm_vanished": 1e-7,
    "learning_rate_too_low": 1e-8,
    "learning_rate_too_high": 1,
    "throughput_drop_percent": 50,
    "step_time_factor": 2,
    "straggler_factor": 1.25,
    "checkpoint_factor": 3,
    "data_share_percent": 30,
    "leak_hours": 6,
    "oom_minutes": 30,
}

Row = Mapping[str, Any]

GPU: tuple[Row, ...] = (
    {
        "name": "gpu_temperature_high",
        "when": "gpu[*].temperature_celsius > $gpu_temperature_celsius",
        "for": "30s",
        "clear": "gpu[*].temperature_celsius < $gpu_temperature_celsius - 5",
        "clear_for": "30s",
        "message": "GPU {gpu_index} is at {temperature_celsius:.0f} °C (limit {threshold:g} °C)",
        "advice": "Check the fans and the air in front of the machine, or lower the power limit: "
        "nvidia-smi -i {gpu_index} -pl WATTS.",
    },
    {
        "name": "gpu_temperature_limit",
        "when": "gpu[*].temperature_celsius >= gpu[*].temperature_limit_celsius",
        "clear": "gpu[*].temperature_celsius < gpu[*].temperature_limit_celsius - 5",
        "severity": "critical",
        "message": "GPU {gpu_index} is at {temperature_celsius:.0f} °C: at {threshold:g} °C it slows itself down",
        "advice": "Cooling has failed or is blocked. Stop the run if it does not fall within minutes.",
    },
    {
        "name": "gpu_memory_high",
        "when": "gpu[*].memory_percent > $gpu_memory_percent",
        "for": "60s",
        "clear": "gpu[*].memory_percent < $gpu_memory_percent - 5",
        "severity": "info",
        "message": "GPU {gpu_index} uses {memory_percent:.0f} % of its memory",
        "advice": "Normal for a run that fits tightly. If it fails with out of memory, lower the batch size or "
        "accumulate gradients.",
    },
    {
        "name": "gpu_throttled_heat",
        "when": 'contains(gpu[*].throttle_reasons, "thermal slowdown")',
        "for": "5s",
        "clear": 'not contains(gpu[*].throttle_reasons, "thermal slowdown")',
        "clear_for": "60s",
        "message": "GPU {gpu_index} is slowed down by heat ({throttle_reasons})",
        "advice": "It computes slower than it could, and so do all ranks that wait for it. Check its cooling.",
    },
    {
        "name": "gpu_throttled_power",
        "when": 'contains(gpu[*].throttle_reasons, "power brake") '
        'or contains(gpu[*].throttle_reasons, "hardware slowdown")',
        "for": "5s",
        "clear": 'not contains(gpu[*].throttle_reasons, "power brake") '
        'and not contains(gpu[*].throttle_reasons, "hardware slowdown")',
        "clear_for": "60s",
        "message": "GPU {gpu_index} is slowed down by the hardware ({throttle_reasons})",
        "advice": "The power supply asks for less, or protects itself. Check cables and supply, or lower the power "
        "limit of all GPUs.",
    },
    {
        "name": "gpu_xid",
        "when": "change(gpu[*].xid_errors_total, 10m) > 0",
        "severity": "critical",
        "let": {"xid": "gpu[*].xid_last"},
        "message": "GPU {gpu_index}: Xid {xid:.0f}",
        "advice": "{xid_advice}",
    },
    {
        "name": "gpu_ecc_uncorrected",
        "when": "change(gpu[*].ecc_uncorrected_total, 10m) > 0",
        "severity": "critical",
        "message": "GPU {gpu_index}: {value:.0f} memory errors that ECC could not correct",
        "advice": "Results since then may be wrong. Restart from the last checkpoint and reset the GPU; "
        "if it comes again, replace it.",
    },
    {
        "name": "gpu_row_remap_failed",
        "when": "gpu[*].row_remap_failed == 1",
        "severity": "critical",
        "message": "GPU {gpu_index}: a bad memory row could not be set aside",
        "advice": "Replace this GPU; do not start long runs on it.",
    },
    {
        "name": "gpu_row_remap_pending",
        "when": "gpu[*].row_remap_pending == 1",
        "for": "10s",
        "message": "GPU {gpu_index}: a bad memory row waits for a reset",
        "advice": "Reset the GPU when the run is done: nvidia-smi --gpu-reset -i {gpu_index}.",
    },
    {
        "name": "gpu_lost",
        "when": 'gpu[*].state == "lost" or gpu[*].state == "reset required"',
        "clear": 'gpu[*].state == "ok"',
        "severity": "critical",
        "message": "GPU {gpu_index} is {state}",
        "advice": "Restart the machine (lost) or reset the GPU (reset required), then resume from the last checkpoint. "
        "If it comes again, replace the GPU.",
    },
    {
        "name": "gpu_fan_stopped",
        # Many cards stop their fans on purpose when cool.
        "when": "gpu[*].fan_speed_percent == 0 and gpu[*].temperature_celsius > $gpu_temperature_celsius - 10",
        "clear": "gpu[*].fan_speed_percent > 0 or gpu[*].temperature_celsius < $gpu_temperature_celsius - 20",
        "severity": "critical",
        "message": "The fan of GPU {gpu_index} stands still at {temperature_celsius:.0f} °C",
        "advice": "Stop the run before the GPU slows down or switches off, and look at the fan.",
    },
    {
        "name": "gpu_idle",
        "when": "max(gpu[*].utilization_percent, 10m) < $gpu_idle_percent and gpu[*].memory_percent > 2 "
        "and gpu[*].held_by_run == 1",
        "for": "5m",
        "clear": "gpu[*].utilization_percent >= $gpu_idle_percent",
        "message": "GPU {gpu_index} has done nothing for over 10 minutes while the run holds it",
        "advice": "See what the run waits for: trainvitals top, or py-spy dump on its process. Data, a lock, or "
        "another rank.",
    },
    {
        "name": "gpu_low_use",
        "when": "mean(gpu[*].utilization_percent, 30m) < $gpu_low_use_percent and gpu[*].memory_percent > 2 "
        "and gpu[*].held_by_run == 1",
        "for": "5m",
        "clear": "mean(gpu[*].utilization_percent, 30m) > $gpu_low_use_percent + 10",
        "severity": "info",
        "let": {
            "mean_use": "mean(gpu[*].utilization_percent, 30m)",
            "waste": "(1 - mean(gpu[*].utilization_percent, 30m) / 100) * $gpu_price_per_hour",
            "price": "$gpu_price_per_hour",
        },
        "message": "GPU {gpu_index} was used {mean_use:.0f} % over 30 minutes: about {waste:.2f} of {price:.2f} per "
        "hour is paid for nothing",
        "advice": "Find what it waits for: trainvitals runs show latest. "
        "The price is alerts.thresholds.gpu_price_per_hour.",
    },
    {
        "name": "gpu_memory_leak",
        "when": "correlation(memory_allocated_mb, 1000) > 0.95 "
        "and change(memory_allocated_mb, 1000) > 0.05 * mean(memory_allocated_mb, 1000)",
        "after": "2000 steps",
        "for": "200 steps",
        "clear": "correlation(memory_allocated_mb, 1000) < 0.5",
        "message": "GPU memory of rank {rank} grows with every step: {memory_allocated_mb:.0f} MB now",
        "advice": "Something keeps tensors: a list of losses without .item(), or a graph that is retained.",
    },
    {
        "name": "gpu_oom_soon",
        "when": "correlation(gpu[*].memory_used_mb, 5m) > 0.95 and slope(gpu[*].memory_used_mb, 5m) > 0 and "
        "(gpu[*].memory_total_mb - gpu[*].memory_used_mb) / slope(gpu[*].memory_used_mb, 5m) < $oom_minutes * 60 "
        "and max(rank[*].step) > 100",
        "for": "60s",
        "clear": "correlation(gpu[*].memory_used_mb, 5m) < 0.5",
        "severity": "critical",
        "let": {"minutes": "(gpu[*].memory_total_mb - gpu[*].memory_used_mb) / slope(gpu[*].memory_used_mb, 5m) / 60"},
        "message": "GPU {gpu_index} runs out of memory in about {minutes:.0f} minutes at this rate",
        "advice": "Save a checkpoint now. Then look for tensors that are kept (losses without .item()).",
    },
)

HOST: tuple[Row, ...] = (
    {
        "name": "cpu_high",
        "when": "mean(system.cpu_usage_percent, 5m) > $cpu_usage_percent",
        "for": "60s",
        "clear": "mean(system.cpu_usage_percent, 5m) < $cpu_usage_percent - 10",
        "severity": "info",
        "message": "The CPU is used {cpu_usage_percent:.0f} % on {host}",
        "advice": "Fine if the GPUs are busy too. If they wait, data loading is the limit: fewer transforms, or "
        "decoded data on disk.",
    },
    {
        "name": "memory_high",
        "when": "system.memory_usage_percent > $memory_usage_percent",
        "for": "30s",
        "clear": "system.memory_usage_percent < $memory_usage_percent - 5",
        "message": "Memory of {host} is used {memory_usage_percent:.0f} %",
        "advice": "Over 100 % the kernel kills the largest process. Fewer loader workers, or a smaller cache.",
    },
    {
        "name": "memory_oom_soon",
        "when": "correlation(system.memory_available_mb, 5m) < -0.95 and slope(system.memory_available_mb, 5m) < 0 and "
        "system.memory_available_mb / -slope(system.memory_available_mb, 5m) < $oom_minutes * 60 "
        # A cache that fills with each pass over the data falls as steadily, and is given back long before the end.
        "and (system.memory_available_mb < 0.25 * system.memory_total_mb "
        "or system.memory_available_mb / -slope(system.memory_available_mb, 5m) < 600) "
        "and max(rank[*].step) > 100",
        "for": "60s",
        "clear": "correlation(system.memory_available_mb, 5m) > -0.5",
        "severity": "critical",
        "let": {"minutes": "system.memory_available_mb / -slope(system.memory_available_mb, 5m) / 60"},
        "message": "{host} runs out of memory in about {minutes:.0f} minutes at this rate "
        "({memory_available_mb:.0f} MB left)",
        "advice": "Save a checkpoint now. Then see which process grows: trainvitals top.",
    },
    {
        "name": "swap_used",
        "when": "system.swap_usage_percent > $swap_usage_percent and change(system.swap_used_mb, 5m) > 0",
        "for": "60s",
        "clear": "system.swap_usage_percent < $swap_usage_percent - 10 or change(system.swap_used_mb, 5m) <= 0",
        "clear_for": "60s",
        "message": "{host} is swapping: {swap_used_mb:.0f} MB, and growing",
        "advice": "A training that swaps may be a hundred times slower. Free memory: fewer workers, smaller cache.",
    },
    {
        "name": "disk_space_low",
        "when": "system.disk_usage_percent > $disk_usage_percent or system.disk_free_gb < $disk_free_gb",
        "for": "10s",
        "clear": "system.disk_usage_percent < $disk_usage_percent - 2 and system.disk_free_gb > $disk_free_gb * 1.5",
        "message": "The disk of the run folder has {disk_free_gb:.1f} GB left",
        "advice": "A checkpoint that does not fit ends many trainings. Remove old checkpoints, or save elsewhere.",
    },
    {
        "name": "disk_full_soon",
        # Over half an hour, and no further ahead than twice that: the first checkpoints of a run that keeps a few of
        # them fill the disk as steadily as those of one that keeps all.
        "when": "correlation(system.disk_free_gb, 30m) < -0.9 and slope(system.disk_free_gb, 30m) < 0 and "
        "system.disk_free_gb / -slope(system.disk_free_gb, 30m) < $disk_full_hours * 3600",
        "for": "60s",
        "clear": "correlation(system.disk_free_gb, 30m) > -0.5",
        "let": {"minutes": "system.disk_free_gb / -slope(system.disk_free_gb, 30m) / 60"},
        "message": "The disk of the run folder is full in about {minutes:.0f} minutes at this rate",
        "advice": "See what is being written; keep fewer checkpoints.",
    },
    {
        "name": "file_descriptors_high",
        # The count is that of the rank and its workers, the limit that of each: their mean is compared.
        "when": "process[*].fd_count / process[*].process_count > process[*].fd_limit * $file_descriptor_percent / 100",
        "for": "10s",
        "message": "Rank {rank} has {fd_count:.0f} files open; a process may open {fd_limit:.0f}",
        "advice": "Raise it before the start (ulimit -n), or use "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
    },
    {
        "name": "host_memory_leak",
        "when": "correlation(process[*].rss_mb, 30m) > 0.95 and "
        "slope(process[*].rss_mb, 30m) * $leak_hours * 3600 > system.memory_available_mb",
        "for": "5m",
        "clear": "correlation(process[*].rss_mb, 30m) < 0.5",
        "let": {
            "per_hour": "slope(process[*].rss_mb, 30m) * 3600",
            "hours": "system.memory_available_mb / slope(process[*].rss_mb, 30m) / 3600",
        },
        "message": "Memory of rank {rank} grows by {per_hour:.0f} MB per hour; full in about {hours:.1f} hours",
        "advice": "Usual causes: lists of Python objects shared with loader workers (use arrays), caches without a "
        "limit, losses kept without .item().",
    },
)

TRAINING: tuple[Row, ...] = (
    {
        "name": "loss_not_finite",
        "when": "not isfinite(loss)",
        "clear": "isfinite(loss)",
        "clear_for": "20 steps",
        "severity": "critical",
        "message": "Loss is {loss} at step {step}",
        "advice": "Resume from a checkpoint before this step with half the learning rate, or clip gradients to 1.0; "
        "with fp16 try bf16.",
    },
    {
        "name": "loss_spike",
        # Distances, not factors: a loss may be negative (a log-likelihood, a policy's).
        "when": "deviation(loss, 200) > $loss_spike_deviations "
        "and loss - median(loss, 200) > 0.5 * abs(median(loss, 200)) "
        # Near zero a loss jumps by factors and means nothing: a spike is large against where the run was farthest off.
        "and loss - median(loss, 200) > "
        "0.15 * at_least(abs(max(median(loss, 20), all)), abs(min(median(loss, 20), all)))",
        "for": "3 steps",
        "after": "200 steps",
        "clear": "loss - median(loss, 200) <= 0.25 * abs(median(loss, 200)) "
        "or deviation(loss, 200) < $loss_spike_deviations / 2",
        "clear_for": "10 steps",
        "message": "Loss spike: {loss:.4g} at step {step}",
        "advice": "If it recovers, note the batches. If spikes come often: clip gradients, lower Adam's beta2 to 0.95.",
    },
    {
        "name": "loss_diverging",
        "when": "median(loss, 100) > min(median(loss, 100), all) + at_least("
        "abs(min(median(loss, 100), all)) * $loss_divergence_percent / 100, "
        "3 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
        "for": "100 steps",
        "after": "300 steps",
        "clear": "median(loss, 100) < min(median(loss, 100), all) + at_least("
        "abs(min(median(loss, 100), all)) * $loss_divergence_percent / 200, "
        "0.5 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
        "clear_for": "50 steps",
        "severity": "critical",
        "let": {"best": "min(median(loss, 100), all)"},
        "message": "Loss rises and does not recover: {value:.4g} against {best:.4g} at its best",
        "advice": "Roll back to before it rose, reduce the learning rate by 25 to 50 %, and skip those batches.",
    },
    {
        "name": "loss_above_baseline",
        # Also by more than the loss of one batch usually lies off: a few noisy batches more move the median too.
        "when": "median(loss, 100) > baseline(loss) + at_least(abs(baseline(loss)) * $loss_up_percent / 100, "
        "0.5 * (quantile(loss, 0.84, 500) - quantile(loss, 0.16, 500)))",
        "for": "100 steps",
        "after": "300 steps",
        "clear": "median(loss, 100) < baseline(loss)",
        "let": {"base": "baseline(loss)"},
        "message": "Loss {value:.4g} is over {base:.4g}, its baseline, by more than the limit",
        "advice": "Compare the two: trainvitals compare. Data order, learning rate and batch size first.",
    },
    {
        "name": "loss_plateau",
        "when": "since_improved(median(loss, 200), 0.002) > at_least($loss_plateau_steps, 0.6 * step)",
        "after": "1000 steps",
        "severity": "info",
        "let": {"since": "since_improved(median(loss, 200), 0.002)"},
        "message": "Loss has not fallen for {since:.0f} steps",
        "advice": "Done, or stuck: check the learning rate schedule, the order of the data, and frozen layers.",
    },
    {
        "name": "gradient_exploded",
        "when": "gradient_norm > $grad_norm_exploded and gradient_norm > 3 * median(gradient_norm, 200)",
        "for": "3 steps",
        "after": "100 steps",
        "clear": "gradient_norm < 2 * median(gradient_norm, 200) or gradient_norm < $grad_norm_exploded",
        "clear_for": "20 steps",
        "message": "Gradient norm is {gradient_norm:.4g} at step {step}",
        "advice": "Clip gradients (torch.nn.utils.clip_grad_norm_ with 1.0), lower the learning rate, or lengthen the "
        "warm-up.",
    },
    {
        "name": "gradient_outlier",
        "when": "gradient_norm > 10 * median(gradient_norm, 200) and deviation(gradient_norm, 200) > 8 "
        "and gradient_norm > 3 * early(gradient_norm)",
        "for": "3 steps",
        "after": "200 steps",
        "clear": "gradient_norm < 3 * median(gradient_norm, 200)",
        "clear_for": "20 steps",
        "severity": "info",
        "message": "Gradient norm {gradient_norm:.4g} is far from its own history",
        "advice": "Watch the loss over the next steps; clip gradients if it comes again.",
    },
    {
        "name": "gradient_vanished",
        # Where the loss is exactly 0 nothing is left to learn, and the gradient is rightly 0.
        "when": "gradient_norm < $grad_norm_vanished and (gradient_norm > 0 or loss != 0)",
        "for": "20 steps",
        "clear": "gradient_norm > 10 * $grad_norm_vanished",
        "message": "Gradients have vanished: norm {gradient_norm:.3g}",
        "advice": "Nothing is learned. Check for dead activations, a loss that is detached, or a loss scale of 0.",
    },
    {
        "name": "learning_rate_low",
        # A schedule that decays to zero never stands still before it ends: only a rate that is stuck is meant.
        "when": "max(learning_rate, 500) < $learning_rate_too_low "
        "and max(learning_rate, 500) == min(learning_rate, 500)",
        "after": "500 steps",
        "clear": "learning_rate >= $learning_rate_too_low",
        "message": "The learning rate has stood at {learning_rate:.3g} for 500 steps: at this rate nothing is learned",
        "advice": "Nothing, if its schedule has come to its end or these weights are frozen on purpose. Otherwise the "
        "schedule is shorter than the run, or was not restored on resume.",
    },
    {
        "name": "learning_rate_high",
        "when": "learning_rate > $learning_rate_too_high",
        "for": "10 steps",
        "clear": "learning_rate <= $learning_rate_too_high",
        "message": "The learning rate is {learning_rate:.3g}",
        "advice": "Usual ones are 1e-5 to 1e-1. If it is meant, raise alerts.thresholds.learning_rate_too_high.",
    },
    {
        "name": "throughput_low",
        "when": "median(throughput_samples_per_sec, 50) < baseline(throughput_samples_per_sec) "
        "* (1 - $throughput_drop_percent / 100)",
        "for": "25 steps",
        "clear": "median(throughput_samples_per_sec, 50) > baseline(throughput_samples_per_sec) "
        "* (1 - $throughput_drop_percent / 200)",
        "let": {"base": "baseline(throughput_samples_per_sec)"},
        "message": "Throughput is {value:.4g} samples/s, it was {base:.4g} at the start",
        "advice": "Look at what changed: GPU clocks and heat, data loading, another job on the machine "
        "(trainvitals top).",
    },
    {
        "name": "step_time_uneven",
        "when": "quantile(batch_time, 0.85, 200) > $step_time_factor * median(batch_time, 200)",
        "for": "100 steps",
        "after": "300 steps",
        "clear": "quantile(batch_time, 0.85, 200) < 1.25 * median(batch_time, 200)",
        "severity": "info",
        "message": "More than one step in seven takes over {threshold:.3g} s, the usual one half of that",
        "advice": "If it is every N steps: what happens then (evaluation, logging, new data shard)? Else: trainvitals "
        "runs show latest.",
    },
    {
        "name": "straggler",
        # In data parallel training every rank waits for the slowest, so whole steps are equally long; what a rank does
        # before it has to wait tells them apart.
        "when": "median(rank[*].forward_time, 50) > $straggler_factor * median(median(rank[*].forward_time, 50)) "
        "and count(median(rank[*].forward_time, 50)) > 2",
        "for": "30s",
        "clear": "median(rank[*].forward_time, 50) < 1.1 * median(median(rank[*].forward_time, 50))",
        "message": "Rank {rank} is slower than the others: {value:.3g} s against {threshold:.3g} s",
        "advice": "All ranks wait for it. Compare its GPU's clock, heat and PCIe link with the others', "
        "or leave it out.",
    },
    {
        "name": "data_bound",
        "when": "mean(data_time, 100) > mean(batch_time, 100) * $data_share_percent / 100",
        "for": "100 steps",
        "after": "200 steps",
        "clear": "mean(data_time, 100) < mean(batch_time, 100) * $data_share_percent / 200",
        "let": {"share": "100 * mean(data_time, 100) / mean(batch_time, 100)"},
        "message": "{share:.0f} % of each step is waiting for data",
        "advice": "More loader workers, pin_memory and prefetch_factor; or store the data decoded and nearer.",
    },
)

LIFE: tuple[Row, ...] = (
    {
        "name": "training_stalled",
        "when": 'run[*].state == "stalled" or run[*].state == "hung"',
        "for": "3s",  # by then it is usually known where it is
        "clear": 'run[*].state == "running"',
        "let": {"cause": "run[*].cause"},
        "message": "Rank {rank} has logged no step for {seconds_since_step:.0f} s{place}. "
        "It may be an evaluation or a checkpoint",
        "advice": "Nothing, if it is: once it has gone on, pauses as long as this are not told again. Otherwise the "
        "stacks of all threads are in the run folder under stacks/. How long is too long: stall_after.",
    },
    {
        "name": "training_hung",
        "when": 'run[*].state == "hung"',
        "clear": 'run[*].state == "running"',
        "severity": "critical",
        "let": {"cause": "run[*].cause"},
        "message": "Rank {rank} has logged no step for {seconds_since_step:.0f} s{place}: "
        "longer than any pause it came back from",
        "advice": "The stacks of all threads are in the run folder under stacks/. A collective waits for the rank that "
        "is elsewhere: look for the odd one out. If your evaluations take this long, raise stall_after.",
    },
    {
        "name": "process_died",
        "when": '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
        'and run[*].world_size == 1 and run[*].cause_kind != "interrupted"',
        "severity": "critical",
        "message": "The training has ended: {cause}",
        "advice": "Fix the cause and resume from the last checkpoint: init(resume=True). The last lines and stacks are "
        "in the run folder.",
    },
    {
        "name": "rank_lost",
        "when": '(run[*].state == "killed" or run[*].state == "failed" or run[*].state == "crashed") '
        'and run[*].world_size > 1 and run[*].cause_kind != "interrupted"',
        "severity": "critical",
        "message": "Rank {rank} is gone: {cause}",
        "advice": "The other ranks wait for it in the next collective. Stop them and resume from the last checkpoint.",
    },
    {
        "name": "checkpoint_overdue",
        # Only where they come regularly can one be missed: the best of a run is saved when there is a new best.
        "when": "stale(event[checkpoint].total) > $checkpoint_factor * median(event[checkpoint].interval, 10) + 60 "
        "and count(event[checkpoint].interval, 10) == 10 "
        "and max(event[checkpoint].interval, 10) < 1.5 * median(event[checkpoint].interval, 10)",
        "clear": "stale(event[checkpoint].total) < 60",
        "let": {"usual": "median(event[checkpoint].interval, 10)", "waited": "stale(event[checkpoint].total)"},
        "message": "The last checkpoint was {waited:.0f} s ago; they used to come every {usual:.0f} s",
        "advice": "Nothing, if only the best are saved: there was no new best. Otherwise check free disk space and the "
        "process that saves; what was trained since is lost if the run dies.",
    },
)

RULES: tuple[Row, ...] = (*GPU, *HOST, *TRAINING, *LIFE)


def rules_of(settings: Settings) -> list[Rule]:
    """All rules in force. RuleError (a SettingError) for one that cannot be used, or that nobody would hear of."""
    rules = read_rules(settings)
    check_channels(settings, rules)
    return rules


def read_rules(settings: Settings) -> list[Rule]:
    """The same, whoever is to be told."""
    rules = assemble(
        RULES,
        settings.alerts_rules,
        THRESHOLDS,
        settings.alerts_thresholds,
        settings.alerts_disable,
        f"alerts.rules ({settings.origin('alerts.rules')})",
    )
    check_actions(settings.alerts_actions, rules)
    return rules


def check_channels(settings: Settings, rules: Iterable[Rule]) -> None:
    """Every channel that is named must be one of `alerts.notify`."""
    wanted = [("alerts.escalate_notify", settings.alerts_escalate_notify)]
    for rule in rules:
        wanted.append((f"rule '{rule.name}', notify", rule.notify or ()))
        wanted.append((f"rule '{rule.name}', escalate_notify", rule.escalate_notify))
    known = [address.name for address in settings.alerts_notify]
    for place, names in wanted:
        for name in names:
            if name not in known:
                there = f"there are: {', '.join(known)}" if known else "alerts.notify names none"
                raise RuleError(f"{place}: there is no channel '{name}'{nearest(name, known)} ({there})")


def check_actions(actions: Mapping[str, Iterable[str]], rules: Iterable[Rule]) -> None:
    """Actions by rule name: the rule must exist, and so must the action."""
    names = [rule.name for rule in rules]
    for name, wanted in actions.items():
        if name not in names:
            raise RuleError(f"alerts.actions: there is no rule '{name}'{nearest(name, names)}")
        for action in wanted:
            if action not in ACTIONS or action == "exec":
                known = ", ".join(word for word in ACTIONS if word != "exec")
                raise RuleError(f"alerts.actions: '{action}' is not one of {known}; exec is said in a rule")


def enrich(rule: object, fields: dict[str, Any]) -> None:
    """Fields that a text needs and no measurement carries: the action for an Xid, where a rank hangs if it is known."""
    if "seconds_since_step" in fields:
        fields["place"] = f" ({fields['cause']})" if fields.get("cause") else ""
    if "xid_last" in fields or "xid" in fields:
        from trainvitals.alerts.xids import advise

        code = fields.get("xid", fields.get("xid_last"))
        fields["xid_advice"] = advise(int(code), fields.get("gpu_index", "?"))  # type: ignore[arg-type]


def render_markdown() -> str:
    """docs/rules.md."""
    head = (
        "# Built-in rules\n\n"
        "<!-- Written by `python -m trainvitals.alerts > docs/rules.md`. -->\n\n"
        "On by default; `alerts.disable` switches one off, `alerts.thresholds` changes a number (written `$name` "
        "below), and a rule of your own with the same name takes its place. How they are written: "
        "[alerts.md](alerts.md).\n\n"
        "Severity `info` is recorded and shown but not sent, unless `alerts.min_severity` is `info` or you set one of "
        "its thresholds yourself. How they do on healthy and faulty runs: see the table in "
        "[alerts.md](alerts.md#how-good-they-are).\n"
    )
    parts = [head]
    for title, rows in (("GPU", GPU), ("Machine", HOST), ("Training", TRAINING), ("Processes", LIFE)):
        parts.append(f"\n## {title}\n")
        for row in rows:
            waits = row.get("for", "at once")
            after = f", after {row['after']}" if "after" in row else ""
            parts.append(
                f"\n### {row['name']}\n\n"
                f"{row.get('severity', 'warning')}; waits: {waits}{after}\n\n"
                f"```\nwhen:  {row['when']}\n" + (f"clear: {row['clear']}\n" if "clear" in row else "") + "```\n\n"
                f"> {row['message']}. {row['advice']}\n"
            )
    parts.append("\n## Thresholds\n\n| name | default |\n|---|---|\n")
    parts.extend(f"| `{name}` | {value:g} |\n" for name, value in THRESHOLDS.items())
    return "".join(parts)

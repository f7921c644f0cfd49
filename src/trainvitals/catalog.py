"""Every metric once: its name in the files, unit, kind and meaning.

Exporters, axis labels, documentation and dashboards come from these rows. A name is unique inside its table; a
table is one kind of file in the run folder (`gpu` rows are the lines of `gpu_metrics_*.jsonl`).

MB is 1,048,576 bytes everywhere, as nvidia-smi and PyTorch count it. A value that could not be read is a missing
key, never 0 or a placeholder. `<N>` in a name is a number: a family of columns.
Tested in tests/test_catalog.py and tests/exporters/test_families.py.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection
from fnmatch import translate
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
    """Other names it is logged under; `*` is any text."""
    beside: str = ""
    """The metric that has to be logged too before an alias counts: `kl` alone may be an autoencoder's."""


class Counter(NamedTuple):
    """A counter for Prometheus, beside a column of the files that is its rate over one sample: between two scrapes
    a rate of the last second says little. It is not in the files."""

    name: str
    unit: str
    help: str
    label: str = ""
    """The label with a series for each of its values; empty where there is one."""
    rate: str = ""
    """The column that is its rate, if there is one."""
    factor: float = 1.0
    """What its rate is multiplied by to be in the unit of that column."""
    over: Literal["sum", "max"] = "sum"
    """How the series of one machine make the column."""


def _rates(what: str) -> tuple[str, ...]:
    """The usual names of `what` per second. A Trainer's mean over the whole run is the last to be taken."""
    names = (f"{what}_per_sec", f"{what}_per_second")
    grouped = (f"{group}/{name}" for group in ("train", "perf") for name in names)
    return (*names, f"{what}/s", f"{what}/sec", *grouped, f"train_{what}_per_second")


_GRADIENT_NORM = ("grad_norm", "train/grad_norm", "train/gradient_norm", "train_grad_norm")

TRAINING: tuple[Metric, ...] = (
    Metric("step", "", "Optimizer step, counted by the training or by log()", "counter"),
    Metric("epoch", "", "Epoch, may be fractional"),
    Metric("loss", "", "Training loss", aliases=("train_loss", "train/loss", "training_loss")),
    Metric(
        "learning_rate",
        "",
        "Learning rate of the first parameter group",
        aliases=(
            "lr",
            "train/lr",
            "train/learning_rate",
            "train_lr",
            "optim/lr",
            "trainer/lr",
            "trainer/learning_rate",
        ),
    ),
    Metric("gradient_norm", "", "Global L2 norm of the gradients", aliases=_GRADIENT_NORM),
    Metric("gradient_clip_norm", "", "Norm that clip_grad_norm_ clips the gradients to"),
    Metric(
        "accuracy",
        "",
        "Training accuracy",
        aliases=(
            "acc",
            "train/accuracy",
            "train/acc",
            "train_accuracy",
            "train_acc",
        ),
    ),
    Metric(
        "throughput_samples_per_sec",
        "samples/s",
        "Samples processed per second",
        aliases=("throughput", *_rates("samples")),
    ),
    Metric(
        "batch_time",
        "s",
        "Duration of one step; its phases add up to it",
        aliases=("step_time", "train/step_time", "train/batch_time"),
    ),
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
    Metric("throughput_tokens_per_sec", "tokens/s", "Tokens processed per second", aliases=_rates("tokens")),
    Metric("flops_per_sec", "FLOP/s", "Floating point operations of the model per second, forward and backward"),
    Metric("mfu_percent", "%", "flops_per_sec as a share of the GPU's peak"),
    Metric("gradient_norm_shard", "", "L2 norm of this rank's shard of the gradients"),
    Metric("benchmark_latency_ms", "ms", "Median latency of one call of the model, by run.benchmark"),
    Metric("benchmark_items_per_sec", "items/s", "Throughput of the model, by run.benchmark"),
    Metric("benchmark_memory_mb", "MB", "Peak memory of the model's process during inference, without libraries"),
    Metric("benchmark_disk_mb", "MB", "Size of the model's weights as a file"),
    Metric("watch_time", "s", "Total overhead of watch in this step"),
)


def _held_out(*names: str) -> tuple[str, ...]:
    """Names with every usual prefix, the more usual one first."""
    prefixes = ("val/", "val_", "validation/", "valid/", "valid_", "eval/", "eval_")
    return tuple(f"{prefix}{name}" for name in names for prefix in prefixes)


VALIDATION: tuple[Metric, ...] = (
    Metric("validation_loss", "", "Loss on validation data", aliases=_held_out("loss")),
    Metric("validation_accuracy", "", "Accuracy on validation data", aliases=_held_out("accuracy", "acc")),
)


def _timed(what: str, *names: str) -> tuple[str, ...]:
    """Names of the seconds that something took."""
    return tuple(f"{prefix}{name}_time" for name in (what, *names) for prefix in ("", "train/"))[1:] + tuple(
        f"time/{name}" for name in (what, *names)
    )


PARTS: tuple[Metric, ...] = (
    Metric(
        "communication_time",
        "s",
        "Waiting for other ranks: collectives that nothing overlaps",
        aliases=_timed("communication", "comm", "allreduce", "all_reduce"),
    ),
    Metric(
        "checkpoint_time",
        "s",
        "Saving a checkpoint, as long as the training waits for it",
        aliases=_timed("checkpoint", "ckpt", "save_checkpoint"),
    ),
    Metric(
        "evaluation_time",
        "s",
        "Evaluation on held-out data",
        aliases=(*_timed("evaluation", "eval", "validation"), "eval_runtime"),
    ),
    Metric("logging_time", "s", "Logging, as long as the training waits for it", aliases=_timed("logging")),
)
"""What a loop may time of itself besides the phases."""


def _trained(*names: str) -> tuple[str, ...]:
    """Names that a Trainer's own reporters put `train/` before."""
    return tuple(spelling for name in names for spelling in (name, f"train/{name}"))


RESPONSES = "rl_response_length"
"""What only the training of a language model by its own responses logs: where it is missing, no alias below counts."""


def _rl(name: str, unit: str, help: str, *aliases: str) -> Metric:
    return Metric(name, unit, help, aliases=aliases, beside=RESPONSES if name != RESPONSES else "")


RL: tuple[Metric, ...] = (
    # -- what the policy earns
    _rl(
        "rl_reward",
        "",
        "Mean reward of the responses",
        *("critic/score/mean", "critic/rewards/mean", *_trained("reward"), "reward/all/mean"),
        *("train/agg/effective/*/reward/mean", "ppo_actor/task_reward/avg"),
    ),
    _rl("rl_reward_std", "", "Standard deviation of the rewards", *_trained("reward_std")),
    _rl(
        "rl_validation_reward",
        "",
        "Reward, or share of right answers, on validation prompts",
        *("val-core/*/mean@*", "eval/reward", "validation/reward", "validation/accuracy"),
        *("eval/eval_*_pass1", "eval/agg/effective/*/avg@*", "eval/*/avg@*"),
    ),
    _rl(
        "rl_dead_groups",
        "",
        "Share of groups whose responses all have the same reward: they teach nothing",
        *_trained("frac_reward_zero_std"),
    ),
    _rl(
        "rl_mixed_groups",
        "%",
        "Groups whose responses have different rewards",
        *("train/baseline_reward/pct_mixed", *_trained("dynamic_filtering_pass_rate")),
    ),
    # -- how the policy changes
    _rl(
        "rl_entropy",
        "nats",
        "Entropy of the policy per token",
        *("actor/entropy", *_trained("entropy", "entropy_loss"), "entropy/all/mean", "train/approx_entropy"),
        "ppo_actor/update/entropy/avg",
    ),
    _rl(
        "rl_kl",
        "nats",
        "KL divergence from the reference policy per token",
        *("actor/kl_loss", "actor/reward_kl_penalty", *_trained("kl"), "train/kl_penalty"),
    ),
    _rl(
        "rl_clip_fraction",
        "",
        "Share of tokens whose update was clipped",
        *("actor/pg_clipfrac", *_trained("clip_ratio/region_mean", "ppo_clip_ratio"), "is_masked/all/mean"),
        "ppo_actor/update/clip_ratio/avg",
    ),
    _rl(
        "rl_gradient_norm",
        "",
        "Global L2 norm of the policy's gradients",
        *("actor/grad_norm", "optim/grad_norm", "ppo_actor/update/grad_norm"),
        *("gradient_norm", *_GRADIENT_NORM),  # of those that train nothing else, it is the policy's
    ),
    # -- how far the policy that generates is from the one that is trained
    _rl(
        "rl_mismatch_kl",
        "",
        "KL divergence between rollout and trainer per token, in nats",
        *("rollout_corr/kl", *_trained("vllm_kl"), "mismatch_kl/all/mean", "train/gen_kl_error"),
        "ppo_actor/update/behave_approx_kl/avg",
    ),
    _rl(
        "rl_mismatch_logprob",
        "",
        "Mean difference of a token's log-probability between rollout and trainer, in nats",
        *_trained("sampling/sampling_logp_difference/mean"),
    ),
    _rl(
        "rl_mismatch_probability",
        "",
        "Mean difference of a token's probability between rollout and trainer",
        "training/rollout_probs_diff_mean",
    ),
    _rl(
        "rl_mismatch_factor",
        "",
        "Mean factor between a token's probabilities in rollout and trainer: 1 if they agree",
        "train/token_mult_prob_error",
    ),
    _rl(
        "rl_mismatch_correlation",
        "",
        "Correlation of the tokens' probabilities in rollout and trainer: 1 if they agree",
        "training/rollout_actor_probs_pearson_corr",
    ),
    _rl(
        "rl_staleness",
        "versions",
        "How many versions behind the policy was that generated the responses, mean",
        *("training/off_policy/trajectory_staleness/mean", *_trained("sample/staleness_mean"), "off_policy/mean"),
        *("train/avg_trajectory_age", "ppo_actor/update/compute_logp/version_stats/sample_staleness_theta_avg"),
        "ppo_actor/update/version_stats/sample_staleness_theta_avg",
    ),
    _rl(
        "rl_staleness_max",
        "versions",
        "The same, of the oldest response",
        *("training/off_policy/trajectory_staleness/max", *_trained("sample/staleness_max"), "off_policy/max"),
        "ppo_actor/update/version_stats/sample_staleness_theta_max",
    ),
    # -- the responses
    _rl(
        RESPONSES,
        "tokens",
        "Mean length of the responses",
        *("response_length/mean", *_trained("completions/mean_length", "response_length")),
        *("train/agg/effective/num_output_tokens/mean", "seq_len/all/mean", "train/mean_gen_tokens_per_sample"),
        "ppo_actor/seq_len/avg",
    ),
    _rl(
        "rl_response_length_max",
        "tokens",
        "Length of the longest response",
        *("response_length/max", *_trained("completions/max_length"), "train/agg/effective/num_output_tokens/max"),
    ),
    _rl(
        "rl_truncated",
        "",
        "Share of responses that were cut off at the length limit",
        *("response_length/clip_ratio", *_trained("completions/clipped_ratio", "truncated", "response_clip_ratio")),
        *("train/agg/effective/*/is_truncated/mean", "is_truncated/all/mean", "train/truncation_rate"),
        "ppo_actor/no_eos_ratios/avg",
    ),
    # -- where a step's time goes
    _rl(
        "rl_step_time",
        "s",
        "Duration of one step of reinforcement learning",
        *("timing_s/step", "perf/time_per_step", "timing/train/total_step_time", *_trained("timing/step_total")),
        *(*_trained("perf/step_s"), "time/step"),
    ),
    _rl(
        "rl_generation_time",
        "s",
        "Generating responses",
        *("timing_s/gen", "timing/train/generation", "timing/train/exposed_generation"),
        *(*_trained("timing/generation"), "timeperf/rollout"),
    ),
    _rl("rl_reward_time", "s", "Computing rewards", "timing_s/reward", "timing/train/reward_calculation"),
    _rl(
        "rl_logprob_time",
        "s",
        "Log-probabilities of the responses; with some frameworks also those of the reference, values and rewards",
        *("timing_s/old_log_prob", "timing/train/policy_and_reference_logprobs", *_trained("timing/make_experience")),
        "timeperf/recompute_logp",
    ),
    _rl("rl_reference_time", "s", "Log-probabilities under the reference policy", "timing_s/ref", "timeperf/ref_logp"),
    _rl("rl_values_time", "s", "Values of the critic", "timing_s/values", "timeperf/critic_values"),
    _rl(
        "rl_advantage_time",
        "s",
        "Computing advantages",
        *("timing_s/adv", "timing/train/advantage_calculation", "timeperf/compute_advantage"),
    ),
    _rl(
        "rl_update_time",
        "s",
        "Training the policy",
        *("timing_s/update_actor", "timing/train/policy_training", *_trained("timing/ppo_train", "perf/fwd_bwd_s")),
        *("time/forward_backward", "timeperf/train_step"),
    ),
    _rl("rl_critic_update_time", "s", "Training the critic", "timing_s/update_critic", "timeperf/critic_train_step"),
    _rl(
        "rl_weight_sync_time",
        "s",
        "Sending the new weights to the rollout",
        *("timing_s/update_weights", "timing_s/timing_s/param_sync", "timing/train/weight_sync"),
        *("timing/train/prepare_for_generation/transfer_and_update_weights", *_trained("timing/broadcast")),
        *(*_trained("perf/weight_sync_s"), "time/broadcast_weights", "timeperf/update_weights"),
    ),
    _rl(
        "rl_checkpoint_time",
        "s",
        "Writing checkpoints",
        *("timing_s/save_checkpoint", "timing/train/checkpointing", "time/save_ckpt", "timeperf/save"),
    ),
    _rl(
        "rl_validation_time",
        "s",
        "Validation",
        *("timing_s/testing", "timing/validation/total_validation_time", "timeperf/eval"),
    ),
    _rl(
        "rl_idle_time",
        "s",
        "The trainer waits for responses",
        *("timing_s/switch_wait", "timing/train/idle/buffer_starvation", *_trained("perf/rollout_wait_s")),
        "time/wait_for_batch",
    ),
    _rl(
        "rl_trainer_idle_share",
        "",
        "Share of a step in which the trainer waits for responses",
        "fully_async/trainer/idle_ratio",
    ),
    _rl("rl_rollout_idle_time", "s", "The rollout waits for new weights", "time/wait_for_policy"),
    _rl(
        "rl_rollout_idle_share",
        "",
        "Share of the time in which the rollout waits for the trainer",
        "fully_async/rollouter/idle_ratio",
    ),
    _rl(
        "rl_rollout_slowest_time",
        "s",
        "Generation time of the slowest rollout worker or response",
        "timing_s/agent_loop/generate_sequences/max",
    ),
    _rl(
        "rl_rollout_mean_time",
        "s",
        "The same, mean of all",
        "timing_s/agent_loop/generate_sequences/mean",
    ),
)
"""What the frameworks for reinforcement learning log under many names."""

MEANINGS: tuple[Metric, ...] = (*VALIDATION, *PARTS, *RL)
"""Rows of the training table, but no columns: the files and Prometheus keep the names that were logged, and whoever
wants the meaning looks it up with `find_spelling`."""

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
    Metric("pcie_link_generation_max", "", "Newest PCIe generation that this GPU and its slot can use"),
    Metric("pcie_link_width_max", "lanes", "PCIe lanes that this GPU and its slot can use"),
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
    Metric("gpu_waiting_percent", "%", "Time in which no kernel ran on the rank's GPUs, mean over them"),
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

_MB = 1 / (1 << 20)
COUNTERS: dict[str, tuple[Counter, ...]] = {
    "gpu": (
        Counter("pcie_rx_bytes_total", "bytes", "Received over PCIe", rate="pcie_rx_mb_s", factor=_MB),
        Counter("pcie_tx_bytes_total", "bytes", "Sent over PCIe", rate="pcie_tx_mb_s", factor=_MB),
        Counter("nvlink_rx_bytes_total", "bytes", "Received over NVLink, all links", rate="nvlink_rx_mb_s", factor=_MB),
        Counter("nvlink_tx_bytes_total", "bytes", "Sent over NVLink, all links", rate="nvlink_tx_mb_s", factor=_MB),
        Counter("xid_errors_by_code_total", "errors", "Xid errors seen since the agent started, by code", "xid"),
    ),
    "system": (
        Counter("disk_read_bytes_total", "bytes", "Read from a disk", "device", "disk_read_mb_s", _MB),
        Counter("disk_write_bytes_total", "bytes", "Written to a disk", "device", "disk_write_mb_s", _MB),
        Counter("disk_reads_total", "", "Reads from a disk", "device", "disk_read_iops"),
        Counter("disk_writes_total", "", "Writes to a disk", "device", "disk_write_iops"),
        Counter(
            *("disk_busy_seconds_total", "s", "Time a disk had a request in flight", "device", "disk_busy_percent"),
            *(100.0, "max"),
        ),
        Counter("network_receive_bytes_total", "bytes", "Received", "device", "network_receive_mb_s", _MB),
        Counter("network_send_bytes_total", "bytes", "Sent", "device", "network_send_mb_s", _MB),
    ),
    "process": (
        Counter("read_bytes_total", "bytes", "Read from storage by the tree", rate="read_mb_s", factor=_MB),
        Counter("write_bytes_total", "bytes", "Written to storage by the tree", rate="write_mb_s", factor=_MB),
    ),
}

TABLES: dict[str, tuple[Metric, ...]] = {
    "training": TRAINING,
    "gpu": GPU,
    "system": SYSTEM,
    "process": PROCESS,
    "source": SOURCE,
}


@functools.lru_cache(maxsize=1 << 14)
def find(table: str, name: str) -> Metric | None:
    """The row for `name`, also by alias or as one of a family; None for a metric of the user's own. The rows of
    MEANINGS are found by their own names only: what is logged under an alias keeps its name."""
    family = re.sub(r"\d+", "<N>", name)
    for metric in TABLES.get(table, ()):
        if metric.name in (name, family) or name in metric.aliases:
            return metric
    return _MEANINGS_BY_NAME.get(name) if table == "training" else None


def find_counter(table: str, name: str) -> Counter | None:
    """The row of COUNTERS with this name."""
    return next((counter for counter in COUNTERS.get(table, ()) if counter.name == name), None)


def find_spelling(table: str, name: str, logged: Collection[str]) -> str | None:
    """Under which of the names that were `logged` a metric goes: its own, else the first alias that is there."""
    if name in logged:
        return name
    row = find(table, name)
    if row is None or (row.beside and find_spelling(table, row.beside, logged) is None):
        return None
    for alias in row.aliases:
        if alias in logged:
            return alias
        if "*" in alias and (found := min((one for one in logged if match_alias(one) == alias), default=None)):
            return found
    return None


@functools.lru_cache(maxsize=1 << 14)
def match_alias(name: str) -> str | None:
    """The alias with a `*` that this name is a case of."""
    return next((alias for alias, pattern in _patterns() if pattern.match(name)), None)


_UNIT_ENDING = re.compile("_(percent|time|mb_s|mb|watts|celsius|mhz|seconds|total)$")
_SPELLED = {"pcie": "PCIe", "nvlink": "NVLink"}
_SPELLED |= {word: word.upper() for word in ("cpu", "gpu", "io", "iops", "rss", "pss", "ecc", "rx", "tx", "sm", "kl")}


def short_name(name: str) -> str:
    """As a legend has it, without the unit: `CPU usage` for `cpu_usage_percent`. A name in parts is the user's own."""
    if "/" in name:
        return name
    return " ".join(_SPELLED.get(word, word) for word in _UNIT_ENDING.sub("", name).split("_"))


def title_name(name: str) -> str:
    """As the title of its own chart: `watch time` for `watch_time`, where a legend of times says `watch`."""
    return short_name(name) + (" time" if name.endswith("_time") else "")


@functools.cache
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((alias, re.compile(translate(alias))) for row in RL for alias in row.aliases if "*" in alias)


_MEANINGS_BY_NAME = {metric.name: metric for metric in MEANINGS}

_TITLES = {
    "training": "Training: `training_metrics_*.jsonl`, one line per `log()` call, plus your own names",
    "gpu": "GPU: `gpu_metrics_*.jsonl`, one line per GPU and sample",
    "system": "Host: `system_metrics_*.jsonl`",
    "process": "Ranks' processes: `process_metrics_*.jsonl`, one line per rank, its whole tree",
    "source": "Sources: `source_metrics_*.jsonl`",
    "counters": "Counters for [Prometheus](prometheus.md) only, beside the rates in the files",
    "validation": "Validation: meanings of names that you or your framework log",
    "parts": "Parts of the time: meanings of names that you or your framework log",
    "rl": "Reinforcement learning ([rl.md](rl.md)): meanings of names that frameworks log, beside response lengths",
}


def render_markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made from `src/trainvitals/catalog.py` by `python -m trainvitals.catalog > docs/metrics.md`. MB is 1,048,576",
        "bytes. A value that could not be read is a missing key, never 0 or a placeholder.",
    ]
    for table, metrics in (*TABLES.items(), ("validation", VALIDATION), ("parts", PARTS), ("rl", RL)):
        lines += ["", f"## {_TITLES[table]}", "", "| name | unit | kind | meaning |", "|---|---|---|---|"]
        for metric in metrics:
            also = f" (also read from {', '.join(f'`{name}`' for name in metric.aliases)})" if metric.aliases else ""
            lines.append(f"| `{metric.name}` | {metric.unit} | {metric.kind} | {metric.help}{also} |")
    lines += ["", f"## {_TITLES['counters']}", "", "| table | name | unit | label | meaning |", "|---|---|---|---|---|"]
    for table, counters in COUNTERS.items():
        for counter in counters:
            label = f"`{counter.label}`" if counter.label else ""
            lines.append(f"| {table} | `{counter.name}` | {counter.unit} | {label} | {counter.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(render_markdown())

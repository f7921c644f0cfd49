"""Runs of reinforcement learning to judge by: healthy ones of many shapes, and the same with a fault put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Meanings = dict[str, Floats]
Row = dict[str, float]

STEPS = 240

NAMES: Mapping[str, Mapping[str, str]] = {
    "verl": {
        "rl_reward": "critic/score/mean",
        "rl_validation_reward": "val-core/openai/gsm8k/acc/mean@4",
        "rl_entropy": "actor/entropy",
        "rl_kl": "actor/kl_loss",
        "rl_clip_fraction": "actor/pg_clipfrac",
        "rl_gradient_norm": "actor/grad_norm",
        "rl_mismatch_probability": "training/rollout_probs_diff_mean",
        "rl_mismatch_correlation": "training/rollout_actor_probs_pearson_corr",
        "rl_staleness": "training/off_policy/trajectory_staleness/mean",
        "rl_response_length": "response_length/mean",
        "rl_truncated": "response_length/clip_ratio",
        "rl_step_time": "timing_s/step",
        "rl_generation_time": "timing_s/gen",
        "rl_update_time": "timing_s/update_actor",
        "rl_validation_time": "timing_s/testing",
        "rl_rollout_slowest_time": "timing_s/agent_loop/generate_sequences/max",
        "rl_rollout_mean_time": "timing_s/agent_loop/generate_sequences/mean",
        "rl_weight_sync_time": "timing_s/timing_s/param_sync",
        "rl_trainer_idle_share": "fully_async/trainer/idle_ratio",
        "rl_rollout_idle_share": "fully_async/rollouter/idle_ratio",
    },
    "TRL": {
        "rl_reward": "reward",
        "rl_validation_reward": "eval/reward",
        "rl_reward_std": "reward_std",
        "rl_dead_groups": "frac_reward_zero_std",
        "rl_entropy": "entropy",
        "rl_kl": "kl",
        "rl_clip_fraction": "clip_ratio/region_mean",
        "rl_gradient_norm": "grad_norm",
        "rl_mismatch_logprob": "sampling/sampling_logp_difference/mean",
        "rl_staleness": "sample/staleness_mean",
        "rl_response_length": "completions/mean_length",
        "rl_truncated": "completions/clipped_ratio",
        "rl_step_time": "perf/step_s",
        "rl_update_time": "perf/fwd_bwd_s",
        "rl_idle_time": "perf/rollout_wait_s",
    },
    "OpenRLHF": {
        "rl_reward": "train/reward",
        "rl_validation_reward": "eval/eval_math_pass1",
        "rl_mixed_groups": "train/dynamic_filtering_pass_rate",
        "rl_entropy": "train/entropy_loss",
        "rl_kl": "train/kl",
        "rl_clip_fraction": "train/ppo_clip_ratio",
        "rl_mismatch_kl": "train/vllm_kl",
        "rl_response_length": "train/response_length",
        "rl_truncated": "train/response_clip_ratio",
        "rl_step_time": "train/timing/step_total",
        "rl_generation_time": "train/timing/generation",
        "rl_update_time": "train/timing/ppo_train",
    },
    "prime-rl": {
        "rl_reward": "train/agg/effective/solver/reward/mean",
        "rl_validation_reward": "eval/math500/avg@8",
        "rl_entropy": "entropy/all/mean",
        "rl_clip_fraction": "is_masked/all/mean",
        "rl_gradient_norm": "optim/grad_norm",
        "rl_mismatch_kl": "mismatch_kl/all/mean",
        "rl_staleness": "off_policy/mean",
        "rl_response_length": "train/agg/effective/num_output_tokens/mean",
        "rl_truncated": "train/agg/effective/solver/is_truncated/mean",
        "rl_step_time": "time/step",
        "rl_update_time": "time/forward_backward",
        "rl_idle_time": "time/wait_for_batch",
        "rl_rollout_idle_time": "time/wait_for_policy",
    },
    "NeMo RL": {
        "rl_reward": "train/reward",
        "rl_validation_reward": "validation/accuracy",
        "rl_mixed_groups": "train/baseline_reward/pct_mixed",
        "rl_entropy": "train/approx_entropy",
        "rl_kl": "train/kl_penalty",
        "rl_gradient_norm": "train/grad_norm",
        "rl_mismatch_factor": "train/token_mult_prob_error",
        "rl_response_length": "train/mean_gen_tokens_per_sample",
        "rl_step_time": "timing/train/total_step_time",
        "rl_generation_time": "timing/train/generation",
        "rl_update_time": "timing/train/policy_training",
        "rl_validation_time": "timing/validation/total_validation_time",
    },
    "AReaL": {
        "rl_reward": "ppo_actor/task_reward/avg",
        "rl_entropy": "ppo_actor/update/entropy/avg",
        "rl_clip_fraction": "ppo_actor/update/clip_ratio/avg",
        "rl_gradient_norm": "ppo_actor/update/grad_norm",
        "rl_mismatch_kl": "ppo_actor/update/behave_approx_kl/avg",
        "rl_staleness": "ppo_actor/update/version_stats/sample_staleness_theta_avg",
        "rl_response_length": "ppo_actor/seq_len/avg",
        "rl_truncated": "ppo_actor/no_eos_ratios/avg",
        "rl_generation_time": "timeperf/rollout",
        "rl_update_time": "timeperf/train_step",
    },
}
"""What each framework calls what it logs."""


def make_healthy(seed: int, steps: int = STEPS) -> Meanings:
    """A reward that rises and levels off, in one of many shapes and with noise; everything else within its usual."""
    random = np.random.default_rng(seed)
    step = np.arange(steps)
    done = step / steps
    low, high = random.uniform(-0.5, 0.3), random.uniform(0.5, 1.0)
    rise = 1 - np.exp(-step / (steps * random.uniform(0.1, 0.6)))
    noise = random.uniform(0.01, 0.06)
    reward = low + (high - low) * rise + noise * random.normal(size=steps)
    # An entropy that falls to a third, stays, or rises by half; responses that double, stay or shrink to a half.
    entropy = random.uniform(0.15, 1.5) * random.choice([0.35, 0.6, 1.0, 1.5]) ** done
    length = random.uniform(150, 3000) * random.choice([0.5, 1.0, 2.0, 4.0]) ** rise
    generation, update = random.uniform(20, 60), random.uniform(15, 40)
    other = random.uniform(5, 15)
    spread = 1 + 0.08 * np.abs(random.normal(size=(12, steps)))
    validation = low + 0.7 * (high - low) * rise + 0.02 * random.normal(size=steps)
    idle = 0.15 * (generation + update) * spread[8]
    return {
        "rl_reward": reward,
        "rl_validation_reward": np.where(step % 20 == 0, validation, np.nan),
        "rl_reward_std": 0.4 * spread[0],
        "rl_dead_groups": np.clip(0.15 + 0.25 * done + 0.05 * random.normal(size=steps), 0, 1),
        "rl_mixed_groups": np.clip(80 - 15 * done + 5 * random.normal(size=steps), 0, 100),
        "rl_entropy": entropy * (1 + 0.05 * random.normal(size=steps)),
        "rl_kl": np.abs(random.uniform(0.01, 0.3) * done * (1 + 0.2 * random.normal(size=steps))),
        "rl_clip_fraction": np.abs(random.uniform(0.002, 0.1) * (1 + 0.3 * random.normal(size=steps))),
        "rl_gradient_norm": 0.3 * np.exp(0.4 * random.normal(size=steps)),
        "rl_mismatch_kl": 0.002 * spread[1],
        "rl_mismatch_logprob": 0.015 * spread[2],
        "rl_mismatch_probability": 0.006 * spread[3],
        "rl_mismatch_factor": 1.012 * spread[3] ** 0.01,
        "rl_mismatch_correlation": 0.9985 - 0.0005 * spread[4],
        "rl_staleness": random.uniform(0, 2) * spread[5],
        "rl_response_length": length * (1 + 0.04 * random.normal(size=steps)),
        "rl_truncated": np.clip(random.uniform(0, 0.08) * spread[6], 0, 1),
        "rl_step_time": (generation + update + other) * 1.05 * spread[7],
        "rl_generation_time": generation * spread[7],
        "rl_update_time": update * spread[7],
        "rl_validation_time": np.where(step % 20 == 0, 2.0 * other, np.nan),
        "rl_idle_time": idle,
        "rl_rollout_idle_time": idle,
        "rl_trainer_idle_share": 0.12 * spread[8],
        "rl_rollout_idle_share": 0.1 * spread[9],
        "rl_rollout_mean_time": 0.5 * generation * spread[10],
        "rl_rollout_slowest_time": generation * spread[11],
    }


def _from(start: int, steps: int = STEPS) -> Floats:
    """0 until the fault begins, then up to 1 within 30 steps."""
    return np.clip((np.arange(steps) - start) / 30.0, 0, 1)


def _set(name: str, value: Callable[[Floats, Floats], Floats]) -> Callable[[Meanings], None]:
    """A fault that begins at step 100: from the healthy values and how far it has come, the faulty ones."""

    def put(run: Meanings) -> None:
        run[name] = value(run[name], _from(100))

    return put


def _flat_reward(run: Meanings) -> None:
    late = np.arange(STEPS) > 90
    run["rl_reward"][late] = run["rl_reward"][80:90].mean() + 0.02 * np.sin(np.arange(STEPS)[late] * 1.7)


def _collapse(run: Meanings) -> None:
    _flat_reward(run)
    run["rl_entropy"] *= 0.04 ** _from(80)


def _grow(run: Meanings) -> None:
    run["rl_response_length"] *= 8.0 ** _from(100)
    run["rl_reward"] -= 0.6 * _from(100)


def _hack(run: Meanings) -> None:
    start = run["rl_validation_reward"][0]
    run["rl_validation_reward"] = np.where(
        np.isnan(run["rl_validation_reward"]), np.nan, start + 0.02 - 0.3 * np.arange(STEPS) / STEPS
    )
    run["rl_reward"] += np.linspace(0, 1, STEPS)


def _take(run: Meanings, part: str, share: float, base: float = 30.0) -> None:
    run[part] = share / (1 - share) * base * np.ones(STEPS)
    run["rl_step_time"] = run[part] + base


FAULTS: Mapping[str, Callable[[Meanings], None]] = {
    "rl_entropy_collapsed": _collapse,
    "rl_entropy_exploded": _set("rl_entropy", lambda usual, far: usual + 4 * far),
    "rl_kl_high": _set("rl_kl", lambda usual, far: usual * 300.0**far + far),
    "rl_groups_dead": _set("rl_dead_groups", lambda usual, far: np.maximum(usual, 0.8 * far)),
    "rl_groups_unmixed": _set("rl_mixed_groups", lambda usual, far: np.minimum(usual, 100 - 85 * far)),
    "rl_clipping_high": _set("rl_clip_fraction", lambda usual, far: usual + 0.5 * far),
    "rl_mismatch_kl": _set("rl_mismatch_kl", lambda usual, far: usual + 0.4 * far),
    "rl_mismatch_logprob": _set("rl_mismatch_logprob", lambda usual, far: usual + 0.4 * far),
    "rl_mismatch_probability": _set("rl_mismatch_probability", lambda usual, far: usual + 0.1 * far),
    "rl_mismatch_factor": _set("rl_mismatch_factor", lambda usual, far: usual + 0.2 * far),
    "rl_mismatch_correlation": _set("rl_mismatch_correlation", lambda usual, far: usual - 0.1 * far),
    "rl_length_exploded": _grow,
    "rl_length_collapsed": _set("rl_response_length", lambda usual, far: usual * 0.08**far),
    "rl_truncation": _set("rl_truncated", lambda usual, far: np.maximum(usual, 0.5 * far)),
    "rl_reward_hacked": _hack,
    "rl_reward_constant": _set("rl_reward", lambda usual, far: np.where(far > 0, 0.0, usual)),
    "rl_stale": _set("rl_staleness", lambda usual, far: usual + 7 * far),
    "rl_not_updated": _set("rl_gradient_norm", lambda usual, far: np.where(far > 0, 0.0, usual)),
    "rl_generation_bound": lambda run: _take(run, "rl_generation_time", 0.9),
    "rl_trainer_waits": lambda run: _take(run, "rl_idle_time", 0.5),
    "rl_trainer_idle": _set("rl_trainer_idle_share", lambda usual, far: np.maximum(usual, 0.6 * far)),
    "rl_update_bound": lambda run: _take(run, "rl_update_time", 0.9),
    "rl_rollout_waits": lambda run: _take(run, "rl_rollout_idle_time", 0.5),
    "rl_rollout_idle": _set("rl_rollout_idle_share", lambda usual, far: np.maximum(usual, 0.6 * far)),
    "rl_validation_long": _set("rl_validation_time", lambda usual, far: usual + 1500),
    "rl_rollout_uneven": _set("rl_rollout_slowest_time", lambda usual, far: usual * (1 + 6 * far)),
}
"""A fault for each condition, by the condition that has to find it."""


def spell(run: Meanings, framework: str, every: int = 1) -> list[tuple[int, Row]]:
    """(step, line) as that framework logs them, one line every so many steps."""
    names = {meaning: name for meaning, name in NAMES[framework].items() if meaning in run}
    rows = []
    for at in range(len(run["rl_reward"])):
        row = {name: float(run[meaning][at]) for meaning, name in names.items() if not np.isnan(run[meaning][at])}
        rows.append(((at + 1) * every, row))
    return rows

"""How a policy learns from its own responses, and where the time of a step goes.

Steps take minutes, so windows are short and counted in values: a framework may log every tenth step only. What is
usual differs from model to model, so most limits are relative to the first values of the run itself. The metrics are
the meanings of `catalog.RL`, whichever framework logs them.
"""

from __future__ import annotations

from trainvitals.conditions.row import Condition, LiveRule, Threshold

_LATE_VALIDATION = "median(rl_validation_reward, 3 values)"
"""One validation alone is noisy."""
_NO_GAIN = "median(rl_reward, 10 values) <= median(rl_reward, 40 values)"


def _mismatch(measure: str, limit: float, what: str, below: bool = False) -> Condition:
    """Frameworks measure the same thing in different ways; each has a usual size."""
    name = f"rl_mismatch_{measure}"
    beyond, within, meaning = (
        ("<", ">=", "below this is too small") if below else (">", "<=", "above this is too large")
    )
    return Condition(
        name,
        "rank",
        f"rollout and trainer disagree ({what})",
        "warning",
        "The responses come from another policy than the one that is trained: compare precision, kernels, sampling "
        "parameters and chat template of both, check that new weights reach the rollout, or correct it with "
        "(truncated) importance sampling.",
        thresholds=(Threshold(f"{name}_limit", limit, "", f"a {what} {meaning}", below=below),),
        live=LiveRule(
            f"median({name}, 10 values) {beyond} ${name}_limit",
            f"Rollout and trainer disagree: {what} {{value:.3g}} (limit {{threshold:g}})",
            wait="5 steps",
            clear=f"median({name}, 10 values) {within} ${name}_limit",
            clear_wait="5 steps",
        ),
        findings=(f"rl.mismatch_{measure}",),
    )


def _share(of: str, whole: str = "rl_step_time") -> str:
    return f"mean({of}, 20 values) / mean({whole}, 20 values)"


def _waits(
    id: str, title: str, share: str, limit: Threshold, message: str, advice: str, gain: str, finding: str
) -> Condition:
    """Too much of a step goes into one thing. `gain` is how many times as fast steps would be without it."""
    return Condition(
        id,
        "rank",
        title,
        "info",
        advice,
        thresholds=(limit,),
        live=LiveRule(
            f"100 * {share} > ${limit.name}",
            message,
            wait="10 steps",
            clear=f"100 * {share} < ${limit.name} - 10",
            clear_wait="10 steps",
            let={"share": f"100 * {share}", "gain": gain},
        ),
        findings=(finding,),
    )


_GENERATION = _share("rl_generation_time")
_UPDATE = _share("rl_update_time")
_IDLE = _share("rl_idle_time")
_ROLLOUT_IDLE = _share("rl_rollout_idle_time")
# Without the first: most begin with one, and no steps belong to it.
_VALIDATION_TOTAL = "(mean(rl_validation_time, all) * (count(rl_validation_time, all) - 1))"
_STEPS_TOTAL = "(mean(rl_step_time, all) * count(rl_step_time, all))"
_VALIDATION = f"{_VALIDATION_TOTAL} / ({_VALIDATION_TOTAL} + {_STEPS_TOTAL})"
_GENERATION_SLOW = "Generation is the bottleneck: give the rollout more GPUs, or GPUs of the trainer."
_TRAINER_BOUND = (
    "Give the trainer more GPUs, larger micro-batches or less recomputation; or give it GPUs of the rollout."
)

ROWS: tuple[Condition, ...] = (
    Condition(
        "rl_entropy_collapsed",
        "rank",
        "entropy collapse",
        "warning",
        "The policy has stopped exploring. Raise the upper clipping bound (clip-higher, 0.28), add an entropy bonus or "
        "a KL penalty, lower the learning rate, or go back to a checkpoint from before the fall. If the reward cannot "
        "rise any further, the run is done.",
        thresholds=(
            Threshold(
                "rl_entropy_collapse_percent", 20, "%", "an entropy below this share of its start collapsed", below=True
            ),
        ),
        live=LiveRule(
            "median(rl_entropy, 10 values) < first(rl_entropy, 10) * $rl_entropy_collapse_percent / 100 "
            "and first(rl_entropy, 10) > 0 and correlation(rl_reward, 30 values) < 0.5",
            "Entropy fell to {value:.3g}, from {start:.3g} at the start, and the reward has stopped rising",
            wait="10 steps",
            clear="median(rl_entropy, 10 values) > first(rl_entropy, 10) * $rl_entropy_collapse_percent / 50",
            clear_wait="10 steps",
            let={"start": "first(rl_entropy, 10)"},
        ),
        findings=("rl.entropy_collapse",),
    ),
    Condition(
        "rl_entropy_exploded",
        "rank",
        "entropy explosion",
        "warning",
        "The policy is turning into noise, and its responses into garbage. Lower the learning rate or the entropy "
        "bonus, add a KL penalty, check for negative advantages without clipping, and go back to an earlier "
        "checkpoint.",
        thresholds=(
            Threshold("rl_entropy_growth", 2, "times", "an entropy this many times its start is too high"),
            Threshold("rl_entropy_high", 1, "nats", "if it is also above this"),
        ),
        live=LiveRule(
            "median(rl_entropy, 10 values) > first(rl_entropy, 10) * $rl_entropy_growth "
            "and median(rl_entropy, 10 values) > $rl_entropy_high",
            "Entropy rose to {entropy:.3g}, from {start:.3g} at the start",
            wait="5 steps",
            clear="median(rl_entropy, 10 values) < first(rl_entropy, 10) * $rl_entropy_growth "
            "or median(rl_entropy, 10 values) < $rl_entropy_high",
            clear_wait="10 steps",
            let={"start": "first(rl_entropy, 10)", "entropy": "median(rl_entropy, 10 values)"},
        ),
        findings=("rl.entropy_explosion",),
    ),
    Condition(
        "rl_kl_high",
        "rank",
        "KL blow-up",
        "warning",
        "The policy is running away from the reference. Lower the learning rate, raise the KL coefficient, or go back "
        "to a checkpoint from before it rose.",
        thresholds=(
            Threshold("rl_kl_limit", 1, "nats", "a KL divergence per token above this is too large"),
            Threshold("rl_kl_factor", 10, "times", "so is one this many times its running median"),
            Threshold("rl_kl_notable", 0.1, "nats", "if it is also above this"),
        ),
        live=LiveRule(
            "median(rl_kl, 5 values) > $rl_kl_limit or (median(rl_kl, 5 values) > $rl_kl_notable "
            "and median(rl_kl, 5 values) > $rl_kl_factor * median(rl_kl, 50 values))",
            "KL divergence from the reference is {kl:.3g} per token",
            wait="5 steps",
            clear="median(rl_kl, 5 values) < $rl_kl_limit / 2",
            clear_wait="10 steps",
            let={"kl": "median(rl_kl, 5 values)"},
        ),
        findings=("rl.kl_high",),
    ),
    Condition(
        "rl_groups_dead",
        "rank",
        "groups without a signal",
        "warning",
        "All responses to a prompt have the same reward, so it teaches nothing and its generation is wasted. Filter "
        "prompts that are too easy or too hard (dynamic sampling), use more responses per prompt, or a finer reward.",
        thresholds=(Threshold("rl_dead_groups_percent", 50, "%", "a larger share of dead groups is too large"),),
        live=LiveRule(
            "100 * mean(rl_dead_groups, 20 values) > $rl_dead_groups_percent",
            "{value:.0f} % of the groups have equal rewards and teach nothing",
            wait="10 steps",
            clear="100 * mean(rl_dead_groups, 20 values) < 0.8 * $rl_dead_groups_percent",
            clear_wait="10 steps",
        ),
        findings=("rl.dead_groups",),
    ),
    Condition(
        "rl_groups_unmixed",
        "rank",
        "few groups with a signal",
        "warning",
        "The other groups have all answers right or all wrong, so they teach nothing and their generation is wasted. "
        "Choose prompts of middling difficulty, use more responses per prompt, or a finer reward.",
        thresholds=(
            Threshold("rl_mixed_groups_percent", 50, "%", "fewer groups with mixed rewards are too few", below=True),
        ),
        live=LiveRule(
            "mean(rl_mixed_groups, 20 values) < $rl_mixed_groups_percent",
            "Only {value:.0f} % of the groups have mixed rewards; the others teach nothing",
            wait="10 steps",
            clear="mean(rl_mixed_groups, 20 values) > 1.2 * $rl_mixed_groups_percent",
            clear_wait="10 steps",
        ),
        findings=("rl.unmixed_groups",),
    ),
    Condition(
        "rl_clipping_high",
        "rank",
        "too many clipped updates",
        "warning",
        "The policy moves too far within one batch of responses. Lower the learning rate, take fewer updates per "
        "batch, or use fresher responses.",
        thresholds=(Threshold("rl_clip_percent", 30, "%", "a larger share of clipped tokens is too large"),),
        live=LiveRule(
            "100 * median(rl_clip_fraction, 10 values) > $rl_clip_percent",
            "{value:.0f} % of the tokens are clipped",
            wait="5 steps",
            clear="100 * median(rl_clip_fraction, 10 values) < 0.8 * $rl_clip_percent",
            clear_wait="5 steps",
        ),
        findings=("rl.clipping",),
    ),
    _mismatch("kl", 0.1, "KL divergence per token"),
    _mismatch("logprob", 0.1, "difference of log-probabilities"),
    _mismatch("probability", 0.05, "difference of probabilities"),
    _mismatch("factor", 1.05, "factor between probabilities"),
    _mismatch("correlation", 0.99, "correlation of probabilities", below=True),
    Condition(
        "rl_length_exploded",
        "rank",
        "length explosion",
        "warning",
        "Responses grow without earning more: look at some of them for repetition. Penalize overlong responses, "
        "average the loss over tokens, and check that the end of the text is learned.",
        thresholds=(
            Threshold("rl_length_growth", 2, "times", "responses this many times as long as at the start are long"),
            Threshold("rl_length_recent_growth", 1.5, "times", "if most of it came within 40 values"),
        ),
        live=LiveRule(
            "median(rl_response_length, 10 values) > $rl_length_growth * first(rl_response_length, 10) "
            "and median(rl_response_length, 10 values) > "
            f"$rl_length_recent_growth * median(rl_response_length, 40 values) and {_NO_GAIN}",
            "Responses grew to {value:.0f} tokens, from {start:.0f} at the start, and the reward does not rise",
            wait="5 steps",
            clear="median(rl_response_length, 10 values) < $rl_length_growth * first(rl_response_length, 10)",
            clear_wait="10 steps",
            let={"start": "first(rl_response_length, 10)"},
        ),
        findings=("rl.length_explosion",),
    ),
    Condition(
        "rl_length_collapsed",
        "rank",
        "length collapse",
        "warning",
        "The policy may have found a shortcut: read some responses. Check what the reward gives for an answer without "
        "reasoning, and whether a length penalty is too strong.",
        thresholds=(
            Threshold(
                "rl_length_collapse_percent",
                30,
                "%",
                "responses shorter than this share of their length at the start are too short",
                below=True,
            ),
        ),
        live=LiveRule(
            "median(rl_response_length, 10 values) < first(rl_response_length, 10) * $rl_length_collapse_percent / 100",
            "Responses shrank to {value:.0f} tokens, from {start:.0f} at the start",
            wait="10 steps",
            clear="median(rl_response_length, 10 values) > "
            "first(rl_response_length, 10) * $rl_length_collapse_percent / 75",
            clear_wait="10 steps",
            let={"start": "first(rl_response_length, 10)"},
        ),
        findings=("rl.length_collapse",),
    ),
    Condition(
        "rl_truncation",
        "rank",
        "truncated responses",
        "warning",
        "Truncated responses are mostly judged as wrong, which punishes reasoning that was not finished. Raise the "
        "length limit, or leave truncated responses out of the loss (overlong filtering).",
        thresholds=(Threshold("rl_truncated_percent", 20, "%", "a larger share of truncated responses is too large"),),
        live=LiveRule(
            "100 * median(rl_truncated, 10 values) > $rl_truncated_percent",
            "{value:.0f} % of the responses are cut off at the length limit",
            wait="10 steps",
            clear="100 * median(rl_truncated, 10 values) < 0.8 * $rl_truncated_percent",
            clear_wait="10 steps",
        ),
        findings=("rl.truncation",),
    ),
    Condition(
        "rl_reward_hacked",
        "rank",
        "reward hacking",
        "warning",
        "The policy has learned the reward, not the task: read the responses with the highest rewards, check the "
        "reward's terms one by one, and go back to the checkpoint with the best validation.",
        thresholds=(
            Threshold("rl_reward_gain_percent", 20, "%", "a training reward this far above its start has risen"),
        ),
        live=LiveRule(
            # By more than it varies, too: a reward that begins near zero rises by factors.
            "median(rl_reward, 20 values) - first(rl_reward, 10) > "
            "at_least(abs(first(rl_reward, 10)) * $rl_reward_gain_percent / 100, 2 * std(rl_reward, 40 values)) "
            f"and count(rl_validation_reward, all) > 3 and {_LATE_VALIDATION} <= first(rl_validation_reward, 2) "
            f"and {_LATE_VALIDATION} < max(rl_validation_reward, all)",
            "The reward rose from {start:.3g} to {reward:.3g}, but not on validation: {late:.3g} "
            "(at the start {validation:.3g})",
            wait="10 steps",
            clear=f"{_LATE_VALIDATION} > first(rl_validation_reward, 2)",
            let={
                "start": "first(rl_reward, 10)",
                "reward": "median(rl_reward, 20 values)",
                "validation": "first(rl_validation_reward, 2)",
                "late": _LATE_VALIDATION,
            },
        ),
        findings=("rl.reward_hacking",),
    ),
    Condition(
        "rl_reward_constant",
        "rank",
        "constant reward",
        "warning",
        "Nothing can be learned from it. Check the reward function on a few responses by hand: the parser, the format "
        "it wants, exceptions that give 0. If every answer is right, harder prompts are needed.",
        live=LiveRule(
            "count(rl_reward, 20 values) >= 20 and max(rl_reward, 20 values) == min(rl_reward, 20 values)",
            "The mean reward has been exactly {rl_reward:.4g} for 20 steps",
            clear="max(rl_reward, 20 values) > min(rl_reward, 20 values)",
        ),
        findings=("rl.reward_constant",),
    ),
    Condition(
        "rl_stale",
        "rank",
        "stale responses",
        "warning",
        "The responses come from a policy of many updates ago. Give the rollout more GPUs, lower the limit of "
        "off-policy steps, or synchronize weights more often.",
        thresholds=(Threshold("rl_staleness_versions", 4, "versions", "older responses, on average, are stale"),),
        live=LiveRule(
            "median(rl_staleness, 10 values) > $rl_staleness_versions",
            "Responses are {value:.1f} versions old on average",
            wait="5 steps",
            clear="median(rl_staleness, 10 values) < $rl_staleness_versions",
            clear_wait="5 steps",
        ),
        findings=("rl.stale",),
    ),
    Condition(
        "rl_not_updated",
        "rank",
        "weights that are not updated",
        "critical",
        "The policy does not change. Check that advantages are not all zero, that the loss is not masked away, that "
        "parameters require gradients, and that the learning rate is not 0.",
        live=LiveRule(
            "count(rl_gradient_norm, 10 values) >= 10 and max(rl_gradient_norm, 10 values) == 0",
            "The gradients of the policy have been 0 for 10 steps: its weights are not updated",
            clear="rl_gradient_norm > 0",
        ),
        findings=("rl.not_updated",),
    ),
    _waits(
        "rl_generation_bound",
        "steps bound by generation",
        _GENERATION,
        Threshold("rl_generation_percent", 75, "%", "a larger share of a step spent on generation is too large"),
        "Generation takes {share:.0f} % of each step; twice as fast, steps would be {gain:.2f} times as fast",
        "Give the rollout more GPUs, a larger batch or more memory for the KV cache, cap the longest responses, or "
        "generate while training (asynchronous).",
        f"1 / (1 - {_GENERATION} / 2)",
        "rl.generation_bound",
    ),
    _waits(
        "rl_trainer_waits",
        "a trainer that waits for responses",
        _IDLE,
        Threshold(
            "rl_trainer_idle_percent", 30, "%", "a larger share of a step spent waiting for responses is too large"
        ),
        "The trainer waits for responses {share:.0f} % of each step; without that, steps would be {gain:.2f} times as "
        "fast",
        _GENERATION_SLOW,
        f"1 / (1.001 - at_most({_IDLE}, 1))",
        "rl.trainer_waits",
    ),
    _waits(
        "rl_trainer_idle",
        "an idle trainer",
        "mean(rl_trainer_idle_share, 20 values)",
        Threshold(
            "rl_trainer_idle_share_percent",
            30,
            "%",
            "a trainer that is idle for a larger share of a step waits too long",
        ),
        "The trainer is idle {share:.0f} % of each step; without that, steps would be up to {gain:.2f} times as fast",
        _GENERATION_SLOW,
        "1 / (1.001 - at_most(mean(rl_trainer_idle_share, 20 values), 1))",
        "rl.trainer_idle",
    ),
    _waits(
        "rl_update_bound",
        "steps bound by training",
        _UPDATE,
        Threshold("rl_update_percent", 75, "%", "a larger share of a step spent on training is too large"),
        "Training the policy takes {share:.0f} % of each step; twice as fast, steps would be {gain:.2f} times as fast",
        _TRAINER_BOUND,
        f"1 / (1 - {_UPDATE} / 2)",
        "rl.update_bound",
    ),
    _waits(
        "rl_rollout_waits",
        "a rollout that waits for weights",
        _ROLLOUT_IDLE,
        Threshold(
            "rl_rollout_wait_percent", 30, "%", "a larger share of a step in which the rollout waits is too large"
        ),
        "The rollout waits for new weights {share:.0f} % of each step; without that, steps would be up to {gain:.2f} "
        "times as fast",
        _TRAINER_BOUND,
        f"1 / (1.001 - at_most({_ROLLOUT_IDLE}, 1))",
        "rl.rollout_waits",
    ),
    _waits(
        "rl_rollout_idle",
        "an idle rollout",
        "mean(rl_rollout_idle_share, 20 values)",
        Threshold(
            "rl_rollout_idle_percent", 30, "%", "a rollout that is idle for a larger share of the time waits too long"
        ),
        "The rollout is idle {share:.0f} % of the time: training is the bottleneck, and up to {gain:.2f} times the "
        "responses could be used",
        _TRAINER_BOUND,
        "1 / (1.001 - at_most(mean(rl_rollout_idle_share, 20 values), 1))",
        "rl.rollout_idle",
    ),
    _waits(
        "rl_validation_long",
        "long validation",
        _VALIDATION,
        Threshold("rl_validation_percent", 20, "%", "a larger share of all time spent on validation is too large"),
        "Validation takes {share:.0f} % of the time; without it, the run would be {gain:.2f} times as fast",
        "Validate less often, on fewer prompts or with fewer responses each.",
        f"1 / (1 - {_VALIDATION})",
        "rl.validation_long",
    ),
    Condition(
        "rl_rollout_uneven",
        "rank",
        "uneven rollout",
        "info",
        "All wait for the slowest: sort prompts by expected length, cap the longest responses, balance the load of "
        "the workers, or let the trainer begin before the last response (partial rollout).",
        thresholds=(
            Threshold(
                "rl_rollout_factor", 3, "times", "a slowest worker or response this many times the mean is uneven"
            ),
        ),
        live=LiveRule(
            "median(rl_rollout_slowest_time, 20 values) > $rl_rollout_factor * median(rl_rollout_mean_time, 20 values)",
            "The slowest rollout takes {value:.3g} s, the mean {mean:.3g} s: with an even load, generation would be up "
            "to {gain:.2f} times as fast",
            wait="10 steps",
            clear="median(rl_rollout_slowest_time, 20 values) "
            "< 0.8 * $rl_rollout_factor * median(rl_rollout_mean_time, 20 values)",
            clear_wait="10 steps",
            let={
                "mean": "median(rl_rollout_mean_time, 20 values)",
                "gain": "median(rl_rollout_slowest_time, 20 values) / median(rl_rollout_mean_time, 20 values)",
            },
        ),
        findings=("rl.rollout_uneven",),
    ),
)
